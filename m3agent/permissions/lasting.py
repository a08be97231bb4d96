"""Rules for the rest of a session: what a person may allow with one word, so that the same is not asked again."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from typing import Any

from m3agent.errors import M3Error
from m3agent.permissions.rules import PATHS, Rule, parse_rules


def rules_like(tool: str, arguments: Mapping[str, Any]) -> tuple[Rule, ...]:
    """The narrowest rules that allow this call and what is like it; none where there are none.

    A command is allowed by its own words, with any further ones; a tool that takes paths by these paths; another tool
    by its name. Whether they have an effect is for the judge to say: what is dangerous is asked for in spite of them.
    """
    if tool == "terminal":
        return ()
    if tool == "shell":
        from m3agent.permissions.wrappers import all_commands

        line = all_commands(str(arguments.get("command", "")))
        if line.problem or not all(word.fixed for command in line.commands for word in command.words):
            return ()
        patterns = [shlex.join(word.text for word in command.words) for command in line.commands]
    else:
        paths = [arguments[key] for key in PATHS if isinstance(arguments.get(key), str)]
        patterns = ["/" + os.path.normpath(path).lstrip("/") for path in paths] or [""]
        if any(path.startswith(("/", "~", "..")) or set("*?[]!#\\ ") & set(path) for path in paths):
            return ()
    return tuple(Rule(effect="allow", tool=tool, pattern=pattern) for pattern in dict.fromkeys(patterns))


def rule_of(tool: str, pattern: str) -> Rule:
    """The rule that a person wrote behind the word: `git diff`, `docs/**`. Raises M3Error if it cannot be read."""
    if not pattern.strip():
        raise M3Error("write the first words of a command, or a pattern of paths")
    return parse_rules({"allow": (f"{tool}: {pattern}",)})[0]
