"""A model's arguments as a tool's typed ones: lenient where the meaning is certain, else one plain line a problem.

Taken silently: numbers and booleans as strings, a null for a parameter that may be left out, a list given as JSON text
or as its only item, and the names that other tools use for the same parameter. None of it stands in the schema.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import json
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

M = TypeVar("M", bound=BaseModel)
Schema = Mapping[str, Any]

ALIASES: Mapping[str, tuple[str, ...]] = {
    "path": ("file_path", "filepath", "filename", "file_name", "file", "target_file", "directory", "dir", "folder"),
    "old": ("old_string", "old_str", "old_text", "search"),
    "new": ("new_string", "new_str", "new_text", "replace", "replacement"),
    "replace_all": ("replaceAll", "all"),
    "content": ("contents", "text", "file_text", "body"),
    "text": ("content", "contents", "new_text", "new_string"),
    "pattern": ("regex", "query", "search", "expression"),
    "glob": ("include", "file_pattern"),
    "ignore_case": ("case_insensitive", "ignorecase"),
    "literal": ("fixed_strings", "fixed_string"),
    "command": ("cmd", "script"),
    "workdir": ("cwd", "working_directory", "directory", "dir"),
    "timeout_s": ("timeout", "timeout_seconds"),
    "start": ("start_line", "line_start", "offset"),
    "end": ("end_line", "line_end"),
    "line": ("line_number", "label"),
    "symbol": ("name", "definition"),
    "tests": ("ids", "test_ids", "test", "test_id"),
    "items": ("todos", "steps", "tasks"),
    "to": ("destination", "target", "new_path", "dest"),
}
_MAX_SHOWN_CHARS = 60


class BadArguments(ValueError):
    """The arguments do not fit; the text has a line for every problem."""


def named_arguments(arguments: Mapping[str, Any], args_type: type[BaseModel]) -> dict[str, Any]:
    """The arguments under the parameters' own names, unchecked: what a person should see before the call runs."""
    schema = _schema(args_type)
    named: dict[str, Any] = _lenient(arguments, schema, schema)
    return named


def parse_arguments(arguments: Mapping[str, Any], args_type: type[M]) -> M:
    """The arguments as `args_type`. Raises BadArguments."""
    schema = _schema(args_type)
    try:
        return args_type.model_validate(named_arguments(arguments, args_type))
    except ValidationError as error:
        # A problem that pydantic sees in several members of a union has one line.
        problems = dict.fromkeys(_problem(dict(e), schema) for e in error.errors(include_url=False))
        names = ", ".join(schema.get("properties", {}))
        raise BadArguments("\n".join([*problems, f"The parameters are: {names}."])) from None


@functools.cache
def _schema(args_type: type[BaseModel]) -> Schema:
    return args_type.model_json_schema()


def _lenient(value: Any, schema: Schema, root: Schema) -> Any:
    """`value` nearer to `schema`; what is not certain stays, for the check to refuse."""
    schema = _resolved(schema, root)
    if schema.get("type") == "array":
        return _as_list(value, schema, root)
    if schema.get("type") != "object" or not isinstance(value, Mapping):
        return value
    properties: Schema = schema.get("properties", {})
    named = _named(value, properties)
    required = schema.get("required", ())
    return {
        name: _lenient(given, properties[name], root) if name in properties else given
        for name, given in named.items()
        if given is not None or name in required or name not in properties
    }


def _named(value: Mapping[str, Any], properties: Schema) -> dict[str, Any]:
    """`value` with every known alias replaced by the parameter's name, unless that parameter is given as well."""
    named = dict(value)
    for name in properties:
        for alias in ALIASES.get(name, ()):
            if name not in named and alias in named and alias not in properties:
                named[name] = named.pop(alias)
    return named


def _as_list(value: Any, schema: Schema, root: Schema) -> Any:
    if isinstance(value, str) and value.lstrip().startswith(("[", "{")):
        with contextlib.suppress(ValueError):  # an item may begin like JSON and be none
            value = json.loads(value)
    items: Schema = schema.get("items", {})
    if isinstance(value, Mapping) or (isinstance(value, str) and value and items.get("type") == "string"):
        value = [value]
    return [_lenient(item, items, root) for item in value] if isinstance(value, list | tuple) else value


def _resolved(schema: Schema, root: Schema) -> Schema:
    """The schema itself for a reference, and the part that is not null for an optional one."""
    if "$ref" in schema:
        found: Schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
        return found
    choices = [s for s in schema.get("anyOf", ()) if s.get("type") != "null"]
    return _resolved(choices[0], root) if len(choices) == 1 else schema


def _problem(error: Mapping[str, Any], root: Schema) -> str:
    """One line: the parameter, what was given, what is expected."""
    where, schema, parent = "", root, root
    for part in error["loc"]:
        parent = schema
        if isinstance(part, int):
            where += f"[{part}]"
            schema = _resolved(schema.get("items", {}), root)
        else:
            where += f".{part}" if where else str(part)
            schema = _resolved(schema.get("properties", {}).get(part, {}), root)
    if error["type"] == "missing":
        return f"{where} is missing; expected {_expected(schema, root)}."
    if error["type"] == "extra_forbidden":
        names = {alias: name for name in parent.get("properties", {}) for alias in (name, *ALIASES.get(name, ()))}
        near = difflib.get_close_matches(str(error["loc"][-1]), list(names), n=1)
        return f"{_short(where)} is not a parameter." + (f" Did you mean {names[near[0]]}?" if near else "")
    if error["type"] == "value_error":
        return f"{where or 'arguments'}: {error['msg'].removeprefix('Value error, ')}"
    return f"{where or 'arguments'}: given {_given(error['input'])}, expected {_expected(schema, root)}."


def _expected(schema: Schema, root: Schema) -> str:
    schema = _resolved(schema, root)
    if "enum" in schema:
        return "one of " + ", ".join(map(str, schema["enum"]))
    kind: str = schema.get("type", "a value")
    if kind == "array":
        return f"a list, each item {_expected(schema.get('items', {}), root)}"
    if kind == "object":
        return "an object with " + ", ".join(schema.get("properties", {}))
    if kind == "string":
        return "text that is not empty" if schema.get("minLength") else "text"
    words = {"integer": "a whole number", "number": "a number", "boolean": "true or false"}.get(kind, kind)
    limits = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
    return ", ".join([words, *(f"{text} {schema[key]:g}" for key, text in limits.items() if key in schema)])


def _given(value: Any) -> str:
    return _short(json.dumps(value, ensure_ascii=False, default=str))


def _short(text: str) -> str:
    text = text.encode("utf-8", "backslashreplace").decode()  # half a surrogate pair cannot be sent back
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return text if len(text) <= _MAX_SHOWN_CHARS else text[:_MAX_SHOWN_CHARS] + "…"
