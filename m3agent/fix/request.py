"""What a person asks of a fix: the issue, and how the work and its delivery go."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from m3_tools.screenshot.page import Page
from m3_tools.screenshot.picture import Picture
from m3agent.approval import Mode
from m3agent.fix.issue import Issue

Strategy = Literal["auto", "agent", "search"]
CHOSEN = ("test_command", "candidates", "strategy", "mode", "seed")
"""What of a request is recorded with a fix, so that it can be done again."""
SETTLED = ("max_steps", "time_limit_s", "max_tokens", "temperature")
"""The same of the settings, beside the model."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixRequest:
    """What the person asked for."""

    repo: Path
    issue: Issue
    test_command: str = ""
    base: str = ""
    """The commit to start from, else HEAD."""
    candidates: int = 150
    """Edits that are tried at most, in the search strategy."""
    strategy: Strategy = "auto"
    mode: Mode = "edit"
    """What the agent strategy may do unasked."""
    pictures: tuple[Picture, ...] = ()
    """What the person saw."""
    page: Page | None = None
    """A page that must look different afterwards. One from a server needs `in_place`."""
    build: str = ""
    """The command that makes the page."""
    in_place: bool = False
    commit: bool = False
    pull_request: bool = False
    """Push the commit's branch and open a draft; a proven repair alone is published."""
    seed: int | None = None
