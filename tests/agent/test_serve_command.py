"""`m3 serve` before a model is loaded: the key and the address."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from m3agent.cli import cli
from m3agent.errors import M3Error, ModelUnavailable
from m3agent.exits import Exit
from m3agent.settings import load_settings


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("M3_HOME", str(tmp_path))
    monkeypatch.delenv("M3_API_KEY", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "for another server")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "0.0.0.0"], "give an API key or use 127.0.0.1; M3_API_KEY or --api-key-file sets it"),
        (["--host", "::"], "give an API key or use 127.0.0.1"),
        (["--host", "192.0.2.1", "--api-key-file", "KEY"], "192.0.2.1:0 cannot be used: .*; give another --host"),
        (["--host", "no.such.host.invalid"], "no.such.host.invalid:0 cannot be used: .*; give another --host"),
        (["--api-key-file", "EMPTY"], "EMPTY must hold the key alone"),
        (["--api-key-file", "TWO"], "TWO must hold the key alone"),
        (["--model", "http://127.0.0.1:1/v1"], "is not a local model"),
    ],
)
def test_what_cannot_work_is_told_before_the_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {"KEY": "s3cret\n", "EMPTY": "\n", "TWO": "one\ntwo\n"}.items():
        Path(name).write_text(text)
    with pytest.raises(M3Error, match=said) as caught:
        cli.main(["serve", "--port", "0", *arguments], prog_name="m3", standalone_mode=False)
    assert caught.value.exit_code == Exit.USAGE
    assert "s3cret" not in str(caught.value)


def test_a_gpu_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ModelUnavailable, match="torch sees no GPU: choose the device cpu or auto"):
        cli.main(["serve", "--port", "0", "--device", "cuda"], prog_name="m3", standalone_mode=False)


def test_a_taken_port_is_told_before_the_model_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(M3Error, match=f"127.0.0.1:{port} cannot be used"):
            cli.main(["serve", "--port", str(port)], prog_name="m3", standalone_mode=False)


def test_the_key_for_clients_is_m3_s_own_and_never_shown(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('api_key = "for a model behind a URL"\n')
    env = {"M3_HOME": str(tmp_path), "OPENAI_API_KEY": "for another server"}
    assert load_settings(environ=env).server_key == ""
    chosen = load_settings(environ={**env, "M3_API_KEY": "s3cret"})
    assert chosen.server_key == "s3cret"
    assert "s3cret" not in repr(chosen)
