"""Which compiled parts this installation has."""

from __future__ import annotations

import importlib.util


def verbs_state() -> tuple[bool, str]:
    """Return whether the verbs transport can be imported, and if not why."""
    if importlib.util.find_spec("genie._core.verbs") is None:
        return False, "not built: there was no infiniband/verbs.h at installation"
    try:
        importlib.import_module("genie._core.verbs")
    except ImportError as error:
        return False, str(error)
    return True, ""
