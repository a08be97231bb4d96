"""Custom commands: each Markdown file in a repository's `.m3/commands` is a text that `/its-name` sends."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path

from m3agent.errors import M3Error
from m3agent.repository.config import COMMANDS, FOLDER, read_brought
from m3agent.settings import Settings
from m3agent.trust import TrustStore
from m3agent.ui.clean import one_line

ARGUMENTS = "$ARGUMENTS"
"""Stands for what is written behind the command; without it in the text, that follows at the end."""
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CustomCommand:
    """The text that is sent. `help` is its first line."""

    text: str

    @property
    def help(self) -> str:
        return one_line(self.text.strip().partition("\n")[0].lstrip("# "), 60)

    def with_arguments(self, arguments: str) -> str:
        if ARGUMENTS in self.text:
            return self.text.replace(ARGUMENTS, arguments)
        return f"{self.text.rstrip()}\n\n{arguments}" if arguments else self.text


def custom_commands(settings: Settings, repo: Path) -> Mapping[str, CustomCommand]:
    """The commands of a repository by their names, `/` included; none if the person does not trust what it brings."""
    found: dict[str, CustomCommand] = {}
    try:
        brought = read_brought(repo)
        if brought is None or TrustStore(settings.state_dir).state(repo, brought.digest) != "trusted":
            return {}
        for path in sorted((repo / FOLDER / COMMANDS).glob("*.md")):
            if _NAME.fullmatch(path.stem) and (text := path.read_text("utf-8", "replace").strip()):
                found[f"/{path.stem}"] = CustomCommand(text=text)
    except (M3Error, OSError):  # the settings' notes say so already
        return {}
    return found
