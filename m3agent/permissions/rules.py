"""A person's rules: allow, ask or deny by tool, and by path or by the beginning of a command."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from pathspec import GitIgnoreSpec

from m3_tools.base import ToolError
from m3_tools.paths import resolve_inside
from m3agent.errors import M3Error
from m3agent.permissions.command_line import Command, CommandLine
from m3agent.permissions.wrappers import runs_code

Effect = Literal["allow", "ask", "deny"]
PATHS = ("path", "to")
"""Parameters of tools that name a file."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
    """`tool: pattern`. For shell the pattern is the first words of a command, for other tools a path as in a
    .gitignore; without a pattern the rule speaks of every call. The tool may hold `*`: `github__*`, or `*` for every
    one.
    """

    effect: Effect
    tool: str
    pattern: str = ""

    def __str__(self) -> str:
        return f"{self.effect} {self.tool}{': ' + self.pattern if self.pattern else ''}"

    def fits(self, tool: str) -> bool:
        return fnmatchcase(tool, self.tool)

    def fits_command(self, command: Command) -> bool:
        """Whether the command begins with the words of the pattern. A program given as text must be named with its
        option to be allowed: `python` does not allow `python -c`.
        """
        wanted = shlex.split(self.pattern)
        words = command.words[: len(wanted)]
        if len(words) < len(wanted) or any(not word.fixed for word in words):
            return False
        found = [word.text for word in words]
        if found[:1] and wanted[0] != found[0] and self.effect != "allow":
            found[0] = command.name  # a folder before the name does not get around a prohibition
        if self.effect == "allow" and runs_code(command):
            return found == wanted and runs_code(Command(command.words[: len(wanted)]))
        return found == wanted

    def fits_path(self, path: str) -> bool:
        return not self.pattern or GitIgnoreSpec.from_lines([self.pattern]).match_file(path)


def parse_rules(effects: Mapping[Effect, Sequence[str]]) -> tuple[Rule, ...]:
    """The rules from a config file. Raises M3Error for one that cannot be read."""
    rules = []
    for effect, lines in effects.items():
        for line in lines:
            tool, _, pattern = line.partition(":")
            if not tool.strip() or len(tool.split()) != 1:
                raise M3Error(f"the rule {line!r} must look like `shell: git status` or `edit: docs/**`")
            try:
                shlex.split(pattern)
            except ValueError as error:
                raise M3Error(f"the rule {line!r} cannot be read: {error}") from error
            rules.append(Rule(effect=effect, tool=tool.strip(), pattern=pattern.strip()))
    return tuple(rules)


def judge_path(rules: Sequence[Rule], tool: str, arguments: Mapping[str, Any], root: Path) -> tuple[Effect, str] | None:
    """What the rules say of a call of a tool that takes paths; None if they say nothing. Links are followed first.

    Of several paths each is judged: the strictest counts, and the call is allowed only if every one is.
    """
    names = [_name(root, arguments[key]) for key in PATHS if isinstance(arguments.get(key), str)] or [""]
    found = [_strictest([rule for rule in rules if rule.fits(tool) and rule.fits_path(name)]) for name in names]
    strict = [each for each in found if each and each[0] != "allow"]
    if strict:
        return min(strict, key=lambda each: each[0] != "deny")
    return found[0] if all(found) else None


def _name(root: Path, path: str) -> str:
    try:
        return resolve_inside(root, path).relative_to(root.resolve()).as_posix()
    except (ToolError, ValueError):
        return path


def judge_command(rules: Sequence[Rule], line: CommandLine) -> tuple[Effect, str] | None:
    """What the rules say of a command line: deny and ask if any command fits, allow only if every one does."""
    rules = [rule for rule in rules if rule.fits("shell")]
    strict = [r for r in rules if r.effect != "allow" and (not r.pattern or _any_fits(r, line))]
    if found := _strictest(strict):
        return found
    if line.problem or line.unclear:
        return None
    allowing = [rule for rule in rules if rule.effect == "allow"]
    for command in line.commands:
        if not any(not rule.pattern or rule.fits_command(command) for rule in allowing):
            return None
    return ("allow", "your rules allow every command in it") if line.commands else ("allow", "it runs nothing")


def _any_fits(rule: Rule, line: CommandLine) -> bool:
    return any(rule.fits_command(command) for command in line.commands)


def _strictest(rules: Sequence[Rule]) -> tuple[Effect, str] | None:
    for effect in ("deny", "ask", "allow"):
        for rule in rules:
            if rule.effect == effect:
                return rule.effect, f"your rule: {rule}"
    return None
