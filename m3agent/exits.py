"""Exit codes of the command line. They are a contract: scripts depend on them."""

from __future__ import annotations

import enum


class Exit(enum.IntEnum):
    OK = 0
    """Fixed and verified, or the command did what was asked."""
    NOT_FIXED = 1
    """Not fixed; the work tree is as it was."""
    USAGE = 2
    """Wrong usage: an option, a path or an issue that does not exist."""
    NOT_REPRODUCED = 3
    """The problem could not be reproduced: no test fails, and none that shows it was written."""
    UNVERIFIED = 4
    """Something was changed, but nothing could verify it."""
    BUDGET = 5
    """A budget (steps, time, tokens) was reached."""
    NEEDS_APPROVAL = 6
    """An approval was needed that nobody can give."""
    BROKEN_ENVIRONMENT = 7
    """The environment is broken: the tests cannot start, git is missing."""
    MODEL_UNAVAILABLE = 75
    """The model is unavailable; trying again later may help."""
    INTERRUPTED = 130
    """Interrupted from the keyboard (SIGINT)."""
    TERMINATED = 143
    """Terminated (SIGTERM)."""
