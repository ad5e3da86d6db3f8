"""Which NIC carries an edge, and through which GPU (spec nccl-wire-schedule 1.8)."""

from __future__ import annotations

from functools import cached_property

from genie.errors import InputError
from genie.replay.clusters.graph import Graph
from genie.replay.clusters.machine import Machine
from genie.replay.clusters.settings import Settings

__all__ = ["HostNics"]


def _mirror(value: int, size: int) -> int:
    """Return the low bits of `value` in reverse order, `size` a power of two."""
    out, bit, mirrored = 0, 1, size >> 1
    while bit < size:
        if value & bit:
            out |= mirrored
        bit, mirrored = bit << 1, mirrored >> 1
    return out


class HostNics:
    """NIC choice on one host, for the GPUs of a communicator there.

    Args:
        machine: The host type.
        gpus: GPU numbers of the members, by local rank.
        order: The members in topology order.
        settings: Environment and release.
    """

    def __init__(
        self, machine: Machine, gpus: tuple[int, ...], order: tuple[int, ...], settings: Settings
    ) -> None:
        self._machine = machine
        self._order = order
        self._settings = settings
        self._pxn = settings.pxn and machine.nvlink
        self._near = {g: machine.nics_of_gpu(g) for g in gpus}

    def local(self, gpu: int, channel: int) -> int:
        """Return the NIC that `gpu` takes on its own for a channel."""
        nics = self._near[gpu]
        # GPUs of the communicator that share the first of these NICs.
        sharing = sum(self._near[g][0] == nics[0] for g in self._order)
        count, policy = len(nics), self._settings.nics_per_gpu
        each = -(-count // sharing)
        if policy < 0:
            each = count
        elif policy > 0:
            each = min(policy, count)
        start = gpu % sharing if self._settings.version >= (2, 30, 7) else gpu
        if count & (count - 1) == 0:
            start = _mirror(start, count)
        return nics[(start + channel % each) % count]

    @cached_property
    def _owner(self) -> dict[int, int]:
        """The member that lends a NIC to the others: the first whose own NIC it is."""
        owner: dict[int, int] = {}
        for nic in range(self._machine.nics_per_host):
            near = [g for g in self._order if nic in self._machine.own_nics(g)]
            for channel in range(64):
                found = next((g for g in near if self.local(g, channel) == nic), None)
                if found is not None:
                    owner[nic] = found
                    break
        return owner

    def proxy(self, gpu: int, nic: int) -> int:
        """Return the GPU through which `gpu` sends on `nic`: itself, or the NIC's (PXN)."""
        if not self._pxn or nic in self._machine.own_nics(gpu):
            return gpu
        return self._owner.get(nic, gpu)

    def graph(self, graph: Graph, gpu: int, channel: int, n_channels: int) -> int:
        """Return the NIC that a search result names for a GPU and a channel.

        Args:
            graph: This host's own result, before odd hosts swap channels.
            gpu: The GPU.
            channel: The channel, copies included.
            n_channels: Channels of the reduced graph.
        """
        index = channel % n_channels
        return graph.inter[index][0 if graph.intra[index][0] == gpu else 1]

    def head(self, graph: Graph, gpu: int, channel: int) -> int:
        """Return the NIC of an NVLS head on a channel."""
        own = [n[0] for h, n in zip(graph.intra, graph.inter, strict=True) if h[0] == gpu]
        if not own:
            raise InputError(f"GPU {gpu} is no NVLS head")
        return own[channel % len(own)]

    def send(self, gpu: int, peer_gpu: int, channel: int) -> tuple[int, int]:
        """Return NIC and proxy GPU of a send to a GPU number on another host."""
        settings = self._settings
        own = self.local(gpu, channel)
        level = settings.p2p_pxn_level if self._pxn else 0
        if peer_gpu not in self._near or (level == 0 and not settings.same_rail_p2p):
            return own, gpu
        # The receiver's rail: the NIC that the local GPU of the same number would take.
        nic = self.local(peer_gpu, channel)
        if level == 0:
            return nic, gpu
        if level == 1:
            return nic, self.proxy(gpu, nic)
        lender = self._owner.get(nic)
        if lender is not None:
            return nic, lender
        return (nic, gpu) if settings.same_rail_p2p else (own, gpu)
