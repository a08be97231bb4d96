"""What the prompt says of the folder: facts, short, and the same as long as nothing is changed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from m3agent.llm.protocol import ModelInfo
from m3agent.prompt import system_prompt
from m3agent.surroundings import surroundings


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    return tmp_path / "shop"


def lines(folder: Path, **given: str) -> list[str]:
    return surroundings(folder, environment={}, **given).splitlines()


def test_a_folder_without_git_says_what_does_not_work_there(repo: Path) -> None:
    assert lines(repo)[0] == "Surroundings:"
    assert lines(repo)[1].startswith("- Folder: shop ")
    assert "- git: none, so `diff` has nothing to compare with" in lines(repo)


def test_the_branch_or_the_commit_is_named(repo: Path) -> None:
    subprocess.run(["git", "init", "-q", "-b", "topic"], cwd=repo, check=True)
    assert "- git: branch topic" in lines(repo)
    identity = ["-c", "user.name=T", "-c", "user.email=t@localhost"]
    subprocess.run(["git", *identity, "commit", "-q", "--allow-empty", "-m", "one"], cwd=repo, check=True)
    subprocess.run(["git", "checkout", "-q", "--detach"], cwd=repo, check=True)
    assert any(line.endswith("on no branch") for line in lines(repo))


def test_the_command_of_the_tests_is_found_or_given_and_names_no_path_of_the_machine(repo: Path) -> None:
    assert "- Tests: python -m pytest" in lines(repo)
    assert "- Tests: make check" in lines(repo, test_command="make check")
    assert str(repo.parent) not in "\n".join(lines(repo))


def test_what_commands_cannot_reach_is_told(repo: Path) -> None:
    """A server said that it listens, and nothing said that no other command could ask it."""
    (line,) = set(surroundings(repo, environment={}, has_network=False).splitlines()) - {*lines(repo)}
    assert line == "- Network: none, and none between commands; start a server and ask it in the same command"


def test_a_large_model_is_told_and_the_embedded_one_is_not(repo: Path) -> None:
    where = surroundings(repo, environment={})
    large = ModelInfo(name="large", context_tokens=100_000)
    nano = ModelInfo(name="m3-nano", context_tokens=4096, is_nano=True)
    assert where in system_prompt(large, command="run", surroundings=where).text
    assert "Folder" not in system_prompt(nano, command="run", surroundings=where).text
