"""Where a checkpoint's template runs: Jinja's sandbox, which keeps it from Python, with bounds on time and size.

A template is data from elsewhere, rendered in the thread that all answers share. Jinja has no limits of its own: so
every loop and macro looks at the clock, and everything that makes text or numbers looks at its result.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_SOURCE_CHARS = 2**20
MAX_CHARS = 64 * 2**20
"""Of the rendered text and of every value on the way, about ten times a million tokens."""
MAX_BITS = 4096
"""Of a number."""
_WITH_WIDTHS = frozenset({"batch", "center", "indent", "slice", "wordwrap"})
"""Filters whose numbers say how much they write."""


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox whose templates end. One rendering at a time.

    Not covered: what one operation takes before its result is looked at, for instance a width within a format text.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, *, limit_s: float):
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
        self._limit_s = limit_s
        self._deadline = 0.0

    def compile_bounded(self, source: str) -> jinja2.Template:
        """A template for `render_bounded`. jinja2.TemplateError if it is none, or larger than a template is."""
        if len(source) > MAX_SOURCE_CHARS:
            raise jinja2.TemplateError(f"it has more than {MAX_SOURCE_CHARS} characters")
        self.filters.update({name: self._bounded(name, call) for name, call in self.filters.items()})
        tree = self.parse(source)
        _Checks().visit(tree)
        return self.from_string(tree)

    def render_bounded(self, template: jinja2.Template, variables: Mapping[str, Any]) -> str:
        """The rendered text. jinja2.TemplateError, or whatever the template's own mistakes raise."""
        self._deadline = time.monotonic() + self._limit_s
        pieces: list[str] = []
        num_chars = 0
        for piece in template.generate(**variables):
            pieces.append(piece)
            num_chars += len(piece)
            self.tick()
            if num_chars > MAX_CHARS:
                raise jinja2.TemplateError(f"it writes more than {MAX_CHARS} characters")
        return "".join(pieces)

    def tick(self) -> bool:
        """Called by every turn of a loop and every macro."""
        if time.monotonic() > self._deadline:
            raise jinja2.TemplateError(f"it takes more than {self._limit_s:g} s")
        return True

    def concatenate(self, *parts: Any) -> str:
        """The operator `~`."""
        return str(self._checked("".join(map(str, parts))))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and isinstance(left, int) and isinstance(right, int):
            self._check_number(left.bit_length() * right)
        if operator == "*":
            for text, times in ((left, right), (right, left)):
                if isinstance(text, str | list | tuple) and isinstance(times, int):
                    self._check_size(len(text) * times)
        return self._checked(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(getattr(__obj, "__self__", None), str):  # numbers given to a macro are data
            __self._check_widths(args, kwargs)
        return __self._checked(super().call(__context, __obj, *args, **kwargs))

    def _bounded(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def bounded(*args: Any, **kwargs: Any) -> Any:
            if name in _WITH_WIDTHS:
                self._check_widths(args, kwargs)
            return self._checked(call(*args, **kwargs))

        return bounded

    def _check_widths(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        for value in (*args, *kwargs.values()):
            if isinstance(value, int):
                self._check_size(value)

    def _checked(self, value: Any) -> Any:
        if isinstance(value, int):
            self._check_number(value.bit_length())
        elif isinstance(value, str | list | tuple):
            self._check_size(len(value))
        return value

    def _check_size(self, size: int) -> None:
        if size > MAX_CHARS:
            raise jinja2.TemplateError(f"it makes a value of more than {MAX_CHARS} characters")

    def _check_number(self, num_bits: int) -> None:
        if num_bits > MAX_BITS:
            raise jinja2.TemplateError(f"it makes a number of more than {MAX_BITS} bits")


class _Checks(NodeTransformer):
    """Puts the clock into loops and macros, and makes `~` a call."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.body.insert(0, _statement("tick", node))
        if node.test is not None:  # turns that the test leaves out have no body
            node.test = nodes.And(_call("tick", [], node), node.test, lineno=node.lineno)
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Macro:
        self.generic_visit(node)
        node.body.insert(0, _statement("tick", node))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Call:
        self.generic_visit(node)
        return _call("concatenate", node.nodes, node)


def _call(name: str, arguments: list[nodes.Expr], near: nodes.Node) -> nodes.Call:
    function = nodes.EnvironmentAttribute(name, lineno=near.lineno)
    return nodes.Call(function, arguments, [], None, None, lineno=near.lineno)


def _statement(name: str, near: nodes.Node) -> nodes.ExprStmt:
    return nodes.ExprStmt(_call(name, [], near), lineno=near.lineno)
