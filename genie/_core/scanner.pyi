from typing import NamedTuple, final

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

V1: int
V2: int
V3: int
V4: int
V4_EXTENDED: int
NOTE_DANGLING: int
NOTE_DUPLICATE: int
NOTE_KIND: int
NOTE_COLL: int
NOTE_VALUE: int
NOTE_IN_SPLITS: int
NOTE_OUT_SPLITS: int
NOTE_CORRUPT: int
NOTE_TWO_IDS: int
NOTE_TWICE: int
NOTE_COUNTS: int
FAULTS: dict[int, str]
STATUS_NONE: int
STATUS_INT: int
STATUS_FRACTION: int
STATUS_RANGE: int
STATUS_TEXT: int
ATTRIBUTES: tuple[str, ...]
FRAME_OK: int
FRAME_LENGTH_CUT: int
FRAME_RECORD_CUT: int
FRAME_TOO_LONG: int
FRAME_TOO_MANY: int
NOTE_DTYPE: str

class Scan(NamedTuple):
    columns: dict[str, npt.NDArray[np.generic]]
    dep_indptr: npt.NDArray[np.int64]
    deps: npt.NDArray[np.uint32]
    offset: npt.NDArray[np.uint64]
    length: npt.NDArray[np.uint32]
    name_at: npt.NDArray[np.uint32]
    name_length: npt.NDArray[np.uint32]
    notes: npt.NDArray[np.void]
    groups: list[bytes | int]
    metadata: tuple[int, int] | tuple[()]
    error: tuple[int, int, int] | tuple[()]
    unknown: dict[int, int]
    repeated: int

@final
class Memory: ...

def probe(data: Buffer, most: int = 256) -> tuple[int, int, int]: ...
def scan(data: Buffer, version: int, names: bool = True) -> Scan: ...
