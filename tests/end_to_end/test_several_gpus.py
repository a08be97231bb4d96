"""`--gpus` with real processes, on the CPU: an answer, what is refused, and how it all ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from m3agent.errors import M3Error
from m3agent.llm.gpus import check_gpus
from m3agent.settings import load_settings
from tests.runtime.conftest import write_tiny_checkpoint

LIMIT_S = 10.0


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


class Run:
    """`m3 run --gpus 2` on a new repository; its session file is where its life can be seen."""

    def __init__(self, checkpoint: Path, folder: Path, *before: str, gpus: int = 2) -> None:
        self.home = folder / "home"
        repo = folder / "repo"
        repo.mkdir()
        environment = {**os.environ, "M3_HOME": str(self.home), "M3_RANKS_ON_CPU": "1", "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
        own = ["-m", "m3agent", "run", "Hello", "--model", str(checkpoint), "--max-steps", "1", "--output", "json"]
        self.process = subprocess.Popen(
            [sys.executable, *before, *own, *(["--gpus", str(gpus)] if gpus else [])],
            cwd=repo,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for_the_prompt(self) -> list[psutil.Process]:
        """Wait until the model reads or answers; returns the processes of the other ranks."""
        deadline_s = time.monotonic() + 100
        while not any("run_started" in path.read_text() for path in self.home.glob("sessions/*.jsonl")):
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        others = psutil.Process(self.process.pid).children()
        assert len(others) == 1
        return others

    def end(self, others: list[psutil.Process]) -> tuple[int, str, str]:
        """The exit code, stdout and stderr of a run all of whose ranks must be gone in time."""
        deadline_s = time.monotonic() + LIMIT_S
        _, alive = psutil.wait_procs(others, timeout=LIMIT_S)
        assert not alive
        stdout, stderr = self.process.communicate(timeout=max(0.0, deadline_s - time.monotonic()))
        return self.process.returncode, stdout, stderr

    def last_event(self) -> str:
        """What the session file ends with, every line of it being whole."""
        (path,) = self.home.glob("sessions/*.jsonl")
        kind: str = [json.loads(line) for line in path.read_text().splitlines()][-1]["kind"]
        return kind


def test_a_killed_rank_ends_the_run_with_one_line_and_a_whole_session(checkpoint: Path, tmp_path: Path) -> None:
    run = Run(checkpoint, tmp_path)
    others = run.wait_for_the_prompt()
    others[0].kill()
    code, stdout, _ = run.end(others)
    report = json.loads(stdout)
    assert (code, report["exit_code"], report["outcome"]) == (75, 75, "the model is unavailable")
    assert report["summary"].endswith("failed: rank 1 was killed (SIGKILL); all 2 ranks were ended")
    assert run.last_event() == "run_ended"


@pytest.mark.slow
def test_ctrl_c_ends_all_ranks(checkpoint: Path, tmp_path: Path) -> None:
    run = Run(checkpoint, tmp_path)
    others = run.wait_for_the_prompt()
    for process in (*others, run.process):  # a terminal sends it to all of them
        process.send_signal(signal.SIGINT)
    code, _, _ = run.end(others)
    assert code == 130
    assert run.last_event() == "run_ended"


@pytest.mark.slow
@pytest.mark.parametrize("is_stopped", [False, True])
def test_no_rank_outlives_rank_0(checkpoint: Path, tmp_path: Path, is_stopped: bool) -> None:
    run = Run(checkpoint, tmp_path)
    others = run.wait_for_the_prompt()
    if is_stopped:
        others[0].suspend()
    run.process.kill()
    assert run.end(others)[0] == -signal.SIGKILL


@pytest.mark.slow
def test_torchrun_starts_the_ranks(checkpoint: Path, tmp_path: Path) -> None:
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--no-python", sys.executable)
    run = Run(checkpoint, tmp_path, *torchrun, gpus=0)
    stdout, stderr = run.process.communicate(timeout=120)
    assert run.process.returncode == 0, stderr
    assert json.loads(stdout)["outcome"] == "answered"  # one rank alone answers


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("nano", r"^nano runs on the CPU: leave --gpus out, or give --model the folder"),
        ("http://localhost:8000/v1", r"^--gpus is for a checkpoint folder, and http://localhost:8000/v1 does not run"),
        (".", r"^--gpus 999 needs as many GPUs, and torch finds (none|\d+) on this machine"),
    ],
)
def test_what_does_not_run_on_gpus_here_is_refused(model: str, told: str) -> None:
    with pytest.raises(M3Error, match=told):
        check_gpus(load_settings(environ={}, model=model, gpus=999))


def test_torchrun_says_how_many_ranks_there_are() -> None:
    torchrun = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    settings = load_settings(environ=torchrun)
    assert (settings.gpus, settings.torchrun_rank) == (4, 1)
    with pytest.raises(M3Error, match="torchrun started 4 ranks and --gpus says 8"):
        load_settings(environ=torchrun, gpus=8)
    with pytest.raises(M3Error, match="m3 runs on one machine"):
        load_settings(environ={**torchrun, "LOCAL_WORLD_SIZE": "2"})
