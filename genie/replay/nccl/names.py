"""Names and codes of NCCL's functions, algorithms, protocols, data types and operations.

The trace spells functions `all_reduce`; NCCL's variables spell them `AllReduce` and its tuner
files `allreduce`. Code order is NCCL's own, because it decides ties and sort orders
(spec/nccl-wire-schedule.md section 0).
"""

from __future__ import annotations

from genie.errors import InputError, UnsupportedCollectiveError

#: Functions in NCCL's code order, as the trace spells them.
FUNCTIONS = ("broadcast", "reduce", "all_gather", "reduce_scatter", "all_reduce")
BROADCAST, REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE = range(5)

#: Algorithms in NCCL's code order; a tie in time goes to the first.
ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
TREE, RING, COLLNET_DIRECT, COLLNET_CHAIN, NVLS, NVLS_TREE, PAT = range(7)

#: Protocols in NCCL's code order.
PROTOCOLS = ("ll", "ll128", "simple")
LL, LL128, SIMPLE = range(3)

#: How NCCL_ALGO, NCCL_PROTO and the prefixes of their lists spell them (read without case).
ENV_FUNCTIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
ENV_ALGORITHMS = ("Tree", "Ring", "CollnetDirect", "CollnetChain", "NVLS", "NVLSTree", "PAT")
ENV_PROTOCOLS = ("LL", "LL128", "Simple")

#: Bytes of an element of each data type, in NCCL's code order (types without a code last).
DTYPE_SIZE = {
    "int8": 1,
    "uint8": 1,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "bfloat16": 2,
    "float8_e4m3": 1,
    "float8_e5m2": 1,
}
DTYPE_CODE = {name: code for code, name in enumerate(DTYPE_SIZE)}

_DTYPE_ALIASES = {
    "char": "int8",
    "byte": "uint8",
    "bool": "uint8",
    "int": "int32",
    "long": "int64",
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "fp16": "float16",
    "fp32": "float32",
    "fp64": "float64",
    "bf16": "bfloat16",
    "float8_e4m3fn": "float8_e4m3",
    "fp8_e4m3": "float8_e4m3",
    "f8e4m3": "float8_e4m3",
    "fp8_e5m2": "float8_e5m2",
    "f8e5m2": "float8_e5m2",
}

#: Reduction operations in NCCL's code order; "premulsum" is a sum of pre-multiplied inputs.
OPS = ("sum", "prod", "max", "min", "avg", "premulsum")
OP_CODE = {name: code for code, name in enumerate(OPS)}

_KIND_FUNCTION = {
    "broadcast": BROADCAST,
    "reduce": REDUCE,
    "all_gather": ALL_GATHER,
    "reduce_scatter": REDUCE_SCATTER,
    "all_reduce": ALL_REDUCE,
    # Same collective, other name in the trace.
    "reduce_scatter_block": REDUCE_SCATTER,
    # NCCL has no barrier: PyTorch's ProcessGroupNCCL all-reduces one element.
    "barrier": ALL_REDUCE,
}


def function_code(kind: str) -> int:
    """Return NCCL's code of the function that `kind` (as the trace spells it) calls.

    Raises:
        UnsupportedCollectiveError: not one of NCCL's collective kernels (all_to_all, gather,
            scatter, send and recv are groups of sends and receives).
    """
    try:
        return _KIND_FUNCTION[kind]
    except KeyError:
        raise UnsupportedCollectiveError(
            f"{kind!r} is not a collective NCCL chooses an algorithm for "
            f"(there is {', '.join(_KIND_FUNCTION)})",
            kind=kind,
            why="no NCCL collective of that name",
        ) from None


def dtype_name(dtype: str) -> str:
    """Return the canonical name of `dtype` ("float" is "float32").

    Raises:
        InputError: a type NCCL does not have.
    """
    name = str(dtype).lower().removeprefix("torch.")
    name = _DTYPE_ALIASES.get(name, name)
    if name not in DTYPE_SIZE:
        raise InputError(f"not a data type NCCL has: {dtype!r} ({', '.join(DTYPE_SIZE)})")
    return name


def dtype_size(dtype: str) -> int:
    """Return the bytes of one element of `dtype`."""
    return DTYPE_SIZE[dtype_name(dtype)]


def op_name(op: str) -> str:
    """Return the canonical name of the reduction `op`.

    Raises:
        InputError: an operation NCCL does not have.
    """
    name = str(op).lower().removeprefix("reduceop.")
    name = {"product": "prod", "premul_sum": "premulsum", "average": "avg"}.get(name, name)
    if name not in OP_CODE:
        raise InputError(f"not a reduction NCCL has: {op!r} ({', '.join(OPS)})")
    return name
