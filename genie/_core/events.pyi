from collections.abc import Mapping, Sequence
from typing import final

from typing_extensions import Buffer, Self

@final
class Picker:
    def __new__(cls, wanted: Mapping[str, Sequence[str]]) -> Self: ...
    def pick(self, data: Buffer) -> tuple[bytes, int, int, bool]: ...
