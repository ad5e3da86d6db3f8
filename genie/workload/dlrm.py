"""DLRM: embedding tables dealt to the ranks, multilayer perceptrons replicated.

A rank looks up its tables for the whole batch and an all_to_all brings every rank the rows of its
own samples; backward the gradients go the other way (Naumov et al., arXiv 1906.00091, section 3).
The bottom perceptron runs while rows are on their way. The perceptrons' gradients are all_reduced.
"""

from __future__ import annotations

from itertools import pairwise

from genie.trace import Builder, Coll
from genie.trace.kinds import dtype_bytes
from genie.workload.cost import Roofline, Work
from genie.workload.emit import EXPERT, Emitter
from genie.workload.layout import WORLD
from genie.workload.replicas import Replicas
from genie.workload.spec import Spec


def deal_tables(rows: tuple[int, ...], ranks: int) -> list[list[int]]:
    """Return the tables of each rank: the largest left goes to the rank with fewest rows.

    Of ranks with equally few rows the one with fewest tables is taken, then the lowest.
    """
    dealt: list[list[int]] = [[] for _ in range(ranks)]
    held = [0] * ranks
    for table in sorted(range(len(rows)), key=lambda t: (-rows[t], t)):
        to = min(range(ranks), key=lambda r: (held[r], len(dealt[r]), r))
        dealt[to].append(table)
        held[to] += rows[table]
    return dealt


def layers_of(widths: tuple[int, ...]) -> list[int]:
    """Return the parameters of each layer of a perceptron, with biases."""
    return [(a + 1) * b for a, b in pairwise(widths)]


class DlrmRank:
    """Emits the nodes of one rank."""

    def __init__(self, spec: Spec, roofline: Roofline, rank: int) -> None:
        """Deal the tables."""
        self.spec = spec
        self.rank = rank
        self.builder = Builder()
        self.emit = Emitter(self.builder, roofline)
        self.world = spec.parallelism.world
        self.tables = deal_tables(spec.shape.tables, self.world)
        self.element = dtype_bytes(spec.precision.activations)
        self.bottom = layers_of(spec.shape.bottom_mlp)
        self.top = layers_of(spec.shape.top_mlp)
        ready = [*reversed(self.top), *reversed(self.bottom)]
        self.replicas = Replicas(self.emit, spec, ready)

    def run(self) -> Builder:
        """Emit every iteration and return the rank's nodes."""
        for iteration in range(self.spec.iterations):
            prefix = f"it{iteration}." if self.spec.iterations > 1 else ""
            for micro_batch in range(self.spec.micro_batches):
                last = micro_batch == self.spec.micro_batches - 1
                self._pass(f"{prefix}mb{micro_batch}", last)
            self.replicas.finish(prefix)
            weights = sum(self.bottom) + sum(self.top)
            self.emit.compute("optimizer", prefix.rstrip("."), [Work("memory", 0, 12.0 * weights)])
        return self.builder

    def _exchange(self, name: str, forward: bool) -> int | None:
        row = self.spec.micro * self.spec.shape.embedding_dim * self.element
        mine = [row * len(self.tables[self.rank])] * self.world
        others = [row * len(tables) for tables in self.tables]
        sent, received = (mine, others) if forward else (others, mine)
        return self.emit.collective(
            Coll.ALL_TO_ALL, name, WORLD if self.world > 1 else None, sum(sent), stream=EXPERT,
            dtype=self.spec.precision.activations, wait=False, splits=(sent, received),
        )  # fmt: skip

    def _lookups(self) -> Work:
        m = self.spec.shape
        rows = self.spec.micro * self.world * m.lookups * len(self.tables[self.rank])
        return Work("memory", 0.0, 4.0 * rows * m.embedding_dim)

    def _products(self, layers: list[int], factor: float) -> list[Work]:
        samples = self.spec.micro
        size = dtype_bytes(self.spec.precision.compute)
        return [Work("matmul", 2.0 * n * samples * factor, n * size * factor) for n in layers]

    def _interaction(self) -> Work:
        m = self.spec.shape
        vectors = len(m.tables) + 1
        flops = 2.0 * self.spec.micro * vectors * vectors * m.embedding_dim
        return Work("matmul", flops, self.spec.micro * vectors * m.embedding_dim * self.element)

    def _pass(self, where: str, last: bool) -> None:
        emit = self.emit
        emit.compute("forward.embedding", where, [self._lookups()])
        rows = self._exchange(f"forward.embedding.{where}.all_to_all", True)
        emit.compute("forward.bottom_mlp", where, self._products(self.bottom, 1))
        emit.wait(rows)
        emit.compute("forward.interaction", where, [self._interaction()])
        emit.compute("forward.top_mlp", where, self._products(self.top, 1))
        index = 0
        for work in reversed(self._products(self.top, 2)):
            emit.compute("backward.top_mlp", f"{index}.{where}", [work])
            index = self._done(index, where, last)
        emit.compute("backward.interaction", where, [self._interaction().times(2)])
        gradients = self._exchange(f"backward.embedding.{where}.all_to_all", False)
        for work in reversed(self._products(self.bottom, 2)):
            emit.compute("backward.bottom_mlp", f"{index}.{where}", [work])
            index = self._done(index, where, last)
        emit.wait(gradients)
        emit.compute("backward.embedding", where, [self._lookups().times(2)])

    def _done(self, index: int, where: str, last: bool) -> int:
        if last:
            self.replicas.ready(index, f"{where}.")
        return index + 1
