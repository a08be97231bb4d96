"""Commands that destroy work which nothing can bring back. They are asked for whatever mode and rules say."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from m3agent.permissions.command_line import Command, CommandLine, Word
from m3agent.permissions.wrappers import git_words

_HERE = frozenset({".", "./", "*", "./*", "..", "../", "../*", ".*", "./.*"})

_MOVES = frozenset({"cd", "pushd", "popd"})
_DISCARDS = frozenset({"reset", "clean", "checkout", "switch", "restore", "stash", "checkout-index"})
"""Subcommands of git that touch nothing beyond the work tree, its index and its stash."""


def danger(line: CommandLine, *, disposable: bool = False) -> str:
    """What the line could destroy, in words; empty if nothing that is known here.

    In a `disposable` work tree, a copy that is thrown away, git may discard changes, as long as it stays there.
    """
    lost = any(_leads_anywhere(command) for command in line.commands)
    stays = disposable and not line.unclear and not any(command.name in _MOVES for command in line.commands)
    for command in line.commands:
        if command.name == "git" and (reason := _git(command)) and not (stays and _discards_here(command)):
            return reason
        if reason := _delete(command, lost=lost):
            return reason
    return ""


def _git(command: Command) -> str:
    words = git_words(command)
    if not words:
        return ""
    name = words[0].text
    options = [word.text for word in words[1:]]
    return f"git {name} can destroy work" if any(_destroys(name, options)) else ""


def _discards_here(command: Command) -> bool:
    """Whether git would at most discard changes of the work tree that the command runs in."""
    return len(command.words) > 1 and command.words[1].fixed and command.words[1].text in _DISCARDS


def _destroys(name: str, options: list[str]) -> Iterator[bool]:
    """Whether the subcommand with these options loses changes, commits, or what others see."""
    letters = set("".join(o[1:] for o in options if re.fullmatch(r"-[A-Za-z]+", o)))
    long = {option.split("=")[0] for option in options if option.startswith("--")}
    force = "f" in letters or _abbreviates(long, "--force")
    match name:
        case "reset":
            yield _abbreviates(long, "--hard") or "--merge" in long
        case "clean":
            yield force
        case "checkout":
            yield force or "--" in options or any(option in _HERE or option.startswith(":") for option in options)
        case "switch":
            yield force or _abbreviates(long, "--discard-changes")
        case "restore":
            yield ("--staged" not in long and "S" not in letters) or bool({"--worktree"} & long) or "W" in letters
        case "push":
            yield force or bool(long & {"--force-with-lease", "--mirror", "--delete", "--prune"}) or "d" in letters
            yield any(option.startswith(("+", ":")) for option in options)
        case "branch":
            yield bool(letters & {"D", "M", "C"}) or (force and bool(letters & {"d", "m"} or "--delete" in long))
        case "tag":
            yield bool(letters & {"d", "f"}) or "--delete" in long or force
        case "stash":
            yield bool(options) and options[0] in ("drop", "clear")
        case "reflog":
            yield bool(options) and options[0] in ("expire", "delete")
        case "gc":
            yield _abbreviates(long, "--prune") or "--aggressive" in long
        case "worktree":
            yield bool(options) and options[0] == "remove" and force
        case "update-ref":
            yield "d" in letters or "--delete" in long
        case "read-tree":
            yield "--reset" in long or "u" in letters
        case "filter-branch" | "filter-repo" | "prune" | "checkout-index" | "replace":
            yield True


def _abbreviates(given: set[str], option: str) -> bool:
    """Whether one of the options is this one or an unambiguous beginning of it, which git accepts."""
    return any(option.startswith(each) and len(each) > 4 for each in given)


def _delete(command: Command, *, lost: bool) -> str:
    """Whether a recursive delete may reach the home folder, the root, or what an empty variable makes of it."""
    if command.name not in ("rm", "unlink", "shred") or not _is_recursive(command):
        return ""
    targets = [word for word in command.words[1:] if not re.match(r"-\w|--", word.text)]
    for target in targets:
        if re.search(r"[$`]", target.text) and not target.fixed:
            return "it deletes a folder whose name comes from a variable, which may be empty"
        if lost and not target.text.startswith("/"):
            return "it deletes below a folder that is not known"
        if _holds_history(target):
            return f"it deletes git's history with {target.text}"
        if _is_precious(target):
            return f"it deletes {target.text} with all that it holds"
    return ""


def _holds_history(target: Word) -> bool:
    """A git directory or something in it, or the folder that holds one as a whole."""
    parts = [part for part in target.text.split("/") if part]
    return ".git" in parts or (all(part in (".", ".*", ".[!.]*") for part in parts) and not target.text.startswith("/"))


def _is_recursive(command: Command) -> bool:
    options = [word.text for word in command.words[1:]]
    return any(re.match(r"-[A-Za-z]*[rR]", o) or (o.startswith("--r") and "--recursive".startswith(o)) for o in options)


def _is_precious(target: Word) -> bool:
    """The root, a folder directly below it, the home folder or one above it, also with a pattern behind."""
    text = re.sub(r"/+", "/", target.text)
    if text.startswith("~"):
        rest = text.partition("/")[2].strip("/")
        return rest in ("", ".", "*", ".*") or not target.fixed
    if not text.startswith("/"):
        climbs = os.path.normpath(text.rstrip("*") or ".")
        return climbs == ".." or climbs.startswith("../..")
    path = Path(os.path.normpath(re.split(r"[*?\[{]", text)[0]))
    if not target.fixed and not text.split("*")[0].endswith("/"):
        path = path.parent
    return len(path.parts) <= 2 or Path.home().is_relative_to(path)


def _leads_anywhere(command: Command) -> bool:
    """A change of folder to a place that is not known, or to one that is precious."""
    if command.name not in ("cd", "pushd"):
        return False
    targets = [word for word in command.words[1:] if not re.fullmatch(r"-[LPe@]+|--", word.text)]
    return not targets or not targets[0].fixed or targets[0].text in ("-", "") or _is_precious(targets[0])
