"""Writes screenshots with their truth into a folder, or measures how fast they are made.

python -m training.screens OUT --count 500 --split held_out
python -m training.screens --count 400
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from training.screens.draw import screen

TRUTH = ("kind", "layout", "font", "exception", "place", "label", "text")


def main() -> None:
    parser = argparse.ArgumentParser(prog="training.screens", description="Draw screenshots for nano.")
    parser.add_argument("out", nargs="?", type=Path, help="folder for N.png and truth.jsonl; without it only measure")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--split", choices=["train", "held_out"], default="train")
    chosen = parser.parse_args()
    start, cpu = time.perf_counter(), time.process_time()
    truths = []
    for number in range(chosen.count):
        made = screen(number, chosen.split)
        truth = {
            name: getattr(made, name) for name in ("kind", "layout", "font", "exception", "place", "label", "text")
        }
        truths.append({"number": number, **truth})
        if chosen.out:
            chosen.out.mkdir(parents=True, exist_ok=True)
            made.image.save(chosen.out / f"{number}.png")
    cpu, took = time.process_time() - cpu, time.perf_counter() - start
    if chosen.out:
        lines = (json.dumps(truth, ensure_ascii=False) + "\n" for truth in truths)
        (chosen.out / "truth.jsonl").write_text("".join(lines), encoding="utf-8")
    print(f"{chosen.count} pictures in {took:.1f} s, {chosen.count / cpu:.0f} a second of one core's time")


if __name__ == "__main__":
    main()
