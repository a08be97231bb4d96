"""Commands that run other commands, seen through: what counts is what runs in the end."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence

from m3agent.permissions.command_line import Command, CommandLine, Word, read_command_line

_MAX_DEPTH = 8
_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh", "ash"})
_CODE_OPTIONS = {
    **dict.fromkeys(("python", "python2", "python3", "pypy", "pypy3"), ("-c",)),
    **dict.fromkeys(("perl", "ruby", "lua"), ("-e", "-E")),
    **dict.fromkeys(("node", "deno", "bun"), ("-e", "--eval", "-p", "--print", "eval")),
    "php": ("-r",),
}
"""Options of interpreters whose value is a program."""


@dataclasses.dataclass(frozen=True)
class _Wrapper:
    """Options that take a value, how many words stand before the command, and whether there are options at all."""

    with_value: tuple[str, ...] = ()
    skipped: int = 0
    has_options: bool = True


_WRAPPERS = {
    "sudo": _Wrapper(("-u", "-g", "-h", "-p", "-C", "-T", "-D", "-R", "--user", "--group")),
    "doas": _Wrapper(("-u", "-C")),
    "env": _Wrapper(("-u", "--unset", "-C", "--chdir")),
    "xargs": _Wrapper(("-I", "-n", "-P", "-L", "-d", "-E", "-s", "-a")),
    "timeout": _Wrapper(("-s", "-k", "--signal", "--kill-after"), 1),
    "nice": _Wrapper(("-n",)),
    "ionice": _Wrapper(("-c", "-n")),
    "stdbuf": _Wrapper(("-i", "-o", "-e")),
    "flock": _Wrapper(("-w", "-E"), 1),
    "taskset": _Wrapper((), 1),
    **dict.fromkeys(
        ("nohup", "setsid", "time", "command", "builtin", "exec", "unbuffer", "busybox", "toybox"), _Wrapper()
    ),
    **dict.fromkeys(("coproc", "!"), _Wrapper(has_options=False)),
}
_OPAQUE = frozenset({"source", ".", "alias", "parallel", "ssh", "script", "watch", "su", "chroot", "nsenter", "bind"})
"""What runs something that the line does not show."""
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
_GIT_VALUES = frozenset({"-C", "--git-dir", "--work-tree", "--namespace", "--super-prefix"})


def all_commands(text: str) -> CommandLine:
    """The line with every command that it runs, those inside wrappers included; wrappers that do nothing themselves
    are left out.
    """
    return _expand(read_command_line(text), _MAX_DEPTH)


def git_words(command: Command) -> tuple[Word, ...]:
    """The words of a git command from its subcommand on, without the options before it."""
    words = list(command.words[1:])
    while words and words[0].text.startswith("-"):
        first = words.pop(0)
        if first.text in (*_GIT_VALUES, "-c", "--config-env", "--exec-path") and words:
            words.pop(0)
    return tuple(words)


def runs_code(command: Command) -> bool:
    """Whether an interpreter is given a program in its arguments."""
    options = _CODE_OPTIONS.get(_interpreter(command.name), ())
    return any(_is_option(word.text, option) for word in command.words[1:] for option in options)


def _interpreter(name: str) -> str:
    """The name without a version: python3.11 is python3, node20 is node."""
    return name if name in _CODE_OPTIONS else re.sub(r"[\d.]+$", "", name)


def _expand(line: CommandLine, depth: int) -> CommandLine:
    if line.problem:
        return line
    if depth == 0:
        return CommandLine(problem="it is nested too deeply")
    commands: list[Command] = []
    writes, unclear = list(line.writes), line.unclear
    for command in line.commands:
        for inner in _inside(command):
            if isinstance(inner, Command):
                commands.append(inner)
                continue
            if isinstance(inner, str):
                unclear = unclear or inner
                continue
            part = _expand(inner, depth - 1)
            if part.problem:
                return CommandLine(problem=part.problem)
            commands += part.commands
            writes += part.writes
            unclear = unclear or part.unclear
    return CommandLine(commands=tuple(commands), writes=tuple(writes), unclear=unclear)


def _inside(command: Command) -> Iterator[Command | CommandLine | str]:
    """The command itself if it does something, the lines that it runs, and in words what is not clear about it."""
    name, words = command.name, command.words
    if not name:
        yield command
        yield "the name of a program is made by the shell"
    elif name in _SHELLS:
        yield from _shell(command)
    elif name == "eval":
        yield from _evaluated(words[1:])
    elif name == "trap" and len(words) > 1:
        yield from _evaluated(words[1:2])
    elif name in _WRAPPERS:
        yield from _wrapped(command, _WRAPPERS[name])
    elif name == "find":
        yield from _find(command)
    elif name == "git":
        yield from _git(command)
    else:
        yield command
        if name in _OPAQUE:
            yield f"{name} runs what the line does not show"


def _evaluated(words: Sequence[Word]) -> Iterator[CommandLine | str]:
    if all(word.fixed for word in words):
        yield read_command_line(" ".join(word.text for word in words))
    else:
        yield "it runs text that the shell makes"


def _shell(command: Command) -> Iterator[Command | CommandLine | str]:
    words = command.words[1:]
    for index, word in enumerate(words):
        if not word.fixed:
            break
        if re.fullmatch(r"-[a-zA-Z]*c[a-zA-Z]*", word.text):
            code = next((each for each in words[index + 1 :] if not each.text.startswith(("-", "+"))), None)
            yield from _evaluated([code] if code else [])
            return
        if not word.text.startswith(("-", "+")):
            break
    yield command
    if not words or not words[0].fixed or words[0].text.startswith("-"):
        yield "a shell reads commands from elsewhere"


def _wrapped(command: Command, wrapper: _Wrapper) -> Iterator[Command | CommandLine | str]:
    name, words = command.name, list(command.words[1:])
    if name in ("sudo", "doas"):
        yield Command(command.words[:1])
    if name == "env" and any(word.text.startswith(("-S", "--split-string")) for word in words):
        yield "env splits a text into a command"
        return
    if name == "command" and words and words[0].text in ("-v", "-V"):
        return
    skipped = wrapper.skipped
    while words:
        word = words[0]
        if not word.fixed:
            yield command
            yield f"what {name} runs is made by the shell"
            return
        if name in ("env", "sudo") and _ASSIGNMENT.match(word.text):
            yield "it sets variables, which can change what a program does"
        elif word.text in wrapper.with_value:
            words = words[1:]
        elif not wrapper.has_options or not word.text.startswith("-"):
            if skipped == 0:
                break
            skipped -= 1
        words = words[1:]
    if not words:
        if name not in ("env", "exec", "time"):
            yield command
        return
    more = (Word("{}", False),) if name == "xargs" else ()
    yield CommandLine(commands=(Command((*words, *more)),))


def _find(command: Command) -> Iterator[Command | CommandLine | str]:
    yield command
    words = command.words[1:]
    if any(not word.fixed and "$" in word.text for word in words):
        yield "what find does is made by the shell"
    for index, word in enumerate(words):
        if word.text in ("-exec", "-execdir", "-ok", "-okdir"):
            rest = words[index + 1 :]
            end = next((i for i, each in enumerate(rest) if each.text in (";", "+", "\\;")), len(rest))
            inner = tuple(Word("{}", False) if "{}" in each.text else each for each in rest[:end])
            yield CommandLine(commands=(Command(inner),))
        elif word.text == "-delete":
            start = [each for each in words[:index] if not each.text.startswith("-")][:1] or [Word(".")]
            yield Command((Word("rm"), Word("-r"), *start))
        elif word.text.startswith("-f") and word.text in ("-fprint", "-fprintf", "-fls", "-fprint0"):
            yield "find writes a file"


def _git(command: Command) -> Iterator[Command | CommandLine | str]:
    yield command
    words = command.words
    if any(not word.fixed for word in words[1:3]):
        yield "what git does is made by the shell"
    for option, value in itertools.pairwise(words):
        if option.text in ("-c", "--config-env", "--exec-path"):
            alias = re.match(r"alias\.[^=]*=(!?)(.*)", value.text, re.DOTALL | re.IGNORECASE)
            if option.text == "-c" and alias and value.fixed:
                yield read_command_line(alias[2] if alias[1] else f"git {alias[2]}")
            yield "it changes git's configuration, which can run programs"
    if any(
        word.text.startswith(("--exec-path=", "--upload-pack", "--receive-pack", "--config-env=")) for word in words
    ):
        yield "it lets git run a program"
    rest = git_words(command)
    if len(rest) > 1 and [w.text for w in rest[:2]] in (["submodule", "foreach"], ["bisect", "run"]):
        yield from _evaluated([word for word in rest[2:] if not word.text.startswith("-")])
    if rest and rest[0].text == "rebase":
        for option, value in itertools.pairwise(rest):
            if option.text in ("-x", "--exec"):
                yield from _evaluated([value])


def _is_option(text: str, option: str) -> bool:
    """Whether the word is the option, alone, with its value, or among letters (-Bc)."""
    if option.startswith("--") or not option.startswith("-"):
        return text == option or text.startswith(f"{option}=")
    return bool(re.match(rf"-[A-Za-z]*{option[1]}", text)) and not text.startswith("--")
