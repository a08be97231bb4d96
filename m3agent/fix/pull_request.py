"""A proven repair as a draft pull request: what is missing is told before the work begins, nothing is ever forced."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from m3_tools.secret import Secrets
from m3agent.errors import BrokenEnvironment, M3Error
from m3agent.fix.issue import Issue
from m3agent.forge.access import TOKEN_NAMES, Forge, with_token
from m3agent.forge.place import Project, issue_at, project_of_remote, remote_name, without_credentials
from m3agent.forge.pulls import default_branch, open_draft
from m3agent.git import GitFailed, git

_FOR_PUSHING = ("GIT_SSH", "GIT_SSH_COMMAND", "GIT_ASKPASS", "GIT_SSL_CAINFO")
"""The person's own ways to a remote; other variables of git could lead to another repository."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """Where a pull request goes: the project, its remote in the person's repository, and the branch that takes it."""

    project: Project
    remote: str
    base: str


def find_target(repo: Path, forges: tuple[Forge, ...]) -> Target:
    """Where a pull request from the person's HEAD would go.

    Errors: M3Error if there is no forge or no token, or if HEAD holds commits that the remote does not have: a pull
    request would publish them.
    """
    try:
        found = project_of_remote(repo, forges)
    except M3Error as error:
        raise M3Error(f"--pr is not possible: {error}") from error
    project = dataclasses.replace(found, forge=with_token(found.forge))
    if not project.forge.token:
        or_gh = " or run `gh auth login`" if project.forge.kind == "github" else ""
        raise M3Error(
            f"--pr needs a token for {project.forge.host}: set {TOKEN_NAMES[project.forge.kind]}{or_gh}, "
            "or use --commit and push the branch yourself"
        )
    base, remote = default_branch(project), remote_name(repo)
    current = _output(repo, "symbolic-ref", "--short", "--quiet", "HEAD")
    pushed = _output(
        repo, "for-each-ref", "--format=%(refname:lstrip=3)", "--contains=HEAD", f"refs/remotes/{remote}"
    ).split("\n")
    for branch in (base, current):
        if branch and branch in pushed:
            return Target(project=project, remote=remote, base=branch)
    raise M3Error(
        f"--pr is not possible: HEAD holds commits that {remote} does not have, and a pull request would publish them; "
        "push them first, or use --commit"
    )


def branches_of(repo: Path, target: Target) -> frozenset[str]:
    """The branches that the remote has now. Errors: BrokenEnvironment if it does not answer."""
    lines = _remotely(repo, target, "ls-remote", "--heads", _address(repo, target)).splitlines()
    return frozenset(line.partition("\trefs/heads/")[2] for line in lines)


def publish(
    repo: Path, target: Target, issue: Issue, *, branch: str, body_file: Path, diff: str, secrets: Secrets
) -> str:
    """Push the new branch and open a draft; returns its address. The body is what stands in `body_file`.

    Errors: M3Error if the change holds a secret, if the remote refuses the branch, or if the forge refuses the draft;
    the text says what was done already.
    """
    added = "\n".join(line[1:] for line in diff.splitlines() if line.startswith("+"))
    if secrets.redact(added) != added:
        raise M3Error(f"nothing was pushed: the change holds what looks like a secret; look at the branch {branch}")
    _remotely(
        repo, target, "push", "--quiet", "--no-follow-tags", "--no-recurse-submodules", target.remote,
        f"refs/heads/{branch}:refs/heads/{branch}",
    )  # fmt: skip
    body = body_file.read_text(encoding="utf-8")
    if closes := _closes(issue, target.project):
        body = f"{closes}\n\n{body}"
    title = secrets.redact(f"fix: {issue.title}")
    try:
        return open_draft(target.project, head=branch, base=target.base, title=title, body=secrets.redact(body))
    except M3Error as error:
        raise M3Error(
            f"the branch {branch} is pushed, but no pull request was opened: {error}; open it by hand, its text is in "
            f"{body_file}",
            exit_code=error.exit_code,
        ) from error


def _closes(issue: Issue, project: Project) -> str:
    """The line by which the forge closes the issue when the change is taken; empty if it is not that project's."""
    try:
        of, number = issue_at(issue.source, (project.forge,))
    except M3Error:
        return ""
    same = of.path == project.path and of.forge.host == project.forge.host
    return f"Closes #{number}" if same else ""


def _address(repo: Path, target: Target) -> str:
    """Where pushing goes, which may be another place than where fetching comes from."""
    return _output(repo, "remote", "get-url", "--push", target.remote)


def _output(repo: Path, *arguments: str) -> str:
    try:
        return git(repo, *arguments)
    except GitFailed:
        return ""


def _remotely(repo: Path, target: Target, *arguments: str) -> str:
    """A git command that talks to the remote, by the person's own keys and helpers; it never asks for a password."""
    environment = {name: os.environ[name] for name in _FOR_PUSHING if name in os.environ}
    if not {"GIT_SSH", "GIT_SSH_COMMAND"} & environment.keys() and not _output(repo, "config", "core.sshCommand"):
        environment["GIT_SSH_COMMAND"] = "ssh -o BatchMode=yes"
    try:
        return git(repo, *arguments, environment=environment)
    except GitFailed as error:
        what = "pushed" if arguments[0] == "push" else "asked"
        raise BrokenEnvironment(f"{target.remote} could not be {what}: {without_credentials(str(error))}") from error
