"""A rank that follows: `python -m m3_runtime.parallel.follower COMMANDS LIFELINE`, both numbers of open sockets.

It does what comes over the first socket. Over the second it says every second that it lives and how far it is; when
that closes, rank 0 is gone, and so is this process at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from m3_runtime.parallel.member import Member

BEAT_S = 1.0
ANSWERED = ("connect", "load")
"""Commands whose end is told."""
_PR_SET_PDEATHSIG = 1


def main(make_member: Callable[[Callable[[int, int], None]], Member] | None = None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for rank 0, which ends the others
    if sys.platform == "linux":  # so that a stopped process does not stay behind either
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    commands, lifeline = (Connection(int(number)) for number in sys.argv[1:3])
    follow(commands, lifeline, make_member)


def follow(
    commands: Connection[Any, Any],
    lifeline: Connection[Any, Any],
    make_member: Callable[[Callable[[int, int], None]], Member] | None = None,
) -> None:
    """Do what is commanded until rank 0 closes; never returns."""
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    from m3_runtime.parallel.errors import CutOff, told
    from m3_runtime.parallel.member import Member

    member = (make_member or Member)(lambda done, total: commands.send(("progress", (done, total))))
    threading.Thread(target=_beat, args=(lifeline, member), daemon=True).start()
    commands.send(("ready", os.getpid()))
    while True:
        try:
            name, arguments = commands.recv()
        except (EOFError, OSError):
            os._exit(0)
        if name == "close":
            with contextlib.suppress(Exception):
                member.close_disk()
            os._exit(0)
        try:
            getattr(member, name)(*arguments)
        except CutOff as error:
            _say(commands, "cut off", told(error))
        except BaseException as error:
            _say(commands, "failed", told(error))
        else:
            if name in ANSWERED:
                commands.send(("done", name))
            continue
        # Rank 0 reads the reason first and then ends this process; should it not, this is the end all the same.
        time.sleep(5)
        os._exit(1)


def _say(commands: Connection[Any, Any], kind: str, text: str) -> None:
    with contextlib.suppress(OSError):
        commands.send((kind, text))


def _beat(lifeline: Connection[Any, Any], member: Member) -> None:
    while True:
        try:
            lifeline.send(member.meter.progress)
        except OSError:
            os._exit(0)
        time.sleep(BEAT_S)


def _end_with(lifeline: Connection[Any, Any]) -> None:
    with contextlib.suppress(EOFError, OSError):
        lifeline.recv()
    os._exit(0)


if __name__ == "__main__":
    main()
