"""`m3 replay ID`: a past session again, through the same view."""

from __future__ import annotations

import sys

import click

from m3agent.settings import load_settings


@click.command()
@click.argument("session_id")
@click.option("--pause", default=0.02, show_default=True, type=click.FloatRange(min=0), help="Seconds between events.")
def command(session_id: str, pause: float) -> int:
    """Show a past session again, as it looked; no model and no tool runs."""
    from m3agent.outputs import open_view
    from m3agent.session.replay import replay
    from m3agent.session.store import SessionStore

    settings = load_settings()
    recording = SessionStore(settings.sessions_dir).read(session_id)
    view = open_view(sys.stdout, settings, show_summary=True)
    replay(recording, view, pause_s=pause if sys.stdout.isatty() else 0)
    return 0
