"""What a command may touch: a value, made once for a work tree and given to whichever backend this machine offers."""

from __future__ import annotations

import dataclasses
import fnmatch
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from m3_tools.secret import Secrets, is_secret_variable

ENVIRONMENT = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TERM", "COLUMNS", "LINES", "CI"),
    *("NO_COLOR", "PAGER", "*_PAGER", "MANPAGER", "EDITOR", "VISUAL", "GIT_EDITOR", "GIT_SEQUENCE_EDITOR"),
    *("GIT_TERMINAL_PROMPT", "GIT_SSH_COMMAND", "GIT_OPTIONAL_LOCKS", "GIT_AUTHOR_*", "GIT_COMMITTER_*"),
    *("SSH_ASKPASS_REQUIRE", "DEBIAN_FRONTEND", "SOURCE_DATE_EPOCH", "XDG_CONFIG_HOME", "XDG_DATA_HOME"),
    *("XDG_CACHE_HOME", "XDG_DATA_DIRS", "PYTHON*", "PYTEST_*", "PIP_NO_INPUT", "VIRTUAL_ENV", "CONDA_*", "PYENV_*"),
    *("UV_*", "TOX_*", "NOX_*", "COVERAGE_*", "HYPOTHESIS_*", "DJANGO_SETTINGS_MODULE", "OMP_*", "MKL_*", "TORCH_*"),
    *("CUDA_*", "TRITON_*", "HF_HOME", "HF_HUB_OFFLINE", "NODE_*", "NVM_*", "GO*", "CARGO_*", "RUST*", "JAVA_*"),
    *("MAVEN_*", "GRADLE_*", "RUBY*", "GEM_*", "BUNDLE_*", "PERL5LIB", "CC", "CXX", "*FLAGS", "CMAKE_*"),
    *("PKG_CONFIG*", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH", "MANPATH", "M3_TEST_*", "M3_OUTPUT"),
)
"""Names, as shell patterns, of the variables that builds and tests need. Every other one stays outside."""
NETWORK_ENVIRONMENT = (
    "*_PROXY",
    "*_proxy",
    "SSL_CERT_*",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "PIP_*",
    "NPM_CONFIG_*",
)
"""What downloads need besides, where the network is allowed."""

COVERED = (Path("/tmp"), Path("/var/tmp"), Path("/run"))
"""Folders that other programs share; inside they are private. `/dev` and `/proc` are private, too."""

GIT_PROTECTED = ("hooks", "config", "config.worktree", "commondir", "modules", "worktrees")
"""What makes git run a program or look elsewhere, below a git directory."""
AGENT_CONFIGURATION = (".m3", ".claude", ".codex", ".cursor", ".gemini", ".vscode", ".mcp.json")
"""What makes an agent or an editor run a program, at the top of a work tree."""
SECRETS = (
    *(".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".password-store", ".netrc", ".git-credentials"),
    *(".npmrc", ".pypirc", ".config/gcloud", ".config/gh", ".config/m3", ".config/git/credentials"),
    *(".config/google-chrome", ".config/chromium", ".mozilla", ".local/share/keyrings", ".bash_history"),
    *(".zsh_history", ".python_history", ".vault-token", ".terraform.d", ".cargo/credentials.toml"),
)
"""Credentials and histories below the home folder; inside they are empty."""


class SandboxError(Exception):
    """No sandbox works here, or the policy cannot be enforced; the text says why and what to do."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """What one command may use."""

    memory_bytes: int = 16 * 2**30
    """Private writable memory of each process."""
    num_processes: int = 4096
    """Processes and threads of the command together. The kernel does not count root's."""
    file_bytes: int = 8 * 2**30
    """Size of one written file."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Policy:
    """Everything may be read but what is hidden; nothing may be written but what is named. All paths are absolute.

    `protected` paths stay as they are although they lie in a writable root, also those that do not exist. `readable`
    names folders that stay visible below /tmp, /var/tmp and /run, which are private otherwise. `scratch` is what the
    command finds at /tmp, so that it lasts from one command to the next; None is an empty one for each command. Below
    the folders in `guarded` the files that `secrets` guards are hidden, too.
    """

    writable: tuple[Path, ...]
    protected: tuple[Path, ...] = ()
    hidden: tuple[Path, ...] = ()
    guarded: tuple[Path, ...] = ()
    readable: tuple[Path, ...] = ()
    scratch: Path | None = None
    network: bool = False
    environment: tuple[str, ...] = ENVIRONMENT
    limits: Limits = Limits()
    secrets: Secrets = Secrets()

    def __post_init__(self) -> None:
        for path in (*self.writable, *self.protected, *self.hidden, *self.guarded, *self.readable):
            if not path.is_absolute():
                raise ValueError(f"{path} is not absolute")

    def with_writable(self, *paths: Path) -> Policy:
        """The same policy with more writable roots."""
        return dataclasses.replace(self, writable=(*self.writable, *paths))

    def with_secrets_hidden(self) -> Policy:
        """The same policy, in which what is guarded now is hidden."""
        found = [path for folder in self.guarded for path in self.secrets.find(folder)]
        return dataclasses.replace(self, hidden=(*self.hidden, *found))

    def allowed_environment(self, given: Mapping[str, str]) -> dict[str, str]:
        """The variables that go inside: allowed by name, and not named like a secret."""
        return {name: value for name, value in given.items() if self._passes(name)} | {"TMPDIR": "/tmp"}

    def _passes(self, name: str) -> bool:
        allowed = any(fnmatch.fnmatchcase(name, pattern) for pattern in self.environment)
        return allowed and not is_secret_variable(name)


def work_tree_policy(
    root: Path,
    *,
    home: Path | None = None,
    readable: Sequence[Path] = (),
    hidden: Sequence[Path] = (),
    scratch: Path | None = None,
    network: bool = False,
    secrets: Secrets = Secrets(),
) -> Policy:
    """The policy for commands in the work tree `root`: its files may change, git's and agents' configuration may not.

    In a linked work tree git can be read but not written: its directory lies outside.
    """
    root = Path(os.path.realpath(root))
    git = root / ".git"
    protected = [git / name for name in GIT_PROTECTED] if git.is_dir() and not git.is_symlink() else [git]
    home = Path(os.path.realpath(home or Path.home()))
    return Policy(
        writable=(root,),
        protected=(*protected, *(root / name for name in AGENT_CONFIGURATION)),
        hidden=(*(home / name for name in SECRETS), *hidden),
        guarded=(root,),
        secrets=secrets,
        readable=tuple(Path(os.path.realpath(path)) for path in readable),
        scratch=scratch,
        network=network,
        environment=(*ENVIRONMENT, *NETWORK_ENVIRONMENT) if network else ENVIRONMENT,
    )
