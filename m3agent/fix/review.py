"""A second look at a proven repair: a fresh fork of the model that sees the issue and the diff, and no reasoning.

Its word is no proof. An objection is shown first wherever the result is printed.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Literal

from m3_tools.screenshot.picture import Picture
from m3agent.budget import Budget
from m3agent.fix.issue import Issue
from m3agent.fix.prompt import issue_text, named_pictures
from m3agent.images import parts_for
from m3agent.llm.protocol import LanguageModel, ModelError, Options
from m3agent.messages import system, user
from m3agent.prompt import prompt_text
from m3agent.sinks import EventSink
from m3agent.turn import take_turn

MAX_DIFF_CHARS = 60_000
MAX_ANSWER_CHARS = 2000
MAX_TOKENS = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class Review:
    """`verdict` is empty where there was no review; then `missing` says why."""

    verdict: Literal["accepts", "objects", ""] = ""
    text: str = ""
    missing: str = ""


async def review(
    model: LanguageModel,
    issue: Issue,
    diff: str,
    budget: Budget,
    sink: EventSink,
    *,
    seed: int | None,
    pictures: Sequence[Picture] = (),
) -> Review:
    """Ask a fork of the model that knows nothing of the work. A model that fails here takes nothing from the proof.

    `pictures` are the issue's: it may say no more than that they show it.
    """
    if model.info.is_nano:
        return Review(missing="nobody but the tests has looked at the change: nano cannot review")
    if limit := budget.reached():
        return Review(missing=f"no review was made: {limit}")
    if len(diff) > MAX_DIFF_CHARS:
        return Review(missing=f"no review was made: the diff is longer than {MAX_DIFF_CHARS} characters")
    fence = "diff"
    while f"{fence}>" in diff:
        fence += "-"
    parts = [issue_text(issue, model.info), named_pictures(pictures, None, model.info)]
    task = "\n\n".join([*filter(None, parts), f"The change:\n\n<{fence}>\n{diff}\n</{fence}>"])
    options = Options(max_tokens=MAX_TOKENS, temperature=0.0, seed=seed)
    messages = (system(prompt_text("review")), user(task, *parts_for(pictures, model.info)))
    try:
        async with asyncio.timeout(budget.remaining_s and budget.remaining_s / 2):  # the repair is proven already
            reply = await take_turn(model, messages, (), options, sink, number=budget.steps + 1)
    except ModelError as error:
        return Review(missing=f"no review was made: {error}")
    except TimeoutError:
        return Review(missing="no review was made: the model took too long")
    budget.spend(reply.usage)
    text = reply.message.text.strip()
    word = text.lstrip("*_#> \n")[:6].upper()
    if word not in ("ACCEPT", "OBJECT"):
        return Review(missing="no review was made: the answer was neither ACCEPT nor OBJECT")
    return Review(verdict="accepts" if word == "ACCEPT" else "objects", text=text[:MAX_ANSWER_CHARS])
