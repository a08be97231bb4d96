"""What does the model read in held-out screenshots, whose fonts and layouts it was never trained on?

    python -m benchmarks.screens                      # 500 pictures, model nano
    python -m benchmarks.screens --count 40 --model FOLDER --device cuda

Each picture goes as a PNG through the product's runtime, with greedy decoding: it is read as a whole, and asked for its
error and place, or for the label of its marked widget. Per kind: exactly right exceptions, places and labels, and the
character error, which is the edit distance of what was read to the truth over the truth's length. Stops and goes on
where it stopped: each picture is one line in the cache. The result is one JSON file under benchmarks/results/.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.heldout import machine
from m3_model import reading
from m3_runtime.chat.options import ChatOptions
from m3_runtime.chat.parser import TextDelta
from m3_runtime.chat.session import ChatEngine
from m3_runtime.request import PromptTooLong
from training.pictures import answer, question_about
from training.screens.draw import Screen, screen


@dataclasses.dataclass(frozen=True, kw_only=True)
class Read:
    """What was read in one picture."""

    number: int
    kind: str
    text: str
    truth: str
    errors: int
    """The edit distance of the two."""
    answered: str
    expected: str
    exception_right: bool | None
    place_right: bool | None
    label_right: bool | None
    """None where it was not asked for."""
    seconds: float


def read_screen(chat: ChatEngine, number: int) -> Read:
    made = screen(number, "held_out")
    start = time.monotonic()
    text, truth = ask(chat, made, reading.READ), answer(made, reading.READ)
    question = question_about(made)
    answered, expected = ask(chat, made, question), answer(made, question)
    is_error = question == reading.ERROR
    first, _, place = answered.partition("\n")
    return Read(
        number=number,
        kind=made.kind,
        text=text,
        truth=truth,
        errors=distance(text, truth),
        answered=answered,
        expected=expected,
        exception_right=first.partition(":")[0].strip() == made.exception if is_error else None,
        place_right=place.strip() == made.place if is_error else None,
        label_right=None if is_error else answered.strip() == made.label,
        seconds=round(time.monotonic() - start, 2),
    )


def ask(chat: ChatEngine, made: Screen, question: str) -> str:
    """The answer, or nothing where the picture is too large for the model's window."""
    file = io.BytesIO()
    made.image.save(file, "PNG")
    parts = [{"type": "image", "image": file.getvalue()}, {"type": "text", "text": question}]
    options = ChatOptions(temperature=0, max_tokens=700, thinking="disabled", tool_choice="none")
    try:
        events = list(chat.stream([{"role": "user", "content": parts}], options=options))
    except PromptTooLong:
        return ""
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def distance(one: str, other: str) -> int:
    """Characters to insert, delete or replace until one text is the other."""
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        before, row[0] = row[0], i
        for j, b in enumerate(other, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (a != b))
    return row[-1]


def summary(results: Sequence[Read]) -> dict[str, Any]:
    """The figures of some pictures; shares are of those that were asked."""
    letters = sum(len(r.truth) for r in results)
    figures: dict[str, Any] = {"pictures": len(results)}
    for name in ("exception_right", "place_right", "label_right"):
        asked = [value for r in results if (value := getattr(r, name)) is not None]
        if asked:
            figures[name] = round(sum(asked) / len(asked), 4)
    both = [r for r in results if r.exception_right is not None]
    if both:
        figures["exception_and_place_right"] = round(
            sum(bool(r.exception_right and r.place_right) for r in both) / len(both), 4
        )
    # A reading that runs on for ever must not outweigh all others.
    wrong = sum(min(r.errors, len(r.truth)) for r in results)
    figures["character_error"] = round(wrong / letters, 4) if letters else None
    return figures


def run_missing(options: argparse.Namespace) -> list[Read]:
    """Read the pictures that the log does not hold yet. Returns all."""
    log = options.cache / f"{options.tag}.jsonl"
    log.parent.mkdir(parents=True, exist_ok=True)
    lines = log.read_text().splitlines() if log.exists() else []
    done = {one["number"]: Read(**one) for one in map(json.loads, lines)}
    missing = [number for number in range(options.count) if number not in done]
    if missing:
        chat = ChatEngine.load(options.model, device=options.device)
        for number in missing:
            done[number] = read_screen(chat, number)
            with log.open("a") as file:
                file.write(json.dumps(dataclasses.asdict(done[number])) + "\n")
            one = done[number]
            print(f"{len(done)}/{options.count} {one.kind} {one.errors}/{len(one.truth)} wrong", file=sys.stderr)
        chat.close()
    return [done[number] for number in range(options.count)]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.screens", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--model", default="nano", help="the folder of a checkpoint; default nano")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or auto")
    parser.add_argument("--cache", type=Path, default=Path("build/screens"))
    parser.add_argument("--tag", default="nano", help="names the results; another one starts afresh")
    options = parser.parse_args(argv)
    results = run_missing(options)
    kinds = sorted({r.kind for r in results})
    result = {
        "benchmark": "screens",
        "model": options.model,
        **summary(results),
        "by_kind": {kind: summary([r for r in results if r.kind == kind]) for kind in kinds},
        "machine": machine(),
        "results": [dataclasses.asdict(r) for r in results],
    }
    out = Path(__file__).parent / "results" / f"screens-{options.tag}-{result['machine']['date']}.json"
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({k: v for k, v in result.items() if k != "results"}, indent=1))
    print(f"written to {out}")


if __name__ == "__main__":
    main()
