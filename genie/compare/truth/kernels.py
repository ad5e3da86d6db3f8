"""What the name of an NCCL kernel (or PyTorch's name of a collective) says.

Grammar (spec trace-formats §2): up to NCCL 2.18 `ncclKernel_<Coll>_<ALGO>_<PROTO>_<Op>_<type>`,
from 2.19 `ncclDevKernel_<Coll>[_<Op>_<type>]_<ALGO>_<PROTO>`, `ncclDevKernel_Generic`, symmetric
kernels `ncclSymkDevKernel_…`; RCCL uses the same names.
"""

from __future__ import annotations

import re

#: Any kernel of NCCL, RCCL or MSCCL.
NCCL_KERNEL = re.compile(r"^(?:void\s+)?(?:nccl|rccl|msccl)", re.IGNORECASE)

_COLLECTIVE = re.compile(
    r"(AllReduce|AllGather|ReduceScatter|Broadcast|Reduce|SendRecv|AlltoAll|AllToAll|Gather|Scatter)",
    re.IGNORECASE,
)
_ALGORITHM = re.compile(r"_(RING|TREE|COLLNET_DIRECT|COLLNET_CHAIN|NVLS_TREE|NVLS|PAT)(?=_|\(|$)")
_PROTOCOL = re.compile(r"_(LL128|LL|SIMPLE)(?=_|\(|$)")

_KINDS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "sendrecv": "unknown",
    "alltoall": "all_to_all",
    "gather": "gather",
    "scatter": "scatter",
}
#: PyTorch's "Collective name" and "nccl:…" annotations → kinds.
_TORCH = {
    "allreduce": "all_reduce",
    "allreducecoalesced": "all_reduce",
    "allreducesparse": "all_reduce",
    "reduce": "reduce",
    "broadcast": "broadcast",
    "broadcastoop": "broadcast",
    "allgather": "all_gather",
    "allgatherbase": "all_gather",
    "allgatherv": "all_gather",
    "allgatherintotensor": "all_gather",
    "allgatherintotensorcoalesced": "all_gather",
    "allgathercoalesced": "all_gather",
    "reducescatter": "reduce_scatter",
    "reducescatterbase": "reduce_scatter",
    "reducescatterv": "reduce_scatter",
    "reducescattertensor": "reduce_scatter",
    "reducescattertensorcoalesced": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "alltoallbase": "all_to_all",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
    "send": "send",
    "recv": "recv",
    "recvanysource": "recv",
}


def kernel_kind(name: str) -> str:
    """Return the kind a kernel's name states; "unknown" for SendRecv and generic kernels."""
    base = name.split("(", 1)[0]
    match = _COLLECTIVE.search(base)
    return _KINDS[match[1].lower()] if match else "unknown"


def kernel_choice(name: str) -> tuple[str | None, str | None]:
    """Return (algorithm, protocol) as the name states them, lower case, None if it does not."""
    base = name.split("(", 1)[0].upper()
    algorithm, protocol = _ALGORITHM.search(base), _PROTOCOL.search(base)
    return (
        algorithm[1].lower() if algorithm else None,
        protocol[1].lower() if protocol else None,
    )


def torch_kind(name: str | None) -> str | None:
    """Return the kind of PyTorch's name of a collective ("_allgather_base", "nccl:all_reduce")."""
    if not name:
        return None
    text = re.sub(r"[^a-z0-9]", "", str(name).lower().split(":")[-1].split(" ")[0])
    return _TORCH.get(text)
