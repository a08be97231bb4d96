"""What a chat may ask of whatever a person has before them. This one is a pipe: it does nothing of it."""

from __future__ import annotations

from m3agent.settings import ThemeName


class Face:
    def idle(self) -> None:
        """Everything was answered; the person may write."""

    def call(self, words: str) -> None:
        """Call the person if they look elsewhere; the words are ours."""

    def use_theme(self, name: ThemeName) -> None:
        """Draw with this theme from now on."""
