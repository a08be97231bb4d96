"""Errors that a person can act on. The text says what happened, what was expected and what to do."""

from __future__ import annotations

from m3agent.exits import Exit


class M3Error(Exception):
    """An error whose text is shown as one line, without a traceback; `exit_code` ends the program."""

    exit_code = Exit.USAGE

    def __init__(self, message: str, *, exit_code: Exit | None = None):
        super().__init__(message)
        if exit_code is not None:
            self.exit_code = exit_code


class BrokenEnvironment(M3Error):
    exit_code = Exit.BROKEN_ENVIRONMENT


class ModelUnavailable(M3Error):
    exit_code = Exit.MODEL_UNAVAILABLE


class NeedsApproval(M3Error):
    exit_code = Exit.NEEDS_APPROVAL
