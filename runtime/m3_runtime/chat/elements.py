"""The body of a call as a tree of tags. It is no XML: text is raw, and only behind the namespace mark is a tag one."""

from __future__ import annotations

import dataclasses
import re

from m3_runtime.chat.syntax import NAMESPACE

_MAX_DEPTH = 64


@dataclasses.dataclass
class Element:
    """One tag of a call: its own text, and its children in order. `raw` is everything between the tags as written."""

    name: str
    text: str = ""
    raw: str = ""
    children: list[Element] = dataclasses.field(default_factory=list)


def parse_elements(body: str, mark: str) -> list[Element]:
    """The top-level elements of a call's body. ValueError says which tag is wrong."""
    root = Element("")
    path: list[tuple[Element, int]] = [(root, 0)]
    position = 0
    for tag in re.finditer(re.escape(mark) + r"\s*<(/?)([^<>]+)>", body):
        element, begin = path[-1]
        element.text += body[position : tag.start()]
        closing, name = tag.group(1) == "/", tag.group(2).strip()
        if not closing:
            if len(path) > _MAX_DEPTH:
                raise ValueError(f"the call is nested more than {_MAX_DEPTH} deep")
            child = Element(name)
            element.children.append(child)
            path.append((child, tag.end()))
        elif len(path) == 1 or element.name != name:
            raise ValueError(f"</{name}> closes <{element.name or 'invoke'}>")
        else:
            element.raw = body[begin : tag.start()].replace(mark, NAMESPACE)
            path.pop()
        position = tag.end()
    if len(path) > 1:
        raise ValueError(f"<{path[-1][0].name}> is not closed")
    if (root.text + body[position:]).strip():
        raise ValueError("there is text between the parameters")
    return root.children
