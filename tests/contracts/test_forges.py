"""One contract for GitHub, GitLab and Gitea: what comes of an issue, and the one line that comes of every failure."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from m3agent.errors import M3Error
from m3agent.exits import Exit
from m3agent.fix.intake import load_issue
from m3agent.fix.pack import write_pack
from m3agent.forge.access import Forge, configured_forges, forge_of
from m3agent.forge.client import PAGE
from m3agent.forge.place import issue_at
from m3agent.settings import Settings, load_settings
from tests.contracts.forge_server import PROJECT, TOKEN, ForgeServer


@pytest.fixture(params=["github", "gitlab", "gitea"])
def forge(request: pytest.FixtureRequest) -> Iterator[ForgeServer]:
    server = ForgeServer(request.param)
    server.add(8, "Sum is one too high", "`total([1])` gives 2.", ["me too", "since 1.4"], labels=["bug", "math"])
    server.linked[8] = [(12, "Count from zero")]
    yield server
    server.close()


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose remote is at the forge. No `gh` of this machine is asked."""
    monkeypatch.setenv(
        "PATH", os.pathsep.join(p for p in os.environ["PATH"].split(os.pathsep) if not (Path(p) / "gh").exists())
    )
    folder = tmp_path / "repo"
    folder.mkdir()
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    subprocess.run(["git", "remote", "add", "origin", f"git@127.0.0.1:{PROJECT}.git"], cwd=folder, check=True)
    return folder


def settings_of(forge: ForgeServer, **changed: str) -> Settings:
    return load_settings(environ={"M3_HOME": "/nowhere", **forge.environment, **changed})


def without_token(forge: ForgeServer) -> Settings:
    kept = {name: value for name, value in forge.environment.items() if value != TOKEN}
    return load_settings(environ={"M3_HOME": "/nowhere", **kept})


def the_line(ref: str, repo: Path, settings: Settings) -> tuple[str, int]:
    with pytest.raises(M3Error) as caught:
        load_issue(ref, repo, settings)
    line = str(caught.value)
    assert "\n" not in line
    assert TOKEN not in line
    return line, caught.value.exit_code


@pytest.mark.parametrize("by", ["number", "address", "address of a comment"])
def test_an_issue_with_all_that_belongs_to_it(by: str, forge: ForgeServer, repo: Path) -> None:
    ref = {"number": "8", "address": forge.web(8), "address of a comment": f"{forge.web(8)}#issuecomment-1"}[by]
    issue = load_issue(ref, repo, settings_of(forge))
    assert (issue.title, issue.body) == ("Sum is one too high", "`total([1])` gives 2.")
    assert issue.comments == ("bo: me too", "bo: since 1.4")
    assert issue.labels == ("bug", "math")
    sign = "!" if forge.kind == "gitlab" else "#"
    state = "opened" if forge.kind == "gitlab" else "open"
    assert issue.linked == (f"{sign}12 Count from zero ({state})",)
    assert (issue.source, issue.notes) == (forge.web(8), ())
    assert {token for _, _, token in forge.seen} == {f"{'token' if forge.kind == 'gitea' else 'Bearer'} {TOKEN}"}


def test_all_pages_are_read_and_the_first_and_last_comments_kept(forge: ForgeServer, repo: Path) -> None:
    forge.add(9, "Long", "text", [f"comment {i}" for i in range(2 * PAGE + 30)])
    issue = load_issue("9", repo, settings_of(forge))
    assert issue.comments[0] == "bo: comment 0"
    assert issue.comments[-1] == f"bo: comment {2 * PAGE + 29}"
    assert len(issue.comments) == 20
    assert any("only the first 10 and the last 10" in note for note in issue.notes)


def test_an_endless_list_ends(forge: ForgeServer, repo: Path) -> None:
    forge.add(9, "Long", "text", ["again"] * (9 * PAGE))
    issue = load_issue("9", repo, settings_of(forge))
    assert any("only the first 500 were fetched" in note for note in issue.notes)


def test_a_page_at_another_place_is_not_asked(forge: ForgeServer, repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = ForgeServer(forge.kind)
    forge.add(9, "Long", "text", ["x"] * (PAGE + 5))
    right = forge._page

    def lying(values: list[object], path: str, query: str) -> tuple[int, dict[str, str], object]:
        status, headers, value = right(values, path, query)
        return status, {name: text.replace(forge.origin, other.origin) for name, text in headers.items()}, value

    monkeypatch.setattr(forge, "_page", lying)
    load_issue("9", repo, settings_of(forge))
    assert other.seen == []
    other.close()


def test_an_issue_that_moved_is_followed_and_the_token_stays(forge: ForgeServer, repo: Path) -> None:
    other = ForgeServer(forge.kind)
    other.add(3, "Moved here", "text")
    path = "/projects/ann%2Ftool/issues/{}" if forge.kind == "gitlab" else f"/repos/{PROJECT}/issues/{{}}"
    root = forge.api_url.removeprefix(forge.origin)
    forge.moved[f"{root}{path.format(8)}"] = f"{root}{path.format(20)}"
    forge.add(20, "Moved within", "text")
    assert load_issue("8", repo, settings_of(forge)).title == "Moved within"
    forge.moved[f"{root}{path.format(8)}"] = f"{other.api_url}{path.format(3)}"
    assert load_issue("8", repo, settings_of(forge)).title == "Moved here"
    assert [token for _, _, token in other.seen] == [None]
    forge.moved[f"{root}{path.format(8)}"] = f"{root}{path.format(8)}"
    line, code = the_line("8", repo, settings_of(forge))
    assert "TooManyRedirects" in line
    assert code == Exit.MODEL_UNAVAILABLE
    other.close()


def test_a_private_project_needs_a_token(forge: ForgeServer, repo: Path) -> None:
    forge.private = True
    assert load_issue("8", repo, settings_of(forge)).title
    line, code = the_line("8", repo, without_token(forge))
    names = {"github": "GH_TOKEN", "gitlab": "GITLAB_TOKEN", "gitea": "GITEA_TOKEN"}
    assert f"there is no issue 8 of {PROJECT}" in line
    assert f"set {names[forge.kind]}" in line
    assert code == Exit.USAGE


def test_the_token_of_gh_is_used_for_github_alone(
    forge: ForgeServer, repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "gh"
    program.write_text(f'#!/bin/sh\n[ "$*" = "auth token --hostname 127.0.0.1" ] && echo {TOKEN}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    load_issue("8", repo, without_token(forge))
    assert {token for _, _, token in forge.seen} == {f"Bearer {TOKEN}" if forge.kind == "github" else None}


def test_the_rate_limit_says_when_it_opens(forge: ForgeServer, repo: Path) -> None:
    forge.limit(600)
    line, code = the_line("8", repo, without_token(forge))
    assert "its rate limit is reached" in line
    assert "it opens again in 10 min" in line
    assert "raises it" in line
    assert code == Exit.USAGE


@pytest.mark.parametrize(
    ("status", "words", "code"),
    [
        (401, "does not accept the token (401); renew", Exit.USAGE),
        (403, "access is refused (403): Resource not accessible", Exit.USAGE),
        (404, "there is no issue 8 of ann/tool", Exit.USAGE),
        (410, "there is no issue 8 of ann/tool", Exit.USAGE),
        (422, "refuses issue 8 of ann/tool (422): Resource not accessible", Exit.USAGE),
        (304, "has moved (304)", Exit.USAGE),
        (500, "answered 500", Exit.MODEL_UNAVAILABLE),
        (502, "answered 502", Exit.MODEL_UNAVAILABLE),
    ],
)
def test_every_refusal_is_one_line(status: int, words: str, code: Exit, forge: ForgeServer, repo: Path) -> None:
    forge.failure = (status, {}, {"message": "Resource not\naccessible"} if status != 304 else b"")
    line, exit_code = the_line("8", repo, settings_of(forge))
    assert words in line
    assert exit_code == code


@pytest.mark.parametrize("body", [b"<html>Sign in</html>", b"", b"[" * 100_000, b"null", b"[]", b"3"])
def test_an_answer_that_is_no_issue(body: bytes, forge: ForgeServer, repo: Path) -> None:
    forge.failure = (200, {}, body)
    assert "did not answer with" in the_line("8", repo, settings_of(forge))[0]


def test_a_forge_that_is_not_there(forge: ForgeServer, repo: Path) -> None:
    forge.close()
    line, code = the_line("8", repo, settings_of(forge))
    assert "cannot be reached (ConnectError)" in line
    assert "m3 issue pull" in line
    assert code == Exit.MODEL_UNAVAILABLE


def test_what_linked_requests_cannot_tell_is_a_note(
    forge: ForgeServer, repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = forge._list
    told = ("notes", "comments")
    monkeypatch.setattr(forge, "_list", lambda number, name: right(number, name) if name in told else None)
    issue = load_issue("8", repo, settings_of(forge))
    assert issue.linked == ()
    assert any("linked pull requests are not known" in note for note in issue.notes)


def test_a_pulled_issue_is_the_same_without_the_network(forge: ForgeServer, repo: Path) -> None:
    forge.add(8, "T <!-- x -->", "B\u200b", [f"c{i}" for i in range(30)], labels=["bug"])
    online = load_issue("8", repo, settings_of(forge))
    file = write_pack(online, repo)
    forge.close()
    offline = load_issue("8", repo, settings_of(forge))
    assert offline == online
    assert file.read_text().startswith("# T\n")
    about = json.loads(file.with_suffix(".json").read_text())
    assert about["source"] == forge.web(8)


@pytest.mark.parametrize(
    ("url", "kind", "api", "project"),
    [
        ("https://github.com/a/b/issues/1", "github", "https://api.github.com", "a/b"),
        ("https://www.github.com/a/b/pull/1", "github", "https://api.github.com", "a/b"),
        ("https://gitlab.com/a/b/c/-/issues/1", "gitlab", "https://gitlab.com/api/v4", "a/b/c"),
        ("https://gitlab.com/a/b/-/work_items/1/", "gitlab", "https://gitlab.com/api/v4", "a/b"),
        ("https://codeberg.org/a/b/issues/1", "gitea", "https://codeberg.org/api/v1", "a/b"),
        ("https://git.corp/a/b/-/issues/1", "gitlab", "https://git.corp/api/v4", "a/b"),
        ("https://git.corp:8443/a/b/issues/1", "github", "https://git.corp:8443/api/v3", "a/b"),
        ("http://gitea.local:3000/a/b/issues/1", "gitea", "http://gitea.local:3000/api/v1", "a/b"),
    ],
)
def test_the_address_tells_the_forge(url: str, kind: str, api: str, project: str) -> None:
    found, number = issue_at(url, configured_forges({"GH_TOKEN": "s", "GITLAB_TOKEN": "s", "GITEA_TOKEN": "s"}))
    assert (found.forge.kind, found.forge.api_url, found.path, number) == (kind, api, project, 1)
    public = found.forge.host in ("github.com", "gitlab.com", "codeberg.org")
    assert found.forge.token == ("s" if public else "")


@pytest.mark.parametrize(
    "url",
    [
        "https://github.com/a/b", "https://github.com/../b/issues/1", "https://github.com/a/b/issues/x",
        "https://github.com/a/b/issues/1/../../x", "https:///a/b/issues/1", "https://github.com/a%2f/b/issues/1",
    ],
)  # fmt: skip
def test_what_is_no_address_of_an_issue(url: str) -> None:
    with pytest.raises(M3Error, match="is no address of an issue"):
        issue_at(url, configured_forges({}))


def test_a_token_never_goes_to_a_host_that_it_was_not_made_for() -> None:
    enterprise = configured_forges({"GITHUB_API_URL": "https://git.corp/api/v3", "GH_TOKEN": "s", "GITLAB_TOKEN": "t"})
    assert forge_of("git.corp", enterprise).token == "s"
    assert forge_of("github.com", enterprise) == Forge(kind="github", api_url="https://api.github.com")
    assert forge_of("gitlab.evil.example", enterprise).token == ""
    assert forge_of("gitlab.com", enterprise).token == "t"
    assert "token" not in repr(enterprise)


def test_an_address_of_a_forge_that_is_none_is_one_line() -> None:
    with pytest.raises(M3Error, match="GITHUB_API_URL is no address"):
        configured_forges({"GITHUB_API_URL": "api.corp"})


@pytest.mark.parametrize(
    "remote",
    [
        "git@127.0.0.1:ann/tool.git",
        "https://127.0.0.1/ann/tool",
        "ssh://git@127.0.0.1:22/ann/tool.git",
        "https://u:p@127.0.0.1/ann/tool/",
    ],
)
def test_a_number_is_asked_at_the_forge_of_the_remote(remote: str, forge: ForgeServer, repo: Path) -> None:
    subprocess.run(["git", "remote", "set-url", "origin", remote], cwd=repo, check=True)
    assert load_issue("#8", repo, settings_of(forge)).title == "Sum is one too high"


def test_a_remote_that_is_no_forge_is_told_without_its_password(forge: ForgeServer, repo: Path) -> None:
    subprocess.run(["git", "remote", "set-url", "origin", "ftp://u:hunter2@host/x"], cwd=repo, check=True)
    line, code = the_line("8", repo, settings_of(forge))
    assert "'ftp://host/x' is no forge to ask" in line
    assert code == Exit.USAGE
