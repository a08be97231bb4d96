"""Where the other ranks come from: processes that this one starts, or those that torchrun started beside it."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

from m3_runtime.parallel.watch import Peer


def spawn(size: int, module: str = "m3_runtime.parallel.follower") -> list[Peer]:
    """Start the processes of ranks 1 to size - 1 on this machine."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    peers = []
    for rank in range(1, size):
        ours, theirs = zip(*(socket.socketpair() for _ in range(2)), strict=True)
        numbers = [end.fileno() for end in theirs]
        process = subprocess.Popen(
            # -P: the folder that m3 works in must not be imported from.
            [sys.executable, "-P", "-m", module, *map(str, numbers)],
            pass_fds=numbers,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        for end in theirs:
            end.close()
        commands, lifeline = (Connection(end.detach()) for end in ours)
        peers.append(Peer(rank, commands, lifeline, process))
    return peers


def meet_torchrun(size: int) -> list[Peer]:
    """On rank 0: wait for the other ranks that torchrun started."""
    key = secrets.token_bytes(32)
    with _address() as address, Listener(address, "AF_UNIX", backlog=2 * size, authkey=key) as listener:
        _store().set("m3/meet", f"{address} {key.hex()}")
        channels: dict[tuple[int, str], Connection[Any, Any]] = {}
        while len(channels) < 2 * (size - 1):
            channel = listener.accept()
            rank, kind = channel.recv()
            channels[rank, kind] = channel
    return [Peer(rank, channels[rank, "commands"], channels[rank, "lifeline"]) for rank in range(1, size)]


def join_torchrun(rank: int) -> None:
    """On the other ranks: meet rank 0 and follow it; never returns."""
    from m3_runtime.parallel.follower import follow

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for rank 0, which ends the others
    with contextlib.redirect_stdout(sys.stderr):
        address, key = _store().get("m3/meet").decode().split(" ")
        channels = {}
        for kind in ("commands", "lifeline"):  # rank 0 wants to hear from one before it takes the next
            channels[kind] = Client(address, "AF_UNIX", authkey=bytes.fromhex(key))
            channels[kind].send((rank, kind))
        follow(channels["commands"], channels["lifeline"])


@contextlib.contextmanager
def _address() -> Iterator[str]:
    """Of a new socket. On Linux it lies in no folder: nothing stays behind, even if this process is killed."""
    if sys.platform == "linux":
        yield f"\0m3-ranks-{secrets.token_hex(16)}"
        return
    with tempfile.TemporaryDirectory(prefix="m3-ranks-") as folder:
        yield f"{folder}/meet"


def _store() -> Any:
    """What torchrun's processes know in common."""
    from torch.distributed.rendezvous import rendezvous

    store, _, _ = next(iter(rendezvous("env://")))
    return store
