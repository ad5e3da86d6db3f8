"""The exception tree of GENIE; every error a user can meet derives from `GenieError`.

    GenieError
    ├ InputError (ValueError): an argument, option or file that cannot be used
    ├ TraceError (ValueError): path, rank, node
    │  ├ UnsupportedNodeError
    │  └ DependencyCycleError: nodes
    ├ ScheduleError (ValueError)
    │  └ UnsupportedCollectiveError (NotImplementedError): kind, why
    ├ LaunchError (RuntimeError): rank, world_size
    │  └ RendezvousTimeoutError (TimeoutError): missing
    ├ TransportError (RuntimeError)
    │  ├ DeviceNotFoundError (LookupError): name, found
    │  ├ VerbsError (OSError): call, errno
    │  ├ CompletionError: status, vendor_err, wr_id, qp_num, rank, peer
    │  └ ReplayTimeoutError (TimeoutError): pending
    ├ RecordError (ValueError): path
    │  └ RecordVersionError: found, known
    └ CompareError (ValueError)
       └ NothingMatchedError

Errors carry their facts as fields beside the text, and pickle, because workers
send them to the process that started the run.
"""

from __future__ import annotations

from typing import Any


class GenieError(Exception):
    """Base of every error GENIE raises on purpose; `fields` holds the facts in its text."""

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.fields = fields
        for name, value in fields.items():
            setattr(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.fields))


def _rebuild(cls: type[GenieError], message: str, fields: dict[str, Any]) -> GenieError:
    return cls(message, **fields)


class InputError(GenieError, ValueError):
    """An argument, option or file that cannot be used as given."""


class TraceError(GenieError, ValueError):
    """A trace that cannot be read or replayed: `path`, `rank`, `node` where known."""


class UnsupportedNodeError(TraceError):
    """A node whose kind or attributes GENIE does not replay."""


class DependencyCycleError(TraceError):
    """Dependencies that close a loop; `nodes` lists the shortest one found."""


class ScheduleError(GenieError, ValueError):
    """A collective that NCCL itself would not run as asked."""


class UnsupportedCollectiveError(ScheduleError, NotImplementedError):
    """A collective GENIE cannot decompose exactly: `kind` and `why`."""


class LaunchError(GenieError, RuntimeError):
    """Workers that could not be started or died: `rank`, `world_size` where known."""


class RendezvousTimeoutError(LaunchError, TimeoutError):
    """Workers that never arrived; `missing` names them."""


class TransportError(GenieError, RuntimeError):
    """A connection, device or message that failed."""


class DeviceNotFoundError(TransportError, LookupError):
    """No such network device: `name` asked for, `found` instead."""


class VerbsError(TransportError, OSError):
    """A libibverbs call that failed: `call`, `errno`."""


class CompletionError(TransportError):
    """A work request that completed with an error."""


class ReplayTimeoutError(TransportError, TimeoutError):
    """A wait that took too long; `pending` says who waits for whom."""


class RecordError(GenieError, ValueError):
    """A recording on disk that cannot be read or written: `path`."""


class RecordVersionError(RecordError):
    """A recording of a schema this GENIE does not know: `found`, `known`."""


class CompareError(GenieError, ValueError):
    """Ground truth that cannot be read or compared."""


class NothingMatchedError(CompareError):
    """Two runs without one operation in common."""
