"""Servers that play given turns, for the contract suites."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.contracts.played_server import PlayedServer


@pytest.fixture
def serve() -> Iterator[Callable[..., PlayedServer]]:
    """Starts servers that play turns; all are closed at the end of the test."""
    running: list[PlayedServer] = []

    def start(*turns: Any, **choices: Any) -> PlayedServer:
        server = PlayedServer(**choices)
        server.turns = list(turns)
        running.append(server)
        return server

    yield start
    for server in running:
        server.close()
