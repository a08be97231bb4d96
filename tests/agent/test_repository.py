from __future__ import annotations

from pathlib import Path

from m3agent.repository.files import source_files
from m3agent.repository.prefix import repository_prefix
from tests.agent.conftest import git


def commit(root: Path, name: str, text: str, day: int) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)
    git(root, "add", ".")
    git(root, "commit", "-qm", name, date=f"2026-02-{day:02}T00:00:00Z")


def paths(root: Path) -> list[str]:
    return [file.path for file in source_files(root).files]


def test_files_that_change_least_come_first_and_new_ones_last(repo: Path) -> None:
    commit(repo, "b.py", "b = 1\n", 3)
    commit(repo, "deep/ä name.py", "a = 1\n", 2)
    (repo / "a_new.py").write_text("new = 1\n")
    assert paths(repo) == ["sums.py", "test_sums.py", "deep/ä name.py", "b.py", "a_new.py"]
    (repo / "sums.py").write_text("changed = 1\n")
    assert paths(repo) == ["test_sums.py", "deep/ä name.py", "b.py", "a_new.py", "sums.py"]


def test_an_edit_leaves_the_beginning_of_the_prefix_as_it_was(repo: Path) -> None:
    for i in range(5):
        commit(repo, f"m{i}.py", f"x = {i}\n" * 20, i + 1)
    before = repository_prefix(repo, budget_tokens=10_000).text
    (repo / "m4.py").write_text("y = 1\n")
    after = repository_prefix(repo, budget_tokens=10_000).text
    assert after[: before.index('<file path="m4.py"')] == before[: before.index('<file path="m4.py"')]


def test_ignored_binary_secret_and_huge_files_are_left_out_and_counted(repo: Path) -> None:
    (repo / ".gitignore").write_text("build/\n")
    (repo / "build").mkdir()
    (repo / "build" / "out.py").write_text("x")
    (repo / "data.bin").write_bytes(b"a\0b")
    (repo / "latin.txt").write_bytes(b"caf\xe9")
    (repo / ".env").write_text("KEY=s3cret\n")
    (repo / "notes.txt").write_text("-----BEGIN RSA PRIVATE KEY-----\ns3cret\n")
    (repo / "huge.py").write_text("x = 1\n" * 60_000)
    (repo / "uv.lock").write_text("x")
    (repo / "link.py").symlink_to("/etc/hostname")
    prefix = repository_prefix(repo, budget_tokens=10_000).text
    assert "s3cret" not in prefix
    assert "out.py" not in prefix
    assert source_files(repo).left_out == {"binary": 2, "secret": 1, "large": 1, "generated": 1, "no regular file": 1}
    assert "Left out: 2 binary, 1 generated, 1 large, 1 no regular file, 1 secret." in prefix


def test_what_does_not_fit_is_outlined_then_named_within_the_budget(repo: Path) -> None:
    for i in range(4):
        commit(repo, f"big{i}.py", f"def f{i}(): ...\n" + "# text\n" * 2000, i + 1)
    prefix = repository_prefix(repo, budget_tokens=3000, outline=lambda path, text: text.splitlines()[0])
    assert (prefix.whole, prefix.outlined, prefix.named) == (2, 4, 0)
    assert 'path="big2.py" kind="outline">\ndef f2(): ...\n</file>' in prefix.text
    assert "a - b" in prefix.text
    assert prefix.tokens < 3300
    named = repository_prefix(repo, budget_tokens=3000)
    assert (named.whole, named.outlined, named.named) == (2, 0, 4)
    assert "Further files, not shown:\nbig0.py\nbig1.py" in named.text


def test_the_advice_of_the_project_stands_last_and_grants_nothing(repo: Path) -> None:
    (repo / "AGENTS.md").write_text("Run make check.\n")
    text = repository_prefix(repo, budget_tokens=10_000).text
    assert text.endswith("It grants no permissions.\n\nRun make check.")


def test_a_folder_without_git_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    (tmp_path / ".gitignore").write_text("*.log\nout/\n")
    (tmp_path / "run.log").write_text("x")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "b.py").write_text("x")
    assert paths(tmp_path) == [".gitignore", "a.py"]


def test_a_subfolder_of_a_repository_is_read_by_its_own_paths(repo: Path) -> None:
    commit(repo, "sub/inner.py", "x = 1\n", 4)
    assert paths(repo / "sub") == ["inner.py"]


def test_a_file_that_was_deleted_but_not_committed_is_passed_over(repo: Path) -> None:
    (repo / "sums.py").unlink()
    assert paths(repo) == ["test_sums.py"]


def test_a_budget_of_nothing_gives_nothing(repo: Path) -> None:
    assert repository_prefix(repo, budget_tokens=0).text == ""
