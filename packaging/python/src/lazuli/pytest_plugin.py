"""Fixtures for pytest: `lazuli`, a server of its own for each test, and `lazuli_session`, one for all tests."""

import pytest

from .server import Server


@pytest.fixture
def lazuli():
    """A new server for this test, on free ports, with its data in memory."""
    with Server() as server:
        yield server


@pytest.fixture(scope="session")
def lazuli_session():
    """A server for all tests of the session, on free ports, with its data in memory."""
    with Server() as server:
        yield server
