import numpy as np
import numpy.typing as npt

def issue_order(
    indptr: npt.NDArray[np.int64], deps: npt.NDArray[np.uint32], ids: npt.NDArray[np.uint64]
) -> npt.NDArray[np.int64]: ...
def finish_times(
    indptr: npt.NDArray[np.int64],
    deps: npt.NDArray[np.uint32],
    order: npt.NDArray[np.int64],
    weight: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]: ...
def shortest_cycle(
    indptr: npt.NDArray[np.int64], deps: npt.NDArray[np.uint32], budget: int = ...
) -> tuple[list[int], bool, int]: ...
