"""Append-only prompts: turn n+1 begins with the token ids of turn n, those that the model generated included.

Encoding an answer's text again could give other ids than the model produced, and every id that changes throws away the
cache behind it. So the ids of answered turns are kept, found by the messages that led to them, and only what came after
is encoded.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from m3_runtime.chat.encoding import PromptEncoder
from m3_runtime.chat.syntax import END_OF_TURN
from m3_runtime.chat.viewer import Shown


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prompt:
    """Token ids of a conversation up to the place where the answer begins.

    `runs` are the places of its images and videos. `reused_tokens` were kept from an earlier turn; `note` says why not,
    where that could be expected. `key` names the conversation, the same for the same messages, tools and mode.
    """

    token_ids: list[int]
    runs: list[range]
    reused_tokens: int
    note: str
    key: str


class Transcripts:
    """Remembers the ids of the last `capacity` answered turns, of any number of conversations and their branches."""

    def __init__(self, encoder: PromptEncoder, *, capacity: int = 256):
        self._encoder, self._capacity = encoder, capacity
        self._kept: OrderedDict[str, tuple[array[int], list[range]]] = OrderedDict()
        end = encoder.tokenizer.token_id(END_OF_TURN)
        if end is None:
            raise ValueError(f"the tokenizer has no token {END_OF_TURN}; this is not a tokenizer of the M3 family")
        self._end = end

    def prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        thinking: str,
        shown: Sequence[Shown] = (),
    ) -> Prompt:
        """The prompt for the next answer. `messages` are normalised (m3_runtime.chat.template.normalise).

        `shown` are their images and videos in order. ValueError if the template does not show them.
        """
        keys = _keys(messages, tools, thinking)
        full = self._encoder.render(messages, tools, thinking=thinking)
        answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        for index in reversed(answers):
            if keys[index + 1] not in self._kept:
                continue
            kept, runs = self._kept[keys[index + 1]]
            past = self._encoder.render(messages[: index + 1], tools, thinking=thinking, add_generation_prompt=False)
            # An answer that was cut off lacks its end, which then comes with the new part.
            cut = past.rindex(END_OF_TURN) + (len(END_OF_TURN) if kept[-1] == self._end else 0)
            if not full.startswith(past[:cut]):
                continue
            self._kept.move_to_end(keys[index + 1])
            new, new_runs = self._encoder.encode_shown(full[cut:], shown[self._encoder.num_shown(full[:cut]) :])
            return Prompt(
                token_ids=[*kept, *new],
                runs=[*runs, *(range(len(kept) + run.start, len(kept) + run.stop) for run in new_runs)],
                reused_tokens=len(kept),
                note="" if index == answers[-1] else "the last answers were edited or not generated here",
                key=keys[-1],
            )
        note = "the history's answers were edited or not generated here: all of it was encoded anew" if answers else ""
        token_ids, runs = self._encoder.encode_shown(full, shown)
        return Prompt(token_ids=token_ids, runs=runs, reused_tokens=0, note=note, key=keys[-1])

    def remember(self, prompt: Prompt, answer: Mapping[str, Any], generated: Sequence[int]) -> None:
        """Keep the ids of a turn: its prompt and what the model generated for the (normalised) answer."""
        if not generated:
            return
        key = _next_key(prompt.key, answer)
        self._kept[key] = array("i", [*prompt.token_ids, *generated]), prompt.runs
        self._kept.move_to_end(key)
        while len(self._kept) > self._capacity:
            self._kept.popitem(last=False)


def _keys(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], thinking: str) -> list[str]:
    """One key for every prefix of the conversation, the empty one first."""
    keys = [_next_key(thinking, {"tools": list(tools)})]
    for message in messages:
        keys.append(_next_key(keys[-1], message))
    return keys


def _next_key(key: str, value: Mapping[str, Any]) -> str:
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
    return hashlib.sha256(f"{key}\n{text}".encode("utf-8", "surrogatepass")).hexdigest()
