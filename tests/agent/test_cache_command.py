"""`m3 cache`: what it lists, what it removes, and what it leaves alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from m3_runtime.page_file import write_page_file
from m3agent.cli import cli


@pytest.fixture
def prefixes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two pages of one model, one of another."""
    monkeypatch.setenv("M3_HOME", str(tmp_path))
    folder = tmp_path / "cache" / "prefixes"
    for model, number in (("m3-a1", 1), ("m3-a1", 2), ("nano-b2", 3)):
        (folder / model).mkdir(parents=True, exist_ok=True)
        write_page_file(folder / model, bytes([number]) * 32, bytearray(10**6), used_ns=number * 10**18)
    return folder


def m3(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["cache", *arguments], standalone_mode=False)


def test_the_list_names_models_tokens_sizes_and_the_folder(prefixes: Path) -> None:
    lines = m3("list").output.splitlines()
    assert [line.split()[0] for line in lines[:2]] == ["nano-b2", "m3-a1"]
    assert "256 tokens" in lines[1]
    assert "2.0 MB" in lines[1]
    assert lines[2] == f"3.0 MB in {prefixes}"
    models = [json.loads(line) for line in m3("list", "--json").output.splitlines()]
    assert [(model["name"], model["num_pages"]) for model in models] == [("nano-b2", 1), ("m3-a1", 2)]


def test_clear_removes_one_model_or_all_and_nothing_else(prefixes: Path) -> None:
    (prefixes / "m3-a1" / "notes.txt").write_text("mine")
    assert m3("clear", "nano-b2").output == "1.0 MB removed\n"
    assert not (prefixes / "nano-b2").exists()
    assert len(list(prefixes.rglob("*.page"))) == 2
    assert m3("clear").output == "2.0 MB removed\n"
    assert [path.name for path in prefixes.rglob("*")] == ["m3-a1", "notes.txt"]


def test_a_name_that_is_not_kept_removes_nothing(prefixes: Path) -> None:
    done = m3("clear", "m3-a1", "nothing")
    assert "nothing is kept of 'nothing'" in str(done.exception)
    assert len(list(prefixes.rglob("*.page"))) == 3


def test_without_a_folder_there_is_nothing_to_list_or_clear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("M3_HOME", str(tmp_path / "new"))
    assert m3("list").output.startswith("0.0 MB in ")
    assert m3("clear").output == "0.0 MB removed\n"
    assert not (tmp_path / "new").exists()
