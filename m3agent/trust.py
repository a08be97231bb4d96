"""Which repositories a person trusts, each with the digest of what it brought when they said so."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from m3_tools.atomic import write_atomic
from m3agent.errors import M3Error

State = Literal["trusted", "refused", "changed", "unknown"]


class TrustStore:
    """The answers of a person, in one file of the state folder, which must lie outside of what they are about."""

    def __init__(self, state_dir: Path):
        self._path = state_dir / "trust.json"

    def state(self, repo: Path, digest: str) -> State:
        """What the person said of what the repository brings now; `changed` if they trusted something else."""
        found = self._read().get(self._key(repo))
        if not isinstance(found, dict):
            return "unknown"
        if found.get("digest") == digest:
            return "trusted" if found.get("trusted") is True else "refused"
        return "changed" if found.get("trusted") is True else "unknown"

    def record(self, repo: Path, digest: str, *, trusted: bool) -> None:
        """Keep the answer. Errors: M3Error when it cannot be kept."""
        self._write({**self._read(), self._key(repo): {"digest": digest, "trusted": trusted}})

    def forget(self, repo: Path) -> bool:
        """Withdraw the answer; False if there was none."""
        known = dict(self._read())
        if known.pop(self._key(repo), None) is None:
            return False
        self._write(known)
        return True

    def _key(self, repo: Path) -> str:
        real = repo.resolve()
        if self._path.resolve().is_relative_to(real):
            raise M3Error(f"{self._path} lies in the repository, which could then trust itself. Set M3_HOME.")
        return str(real)

    def _read(self) -> Mapping[str, Any]:
        try:
            value = json.loads(self._path.read_text("utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise M3Error(
                f"{self._path} cannot be read: {error}. Remove it; what was trusted is asked again."
            ) from error
        return value if isinstance(value, dict) else {}

    def _write(self, value: Mapping[str, Any]) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_atomic(self._path, (json.dumps(value, indent=1, sort_keys=True) + "\n").encode())
        except OSError as error:
            raise M3Error(f"{self._path} cannot be written: {error.strerror}; nothing is trusted") from error
