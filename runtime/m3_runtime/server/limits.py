"""How much a server takes from its clients."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds of one server."""

    max_body_bytes: int = 32 * 2**20
    """More than a million tokens of text, or several large pictures."""
    body_s: float = 60.0
    """Seconds in which a body must arrive."""
    max_open: int = 512
    """Answers that may be open at once; those beyond the engine's rows wait for their turn."""
