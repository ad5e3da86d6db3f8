"""One rank of a transformer's training step: passes over its chunks, then the update."""

from __future__ import annotations

from genie.trace import Builder, Coll, Kind
from genie.trace.kinds import dtype_bytes
from genie.workload import products
from genie.workload.context import Context
from genie.workload.cost import Roofline, Work
from genie.workload.emit import CONTROL, PIPELINE, TENSOR, Emitter
from genie.workload.experts import Experts, Router
from genie.workload.fsdp import ROOT, FullyShard
from genie.workload.gradients import DataParallel
from genie.workload.layout import WORLD, Group, Layout
from genie.workload.part import Part
from genie.workload.pipeline import Pass, passes
from genie.workload.shapes import is_moe, layer_parameters
from genie.workload.sizes import Sizes
from genie.workload.spec import Spec
from genie.workload.stages import Chunk, chunks_of, held_layers, local_parameters
from genie.workload.tensor import Region, Tensor

#: Bytes read and written per parameter by Adam in mixed precision: gradient, master weight and two
#: moments in float32 (4 x 4 read, 3 x 4 written) and the 2-byte weight.
_OPTIMIZER_BYTES = 30


class TransformerRank:
    """Emits the nodes of one rank."""

    def __init__(
        self, spec: Spec, layout: Layout, roofline: Roofline, rank: int, part: Part | None = None
    ) -> None:
        """Find the rank's groups and chunks."""
        self.spec = spec
        self.rank = rank
        self.layout = layout
        self.builder = Builder()
        self.emit = Emitter(self.builder, roofline, part)
        self.sizes = Sizes(spec)
        self.stage = layout.coordinates(rank)["pp"]
        self.chunks = chunks_of(spec, self.stage)
        self.tp = layout.group("tp", rank)
        self.pp = layout.group("pp", rank)
        self.tensor = Tensor(self.emit, self.sizes, self.tp)
        cp = layout.group("cp", rank)
        self.context = Context(self.emit, self.sizes, cp, rank) if cp else None
        self.router = Router(spec, self.sizes.local_tokens)
        if spec.shape.experts:
            self.experts = Experts(self.emit, self.sizes, layout, rank, self.router)
        replicas = layout.group("dp_cp" if spec.parallelism.cp > 1 else "dp", rank)
        self.data = DataParallel(
            self.emit,
            spec,
            {False: replicas, True: layout.group("edp", rank) if spec.shape.experts else None},
            self.chunks,
        )
        self.shard: FullyShard | None = None
        if spec.parallelism.zero == 3:
            whole = layout.size("replicate") == 1
            group = replicas if whole else layout.group("shard", rank)
            self.shard = FullyShard(
                self.emit, spec, group, layout.group("replicate", rank), self.chunks
            )
        self.order = passes(spec, self.stage)
        self._sends: list[int] = []
        self._seen: set[str] = set()

    def run(self) -> Builder:
        """Emit every iteration and return the rank's nodes."""
        for iteration in range(self.spec.iterations):
            self._step(iteration)
        return self.builder

    def _step(self, iteration: int) -> None:
        prefix = f"it{iteration}." if self.spec.iterations > 1 else ""
        self._seen = set()
        if self.shard is None:
            self.data.gather(f"{prefix}step")
        for one in self.order:
            where = f"{prefix}mb{one.micro_batch}"
            chunk = self.chunks[one.chunk]
            arrived = self._receive(one, chunk, where)
            if not self.spec.schedule.p2p_in_background:
                self.emit.wait(*self._sends)
                self._sends = []
            self.emit.wait(arrived)
            last = one.micro_batch == self.spec.micro_batches - 1
            if one.kind == "F":
                self._forward(chunk, one, where)
                self._send(one, chunk, where)
            elif one.kind == "B":
                split = self.spec.schedule.kind == "zero-bubble"
                self._backward(chunk, one, where, last, weights=not split)
                self._send(one, chunk, where)
            else:
                self._weights(chunk, where, last)
        self.emit.wait(*self._sends)
        self._sends = []
        self._update(prefix)

    # Between stages.

    def _boundary(self, one: Pass, chunk: Chunk, sending: bool) -> tuple[int, int] | None:
        """Return (peer, tag) of what a pass receives or sends, None at the model's ends."""
        if self.pp is None or one.kind == "W":
            return None
        forward = one.kind == "F"
        edge = chunk.number + (1 if forward == sending else 0)
        if edge in {0, self.pp.size * self.spec.parallelism.vpp}:
            return None
        step = 1 if forward == sending else -1
        peer = self.pp.members[(self.stage + step) % self.pp.size]
        return peer, 2 * edge + (0 if forward else 1)

    def _transfer(self, kind: Kind, one: Pass, chunk: Chunk, where: str) -> int | None:
        found = self._boundary(one, chunk, kind == Kind.COMM_SEND)
        if found is None:
            return None
        assert self.pp is not None
        peer, tag = found
        what = "activations" if one.kind == "F" else "gradients"
        verb = "send" if kind == Kind.COMM_SEND else "recv"
        # One stream a direction, so that nobody's send holds up a receive. Between two stages of
        # an interleaved pipeline both directions join the same two ranks: like Megatron-LM one of
        # them then uses the world's communicator (p2p_communication.py, `_p2p_ops`).
        gradients = one.kind == "B"
        both = self.pp.size == 2 and self.spec.parallelism.vpp > 1
        group = WORLD if both and gradients else self.pp
        return self.emit.transfer(
            kind, f"pipeline.{what}.chunk{chunk.number}.{where}.{verb}", group, peer,
            self.sizes.local_activation_bytes, tag=tag,
            stream=PIPELINE + 2 * gradients + (kind == Kind.COMM_RECV),
            dtype=self.spec.precision.activations,
        )  # fmt: skip

    def _receive(self, one: Pass, chunk: Chunk, where: str) -> int | None:
        return self._transfer(Kind.COMM_RECV, one, chunk, where)

    def _send(self, one: Pass, chunk: Chunk, where: str) -> None:
        node = self._transfer(Kind.COMM_SEND, one, chunk, where)
        if node is not None:
            self._sends.append(node)

    # Passes.

    def _regions(self, layer: int, where: str) -> tuple[Region, Region]:
        sizes, name = self.sizes, f"layer{layer}.{where}"
        before, after = sizes.projections(layer)
        attention = Region(
            "attention", name, before, after, (sizes.norm, *sizes.rotary), sizes.core,
            sizes.core_backward,
        )  # fmt: skip
        return attention, Region("mlp", name, *sizes.feed_forward(layer)[:2], (sizes.norm,),
                                 *sizes.feed_forward(layer)[2:])  # fmt: skip

    def _forward(self, chunk: Chunk, one: Pass, where: str) -> None:
        if chunk.first:
            self._need("embedding", ROOT, where)
            self.emit.compute("forward.embedding", where, [self.sizes.lookup])
            self.tensor.reduce(f"forward.embedding.{where}")
        for layer in chunk.layers:
            self._layer_forward(layer, one.micro_batch, where)
            if self.shard:
                self.shard.after_forward(f"layer{layer}")
        if chunk.last:
            self._head_forward(where)
            for layer in self._further():
                self._projection("forward", layer, where)
                self._layer_forward(layer, one.micro_batch, where)
                self._head_forward(f"layer{layer}.{where}")

    def _further(self) -> range:
        m = self.spec.shape
        return range(m.layers, m.layers + m.mtp)

    def _projection(self, direction: str, layer: int, where: str) -> None:
        # Of a further-token module: the layer's output and the next token's embedding to one width.
        m, sizes = self.spec.shape, self.sizes
        product = (sizes.product(2 * m.hidden, m.hidden, rows=sizes.local_tokens),)
        works = {
            "forward": products.forward(product),
            "backward": products.backward(product, True),
            "inputs": products.inputs(product),
            "weights": products.weights(product),
        }[direction]
        kind = {"inputs": "backward"}.get(direction, direction)
        norm = () if direction == "weights" else (sizes.norm,)
        self.emit.compute(f"{kind}.mtp", f"layer{layer}.{where}", [*norm, *works])

    def _need(self, piece: str, unit: str, where: str) -> None:
        if self.shard:
            self.shard.before(unit, where)
        elif piece not in self._seen:
            self._seen.add(piece)
            self.data.need(piece)

    def _layer_forward(self, layer: int, micro_batch: int, where: str) -> None:
        name = f"layer{layer}"
        for part in ("attention", "mlp", "experts"):
            self._need(f"{name}.{part}", name, where)
            if self.shard:
                break
        attention, mlp = self._regions(layer, where)
        middle = None
        if self.context:
            context = self.context
            middle = lambda: context.forward(attention.where)  # noqa: E731
        self.tensor.forward(attention, middle)
        if is_moe(self.spec.shape, layer):
            self._experts_forward(mlp, layer, micro_batch)
        else:
            self.tensor.forward(mlp)

    def _router_work(self) -> list[Work]:
        m, sizes = self.spec.shape, self.sizes
        order = sizes.streaming(2.0 * sizes.local_tokens * m.top_k * m.hidden)
        return [sizes.norm, *products.forward(sizes.router), order]

    def _experts_forward(self, shared: Region, layer: int, micro_batch: int) -> None:
        experts, where = self.experts, shared.where
        self.emit.compute("forward.moe.router", where, self._router_work())
        sent = experts.dispatch(where, layer, micro_batch)
        if layer_parameters(self.spec.shape, layer).dense:
            # Shared experts run while tokens are on their way (DeepSeek-V3, section 3.2.1).
            self.tensor.forward(shared)
        self.emit.wait(sent)
        rows = experts.rows(layer, micro_batch)
        experts.gather(f"forward.moe.tokens.{where}", rows)
        first, last, between, _ = self.sizes.expert(rows, experts.local)
        works = [*products.forward(first), *between, *products.forward(last)]
        self.emit.compute("forward.moe.experts", where, works)
        experts.scatter(f"forward.moe.tokens.{where}", rows)
        self.emit.wait(experts.combine(where, layer, micro_batch))

    def _experts_backward(
        self, shared: Region, layer: int, micro_batch: int, weights: bool
    ) -> None:
        experts, where = self.experts, shared.where
        sent = experts.combine_backward(where, layer, micro_batch)
        if layer_parameters(self.spec.shape, layer).dense:
            self.tensor.backward(shared, weights=weights)
        self.emit.wait(sent)
        rows = experts.rows(layer, micro_batch)
        experts.gather(f"backward.moe.tokens.{where}", rows)
        first, last, _, between = self.sizes.expert(rows, experts.local)
        out, into = products.backward(last, weights), products.backward(first, weights)
        self.emit.compute("backward.moe.experts", where, [*out, *between, *into])
        experts.scatter(f"backward.moe.tokens.{where}", rows)
        self.emit.wait(experts.dispatch_backward(where, layer, micro_batch))
        self.emit.compute(
            "backward.moe.router", where, [work.times(2.0) for work in self._router_work()]
        )

    def _head_forward(self, where: str) -> None:
        self._need("head", ROOT, where)
        self.tensor.gather(f"forward.head.{where}")
        head = products.forward(self.sizes.head)
        self.emit.compute("forward.head", where, [*head, self.sizes.loss])
        # Vocabulary-parallel cross entropy: largest logit, the target's logit, sum of exponentials.
        for what in ("max", "target", "sum"):
            self._head_sum(f"forward.loss.{what}.{where}.all_reduce")
        self.emit.compute("forward.loss", where, [self.sizes.loss.times(1 / 3)])

    def _head_sum(self, name: str) -> None:
        self.emit.collective(
            Coll.ALL_REDUCE, name, self.tp, 4 * self.sizes.tokens, stream=TENSOR, dtype="float32"
        )

    def _head_backward(self, where: str, weights: bool) -> None:
        sizes = self.sizes
        works = [sizes.loss.times(2 / 3), *products.inputs(sizes.head)]
        if self.tp is None:
            more = products.weights(sizes.head) if weights else ()
            self.emit.compute("backward.head", where, [*works, *more])
            return
        inputs = self.tensor.gather(f"backward.head.{where}.input", wait=False) if weights else None
        self.emit.compute("backward.head", where, works)
        self.emit.wait(inputs)
        sums = self.tensor.reduce(f"backward.head.{where}", wait=False)
        if weights:
            self.emit.compute("backward.head.weights", where, list(products.weights(sizes.head)))
        self.emit.wait(sums)

    def _backward(self, chunk: Chunk, one: Pass, where: str, last: bool, weights: bool) -> None:
        if chunk.last:
            for layer in reversed(self._further()):
                self._head_backward(f"layer{layer}.{where}", weights)
                if self.spec.schedule.recompute == "full":
                    self._layer_forward(layer, one.micro_batch, f"{where}.again")
                self._layer_backward(layer, one.micro_batch, where, last, weights)
                self._projection("backward" if weights else "inputs", layer, where)
            self._head_backward(where, weights)
            if weights:
                self._done("head", where, last)
        for layer in reversed(chunk.layers):
            unit = f"layer{layer}"
            if self.shard:
                self.shard.before(unit, where, backward=True)
            if self.spec.schedule.recompute == "full":
                self._layer_forward(layer, one.micro_batch, f"{where}.again")
            self._layer_backward(layer, one.micro_batch, where, last, weights)
            if self.shard:
                self.shard.after_backward(unit, where, last)
        if chunk.first:
            self.tensor.gather(f"backward.embedding.{where}")
            self.emit.compute("backward.embedding", where, [self.sizes.lookup])
            if weights:
                self._done("embedding", where, last)
        if self.shard and (chunk.first if self.chunks[0].first else chunk.last):
            self.shard.after_backward(ROOT, where, last)

    def _done(self, piece: str, where: str, last: bool) -> None:
        if self.shard is None:
            self.data.ready(piece, where, last)

    def _layer_backward(
        self, layer: int, micro_batch: int, where: str, last: bool, weights: bool
    ) -> None:
        attention, mlp = self._regions(layer, where)
        name = f"layer{layer}"
        if is_moe(self.spec.shape, layer):
            self._experts_backward(mlp, layer, micro_batch, weights)
        else:
            self.tensor.backward(mlp, weights=weights)
        if weights:
            self._done(f"{name}.experts", where, last)
            self._done(f"{name}.mlp", where, last)
        if self.context:
            context = self.context
            self.tensor.backward(attention, lambda: context.backward(attention.where), weights)
        else:
            self.tensor.backward(attention, weights=weights)
        if weights:
            self._done(f"{name}.attention", where, last)

    def _weights(self, chunk: Chunk, where: str, last: bool) -> None:
        if chunk.last:
            self.tensor.gather(f"weights.head.{where}.input")
            head = products.weights(self.sizes.head)
            self.emit.compute("weights.head", where, list(head))
            self._done("head", where, last)
        for layer in reversed(held_layers(self.spec.shape, chunk)):
            name = f"layer{layer}"
            if layer >= self.spec.shape.layers:
                head = products.weights(self.sizes.head)
                self.emit.compute("weights.head", f"{name}.{where}", list(head))
                self._projection("weights", layer, where)
            attention, mlp = self._regions(layer, where)
            if is_moe(self.spec.shape, layer):
                self._expert_weights(mlp, layer, where)
                self._done(f"{name}.experts", where, last)
            else:
                self.tensor.weights(mlp)
            self._done(f"{name}.mlp", where, last)
            self.tensor.weights(attention)
            self._done(f"{name}.attention", where, last)
        if chunk.first:
            self._done("embedding", where, last)

    def _expert_weights(self, shared: Region, layer: int, where: str) -> None:
        if layer_parameters(self.spec.shape, layer).dense:
            self.tensor.weights(shared)
        micro_batch = int(where.rpartition("mb")[2])
        first, last, _, _ = self.sizes.expert(
            self.experts.rows(layer, micro_batch), self.experts.local
        )
        works = products.weights(last) + products.weights(first)
        self.emit.compute("weights.moe.experts", shared.where, list(works))

    # After the last micro-batch.

    def _update(self, prefix: str) -> None:
        if self.shard:
            self.shard.finish()
        else:
            self.data.finish()
        self._finalize(prefix)
        self._gradient_norm(prefix)
        self.emit.compute(
            "optimizer", prefix.rstrip("."),
            [Work("memory", 0.0, _OPTIMIZER_BYTES * self._optimized())],
        )  # fmt: skip

    def _optimized(self) -> float:
        """Return the parameters whose optimizer state this rank holds."""
        if self.shard:
            return sum(self.shard.share(unit) for unit in self.shard.units)
        total = 0.0
        for expert, group in self.data.groups.items():
            ranks = group.size if group and self.spec.parallelism.zero else 1
            total += local_parameters(self.spec, self.stage, expert) / ranks
        return total

    def _finalize(self, prefix: str) -> None:
        # Megatron-LM's finalize_model_grads: tied embeddings, then norms under sequence parallel.
        spec, element = self.spec, dtype_bytes(self.spec.precision.gradients)
        m = spec.shape
        embedding = self.layout.group("embedding", self.rank)
        if embedding is not None:
            nbytes = self.sizes.vocabulary * m.hidden // spec.parallelism.tp * element
            self._control(f"{prefix}gradients.embedding.all_reduce", embedding, nbytes)
        if self.sizes.sp and self.shard is None:
            norms = sum(
                layer_parameters(m, layer).replicated
                for chunk in self.chunks
                for layer in held_layers(m, chunk)
            )
            self._control(f"{prefix}gradients.norms.all_reduce", self.tp, norms * element)

    def _control(self, name: str, group: Group | None, nbytes: int) -> None:
        self.emit.collective(
            Coll.ALL_REDUCE, name, group, nbytes, stream=CONTROL,
            dtype=self.spec.precision.gradients,
        )  # fmt: skip

    def _gradient_norm(self, prefix: str) -> None:
        # Every rank that holds other parameters adds its part: all of them once states are sharded.
        group = self.layout.group("mp", self.rank)
        if self.spec.parallelism.zero and self.layout.world > 1:
            group = WORLD
        self.emit.collective(
            Coll.ALL_REDUCE, f"{prefix}gradients.norm.all_reduce", group, 4,
            stream=CONTROL, dtype="float32",
        )  # fmt: skip
