"""Which MCP servers there are: values, read from the `[mcp.NAME]` tables of a config file."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,30}")
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "command": list,
    "url": str,
    "env": dict,
    "headers": dict,
    "network": bool,
    "sandbox": bool,
    "timeout_s": (int, float),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class McpServer:
    """A server to be started (`command`) or reached (`url`); exactly one of the two is given."""

    name: str
    command: tuple[str, ...] = ()
    url: str = ""
    env: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    """Variables of a started server, besides those of every command."""
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    """Sent with every request to `url`."""
    network: bool = False
    """Whether a started server may use the network."""
    sandbox: bool = True
    """False gives a started server all rights of the person."""
    timeout_s: float = 60.0
    """Deadline of one call."""

    def __post_init__(self) -> None:
        if bool(self.command) == bool(self.url):
            raise ValueError("give either command or url")
        if self.url and not self.url.startswith(("http://", "https://")):
            raise ValueError(f"{self.url} is no address of the form http:// or https://")
        if not 0 < self.timeout_s <= 3600:
            raise ValueError(f"timeout_s must lie between 0 and 3600, not {self.timeout_s}")


def parse_servers(tables: Mapping[str, Any], *, by_person: bool) -> tuple[McpServer, ...]:
    """The servers of a config file. Only a person's own file may do without the sandbox.

    Errors: ValueError that names the server and what is wrong with it.
    """
    servers = []
    for name, table in tables.items():
        try:
            servers.append(_parse(name, table, by_person=by_person))
        except ValueError as error:
            raise ValueError(f"mcp.{name}: {error}") from error
    return tuple(servers)


def _parse(name: str, table: Any, *, by_person: bool) -> McpServer:
    if not NAME.fullmatch(name):
        raise ValueError("a name has letters, digits, - and _, at most 31 of them")
    if not isinstance(table, Mapping):
        raise ValueError(f"write a table, [mcp.{name}]")
    for key, value in table.items():
        expected = _TYPES.get(key)
        if expected is None:
            raise ValueError(f"there is no setting {key!r}; the settings are {', '.join(_TYPES)}")
        if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
            raise ValueError(f"{key} is of the wrong kind")
    texts = [*table.get("command", ()), *table.get("env", {}).values(), *table.get("headers", {}).values()]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("command, env and headers hold texts in quotes")
    if not by_person and not table.get("sandbox", True):
        raise ValueError("only your own config file can do without the sandbox")
    return McpServer(name=name, **{**table, "command": tuple(table.get("command", ()))})
