from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal, final

import numpy as np
import numpy.typing as npt
from typing_extensions import Self, disjoint_base

STREAM: np.dtype[np.void]
OP: np.dtype[np.void]
CONN: np.dtype[np.void]
NETWORK_EVENT: np.dtype[np.void]
OPS: np.dtype[np.void]
MESSAGES: np.dtype[np.void]
FAILURE: np.dtype[np.void]
CONNECTIONS: np.dtype[np.void]
BLOCKED: np.dtype[np.void]

@disjoint_base
class _Setup:
    def __new__(cls, *, clock: str = "wall") -> Self: ...
    def set_gpu(
        self,
        *,
        call_ns: int = 0,
        copy_bytes_per_ns: float = 0.0,
        reduce_bytes_per_ns: float = 0.0,
        receive_bytes_per_ns: float | None = None,
        move_ns: int = 0,
        start_ns: int = 0,
        send_ns: int = 0,
        early: bool = False,
        gap_ns: int = 0,
    ) -> None: ...
    def set_local(self, *, latency_ns: int = 0, bytes_per_ns: float = 0.0) -> None: ...
    def add_communicator(
        self, members: npt.ArrayLike, *, joint: bool = False, together: bool = False
    ) -> int: ...
    def add_program(
        self,
        streams: npt.NDArray[np.void],
        ops: npt.NDArray[np.void],
        window: int = 8,
        *,
        windows: npt.ArrayLike | None = None,
        tail_ns: int = 0,
    ) -> int: ...
    def add_rank(
        self,
        rank: int,
        kind: npt.ArrayLike,
        delay_ns: npt.ArrayLike,
        program: npt.ArrayLike,
        communicator: npt.ArrayLike,
        dep_indptr: npt.ArrayLike,
        deps: npt.ArrayLike,
        *,
        host: int = 0,
    ) -> None: ...
    def add_connections(
        self, table: npt.NDArray[np.void], ids: npt.ArrayLike | None = None
    ) -> None: ...
    def set_transport(self, capsule: object) -> None: ...
    def set_network(
        self,
        rate: npt.ArrayLike,
        latency_ns: npt.ArrayLike,
        path_indptr: npt.ArrayLike,
        path: npt.ArrayLike,
        *,
        names: Sequence[str] | None = None,
        cts_latency_ns: int = -1,
        events: npt.NDArray[np.void] | None = None,
    ) -> None: ...

@final
class Engine(_Setup):
    def run(
        self,
        *,
        iterations: int = 1,
        warmup: int = 0,
        time_scale: float = 1.0,
        watchdog_s: float = 60.0,
        start_ns: int | None = None,
        spin_ns: int = 60_000,
        poll_spin_ns: int = 60_000,
        progress: Callable[[int, int], object] | None = None,
        ops_limit: int | None = None,
        messages_limit: int | None = None,
        log_messages: str = "network",
        log_receives: bool = True,
        log_ranks: Collection[int] | None = None,
    ) -> Literal["done", "stalled", "failed", "aborted"]: ...
    def abort(self) -> None: ...
    def ops(self) -> npt.NDArray[np.void]: ...
    def messages(self) -> npt.NDArray[np.void]: ...
    def steps(self) -> list[tuple[int, int, int]]: ...
    def forget_messages(self, rows: int) -> None: ...
    def failures(self) -> npt.NDArray[np.void]: ...
    def connections(self) -> npt.NDArray[np.void]: ...
    def health(self) -> dict[str, Any]: ...
    def blocked(self) -> npt.NDArray[np.void]: ...
    def explain(self, node_name: Callable[[int, int], str] | None = None) -> str: ...
    @property
    def start_ns(self) -> int: ...
    @property
    def now_ns(self) -> int: ...
    @property
    def nodes_done(self) -> int: ...
    @property
    def nodes_total(self) -> int: ...
    @property
    def dropped(self) -> tuple[int, int]: ...
    @property
    def failures_more(self) -> int: ...
