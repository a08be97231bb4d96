"""Any text as a command line: the parser never raises, and what it allows runs nothing but what the rules name."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from hypothesis import strategies as st

from m3_tools.sandbox import Backend, Sandbox, detect, work_tree_policy
from m3_tools.toolset import all_tools
from m3agent.approval import decide
from m3agent.permissions.command_line import read_command_line
from m3agent.permissions.rules import parse_rules
from m3agent.permissions.wrappers import all_commands
from tests.fuzz.fuzzing import fuzz

SHELL = next(tool for tool in all_tools() if tool.name == "shell")
NAMED = ("ls", "cat", "wc", "git status", "find")
NAMES = {name.split()[0] for name in NAMED}
RULES = parse_rules({"allow": [f"shell: {name}" for name in NAMED], "deny": ["shell: rm"]})
SEEN_THROUGH = {"env", "nice", "timeout", "xargs", "bash", "sh", "sudo", "nohup", "time", "stdbuf", "ionice", "setsid"}
SEEN_THROUGH |= {"!", "coproc"}  # behind a redirection no word is reserved; there is no program of these names
RECORDING = r"""command_not_found_handle() { printf '%s\37' "$@" $'\36' >>ran; }; PATH=/nowhere; eval -- "$1" """
"""Runs a line in a shell that knows no program and notes the commands that it was asked for, with their words."""
PIECES = st.sampled_from([
    "ls", "cat", "wc", "git", "status", "find", "rm", "make", "x", "-c", "-exec", "-S", "env", "xargs", "bash",
    "timeout", "nice", "eval", "exec", "command", "builtin", "trap", "alias", "coproc", "function", "if", "then",
    "fi", "do", "done", "for", "while", "case", "esac", "in", "[[", "]]", "((", "))", "$((", "{", "}", "(", ")",
    "$(", "`", "'", "\"", "$'", "$\"", "\\", ";", ";;", "&", "&&", "|", "|&", "||", "!", "<", ">", ">>", "<<", "<<-",
    "<<<", "<(", ">(", ">&", "2>&1", "/dev/null", "EOF", "$X", "${", "${X:-", "${X@P}", "=", "X=", "#", "*", "?",
    "~", "%", "é", "１", "timeout 1", " ", " ", " ", "\n", "\r", "\t", "EOF\n", "\0", "\u001b", "\u00a0", "\u2028",
    "\ud800",
])  # fmt: skip
lines = st.one_of(
    st.lists(PIECES, max_size=14).map("".join), st.lists(PIECES, max_size=10).map(" ".join), st.text(max_size=80)
)


def test_no_line_is_allowed_that_runs_something_else() -> None:
    backend = detect().backend

    def behaviour(line: str) -> str:
        read = read_command_line(line)
        commands = all_commands(line)
        everything = parse_rules({"allow": ["shell"]})
        verdict = decide("ask", SHELL, {"command": line}, rules=RULES).verdict
        if read.problem and read_command_line(line).problem:  # twice: the parser's process may have crashed or hung
            assert verdict != "allow", line
            assert decide("auto", SHELL, {"command": line}, rules=everything).verdict != "allow"
        if verdict == "allow" and backend is not None and line.strip():
            ran = commands_run(line, backend)
            assert {name for name, *_ in ran} <= NAMES | SEEN_THROUGH
            words = [word for command in read.commands for word in command.words]
            if all(word.fixed and not set(word.text) & set("~\36\37") for word in words):  # others: who knows
                as_read = {tuple(word.text for word in c.words) for c in (*read.commands, *commands.commands)}
                assert {command for command in ran if command[0] not in SEEN_THROUGH} <= as_read, line
        return f"{verdict} {bool(read.problem)} {min(len(str(commands)) // 100, 9)}"

    fuzz("permission_parser", lines, behaviour)


def commands_run(line: str, backend: Backend) -> set[tuple[str, ...]]:
    """The commands that bash itself would have started for the line, with their words."""
    with tempfile.TemporaryDirectory(prefix="m3-fuzz-") as folder:
        root = Path(folder).resolve()
        confined = Sandbox(backend, work_tree_policy(root, readable=(root,)))
        with confined.confine(["bash", "--norc", "-c", RECORDING, "bash", line], os.environ) as inside:
            subprocess.run(
                inside.argv, env=inside.environment, cwd=root, stdin=subprocess.DEVNULL, capture_output=True, timeout=20
            )
        ran = (root / "ran").read_bytes() if (root / "ran").exists() else b""
        return {tuple(command.decode("utf-8", "replace").split("\37")[:-1]) for command in ran.split(b"\36\37")[:-1]}
