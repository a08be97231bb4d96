"""From messages to token ids, such that no text of a user, a file or a tool can become a mark.

Every marker literal inside the messages is replaced by a placeholder before the template runs. The markers that are in
the rendered text afterwards come from the template alone and become their ids; between them the placeholders turn back
into the literals, which are encoded as ordinary text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from m3_model.tokenizer import Tokenizer
from m3_runtime.chat.template import ChatMessage, ChatTemplate

_ESCAPE = "\ue000"
_FIRST = 0xE100


class PromptEncoder:
    """Renders with one template and encodes with one tokenizer."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer):
        self.template, self.tokenizer = template, tokenizer
        markers = sorted((tokenizer.decode([i]) for i in tokenizer.special_ids), key=lambda m: (-len(m), m))
        self._ids = {marker: token for marker in markers if (token := tokenizer.token_id(marker)) is not None}
        self._literals = [*markers, _ESCAPE]
        self._codes = {literal: _ESCAPE + chr(_FIRST + i) for i, literal in enumerate(self._literals)}
        self._any_literal = re.compile("|".join(map(re.escape, self._literals)))
        self._any_marker = re.compile("(" + "|".join(map(re.escape, markers)) + ")") if markers else None
        self._any_code = re.compile(f"{_ESCAPE}(.)", re.DOTALL)

    def render(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        thinking: str | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The conversation as text in which every literal that came from a message is a placeholder."""
        return self.template.render(
            self._mark(list(messages)),
            self._mark(list(tools)),
            thinking=thinking,
            add_generation_prompt=add_generation_prompt,
        )

    def encode_rendered(self, text: str) -> list[int]:
        """The ids of text from `render`, or of a part of it that begins or ends at a marker."""
        pieces = self._any_marker.split(text) if self._any_marker else [text]
        plain = self.tokenizer.encode_batch([self._unmark(p) for p in pieces[::2]], special=False)
        result: list[int] = []
        for index, ids in enumerate(plain):
            result += ids
            if 2 * index + 1 < len(pieces):
                result.append(self._ids[pieces[2 * index + 1]])
        return result

    def encode(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        thinking: str | None = None,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """The token ids of a conversation."""
        rendered = self.render(messages, tools, thinking=thinking, add_generation_prompt=add_generation_prompt)
        return self.encode_rendered(rendered)

    @property
    def markers(self) -> frozenset[str]:
        """The literals that are markers of this tokenizer."""
        return frozenset(self._ids)

    def _mark(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._any_literal.sub(lambda m: self._codes[m.group()], value)
        if isinstance(value, Mapping):
            return {self._mark(k): self._mark(v) for k, v in value.items()}
        if isinstance(value, Sequence):
            return [self._mark(v) for v in value]
        return value

    def _unmark(self, text: str) -> str:
        return self._any_code.sub(lambda m: self._literals[ord(m.group(1)) - _FIRST], text)
