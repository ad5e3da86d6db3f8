"""GENIE: replay an ML training job's network traffic from CPU-only hosts.

The names here are the public API; everything else is private. `genie.replay`, `genie.compare`,
`genie.experiment` and `genie.workload` are functions; inside the package of the same name only
`from genie.replay.x import y` is used.
"""

from genie.compare.comparison import compare
from genie.compare.figures.api import draw, figure
from genie.compare.truth.load import load_truth
from genie.errors import GenieError
from genie.experiment.api import experiment
from genie.replay.cluster import Cluster
from genie.replay.compute import ComputeModel
from genie.replay.gpu import GpuModel
from genie.replay.nccl.env import Nccl
from genie.replay.nccl.schedule import Schedule, schedule, schedule_group
from genie.replay.nccl.tuner import tune
from genie.replay.network import Network
from genie.replay.plan import Plan, plan
from genie.replay.recording import Recording
from genie.replay.run import replay
from genie.replay.simulate import simulate
from genie.trace import Trace, load
from genie.version import __version__
from genie.workload.generate import workload

__all__ = [
    "Cluster",
    "ComputeModel",
    "GenieError",
    "GpuModel",
    "Nccl",
    "Network",
    "Plan",
    "Recording",
    "Schedule",
    "Trace",
    "__version__",
    "compare",
    "draw",
    "experiment",
    "figure",
    "load",
    "load_truth",
    "plan",
    "replay",
    "schedule",
    "schedule_group",
    "simulate",
    "tune",
    "workload",
]
