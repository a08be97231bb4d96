"""Tools of MCP servers in a run: judged like ours, sent to the model, and nothing runs afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from m3_tools.base import Tool
from m3_tools.mcp.tools import AnyArgs
from m3agent.approval import decide
from m3agent.errors import M3Error
from m3agent.messages import ToolCall, assistant, message_to_json
from m3agent.permissions.rules import parse_rules
from m3agent.settings import load_settings

ROOT = Path(__file__).parents[2]
SERVER = ROOT / "tests" / "tools" / "mcp" / "raw_server.py"


class Remote(Tool[AnyArgs]):
    """A tool as those of servers are, of which the name is judged."""

    name, args_type, read_only = "github__create_issue", AnyArgs, False


@pytest.mark.parametrize(("mode", "verdict"), [("plan", "refuse"), ("ask", "ask"), ("edit", "ask"), ("auto", "allow")])
def test_they_are_asked_for_like_commands(mode: Any, verdict: str) -> None:
    assert decide(mode, Remote(), {}).verdict == verdict


def test_rules_name_them_one_by_one_or_by_server() -> None:
    def judged(**rules: list[str]) -> str:
        return decide("edit", Remote(), {"title": "x"}, rules=parse_rules(rules)).verdict

    assert judged(allow=["github__create_issue"]) == "allow"
    assert judged(allow=["github__*"]) == "allow"
    assert judged(allow=["*"], deny=["github__*"]) == "refuse"
    assert judged(allow=["gitlab__*"]) == "ask"


def test_the_config_file_names_servers(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(
        '[mcp.a]\ncommand = ["x", "y"]\nnetwork = true\n[mcp.b]\nurl = "https://x"\nheaders = {A = "key-12345-long"}\n'
    )
    settings = load_settings(environ={"M3_HOME": str(tmp_path)})
    a, b = settings.servers
    assert (a.name, a.command, a.network, a.sandbox) == ("a", ("x", "y"), True, True)
    assert (b.url, dict(b.headers)) == ("https://x", {"A": "key-12345-long"})
    assert "key-12345-long" not in settings.secrets.redact("it is key-12345-long")
    assert "key-12345-long" not in repr(settings)
    config.write_text("mcp = 3\n")
    with pytest.raises(M3Error, match="must be tables"):
        load_settings(environ={"M3_HOME": str(tmp_path)})


@pytest.mark.parametrize("trusted", [False, True])
def test_a_run_uses_the_servers_of_a_repository_only_if_it_is_trusted(
    repo: Path, tmp_path: Path, trusted: bool
) -> None:
    (repo / ".m3").mkdir()
    (repo / ".m3" / "server.py").write_text(SERVER.read_text())
    (repo / ".m3" / "config.toml").write_text(f'[mcp.raw]\ncommand = ["{sys.executable}", ".m3/server.py"]\n')
    home = tmp_path / "home"
    if trusted:
        from m3agent.repository.config import read_brought
        from m3agent.trust import TrustStore

        brought = read_brought(repo)
        assert brought is not None
        TrustStore(home).record(repo, brought.digest, trusted=True)
    call = ToolCall(id="1", name="raw__echo", arguments={"text": "hello"})
    script = tmp_path / "script.jsonl"
    turns = [assistant(calls=(call,)), assistant("done")]
    script.write_text("".join(json.dumps(message_to_json(turn)) + "\n" for turn in turns))
    paths = os.pathsep.join(str(ROOT / part) for part in ("", "runtime", "kernels", "model", "tools"))
    argv = [sys.executable, "-m", "m3agent", "run", "x", "--mode", "auto", "--model", f"scripted:{script}"]
    done = subprocess.run(
        [*argv, "--no-sandbox", "--output", "stream-json"],
        cwd=repo, env={**os.environ, "PYTHONPATH": paths, "M3_HOME": str(home)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    (ended,) = [event for event in events if event["kind"] == "tool_ended"]
    if trusted:
        assert (ended["text"], ended["is_error"]) == ("echo hello", False)
        assert ended["rule"] == "auto mode: everything runs"
    else:
        assert "There is no tool 'raw__echo'" in ended["text"]
        assert any("do not trust" in event.get("text", "") for event in events if event["kind"] == "notice")
