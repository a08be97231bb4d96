"""Run one command so that it can neither wait for a person, nor outlive its call, nor fill the memory.

The command gets a session of its own, no stdin and no terminal. The call returns when the command exits, even if a
child still holds the pipe, and by then everything that the command started has been killed, children that made
themselves a new session included: they are found by their parents and by a token in their environment.

Not covered: a child that clears its environment and detaches from its parents. The sandbox's process namespace ends
those.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import fcntl
import math
import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from m3_tools.base import ToolError
from m3_tools.output import Output
from m3_tools.secret import is_secret_variable

TOKEN = "M3_PROCESS_TOKEN"
"""The variable by which a command's descendants are known."""
_DRAIN_S = 0.2
_TERM_GRACE_S = 1.0
_PIPE_BYTES = 1 << 20
_MUCH_BYTES, _REST_S = 4 << 20, 0.002
"""A program that has printed so much, unwatched, is read with rests: it keeps the processor. Less is faster without."""
_KILL_ROUNDS = 50
_MOST_LOOKS = 20
_KERNEL = 2
"""The parent of the kernel's threads, which have no environment."""
_YOUNG_S = 5.0
"""A process of less age may be in the middle of an exec, where it shows no environment."""
_EDITORS = ("EDITOR", "VISUAL", "GIT_EDITOR", "GIT_SEQUENCE_EDITOR", "HGEDITOR", "SVN_EDITOR")
_QUIET = {
    **dict.fromkeys(
        ("PAGER", "GIT_PAGER", "MANPAGER", "SYSTEMD_PAGER", "GH_PAGER", "DELTA_PAGER", "BAT_PAGER", "PSQL_PAGER"), "cat"
    ),
    "AWS_PAGER": "",
    **dict.fromkeys(_EDITORS, "true"),
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "",  # empty: neither the program that git is configured with nor SSH_ASKPASS opens a window
    "GCM_INTERACTIVE": "never",
    "GIT_SSH_COMMAND": "ssh -o BatchMode=yes",
    "SSH_ASKPASS_REQUIRE": "never",
    "SUDO_ASKPASS": "/bin/false",
    "DEBIAN_FRONTEND": "noninteractive",
    "PIP_NO_INPUT": "1",
    "NPM_CONFIG_YES": "true",
    "COREPACK_ENABLE_DOWNLOAD_PROMPT": "0",
    "GH_PROMPT_DISABLED": "1",
    "HGPLAIN": "1",
    "CI": "1",
    "NO_COLOR": "1",
    "TERM": "dumb",
    "PYTHONUNBUFFERED": "1",
}
_LOUD = frozenset({"FORCE_COLOR", "CLICOLOR_FORCE", "PY_COLORS", "GIT_PAGER_IN_USE"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessResult:
    """How a command ended. `exit_code` is None after a timeout, and minus the signal's number after a signal.

    `text` is head and tail for the model, `head` the first bytes as they came, `output_path` the whole output if it was
    longer. `stopped` names what was still running when the command itself was over.
    """

    exit_code: int | None
    timed_out: bool
    duration_s: float
    text: str
    head: bytes
    output_bytes: int
    output_path: Path | None
    stopped: tuple[str, ...]


def result_text(result: ProcessResult) -> str:
    """The end of a command for the model: how it ended, what it printed, what was still running."""
    # The time in whole seconds: short commands that end alike must read alike in every run.
    after = f" after {result.duration_s:.0f} s" if result.duration_s >= 1 else ""
    if result.exit_code is None:
        first = f"stopped at the deadline{after}"
    elif result.exit_code < 0:
        first = f"ended by signal {-result.exit_code}{after}"
    else:
        first = f"exit code {result.exit_code}{after}"
    lines = [first, result.text.rstrip("\n") or "(no output)"]
    if result.stopped:
        lines.append("Still running when the command ended, and stopped: " + "; ".join(result.stopped))
    return "\n".join(lines)


def child_environment(given: Mapping[str, str], changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a command: `given`, or the caller's own without credentials if that is empty; then settings
    that keep programs from waiting for a person; then `changes`.
    """
    base = dict(given) or {k: v for k, v in os.environ.items() if not is_secret_variable(k)}
    return {k: v for k, v in base.items() if k not in _LOUD} | _QUIET | dict(changes or {})


def interactive_environment(given: Mapping[str, str], changes: Mapping[str, str]) -> dict[str, str]:
    """The environment of a program in a terminal: as `child_environment`, but the person's editors are theirs again."""
    quiet = child_environment(given, {"TERM": "linux", **changes})
    base = given or os.environ
    editors = {name: base[name] for name in _EDITORS if name in base}
    return {k: v for k, v in quiet.items() if k not in (*_EDITORS, "CI", "COLUMNS", "LINES")} | editors


async def run_process(
    argv: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    timeout_s: float,
    spill_dir: Path | None = None,
    head_bytes: int = 12_000,
    tail_bytes: int = 18_000,
    line_chars: int | None = None,
    for_model: bool = True,
    starts_others: bool = True,
    on_output: Callable[[str], None] | None = None,
    on_start: Callable[[int, Output], None] | None = None,
) -> ProcessResult:
    """Run `argv` and wait until it exits or `timeout_s` is over. Nothing of it runs afterwards, cancelled or not.

    `on_start` gets the number of the process, and its output, which grows. stdout and stderr come as one stream. With
    `line_chars` longer lines are cut in the result's text; without `for_model` there is no text, which takes long to
    make of megabytes, and the output is read with rests. Without `starts_others` a program that ends by itself is
    trusted to have left nothing. Raises ToolError if the command cannot be started.
    """
    token = secrets.token_hex(16)
    output = Output(spill_dir, head_bytes, tail_bytes, on_output, line_chars=line_chars)
    read_end, write_end = os.pipe()
    if hasattr(fcntl, "F_SETPIPE_SZ"):  # a program that prints much need not wait for us so often
        with contextlib.suppress(OSError):
            fcntl.fcntl(read_end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    started = time.monotonic()
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            cwd=cwd,
            env={**environment, TOKEN: token},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=write_end,
            stderr=write_end,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        os.close(read_end)
        reason = getattr(error, "strerror", None) or error
        raise ToolError(f"{argv[0]} could not be started: {reason}.") from None
    except BaseException:  # cancelled while it was being started
        os.close(read_end)
        kill_tree(-1, token)
        raise
    finally:
        os.close(write_end)
    if on_start is not None:
        on_start(process.pid, output)
    pipe = _Pipe(read_end, output, rests=not for_model)
    timed_out, all_ended, stopped = False, False, []
    try:
        try:
            await asyncio.wait_for(process.wait(), timeout_s)
        except TimeoutError:
            timed_out = True
            await _terminate(process, token)
        members = _members(process.pid, token) if starts_others or timed_out else []
        stopped = [_describe(p) for p in members if p.pid != process.pid]
        all_ended = not members
    finally:
        # No await before the kill: a cancellation that arrives here must still leave nothing running.
        if not all_ended:
            kill_tree(process.pid, token)
        pipe.close()
        output.close()
        if process.returncode is None:
            await asyncio.shield(process.wait())
    return ProcessResult(
        exit_code=None if timed_out else process.returncode,
        timed_out=timed_out,
        duration_s=time.monotonic() - started,
        text=output.text() if for_model else "",
        head=output.head,
        output_bytes=output.total_bytes,
        output_path=output.path,
        stopped=() if timed_out else tuple(stopped),
    )


class _Pipe:
    """Feeds the output from a pipe while the event loop runs, and drains what is left when it is closed."""

    def __init__(self, descriptor: int, output: Output, *, rests: bool):
        self._descriptor, self._output, self._loop = descriptor, output, asyncio.get_running_loop()
        self._rests_after = _MUCH_BYTES if rests else math.inf
        self._rest: asyncio.TimerHandle | None = None
        os.set_blocking(descriptor, False)
        self._watch()

    def _watch(self) -> None:
        self._loop.add_reader(self._descriptor, self._on_ready)

    def _on_ready(self) -> None:
        if self._read() and self._output.total_bytes > self._rests_after:
            self._loop.remove_reader(self._descriptor)
            self._rest = self._loop.call_later(_REST_S, self._watch)

    def _read(self) -> bool:
        try:
            chunk = os.read(self._descriptor, _PIPE_BYTES if self._output.total_bytes > self._rests_after else 1 << 16)
        except BlockingIOError:
            return False
        if not chunk:
            self._loop.remove_reader(self._descriptor)
            return False
        self._output.add(chunk)
        return True

    def close(self) -> None:
        if self._rest is not None:
            self._rest.cancel()
        deadline = time.monotonic() + _DRAIN_S
        while self._read() and time.monotonic() < deadline:
            pass
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)


async def _terminate(process: asyncio.subprocess.Process, token: str) -> None:
    """Ask the whole tree to end and give it a moment."""
    for member in _look(process.pid, token)[0]:
        with contextlib.suppress(psutil.Error):
            member.send_signal(signal.SIGTERM)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.shield(process.wait()), _TERM_GRACE_S)


def kill_tree(pid: int, token: str) -> None:
    """Kill the whole tree. Everything is frozen first, so that nothing can fork while it is being killed."""
    for _ in range(_KILL_ROUNDS):
        members = _members(pid, token)
        if not members:
            return
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for member in members:
                with contextlib.suppress(psutil.Error):
                    member.send_signal(number)
        time.sleep(0.005)


def _members(pid: int, token: str) -> list[psutil.Process]:
    """The tree, looked for again while processes come or become others: one that forks and ends just then is missed by
    a single look.

    A chain of forks can be missed by several. The end is for a machine on which others never cease to start.
    """
    found: list[psutil.Process] = []
    for _ in range(_MOST_LOOKS):
        before = set(psutil.pids())
        found, is_sure = _look(pid, token)
        if found or (is_sure and set(psutil.pids()) <= before):
            break
    return found


def _look(pid: int, token: str) -> tuple[list[psutil.Process], bool]:
    """Every live process that the command started: of its session, descended from it, or carrying its token; and
    whether every process told what it carries.
    """
    found: dict[int, psutil.Process] = {}
    children: dict[int, list[int]] = {}
    is_sure = True
    for process, parent in _processes():
        children.setdefault(parent, []).append(process.pid)
        with contextlib.suppress(psutil.Error, OSError):
            if os.getsid(process.pid) == pid or (environment := process.environ()).get(TOKEN) == token:
                found[process.pid] = process
            elif not environment and parent != _KERNEL and time.time() - process.create_time() < _YOUNG_S:
                is_sure = False
    pending = [pid, *found]
    while pending:
        for child in children.get(pending.pop(), []):
            if child not in found:
                with contextlib.suppress(psutil.Error):
                    found[child] = psutil.Process(child)
                    pending.append(child)
    return list(found.values()), is_sure


def _processes() -> Iterator[tuple[psutil.Process, int]]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                yield process, process.ppid()


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {' '.join(process.cmdline())[:120]}"
    except psutil.Error:
        return str(process.pid)
