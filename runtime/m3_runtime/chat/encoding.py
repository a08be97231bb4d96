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
from m3_runtime.chat.syntax import IMAGE, IMAGE_END, IMAGE_START, VIDEO
from m3_runtime.chat.template import ChatMessage, ChatTemplate
from m3_runtime.chat.viewer import Shown

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
        return self.encode_shown(text, ())[0]

    def encode_shown(self, text: str, shown: Sequence[Shown]) -> tuple[list[int], list[range]]:
        """The same for text with images and videos: the ids, and the places of their runs among them.

        `shown` are those of this text, in order. ValueError if the template shows more or fewer.
        """
        pieces = self._any_marker.split(text) if self._any_marker else [text]
        if self.num_shown(text) != len(shown):
            raise ValueError(f"the chat template shows {self.num_shown(text)} images and videos, not {len(shown)}")
        coming = iter(shown)
        plain = [self._unmark(pieces[0])]
        between: list[tuple[list[int], range]] = []
        """The ids behind each plain text, and which of them are a run."""
        for marker, after in zip(pieces[1::2], pieces[2::2], strict=True):
            if marker in (IMAGE, VIDEO):
                one = next(coming)
                run = range(1, 1 + one.run_tokens)
                ids = [self._ids[IMAGE_START], *[self._ids[marker]] * one.run_tokens, self._ids[IMAGE_END]]
                for stamp in one.stamps:
                    plain[-1] += stamp
                    between.append((ids, run))
                    plain.append("")
            else:
                between.append(([self._ids[marker]], range(0)))
                plain.append("")
            plain[-1] += self._unmark(after)
        result: list[int] = []
        runs: list[range] = []
        for text_ids, (ids, run) in zip(
            self.tokenizer.encode_batch(plain, special=False), [*between, ([], range(0))], strict=True
        ):
            result += text_ids
            if run:
                runs.append(range(len(result) + run.start, len(result) + run.stop))
            result += ids
        return result, runs

    def num_shown(self, text: str) -> int:
        """How many images and videos are in text from `render`; what a message spells does not count."""
        return sum(text.count(marker) for marker in (IMAGE, VIDEO) if marker in self._ids)

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
