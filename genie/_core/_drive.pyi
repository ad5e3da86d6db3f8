"""Types of genie._core._drive."""

from typing import final

def now() -> int: ...

@final
class Drive:
    def __new__(cls, capsule: object) -> Drive: ...
    def post_recv(self, conn: int, nbytes: int, step: int = 0) -> int: ...
    def post_send(self, conn: int, nbytes: int, step: int = 0) -> int: ...
    def flush(self) -> int: ...
    def poll(self, most: int = 64) -> list[tuple[int, int, int, int]]: ...
    def wait(self, ns: int) -> int: ...
    def exchange(
        self,
        sends: list[int],
        recvs: list[int],
        sizes: list[int],
        rounds: int,
        *,
        dependent: bool = True,
        timeout_ns: int = 60_000_000_000,
    ) -> list[int]: ...
    def ping(
        self,
        send: int,
        recv: int,
        nbytes: int,
        count: int,
        first: bool,
        timeout_ns: int = 5_000_000_000,
    ) -> list[int]: ...
    def stream(
        self,
        conn: int,
        sender: bool,
        nbytes: int,
        count: int,
        *,
        depth: int = 32,
        timeout_ns: int = 5_000_000_000,
    ) -> list[int]: ...
