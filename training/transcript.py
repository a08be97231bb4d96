"""A conversation in nano's format as token ids, each with its class of loss.

The ids are those of the text that `chat_template.jinja` renders (a test holds the two together). No piece of the
tokenizer crosses a marker, a label, a tag or a newline, so a conversation can be put together from parts that were
encoded before.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

NO_LOSS, TARGET, CODE, SEEN = 0, 1, 2, 3
"""Classes of tokens: prompt text (and the damaged line), the assistant's own, code shown by `read`, and the
assistant's own about a picture."""

NS = "]<]minimax[>["
NANO = Path(__file__).parent.parent / "model/m3_model/nano"


class Encoder:
    """The tokenizer in its two modes: markup, where markers are recognised, and content, where they are plain text."""

    def __init__(self, path: Path = NANO / "tokenizer.json") -> None:
        self._markup = Tokenizer.from_file(str(path))
        self._content = Tokenizer.from_file(str(path))
        self._content.encode_special_tokens = True
        self._cache: dict[str, list[int]] = {}
        self.newline = self.markup("\n")[0]
        self.labels = [self.markup(f"L{n}|")[0] for n in range(1, 1000)]

    def markup(self, text: str) -> list[int]:
        """Ids of the project's own text; remembered, so only for a small number of different texts."""
        ids = self._cache.get(text)
        if ids is None:
            ids = self._cache[text] = self._markup.encode(text, add_special_tokens=False).ids
        return ids

    def content(self, text: str) -> list[int]:
        """Ids of text from outside: a marker in it stays ordinary text."""
        return self._content.encode_batch_fast([text], add_special_tokens=False)[0].ids

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._markup.decode(list(ids), skip_special_tokens=False))


class Transcript:
    """Appends messages; `tokens` and `classes` grow together."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.tokens = array("H")
        self.classes = array("B")
        self._tool_open = False
        self._markup("]~!b[")

    def developer(self, text: str, tools: Sequence[tuple[str, Sequence[str]]]) -> None:
        """The system prompt and the tool list; a tool is its name and its parameters' names."""
        lines = "".join(f"<tool>{name}({', '.join(parameters)})</tool>\n" for name, parameters in tools)
        block = f"<tools>\n{lines}</tools>" if tools else ""
        self._markup("]~b]developer\n")
        self._add(self.encoder.content(text + ("\n" if text and block else "") + block), NO_LOSS)
        self._markup("[e~[\n")

    def user(self, text: str) -> None:
        self._markup("]~b]user\n")
        self._add(self.encoder.content(text), NO_LOSS)
        self._markup("[e~[\n")

    def user_with_image(self, image_tokens: int, text: str) -> int:
        """A picture of so many tokens, and what is asked about it. Returns where the tokens of the picture start."""
        self._markup("]~b]user\n")
        self._markup("]<]start of image[>[")
        start = len(self.tokens)
        self._add(self.encoder.markup("]<]image[>[") * image_tokens, NO_LOSS)
        self._markup("]<]end of image[>[")
        self._add(self.encoder.content(text), NO_LOSS)
        self._markup("[e~[\n")
        return start

    def call(self, name: str, arguments: Mapping[str, str], learnt: bool = True) -> None:
        """One assistant message with one call; parameters in their order. Not `learnt`: shown without loss."""
        kind = TARGET if learnt else NO_LOSS
        self._markup("]~b]ai\n")
        self._markup(f'</mm:think>{NS}<tool_call>\n{NS}<invoke name="{name}">', kind)
        for parameter, value in arguments.items():
            self._markup(f"{NS}<{parameter}>", kind)
            self._add(self.encoder.content(value), kind)
            self._markup(f"{NS}</{parameter}>", kind)
        self._markup(f"{NS}</invoke>\n{NS}</tool_call>[e~[", kind)
        self._markup("\n")

    def result(self, text: str) -> None:
        self.open_result()
        self._add(self.encoder.content(text), NO_LOSS)
        self.close_result()

    def open_result(self) -> None:
        self._markup("]~b]tool\n<response>")

    def close_result(self) -> None:
        self._markup("</response>[e~[\n")

    def code_line(self, number: int, text: str, ids: Sequence[int] | None, kind: int = CODE) -> None:
        """A newline and one labelled line inside a result; `ids` are the line's own when they are known."""
        self.tokens.append(self.encoder.newline)
        self.classes.append(kind)
        if number > len(self.encoder.labels):
            self._add(self.encoder.content(f"L{number}|{text}"), kind)
            return
        self.tokens.append(self.encoder.labels[number - 1])
        self.classes.append(NO_LOSS)
        self._add(self.encoder.content(text) if ids is None else ids, kind)

    def plain(self, text: str) -> None:
        """Text inside an open result."""
        self._add(self.encoder.content(text), NO_LOSS)

    def say(self, text: str) -> None:
        """An assistant message of text alone, which ends the turn."""
        self._markup("]~b]ai\n")
        self._markup("</mm:think>", TARGET)
        self._add(self.encoder.content(text), TARGET)
        self._markup("[e~[", TARGET)
        self._markup("\n")

    def arrays(self) -> tuple[NDArray[np.uint16], NDArray[np.uint8]]:
        return np.frombuffer(self.tokens, dtype=np.uint16), np.frombuffer(self.classes, dtype=np.uint8)

    def _markup(self, text: str, kind: int = NO_LOSS) -> None:
        self._add(self.encoder.markup(text), kind)

    def _add(self, ids: Sequence[int], kind: int) -> None:
        self.tokens.extend(ids)
        self.classes.extend([kind] * len(ids))
