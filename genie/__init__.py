"""GENIE: replay an ML training job's network traffic from CPU-only hosts.

The names here are the public API; everything else is private.
"""

from genie.version import __version__

__all__ = ["__version__"]
