"""Source code as text whose styles are names, so that the theme of the console decides its colours."""

from __future__ import annotations

import functools

from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name, get_lexer_for_filename
from pygments.token import Comment, Keyword, Name, Number, Operator, String, Token, _TokenType
from pygments.util import ClassNotFound
from rich.text import Text

_STYLES: tuple[tuple[_TokenType, str], ...] = (
    (Comment, "code.comment"),
    (String, "code.string"),
    (Number, "code.number"),
    (Keyword, "code.keyword"),
    (Operator.Word, "code.keyword"),
    (Name.Function, "code.name"),
    (Name.Class, "code.name"),
    (Name.Decorator, "code.name"),
    (Token, "code.plain"),
)


def highlight(code: str, lexer: Lexer | None) -> Text:
    """The code with nothing added and nothing lost; plain without a lexer."""
    text = Text(code)
    at = 0
    for token, piece in lexer.get_tokens(code) if lexer is not None else ():
        style = _style(token)
        if style != "code.plain" and code.startswith(piece, at):
            text.stylize(style, at, min(at + len(piece), len(code)))
        at += len(piece)
    return text


@functools.lru_cache(maxsize=64)
def lexer_of_file(path: str) -> Lexer | None:
    try:
        return get_lexer_for_filename(path, stripnl=False, ensurenl=False)
    except (ClassNotFound, ValueError):
        return None


@functools.lru_cache(maxsize=64)
def lexer_of_language(name: str) -> Lexer | None:
    try:
        return get_lexer_by_name(name, stripnl=False, ensurenl=False)
    except (ClassNotFound, ValueError):
        return None


@functools.lru_cache(maxsize=512)
def _style(token: _TokenType) -> str:
    return next(style for kind, style in _STYLES if token in kind)
