"""Runs as a program of its own: parses lines of bash from stdin, writes syntax trees to stdout.

A line comes as its length in bytes and a newline, then the bytes. A tree goes back as one line of JSON: null if it
holds errors, else [type, named, start, end, children] for each node.
"""

import json
import sys

import tree_sitter_bash
from tree_sitter import Language, Node, Parser


def main() -> None:
    language = Language(tree_sitter_bash.language())
    while head := sys.stdin.buffer.readline():
        source = sys.stdin.buffer.read(int(head))
        root = Parser(language).parse(source).root_node
        print(json.dumps(None if root.has_error else as_list(root), separators=(",", ":")), flush=True)


def as_list(node: Node) -> list[object]:
    return [node.type, node.is_named, node.start_byte, node.end_byte, [as_list(child) for child in node.children]]


if __name__ == "__main__":
    sys.setrecursionlimit(10_000)
    main()
