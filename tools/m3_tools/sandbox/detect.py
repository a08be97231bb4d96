"""Which backends work here. None is believed: each is tried by a child that really attempts to cross the boundary."""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from m3_tools.sandbox.backends import BACKENDS, Backend
from m3_tools.sandbox.placeholders import placeholders
from m3_tools.sandbox.policy import Policy, SandboxError

_TIMEOUT_S = 20
_SHORT = "/tmp" if os.access("/tmp", os.W_OK) else None
"""Paths of sockets are short; those of temporary folders may not be."""
_NOWHERE = ("192.0.2.1", 443)
"""An address that is reserved for documentation: no machine has it."""
_CHILD = r"""
import json, os, socket, sys
places = json.loads(sys.argv[1])
def attempt(name, action):
    try:
        action()
    except Exception as error:
        print(f"{name}\t0\t{getattr(error, 'strerror', None) or error}")
    else:
        print(f"{name}\t1\tit worked")
def write(path):
    with open(path, "w") as file: file.write("x")
def connect(family, kind, address):
    with socket.socket(family, kind) as client:
        client.settimeout(2)
        client.connect(address)
        client.sendall(b"x")
unix, inet = socket.AF_UNIX, socket.AF_INET
attempt("write inside", lambda: write(places["inside"]))
attempt("write outside", lambda: write(places["outside"]))
attempt("write protected", lambda: write(places["protected"]))
attempt("TCP to this machine", lambda: connect(inet, socket.SOCK_STREAM, tuple(places["tcp"])))
attempt("TCP to the internet", lambda: connect(inet, socket.SOCK_STREAM, tuple(places["nowhere"])))
attempt("UDP to the internet", lambda: connect(inet, socket.SOCK_DGRAM, tuple(places["nowhere"])))
attempt("name server", lambda: socket.getaddrinfo("example.com", 443))
attempt("unix socket", lambda: connect(unix, socket.SOCK_STREAM, places["unix"]))
if sys.platform == "linux":
    attempt("abstract unix socket", lambda: connect(unix, socket.SOCK_STREAM, "\0" + places["abstract"]))
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
    """One backend as it was tried. `attempts` maps each attempt to what became of it, in words."""

    backend: Backend
    works: bool
    reason: str
    attempts: dict[str, str] = dataclasses.field(default_factory=dict)

    def line(self) -> str:
        """What works and why not, on one line."""
        return f"{self.backend.name}: {'works' if self.works else 'does not work'}, {self.reason}"

    def connections(self) -> list[str]:
        """The names of the attempts that tried to connect to something."""
        return [name for name in self.attempts if not name.startswith("write")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Detection:
    """All trials; `backend` is the first that works, or None."""

    trials: tuple[Trial, ...]

    @property
    def backend(self) -> Backend | None:
        return next((trial.backend for trial in self.trials if trial.works), None)

    def reason(self) -> str:
        """Why there is no backend, for a person."""
        return "; ".join(f"{trial.backend.name}: {trial.reason}" for trial in self.trials)


def detect(*, all_backends: bool = False) -> Detection:
    """Try the backends in order until one works, or `all_backends`."""
    trials = []
    for backend in BACKENDS:
        trials.append(try_backend(backend))
        if trials[-1].works and not all_backends:
            break
    return Detection(trials=tuple(trials))


def try_backend(backend: Backend) -> Trial:
    """Run a child inside that tries to write where it must not and to connect to sockets that listen for it."""
    with tempfile.TemporaryDirectory(prefix="m3-sandbox-", dir=_SHORT) as name:
        root = Path(name).resolve()
        work, outside, kept = root / "work", root / "outside", root / "work" / "kept"
        for folder in (work, outside, kept):
            folder.mkdir()
        readable = (root, *(Path(prefix).resolve() for prefix in (sys.prefix, sys.base_prefix)))
        policy = Policy(writable=(work,), protected=(kept,), readable=readable)
        with _listeners(root) as listening:
            places = {
                **listening,
                "inside": str(work / "x"),
                "outside": str(outside / "x"),
                "protected": str(kept / "x"),
                "nowhere": _NOWHERE,
            }
            code = [sys.executable, "-I", "-S", "-c", _CHILD, json.dumps(places)]
            try:
                with placeholders(policy):
                    argv = backend.command(code, policy)
                    done = subprocess.run(
                        argv, cwd=work, capture_output=True, text=True, timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL
                    )
            except (SandboxError, OSError, subprocess.SubprocessError) as error:
                return Trial(backend=backend, works=False, reason=str(error))
        return _judge(backend, done)


def _judge(backend: Backend, done: subprocess.CompletedProcess[str]) -> Trial:
    rows = [line.split("\t") for line in done.stdout.splitlines() if line.count("\t") == 2]
    worked = {name: flag == "1" for name, flag, _ in rows}
    attempts = {name: text for name, _, text in rows}
    if done.returncode != 0 or not worked:
        lines = done.stderr.strip().splitlines()
        reason = lines[-1] if lines else f"the child ended with {done.returncode}"
        return Trial(backend=backend, works=False, reason=reason, attempts=attempts)
    if not worked.pop("write inside"):
        return Trial(backend=backend, works=False, reason=f"writing inside: {attempts['write inside']}")
    leaks = [name for name, did in worked.items() if did]
    if leaks:
        return Trial(backend=backend, works=False, reason=f"it lets through: {', '.join(leaks)}", attempts=attempts)
    reason = f"tried: {len(worked)} ways out, none leads out"
    return Trial(backend=backend, works=True, reason=reason, attempts=attempts)


class _listeners:
    """Sockets of this process that a child outside of the boundary could connect to; their addresses as JSON."""

    def __init__(self, folder: Path):
        self._path = str(folder / "outside" / "socket")
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> dict[str, object]:
        name = f"m3-{secrets.token_hex(16)}"
        tcp = self._listen(socket.AF_INET, ("127.0.0.1", 0))
        self._listen(socket.AF_UNIX, self._path)
        if sys.platform == "linux":
            self._listen(socket.AF_UNIX, "\0" + name)
        return {"tcp": tcp.getsockname(), "unix": self._path, "abstract": name}

    def _listen(self, family: socket.AddressFamily, address: object) -> socket.socket:
        listener = socket.socket(family, socket.SOCK_STREAM)
        self._sockets.append(listener)
        listener.bind(address)  # type: ignore[arg-type]
        listener.listen()
        return listener

    def __exit__(self, *error: object) -> None:
        for listener in self._sockets:
            listener.close()
