"""Issues at the forge of the remote: GitHub and GitHub Enterprise over their REST API."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from m3agent.errors import M3Error
from m3agent.exits import Exit
from m3agent.settings import Settings

TIMEOUT_S = 20.0
_REMOTE = re.compile(
    r"(?:(?:https?|ssh|git)://(?:[^@/]+@)?|[^@/:]+@)(?P<host>[^/:]+)(?::\d+)?[/:](?P<path>[^/].*?)(?:\.git)?/?"
)
_ISSUE = re.compile(r"/(?P<owner>[^/]+)/(?P<name>[^/]+)/(?:issues|pull)/(?P<number>\d+)/?")


def fetch_issue(ref: str, repo: Path, settings: Settings) -> tuple[str, str, tuple[str, ...]]:
    """Title, body and comments of the issue with this address, or with this number at the remote of `repo`.

    The token goes to the configured forge alone, never to another host that an address names.
    Errors: M3Error with one line; exit code 75 when the forge cannot be reached.
    """
    host, project, number = _from_url(ref) if "://" in ref else (*remote_project(repo, ref), int(ref))
    base, token = _api(host, settings)
    headers = {"Accept": "application/vnd.github+json", "User-Agent": "m3-agent"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    address = f"{base}/repos/{project}/issues/{number}"
    with httpx.Client(headers=headers, timeout=TIMEOUT_S, follow_redirects=True) as client:
        issue = _get(client, address, f"issue {number} of {project}", bool(token))
        comments: list[Any] = []
        if issue.get("comments"):
            comments = _get(client, f"{address}/comments?per_page=50", f"comments of issue {number}", bool(token))
    texts = tuple(f"{(c.get('user') or {}).get('login', 'someone')}: {c.get('body') or ''}" for c in comments)
    return str(issue.get("title") or ""), str(issue.get("body") or ""), texts


def remote_project(repo: Path, ref: str) -> tuple[str, str]:
    """Host and owner/name of the repository's remote (origin, else the first one)."""
    listed = _git(repo, "remote")
    if not listed:
        raise M3Error(
            f"there is no issue {ref}: neither .m3/issues/{ref}.md nor issues/{ref}.md exists in {repo}, "
            "and the repository has no remote to ask"
        )
    names = listed.split()
    url = _git(repo, "remote", "get-url", "origin" if "origin" in names else names[0])
    match = _REMOTE.fullmatch(url)
    if match is None:
        raise M3Error(f"there is no issue {ref} in the repository, and its remote {url!r} is no forge to ask")
    return match["host"], match["path"]


def _from_url(url: str) -> tuple[str, str, int]:
    parts = urlsplit(url)
    match = _ISSUE.fullmatch(parts.path)
    if match is None or not parts.hostname:
        raise M3Error(f"{url} is no address of an issue; expected https://HOST/OWNER/NAME/issues/NUMBER")
    return parts.hostname, f"{match['owner']}/{match['name']}", int(match["number"])


def _api(host: str, settings: Settings) -> tuple[str, str]:
    """Base address of the REST API for a host, and the token if it may go there."""
    configured = urlsplit(settings.forge_url)
    if host in ("github.com", "www.github.com", "ssh.github.com"):
        own = configured.hostname == "api.github.com"
        return (settings.forge_url if own else "https://api.github.com"), settings.forge_token if own else ""
    if configured.hostname == host or configured.hostname == f"api.{host}":
        return settings.forge_url, settings.forge_token
    return f"https://{host}/api/v3", ""


def _get(client: httpx.Client, address: str, what: str, has_token: bool) -> Any:
    host = urlsplit(address).netloc
    try:
        response = client.get(address)
    except httpx.HTTPError as error:
        raise M3Error(
            f"{host} cannot be reached ({type(error).__name__}); save the issue as issues/N.md to work offline",
            exit_code=Exit.MODEL_UNAVAILABLE,
        ) from error
    status = response.status_code
    hint = "" if has_token else "; for a private repository set GH_TOKEN"
    if status in (404, 410):
        raise M3Error(f"there is no {what} at {host}{hint}")
    if status == 401:
        raise M3Error(f"{host} does not accept the token (401); renew GH_TOKEN")
    if status in (403, 429):
        limited = response.headers.get("x-ratelimit-remaining") == "0" or status == 429
        reason = "its rate limit is reached; wait, or set GH_TOKEN" if limited else f"access is refused{hint}"
        raise M3Error(f"{host}: {reason} ({status})")
    if status != 200:
        raise M3Error(f"{host} answered {status} for {what}; try again later", exit_code=Exit.MODEL_UNAVAILABLE)
    try:
        return response.json()
    except ValueError as error:
        raise M3Error(f"{host} did not answer with JSON for {what}; is it a GitHub API?") from error


def _git(repo: Path, *arguments: str) -> str:
    try:
        result = subprocess.run(
            ["git", "-C", str(repo), *arguments], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout.strip() if result.returncode == 0 else ""
