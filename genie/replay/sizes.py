"""From a trace node's bytes to the count and dtype that the NCCL call would have."""

from __future__ import annotations

from dataclasses import dataclass

from genie.errors import TraceError
from genie.trace.kinds import dtype_bytes

#: Collectives whose `comm_size` is the whole input, so that a call's count is one n-th of it.
_WHOLE_INPUT = frozenset({"reduce_scatter", "reduce_scatter_block", "all_to_all", "scatter"})


@dataclass(frozen=True)
class CallSize:
    """What an NCCL call is asked to move.

    Attributes:
        count: Elements, in the sense of NCCL's call of that kind.
        dtype: Name of the element type.
        padded_bytes: Bytes added so that the input divides by the number of ranks.
    """

    count: int
    dtype: str
    padded_bytes: int = 0


def call_size(kind: str, nbytes: int, n_ranks: int, dtype: str | None) -> CallSize:
    """Return the count and dtype of the NCCL call behind a trace node.

    `comm_size` is the sum of a rank's *input* tensors (spec/trace-formats §1.4): one rank's part
    of an all_gather, the whole input of reduce_scatter, all_to_all and scatter.

    Args:
        kind: Collective, spelled as in the trace.
        nbytes: The node's `comm_size` in bytes.
        n_ranks: Ranks of the communicator.
        dtype: The node's element type; None applies the rule "float32 if divisible by 4, else
            int8".

    Raises:
        TraceError: The bytes are not a whole number of elements of `dtype`.
    """
    if kind == "barrier":
        # NCCL has no barrier; PyTorch's is an all_reduce of one element.
        return CallSize(1, "float32")
    padded = 0
    part = nbytes
    if kind in _WHOLE_INPUT:
        size = dtype_bytes(dtype) if dtype is not None else 1
        whole = -(-nbytes // (n_ranks * size)) * n_ranks * size
        padded = whole - nbytes
        part = whole // n_ranks
    if dtype is None:
        dtype = "float32" if part % 4 == 0 else "int8"
    size = dtype_bytes(dtype)
    if part % size:
        raise TraceError(f"{kind} of {nbytes} bytes is not a whole number of {dtype} elements")
    return CallSize(part // size, dtype, padded)
