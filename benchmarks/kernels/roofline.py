"""Draws a result of `python -m benchmarks.kernels` as a roofline: what each kernel reaches of what the machine allows.

python -m benchmarks.kernels.roofline benchmarks/results/kernels-DATE.json      # needs matplotlib; writes an SVG
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def points(result: dict[str, Any]) -> list[tuple[str, float, float]]:
    """(label, FLOP per byte, TFLOP/s) of every row that does arithmetic."""
    return [
        (f"{row['name']} {row['size']:,}", row["flops"] / row["num_bytes"], row["flops"] / row["time"]["ms"] / 1e9)
        for row in result["rows"]
        if row["flops"] and row["num_bytes"]
    ]


def main(argv: list[str]) -> None:
    source = Path(argv[0])
    result = json.loads(source.read_text(encoding="utf-8"))
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "roofline", "svg.fonttype": "none", "font.size": 8})
    from matplotlib import pyplot

    peak, copy = result["ceilings"]["matmul_tflops"], result["ceilings"]["copy_tbs"]
    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    found = points(result)
    edges = [min(1.0, *(x for _, x, _ in found)) / 2, peak / copy, max(x for _, x, _ in found) * 2]
    axes.loglog(edges, [copy * edges[0], peak, peak], color="black", label=f"{peak:.0f} TFLOP/s, {copy:.2f} TB/s")
    for label, intensity, rate in found:
        (point,) = axes.loglog([intensity], [rate], "o", markersize=4)
        axes.annotate(
            label, (intensity, rate), fontsize=6, color=point.get_color(), xytext=(3, -6), textcoords="offset points"
        )
    axes.set(
        xlabel="FLOP per byte", ylabel="TFLOP/s", title=f"{result['machine']['device']}, {result['machine']['date']}"
    )
    axes.grid(alpha=0.3, which="both")
    axes.legend(frameon=False)
    out = source.with_suffix(".svg")
    figure.savefig(out, metadata={"Date": None, "Creator": None})
    print(out)


if __name__ == "__main__":
    main(sys.argv[1:])
