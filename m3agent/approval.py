"""Which calls may run. A mode is a value; the loop asks it before every call, so that no prompt text can widen it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from m3_tools.base import Tool, ToolError
from m3_tools.paths import resolve_changeable
from m3agent.permissions.rules import Effect, Rule, judge_command, judge_path

Mode = Literal["plan", "ask", "edit", "auto"]
Verdict = Literal["allow", "ask", "refuse"]

EDITS = frozenset({"edit", "edit_line", "write", "move", "delete"})
"""Tools that change files inside the work tree and nothing else."""
CHANGES_NOTHING = "it changes nothing"
"""The rule of calls that only read; there is no need to tell it to anybody."""
HARMLESS = frozenset({"todo", "job"})
"""Tools that are not read-only but change nothing a person owns."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decision:
    """What happens to a call, and the rule that says so."""

    verdict: Verdict
    rule: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """A call that needs a person: what is shown before it happens."""

    tool: str
    arguments: Mapping[str, Any]
    rule: str
    allows: Callable[[Sequence[Rule]], bool] = lambda rules: False
    """Whether further rules would let this call run unasked."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """What the person said. `reason` goes to the model when the call is rejected."""

    accepted: bool
    reason: str = ""
    rule: str = "you approved it"
    """What is told of an accepted call."""
    arguments: Mapping[str, Any] | None = None
    """What the person made of the call; it is judged anew, and they are asked for it as it is now."""


Approver = Callable[[Question], Awaitable[Answer]]
"""Asks a person. Where nobody can answer there is none, and the call is refused."""


def decide(
    mode: Mode,
    tool: Tool[Any],
    arguments: Mapping[str, Any] | None = None,
    *,
    root: Path = Path("."),
    rules: Sequence[Rule] = (),
    unconfined: str = "",
    disposable: bool = False,
) -> Decision:
    """Whether a call may run in this mode. Without `arguments`: whether the tool may, for some call.

    plan reads only; ask lets a person see every change first; edit lets files inside the work tree change and the
    project's own tests run, and asks before commands; auto asks nothing. A person's `rules` go before the mode, but
    widen plan never. What could destroy work for good, and what cannot be understood, is asked for in every mode.
    `unconfined` says why commands would run outside of a sandbox: then each of them is asked for. In a `disposable`
    work tree, a copy of m3's own, nothing of a person's is lost when git discards changes.
    """
    by_mode = _by_mode(mode, tool, arguments or {})
    if mode == "plan" and by_mode.verdict == "refuse":
        return by_mode
    if tool.name == "terminal":
        strict = judge_path([rule for rule in rules if rule.effect != "allow"], tool.name, {}, root)
        if strict and strict[0] == "deny":
            return _with_effect(by_mode, strict)
        if arguments is not None and arguments.get("action") != "start":
            return _typing_decision(by_mode, arguments, rules, unconfined, disposable)
    if tool.name in ("shell", "terminal"):
        return _command_decision(by_mode, arguments, root, rules, unconfined, mode, disposable)
    if arguments is None:
        return by_mode
    return _with_effect(by_mode, judge_path(rules, tool.name, arguments, root))


def _by_mode(mode: Mode, tool: Tool[Any], arguments: Mapping[str, Any]) -> Decision:
    if tool.only_reads(arguments) or tool.name in HARMLESS:
        return Decision(verdict="allow", rule=CHANGES_NOTHING)
    if mode == "auto":
        return Decision(verdict="allow", rule="auto mode: everything runs")
    if mode == "plan":
        return Decision(verdict="refuse", rule="plan mode only reads")
    if mode == "edit" and (tool.name in EDITS or tool.name == "test"):
        return Decision(verdict="allow", rule="edit mode: edits and tests are free")
    return Decision(verdict="ask", rule=f"{mode} mode: {tool.name} needs an approval")


def _command_decision(
    by_mode: Decision,
    arguments: Mapping[str, Any] | None,
    root: Path,
    rules: Sequence[Rule],
    unconfined: str,
    mode: Mode,
    disposable: bool,
) -> Decision:
    if unconfined:
        by_mode = Decision(verdict="ask", rule=unconfined.rstrip("."))
    if arguments is None:
        some = any(rule.effect == "allow" and rule.fits("shell") for rule in rules) and not unconfined
        return Decision(verdict="allow", rule="your rules allow some commands") if some else by_mode
    # The parser is loaded by the first command only.
    from m3agent.permissions.dangerous import danger
    from m3agent.permissions.wrappers import all_commands

    line = all_commands(str(arguments.get("command", "")))
    found = judge_command(rules, line)
    if found and found[0] == "deny":
        return _with_effect(by_mode, found)
    if reason := danger(line, disposable=disposable):
        return Decision(verdict="ask", rule=reason)
    if line.problem:
        return Decision(verdict="ask", rule=f"the command is not understood: {line.problem}")
    folder = str(arguments.get("workdir") or ".")
    moves = any(command.name in ("cd", "pushd", "popd") for command in line.commands)
    files = [None if moves or not word.fixed else os.path.join(folder, word.text) for word in line.writes]
    if found and found[0] == "allow" and (unconfined or not _may_write(files, mode, root, rules)):
        found = None
    return _with_effect(by_mode, found)


def _typing_decision(
    by_mode: Decision, arguments: Mapping[str, Any], rules: Sequence[Rule], unconfined: str, disposable: bool
) -> Decision:
    """A program in a terminal is started as a command. What is typed into it may be one, if the program is a shell:
    then it is denied and asked for alike, but never allowed by a rule, since it may as well be something else.
    """
    if arguments.get("action") in ("read", "stop"):
        return Decision(verdict="allow", rule=CHANGES_NOTHING)
    if unconfined:
        by_mode = Decision(verdict="ask", rule=unconfined.rstrip("."))
    from m3agent.permissions.dangerous import danger
    from m3agent.permissions.wrappers import all_commands

    line = all_commands(str(arguments.get("text", "")))
    found = judge_command(rules, line)
    if found and found[0] == "deny":
        return _with_effect(by_mode, found)
    if reason := danger(line, disposable=disposable):
        return Decision(verdict="ask", rule=reason)
    return _with_effect(by_mode, found) if found and found[0] == "ask" else by_mode


def _may_write(files: Sequence[str | None], mode: Mode, root: Path, rules: Sequence[Rule]) -> bool:
    """Whether the tool `write` would be free to write these files; None is one that is not known."""
    for path in files:
        if path is None or "~" in path:
            return False
        try:
            resolve_changeable(root, path)
        except ToolError:
            return False
        found = judge_path(rules, "write", {"path": path}, root)
        if not (found[0] == "allow" if found else mode in ("edit", "auto")):
            return False
    return True


def _with_effect(by_mode: Decision, found: tuple[Effect, str] | None) -> Decision:
    if found is None:
        return by_mode
    return Decision(verdict="refuse" if found[0] == "deny" else found[0], rule=found[1])
