"""A row of the table, and what a row is judged by."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from benchmarks.kernels.timing import Time


@dataclasses.dataclass(frozen=True)
class Ceilings:
    """Measured in the same run."""

    matmul_tflops: float
    copy_tbs: float


@dataclasses.dataclass
class Row:
    """One measurement. `value` in `unit` is what the gate judges; `against` is the ceiling, floor or baseline."""

    name: str
    size: int
    """Tokens in the context, or tokens in the batch."""
    time: Time
    value: float
    unit: str
    against: float | None = None
    at_least: float | None = None
    at_most: float | None = None
    error: float | None = None
    """Relative error against float32; for a selection the number of wrong rows."""
    flops: float = 0.0
    """Useful operations of one call, for the roofline."""
    num_bytes: float = 0.0
    """What must be moved at least: every input read once, every result written once."""
    note: str = ""

    @property
    def verdict(self) -> str:
        if self.error is not None and not self.error <= (0 if self.name.endswith("top-k") else 1e-2):
            return "WRONG"
        if self.at_least is None and self.at_most is None:
            return ""
        good = (self.at_least is None or self.value >= self.at_least) and (
            self.at_most is None or self.value <= self.at_most
        )
        return "passes" if good else "misses"


def relative_error(got: Tensor, expected: Tensor) -> float:
    """Norm of the difference over the norm of what was expected; NaN stays NaN."""
    return float((got.float() - expected.float()).norm() / expected.float().norm())


def table(rows: list[Row]) -> str:
    """For people: one line a row."""
    lines = [f"{'':28}{'size':>9} {'ms':>9} {'±':>7} {'value':>9} {'unit':10}{'against':>9} {'gate':>10} {'error':>8}"]
    for row in rows:
        gate = f">= {row.at_least:g}" if row.at_least is not None else f"<= {row.at_most:g}" if row.at_most else ""
        against = f"{row.against:.4g}" if row.against is not None else ""
        error = f"{row.error:.1e}" if row.error is not None else ""
        lines.append(
            f"{row.name:28}{row.size:>9} {row.time.ms:>9.4f} {row.time.spread_ms:>7.4f} {row.value:>9.4g} {row.unit:10}"
            f"{against:>9} {gate:>10} {error:>8} {row.verdict} {row.note}".rstrip()
        )
    return "\n".join(lines)
