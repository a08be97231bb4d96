"""Which forges are known: the kind, where the REST API answers, and the token that may go there."""

from __future__ import annotations

import dataclasses
import re
import subprocess
from collections.abc import Mapping
from typing import Literal
from urllib.parse import urlsplit

from m3agent.errors import M3Error

Kind = Literal["github", "gitlab", "gitea"]
API_PATHS: dict[Kind, str] = {"github": "/api/v3", "gitlab": "/api/v4", "gitea": "/api/v1"}
PUBLIC: dict[Kind, str] = {
    "github": "https://api.github.com",
    "gitlab": "https://gitlab.com/api/v4",
    "gitea": "https://codeberg.org/api/v1",
}
TOKEN_NAMES: dict[Kind, str] = {"github": "GH_TOKEN", "gitlab": "GITLAB_TOKEN", "gitea": "GITEA_TOKEN"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Forge:
    """One forge. `api_url` is the base of its REST API; the token is sent to that host alone."""

    kind: Kind
    api_url: str
    token: str = dataclasses.field(default="", repr=False)

    @property
    def host(self) -> str:
        """The host of its web pages and remotes."""
        return (urlsplit(self.api_url).hostname or "").removeprefix("api.")


def configured_forges(env: Mapping[str, str]) -> tuple[Forge, ...]:
    """The forges that the environment names, with their tokens, in the variables that their own programs read.

    Errors: M3Error for an address that is none.
    """
    github = env.get("GITHUB_API_URL") or PUBLIC["github"]
    gitlab = env.get("GITLAB_HOST", "")
    gitea = env.get("GITEA_SERVER_URL", "")
    forges = (
        Forge(kind="github", api_url=github.rstrip("/"), token=env.get("GH_TOKEN") or env.get("GITHUB_TOKEN") or ""),
        Forge(kind="gitlab", api_url=_api(gitlab, "gitlab"), token=env.get("GITLAB_TOKEN", "")),
        Forge(
            kind="gitea",
            api_url=_api(gitea, "gitea"),
            token=env.get("GITEA_TOKEN") or env.get("GITEA_SERVER_TOKEN") or "",
        ),
    )
    for forge, name in zip(forges, ("GITHUB_API_URL", "GITLAB_HOST", "GITEA_SERVER_URL"), strict=True):
        if urlsplit(forge.api_url).scheme not in ("http", "https") or not forge.host:
            raise M3Error(f"{name} is no address: {env[name]!r}; expected for instance https://forge.example")
    return forges


def forge_of(host: str, forges: tuple[Forge, ...], *, kind: Kind | None = None, web: str = "") -> Forge:
    """The forge that answers for a host: a configured or a public one, else one of the kind that the host's name says.

    `kind` is what is known of it already, `web` the scheme, host and port of its pages. A host that nobody configured
    gets no token.
    """
    host = host.removeprefix("www.").removeprefix("ssh.").removeprefix("altssh.")
    public = tuple(Forge(kind=each, api_url=url) for each, url in PUBLIC.items())
    for forge in (*forges, *public):
        if forge.host == host and kind in (None, forge.kind):
            return forge
    guess = kind or _kind_of_name(host)
    return Forge(kind=guess, api_url=f"{web or f'https://{host}'}{API_PATHS[guess]}")


def with_token(forge: Forge) -> Forge:
    """The forge with a token: its own, else for GitHub the one that `gh` keeps for exactly this host."""
    if forge.token or forge.kind != "github":
        return forge
    try:
        done = subprocess.run(
            ["gh", "auth", "token", "--hostname", forge.host],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return forge
    token = done.stdout.strip()
    return dataclasses.replace(forge, token=token) if done.returncode == 0 and token.isprintable() else forge


def _api(address: str, kind: Kind) -> str:
    """The API's base from a host or an address, with or without the path of the API."""
    if not address:
        return PUBLIC[kind]
    url = (address if "://" in address else f"https://{address}").rstrip("/")
    return url if url.endswith(API_PATHS[kind]) else f"{url}{API_PATHS[kind]}"


def _kind_of_name(host: str) -> Kind:
    words = re.split(r"[.-]", host)
    if "gitlab" in words:
        return "gitlab"
    return "gitea" if {"gitea", "forgejo", "codeberg"} & set(words) else "github"
