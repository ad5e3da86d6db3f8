"""Golden data for tests: `load("tuning", "2.27")`, `load("sub/subcomm")`; GENIE_GOLDEN overrides.

The one copy lies in genie/data/golden (also used by `genie selftest`).
"""

from genie.replay.nccl.golden import FOLDERS, exists, load, path, root

VERSIONS = tuple(FOLDERS)

__all__ = ["VERSIONS", "exists", "load", "path", "root"]
