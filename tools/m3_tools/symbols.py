"""Definitions of a source file, found by tree-sitter.

A definition's name is dotted from the outside in, `Stock.add` or `outer.inner`, in every language; a method written
outside its type (Go, C++) is named by that type.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath

from tree_sitter import Language, Node, Parser, Query, QueryCursor

_JAVASCRIPT = {
    "function_declaration": "function",
    "generator_function_declaration": "function",
    "class_declaration": "class",
    "abstract_class_declaration": "class",
    "method_definition": "method",
    "interface_declaration": "interface",
    "type_alias_declaration": "type",
    "enum_declaration": "enum",
    "internal_module": "namespace",
    "variable_declarator": "function",
    "public_field_definition": "method",
    "field_definition": "method",
}
_CPP = {
    "function_definition": "function",
    "class_specifier": "class",
    "struct_specifier": "struct",
    "enum_specifier": "enum",
    "union_specifier": "union",
    "namespace_definition": "namespace",
}
_DEFINITIONS: Mapping[str, Mapping[str, str]] = {
    "python": {"function_definition": "function", "class_definition": "class"},
    "javascript": _JAVASCRIPT,
    "typescript": _JAVASCRIPT,
    "tsx": _JAVASCRIPT,
    "go": {"function_declaration": "function", "method_declaration": "method", "type_spec": "type"},
    "rust": {
        "function_item": "function",
        "function_signature_item": "function",
        "struct_item": "struct",
        "enum_item": "enum",
        "union_item": "union",
        "trait_item": "trait",
        "impl_item": "impl",
        "mod_item": "module",
        "macro_definition": "macro",
    },
    "java": {
        "class_declaration": "class",
        "interface_declaration": "interface",
        "enum_declaration": "enum",
        "record_declaration": "record",
        "method_declaration": "method",
        "constructor_declaration": "method",
    },
    "c": {k: v for k, v in _CPP.items() if k not in ("class_specifier", "namespace_definition")},
    "cpp": _CPP,
}
_SUFFIXES: Mapping[str, str] = {
    ".py": "python", ".pyi": "python",
    ".js": "javascript", ".jsx": "javascript", ".mjs": "javascript", ".cjs": "javascript",
    ".ts": "typescript", ".mts": "typescript", ".cts": "typescript", ".tsx": "tsx",
    ".go": "go", ".rs": "rust", ".java": "java", ".c": "c",
    ".h": "cpp", ".cc": "cpp", ".cpp": "cpp", ".cxx": "cpp", ".hh": "cpp", ".hpp": "cpp", ".hxx": "cpp",
}  # fmt: skip
_MODULES = {
    "typescript": ("tree_sitter_typescript", "language_typescript"),
    "tsx": ("tree_sitter_typescript", "language_tsx"),
}
_FUNCTION_VALUES = {"arrow_function", "function_expression", "generator_function"}
_WRAPPERS = {"decorated_definition", "export_statement", "template_declaration"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Definition:
    """One definition. Lines count from 1 and include decorators; `depth` is the number of enclosing definitions."""

    name: str
    kind: str
    first_line: int
    last_line: int
    signature: str
    signature_line: int
    depth: int


def language_of(path: str) -> str | None:
    """The language that the file's suffix names, or None if there is no grammar for it."""
    return _SUFFIXES.get(PurePath(path).suffix.lower())


def definitions(path: str, data: bytes) -> list[Definition]:
    """The definitions in the file in order; none if the language is unknown. A file with errors gives what parses."""
    language = language_of(path)
    return list(_walk(parse(language, data), language)) if language else []


def enclosing(found: list[Definition], line: int) -> Definition | None:
    """The innermost definition that holds the line."""
    holding = [d for d in found if d.first_line <= line <= d.last_line]
    return max(holding, key=lambda d: (d.first_line, d.depth), default=None)


@functools.cache
def _language(name: str) -> Language:
    module, function = _MODULES.get(name, (f"tree_sitter_{name}", "language"))
    return Language(getattr(importlib.import_module(module), function)())


def parse(language: str, data: bytes) -> Node:
    """The root of the syntax tree. Never fails; what does not parse is an error node."""
    return Parser(_language(language)).parse(data if b"\n" in data else data.replace(b"\r", b"\n")).root_node


def _walk(root: Node, language: str) -> Iterator[Definition]:
    """Definitions in the order of their text, found by a query: to walk through all nodes takes most of the time."""
    kinds = _DEFINITIONS[language]
    found = QueryCursor(_query(language)).captures(root).get("definition", [])
    around: list[tuple[int, str]] = []  # where each enclosing definition ends, and its full name
    for node in sorted(found, key=lambda node: (node.start_byte, -node.end_byte)):
        name = _name(node, language)
        if name is None:
            continue
        while around and around[-1][0] <= node.start_byte:
            around.pop()
        prefix = around[-1][1] if around else ""
        full = f"{prefix}.{name}" if prefix else name
        kind = kinds[node.type]
        outer = _with_wrappers(node)
        yield Definition(
            name=full,
            kind="method" if kind == "function" and prefix and _in_type(node) else kind,
            first_line=outer.start_point.row + 1,
            last_line=outer.end_point.row + (1 if outer.end_point.column else 0),
            signature=_signature(node),
            signature_line=node.start_point.row + 1,
            depth=len(around),
        )
        around.append((node.end_byte, full))


@functools.cache
def _query(language: str) -> Query:
    grammar = _language(language)
    kinds = [kind for kind in _DEFINITIONS[language] if grammar.id_for_node_kind(kind, True) is not None]
    return Query(grammar, f"[{' '.join(f'({kind})' for kind in kinds)}] @definition")


def _name(node: Node, language: str) -> str | None:
    """The name that the node defines, or None if it defines nothing (a forward declaration, an ordinary variable)."""
    if node.type in ("variable_declarator", "public_field_definition", "field_definition"):
        value = node.child_by_field_name("value")
        if value is None or value.type not in _FUNCTION_VALUES:
            return None
        return _text(node.child_by_field_name("name") or node.child_by_field_name("property"))
    if node.type == "impl_item":
        return _bare(_text(node.child_by_field_name("type")))
    if language in ("c", "cpp"):
        if node.child_by_field_name("body") is None:
            return None
        if node.type == "function_definition":
            inner: Node | None = node
            while inner is not None and inner.child_by_field_name("declarator") is not None:
                inner = inner.child_by_field_name("declarator")
            if inner is not None and inner.type == "reference_declarator":
                inner = next((c for c in inner.named_children if c.type == "function_declarator"), inner)
                inner = inner.child_by_field_name("declarator") or inner
            return _bare(_text(inner))
    name = _text(node.child_by_field_name("name"))
    receiver = node.child_by_field_name("receiver")
    if receiver is not None and name:
        owner = re.search(r"(\w+)(?:\[[^\]]*\])?\s*\)$", _text(receiver) or "")
        return f"{owner.group(1)}.{name}" if owner else name
    return _bare(name)


def _bare(name: str | None) -> str | None:
    """`ns::Stack<T>` as `ns.Stack`."""
    return re.sub(r"<.*>", "", name).replace("::", ".").strip() or None if name else None


def _text(node: Node | None) -> str | None:
    return node.text.decode("utf-8", "replace") if node is not None and node.text is not None else None


def _with_wrappers(node: Node) -> Node:
    """The node with what belongs to it on the outside: decorators, `export`, `template <…>`, `const` of a function."""
    parent = node.parent
    while parent is not None and (
        parent.type in _WRAPPERS
        or (
            parent.type in ("lexical_declaration", "variable_declaration", "type_declaration")
            and parent.named_child_count == 1
        )
    ):
        node, parent = parent, parent.parent
    return node


def _in_type(node: Node) -> bool:
    parent = node.parent
    while parent is not None and (
        parent.type in _WRAPPERS or parent.type in ("block", "declaration_list", "field_declaration_list")
    ):
        parent = parent.parent
    return parent is not None and not parent.type.startswith("function") and "namespace" not in parent.type


def _signature(node: Node) -> str:
    """The definition up to its body, on one line."""
    body = node.child_by_field_name("body")
    value = node.child_by_field_name("value")
    if body is None and value is not None:
        body = value.child_by_field_name("body")
    text = node.text or b""
    head = text.split(b"\n", 1)[0] if body is None else text[: max(0, body.start_byte - node.start_byte)]
    line = " ".join(head.decode("utf-8", "replace").split()).rstrip("{ ")
    return line if len(line) <= 200 else line[:199] + "…"
