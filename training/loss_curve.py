"""Draws the training loss of the shipped weights from the logs of the runs, for the model card.

    python -m training.loss_curve      # writes docs/images/nano-loss.svg; needs matplotlib, which nothing else does

Each run continued from the weights of the one before, so its tokens are drawn behind the other's last logged step.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LOGS = tuple((name.upper(), ROOT / f"training/logs/{name}.jsonl") for name in "abc")
OUT = ROOT / "docs/images/nano-loss.svg"


def read_log(path: Path) -> list[dict[str, Any]]:
    """The rows of one log, one JSON object a line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def curves() -> dict[str, list[tuple[float, float, float]]]:
    """For each run its points (million tokens since the start of A, loss of the answers, loss of the code)."""
    found: dict[str, list[tuple[float, float, float]]] = {}
    offset = 0
    for name, path in LOGS:
        rows = [row for row in read_log(path) if "target_loss" in row]
        found[name] = [((offset + row["tokens"]) / 1e6, row["target_loss"], row["code_loss"]) for row in rows]
        offset += rows[-1]["tokens"]
    return found


def main() -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "nano", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot

    figure, (answers, code) = pyplot.subplots(1, 2, figsize=(8, 3), layout="constrained")
    for (name, points), colour in zip(curves().items(), ("tab:blue", "tab:orange", "tab:green"), strict=True):
        tokens = [point[0] for point in points]
        answers.plot(tokens, [point[1] for point in points], color=colour, label=f"run {name}")
        code.plot(tokens, [point[2] for point in points], color=colour, label=f"run {name}")
    for axes, title, top in ((answers, "loss of the answers", 0.6), (code, "loss of the code in the prompt", 3.0)):
        axes.set(title=title, xlabel="million tokens", ylabel="nats a token", ylim=(0, top))
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(OUT, metadata={"Date": None, "Creator": None})
    print(OUT)


if __name__ == "__main__":
    main()
