"""Context parallel attention: ring attention with sends and receives, or gathered keys and values.

Ring: every rank passes its keys and values around the group, cp - 1 times forward; backward they
go round again and their gradients go the whole way home, cp times (Liu et al., arXiv 2310.01889;
Transformer Engine's `AttnFuncWithCPAndKVP2P`). A pass is on its way while the block before it is
computed. All_gather form: Llama 3 (arXiv 2407.21783, section 3.3.2) gathers keys and values first
and reduce-scatters their gradients. A causal sequence is cut into 2 cp parts so that every rank
has the same work.
"""

from __future__ import annotations

from genie.trace import Coll, Kind
from genie.workload.cost import times
from genie.workload.emit import CONTEXT_RECEIVE, CONTEXT_SEND, Emitter
from genie.workload.layout import Group
from genie.workload.sizes import Sizes

_KV, _GRADIENTS = 1, 2


class Context:
    """Emits the attention core of one rank of a context-parallel group."""

    def __init__(self, emitter: Emitter, sizes: Sizes, group: Group, rank: int) -> None:
        """Find the neighbours of `rank` in the ring."""
        self.emitter = emitter
        self.sizes = sizes
        self.group = group
        at = group.members.index(rank)
        self.next = group.members[(at + 1) % group.size]
        self.previous = group.members[at - 1]
        self.ring = sizes.spec.parallelism.cp_comm == "p2p"
        self._dtype = sizes.spec.precision.activations

    def _pass(self, name: str, tag: int) -> list[int]:
        # Keys and values (or their gradients) to the next rank, those of the previous one here.
        nbytes, deps = self.sizes.kv_bytes, self.emitter.here()
        send = self.emitter.transfer(
            Kind.COMM_SEND, f"{name}.send", self.group, self.next, nbytes,
            tag=tag, stream=CONTEXT_SEND, dtype=self._dtype, deps=deps,
        )  # fmt: skip
        receive = self.emitter.transfer(
            Kind.COMM_RECV, f"{name}.recv", self.group, self.previous, nbytes,
            tag=tag, stream=CONTEXT_RECEIVE, dtype=self._dtype, deps=deps,
        )  # fmt: skip
        return [send, receive]

    def forward(self, where: str) -> None:
        """Emit the attention core's forward pass."""
        core, steps = self.sizes.core, self.group.size
        name = f"forward.attention.kv.{where}"
        if not self.ring:
            self._gathered(Coll.ALL_GATHER, name, self.sizes.kv_bytes)
            self.emitter.compute("forward.attention.core", where, list(core))
            return
        for step in range(steps):
            arriving = self._pass(f"{name}.{step}", _KV) if step < steps - 1 else []
            self.emitter.compute(
                "forward.attention.core", f"{where}.{step}", list(times(core, 1 / steps))
            )
            self.emitter.wait(*arriving)

    def backward(self, where: str) -> None:
        """Emit the attention core's backward pass."""
        core, steps = self.sizes.core_backward, self.group.size
        name = f"backward.attention.kv.{where}"
        if not self.ring:
            self.emitter.compute("backward.attention.core", where, list(core))
            self._gathered(Coll.REDUCE_SCATTER, name, steps * self.sizes.kv_bytes)
            return
        gradients: list[int] = []
        for step in range(steps):
            arriving = self._pass(f"{name}.{step}", _KV) if step < steps - 1 else []
            self.emitter.compute(
                "backward.attention.core", f"{where}.{step}", list(times(core, 1 / steps))
            )
            self.emitter.wait(*arriving, *gradients)
            gradients = self._pass(f"{name}.gradients.{step}", _GRADIENTS)
        self.emitter.wait(*gradients)

    def _gathered(self, coll: Coll, name: str, nbytes: int) -> None:
        self.emitter.collective(
            coll, f"{name}.{coll.name.lower()}", self.group, nbytes,
            stream=CONTEXT_SEND, dtype=self._dtype,
        )  # fmt: skip
