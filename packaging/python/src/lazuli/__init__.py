"""Lazuli: Azure-Storage-compatible storage in one binary. See `Server` and the pytest fixture `lazuli`."""

from .server import Server, binary

__all__ = ["Server", "binary"]
