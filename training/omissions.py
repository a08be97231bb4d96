"""Bug classes in which something is missing: a line, a clause, an argument, a wrapper, a right initial value."""

from __future__ import annotations

import ast
import random

from training.slips.values import other_constant
from training.syntax import Maker, Parsed, Span


def deleted_line(p: Parsed, rng: random.Random) -> Span | None:
    """A whole statement of up to three lines is gone; its block keeps another statement."""
    kinds = (
        ast.Assign,
        ast.AugAssign,
        ast.Expr,
        ast.Return,
        ast.If,
        ast.Raise,
        ast.For,
        ast.Assert,
        ast.Continue,
        ast.Break,
    )
    for node in p.pick(rng, *kinds, ast.AnnAssign, ast.Delete):
        parent = p.parents.get(node)
        block = next(
            (
                b
                for b in (getattr(parent, f, None) for f in ("body", "orelse", "finalbody"))
                if isinstance(b, list) and node in b
            ),
            [],
        )
        if len(block) < 2 or isinstance(parent, ast.Module) or _is_docstring(node, block):
            continue
        first, count = p.line(node), node.end_lineno - node.lineno + 1  # type: ignore[attr-defined]
        start, end = p.lines(first, count)
        whole = p.data[start:end].strip() == p.text(node) or p.data[start:end].split(b"#")[0].strip() == p.text(node)
        if count <= 3 and whole and p.data[end - 1 : end] == b"\n":
            return Span(start, end, b"")
        if count <= 3 and whole and end == len(p.data) and start:
            return Span(start - 1, end, b"")
    return None


def _is_docstring(node: ast.AST, block: list[ast.stmt]) -> bool:
    return node is block[0] and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def dropped_expression(p: Parsed, rng: random.Random) -> Span | None:
    """A compound expression lost a part: one operand, one clause, a subscript, a method of a chain, a filter."""
    for node in p.pick(
        rng, ast.BinOp, ast.BoolOp, ast.IfExp, ast.Subscript, ast.Call, ast.UnaryOp, ast.Attribute, ast.comprehension
    ):
        parent = p.parents.get(node)
        kept: ast.AST | None = None
        if isinstance(node, ast.BinOp):
            kept = rng.choice([node.left, node.right])
        elif isinstance(node, ast.BoolOp):
            at = rng.randrange(len(node.values))
            if at == 0:
                return Span(p.span(node.values[0])[0], p.span(node.values[1])[0], b"")
            return Span(p.span(node.values[at - 1])[1], p.span(node.values[at])[1], b"")
        elif isinstance(node, ast.IfExp):
            kept = rng.choice([node.body, node.orelse])
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            kept = node.value
        elif isinstance(node, ast.UnaryOp):
            kept = node.operand
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not isinstance(parent, ast.Expr):
            if (
                isinstance(node.func.value, ast.Call | ast.Attribute | ast.Subscript | ast.Constant)
                or len(node.args) <= 1
            ):
                kept = node.func.value
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Attribute | ast.Call)
            and isinstance(node.ctx, ast.Load)
        ):
            if not (isinstance(parent, ast.Call) and parent.func is node):
                kept = node.value
        elif isinstance(node, ast.comprehension) and node.ifs:
            clause = rng.choice(node.ifs)
            start, end = p.span(clause)
            before = p.data[:start].rstrip(b"( \n")
            if before.endswith(b"if"):
                return Span(len(before[:-2].rstrip()), end, b"")
        if kept is not None and p.text(kept) != p.text(node):
            return p.replace(node, p.text(kept))
    return None


def dropped_argument(p: Parsed, rng: random.Random) -> Span | None:
    """A call, tuple, list, dictionary or signature lost one of its items."""
    for node in p.pick(rng, ast.Call, ast.Tuple, ast.List, ast.Dict, ast.Set):
        spans: list[tuple[int, int]] = []
        if isinstance(node, ast.Call):
            items: list[ast.AST] = [*node.args, *node.keywords]
            spans = [p.span(i) for i in items]
        elif isinstance(node, ast.Dict):
            spans = [(p.span(k)[0], p.span(v)[1]) for k, v in zip(node.keys, node.values, strict=True) if k is not None]
        elif isinstance(node, ast.Tuple | ast.List | ast.Set):
            spans = [p.span(i) for i in node.elts]
            if isinstance(node, ast.Tuple) and len(spans) < 3:
                continue
        if not spans or (len(spans) == 1 and not isinstance(node, ast.Call)):
            continue
        spans.sort()
        if len(spans) == 1:
            start, end = p.span(node.func)[1] + 1, p.span(node)[1] - 1  # type: ignore[attr-defined]
            return Span(start, end, b"") if p.data[start - 1 : start] == b"(" else None
        at = rng.randrange(len(spans))
        start, end = (spans[0][0], spans[1][0]) if at == 0 else (spans[at - 1][1], spans[at][1])
        if p.data[start:end].count(b"(") == p.data[start:end].count(b")"):
            return Span(start, end, b"")
    return None


def dropped_wrapper(p: Parsed, rng: random.Random) -> Span | None:
    """`f(x)` became `x`."""
    for node in p.pick(rng, ast.Call):
        assert isinstance(node, ast.Call)
        if (
            node.args
            and not isinstance(p.parents.get(node), ast.Expr)
            and not isinstance(node.args[0], ast.Starred | ast.GeneratorExp)
        ):
            return p.replace(node, p.text(node.args[0]))
    return None


def initial_value(p: Parsed, rng: random.Random) -> Span | None:
    """A variable or an attribute starts from the wrong value."""
    for node in p.pick(rng, ast.Assign, ast.AnnAssign):
        value = getattr(node, "value", None)
        if isinstance(value, ast.Constant) and not isinstance(value.value, str):
            text = other_constant(value.value, rng)
        elif isinstance(value, ast.Constant):
            text = rng.choice(["None", "''", "[]"]) if value.value else rng.choice(["None", "' '"])
        elif isinstance(value, ast.List | ast.Dict | ast.Set | ast.Tuple):
            text = rng.choice(["[]", "{}", "None", "set()", "()"])
        elif isinstance(value, ast.Call | ast.BinOp | ast.Subscript | ast.Attribute):
            text = rng.choice(["None", "0", "[]", "1", "''", "{}", "False", "True"])
        else:
            continue
        if text is not None and text.encode() != p.text(value):
            return p.replace(value, text)
    return None


def dropped_return(p: Parsed, rng: random.Random) -> Span | None:
    for node in p.pick(rng, ast.Return):
        assert isinstance(node, ast.Return)
        if node.value is not None:
            return p.replace(node, rng.choice([p.text(node.value), b"return", b"pass"]))
    return None


def dropped_condition(p: Parsed, rng: random.Random) -> Span | None:
    """A test that became trivial, or lost its comparison."""
    for node in p.pick(rng, ast.If, ast.While, ast.IfExp):
        test = node.test  # type: ignore[attr-defined]
        if isinstance(test, ast.Compare):
            return p.replace(test, rng.choice([p.text(test.left), b"True", b"False"]))
        if not isinstance(test, ast.Constant):
            return p.replace(test, rng.choice(["True", "False"]))
    return None


OMISSIONS: dict[str, Maker] = {
    "deleted_line": deleted_line, "dropped_expression": dropped_expression, "dropped_argument": dropped_argument,
    "dropped_wrapper": dropped_wrapper, "initial_value": initial_value, "dropped_return": dropped_return,
    "dropped_condition": dropped_condition,
}  # fmt: skip
