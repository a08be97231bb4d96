"""Draws a result of `python -m benchmarks.kernels` as a roofline: what each kernel reaches of what the machine allows.

python -m benchmarks.kernels.roofline benchmarks/results/kernels-DATE.json      # needs matplotlib; writes an SVG
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

Point = tuple[int, float, float]
"""Tokens (of context, or of a batch of experts), FLOP per byte, TFLOP/s."""


def curves(result: dict[str, Any]) -> dict[str, list[Point]]:
    """The points of each kernel that does arithmetic, by its name, in the order of their sizes."""
    found: dict[str, list[Point]] = {}
    for row in result["rows"]:
        if row["flops"] and row["num_bytes"]:
            point = (row["size"], row["flops"] / row["num_bytes"], row["flops"] / row["time"]["ms"] / 1e9)
            found.setdefault(row["name"], []).append(point)
    return {name: sorted(points) for name, points in found.items()}


def short(size: int) -> str:
    """8192 as 8k, 1048576 as 1M."""
    for unit, name in ((1 << 20, "M"), (1 << 10, "k")):
        if size >= unit and size % unit == 0:
            return f"{size // unit}{name}"
    return str(size)


def main(argv: list[str]) -> None:
    source = Path(argv[0])
    result = json.loads(source.read_text(encoding="utf-8"))
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "roofline", "svg.fonttype": "none", "font.size": 8})
    from matplotlib import pyplot

    peak, copy = result["ceilings"]["matmul_tflops"], result["ceilings"]["copy_tbs"]
    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    found = curves(result)
    intensities = [x for points in found.values() for _, x, _ in points]
    edges = [min(1.0, *intensities) / 2, peak / copy, max(intensities) * 2]
    axes.loglog(edges, [copy * edges[0], peak, peak], color="black", label=f"{peak:.0f} TFLOP/s, {copy:.2f} TB/s")
    for name, points in found.items():
        sizes, x, y = zip(*points, strict=True)
        axes.loglog(x, y, "o-", markersize=4, linewidth=0.8, label=f"{name}, {' '.join(map(short, sizes))} tokens")
        for size, *place in (points[0], points[-1]):
            axes.annotate(short(size), place, fontsize=6, xytext=(3, -8), textcoords="offset points")
    axes.set(
        xlabel="FLOP per byte", ylabel="TFLOP/s", title=f"{result['machine']['device']}, {result['machine']['date']}"
    )
    axes.grid(alpha=0.3, which="both")
    axes.legend(frameon=False, loc="lower right")
    out = source.with_suffix(".svg")
    figure.savefig(out, metadata={"Date": None, "Creator": None})
    print(out)


if __name__ == "__main__":
    main(sys.argv[1:])
