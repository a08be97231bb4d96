"""A proven repair as a draft at GitHub, GitLab and Gitea, with a real git remote: what is pushed, said, and refused."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from m3_tools.secret import Secrets
from m3agent.errors import M3Error
from m3agent.exits import Exit
from m3agent.fix.issue import Issue
from m3agent.fix.pull_request import branches_of, find_target, publish
from m3agent.forge.access import configured_forges
from m3agent.llm.scripted import ScriptedModel
from m3agent.messages import ToolCall, assistant
from tests.contracts.forge_server import PROJECT, TOKEN, ForgeServer

Run = Callable[..., Any]
BRANCH = "m3/issue-8"


@pytest.fixture
def forge(request: pytest.FixtureRequest) -> Iterator[ForgeServer]:
    server = ForgeServer(getattr(request, "param", "github"))
    server.add(8, "An item at its limit is not ordered, @ann `x` | <b>", "With 5 left and a limit of 5 it should be.")
    yield server
    server.close()


@pytest.fixture
def at_forge(shop: Path, forge: ForgeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The shop with a remote at the forge, whose pushes go to a bare repository; HEAD is pushed."""
    monkeypatch.setenv(
        "PATH", os.pathsep.join(p for p in os.environ["PATH"].split(os.pathsep) if not (Path(p) / "gh").exists())
    )
    git(tmp_path, "init", "-q", "--bare", "-b", "main", "remote.git")
    git(shop, "remote", "add", "origin", f"git@127.0.0.1:{PROJECT}.git")
    git(shop, "remote", "set-url", "--push", "origin", str(tmp_path / "remote.git"))
    git(shop, "push", "-q", "origin", "main")
    git(shop, "config", "user.name", "T")
    git(shop, "config", "user.email", "t@localhost")
    return shop


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def state(repo: Path) -> list[str]:
    """What the person sees of their repository: files, index, HEAD, own branches, stash."""
    files = [f"{p} {p.read_bytes()!r}" for p in sorted(repo.rglob("*")) if p.is_file() and ".git" not in p.parts]
    refs = [ref for ref in git(repo, "for-each-ref").splitlines() if "/m3/" not in ref]
    return [*(f for f in files if "/.m3/" not in f), git(repo, "ls-files", "--stage"), git(repo, "rev-parse", "HEAD"),
            git(repo, "symbolic-ref", "HEAD"), git(repo, "stash", "list"), *refs]  # fmt: skip


def right() -> ScriptedModel:
    arguments = {"path": "shop/stock.py", "old": "level < limit", "new": "level <= limit"}
    return ScriptedModel([
        assistant(calls=(ToolCall(id="1", name="read", arguments={"path": "shop/stock.py"}),)),
        assistant(calls=(ToolCall(id="2", name="edit", arguments=arguments),)),
        assistant("The limit itself belongs to the list."), assistant("ACCEPT. The cause is repaired."),
    ])  # fmt: skip


def forges(forge: ForgeServer, **changed: str) -> Any:
    return configured_forges({**forge.environment, **changed})


def test_a_draft_is_opened_from_a_pushed_branch(at_forge: Path, forge: ForgeServer, fix: Run, tmp_path: Path) -> None:
    (at_forge / "shop/stock.py").write_text("# being edited\n")
    (at_forge / "tests/test_stock.py").write_text("# staged\n")
    git(at_forge, "add", "tests")
    before = state(at_forge)
    result = asyncio.run(fix(at_forge, right(), forge.web(8), pull_request=True, forges=forges(forge)))
    assert result.code == Exit.OK, result.summary
    assert state(at_forge) == before
    remote = tmp_path / "remote.git"
    assert git(remote, "for-each-ref", "--format=%(refname:lstrip=2)") == f"{BRANCH}\nmain"
    assert git(remote, "diff", "--name-only", "main", BRANCH) == "shop/stock.py"
    assert git(remote, "log", "--format=%an", f"main..{BRANCH}") == "m3"
    (opened,) = forge.opened
    assert (opened["draft"], opened["head"], opened["base"]) == (True, BRANCH, "main")
    assert opened["title"].startswith("fix: An item at its limit is not ordered")
    body = opened["body"]
    assert body.startswith("Closes #8\n\n")
    assert "| before | 2 | 2 | 0 | 0 | 1 |" in body
    assert "| after | 4 | 0 | 0 | 0 | 0 |" in body
    assert "`python -m unittest`" in body
    assert "accepts" in result.summary
    assert "ACCEPT. The cause is repaired." in body
    assert "@ann" not in body
    assert str(tmp_path) not in body
    assert TOKEN not in str(opened)
    address = result.report["delivery"]["pull_request"]
    assert address.endswith("/101")
    assert address in result.summary


@pytest.mark.parametrize("forge", ["github", "gitlab", "gitea"], indirect=True)
def test_each_forge_gets_a_draft_in_its_own_shape(at_forge: Path, forge: ForgeServer, tmp_path: Path) -> None:
    body_file = tmp_path / "body.md"
    body_file.write_text(f"the token is {TOKEN}")
    git(at_forge, "branch", BRANCH)
    target = find_target(at_forge, forges(forge))
    assert (target.remote, target.base, branches_of(at_forge, target)) == ("origin", "main", {"main"})
    address = publish(
        at_forge, target, Issue(title="Sum is one too high", body="", source=forge.web(8)), branch=BRANCH,
        body_file=body_file, diff="+x = 1", secrets=Secrets(values=(TOKEN,)),
    )  # fmt: skip
    assert address.endswith("/101")
    (opened,) = forge.opened
    if forge.kind == "gitlab":
        assert opened == {
            "source_branch": BRANCH, "target_branch": "main", "title": "Draft: fix: Sum is one too high",
            "description": opened["description"],
        }  # fmt: skip
    else:
        draft = {"draft": True} if forge.kind == "github" else {}
        title = "fix: Sum is one too high" if draft else "WIP: fix: Sum is one too high"
        assert opened == {"head": BRANCH, "base": "main", "title": title, "body": opened["body"], **draft}
    text = opened.get("body") or opened["description"]
    assert text == "Closes #8\n\nthe token is [secret left out: a key of yours]"
    again = Issue(title="t", body="", source="elsewhere")
    with pytest.raises(M3Error, match="already exists"):
        publish(at_forge, target, again, branch=BRANCH, body_file=body_file, diff="", secrets=Secrets())


def test_a_second_repair_gets_a_branch_of_its_own_and_forces_nothing(
    at_forge: Path,
    forge: ForgeServer,
    fix: Run,
    tmp_path: Path,
) -> None:
    """The name is taken at the remote alone, by a commit that the person does not have."""
    git(at_forge, "push", "-q", "origin", f"main:{BRANCH}")
    git(at_forge, "update-ref", "-d", f"refs/remotes/origin/{BRANCH}")
    result = asyncio.run(fix(at_forge, right(), forge.web(8), pull_request=True, forges=forges(forge)))
    assert result.code == Exit.OK, result.summary
    assert result.report["delivery"]["branch"] == f"{BRANCH}-2"
    assert git(tmp_path / "remote.git", "rev-parse", BRANCH) == git(at_forge, "rev-parse", "main")


def test_what_is_not_proven_is_never_published(at_forge: Path, forge: ForgeServer, fix: Run, tmp_path: Path) -> None:
    wrong = {"path": "shop/stock.py", "old": "level < limit", "new": "level == limit"}
    turns = [
        assistant(calls=(ToolCall(id="1", name="read", arguments={"path": "shop/stock.py"}),)),
        assistant(calls=(ToolCall(id="2", name="edit", arguments=wrong),)),
        *[assistant("Done.")] * 3,
    ]
    result = asyncio.run(fix(at_forge, ScriptedModel(turns), forge.web(8), pull_request=True, forges=forges(forge)))
    assert result.code == Exit.NOT_FIXED
    assert git(tmp_path / "remote.git", "for-each-ref", "--format=%(refname:lstrip=2)") == "main"
    assert forge.opened == []
    assert "level == limit" in Path(result.report["delivery"]["patch"]).read_text()


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (lambda repo: git(repo, "remote", "remove", "origin"), "no remote to ask"),
        (lambda repo: git(repo, "remote", "set-url", "origin", "/srv/git/x"), "is no forge"),
        (lambda repo: git(repo, "commit", "-q", "--allow-empty", "-m", "x"), "HEAD holds commits"),
        (None, "--pr needs a token for 127.0.0.1: set"),
    ],
    ids=["no remote", "no forge", "commits that are not pushed", "no token"],
)  # fmt: skip
def test_what_is_missing_is_told_before_the_work_begins(
    prepare: Any,
    words: str,
    at_forge: Path,
    forge: ForgeServer,
    fix: Run,
) -> None:
    known = forges(forge)
    if prepare is None:
        known = tuple(dataclasses.replace(each, token="") for each in known)
    else:
        prepare(at_forge)
    result = asyncio.run(fix(at_forge, None, str(at_forge / "issues/1.md"), pull_request=True, forges=known))
    assert result.code == Exit.USAGE
    assert words in result.summary
    assert result.report["runs"] == []


def test_a_refused_draft_says_that_the_branch_is_pushed(
    at_forge: Path,
    forge: ForgeServer,
    fix: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer = forge.answer
    refusal = (403, {}, {"message": "Resource not accessible by personal access token"})
    monkeypatch.setattr(forge, "answer", lambda method, *rest: refusal if method == "POST" else answer(method, *rest))
    result = asyncio.run(fix(at_forge, right(), forge.web(8), pull_request=True, forges=forges(forge)))
    assert result.code == Exit.USAGE
    line = result.summary.splitlines()[0]
    assert f"the branch {BRANCH} is pushed, but no pull request was opened" in line
    body_file = Path(line.rpartition(" ")[2])
    assert "| after | 4 | 0 | 0 | 0 | 0 |" in body_file.read_text()
    assert result.report["proven"] is True


def test_a_remote_that_refuses_the_push_is_one_line(
    at_forge: Path,
    forge: ForgeServer,
    fix: Run,
    tmp_path: Path,
) -> None:
    hook = tmp_path / "remote.git/hooks/pre-receive"
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    result = asyncio.run(fix(at_forge, right(), forge.web(8), pull_request=True, forges=forges(forge)))
    assert result.code == Exit.BROKEN_ENVIRONMENT
    assert result.summary.splitlines()[0].startswith("origin could not be pushed: ")
    assert forge.opened == []


def test_a_secret_in_the_change_is_not_pushed(at_forge: Path, forge: ForgeServer, fix: Run, tmp_path: Path) -> None:
    key = "ghp_" + "a1B2" * 10
    arguments = {"path": "shop/stock.py", "old": "level < limit", "new": f"level <= limit  # {key}"}
    turns = [
        assistant(calls=(ToolCall(id="1", name="read", arguments={"path": "shop/stock.py"}),)),
        assistant(calls=(ToolCall(id="2", name="edit", arguments=arguments),)), assistant("Done."),
    ]  # fmt: skip
    result = asyncio.run(fix(at_forge, ScriptedModel(turns), forge.web(8), pull_request=True, forges=forges(forge)))
    assert result.code == Exit.USAGE
    assert "nothing was pushed: the change holds what looks like a secret" in result.summary
    assert git(tmp_path / "remote.git", "for-each-ref", "--format=%(refname:lstrip=2)") == "main"
    assert key not in Path(result.report["delivery"]["report"]).read_text()
