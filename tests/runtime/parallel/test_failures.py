"""A rank that dies, stops, hangs or fails: one line names it, and all others are gone within ten seconds."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import psutil
import pytest

from m3_model.random_checkpoint import tiny_config, write_random_checkpoint
from m3_runtime.parallel.errors import RankLost
from m3_runtime.parallel.launch import spawn
from m3_runtime.parallel.ranks import Ranks
from m3_runtime.parallel.watch import LIMITS, Limits, Peer
from m3_runtime.runner import Chunk, Runner
from tests.runtime.parallel.conftest import RECORDING, led

LIMIT_S = 10.0


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_random_checkpoint(folder, tiny_config())
    return folder


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Ordeal:
    """Ranks that work until one is lost."""

    def __init__(self, folder: Path, start: Callable[[int], list[Peer]] = RECORDING):
        self._folder, self._start = folder, start
        self.pids: list[int] = []
        self.started = threading.Event()

    def peers(self, size: int) -> list[Peer]:
        peers = self._start(size)
        self.pids = [peer.pid for peer in peers]
        self.started.set()
        return peers

    def start(self, size: int, limits: Limits = LIMITS) -> Ranks:
        return Ranks.start(size, device="cpu", peers=self.peers, limits=limits)

    def work(self, ranks: Ranks) -> NoReturn:
        """Load a model and run it without an end."""
        runner = led(ranks, self._folder, spread_rows=32).runner
        self.work_with(runner)

    def work_with(self, runner: Runner) -> NoReturn:
        while True:
            self.step(runner)

    def step(self, runner: Runner) -> None:
        runner.forward([Chunk(list(range(60)), 0, [0])])
        runner.cache.copy_pages([0], [1])
        runner.forward([Chunk([1], 60, [1])])

    def assert_all_gone(self) -> None:
        assert not [pid for pid in self.pids if is_alive(pid)]


def kill_at_some_moment(folder: Path, size: int, seed: int, longest_s: float) -> str:
    """Kill one rank while ranks start, load or run; returns what rank 0 says of it."""
    ordeal, numbers = Ordeal(folder, spawn), random.Random(seed)
    killed_s: list[float] = []

    def kill() -> None:
        ordeal.started.wait()
        time.sleep(numbers.uniform(0, longest_s))
        victim = numbers.choice(ordeal.pids)
        killed_s.append(time.monotonic())
        os.kill(victim, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    with pytest.raises(RankLost) as caught:
        ordeal.work(ordeal.start(size))
    took_s = time.monotonic() - killed_s[0]
    thread.join()
    ordeal.assert_all_gone()
    assert took_s < LIMIT_S
    return str(caught.value)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_killed_rank_is_named_and_takes_all_with_it(tiny: Path, seed: int) -> None:
    told = kill_at_some_moment(tiny, 2, seed, 6.0)
    assert told == "rank 1 was killed (SIGKILL); all 2 ranks were ended"


@pytest.mark.slow
def test_twenty_killed_ranks_at_twenty_moments(tiny: Path) -> None:
    for seed in range(20):
        told = kill_at_some_moment(tiny, 4, 100 + seed, 20.0)
        assert told in [f"rank {rank} was killed (SIGKILL); all 4 ranks were ended" for rank in (1, 2, 3)]


def test_a_stopped_rank_is_named(tiny: Path) -> None:
    ordeal = Ordeal(tiny)
    ranks = ordeal.start(2, Limits(silent_s=3, stuck_s=60))
    runner = led(ranks, tiny).runner
    ordeal.step(runner)
    os.kill(ordeal.pids[0], signal.SIGSTOP)
    with pytest.raises(RankLost, match=r"^rank 1 gave no sign of life for 3 s; all 2 ranks were ended$"):
        ordeal.work_with(runner)
    ordeal.assert_all_gone()


def test_a_rank_that_hangs_while_others_wait_is_named(tiny: Path) -> None:
    ordeal = Ordeal(tiny)
    ranks = ordeal.start(2, Limits(stuck_s=2))
    runner = led(ranks, tiny).runner
    ordeal.step(runner)
    ranks.tell("hang")
    with pytest.raises(RankLost, match=r"^rank 1 kept the others waiting for more than 2 s; all 2 ranks were ended$"):
        ordeal.step(runner)
    ordeal.assert_all_gone()
    with pytest.raises(RankLost, match="rank 1 kept"):
        ordeal.step(runner)  # it stays lost, and says why again


def test_a_rank_that_cannot_load_ends_the_loading_of_all(tiny: Path) -> None:
    ordeal = Ordeal(tiny)
    ranks = ordeal.start(2)
    with pytest.raises(
        RankLost, match=r"^rank 1 failed: out of memory: give a smaller context.*; all 2 ranks were ended$"
    ):
        led(ranks, tiny, name="too large")  # for the other rank alone
    ordeal.assert_all_gone()


RANK_0 = """
import sys
from m3_runtime.parallel.ranks import Ranks
ranks = Ranks.start(2, device="cpu")
print("met", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere ranks meet in a folder")
def test_a_killed_rank_0_leaves_neither_files_nor_ranks(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    pipe = subprocess.PIPE
    early, late = (
        subprocess.Popen([sys.executable, "-c", RANK_0], env=environment, stdin=pipe, stdout=pipe) for _ in range(2)
    )
    with early, late:
        deadline_s = time.monotonic() + 60
        while not (started := psutil.Process(early.pid).children()):
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        early.kill()
        assert late.stdout is not None
        assert late.stdout.readline() == b"met\n"
        others = started + psutil.Process(late.pid).children()
        late.kill()
    assert len(others) == 2
    _, alive = psutil.wait_procs(others, timeout=LIMIT_S)
    assert not alive
    assert not list(tmp_path.glob("*m3*"))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere ranks meet in a folder")
def test_where_ranks_met_is_never_another_file() -> None:
    """torch reads and writes the store by its path once more when it forgets the group, at any time after the end."""
    ranks = Ranks.start(2, device="cpu")
    store = ranks._store
    ranks.close()
    others = [os.open(os.devnull, os.O_RDWR) for _ in range(50)]
    try:
        assert os.readlink(store).startswith("/memfd:m3-ranks")
    finally:
        for other in others:
            os.close(other)


@pytest.mark.slow
def test_rank_0_without_memory_ends_the_others(tiny: Path) -> None:
    ordeal = Ordeal(tiny)
    ranks = ordeal.start(2)
    runner = led(ranks, tiny).runner
    with pytest.raises(RankLost, match=r"^rank 0 failed: out of memory: give"), ranks.together():
        raise MemoryError("out of memory")
    ordeal.assert_all_gone()
    with pytest.raises(RankLost, match="rank 0 failed"):
        ordeal.step(runner)
