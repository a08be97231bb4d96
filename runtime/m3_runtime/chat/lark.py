"""The grammar of an answer, written in llguidance's dialect of Lark."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from m3_runtime.chat.schema import ITEM, alternatives
from m3_runtime.chat.syntax import CALLS_END, CALLS_START, INVOKE_END, NAMESPACE, THINK_END, THINK_START, invoke_start

_TERMINALS = """
TEXT: /(?s:.*)/
KEY: /[A-Za-z_][A-Za-z0-9_.-]*/
INTEGER: /-?(0|[1-9][0-9]*)/
NUMBER: /-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?/
"""


_COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class LarkBuilder:
    """Writes grammars over one vocabulary. `marks` maps a literal that is one token to its id."""

    def __init__(self, marks: Mapping[str, int], encode: Callable[[str], list[int]], end_of_turn: int):
        self._marks, self._encode, self._end = marks, encode, end_of_turn
        self._mark = re.compile("(" + "|".join(re.escape(m) for m in sorted(marks, key=len, reverse=True)) + ")")

    def answer(
        self,
        tools: Sequence[Mapping[str, Any]],
        *,
        thinking: str,
        tool_choice: str,
        fixed_arguments: Mapping[str, Sequence[str]],
        single: bool,
        may_think: bool,
        reply_schema: Mapping[str, Any] | None = None,
    ) -> str:
        """The whole grammar; see GrammarCompiler.compile."""
        rules = _Rules(self, fixed_arguments)
        named = {tool["function"]["name"]: tool["function"] for tool in tools}
        if tool_choice not in ("", "required"):
            if tool_choice not in named:
                raise ValueError(f"tool_choice names {tool_choice!r}; the tools are {', '.join(named) or 'none'}")
            named = {tool_choice: named[tool_choice]}
        schemas = {name: tool.get("parameters") or {} for name, tool in named.items()}
        unknown = [p for p in fixed_arguments if not any(p in s.get("properties", {}) for s in schemas.values())]
        if unknown:
            raise ValueError(f"fixed_arguments names {unknown[0]!r}, which is no parameter of {', '.join(named)}")
        calls = [rules.invoke(name, schema) for name, schema in schemas.items()]
        block = self.literal(f"{NAMESPACE}{CALLS_START}\n")
        block += f" ({' | '.join(calls)}){'' if single else '+'} " + self.literal(f"{NAMESPACE}{CALLS_END}")
        forced = tool_choice != ""
        text = "" if forced else "TEXT "
        start, end = self.literal(THINK_START), self.literal(THINK_END)
        adaptive = f"({start} TEXT {end} | {end})" if may_think else end
        opening = {
            "enabled": f"TEXT {end} {text}",
            "disabled": text,
            # Before a demanded call the mark must come; before text a model may forget it.
            "adaptive": f"{adaptive}{'' if forced else '?'} {text}",
        }[thinking]
        if reply_schema is not None and not forced:
            # The text is JSON, or there is none and calls stand in its place. Spaces in JSON are bound, too: a model
            # that is unsure of what comes next would write them without end.
            opening = opening.removesuffix("TEXT ")
            rules.lines.append(f"reply: %json {json.dumps({**reply_schema, 'x-guidance': _COMPACT})}")
            body = opening + (f"(reply | {block})" if calls else "reply")
        else:
            body = opening + (block if forced else f"({block})?" if calls else "")
        return f"start: {body} <[{self._end}]>\n" + "\n".join(rules.lines) + _TERMINALS

    def literal(self, text: str) -> str:
        """The text as tokens where it holds marks, as a quoted string elsewhere."""
        pieces = self._mark.split(text)
        return " ".join(f"<[{self._marks[p]}]>" if p in self._marks else _quoted(p) for p in pieces if p)

    def one_of(self, values: Sequence[str], *, after_mark: bool) -> str:
        """One of several texts; between two marks, each in the one spelling that the tokenizer gives it."""
        options = []
        for value in values:
            exact = after_mark and value
            tokens = " ".join(f"<[{token}]>" for token in self._encode(value)) if exact else ""
            options.append(tokens or _quoted(value))
        return "(" + " | ".join(options) + ")"

    def is_mark(self, text: str) -> bool:
        return text in self._marks


class _Rules:
    """Collects the named rules of one grammar."""

    def __init__(self, builder: LarkBuilder, fixed: Mapping[str, Sequence[str]]):
        self._builder, self._fixed = builder, fixed
        self.lines: list[str] = []
        self._named: dict[str, str] = {}

    def invoke(self, name: str, schema: Mapping[str, Any]) -> str:
        fixed = {p: list(values) for p, values in self._fixed.items() if p in schema.get("properties", {})}
        head = self._builder.literal(NAMESPACE + invoke_start(name))
        parameters = self._properties(schema, schema, fixed)
        return self._rule(f"{head} {parameters} {self._builder.literal(f'{NAMESPACE}{INVOKE_END}' + chr(10))}")

    def _properties(
        self, schema: Mapping[str, Any], root: Mapping[str, Any], fixed: Mapping[str, Sequence[str]]
    ) -> str:
        required = schema.get("required", [])
        parts = []
        for name, part in schema.get("properties", {}).items():
            opening = f"<{name}>"
            if name in fixed:
                value = self._builder.one_of(fixed[name], after_mark=self._builder.is_mark(opening))
            else:
                value = self._value(part, root, self._builder.is_mark(opening))
            element = f"{self._tag(opening)} {value} {self._tag(f'</{name}>')}"
            parts.append(element if name in required or name in fixed else f"({element})?")
        return " ".join(parts)

    def _value(self, schema: Any, root: Mapping[str, Any], after_mark: bool) -> str:
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        if reference in self._named:
            return self._named[reference]
        if reference is not None:
            # The name is known before the rule is written, so that a schema may contain itself.
            self._named[reference] = name = f"r{len(self._named)}_{len(self.lines)}"
            self.lines.append("")
            place = len(self.lines) - 1
            self.lines[place] = f"{name}: {self._options(schema, root, after_mark)}"
            return name
        return self._options(schema, root, after_mark)

    def _options(self, schema: Any, root: Mapping[str, Any], after_mark: bool) -> str:
        found = [self._single(option, root, after_mark) for option in alternatives(schema, root)]
        options = list(dict.fromkeys(option for option in found if option is not None))
        if "TEXT" in options or not options:
            return "TEXT"
        return options[0] if len(options) == 1 else f"({' | '.join(options)})"

    def _single(self, schema: Mapping[str, Any], root: Mapping[str, Any], after_mark: bool) -> str | None:
        kind = schema.get("type")
        choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if choices:
            written = [c if isinstance(c, str) else json.dumps(c) for c in choices if c is not None]
            return self._builder.one_of(written, after_mark=after_mark) if written else None
        if kind == "null":
            return None  # an absent value is left out, never written
        if kind == "integer":
            return "INTEGER"
        if kind == "number":
            return "NUMBER"
        if kind == "boolean":
            return '("true" | "false")'
        if kind == "array":
            items = self._value(schema.get("items", {}), root, self._builder.is_mark(f"<{ITEM}>"))
            return f"({self._tag(f'<{ITEM}>')} {items} {self._tag(f'</{ITEM}>')})*"
        if kind == "object" and schema.get("properties"):
            return self._rule(self._properties(schema, root, {}))
        if kind == "object":
            other = schema.get("additionalProperties")
            value = self._value(other if isinstance(other, Mapping) else {}, root, False)
            mark = self._builder.literal(NAMESPACE)
            return f'({mark} "<" KEY ">" {value} {mark} "</" KEY ">")*'
        return "TEXT"

    def _tag(self, tag: str) -> str:
        return self._builder.literal(NAMESPACE + tag)

    def _rule(self, body: str) -> str:
        name = f"r{len(self.lines)}"
        self.lines.append(f"{name}: {body}")
        return name


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
