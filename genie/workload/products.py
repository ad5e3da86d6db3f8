"""Matrix products of a layer: forward, the gradient of the input, the gradient of the weights.

The weights' gradient is added to the buffer that is reduced later, as Megatron-LM's fused
accumulation does: each micro-batch reads and writes it. 8-bit products read operands that
were cast before: inputs of column-parallel products in the norm before them, everything else in a
kernel of its own that reads 16 bits and writes the value and its transpose (Micikevicius et al.,
arXiv 2209.05433; Transformer Engine). The weights themselves are cast once a step, not priced.
"""

from __future__ import annotations

from dataclasses import dataclass

from genie.workload.cost import Work, Works

#: Bytes an element: 16 bits read, value and transpose written in 8.
_CAST = 4.0


@dataclass(frozen=True)
class Product:
    """`many` times rows x inner times inner x columns.

    Attributes:
        kind: Of `cost.Work`.
        rows: Tokens (of one of many, on average).
        inner: Elements summed over.
        columns: Elements of a row of the result.
        operand: Bytes of an operand's element.
        result: Bytes of a result's element.
        gradient: Bytes of a gradient's element of the weights.
        many: Products (experts) in one kernel.
        fused_cast: The input comes in the operands' type.
    """

    kind: str
    rows: float
    inner: float
    columns: float
    operand: int = 2
    result: int = 2
    gradient: int = 4
    many: int = 1
    fused_cast: bool = True

    def _work(self, rows: float, inner: float, columns: float, result: float) -> Work:
        return Work(
            self.kind,
            2.0 * self.many * rows * inner * columns,
            self.many * (rows + columns) * inner * self.operand,
            self.many * rows * columns * result,
            rows, columns, self.many,
        )  # fmt: skip

    def _cast(self, elements: float) -> Works:
        return (Work("memory", 0.0, _CAST * self.many * elements),) if self.operand == 1 else ()

    def forward(self) -> Works:
        """Return the kernels of the forward pass."""
        work = self._work(self.rows, self.inner, self.columns, self.result)
        cast = () if self.fused_cast else self._cast(self.rows * self.inner)
        return (*cast, work)

    def inputs(self) -> Works:
        """Return the kernels of the input's gradient (and the cast of the result's)."""
        work = self._work(self.rows, self.columns, self.inner, self.result)
        return (*self._cast(self.rows * self.columns), work)

    def weights(self) -> Works:
        """Return the kernels of the weights' gradient."""
        return (self._work(self.inner, self.rows, self.columns, 2.0 * self.gradient),)


Products = tuple[Product, ...]


def forward(products: Products) -> Works:
    """Return the kernels of products' forward pass, one after the other."""
    return tuple(work for product in products for work in product.forward())


def inputs(products: Products) -> Works:
    """Return the kernels of the gradients of products' inputs, last product first."""
    return tuple(work for product in reversed(products) for work in product.inputs())


def weights(products: Products) -> Works:
    """Return the kernels of the gradients of products' weights."""
    return tuple(work for product in reversed(products) for work in product.weights())


def backward(products: Products, with_weights: bool) -> Works:
    """Return the kernels of products' backward pass, with or without the weights' gradients."""
    return inputs(products) + (weights(products) if with_weights else ())
