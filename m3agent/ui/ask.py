"""Asks a person before a call happens: what would be done is shown whole, and nothing is done without a yes."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from m3agent.approval import Answer, Approver, Question
from m3agent.errors import M3Error
from m3agent.permissions.lasting import rule_of, rules_like
from m3agent.permissions.rules import Rule
from m3agent.ui.clean import one_line, visible, with_bounded_words
from m3agent.ui.render import call_text, marked

_ON_THE_LINE = frozenset({"path", "symbol", "line", "pattern", "action"})
"""What the call's own line shows whole, if it is short."""
_SHORT = 60
_CHANGES = {"old": "bad", "new": "good", "content": "good", "text": "good"}
"""Arguments that go from a file, or into it."""
_EDITABLE = ("command", "content", "text", "new")
"""What a person edits of a call, the first that it has; of another call, all its arguments as JSON."""

Asked = Callable[[str, str], Awaitable[str]]
"""Shows a prompt and gives what the person answers; the second text stands in the draft already."""


def question(asked: Question) -> RenderableType:
    """The call and every argument of it, uncut, with nothing invisible left out."""
    parts: list[RenderableType] = [marked("?", "warn", call_text(asked.tool, asked.arguments))]
    for name, value in _leaves(asked.arguments):
        text = with_bounded_words(visible(value))
        if "\n" in text or len(text) > _SHORT or name not in _ON_THE_LINE:
            style = _CHANGES.get(name.rpartition(".")[2], "")
            parts.append(Padding(Text(f"{visible(name)}:", "quiet"), (0, 0, 0, 4), expand=False))
            parts.append(Padding(Text(text, style), (0, 0, 0, 6), expand=False))
    parts.append(Padding(Text(one_line(asked.rule), "quiet"), (0, 0, 0, 4), expand=False))
    if lasting := _lasting(asked):
        parts.append(Padding(Text(f"a would {_told(lasting)}, in this chat", "quiet"), (0, 0, 0, 4), expand=False))
    return Group(*parts)


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Every value in the arguments with its name, `edits[0].old` for one inside a list."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from _leaves(inner, f"{name}[{index}]")
    else:
        yield name, value if isinstance(value, str) else repr(value)


def approver(show: Callable[[RenderableType], None], ask: Asked, allow: Callable[[Rule], None]) -> Approver:
    """An approver that asks until it has an answer. `allow` keeps a rule for the rest of the chat."""

    async def approve(asked: Question) -> Answer:
        show(question(asked))
        while True:
            word = (await ask(RUN_IT, "")).strip()
            show(marked("", "", Text(f"run it? {one_line(word)}", "quiet")))
            first, _, rest = word.partition(" ")
            if word.lower() in ("y", "yes"):
                return Answer(accepted=True)
            if word.lower() in ("n", "no"):
                return Answer(accepted=False)
            try:
                if word.lower() == "a" or first.lower() == "always":
                    return _always(asked, rest, allow)
                if word.lower() in ("e", "edit"):
                    return Answer(accepted=True, arguments=await _edited(asked, ask))
            except M3Error as error:
                show(marked("!", "warn", Text(str(error), "warn")))
                continue
            return Answer(accepted=False, reason=word)

    return approve


RUN_IT = "run it? [y]es, [a]lways, [e]dit, [n]o, or say what to do instead"


def _lasting(asked: Question) -> tuple[Rule, ...]:
    """The rules that would let this call and its like run from now on; none if it is asked for in spite of any."""
    rules = rules_like(asked.tool, asked.arguments)
    return rules if rules and asked.allows(rules) else ()


def _told(rules: tuple[Rule, ...]) -> str:
    return ", ".join(visible(str(rule)).replace("\n", " ") for rule in rules)


def _always(asked: Question, pattern: str, allow: Callable[[Rule], None]) -> Answer:
    """Allow the call, and by a rule its like. Raises M3Error when the rule would not allow even this one."""
    rules = (rule_of(asked.tool, pattern),) if pattern.strip() else _lasting(asked)
    if not rules or not asked.allows(rules):
        what = f"the rule {_told(rules)} does not let it run" if rules else "no rule lets it run unasked"
        raise M3Error(f"{what}; answer y for this time")
    for rule in rules:
        allow(rule)
    return Answer(accepted=True, rule=f"you approved it in this chat: {_told(rules)}")


async def _edited(asked: Question, ask: Asked) -> dict[str, Any]:
    """The arguments as the person leaves them. Raises M3Error for something that is no JSON."""
    arguments = dict(asked.arguments)
    name = next((name for name in _EDITABLE if isinstance(arguments.get(name), str)), "")
    if name:
        return {**arguments, name: await ask(f"change {name}, Enter asks again", arguments[name])}
    text = await ask("change the arguments, Enter asks again", json.dumps(arguments, indent=2, ensure_ascii=False))
    try:
        changed = json.loads(text)
    except ValueError as error:
        raise M3Error(f"that is no JSON: {error}") from error
    if not isinstance(changed, dict):
        raise M3Error("the arguments must stand in braces")
    return changed
