"""comm_size of a node → count and dtype of the NCCL call (design.md section 5)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genie.errors import TraceError
from genie.replay.sizes import call_size
from genie.trace.kinds import dtype_bytes


@pytest.mark.parametrize(
    ("kind", "nbytes", "n", "dtype", "count", "expected"),
    [
        ("all_reduce", 1 << 20, 8, None, 1 << 18, "float32"),
        ("all_reduce", 7, 8, None, 7, "int8"),
        ("all_reduce", 6, 8, "float16", 3, "float16"),
        ("all_gather", 1024, 4, None, 256, "float32"),  # comm_size is one rank's part
        ("reduce_scatter", 1024, 4, None, 64, "float32"),  # comm_size is the whole input
        ("all_to_all", 1024, 4, None, 64, "float32"),
        ("reduce_scatter", 12, 3, None, 1, "float32"),
        ("all_reduce", 0, 4, None, 0, "float32"),
        ("barrier", 0, 4, None, 1, "float32"),
    ],
)
def test_count_means_what_nccl_means(kind, nbytes, n, dtype, count, expected):
    size = call_size(kind, nbytes, n, dtype)
    assert (size.count, size.dtype, size.padded_bytes) == (count, expected, 0)


@given(
    kind=st.sampled_from(["reduce_scatter", "all_to_all", "scatter"]),
    nbytes=st.integers(0, 1 << 40),
    n=st.integers(1, 64),
    dtype=st.sampled_from([None, "int8", "float16", "float64"]),
)
def test_no_byte_is_lost_when_the_input_does_not_divide(kind, nbytes, n, dtype):
    size = call_size(kind, nbytes, n, dtype)
    total = size.count * dtype_bytes(size.dtype) * n
    assert total == nbytes + size.padded_bytes
    assert 0 <= size.padded_bytes < n * (dtype_bytes(dtype) if dtype else 1)


def test_half_an_element_is_refused():
    with pytest.raises(TraceError, match="not a whole number of float32"):
        call_size("all_reduce", 6, 4, "float32")
