"""What a repository brings in `.m3`, and the digest that a person's trust is bound to."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from m3_tools.mcp.server import McpServer, parse_servers
from m3agent.errors import M3Error

FOLDER = ".m3"
CONFIG = "config.toml"
COMMANDS = "commands"
"""Holds the custom commands of a chat, one Markdown file each."""
MAX_BYTES = 16 * 2**20
_NOT_SETTINGS = frozenset({"issues", "fixes"})
"""What m3 itself keeps in the folder."""
_FORBIDDEN = re.compile(r"(?:PATH|HOME|SHELL|ENV|BASH_ENV|IFS|(?:LD|DYLD|GIT|M3|XDG)_.*)\Z")
"""Variables that decide which programs run, also those that m3 starts itself."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Brought:
    """The config file of a repository as it is now, its `text`, which may be empty. The digest also covers `files`."""

    text: str
    digest: str
    files: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RepositoryConfig:
    """What the file says: a model, variables for commands, MCP servers."""

    model: str = ""
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    servers: tuple[McpServer, ...] = ()


def read_brought(root: Path) -> Brought | None:
    """What the repository brings; None if it brings nothing. Nothing of it is used, it may say anything.

    The digest covers everything in `.m3`, and files of the repository that a server's command names.
    Errors: M3Error when it cannot be read.
    """
    config = root / FOLDER / CONFIG
    has_config = os.path.lexists(config)
    if not has_config and not os.path.lexists(root / FOLDER / COMMANDS):
        return None
    try:
        text = _read(config).decode("utf-8", "replace") if has_config else ""
        names = sorted({*_below(root, FOLDER), *_named_by_commands(root, text)} - {f"{FOLDER}/{CONFIG}"})
        digest = hashlib.sha256(text.encode())
        for name in names:
            data = _read(root / name)
            digest.update(f"\0{name}\0{len(data)}\0".encode("utf-8", "surrogateescape") + data)
    except OSError as error:
        raise M3Error(f"{error.filename} cannot be read: {error.strerror}") from error
    return Brought(text=text, digest=digest.hexdigest(), files=tuple(names))


def _read(path: Path) -> bytes:
    found = path.stat()
    if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_BYTES:
        raise M3Error(f"{path} is no file of at most {MAX_BYTES // 2**20} MiB; what the repository sets has no effect")
    return path.read_bytes()


def parse_config(text: str) -> RepositoryConfig:
    """The settings in a text. Raises M3Error for what they may not say."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise M3Error(f"{FOLDER}/{CONFIG} cannot be read: {error}") from error
    if unknown := sorted(values.keys() - {"model", "env", "mcp"}):
        raise M3Error(f"{FOLDER}/{CONFIG}: a repository cannot set {', '.join(unknown)}; only model, env and mcp")
    model, env, servers = values.get("model", ""), values.get("env", {}), values.get("mcp", {})
    if not isinstance(model, str) or not isinstance(servers, dict):
        raise M3Error(f"{FOLDER}/{CONFIG}: model must be text in quotes, mcp a table")
    if not isinstance(env, dict) or not all(isinstance(value, str) for value in env.values()):
        raise M3Error(f"{FOLDER}/{CONFIG}: env must be a table of texts in quotes")
    if refused := sorted(name for name in env if _FORBIDDEN.match(name)):
        raise M3Error(f"{FOLDER}/{CONFIG}: a repository cannot set the variables {', '.join(refused)}")
    try:
        return RepositoryConfig(model=model, env=env, servers=parse_servers(servers, by_person=False))
    except ValueError as error:
        raise M3Error(f"{FOLDER}/{CONFIG}: {error}") from error


def _below(root: Path, folder: str) -> Iterator[str]:
    """Every file below a folder, relative to the root; links to folders are not followed."""
    for here, folders, names in os.walk(root / folder):
        place = Path(here).relative_to(root)
        if place.as_posix() == folder:
            folders[:] = [name for name in folders if name not in _NOT_SETTINGS]
        yield from ((place / name).as_posix() for name in names)


def _named_by_commands(root: Path, text: str) -> Iterator[str]:
    try:
        servers = parse_config(text).servers
    except M3Error:
        return
    top = root.resolve()
    for word in (word for server in servers for word in server.command):
        path = (top / word).resolve()
        if path.is_relative_to(top) and path.is_file():
            yield path.relative_to(top).as_posix()
