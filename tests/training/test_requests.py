"""Plain requests: each phrase asks for one thing only, leads to its call, and ends with a sentence."""

from __future__ import annotations

import random
import re

import pytest

from training import phrases
from training.conversations import SYSTEM, TOOLS
from training.corpus import Corpus, build_corpus
from training.requests import plain_requests
from training.transcript import NS, Encoder

CALLED = {
    "test": phrases.TESTS + phrases.TESTS_ASKED,
    "read": phrases.SHOW + phrases.SHOW_ASKED + phrases.SYMBOL + phrases.SYMBOL_ASKED,
    "grep": phrases.DEFINED + phrases.DEFINED_ASKED + phrases.USED + phrases.USED_ASKED,
}
ANSWERED = {said: answer for table in (phrases.TALK, phrases.CANNOT) for saids, answer in table for said in saids}


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return build_corpus(None, processes=1, limit=60)


def test_no_phrase_stands_for_two_things() -> None:
    every = [*(phrase for table in CALLED.values() for phrase in table), *ANSWERED]
    assert len({phrase.lower().strip("?.!") for phrase in every}) == len(every)


def test_each_request_leads_to_its_call_and_ends_with_a_sentence(corpus: Corpus) -> None:
    encoder, rng = Encoder(), random.Random(5)
    names = r"\S+"
    patterns = {
        tool: re.compile(
            "|".join(re.escape(p.strip("?.!")).replace(r"\{p\}", names).replace(r"\{f\}", names) for p in table), re.I
        )
        for tool, table in CALLED.items()
    }
    seen = dict.fromkeys([*CALLED, "none"], 0)
    for _ in range(300):
        unit = corpus.draw(rng)
        module = corpus.modules[unit.module]
        ids, _ = plain_requests(encoder, rng, SYSTEM, TOOLS, module, unit, module.path)
        text = encoder.decode(ids.tolist())
        assert text.endswith("[e~[\n")
        for turn in text.split("]~b]user\n")[1:]:
            said, _, reply = turn.partition("[e~[\n")
            calls = re.findall(rf"{re.escape(NS)}<invoke name=\"(\w+)\">", reply)
            assert len(calls) <= 1
            last = reply.rsplit("]~b]", 1)[1]
            assert last.startswith("ai\n</mm:think>")
            assert "<tool_call>" not in last
            if not calls:
                assert last.removeprefix("ai\n</mm:think>").removesuffix("[e~[\n") in ANSWERED.values()
            elif "\n" not in said and patterns[calls[0]].search(said) is None:
                assert " tests pass" in last, f"{said!r} led to {calls}"  # an issue about code in which nothing fails
            seen[calls[0] if calls else "none"] += 1
    assert min(seen.values()) > 30
