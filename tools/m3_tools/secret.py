"""What a secret is: files by their names, variables by their names, texts by their form. Everything asks here.

Not covered: a secret without a form of its own (a plain password in a source file), one that a program encodes before
it prints it, a hard link under another name, and what git's history holds.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

FILES = (
    *(".env", ".env.*", "*.env", ".envrc", ".netrc", "_netrc", ".npmrc", ".pypirc", ".pgpass", ".htpasswd"),
    *(".git-credentials", ".dockercfg", ".vault-token", "kubeconfig", "credentials", "*.tfstate", "*.tfstate.backup"),
    *(f"{name}.{kind}" for name in ("secret", "secrets", "credentials") for kind in ("json", "yml", "yaml", "toml")),
    *("credentials.csv", "secrets.ini", "secrets.tfvars", "service-account*.json", "client_secret*.json"),
)
"""Names, as shell patterns in lower case, of files that usually hold a secret, in any folder."""
KEY_FILES = (
    *("*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.ppk"),
    *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*"),
)
"""Names of keys; one in a folder of tests was made for them, and is none."""
_EXAMPLES = (".env.example", ".env.sample", ".env.template", ".env.dist", ".env.defaults", "example.env", "*.pub")
_OF_TESTS = frozenset({"test", "tests", "testing", "testdata", "fixtures", "spec"})
_OF_OTHERS = frozenset({"site-packages", "node_modules", ".git"})
"""Folders of installed packages, whose certificates everybody has, and git's own."""

_VARIABLE = re.compile(
    r"TOKEN(?!IZ)|SECRET|PASSW|PASSPHRASE|CREDENTIAL|API_?KEY|ACCESS_KEY|PRIVATE_KEY|AUTH(?!OR|_SOCK)", re.IGNORECASE
)
PRIVATE_KEY = re.compile(
    r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z0-9 ]+-----|\Z)", re.DOTALL
)
_FORMS = {
    "GitHub token": r"gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{50,}",
    "GitLab token": r"gl(?:pat|ptt|dt|rt|cbt|ft)-[A-Za-z0-9_\-]{20,}",
    "AWS key": r"(?:AKIA|ASIA)[A-Z0-9]{16}",
    "Google key": r"AIza[A-Za-z0-9_\-]{35}|ya29\.[A-Za-z0-9_\-]{30,}",
    "Slack token": r"xox[abeprs]-[A-Za-z0-9\-]{20,}|xapp-[A-Za-z0-9\-]{30,}",
    "Stripe key": r"[rs]k_live_[A-Za-z0-9]{20,}|whsec_[A-Za-z0-9]{30,}",
    "API key": r"sk-(?=[A-Za-z_\-]*[0-9])[A-Za-z0-9_\-]{32,}",
    "npm token": r"npm_[A-Za-z0-9]{36}",
    "PyPI token": r"pypi-AgE[A-Za-z0-9_\-]{50,}",
    "Hugging Face token": r"hf_[A-Za-z0-9]{34,}",
    "SendGrid key": r"SG\.[A-Za-z0-9_\-]{20,}\.[A-Za-z0-9_\-]{40,}",
    "JSON Web Token": r"eyJ[A-Za-z0-9_\-]{10,}\.eyJ[A-Za-z0-9_\-]{10,}\.[A-Za-z0-9_\-]{10,}",
}
_TOKEN = re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(f'({form})' for form in _FORMS.values())})(?![A-Za-z0-9])")
_BEARER = re.compile(r"(?i)(\bauthorization[\"']?\s*[:=]\s*[\"']?(?:bearer|basic|token)\s+)([A-Za-z0-9._~+/\-]{16,}=*)")
MARK = "[secret left out: "
_MIN_VALUE_CHARS = 12


@dataclasses.dataclass(frozen=True, kw_only=True)
class Secrets:
    """What is kept from the model, from saved sessions and from exports."""

    allowed: tuple[str, ...] = ()
    """Patterns as in a .gitignore of files that are named like a secret and are none."""
    values: tuple[str, ...] = dataclasses.field(default=(), repr=False)
    """Texts that are secrets whatever they look like: the person's own keys."""

    def guards(self, name: str) -> bool:
        """Whether the file of this name, relative to the work tree and with forward slashes, is kept from the model."""
        last = name.rpartition("/")[2].lower()
        if not _suspect().match(last) or _fits(last, _EXAMPLES):
            return False
        folders = name.lower().split("/")[:-1]
        if not _OF_OTHERS.isdisjoint(folders):
            return False
        found = _fits(last, FILES) or _OF_TESTS.isdisjoint(folders)
        return found and not (self.allowed and _spec(self.allowed).match_file(name))

    def find(self, root: Path) -> list[Path]:
        """The guarded files below `root` that git does not track; those lie open in its history as well."""
        found = [name for name in _names(str(root)) if self.guards(name)]
        tracked = _tracked(root, found) if found else frozenset()
        return [root / name for name in found if name not in tracked]

    def redact(self, text: str) -> str:
        """The text with every secret in it replaced by a mark that says what it was."""
        if "PRIVATE KEY" in text:
            text = PRIVATE_KEY.sub(f"{MARK}private key]", text)
        for value in self.values:
            text = text.replace(value, f"{MARK}a key of yours]")
        text = _BEARER.sub(rf"\1{MARK}credentials]", text)
        return _TOKEN.sub(_marked, text)

    def redact_json(self, value: Any) -> Any:
        """JSON values with every text in them redacted; pictures stay as they are."""
        if isinstance(value, str):
            return self.redact(value)
        if isinstance(value, list | tuple):
            return [self.redact_json(each) for each in value]
        if isinstance(value, dict) and value.get("kind") != "image":
            return {key: self.redact_json(each) for key, each in value.items()}
        return value


def is_secret_variable(name: str) -> bool:
    """Whether an environment variable of this name usually holds a secret."""
    return bool(_VARIABLE.search(name))


def is_secret_value(value: str) -> bool:
    """Whether the value of such a variable can be searched for: no path, no word that stands elsewhere too."""
    is_plain = value.startswith(("/", "~", "http")) or not re.fullmatch(r"\S+", value)
    return len(value) >= _MIN_VALUE_CHARS and not is_plain and not value.isalpha()


_BEGUN = re.compile(
    r"(?:-----BEGIN (?:(?!-----END [A-Z0-9 ]+-----).)*|(?i:authorization)[^\n]*|(?<![\w\-])[\w\-][\w\-./+=~]*+)\Z",
    re.DOTALL,
)
_MAX_HELD_CHARS = 8192
_PIECE_CHARS = 1 << 16


class RedactedStream:
    """Passes text on as it comes, redacted. What may be the beginning of a secret waits for its rest."""

    def __init__(self, send: Callable[[str], None], redact: Callable[[str], str]):
        self._send, self._redact, self._held = send, redact, ""

    def add(self, text: str) -> None:
        text = self._held + text
        ready = len(text)
        while begun := _BEGUN.search(text, max(0, len(text) - _MAX_HELD_CHARS), ready):
            ready = begun.start()
        self._held = text[ready:]
        self._pass_on(text[:ready])

    def close(self) -> None:
        """Pass on what waits."""
        self._pass_on(self._held)
        self._held = ""

    def _pass_on(self, text: str) -> None:
        """In pieces no longer than one read of a pipe, whatever waited before it."""
        redacted = self._redact(text)
        for start in range(0, len(redacted), _PIECE_CHARS):
            self._send(redacted[start : start + _PIECE_CHARS])


def _fits(name: str, patterns: tuple[str, ...]) -> bool:
    return _expression(patterns).match(name) is not None


@functools.cache
def _expression(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """One expression for all of them."""
    return re.compile("|".join(fnmatch.translate(pattern) for pattern in patterns))


@functools.cache
def _suspect() -> re.Pattern[str]:
    """All names of secrets and keys: every file of a large tree is judged, so no tuple is looked up for each."""
    return _expression(FILES + KEY_FILES)


@functools.lru_cache(maxsize=8)
def _spec(patterns: tuple[str, ...]) -> GitIgnoreSpec:
    from pathspec import GitIgnoreSpec  # the sandbox works without it

    return GitIgnoreSpec.from_lines(patterns)


def _marked(match: re.Match[str]) -> str:
    return f"{MARK}{list(_FORMS)[(match.lastindex or 1) - 1]}]"


def _names(root: str) -> Iterator[str]:
    """Every file below `root`, relative to it; folders that hold no guarded file are passed over."""
    pending = [""]
    while pending:
        folder = pending.pop()
        try:
            with os.scandir(f"{root}/{folder}") as entries:
                for entry in entries:
                    if not entry.is_dir(follow_symlinks=False):
                        yield folder + entry.name
                    elif entry.name not in _OF_OTHERS:
                        pending.append(f"{folder}{entry.name}/")
        except OSError:  # it may not be read, or is gone
            continue


def _tracked(root: Path, names: list[str]) -> frozenset[str]:
    """Those of the names that git's index holds."""
    command = ["git", "--literal-pathspecs", "-c", "core.fsmonitor=false", "ls-files", "-z", "--cached", "--", *names]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    try:
        done = subprocess.run(
            command, cwd=root, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return frozenset()
    return frozenset(os.fsdecode(name) for name in done.stdout.split(b"\0"))
