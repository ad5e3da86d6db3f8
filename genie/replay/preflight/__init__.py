"""`check()`: what a network engineer looks at before a run, each line with its fix."""

from genie.replay.preflight.fabric import check_fabric
from genie.replay.preflight.report import Finding, Report
from genie.replay.preflight.run import check

__all__ = ["Finding", "Report", "check", "check_fabric"]
