"""Types back from text: every leaf of an M3 call is text, and only the tool's JSON schema says what it means."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from m3_runtime.chat.elements import Element

_INTEGER = re.compile(r"[+-]?\d+")
ITEM = "item"
"""The tag of an array's elements."""


_LISTS = ("anyOf", "oneOf", "allOf")
_MAPS = ("properties", "$defs", "definitions")


def check_schema(schema: Any, where: str) -> None:
    """ValueError that names the place if a part of a JSON schema that is read here has the wrong form.

    Property names become tags, so they cannot hold angle brackets or begin or end with white space.
    """
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        raise ValueError(f"{where} is {json.dumps(schema)[:80]}, not a schema")
    kinds = schema.get("type", "string")
    if not all(isinstance(kind, str) for kind in (kinds if isinstance(kinds, list) else [kinds])):
        raise ValueError(f"{where}.type must be text or a list of texts")
    if not isinstance(schema.get("enum", []), list):
        raise ValueError(f"{where}.enum must be a list")
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise ValueError(f"{where}.required must be a list of names")
    for key in _MAPS:
        if not isinstance(schema.get(key, {}), Mapping):
            raise ValueError(f"{where}.{key} must be an object")
        for name, part in schema.get(key, {}).items():
            if key == "properties" and not re.fullmatch(r"[^<>\s]([^<>]*[^<>\s])?", name):
                raise ValueError(f"{where}.properties has the name {name!r}, which cannot be a tag")
            check_schema(part, f"{where}.{key}.{name}")
    for key in _LISTS:
        if not isinstance(schema.get(key, []), list):
            raise ValueError(f"{where}.{key} must be a list of schemas")
        for index, part in enumerate(schema.get(key, [])):
            check_schema(part, f"{where}.{key}[{index}]")
    if "additionalProperties" in schema:
        check_schema(schema["additionalProperties"], f"{where}.additionalProperties")
    items = schema.get("items", [])  # one schema; a list of them in old drafts
    for part in items if isinstance(items, list) else [items]:
        check_schema(part, f"{where}.items")


def resolve(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema behind local `$ref`s; an empty schema for what cannot be found."""
    seen = 0
    while isinstance(schema, Mapping) and "$ref" in schema and seen < 32:
        target: Any = root
        for key in str(schema["$ref"]).removeprefix("#/").split("/"):
            target = target.get(key, {}) if isinstance(target, Mapping) else {}
        schema, seen = target, seen + 1
    return schema if isinstance(schema, Mapping) else {}


def alternatives(schema: Any, root: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The schemas of which one must hold; a list of types counts as alternatives, `allOf` is merged."""
    schema = resolve(schema, root)
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            return [found for option in schema[key] for found in alternatives(option, root)]
    if isinstance(schema.get("allOf"), list):
        merged: dict[str, Any] = {k: v for k, v in schema.items() if k != "allOf"}
        for part in schema["allOf"]:
            merged |= resolve(part, root)
        return [merged]
    if isinstance(schema.get("type"), list):
        return [{**schema, "type": kind} for kind in schema["type"]]
    return [schema]


def value_of(element: Element, schema: Any, root: Mapping[str, Any]) -> Any:
    """The JSON value of an element. Text that fits nothing stays a string: the tool's own check reports it."""
    options = alternatives(schema, root)
    # Text fits a string always, so the stricter alternatives are asked first.
    for option in sorted(options, key=lambda o: o.get("type") in ("string", None)):
        fits, value = _convert(element, option, root)
        if fits:
            return value
    return element.raw


def _convert(element: Element, schema: Mapping[str, Any], root: Mapping[str, Any]) -> tuple[bool, Any]:
    kind, text = schema.get("type"), element.text.strip()
    choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(choices, list):
        for choice in choices:
            written = choice if isinstance(choice, str) else json.dumps(choice)
            if element.raw == written or (not isinstance(choice, str) and text == written):
                return True, choice
        return False, None
    if kind == "object" or (kind is None and "properties" in schema):
        return _object(element, schema, root)
    if kind == "array" or (kind is None and "items" in schema):
        return _array(element, schema, root)
    if kind == "string":
        return True, element.raw
    if element.children:
        return kind is None, _untyped(element)
    if kind == "integer":
        return (True, int(text)) if _INTEGER.fullmatch(text) else (False, None)
    if kind == "number":
        return _number(text)
    if kind == "boolean":
        return text.lower() in ("true", "false"), text.lower() == "true"
    if kind == "null":
        return text == "null", None
    return True, element.raw


def _number(text: str) -> tuple[bool, Any]:
    if _INTEGER.fullmatch(text):
        return True, int(text)
    try:
        number = float(text)
    except ValueError:
        return False, None
    return number == number and abs(number) != float("inf"), number


def _object(element: Element, schema: Mapping[str, Any], root: Mapping[str, Any]) -> tuple[bool, Any]:
    if not element.children and element.text.strip():
        return _from_json(element, dict)
    properties = schema.get("properties", {})
    other = schema.get("additionalProperties")
    other = other if isinstance(other, Mapping) else {}
    return True, {c.name: value_of(c, properties.get(c.name, other), root) for c in element.children}


def _array(element: Element, schema: Mapping[str, Any], root: Mapping[str, Any]) -> tuple[bool, Any]:
    if not element.children and element.text.strip():
        return _from_json(element, list)
    if any(child.name != ITEM for child in element.children):
        return False, None
    return True, [value_of(child, schema.get("items", {}), root) for child in element.children]


def _from_json(element: Element, kind: type) -> tuple[bool, Any]:
    """Models sometimes write JSON where tags belong; it means the same."""
    try:
        value = json.loads(element.text)
    except json.JSONDecodeError:
        return False, None
    return isinstance(value, kind), value


def _untyped(element: Element) -> Any:
    if not element.children:
        return element.raw
    if all(child.name == ITEM for child in element.children):
        return [_untyped(child) for child in element.children]
    return {child.name: _untyped(child) for child in element.children}
