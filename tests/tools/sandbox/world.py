"""What lies around a sandbox in the tests: a person's files, a work tree, sockets, a terminal, and a process."""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import shutil
import socket
import stat
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from m3_tools.sandbox import Policy, work_tree_policy

SECRET = "S3CRET"


class World:
    """Everything outside that a command could reach; `seen` tells what changed since the beginning."""

    def __init__(self, base: Path, owner: int):
        self.base, self.owner = base, owner
        self.label = f"m3-{uuid.uuid4().hex}"
        self.seconds = 10**6 + uuid.uuid4().int % 10**6
        self.home, self.outside, self.work = base / "home", base / "outside", base / "work"
        self._sockets: dict[str, socket.socket] = {}
        self._closing = contextlib.ExitStack()

    def __enter__(self) -> World:
        self._make_files()
        tcp = self._listen("TCP", socket.AF_INET, ("0.0.0.0", 0))
        port = tcp.getsockname()[1]
        udp = self._socket("UDP", socket.AF_INET, socket.SOCK_DGRAM)
        udp.bind(("127.0.0.1", port))
        self._listen("unix socket", socket.AF_UNIX, str(self.outside / "listening"))
        self._listen("unix socket in the work tree", socket.AF_UNIX, str(self.work / "socket"))
        self._listen("abstract unix socket", socket.AF_UNIX, "\0" + self.label)
        self._terminal, slave = os.openpty()
        self._closing.callback(os.close, self._terminal)
        self._closing.callback(os.close, slave)
        victim = subprocess.Popen(["sleep", "600"], env={"PATH": os.environ["PATH"], "WORD": SECRET})
        self._closing.callback(victim.wait)
        self._closing.callback(victim.kill)
        self._victim = victim
        for path in (self.outside, self.home, self.work, *self.base.rglob("*")):
            os.chown(path, self.owner, self.owner, follow_symlinks=False)
        self._make_suid()
        os.chown(os.ttyname(slave), self.owner, -1)
        self._leaked = os.open(self.outside / "kept", os.O_RDWR)
        os.set_inheritable(self._leaked, True)
        self._closing.callback(os.close, self._leaked)
        self.environment = {
            "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin",
            "HOME": str(self.home),
            "SERVICE_TOKEN": SECRET,
            "UNKNOWN": SECRET,
            "OUT": str(self.outside),
            "PY": sys.executable,
            "VICTIM": str(victim.pid),
            "PORT": str(port),
            "SOCK": str(self.outside / "listening"),
            "NAME": self.label,
            "TTY": os.ttyname(slave),
            "LABEL": self.label,
            "SECONDS_APART": str(self.seconds),
        }
        self._before = self._state()
        return self

    def __exit__(self, *error: object) -> None:
        self._closing.close()
        for folder in (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm")):
            for path in folder.glob(f"{self.label}*"):
                path.unlink()

    def policy(self) -> Policy:
        """The ordinary policy, which shows the base although it lies in /tmp; the scripts get their variables."""
        policy = work_tree_policy(
            self.work, home=self.home, readable=(self.base, Path(sys.prefix), Path(sys.base_prefix))
        )
        names = ("OUT", "PY", "VICTIM", "PORT", "SOCK", "NAME", "TTY", "LABEL", "SECONDS_APART")
        return Policy(
            writable=policy.writable,
            protected=policy.protected,
            hidden=policy.hidden,
            readable=policy.readable,
            environment=(*policy.environment, *names),
        )

    def seen(self) -> set[str]:
        """What a command did to the world, in words; empty if nothing."""
        after = self._state()
        changed = {f"{name} changed" for name in self._before | after if self._before.get(name) != after.get(name)}
        ready = select.select([*self._sockets.values(), self._terminal], [], [], 0)[0]
        reached = {f"{name} was reached" for name, each in self._sockets.items() if each in ready}
        return changed | reached | ({"the terminal was written to"} if self._terminal in ready else set())

    def _make_files(self) -> None:
        for folder in (self.outside, self.home / ".ssh", self.home / "bin", self.work):
            folder.mkdir(parents=True)
        (self.outside / "kept").write_text("kept\n")
        (self.home / ".bashrc").write_text("true\n")
        (self.home / ".ssh" / "id").write_text(SECRET)
        Path(f"/tmp/{self.label}-others").write_text(SECRET)
        subprocess.run(["git", "init", "-q", str(self.work)], check=True, env={"PATH": os.environ["PATH"]})

    def _make_suid(self) -> None:
        """A program that shows another effective user, where the tests may make one."""
        if os.geteuid() == 0:
            target = self.outside / "suid"
            shutil.copy(shutil.which("id") or "/usr/bin/id", target)
            os.chown(target, 0 if self.owner else 1, 0)
            target.chmod(0o4755)

    def _socket(self, name: str, family: int, kind: int) -> socket.socket:
        made = self._closing.enter_context(socket.socket(family, kind))
        self._sockets[name] = made
        return made

    def _listen(self, name: str, family: int, address: str | tuple[str, int]) -> socket.socket:
        made = self._socket(name, family, socket.SOCK_STREAM)
        made.bind(address)
        made.listen()
        return made

    def _state(self) -> Mapping[str, object]:
        kept = [self.outside, self.home, *(self.work / name for name in (".git/hooks", ".git/config"))]
        state: dict[str, object] = {}
        for top in kept:
            for path in (top, *sorted(top.rglob("*"))):
                state[path.relative_to(self.base).as_posix()] = _describe(path)
        protected = ("commondir", "config.worktree", "modules", "worktrees")
        forbidden = [self.work / ".git" / name for name in protected]
        forbidden += [self.work / name for name in (".claude", ".m3", ".vscode", ".mcp.json")]
        forbidden += [folder / self.label for folder in (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))]
        state |= {str(path): os.path.lexists(path) for path in forbidden}
        state["other"] = (self.base / "other").exists()
        state["the process outside"] = self._victim.poll()
        state["processes left"] = any(str(self.seconds) in line for line in _command_lines())
        return state


def _describe(path: Path) -> tuple[object, ...]:
    if not os.path.lexists(path):
        return ()
    found = path.lstat()
    content = hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(found.st_mode) else ""
    attributes = tuple(os.listxattr(path, follow_symlinks=False)) if hasattr(os, "listxattr") else ()
    return found.st_mode, found.st_uid, found.st_gid, found.st_mtime_ns, found.st_ino, content, attributes


def _command_lines() -> Iterator[str]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            yield " ".join(process.cmdline())
