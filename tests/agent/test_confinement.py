"""Commands of a run stay inside the sandbox, and where none works they are not run unasked."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

import pytest

from m3_tools.base import ToolContext, call_tool
from m3_tools.run_tests import run_tests
from m3_tools.sandbox import Backend, Policy, Sandbox, SandboxError
from m3_tools.shell import ShellTool
from m3_tools.toolset import all_tools
from m3agent.approval import decide
from m3agent.budget import Budget
from m3agent.confinement import Confinement, detection, open_confinement
from m3agent.exits import Exit
from m3agent.llm.protocol import Options
from m3agent.llm.scripted import ScriptedModel
from m3agent.loop import run_loop
from m3agent.messages import ToolCall, assistant, message_to_json, user
from m3agent.prompt import Conversation
from m3agent.settings import Settings
from m3agent.sinks import Recorder, discard

ROOT = Path(__file__).parents[2]
needs_sandbox = pytest.mark.skipif(detection().backend is None, reason=detection().reason())


def settings(tmp_path: Path, **choices: Any) -> Settings:
    return Settings(state_dir=tmp_path / "state", command_environment=dict(os.environ), **choices)


@needs_sandbox
@pytest.mark.parametrize(("option", "escapes"), [([], False), (["--no-sandbox"], True)])
def test_a_run_writes_outside_only_without_the_sandbox(
    repo: Path, tmp_path: Path, option: list[str], escapes: bool
) -> None:
    outside = tmp_path / "outside"
    command = f"echo in > inside; echo out > {outside}; echo x > .git/hooks/post-checkout"
    turns = [assistant(calls=(ToolCall(id="1", name="shell", arguments={"command": command}),)), assistant("done")]
    script = tmp_path / "script.jsonl"
    script.write_text("".join(json.dumps(message_to_json(turn)) + "\n" for turn in turns))
    paths = os.pathsep.join(str(ROOT / part) for part in ("", "runtime", "kernels", "model", "tools"))
    done = subprocess.run(
        [sys.executable, "-m", "m3agent", "run", "x", "--mode", "auto", "--model", f"scripted:{script}", *option],
        cwd=repo, env={**os.environ, "PYTHONPATH": paths, "M3_HOME": str(tmp_path / "home")},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (repo / "inside").read_text() == "in\n"
    assert outside.exists() == escapes
    assert (repo / ".git" / "hooks" / "post-checkout").exists() == escapes


@needs_sandbox
def test_tests_in_the_sandbox_give_the_same_report_and_write_nothing_outside(repo: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (repo / "test_out.py").write_text(
        "import pathlib, socket, tempfile\n\n\ndef test_write():\n    tempfile.TemporaryFile().close()\n"
        f"    pathlib.Path({str(outside)!r}).write_text('x')\n\n\n"
        "def test_connect():\n    socket.create_connection(('192.0.2.1', 80), 2)\n"
    )
    confinement = open_confinement(settings(tmp_path), repo, lasting_tmp=False)
    report = asyncio.run(run_tests(repo, environment=dict(os.environ), sandbox=confinement.sandbox))
    assert {name.split("::")[-1]: outcome for name, outcome in report.outcomes.items()} == {
        "test_add": "failed",
        "test_write": "passed",  # it lies in the temporary folder, which is a private one
        "test_connect": "failed",
    }
    assert {failure.error_type for failure in report.failures} >= {"AssertionError", "OSError"}
    assert not outside.exists()


def test_the_active_environment_can_be_used_wherever_it_lies(repo: Path, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # where a command sees nothing else
        venv.create(folder, with_pip=False, symlinks=True)
        chosen = Settings(state_dir=tmp_path / "state", command_environment={**os.environ, "VIRTUAL_ENV": folder})
        (repo / "test_add.py").write_text("import unittest\nclass T(unittest.TestCase):\n    def test_it(self): ...\n")
        report = asyncio.run(
            run_tests(
                repo, command="python -m unittest", environment=chosen.command_environment,
                sandbox=open_confinement(chosen, repo, lasting_tmp=False).sandbox,
            )
        )  # fmt: skip
    assert report.passed, report.reason


@needs_sandbox
def test_the_network_and_the_config_file_follow_the_settings(repo: Path, tmp_path: Path) -> None:
    chosen = settings(tmp_path, network=True, environment=("DATABASE_URL",))
    chosen.state_dir.mkdir()
    (chosen.state_dir / "config.toml").write_text('api_key = "k"\n')
    sandbox = open_confinement(chosen, repo).sandbox
    assert sandbox is not None
    assert sandbox.policy.network
    given = {"DATABASE_URL": "d", "HTTPS_PROXY": "p", "OTHER": "o", "DATABASE_TOKEN": "t"}
    assert sandbox.policy.allowed_environment(given).keys() == {"DATABASE_URL", "HTTPS_PROXY", "TMPDIR"}
    assert chosen.state_dir / "config.toml" in sandbox.policy.hidden
    assert open_confinement(settings(tmp_path, sandbox=False), repo) == Confinement()


def test_a_command_that_cannot_be_confined_is_not_run(context: ToolContext) -> None:
    def refuse(argv: object, policy: object) -> list[str]:
        raise SandboxError("the kernel says no")

    broken = Sandbox(Backend(name="broken", command=refuse), Policy(writable=(context.root,)))
    confined = dataclasses.replace(context, sandbox=broken)
    result = asyncio.run(call_tool(ShellTool(), {"command": "echo x > made"}, confined))
    assert result.is_error
    assert "the kernel says no" in result.text
    assert not (context.root / "made").exists()
    report = asyncio.run(run_tests(context.root, sandbox=broken))
    assert not report.could_start
    assert "the kernel says no" in report.reason


@pytest.mark.parametrize("mode", ["ask", "edit", "auto"])
def test_without_a_boundary_every_command_is_asked_for(mode: Any) -> None:
    tools = {tool.name: tool for tool in all_tools()}
    decision = decide(mode, tools["shell"], unconfined="no sandbox works here")
    assert (decision.verdict, decision.rule) == ("ask", "no sandbox works here")
    assert decide("plan", tools["shell"], unconfined="x").verdict == "refuse"
    assert decide("edit", tools["edit"], unconfined="x").verdict == "allow"


def test_without_a_boundary_nothing_is_run_unattended(context: ToolContext) -> None:
    call = ToolCall(id="1", name="shell", arguments={"command": "echo x > made"})
    model = ScriptedModel([assistant(calls=(call,)), assistant("I cannot.")])
    conversation = Conversation(discard)
    conversation.add(user("x"))
    result = asyncio.run(
        run_loop(
            model,
            conversation,
            all_tools(),
            dataclasses.replace(context, unconfined="no sandbox works here; --no-sandbox accepts it."),
            sink=discard,
            options=Options(),
            budget=Budget(),
            mode="auto",
        )
    )
    assert result.exit_code == Exit.NEEDS_APPROVAL
    assert not (context.root / "made").exists()
    assert "--no-sandbox" in conversation.messages[-2].text


def test_a_missing_boundary_is_told_to_the_person() -> None:
    recorder = Recorder()
    Confinement(unconfined="no sandbox works").tell(recorder)
    Confinement().tell(recorder)
    assert [event.text for event in recorder.events] == ["no sandbox works"]  # type: ignore[union-attr]
