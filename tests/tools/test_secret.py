"""What is a secret, and that no tool shows one."""

from __future__ import annotations

import asyncio
import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3_tools.base import Tool, ToolContext, ToolResult, call_tool
from m3_tools.delete import DeleteTool
from m3_tools.diff import DiffTool
from m3_tools.edit import EditTool
from m3_tools.grep import GrepTool
from m3_tools.move import MoveTool
from m3_tools.outline import OutlineTool
from m3_tools.read import ReadTool
from m3_tools.sandbox import Sandbox, detect, work_tree_policy
from m3_tools.secret import MARK, RedactedStream, Secrets, is_secret_value, is_secret_variable
from m3_tools.shell import ShellTool
from m3_tools.write import WriteTool

# Joined here, so that no scanner takes this file for a leak.
TOKENS = {
    "GitHub token": "gh" + "p_" + "aB3d" * 9,
    "GitLab token": "glpat" + "-" + "aB3d" * 5,
    "AWS key": "AKI" + "A" + "ABCD1234" * 2,
    "Google key": "AIz" + "a" + "aB3d_" * 7,
    "Slack token": "xox" + "b-" + "123456789-" * 3,
    "Stripe key": "sk_li" + "ve_" + "aB3d" * 6,
    "API key": "sk-" + "ant-api03-" + "aB3d-" * 10 + "x",
    "npm token": "np" + "m_" + "aB3d" * 9,
    "PyPI token": "pypi" + "-AgE" + "aB3d" * 15,
    "Hugging Face token": "h" + "f_" + "aBcD" * 9,
    "SendGrid key": "SG" + "." + "aB3d" * 5 + "." + "aB3d" * 11,
    "JSON Web Token": "ey" + "Jabcdefghij.ey" + "Jabcdefghij.abcdefghijk",
}
KEY = "-----BEGIN OPENSSH " + "PRIVATE KEY-----\n" + "b3BlbnNzaC1rZXk\n" * 9 + "-----END OPENSSH " + "PRIVATE KEY-----"
HEADER = "Authorization: Bearer abcdefghijklmnop.qrst"
OWN = "correct-horse-42-battery"
SECRETS = Secrets(values=(OWN,))


@pytest.mark.parametrize(
    "name",
    [".env", "a/.env.production", "prod.env", ".envrc", "server.pem", "deploy/TLS.KEY", "id_rsa", "home/id_ed25519",
     ".npmrc", "secrets.yaml", "config/credentials.json", "terraform.tfstate", ".netrc", "tests/.env"],
)  # fmt: skip
def test_it_is_guarded(name: str) -> None:
    assert Secrets().guards(name)
    assert not Secrets(allowed=("/" + name.lower(), "/" + name)).guards(name)


@pytest.mark.parametrize(
    "name",
    [".env.example", "src/secrets.py", "environment.py", "tests/data/server.pem", "test/localhost.key", "id_rsa.pub",
     "venv/lib/python3.11/site-packages/certifi/cacert.pem", "keys.py", "monkey.md", "credentials.py", "README.md"],
)  # fmt: skip
def test_it_is_not_guarded(name: str) -> None:
    assert not Secrets().guards(name)


@pytest.mark.parametrize("kind", TOKENS)
@pytest.mark.parametrize("around", ["{}", "x = '{}'", "https://u:{}@host/x", "a,{},b\n", '{{"k": "{}"}}'])
def test_tokens_are_redacted_wherever_they_stand(kind: str, around: str) -> None:
    expected = around.format(f"{MARK}{kind}]")
    assert SECRETS.redact(around.format(TOKENS[kind])) == expected
    assert SECRETS.redact(expected) == expected


def test_keys_headers_and_the_persons_own_are_redacted() -> None:
    text = SECRETS.redact(f"a\n{KEY}\nb {OWN} c\n{HEADER}\n")
    assert text.splitlines() == [
        "a", f"{MARK}private key]", f"b {MARK}a key of yours] c", f"Authorization: Bearer {MARK}credentials]",
    ]  # fmt: skip
    assert "b3Blbn" not in SECRETS.redact(KEY[: len(KEY) // 2]), "a key that is cut off is one"


@pytest.mark.parametrize(
    "text",
    ["sk-learn and sk-folding-cube-with-a-very-long-name-indeed", "task-" + "a1" * 20, "sha256:" + "0a" * 32,
     "def get_token(self): ...", "-----BEGIN CERTIFICATE-----", "AKIAshort", "xghp_" + "a" * 40],
)  # fmt: skip
def test_ordinary_text_stays(text: str) -> None:
    assert SECRETS.redact(text) == text


@given(st.lists(st.sampled_from([*TOKENS.values(), KEY, HEADER, OWN, "\n", "word", "....", "a.b", "é", "---", "="])))
def test_a_stream_in_pieces_shows_no_secret_that_the_whole_would_hide(words: list[str]) -> None:
    text = " ".join(words)
    for size in (1, 7, 64):
        sent: list[str] = []
        stream = RedactedStream(sent.append, SECRETS.redact)
        for start in range(0, len(text), size):
            stream.add(text[start : start + size])
        stream.close()
        assert "".join(sent) == SECRETS.redact(text)


def test_what_is_no_word_is_passed_on_at_once() -> None:
    sent: list[str] = []
    stream = RedactedStream(sent.append, SECRETS.redact)
    stream.add("tests/test_a.py ....")
    assert sent == ["tests/test_a.py ...."]


def test_variables_are_known_by_name_and_values_by_their_look() -> None:
    for name in ("GH_TOKEN", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "npm_config__auth", "OPENAI_APIKEY"):
        assert is_secret_variable(name)
    for name in ("PATH", "GIT_AUTHOR_NAME", "SSH_AUTH_SOCK", "TOKENIZERS_PARALLELISM", "KEYBOARD"):
        assert not is_secret_variable(name)
    assert is_secret_value(OWN)
    assert not any(is_secret_value(v) for v in ("postgres", "/run/secrets/key-1234", "two words of it", "password" * 3))


@pytest.fixture
def secret_context(context: ToolContext) -> ToolContext:
    root = context.root
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    (root / ".env").write_text("PASSWORD=hunter2\n")
    (root / "conf").mkdir()
    (root / "conf" / "prod.pem").write_text("hunter2\n")
    (root / "plain.txt").symlink_to(".env")
    (root / "app.py").write_text(f"TOKEN = {TOKENS['GitHub token']!r}\nx = 1\n\n\ndef f():\n    return 'hunter2'\n")
    return dataclasses.replace(context, secrets=SECRETS)


def run(tool: Tool[Any], context: ToolContext, **arguments: Any) -> ToolResult:
    result = asyncio.run(call_tool(tool, arguments, context))
    shown = result.text + repr(result.display)
    assert TOKENS["GitHub token"] not in shown
    return result


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        (ReadTool(), {"path": ".env"}),
        (ReadTool(), {"path": "conf/../.env"}),
        (ReadTool(), {"path": "plain.txt"}),
        (GrepTool(), {"path": ".env", "pattern": "."}),
        (OutlineTool(), {"path": "conf/prod.pem"}),
        (EditTool(), {"path": ".env", "old": "PASSWORD", "new": "x"}),
        (WriteTool(), {"path": ".env", "content": "x"}),
        (MoveTool(), {"path": ".env", "to": "seen.txt"}),
        (DeleteTool(), {"path": "conf/prod.pem"}),
    ],
)
def test_a_file_of_secrets_is_refused(tool: Tool[Any], arguments: dict[str, Any], secret_context: ToolContext) -> None:
    result = run(tool, secret_context, **arguments)
    assert result.is_error
    assert "not_secret" in result.text
    assert "hunter2" not in result.text
    allowed = dataclasses.replace(secret_context, secrets=Secrets(allowed=(".env", "*.pem")))
    assert "not_secret" not in run(tool, allowed, **arguments).text


def test_a_new_one_may_be_written(secret_context: ToolContext) -> None:
    assert not run(WriteTool(), secret_context, path="new/.env", content="PORT=1\n").is_error


def test_searches_and_diffs_pass_it_over(secret_context: ToolContext) -> None:
    found = run(GrepTool(), secret_context, pattern="hunter2").text
    assert "app.py" in found
    assert "PASSWORD" not in found
    assert "2 files of secrets not searched" in found
    assert "PASSWORD" not in run(GrepTool(), secret_context, pattern="password", ignore_case=True).text
    assert "include_ignored" not in run(GrepTool(), secret_context, pattern="PASSWORD").text
    diff = run(DiffTool(), secret_context).text
    assert "PASSWORD" not in diff
    assert "a file of secrets" in diff


def test_a_mark_is_never_written_over_what_it_stands_for(secret_context: ToolContext) -> None:
    seen = run(ReadTool(), secret_context, path="app.py").text
    assert f"{MARK}GitHub token]" in seen
    before = (secret_context.root / "app.py").read_text()
    result = run(WriteTool(), secret_context, path="app.py", content=f"TOKEN = '{MARK}GitHub token]'\nx = 2\n")
    assert result.is_error
    assert (secret_context.root / "app.py").read_text() == before
    assert not run(EditTool(), secret_context, path="app.py", old="x = 1", new="x = 2").is_error
    assert TOKENS["GitHub token"] in (secret_context.root / "app.py").read_text()


def test_live_output_is_redacted(secret_context: ToolContext) -> None:
    pieces: list[str] = []
    watched = dataclasses.replace(secret_context, on_output=pieces.append)
    token = TOKENS["npm token"]
    run(ShellTool(), watched, command=f"printf {token[:9]}; sleep 0.2; printf {token[9:]}; sleep 0.2; echo")
    assert "".join(pieces).strip() == f"{MARK}npm token]"


@pytest.mark.skipif(detect().backend is None, reason="no sandbox works here")
def test_commands_in_the_sandbox_find_it_empty(secret_context: ToolContext) -> None:
    backend = detect().backend
    assert backend is not None
    root = secret_context.root
    policy = work_tree_policy(root, readable=(Path(sys.prefix), Path(sys.base_prefix)), secrets=SECRETS)
    inside = dataclasses.replace(secret_context, sandbox=Sandbox(backend, policy))
    command = "cat .env plain.txt conf/prod.pem; cp .env copy; mv .env moved; ln .env hard; cat copy moved hard"
    assert "hunter2" not in run(ShellTool(), inside, command=command).text
    assert run(ShellTool(), inside, command="cat plain.txt").text == "exit code 0\n(no output)"
    assert ".env, conf/prod.pem: a file of secrets" in run(ShellTool(), inside, command="cat .env conf/prod.pem").text
    assert (root / ".env").read_text() == "PASSWORD=hunter2\n"
    (root / "later.env").write_text("hunter2")
    assert "hunter2" not in run(ShellTool(), inside, command="cat later.env").text
    subprocess.run(["git", "add", "-f", "conf/prod.pem"], cwd=root, check=True)
    assert "hunter2" in run(ShellTool(), inside, command="cat conf/prod.pem").text, "git would take it for changed"
