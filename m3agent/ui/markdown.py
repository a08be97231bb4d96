"""An answer as Markdown: the code in its language's colours, links with their address in sight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markdown import CodeBlock, Markdown
from rich.padding import Padding
from rich.text import Text

from m3agent.ui.clean import clean, with_bounded_words
from m3agent.ui.code import highlight, lexer_of_language

MAX_MARKDOWN_CHARACTERS = 20_000
MAX_BRACKETS = 200
CLICKABLE = ("http://", "https://")
_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
"""Rich's own parser takes `vector<int>` for HTML, and Rich shows none."""


def answer_block(block: str, *, hyperlinks: bool = False) -> RenderableType:
    """One block of an answer as Markdown; as plain text where a Markdown parser would take its time.

    With `hyperlinks` the addresses of links can be clicked. They stand in sight in any case, so that no word leads to a
    place that nobody sees.
    """
    if len(block) > MAX_MARKDOWN_CHARACTERS or block.count("[") > MAX_BRACKETS:
        return plain_text(block)
    shown = _Markdown("", hyperlinks=hyperlinks)
    tokens = _PARSER.parse(with_bounded_words(clean(block)))
    if hyperlinks:
        for token in tokens:
            token.children = list(_with_addresses(token.children)) if token.children else token.children
    shown.parsed = tokens
    return shown


def plain_text(text: str) -> Text:
    return Text(with_bounded_words(clean(text)).strip("\n"))


class _Code(CodeBlock):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = highlight(str(self.text).rstrip(), lexer_of_language(self.lexer_name))
        yield Padding(code, (0, 0, 0, 2), expand=False)


class _Markdown(Markdown):
    elements: ClassVar = {**Markdown.elements, "fence": _Code, "code_block": _Code}


def _with_addresses(tokens: Sequence[Token]) -> Iterator[Token]:
    """The inline tokens with the address of each link behind its words; it is the address that leads there."""
    words: list[Token] = []
    link: Token | None = None
    for token in tokens:
        if token.type == "link_open":
            link, words = token, []
        elif token.type == "link_close" and link is not None:
            address = str(link.attrs.get("href", ""))
            known = "".join(word.content for word in words) in (address, address.removeprefix("mailto:"))
            shown = [Token("text", "", 0, content=address)]
            clickable = [link, *shown, token] if address.startswith(CLICKABLE) else shown
            if known:
                yield from clickable
            else:
                yield from (*words, Token("text", "", 0, content=" ("), *clickable, Token("text", "", 0, content=")"))
            link = None
        elif link is not None:
            words.append(token)
        else:
            yield token
