"""Bytes on the wire of one primitive call (spec sections 0 and 3.1).

A primitive call moves one chunk of n elements, n = 0 included, and every call makes messages:
one per FIFO step it fills. These functions take whole arrays of element counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from genie.replay.nccl.program import FIFO_STEPS

IntArray = npt.NDArray[np.int64]

BUFFER_BYTES = {"ll": 524288, "ll128": 4915200, "simple": 4194304}
"""Default connection buffers (NCCL_LL_BUFFSIZE, NCCL_LL128_BUFFSIZE, NCCL_BUFFSIZE)."""

SLICED = frozenset({"all_reduce", "all_gather", "reduce_scatter"})
"""Kinds whose ring Simple chunks take 4 FIFO steps and go out as two slices of 2 steps."""


@dataclass(frozen=True)
class Format:
    """How a protocol lays one call's elements on the wire.

    Attributes:
        protocol: "ll", "ll128" or "simple".
        element_size: bytes per element.
        slices: messages per call (2 for ring Simple all_reduce, all_gather, reduce_scatter).
        step_bytes: wire bytes of one FIFO step (buffer / 8).
    """

    protocol: str
    element_size: int
    slices: int
    step_bytes: int

    @property
    def steps(self) -> int:
        """FIFO steps that one message takes (NCCL's sliceSteps)."""
        return self.slices

    def messages(self, elements: IntArray) -> IntArray:
        """Wire bytes of each message of calls that move `elements` elements.

        Args:
            elements: element counts, any shape.

        Returns:
            Bytes, one more axis than `elements`: its length is `slices`.
        """
        n = np.asarray(elements, np.int64)
        es = self.element_size
        out = np.empty((*n.shape, self.slices), np.int64)
        first = out[..., 0]
        if self.protocol == "ll":
            np.multiply(-(n // -max(8 // es, 1)), 16, out=first)
        elif self.protocol == "ll128":
            np.multiply(-((n * es) // -1920), 2048, out=first)
        elif self.slices == 1:
            np.multiply(n, es, out=first)
        else:
            # The first slice is at least 1/32 of a full one, so short chunks stay whole.
            floor = 2 * (self.step_bytes // es) // 32
            np.minimum(np.maximum(-(n // -32) * 16, floor), n, out=first)
            np.subtract(n, first, out=out[..., 1])
            out *= es
        return out


def wire_format(
    algorithm: str,
    protocol: str,
    kind: str,
    element_size: int,
    buffer_bytes: int | None = None,
) -> Format:
    """The format of one collective's messages.

    Args:
        algorithm: "ring", "tree", "nvls_tree" or "pat".
        protocol: "ll", "ll128" or "simple".
        kind: the collective's name.
        element_size: bytes per element of the plan.
        buffer_bytes: the protocol's connection buffer; NCCL's default if not given.
    """
    buffer = BUFFER_BYTES[protocol] if buffer_bytes is None else buffer_bytes
    sliced = protocol == "simple" and algorithm == "ring" and kind in SLICED
    return Format(protocol, element_size, 2 if sliced else 1, buffer // FIFO_STEPS)
