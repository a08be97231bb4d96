"""Secrets stay out of session files, exports, the prompt and completion."""

from __future__ import annotations

from pathlib import Path

from m3_tools.secret import MARK, Secrets
from m3agent.events import MessageAdded, RunStarted, ToolOutput
from m3agent.messages import ImagePart, user
from m3agent.outputs import open_outputs
from m3agent.repository.files import file_names, source_files
from m3agent.session.export import to_markdown
from m3agent.session.store import SessionStore
from m3agent.settings import load_settings
from m3agent.ui.samples import SAMPLES

TOKEN = "gh" + "p_" + "aB3d" * 9


def test_session_files_and_exports_hold_none(tmp_path: Path) -> None:
    settings = load_settings(environ={"M3_HOME": str(tmp_path), "DEPLOY_PASSWORD": "correct-horse-42"})
    image = ImagePart(media_type="image/png", data=TOKEN.encode())
    with open_outputs(settings, output="json") as out:
        out.sink(RunStarted(run_id=out.run_id, command="run", model="m", repo="r", task=f"use {TOKEN}", version="0"))
        out.sink(ToolOutput(call_id="1", text="it is correct-horse-42\n"))
        out.sink(MessageAdded(message=user(f"the token {TOKEN}", image)))
        path, run_id = out.session_path, out.run_id
    saved = path.read_text()
    assert TOKEN not in saved
    assert "correct-horse" not in saved
    recording = SessionStore(settings.sessions_dir).read(run_id)
    added = recording.events[-1]
    assert isinstance(added, MessageAdded)
    assert added.message == user(f"the token {MARK}GitHub token]", image), "pictures stay as they are"


def test_an_export_of_an_older_session_holds_none_either(tmp_path: Path) -> None:
    store = SessionStore(tmp_path, Secrets())
    with store.create("old") as session:
        for event in (*SAMPLES, MessageAdded(message=user("placeholder"))):
            session(event)
    path = tmp_path / "old.jsonl"
    path.write_text(path.read_text().replace("placeholder", TOKEN))
    assert TOKEN not in to_markdown(store.read("old"))


def test_the_prompt_and_completion_leave_them_out(repo: Path) -> None:
    (repo / ".env").write_text("x")
    (repo / "deploy.pem").write_text("x")
    (repo / "app.py").write_text(f"TOKEN = '{TOKEN}'\n")
    assert file_names(repo) == ["app.py", "sums.py", "test_sums.py"]
    assert file_names(repo, Secrets(allowed=("*.pem",))) == ["app.py", "deploy.pem", "sums.py", "test_sums.py"]
    found = source_files(repo)
    assert found.left_out == {"secret": 2}
    assert f"TOKEN = '{MARK}GitHub token]'\n" in [file.text for file in found.files]


def test_the_config_file_says_what_is_none(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('not_secret = ["certificates/*.pem"]\napi_key = "own-key-12345"\n')
    secrets = load_settings(environ={"M3_HOME": str(tmp_path)}).secrets
    assert not secrets.guards("certificates/a.pem")
    assert secrets.guards("other/a.pem")
    assert secrets.redact("own-key-12345") == f"{MARK}a key of yours]"
