"""Repositories that are hard to work with, each built by a few lines: the right code, one clear line, nothing lost.

The fixture `fix` compares every byte and mode of the repository, `.git` included, before and after each run.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from m3agent.confinement import detection
from m3agent.events import Notice
from m3agent.exits import Exit
from tests.agent.fix.conftest import ISSUE, STOCK, commit_all, make_repository, tree_hash, write_shop

RIGHT = {"needs_reorder": [("replace", "L2|", "    return level <= limit", -1.0)]}
FIXED = "fixed: failing tests that pass now: 2"
needs_sandbox = pytest.mark.skipif(detection().backend is None, reason=detection().reason())
IDENTITY = ("-c", "user.name=T", "-c", "user.email=t@localhost")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """`build` makes a repository in an empty folder and returns the folder to give; `words` stand in the first line.

    `test` is the command of the tests, `told` stands in a notice, `limit_s` is the time limit.
    """

    name: str
    build: Callable[[Path], Path]
    code: Exit = Exit.OK
    words: str = FIXED
    test: str = "python -m unittest"
    told: str = ""
    limit_s: float = 120.0
    marks: tuple[pytest.MarkDecorator, ...] = ()


def git(folder: Path, *arguments: str, data: bytes | None = None) -> str:
    command = ["git", *IDENTITY, "-c", "protocol.file.allow=always", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, input=data).stdout.decode().strip()


def shop_in(folder: Path, **files: str | bytes) -> Path:
    """The shop with more files (`__` stands for `/`, `_py` for `.py`), committed."""
    repo = write_shop(folder / "shop")
    for name, content in files.items():
        file = repo / name.replace("__", "/").replace("_py", ".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return make_repository(repo)


def no_commits(folder: Path) -> Path:
    repo = write_shop(folder / "shop")
    git(repo, "init", "-q")
    return repo


def detached(folder: Path) -> Path:
    repo = shop_in(folder)
    git(repo, "checkout", "-q", "--detach")
    return repo


def dirty(folder: Path) -> Path:
    repo = shop_in(folder)
    (repo / "shop/stock.py").write_text("# being edited\n")
    (repo / "staged.py").write_text("staged = 1\n")
    git(repo, "add", "staged.py")
    (repo / "untracked.py").write_text("mine\n")
    (repo / "tests/test_stock.py").unlink()
    return repo


def with_a_stash(folder: Path) -> Path:
    repo = shop_in(folder)
    (repo / "shop/stock.py").write_text("# kept for later\n")
    git(repo, "stash")
    return repo


def in_a_merge(folder: Path) -> Path:
    repo = shop_in(folder)
    git(repo, "checkout", "-q", "-b", "other")
    (repo / "notes.txt").write_text("theirs\n")
    commit_all(repo)
    git(repo, "checkout", "-q", "main")
    (repo / "notes.txt").write_text("ours\n")
    commit_all(repo)
    subprocess.run(["git", *IDENTITY, "merge", "other"], cwd=repo, capture_output=True)
    assert git(repo, "ls-files", "--unmerged")
    return repo


def with_a_submodule(folder: Path) -> Path:
    library = folder / "library"
    library.mkdir()
    (library / "limits.py").write_text("LIMIT = 5\n")
    make_repository(library)
    needs = "import unittest\n\nfrom vendor.limits import LIMIT\n\n\nclass LimitTest(unittest.TestCase):\n"
    repo = shop_in(
        folder, tests__test_limit_py=f"{needs}    def test_limit(self):\n        self.assertEqual(LIMIT, 5)\n"
    )
    git(repo, "submodule", "--quiet", "add", str(library), "vendor")
    commit_all(repo)
    return repo


def with_an_empty_submodule(folder: Path) -> Path:
    repo = with_a_submodule(folder)
    (repo / "tests/test_limit.py").unlink()
    commit_all(repo)
    git(repo, "submodule", "--quiet", "deinit", "--all")
    return repo


def linked_worktree(folder: Path) -> Path:
    repo = shop_in(folder)
    git(repo, "worktree", "add", "-q", "-b", "side", str(folder / "side" / "shop"))
    return folder / "side" / "shop"


def bare(folder: Path) -> Path:
    git(shop_in(folder), "clone", "-q", "--bare", ".", str(folder / "bare.git"))
    return folder / "bare.git"


def crlf(folder: Path) -> Path:
    return shop_in(folder, shop__stock_py=STOCK.replace("\n", "\r\n"))


def spaces(folder: Path) -> Path:
    repo = shop_in(folder, **{"a file with spaces.txt": "x", "-rf": "x", "ends in space ": "x"})
    return repo.rename(folder / "a shop 'with' spaces")


def odd_names(folder: Path) -> Path:
    repo = shop_in(folder)
    for name in (b"caf\xe9.txt", b"new\nline", b'quote".txt', "snow\u2603.txt".encode()):
        Path(os.fsdecode(os.fsencode(repo) + b"/" + name)).write_text("x")
    commit_all(repo)
    return repo


def many_files(folder: Path) -> Path:
    repo = shop_in(folder)
    for number in range(200):
        (repo / f"data/{number}").mkdir(parents=True)
        for other in range(250):
            (repo / f"data/{number}/{other}.txt").write_text("x")
    commit_all(repo)
    return repo


def missing_package(folder: Path) -> Path:
    return shop_in(folder, tests__test_stock_py="import nowhere_to_be_found.thing\n")


def a_name_that_the_code_lacks(folder: Path) -> Path:
    return shop_in(folder, tests__test_stock_py="from shop.stock import not_written_yet\n")


def hanging(folder: Path) -> Path:
    body = "import time, unittest\n\n\nclass T(unittest.TestCase):\n    def test_it(self):\n        time.sleep(600)\n"
    return shop_in(folder, tests__test_stock_py=body)


def flaky(folder: Path) -> Path:
    body = (
        "import pathlib, unittest\n\n\nclass T(unittest.TestCase):\n    def test_it(self):\n"
        "        marker = pathlib.Path(__file__).parent / 'ran-before'\n"
        "        ran = marker.exists()\n        marker.touch()\n        self.assertTrue(ran)\n"
    )
    return shop_in(folder, tests__test_stock_py=body)


def zero_tests(folder: Path) -> Path:
    return shop_in(folder, tests__test_stock_py="import unittest\n")


def nothing_at_all(folder: Path) -> Path:
    repo = folder / "empty"
    repo.mkdir()
    git(repo, "init", "-q")
    return repo


def writes_outside(folder: Path) -> Path:
    (folder / "outside").write_text("mine\n")
    body = (
        "import os, pathlib, unittest\n\n\nclass OutsideTest(unittest.TestCase):\n    def test_it(self):\n"
        f"        for place in (r'{folder}/outside', r'{folder}/shop/shop/stock.py', r'{folder}/shop/new.txt'):\n"
        "            try:\n                pathlib.Path(place).write_text('overwritten')\n"
        "            except OSError:\n                pass\n"
        "        pathlib.Path('left-here.log').write_text('by a test')\n"
    )
    return shop_in(folder, tests__test_outside_py=body)


def read_only(folder: Path) -> Path:
    """Also for root, who may write everywhere: where the folder `.m3` would be made there is a file."""
    repo = shop_in(folder, **{".m3": "not a folder\n"})
    for path in (repo, *repo.rglob("*")):
        path.chmod(path.stat().st_mode & ~0o222)
    return repo


def another_language(folder: Path) -> Path:
    script = b"#!/bin/sh\n[ \"$(sh shop/limit.sh 5 5)\" = yes ] || { echo 'at the limit: no'; exit 1; }\n"
    return shop_in(folder, **{"shop/limit.sh": '[ "$1" -lt "$2" ] && echo yes\n', "check.sh": script})


def links(folder: Path) -> Path:
    repo = shop_in(folder)
    (repo / "dangling").symlink_to("nowhere")
    (repo / "out").symlink_to("/etc/hostname")
    (repo / "loop").symlink_to("loop")
    commit_all(repo)
    return repo


def lfs_pointers(folder: Path) -> Path:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 12345\n"
    return shop_in(folder, **{".gitattributes": "*.bin filter=lfs diff=lfs merge=lfs -text\n", "data.bin": pointer})


def sparse(folder: Path) -> Path:
    repo = shop_in(folder)
    git(repo, "sparse-checkout", "set", "issues")
    assert not (repo / "shop").exists()
    return repo


def shallow(folder: Path) -> Path:
    repo = shop_in(folder)
    git(repo, *IDENTITY, "commit", "-q", "--allow-empty", "-m", "second")
    git(folder, "clone", "-q", "--depth", "1", f"file://{repo}", str(folder / "shallow" / "shop"))
    return folder / "shallow" / "shop"


def part_of_a_larger_one(folder: Path) -> Path:
    write_shop(folder / "shop")
    (folder / "other.py").write_text("other = 1\n")
    make_repository(folder)
    return folder / "shop"


def broken_settings(folder: Path) -> Path:
    return shop_in(folder, conftest_py="this is no Python\n", pytest__ini="", **{"pytest.ini": "[pytest]\n"})


CASES = [
    Case(name="no commits", build=no_commits, told="has no commit yet"),
    Case(name="detached", build=detached),
    Case(name="dirty", build=dirty, told="with changes that are not committed"),
    Case(name="a stash", build=with_a_stash),
    Case(name="in a merge", build=in_a_merge),
    Case(name="a submodule", build=with_a_submodule),
    Case(name="an empty submodule", build=with_an_empty_submodule, told="submodules that are not checked out"),
    Case(name="a linked worktree", build=linked_worktree),
    Case(name="bare", build=bare, code=Exit.USAGE, words="is a bare repository"),
    Case(name="CRLF", build=crlf),
    Case(name="spaces", build=spaces),
    Case(name="names that are not UTF-8", build=odd_names),
    Case(name="50,000 files", build=many_files, limit_s=900, marks=(pytest.mark.slow, pytest.mark.timeout(1200))),
    Case(name="a missing package", build=missing_package, code=Exit.BROKEN_ENVIRONMENT,
         words="the tests cannot start: nowhere_to_be_found cannot be imported"),
    Case(name="an import of what the code lacks", build=a_name_that_the_code_lacks, code=Exit.NOT_FIXED,
         words="the failing tests run no code of this repository that could be changed"),
    Case(name="broken settings", build=broken_settings, code=Exit.BROKEN_ENVIRONMENT, test="python -m pytest",
         words="the tests cannot start"),
    Case(name="tests that hang", build=hanging, code=Exit.BUDGET, limit_s=3.0,
         words="the limit of 3 seconds is reached (--time-limit), in the phase baseline"),
    Case(name="flaky", build=flaky, code=Exit.NOT_REPRODUCED, words="flaky"),
    Case(name="zero tests", build=zero_tests, code=Exit.UNVERIFIED, words="no tests were found"),
    Case(name="nothing at all", build=nothing_at_all, code=Exit.UNVERIFIED, words="no tests were found", test=""),
    Case(name="tests that write outside", build=writes_outside, marks=(needs_sandbox,)),
    Case(name="read-only", build=read_only),
    Case(name="another language", build=another_language, code=Exit.NOT_FIXED, test="sh check.sh",
         words="the failing tests run no code of this repository that could be changed"),
    Case(name="links", build=links),
    Case(name="git-lfs pointers", build=lfs_pointers, told="git-lfs"),
    Case(name="a sparse checkout", build=sparse),
    Case(name="shallow", build=shallow),
    Case(name="a part of a larger repository", build=part_of_a_larger_one, told="a larger git repository"),
]  # fmt: skip


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name, marks=case.marks) for case in CASES])
def test_the_right_code_and_line_and_nothing_lost(case: Case, tmp_path: Path, fix: Any, proposing: Any) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    repo = case.build(folder)
    issue = tmp_path / "issue.md"
    issue.write_text(ISSUE)
    before = tree_hash(folder)
    model = proposing([("shop/stock.py", "needs_reorder", -0.5)], RIGHT)
    result = asyncio.run(
        fix(repo, model, str(issue), strategy="search", test_command=case.test, time_limit_s=case.limit_s)
    )
    line = result.summary.splitlines()[0]
    assert (result.code, case.words in line) == (case.code, True), result.summary
    assert tree_hash(folder) == before, "something around the repository changed"
    told = [event.text for event in result.events.events if isinstance(event, Notice)]
    assert any(case.told in text for text in told) or not case.told, told
    if case.code == Exit.OK:
        changed = [
            line for line in result.report["diff"].splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")
        ]
        ending = "\r" if case.name == "CRLF" else ""
        wanted = [f"-    return level < limit{ending}", f"+    return level <= limit{ending}"]
        assert result.report["diff"].count("\n-    ") == len(changed) - 1 == 1
        assert [line for line in result.report["diff"].split("\n") if line in wanted] == wanted
        assert Path(result.report["delivery"]["patch"]).is_file()


def test_there_are_at_least_25() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 25
