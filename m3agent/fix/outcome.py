"""How a fix ends: a word, an exit code and one sentence. It is an exception, so that every phase can end the run."""

from __future__ import annotations

from typing import Literal

from m3agent.exits import Exit

Outcome = Literal[
    "fixed",
    "not_fixed",
    "not_reproduced",
    "unverified",
    "budget",
    "needs_approval",
    "broken_environment",
    "interrupted",
]

EXIT_CODES: dict[Outcome, Exit] = {
    "fixed": Exit.OK,
    "not_fixed": Exit.NOT_FIXED,
    "not_reproduced": Exit.NOT_REPRODUCED,
    "unverified": Exit.UNVERIFIED,
    "budget": Exit.BUDGET,
    "needs_approval": Exit.NEEDS_APPROVAL,
    "broken_environment": Exit.BROKEN_ENVIRONMENT,
    "interrupted": Exit.INTERRUPTED,
}


class Ended(Exception):
    """The run ends here, with a result that a person can read. Nothing is wrong with the program."""

    def __init__(self, outcome: Outcome, summary: str):
        super().__init__(summary)
        self.outcome: Outcome = outcome
        self.summary = summary

    @property
    def exit_code(self) -> Exit:
        return EXIT_CODES[self.outcome]
