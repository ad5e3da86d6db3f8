"""SimAI/AICB text workloads, one stage's layers line by line."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from genie.errors import InputError
from genie.trace import Builder, Coll, Kind
from genie.workload.emit import COMPUTE, DATA, EXPERT, PIPELINE, TENSOR
from genie.workload.imports import Import
from genie.workload.pipeline import Pass, one_forward_one_backward

_AICB = {
    "ALLREDUCE": Coll.ALL_REDUCE,
    "ALLGATHER": Coll.ALL_GATHER,
    "REDUCESCATTER": Coll.REDUCE_SCATTER,
    "ALLTOALL": Coll.ALL_TO_ALL,
}
_SUFFIXES = ("_DP_EP", "_EP", "_DP", "_TP")


@dataclass(frozen=True)
class _Phase:
    compute_ns: int
    coll: Coll | None
    group: str
    nbytes: int


class Aicb(Import):
    """A SimAI/AICB text workload ("HYBRID_TRANSFORMER_FWD_IN_BCKWD ...").

    A line is a layer: forward, input-gradient and weight-gradient phase, each a computation (ns)
    and a collective, whose size is the whole buffer. Forward and input-gradient collectives run
    among tensor-parallel ranks and hold the layer up, weight-gradient ones among data-parallel
    ranks behind what follows; `_EP`, `_DP`, `_DP_EP` and `_TP` name another group. Ranks are
    ordered tensor parallel, expert parallel, the rest, pipeline.

    With pp above 1 a file describes one stage: the layers of its micro-batches one after the other
    (`ga` times the same lines), between lines that stand once, and in `pp_comm` the bytes that go
    from stage to stage. Every stage gets these lines, its micro-batches in the order of 1F1B.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Read a file.

        Raises:
            InputError: It cannot be read as such a workload.
        """
        file = Path(path)
        try:
            lines = file.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{file}: {error}") from error
        self.header = header = _header(file, lines)
        self.tp, self.ep, self.pp = header.tp, header.ep, header.pp
        super().__init__(file.stem, header.world)
        self._stage = header.world // header.pp
        self._dp = self._stage // self.tp
        self.layers = _layers(file, lines)
        self._first, self._block = (0, len(self.layers))
        if self.pp > 1:
            found = _repeated(self.layers, header.ga)
            if found is None:
                raise InputError(
                    f"{file}: pp {self.pp}: no lines that stand ga ({header.ga}) times one after "
                    "the other, the layers of a stage's micro-batches"
                )
            self._first, self._block = found

    def groups(self) -> dict[str, tuple[int, ...]]:
        """Return the tensor, data, expert and expert-data parallel groups."""
        found: dict[str, tuple[int, ...]] = {}
        for rank in range(self.world_size):
            for kind in ("TP", "DP", "EP", "DP_EP", "PP"):
                name, members = self._group(kind, rank)
                if len(members) > 1:
                    found[name] = members
        return found

    def _group(self, kind: str, rank: int) -> tuple[str, tuple[int, ...]]:
        stage, within = divmod(rank, self._stage)
        base = stage * self._stage
        tensor, data = within % self.tp, within // self.tp
        inner, outer = data % self.ep, data // self.ep
        if kind == "PP":
            return f"PP_{within}", tuple(range(within, self.world_size, self._stage))
        if kind == "TP":
            start = base + data * self.tp
            return f"TP_{start // self.tp}", tuple(range(start, start + self.tp))
        if kind == "DP":
            members = range(base + tensor, base + self._stage, self.tp)
            return f"DP_{tensor + stage * self.tp}", tuple(members)
        if kind == "EP":
            experts = range(outer * self.ep, (outer + 1) * self.ep)
            number = tensor + self.tp * (outer + stage * (self._dp // self.ep))
            return f"EP_{number}", tuple(base + tensor + self.tp * m for m in experts)
        replicas = range(inner, self._dp, self.ep)
        number = tensor + self.tp * (inner + stage * self.ep)
        return f"DP_EP_{number}", tuple(base + tensor + self.tp * m for m in replicas)

    def rank(self, rank: int) -> Builder:
        """Return the nodes of one rank, weight gradients in background."""
        made = Builder()
        last: list[int] = []
        behind: list[int] = []
        after = self._first + self._block * (self.header.ga if self.pp > 1 else 1)
        last = self._forward(made, rank, range(self._first), last)
        if self.pp == 1:
            last = self._forward(made, rank, range(after), last)
            last = self._backward(made, rank, range(after), last, behind)
        else:
            last = self._micro_batches(made, rank, last, behind)
        last = self._forward(made, rank, range(after, len(self.layers)), last)
        last = self._backward(made, rank, range(after, len(self.layers)), last, behind)
        last = self._backward(made, rank, range(self._first), last, behind)
        if behind:
            made.node(
                Kind.COMP, "end", deps=sorted({*last, *behind}), duration_ns=1, stream=COMPUTE
            )
        return made

    def _micro_batches(
        self, made: Builder, rank: int, last: list[int], behind: list[int]
    ) -> list[int]:
        # 1F1B; a stage waits for what it receives, sends go on in the background.
        stage = rank // self._stage
        for one in one_forward_one_backward(stage, self.pp, self.header.ga):
            start = self._first + one.micro_batch * self._block
            lines, forward = range(start, start + self._block), one.kind == "F"
            source, target = (-1, 1) if forward else (1, -1)
            last = self._transfer(made, rank, source, one, last)
            run = self._forward if forward else self._backward
            last = run(made, rank, lines, last, behind)
            behind += self._transfer(made, rank, target, one, last, send=True)
        return last

    def _transfer(
        self, made: Builder, rank: int, step: int, one: Pass, last: list[int], send: bool = False
    ) -> list[int]:  # fmt: skip
        # Returns what ends a receive from (or a send to) a neighbour, if there is that neighbour.
        if not 0 <= rank // self._stage + step < self.pp:
            return [] if send else last
        forward = one.kind == "F"
        what = "activations" if forward else "gradients"
        verb = "send" if send else "recv"
        return [
            made.node(
                Kind.COMM_SEND if send else Kind.COMM_RECV,
                f"pipeline.{what}.mb{one.micro_batch}.{verb}", deps=last,
                peer=rank + step * self._stage, nbytes=self.header.pp_comm, tag=0 if forward else 1,
                group=self._group("PP", rank)[0], dtype="int8",
                stream=PIPELINE + 2 * (not forward) + (not send),
            )
        ]  # fmt: skip

    def _forward(
        self, made: Builder, rank: int, lines: range, last: list[int],
        behind: list[int] | None = None,
    ) -> list[int]:  # fmt: skip
        for i in lines:
            name, forward, _, _ = self.layers[i]
            last = self._phase(made, rank, f"forward.{name}", forward, last)[1]
        return last

    def _backward(
        self, made: Builder, rank: int, lines: range, last: list[int], behind: list[int]
    ) -> list[int]:
        for i in reversed(lines):
            name, _, inputs, weights = self.layers[i]
            # The weights' collective runs on while the next layer is computed.
            computed, ended = self._phase(made, rank, f"weights.{name}", weights, last)
            if ended != computed:
                behind += ended
            last = self._phase(made, rank, f"inputs.{name}", inputs, computed)[1]
        return last

    def _phase(
        self, made: Builder, rank: int, name: str, phase: _Phase, last: list[int]
    ) -> tuple[list[int], list[int]]:
        # Returns what ends the computation, and what ends the phase.
        if phase.compute_ns > 0:
            last = [
                made.node(
                    Kind.COMP, name, deps=last, duration_ns=phase.compute_ns, stream=COMPUTE
                )
            ]  # fmt: skip
        if phase.coll is None or phase.nbytes == 0:
            return last, last
        group, members = self._group(phase.group, rank)
        if len(members) == 1:
            return last, last
        nbytes = phase.nbytes // len(members) if phase.coll == Coll.ALL_GATHER else phase.nbytes
        if phase.coll in {Coll.REDUCE_SCATTER, Coll.ALL_TO_ALL}:
            nbytes -= nbytes % len(members)
        stream = {"TP": TENSOR, "EP": EXPERT}.get(phase.group, DATA)
        node = made.node(
            Kind.COMM_COLL, f"{name}.{phase.coll.name.lower()}", deps=last, coll=phase.coll,
            nbytes=nbytes, group=group, stream=stream, dtype="int8",
        )  # fmt: skip
        return last, [node]


def is_aicb(path: str | os.PathLike[str]) -> bool:
    """Return whether a file starts as a SimAI/AICB workload does."""
    try:
        with Path(path).open("rb") as file:
            return file.read(7) == b"HYBRID_"
    except OSError:
        return False


@dataclass(frozen=True)
class _Header:
    tp: int
    ep: int
    pp: int
    ga: int
    world: int
    pp_comm: int


def _header(file: Path, lines: list[str]) -> _Header:
    words = lines[0].replace(":", " ").split() if lines else []
    if not words or not words[0].startswith("HYBRID_"):
        raise InputError(f"{file}: line 1 is no SimAI header (HYBRID_TRANSFORMER_FWD_IN_BCKWD ...)")

    def value(name: str, default: str = "") -> int:
        text = words[words.index(name) + 1] if name in words[:-1] else default
        if not text.isdigit() or int(text) < 1:
            raise InputError(f"{file}: line 1 has no whole number after {name!r}")
        return int(text)

    tp, ep, pp, world = (
        value(name) for name in ("model_parallel_NPU_group", "ep", "pp", "all_gpus")
    )
    if world % (tp * pp) or world // (tp * pp) % ep:
        raise InputError(
            f"{file}: {world} ranks cannot be split into tensor parallel {tp}, pipeline {pp} and "
            f"expert parallel {ep}"
        )
    if pp == 1:
        return _Header(tp, ep, pp, 1, world, 0)
    text = words[words.index("pp_comm") + 1] if "pp_comm" in words[:-1] else ""
    try:
        pp_comm = int(float(text))
    except (ValueError, OverflowError):
        pp_comm = 0
    if pp_comm < 1:
        raise InputError(f"{file}: line 1: pp {pp} needs bytes between stages after 'pp_comm'")
    return _Header(tp, ep, pp, value("ga", "1"), world, pp_comm)


_Layer = tuple[str, _Phase, _Phase, _Phase]


def _repeated(layers: list[_Layer], times: int) -> tuple[int, int] | None:
    # (first line, lines of a block) of the longest run of `times` equal blocks; names without
    # their number
    rows = [(name.partition(".")[2], *phases) for name, *phases in layers]
    for block in range(len(rows) // times, 0, -1):
        for first in range(len(rows) - block * times + 1):
            start = rows[first : first + block]
            if all(
                rows[first + i * block : first + (i + 1) * block] == start for i in range(1, times)
            ):
                return first, block
    return None


def _layers(file: Path, lines: list[str]) -> list[_Layer]:
    found = []
    for number, line in enumerate(lines[2:], 3):
        words = line.split()
        if not words:
            continue
        if len(words) != 12:
            raise InputError(f"{file}: line {number}: 12 columns expected, found {len(words)}")
        phases = [
            _phase(file, number, words[i : i + 3], "DP" if i == 8 else "TP") for i in (2, 5, 8)
        ]
        found.append((words[0], phases[0], phases[1], phases[2]))
    text = lines[1].strip() if len(lines) > 1 else ""
    if text != str(len(found)):
        raise InputError(f"{file}: line 2 says {text!r} layers, found {len(found)}")
    return [(f"{i}.{name}", a, b, c) for i, (name, a, b, c) in enumerate(found)]


def _phase(file: Path, number: int, words: list[str], group: str) -> _Phase:
    kind = words[1].upper()
    for suffix in _SUFFIXES:
        if kind.endswith(suffix):
            kind, group = kind.removesuffix(suffix), suffix[1:]
            break
    if kind != "NONE" and kind not in _AICB:
        raise InputError(f"{file}: line {number}: no collective {words[1]!r}")
    try:
        compute, nbytes = int(float(words[0])), int(float(words[2]))
    except (ValueError, OverflowError):
        raise InputError(
            f"{file}: line {number}: {words[0]!r} ns and {words[2]!r} bytes must be numbers"
        ) from None
    if compute < 0 or nbytes < 0:
        raise InputError(f"{file}: line {number}: a time or size is negative")
    return _Phase(compute, _AICB.get(kind), group, nbytes)
