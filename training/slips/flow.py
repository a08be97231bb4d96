"""Slips of what happens next: returns, exceptions, loop exits, a call or a line too many."""

from __future__ import annotations

import ast
import random

from training.syntax import Parsed, Span

_WRAPPERS = [
    ("list(", ")"), ("str(", ")"), ("len(", ")"), ("not ", ""), ("-", ""), ("sorted(", ")"), ("int(", ")"),
    ("abs(", ")"), ("set(", ")"), ("[", "]"), ("(", ",)"), ("", "[0]"), ("", ".strip()"), ("", " + 1"), ("", " - 1"),
    ("", "()"), ("", "[1:]"),
]  # fmt: skip
_EXCEPTIONS = [
    "ValueError",
    "TypeError",
    "KeyError",
    "IndexError",
    "AttributeError",
    "RuntimeError",
    "OSError",
    "StopIteration",
    "Exception",
]


def returned(p: Parsed, rng: random.Random) -> Span | None:
    names = sorted({n.id for n in p.all(ast.Name)})
    for node in p.pick(rng, ast.Return):
        assert isinstance(node, ast.Return)
        if node.value is not None:
            inner = [c for c in ast.walk(node.value) if isinstance(c, ast.expr) and c is not node.value]
            texts = [*rng.sample(names, min(2, len(names))), "None", "not " + p.text(node.value).decode()]
            if inner and not isinstance(node.value, ast.JoinedStr):
                texts.append(p.text(rng.choice(inner)).decode())
            return p.replace(node.value, rng.choice(texts))
    return None


def exception(p: Parsed, rng: random.Random) -> Span | None:
    for node in p.pick(rng, ast.ExceptHandler, ast.Raise):
        kind = node.type if isinstance(node, ast.ExceptHandler) else node.exc  # type: ignore[attr-defined]
        kind = kind.func if isinstance(kind, ast.Call) else kind
        if isinstance(kind, ast.Name):
            return p.replace(kind, rng.choice([e for e in _EXCEPTIONS if e != kind.id]))
    return None


def loop_control(p: Parsed, rng: random.Random) -> Span | None:
    for node in p.pick(rng, ast.Break, ast.Continue):
        return p.replace(node, rng.choice(["continue", "pass"] if isinstance(node, ast.Break) else ["break", "pass"]))
    return None


def wrapping(p: Parsed, rng: random.Random) -> Span | None:
    """A call or operator too many around an expression."""
    for node in p.pick(rng, ast.Name, ast.Attribute, ast.Call, ast.Subscript):
        if isinstance(getattr(node, "ctx", ast.Load()), ast.Load) and not isinstance(
            p.parents.get(node), ast.Expr | ast.Attribute
        ):
            parent = p.parents.get(node)
            if isinstance(parent, ast.Call) and parent.func is node:
                continue
            before, after = rng.choice(_WRAPPERS)
            return p.replace(node, before.encode() + p.text(node) + after.encode())
    return None


def added_line(p: Parsed, rng: random.Random) -> Span | None:
    """A line too many: a statement repeated elsewhere, an early exit, a value reset."""
    statements = [
        s for k in (ast.Assign, ast.AugAssign, ast.Expr, ast.Return) for s in p.all(k) if b"\n" not in p.text(s)
    ]
    statements = [s for s in statements if not isinstance(getattr(s, "value", None), ast.Constant)]
    for node in p.pick(rng, ast.Assign, ast.AugAssign, ast.Expr, ast.Return, ast.If, ast.For):
        start, _ = p.span(node)
        line_start, _ = p.lines(p.line(node), 1)
        indent = p.data[line_start:start]
        if indent.strip() or isinstance(p.parents.get(node), ast.Module | ast.ClassDef):
            continue
        names = sorted({n.id for n in p.all(ast.Name) if isinstance(n.ctx, ast.Store)})
        options = [b"return", b"return None"] + ([p.text(rng.choice(statements))] * 3 if statements else [])
        if names:
            options += [f"{rng.choice(names)} = {rng.choice(['None', '0', '[]', '1'])}".encode()] * 2
        return Span(line_start, line_start, indent + rng.choice(options) + b"\n")
    return None
