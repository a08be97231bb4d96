"""Calls that fail the same way turn after turn, while nothing changes in between."""

from __future__ import annotations

import json

from m3_tools.base import ToolResult
from m3agent.messages import ToolCall

MAX_SAME_FAILURE = 3
"""The second turn with the same failure the model is told so; after the third the run ends."""
ADVICE = "This same call failed before in the same way. Do not send it again: read the code anew, or go another way."


class RepeatedFailures:
    """Counts by turn: equal calls within one reply are one, and a change that worked starts the count anew."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, str], int] = {}
        self._failed: set[tuple[str, str, str]] = set()
        self._changed = False

    def note(self, call: ToolCall, result: ToolResult, *, changes: bool) -> str:
        """Take note of a call's result; returns advice for the model if it failed so in the last turn too.

        `changes` says whether a success of this tool changes something.
        """
        if not result.is_error:
            self._changed |= changes
            return ""
        arguments = json.dumps(call.arguments, sort_keys=True, default=str)
        signature = (call.name, arguments, result.text)
        self._failed.add(signature)
        return ADVICE if signature in self._counts else ""

    def end_turn(self) -> str:
        """Close the turn; returns the name of a tool whose call has now failed too often, or nothing."""
        self._counts = {} if self._changed else {s: self._counts.get(s, 0) + 1 for s in self._failed}
        self._failed, self._changed = set(), False
        return next((s[0] for s, count in self._counts.items() if count >= MAX_SAME_FAILURE), "")
