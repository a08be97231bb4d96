"""Measure every kernel on one GPU: `python -m benchmarks.kernels`. Prints a table and writes JSON.

Subject and baseline run in one process on the same tensors, with a cold L2; correctness is checked in the same run.
`--tiny` tries the whole program on a CPU with small shapes and measures nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

PARTS = ("decode", "prefill", "experts", "small", "peer")
LENGTHS = "8k,32k,128k,512k,1024k"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas")
    parser.add_argument("--lengths", default=LENGTHS, help="contexts in thousands of tokens, as 8k,128k")
    parser.add_argument("--tiny", action="store_true", help="small shapes on a CPU, to try the program")
    parser.add_argument("--out", type=Path, help="the JSON file; default benchmarks/results/kernels-DATE.json")
    options = parser.parse_args(argv)
    if options.tiny:
        os.environ.setdefault("TRITON_INTERPRET", "1")
    facts = machine()
    out = options.out or Path(__file__).parents[1] / "results" / f"kernels-{facts['date']}.json"

    def keep(rows: list[Any], ceilings: Any) -> None:
        """After every measurement, so that a run that is cut short leaves what it had."""
        value = {
            "benchmark": "kernels",
            "machine": facts,
            "ceilings": dataclasses.asdict(ceilings),
            "rows": [{**dataclasses.asdict(row), "verdict": row.verdict} for row in rows],
        }
        out.parent.mkdir(exist_ok=True)
        out.write_text(json.dumps(value, indent=1) + "\n")

    rows = measure(options.only.split(","), options.lengths, tiny=options.tiny, keep=None if options.tiny else keep)
    from benchmarks.kernels.rows import table

    print(table(rows))
    if not options.tiny:
        print(f"written to {out}")
    if wrong := [row.name for row in rows if row.verdict == "WRONG"]:
        raise SystemExit(f"wrong results: {', '.join(wrong)}")


def measure(
    parts: list[str], lengths: str, *, tiny: bool, keep: Callable[[list[Any], Any], None] | None = None
) -> list[Any]:
    """The rows of the parts asked for; `keep` gets all rows so far, and the machine's ceilings."""
    import torch

    from benchmarks.kernels import attention_rows, baselines, other_rows, peer, peer_rows
    from benchmarks.kernels.data import TINY, TINY_PEER, Shape
    from benchmarks.kernels.rows import Ceilings, Row

    if not tiny and not torch.cuda.is_available():
        raise SystemExit("no CUDA device; --tiny tries the program on a CPU")
    device, dtype = torch.device("cpu" if tiny else "cuda"), torch.float32 if tiny else torch.bfloat16
    shape = TINY if tiny else Shape()
    tokens = [100] if tiny else [int(length.rstrip("k")) * 1024 for length in lengths.split(",")]
    ceilings = Ceilings(
        baselines.matmul_tflops(device, dtype, 64 if tiny else 8192),
        baselines.copy_tbs(device, 1 << (20 if tiny else 30)),
    )
    makers: dict[str, list[Callable[[], list[Row]]]] = {
        "prefill": [lambda n=n: attention_rows.prefill_rows(shape, n, ceilings, device, dtype) for n in tokens],  # type: ignore[misc]
        "decode": [lambda n=n: attention_rows.decode_rows(shape, n, max(tokens), device, dtype) for n in tokens],  # type: ignore[misc]
        "experts": [lambda: other_rows.expert_rows(shape, ceilings, device, dtype)],
        "small": [lambda: other_rows.small_rows(shape, ceilings, device, dtype)],
    }
    if (kernels := peer.load()) is not None:
        peer_shape, lengths_of_peer = (TINY_PEER, [300]) if tiny else (shape, tokens)
        makers["peer"] = [
            lambda n=n: peer_rows.peer_prefill_rows(kernels, peer_shape, n, device, dtype)  # type: ignore[misc]
            for n in lengths_of_peer
        ]
        if not tiny:  # the interpreter does not take its decode kernel
            makers["peer"] += [
                lambda n=n: peer_rows.peer_decode_rows(kernels, shape, n, max(tokens), device, dtype)  # type: ignore[misc]
                for n in tokens
            ]
    elif "peer" in parts:
        print("peer: its kernels are absent; python -m benchmarks.kernels.peer fetches them", flush=True)
    rows: list[Row] = []
    for part in parts:
        for make in makers.get(part, []):
            made = make()
            rows += made
            if keep is not None:
                keep(rows, ceilings)
            print(f"{part}: {', '.join(f'{row.name} {row.size} {row.time.ms:.3f} ms' for row in made)}", flush=True)
    return rows


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    import torch
    import triton

    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    driver = (
        subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True
        )
        if torch.cuda.is_available()
        else None
    )
    return {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "driver": driver.stdout.strip() if driver else "",
        "torch": torch.__version__,
        "triton": triton.__version__,
        "commit": commit,
        "date": datetime.date.today().isoformat(),
    }


if __name__ == "__main__":
    main()
