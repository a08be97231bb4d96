"""The `terminal` tool: a program that wants a terminal, started, typed into, looked at, and stopped."""

from __future__ import annotations

import re
import shutil
from typing import ClassVar, Literal

from pydantic import Field

from m3_tools.base import CommandBlock, Tool, ToolArgs, ToolContext, ToolError, ToolResult
from m3_tools.jobs import Jobs
from m3_tools.output import SPILL_VARIABLE, clean
from m3_tools.paths import resolve_folder
from m3_tools.process import interactive_environment
from m3_tools.pseudo_terminal import COLUMNS, LINES, PseudoTerminal

MAX_WAIT_S = 60
MAX_TEXT_CHARS = 20_000
KEYS = {
    "enter": "\r", "tab": "\t", "escape": "\x1b", "space": " ", "backspace": "\x7f", "delete": "\x1b[3~",
    "up": "\x1b[A", "down": "\x1b[B", "right": "\x1b[C", "left": "\x1b[D", "home": "\x1b[1~", "end": "\x1b[4~",
    "page-up": "\x1b[5~", "page-down": "\x1b[6~",
}  # fmt: skip
"""What the keys of a Linux console send. Besides these there are ctrl-a to ctrl-z."""


class TerminalArgs(ToolArgs):
    action: Literal["start", "send", "read", "stop"] = Field(description="what to do")
    command: str = Field(default="", description="start: the command line, for bash")
    workdir: str = Field(default=".", description="start: folder to run in, relative to the repository")
    number: int = Field(default=0, description="send, read, stop: the number that start gave")
    text: str = Field(default="", description="send: what to type; a new line presses enter")
    keys: list[str] = Field(
        default=[], description=f"send: keys to press after the text: {', '.join(KEYS)}, ctrl-a to ctrl-z"
    )
    wait_s: float = Field(default=5, ge=0, le=MAX_WAIT_S, description="how long to wait for output at most")


class TerminalTool(Tool[TerminalArgs]):
    name: ClassVar[str] = "terminal"
    description: ClassVar[str] = (
        "For the few programs that need a terminal: a REPL, a debugger, git rebase -i, one that asks. Start it, send "
        f"text and keys, read its screen ({COLUMNS}x{LINES}), stop it. Each but stop answers with the screen once it "
        "has been quiet for half a second, after at most wait_s seconds. For everything else use shell."
    )
    args_type: ClassVar[type[ToolArgs]] = TerminalArgs
    read_only: ClassVar[bool] = False

    async def run(self, args: TerminalArgs, context: ToolContext) -> ToolResult:
        if context.jobs is None:
            raise ToolError("No program can be left running here; use shell.")
        if args.action == "start":
            terminal = await _start(args, context, context.jobs)
        else:
            terminal = _found(args.number, context.jobs)
        if args.action == "send":
            await terminal.type(_typed(args))
        if args.action == "stop":
            await terminal.stop()
        await terminal.settle(args.wait_s)
        return _told(terminal, is_stopped=args.action == "stop")


async def _start(args: TerminalArgs, context: ToolContext, jobs: Jobs) -> PseudoTerminal:
    if not args.command.strip() or "\0" in args.command:
        raise ToolError("Give the command line to start, without NUL characters.")
    if jobs.full:
        raise ToolError(f"Too much runs in the background: {jobs.describe()}. Stop something first.")
    environment = interactive_environment(context.environment, {SPILL_VARIABLE: str(context.spill_dir)})
    shell = shutil.which("bash", path=environment.get("PATH")) or "/bin/sh"
    terminal = PseudoTerminal(args.command, context.secrets)
    await terminal.start(
        [shell, "-c", args.command],
        cwd=resolve_folder(context, args.workdir),
        environment=environment,
        sandbox=context.sandbox,
    )
    jobs.add(terminal)
    return terminal


def _found(number: int, jobs: Jobs) -> PseudoTerminal:
    terminal = jobs.get(number)
    if not isinstance(terminal, PseudoTerminal):
        raise ToolError(f"There is no terminal {number}. Running: {jobs.describe()}.")
    return terminal


def _typed(args: TerminalArgs) -> str:
    """The characters that the text and the keys stand for."""
    if len(args.text) > MAX_TEXT_CHARS:
        raise ToolError(f"{len(args.text):,} characters are too many to type, {MAX_TEXT_CHARS:,} at most; use a file.")
    typed = args.text.replace("\r\n", "\r").replace("\n", "\r")
    for key in args.keys:
        name = key.strip().lower().replace("_", "-")
        if name in KEYS:
            typed += KEYS[name]
        elif re.fullmatch(r"ctrl-[a-z]", name):
            typed += chr(ord(name[-1]) - ord("a") + 1)
        else:
            raise ToolError(f"There is no key {key!r}. Keys: {', '.join(KEYS)}, ctrl-a to ctrl-z; letters go in text.")
    if not typed:
        raise ToolError("Give text or keys to send.")
    return typed


def _told(terminal: PseudoTerminal, *, is_stopped: bool) -> ToolResult:
    is_held = terminal.is_held
    screen = terminal.look()
    name = f"terminal {terminal.number}"
    if not terminal.ended:
        line, column = terminal.cursor
        state = f"{name} (pid {terminal.pid}) runs, its cursor at line {line}, column {column}"
        if is_held:
            state += "; it waits, since it prints without end"
    elif is_stopped or terminal.exit_code is None:
        state = f"{name} is stopped"
    else:
        state = f"{name} ended with exit code {terminal.exit_code}"
    block = CommandBlock(
        command=clean(terminal.command),
        exit_code=terminal.exit_code,
        duration_s=0.0,
        output=screen,
        goes_on=not terminal.ended,
    )
    return ToolResult(text=f"{state}\n{screen or '(an empty screen)'}", display=(block,))
