"""One rank's nodes as a framework would issue them: a compute stream and communication streams.

A collective starts when everything before it on the compute stream is done (PyTorch's process
groups record an event); it holds the compute stream up only from where it is waited for. Node ids
grow in the order of issue and parents always come before their children, so that every rank
issues the collectives of a communicator in the same order.
"""

from __future__ import annotations

from genie.errors import InputError
from genie.trace import Builder, Coll, Kind
from genie.trace.kinds import dtype_bytes
from genie.workload.cost import Roofline, Work
from genie.workload.layout import Group
from genie.workload.part import Part, on_the_wire

#: GPU streams: PyTorch's default stream is 7 in most Chakra traces; the rest are one a purpose.
COMPUTE, TENSOR, CONTEXT_SEND, CONTEXT_RECEIVE, EXPERT, DATA, EXPERT_DATA, CONTROL = (
    7, 20, 21, 22, 23, 24, 25, 26,
)  # fmt: skip
#: Sends and receives of activations, then of gradients, between stages: four streams from here.
PIPELINE = 32


class Emitter:
    """Adds a rank's nodes to a `Builder`.

    Attributes:
        builder: Where the nodes go.
        last: The last node of the compute stream, -1 before the first.
        waits: Communication that the next compute node waits for.
    """

    def __init__(self, builder: Builder, roofline: Roofline, part: Part | None = None) -> None:
        """Start with nothing issued; of a job of which only a part is generated, know that."""
        self.builder = builder
        self.roofline = roofline
        self.part = part
        self.last = -1
        self.waits: list[int] = []

    def here(self) -> list[int]:
        """Return what a node issued now has to wait for."""
        deps = set(self.waits)
        if self.last >= 0:
            deps.add(self.last)
        return sorted(deps)

    def wait(self, *nodes: int | None) -> None:
        """Hold the compute stream until communication is done; None is nothing to wait for."""
        self.waits += [node for node in nodes if node is not None]

    def compute(self, kind: str, where: str, works: list[Work]) -> int:
        """Add operators that run one after the other as one node, and return it.

        Args:
            kind: What it is ("forward.attention"); measured times are looked up under it.
            where: Which one ("layer3.mb0").
            works: The operators.
        """
        flops = round(sum(work.flops for work in works))
        self.last = self.builder.node(
            Kind.COMP,
            f"{kind}.{where}" if where else kind,
            deps=self.here(),
            duration_ns=self.roofline.total_ns(kind, works),
            stream=COMPUTE,
            num_ops=flops,
            tensor_size=round(sum(work.nbytes for work in works)),
        )
        self.waits = []
        return self.last

    def collective(
        self,
        coll: Coll,
        name: str,
        group: Group | None,
        nbytes: int,
        *,
        stream: int,
        dtype: str,
        wait: bool = True,
        splits: tuple[list[int], list[int]] | None = None,
        deps: list[int] | None = None,
        root: int | None = None,
    ) -> int | None:
        """Add a collective and return it; None in a group of one, where there is none.

        Args:
            coll: Which.
            name: Any text.
            group: Who takes part.
            nbytes: As `Builder.node`: of all_gather one rank's part, else the whole input.
            stream: GPU stream.
            dtype: Element type.
            wait: Whether the compute stream waits for it.
            splits: Bytes to and from each rank of an uneven all_to_all.
            deps: What it waits for, if not everything issued so far.
            root: Root, as a rank in the group.
        """
        if group is None:
            return None
        if self.part is not None:
            left, ranks = len(self.part.members(group)), self.part.size(group)
            if left == 1:
                return None
            if splits is not None and left < ranks:
                raise InputError(
                    f"{name}: {left} of {ranks} ranks are kept, whose tokens are uneven: keep all "
                    "replicas that exchange tokens, or one, or say routing.even"
                )
            nbytes = on_the_wire(coll, nbytes, ranks, left, dtype_bytes(dtype))
        node = self.builder.node(
            Kind.COMM_COLL,
            name,
            deps=self.here() if deps is None else deps,
            coll=coll,
            nbytes=nbytes,
            group=group.name or None,
            stream=stream,
            dtype=dtype,
            splits=splits,
            root=root,
        )
        if wait:
            self.wait(node)
        return node

    def transfer(
        self,
        kind: Kind,
        name: str,
        group: Group,
        peer: int,
        nbytes: int,
        *,
        tag: int,
        stream: int,
        dtype: str,
        deps: list[int] | None = None,
    ) -> int:
        """Add a send or receive and return it; the compute stream does not wait for it yet."""
        return self.builder.node(
            kind,
            name,
            deps=self.here() if deps is None else deps,
            nbytes=nbytes,
            group=group.name or None,
            peer=peer if self.part is None else self.part.number(peer),
            tag=tag,
            stream=stream,
            dtype=dtype,
        )
