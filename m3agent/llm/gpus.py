"""A local model on several GPUs, as the commands see it: what is refused, who only follows, and how far loading is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from m3agent.errors import M3Error
from m3agent.settings import Settings

if TYPE_CHECKING:
    from m3_runtime.config import RanksConfig


def check_gpus(settings: Settings) -> None:
    """Refuse --gpus for what does not run on GPUs of this machine.

    Errors: M3Error.
    """
    if not settings.gpus:
        return
    model = settings.model
    if model == "nano":
        raise M3Error("nano runs on the CPU: leave --gpus out, or give --model the folder of an M3 checkpoint")
    if model.startswith(("http://", "https://", "scripted:")):
        raise M3Error(f"--gpus is for a checkpoint folder, and {model} does not run here: leave --gpus out")
    if settings.ranks_on_cpu:
        return
    if settings.device == "cpu":
        raise M3Error("--gpus and the device cpu contradict each other: leave one of them out")
    import torch

    found = torch.cuda.device_count()
    if settings.gpus > found:
        raise M3Error(
            f"--gpus {settings.gpus} needs as many GPUs, and torch finds {found or 'none'} on this machine "
            "(m3 models show says what fits)"
        )


def ranks_config(settings: Settings) -> RanksConfig | None:
    """What the runtime is asked for; None without --gpus."""
    from m3_runtime.config import RanksConfig

    if not settings.gpus:
        return None
    by_torchrun = settings.torchrun_rank is not None
    return RanksConfig(size=settings.gpus, on_cpu=settings.ranks_on_cpu, by_torchrun=by_torchrun)


def follow_if_told(settings: Settings) -> None:
    """On every rank of torchrun but the first: follow that one. Does not return then."""
    if settings.torchrun_rank:
        from m3_runtime.parallel.launch import join_torchrun

        join_torchrun(settings.torchrun_rank)


def loading_bar(settings: Settings) -> Callable[[int, int], None] | None:
    """Writes one line on a terminal, anew for every layer that all ranks have loaded."""
    if not settings.gpus or not sys.stderr.isatty():
        return None

    def show(done: int, total: int) -> None:
        filled = 30 * done // total
        bar = "=" * filled + " " * (30 - filled)
        text = f"m3: loading [{bar}] layer {done} of {total} on {settings.gpus} GPUs"
        print(f"\r{text}", end="" if done < total else "\n", file=sys.stderr, flush=True)

    return show
