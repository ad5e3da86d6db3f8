"""Transports: how a worker's connections are opened, authenticated and closed."""

from genie.replay.transports.base import ConnectionFailure, Endpoint, Transport

__all__ = ["ConnectionFailure", "Endpoint", "Transport"]
