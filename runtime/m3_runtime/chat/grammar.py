"""Grammars of M3's answers for llguidance: text is free, the inside of a call block is bound to the tools' schemas.

A grammar is compiled once for a set of tools; each sequence gets a copy of the start state (a few microseconds).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import llguidance
import numpy as np
import numpy.typing as npt

from m3_model.tokenizer import Tokenizer
from m3_runtime.chat.lark import LarkBuilder
from m3_runtime.chat.schema import check_schema


class BadTools(ValueError):
    """The tools' schemas cannot be used."""


class BadReplyFormat(ValueError):
    """The schema that an answer is to follow cannot be used."""


class GrammarMatcher:
    """A sequence's place in a grammar; implements m3_runtime.request.Matcher."""

    def __init__(self, inner: Any):
        self._inner = inner

    def copy(self) -> GrammarMatcher:
        return GrammarMatcher(self._inner.deep_copy())

    def fill_mask(self, bits_W: npt.NDArray[np.int32]) -> None:
        self._inner.unsafe_compute_mask_ptr(bits_W.ctypes.data, bits_W.nbytes)

    def consume(self, token_ids: Sequence[int]) -> None:
        for token in token_ids:
            if not self._inner.consume_token(token):
                raise ValueError(f"the grammar does not allow token {token} here")

    def forced(self) -> list[int]:
        forced: list[int] = self._inner.compute_ff_tokens()
        return forced

    def is_complete(self) -> bool:
        return bool(self._inner.is_stopped())


class GrammarCompiler:
    """Compiles grammars for one tokenizer. `vocab_size` is the width of the model's logits."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, end_of_turn: int):
        self._tokenizer = tokenizer
        # Whole tags are single tokens in some vocabularies. They are told to llguidance as special, so that free text
        # cannot contain them and a tag has exactly one spelling.
        self._tags = {
            added.content: token
            for token, added in tokenizer.inner.get_added_tokens_decoder().items()
            if added.special or (added.content.startswith("<") and added.content.endswith(">"))
        }
        self._lark = LarkBuilder(self._tags, lambda text: tokenizer.encode(text, special=False), end_of_turn)
        wrapper = llguidance.TokenizerWrapper(_Vocabulary(tokenizer, self._tags, vocab_size, end_of_turn))
        self._inner = llguidance.LLTokenizer(wrapper, n_vocab=vocab_size, slices=[])
        self._compiled: dict[str, Any] = {}

    def compile(
        self,
        tools: Sequence[Mapping[str, Any]],
        *,
        thinking: str,
        tool_choice: str = "",
        fixed_arguments: Mapping[str, Sequence[str]] | None = None,
        single: bool = False,
        may_think: bool = True,
        reply_schema: Mapping[str, Any] | None = None,
    ) -> GrammarMatcher:
        """The start state of an answer's grammar.

        `tools` are OpenAI-style; `thinking` is the mode that the prompt ends with. `tool_choice` "" leaves open whether
        there is a call, "required" demands one, a name demands that tool, whose parameters in `fixed_arguments` take
        only the given values. `single` allows one call only; without `may_think` adaptive means no reasoning.
        With `reply_schema` an answer without a call is JSON that follows it.
        ValueError for an unknown tool or parameter; BadTools or BadReplyFormat for schemas that make no grammar.
        """
        text = self._lark.answer(
            tools,
            thinking=thinking,
            tool_choice=tool_choice,
            fixed_arguments=fixed_arguments or {},
            single=single,
            may_think=may_think,
            reply_schema=reply_schema,
        )
        if text not in self._compiled:
            matcher = llguidance.LLMatcher(self._inner, llguidance.LLMatcher.grammar_from_lark(text), log_level=0)
            if matcher.is_error():
                problem = matcher.get_error().splitlines()[0]
                if reply_schema is not None:
                    raise BadReplyFormat(f"response_format makes no grammar: {problem}")
                raise BadTools(f"the tools' schemas make no grammar: {problem}")
            if len(self._compiled) >= 64:
                self._compiled.pop(next(iter(self._compiled)))
            self._compiled[text] = matcher
        return GrammarMatcher(self._compiled[text].deep_copy())


class _Vocabulary:
    """What llguidance asks of a tokenizer: the bytes of every id, which ids are marks, and how bytes are encoded."""

    def __init__(self, tokenizer: Tokenizer, tags: Mapping[str, int], vocab_size: int, end_of_turn: int):
        self._tokenizer = tokenizer
        size = min(len(tokenizer), vocab_size)
        self.tokens = [tokenizer.token_bytes(i) for i in range(size)] + [b""] * (vocab_size - size)
        self.special_token_ids = sorted(tags.values())
        self.eos_token_id = end_of_turn
        self.bos_token_id = None

    def __call__(self, text: bytes | str) -> list[int]:
        return self._tokenizer.encode(text.decode() if isinstance(text, bytes) else text, special=False)


def schema_of(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """The JSON schema of a tool's parameters, an object without properties if it gives none. Raises BadTools."""
    schema = tool["function"].get("parameters") or {"type": "object", "properties": {}}
    try:
        check_schema(schema, f"tools.{tool['function']['name']}.parameters")
    except ValueError as error:
        raise BadTools(str(error)) from error
    if not isinstance(schema, Mapping):
        raise BadTools(f"tools.{tool['function']['name']}.parameters is {json.dumps(schema)}, not an object's schema")
    return schema
