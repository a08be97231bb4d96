"""The backends by name, best first."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from m3_tools.sandbox import bubblewrap, landlock, seatbelt
from m3_tools.sandbox.policy import Policy


@dataclasses.dataclass(frozen=True, kw_only=True)
class Backend:
    """A way to make the boundary. `command` turns (argv, policy) into the argv that runs inside, or raises
    SandboxError.
    """

    name: str
    command: Callable[[Sequence[str], Policy], list[str]]


BACKENDS = (
    Backend(name=bubblewrap.NAME, command=bubblewrap.command),
    Backend(name=landlock.NAME, command=landlock.command),
    Backend(name=seatbelt.NAME, command=seatbelt.command),
)
