"""Generated trace files for the benchmarks: the shapes of perf.md, section 1, in our own words.

`typical`: two thirds CPU operators with eight attributes, a third kernels, 2 % collectives; one
control and one to three data dependencies; about 540 bytes a node. `dense`: 50 data dependencies
a node, as in PyTorch-converted traces.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

from genie.trace.schema import GlobalMetadata, Node

_SCHEMA_TEXT = (
    "aten::linear(Tensor input, Tensor weight, Tensor? bias=None, *, int[] out_dims=[]) -> Tensor"
)
_OPERATORS = (
    "aten::linear",
    "aten::gelu",
    "aten::layer_norm",
    "aten::scaled_dot_product_attention",
    "autograd::engine::evaluate_function: NativeLayerNormBackward0",
    "aten::view",
    "aten::empty_like",
    "aten::add_",
)
_KERNELS = (
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>"
    "(int, float, c10::BFloat16 const*, c10::BFloat16 const*, c10::BFloat16 const*, float*, "
    "float*, c10::BFloat16*)",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64",
)
_NCCL = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
_TEMPLATES = 256


def varint(number: int) -> bytes:
    """Return `number` in base 128."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _tensors(draw: random.Random, count: int) -> str:
    one = "[{}, {}, 0, {}, 2, 'cuda:0']"
    return (
        "["
        + ", ".join(
            one.format(
                draw.randrange(1, 250000), draw.randrange(1, 250000), 1 << draw.randrange(8, 24)
            )
            for _ in range(count)
        )
        + "]"
    )


def _body(draw: random.Random, kind: str) -> bytes:
    # Everything of a node but its id and its parents.
    node = Node(duration_micros=draw.choice((2, 7, 19, 140, 1100)))
    inputs = draw.randrange(2, 5)
    node.inputs.values = _tensors(draw, inputs)
    node.inputs.shapes = str([[64, draw.choice((1024, 2048, 8192))]] * inputs)
    node.inputs.types = str(["Tensor(c10::BFloat16)"] * inputs)
    node.outputs.values = _tensors(draw, 1)
    node.outputs.shapes = "[[64, 2048]]"
    node.outputs.types = "['Tensor(c10::BFloat16)']"
    if kind == "cpu":
        node.name = f"{draw.choice(_OPERATORS)}({draw.randrange(10000)})"
        node.type = 4
        for name, value in (
            ("rf_id", draw.randrange(1 << 18)),
            ("fw_parent", 0),
            ("seq_id", draw.randrange(10000)),
            ("scope", 0),
            ("tid", 1),
            ("fw_tid", 0),
        ):
            node.attr.add(name=name, int64_val=value)
        node.attr.add(name="op_schema", string_val=_SCHEMA_TEXT)
        node.attr.add(name="is_cpu_op", bool_val=True)
        return bytes(node.SerializeToString())
    node.attr.add(name="is_cpu_op", bool_val=False)
    node.attr.add(name="tid", int64_val=5)
    if kind == "gpu":
        node.name = draw.choice(_KERNELS)
        node.type = 4
        node.attr.add(name="stream", int64_val=7)
    else:
        node.name = _NCCL
        node.type = 7
        node.attr.add(name="stream", int64_val=24)
        node.attr.add(name="comm_type", int64_val=draw.choice((0, 2, 7)))
        node.attr.add(name="comm_size", int64_val=draw.choice((1 << 16, 1 << 22, 25 << 20)))
        node.attr.add(name="pg_name", string_val="0")
    return bytes(node.SerializeToString())


def _typical(draw: random.Random, i: int) -> bytes:
    head = b"\x08" + varint(i)
    if i > 1:
        above = varint(max(1, i - draw.randrange(1, 40)))
        head += b"\x22" + varint(len(above)) + above
        back = (1, draw.randrange(2, 300), draw.randrange(300, 900))[: draw.randrange(1, 4)]
        data = b"".join(varint(k) for k in sorted({max(1, i - b) for b in back}))
        head += b"\x2a" + varint(len(data)) + data
    return head


def _dense(draw: random.Random, i: int) -> bytes:
    head = b"\x08" + varint(i)
    if i > 1:
        near = range(max(1, i - 400), i)
        chosen = draw.sample(near, min(50, len(near)))
        data = b"".join(varint(k) for k in chosen)
        head += b"\x2a" + varint(len(data)) + data
    return head


def _records(
    count: int, bodies: dict[str, list[bytes]], head: Callable[[random.Random, int], bytes]
) -> Iterator[bytes]:
    draw = random.Random(20261201)
    for i in range(1, count + 1):
        dice = draw.random()
        kind = "cpu" if dice < 0.66 else ("gpu" if dice < 0.98 else "comm")
        record = head(draw, i) + bodies[kind][draw.randrange(_TEMPLATES)]
        yield varint(len(record)) + record


def write(path: Path, count: int, *, dense: bool = False) -> Path:
    """Write a file of `count` nodes in the typical or the dense shape, unless it is there."""
    if path.exists():
        return path
    draw = random.Random(7)
    bodies = {
        kind: [_body(draw, kind) for _ in range(_TEMPLATES)] for kind in ("cpu", "gpu", "comm")
    }
    metadata = GlobalMetadata(version="0.0.4")
    metadata.attr.add(name="schema", string_val="1.1.1-chakra.0.0.4")
    first = metadata.SerializeToString()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".part")
    with open(partial, "wb", buffering=1 << 22) as file:
        file.write(varint(len(first)) + first)
        for record in _records(count, bodies, _dense if dense else _typical):
            file.write(record)
    partial.rename(path)
    return path
