"""Measure a reduced stack at M3's true widths on one GPU: `python -m benchmarks.stack`.

One dense layer and three sparse ones with experts, random bfloat16 weights; random weights choose blocks at random, the
worst case. Every result is printed as soon as it is there and written to JSON after it; a part that fails is told and
the next one begins. `--small` tries the whole program on a CPU and measures nothing.

usage: PYTHONPATH=kernels:model:runtime:tools:. python -m benchmarks.stack [--only decode,nano] [--out FILE]
"""

from __future__ import annotations

import argparse
import datetime
import faulthandler
import json
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from benchmarks.kernels import baselines
from benchmarks.kernels.rows import Ceilings
from benchmarks.stack import model
from benchmarks.stack.layers import Bench, decode_rows, prefill_rows
from benchmarks.stack.nano import nano_rows
from benchmarks.stack.serving import decoding_rows, restore_rows

PARTS = ("decode", "engine", "prefill", "restore", "nano")
"""In this order: `restore` leaves no random keys in the cache, by which the others choose blocks."""
K = 1024
Rows = Iterator[dict[str, Any]]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stack", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas")
    parser.add_argument("--small", action="store_true", help="a tiny model on the CPU, to try the program")
    parser.add_argument("--limit-s", type=float, default=290, help="after so long it ends, wherever it is")
    parser.add_argument("--out", type=Path, help="the JSON file; default benchmarks/results/stack-DATE.json")
    parser.add_argument("--commit", default="", help="what to write as the commit where git cannot tell")
    options = parser.parse_args(argv)
    if not options.small and not torch.cuda.is_available():
        raise SystemExit("no CUDA device; --small tries the program on a CPU")
    faulthandler.dump_traceback_later(options.limit_s, exit=True)
    try:
        failed = measure(options)
    finally:
        faulthandler.cancel_dump_traceback_later()
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def measure(options: argparse.Namespace) -> list[str]:
    """Run the parts; returns those that failed."""
    facts = machine(options.commit)
    out = options.out or Path(__file__).parents[1] / "results" / f"stack-{facts['date']}.json"
    result: dict[str, Any] = {"benchmark": "stack", "machine": facts, "rows": [], "failed": {}, "seconds": {}}

    def keep() -> None:
        out.write_text(json.dumps(result, indent=1) + "\n")

    print(json.dumps(facts), flush=True)
    parts = _parts(options.small, result)
    for name in options.only.split(","):
        begin = time.perf_counter()
        try:
            for row in parts[name]():
                result["rows"].append(row)
                print(json.dumps(row), flush=True)
                keep()
        except Exception as error:  # an edge: the other parts are still wanted
            traceback.print_exc(file=sys.stdout)
            result["failed"][name] = f"{type(error).__name__}: {error}"
        result["seconds"][name] = round(time.perf_counter() - begin, 1)
        print(f"{name}: {result['seconds'][name]} s", flush=True)
        keep()
    print(f"written to {out}", flush=True)
    return list(result["failed"])


def _parts(small: bool, result: dict[str, Any]) -> dict[str, Callable[[], Rows]]:
    """The parts by name. The model is made when the first part wants it."""
    device, dtype = ("cpu", torch.float32) if small else ("cuda", torch.bfloat16)
    config = model.small_config() if small else model.stack_config()
    lengths = (256, 512) if small else (8 * K, 128 * K, 1024 * K)
    chunk = 128 if small else 8 * K
    made: list[tuple[Bench, Ceilings]] = []

    def bench() -> tuple[Bench, Ceilings]:
        if not made:
            found = Ceilings(
                baselines.matmul_tflops(torch.device(device), dtype, 64 if small else 8192),
                baselines.copy_tbs(torch.device(device), 1 << (20 if small else 30)),
            )
            begin = time.perf_counter()
            decoder = model.random_decoder(config, dtype, device)
            cache = model.random_cache(config, max(lengths), dtype, device)
            made.append((Bench(decoder, cache), found))
            result["model"] = {
                "layers": list(config.attention_kinds),
                "hidden_size": config.hidden_size,
                "vocab_size": config.vocab_size,
                "dtype": str(dtype),
                "matmul_tflops": round(found.matmul_tflops, 1),
                "copy_tbs": round(found.copy_tbs, 3),
                "made_s": round(time.perf_counter() - begin, 1),
            }
            print(json.dumps(result["model"]), flush=True)
        return made[0]

    def decode() -> Rows:
        return decode_rows(bench()[0], lengths, bench()[1])

    def prefill() -> Rows:
        return prefill_rows(bench()[0], lengths, chunk, bench()[1])

    def engine() -> Rows:
        return decoding_rows(bench()[0].decoder, bench()[0].cache, lengths, steps=8 if small else 64)

    def restore() -> Rows:
        return restore_rows(bench()[0].decoder, bench()[0].cache, 256 if small else 128 * K, chunk)

    def nano() -> Rows:
        return nano_rows(4, 1) if small else nano_rows(128, 3)

    return {"decode": decode, "engine": engine, "prefill": prefill, "restore": restore, "nano": nano}


def machine(commit: str) -> dict[str, Any]:
    """What the figures depend on."""
    try:
        found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    except OSError:
        found = ""
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    for name in ("triton", "transformers"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = ""
    return {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or "cpu",
        **versions,
        "commit": found or commit,
        "date": datetime.date.today().isoformat(),
    }


if __name__ == "__main__":
    main()
