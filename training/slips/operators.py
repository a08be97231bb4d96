"""Slips of operators and order: comparisons, arithmetic, conditions, assignments, parentheses, swapped neighbours."""

from __future__ import annotations

import ast
import random

from training.syntax import Parsed, Span

_COMPARE = {
    ast.Lt: ("<", "<= > >="), ast.LtE: ("<=", "< >= =="), ast.Gt: (">", ">= < <="), ast.GtE: (">=", "> <= =="),
    ast.Eq: ("==", "!= >= <="), ast.NotEq: ("!=", "== <"),
}  # fmt: skip
_WORD_COMPARE = {ast.Is: (b"is", b"is not"), ast.In: (b"in", b"not in")}
_ARITHMETIC = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "+ / **"), ast.Div: ("/", "// *"),
    ast.FloorDiv: ("//", "/ %"), ast.Mod: ("%", "// /"), ast.Pow: ("**", "*"), ast.BitAnd: ("&", "| ^"),
    ast.BitOr: ("|", "& ^"), ast.BitXor: ("^", "& |"), ast.LShift: ("<<", ">>"), ast.RShift: (">>", "<<"),
}  # fmt: skip


def comparison(p: Parsed, rng: random.Random) -> Span | None:
    for node in p.pick(rng, ast.Compare):
        assert isinstance(node, ast.Compare)
        operands = [node.left, *node.comparators]
        at = rng.randrange(len(node.ops))
        operator, left, right = node.ops[at], operands[at], operands[at + 1]
        if type(operator) in _COMPARE:
            old, new = _COMPARE[type(operator)]
            span = p.between(left, right, old.encode(), rng.choice(new.split()).encode())
        elif type(operator) in _WORD_COMPARE:
            plain, negated = _WORD_COMPARE[type(operator)]
            span = p.between(left, right, plain, negated)
        elif isinstance(operator, ast.IsNot):
            span = p.between(left, right, b"is not", b"is")
        else:
            span = p.between(left, right, b"not in", b"in")
        if span is not None:
            return span
    return None


def arithmetic(p: Parsed, rng: random.Random) -> Span | None:
    for node in p.pick(rng, ast.BinOp):
        assert isinstance(node, ast.BinOp)
        if isinstance(node.left, ast.Constant) and isinstance(node.left.value, str):
            continue
        if type(node.op) in _ARITHMETIC:
            old, new = _ARITHMETIC[type(node.op)]
            span = p.between(node.left, node.right, old.encode(), rng.choice(new.split()).encode())
            if span is not None:
                return span
    return None


def boolean(p: Parsed, rng: random.Random) -> Span | None:
    for node in p.pick(rng, ast.BoolOp):
        assert isinstance(node, ast.BoolOp)
        at = rng.randrange(len(node.values) - 1)
        old, new = (b"and", b"or") if isinstance(node.op, ast.And) else (b"or", b"and")
        if span := p.between(node.values[at], node.values[at + 1], old, new):
            return span
    return None


def condition(p: Parsed, rng: random.Random) -> Span | None:
    """A test negated, or its negation dropped, or replaced by a part of it."""
    for node in p.pick(rng, ast.If, ast.While, ast.IfExp, ast.UnaryOp):
        if isinstance(node, ast.UnaryOp):
            if isinstance(node.op, ast.Not):
                return p.replace(node, p.text(node.operand))
            continue
        test = node.test  # type: ignore[attr-defined]
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return p.replace(test, p.text(test.operand))
        text = p.text(test)
        simple = isinstance(test, ast.Name | ast.Call | ast.Attribute | ast.Subscript)
        return p.replace(test, b"not " + (text if simple else b"(" + text + b")"))
    return None


def assignment(p: Parsed, rng: random.Random) -> Span | None:
    """`+=` for `=` and the other way round, or another augmented operator."""
    for node in p.pick(rng, ast.AugAssign, ast.Assign):
        if isinstance(node, ast.AugAssign) and type(node.op) in _ARITHMETIC:
            old, new = _ARITHMETIC[type(node.op)]
            other = rng.choice(["=", f"{new.split()[0]}="])
            return p.between(node.target, node.value, f"{old}=".encode(), other.encode())
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.value, ast.BinOp | ast.Call):
            return p.between(node.targets[0], node.value, b"=", b"+=")
    return None


def swapped(p: Parsed, rng: random.Random) -> Span | None:
    """Two neighbours in the wrong order: arguments, operands, elements, the branches of a conditional expression."""
    for node in p.pick(rng, ast.Call, ast.BinOp, ast.Tuple, ast.IfExp, ast.Dict, ast.Compare, ast.Subscript):
        pair: tuple[ast.AST, ast.AST] | None = None
        if isinstance(node, ast.Call | ast.Tuple):
            items = node.args if isinstance(node, ast.Call) else node.elts
            if len(items) > 1:
                at = rng.randrange(len(items) - 1)
                pair = items[at], items[at + 1]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub | ast.Div | ast.FloorDiv | ast.Mod | ast.Pow):
            pair = node.left, node.right
        elif isinstance(node, ast.IfExp):
            pair = node.body, node.orelse
        elif isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.In | ast.Lt | ast.Gt):
            pair = node.left, node.comparators[0]
        if pair is not None and p.text(pair[0]) != p.text(pair[1]):
            (start, middle), (after, end) = p.span(pair[0]), p.span(pair[1])
            if start < middle <= after < end and b"\n" not in p.data[start:end]:
                return Span(start, end, p.text(pair[1]) + p.data[middle:after] + p.text(pair[0]))
    return None


def parentheses(p: Parsed, rng: random.Random) -> Span | None:
    for node in p.pick(rng, ast.BinOp, ast.BoolOp):
        start, end = p.span(node)
        if (
            isinstance(p.parents.get(node), ast.BinOp | ast.BoolOp | ast.UnaryOp)
            and p.data[start - 1 : start] == b"("
            and p.data[end : end + 1] == b")"
        ):
            return Span(start - 1, end + 1, p.data[start:end])
    return None
