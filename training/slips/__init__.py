"""Bug classes in which something is wrong: a name, an operator, a value, an order, a line too many."""

from __future__ import annotations

from training.slips.flow import added_line, exception, loop_control, returned, wrapping
from training.slips.names import attribute, copied, family, self_await, typo, variable
from training.slips.operators import arithmetic, assignment, boolean, comparison, condition, parentheses, swapped
from training.slips.values import constant, default, index, range_bound, slice_bound, string
from training.syntax import Maker

SLIPS: dict[str, Maker] = {
    "variable": variable, "attribute": attribute, "family": family, "constant": constant, "comparison": comparison,
    "arithmetic": arithmetic, "boolean": boolean, "condition": condition, "assignment": assignment, "swapped": swapped,
    "index": index, "slice": slice_bound, "range": range_bound, "default": default, "returned": returned,
    "exception": exception, "loop_control": loop_control, "string": string, "self_await": self_await, "typo": typo,
    "wrapping": wrapping, "copied": copied, "added_line": added_line, "parentheses": parentheses,
}  # fmt: skip
