from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from genie.errors import GenieError
from genie.replay.packing import pack, unpack
from genie.replay.tables import OPS

DTYPES = st.one_of(
    hnp.integer_dtypes(endianness="<"), hnp.floating_dtypes(endianness="<"), st.just(OPS)
)


@given(
    st.dictionaries(
        st.text(max_size=8),
        hnp.arrays(DTYPES, hnp.array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=5)),
        max_size=6,
    )
)
def test_round_trip(arrays):
    back = unpack(pack(arrays))
    assert list(back) == list(arrays)
    for name, array in arrays.items():
        assert back[name].dtype == array.dtype and back[name].shape == array.shape
        assert back[name].tobytes() == np.ascontiguousarray(array).tobytes()


@given(st.binary(max_size=80))
def test_other_bytes_are_refused(data):
    with pytest.raises(GenieError):
        unpack(data)


def test_truncated_block_is_refused():
    block = pack({"a": np.arange(100), "b": np.zeros(3, OPS)})
    for cut in (1, 8, 50, len(block) - 100):
        with pytest.raises(GenieError):
            unpack(block[:cut])


def test_objects_do_not_travel():
    with pytest.raises(TypeError, match="Python objects"):
        pack({"a": np.array([{}], dtype=object)})
