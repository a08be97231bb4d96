"""Slips of values: constants, strings, defaults, indices and the bounds of slices and ranges."""

from __future__ import annotations

import ast
import random

from training.syntax import Parsed, Span


def constant(p: Parsed, rng: random.Random) -> Span | None:
    for node in p.pick(rng, ast.Constant):
        assert isinstance(node, ast.Constant)
        text = None if node.value is None else other_constant(node.value, rng)
        if text is not None and not (text.startswith("-") and isinstance(p.parents.get(node), ast.Constant)):
            return p.replace(node, text)
    return None


def other_constant(value: object, rng: random.Random) -> str | None:
    """The text of a near but different constant; None for kinds that have none."""
    if isinstance(value, bool):
        return str(not value)
    if value is None:
        return rng.choice(["0", "False", "True", "[]", "''"])
    if isinstance(value, int) and abs(value) < 10**9:
        near = [value + 1, value - 1, value + 1, value - 1, 0, 1, 2, -value, value * 10, value * 2, value // 2]
        picked = rng.choice([v for v in near if v != value])
        return str(picked) if picked >= 0 else f"({picked})" if rng.random() < 0.2 else str(picked)
    if isinstance(value, float) and abs(value) < 1e9:
        picked_float = rng.choice([value + 1, value * 10, value / 10, value * 2, 1 - value, -value, 0.0, 1.0])
        return repr(round(picked_float, 9)) if picked_float != value else None
    return None


def string(p: Parsed, rng: random.Random) -> Span | None:
    texts = sorted({p.text(c) for c in p.all(ast.Constant) if isinstance(c.value, str)})
    for node in p.pick(rng, ast.Constant):
        assert isinstance(node, ast.Constant)
        text = p.text(node)
        if not isinstance(node.value, str) or b"\n" in text or isinstance(p.parents.get(node), ast.Expr):
            continue
        inside = text[1:-1]
        options = [t for t in texts if t != text and b"\n" not in t]
        if len(inside) > 1 and b"\\" not in inside:
            options += [
                text[:1] + inside[1:] + text[-1:],
                text[:1] + inside[:-1] + text[-1:],
                text[:1] + inside.swapcase() + text[-1:],
            ]
        elif not inside:
            options.append(text[:1] + b" " + text[-1:])
        if options:
            return p.replace(node, rng.choice(options))
    return None


def default(p: Parsed, rng: random.Random) -> Span | None:
    for node in p.pick(rng, ast.arguments):
        assert isinstance(node, ast.arguments)
        values = [d for d in [*node.defaults, *node.kw_defaults] if isinstance(d, ast.Constant)]
        if values and (text := other_constant((chosen := rng.choice(values)).value, rng)):
            return p.replace(chosen, text)
    return None


def index(p: Parsed, rng: random.Random) -> Span | None:
    for node in p.pick(rng, ast.Subscript):
        assert isinstance(node, ast.Subscript)
        at = node.slice
        if isinstance(at, ast.Constant) and isinstance(at.value, int):
            return p.replace(
                at, rng.choice([t for t in ("0", "1", "-1", "2", str(at.value + 1)) if t != str(at.value)])
            )
        if isinstance(at, ast.UnaryOp) and isinstance(at.operand, ast.Constant):
            return p.replace(at, rng.choice(["0", "1", p.text(at.operand).decode()]))
        if isinstance(at, ast.BinOp):
            return p.replace(at, p.text(at.left))
        if isinstance(at, ast.Name):
            return p.replace(at, at.id + rng.choice([" + 1", " - 1"]))
    return None


def slice_bound(p: Parsed, rng: random.Random) -> Span | None:
    for node in p.pick(rng, ast.Slice):
        assert isinstance(node, ast.Slice)
        lower, upper = (p.text(n).decode() if n is not None else "" for n in (node.lower, node.upper))
        start, end = p.span(node)
        others = {(upper, lower), (lower, ""), ("", upper), ("1", upper), (lower, "-1"), (f"{lower or 0} + 1", upper)}
        if upper:
            others |= {(lower, f"{upper} - 1"), (lower, f"{upper} + 1")}
        texts = sorted({f"{a}:{b}" for a, b in others} - {f"{lower}:{upper}"})
        step = p.data[start:end].count(b":") > 1
        if not step:
            return Span(start, end, rng.choice(texts).encode())
    return None


def range_bound(p: Parsed, rng: random.Random) -> Span | None:
    for node in p.pick(rng, ast.Call):
        assert isinstance(node, ast.Call)
        if isinstance(node.func, ast.Name) and node.func.id == "range" and node.args and not node.keywords:
            args = [p.text(a).decode() for a in node.args]
            at = rng.randrange(len(args))
            changed = args.copy()
            changed[at] = rng.choice([f"{args[at]} - 1", f"{args[at]} + 1"])
            options = [changed, ["1", args[-1]] if len(args) == 1 else args[1:], args[:-1] or changed]
            start, end = p.span(node.args[0])[0], p.span(node.args[-1])[1]
            return Span(start, end, ", ".join(rng.choice(options)).encode())
    return None
