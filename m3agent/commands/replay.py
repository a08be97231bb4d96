"""`m3 replay ID`: a past session again: shown, or run anew and held against what was recorded."""

from __future__ import annotations

import sys

import click

from m3agent.commands.options import model_option
from m3agent.errors import M3Error
from m3agent.exits import Exit
from m3agent.session.store import Recording
from m3agent.settings import Settings, load_settings


@click.command()
@click.argument("session_id")
@click.option("--pause", default=0.02, show_default=True, type=click.FloatRange(min=0), help="Seconds between events.")
@click.option("--check", is_flag=True, help="Ask the model of a fix again; calls get their recorded results.")
@click.option("--live", is_flag=True, help="Do a fix again, from its commit and issue; tools and tests run.")
@model_option
def command(session_id: str, pause: float, check: bool, live: bool, model: str | None) -> int:
    """Show a past session again, as it looked; no model and no tool runs.

    With --check or --live a fix is run again and compared: exit code 0 if it goes the same way, else 1, and the first
    divergence is shown. Sampling is the same only with --seed and a model that computes the same; your files stay as
    they are.
    """
    from m3agent.outputs import open_view
    from m3agent.session.replay import replay
    from m3agent.session.store import SessionStore
    from m3agent.signals import run_command

    if check and live:
        raise M3Error("--check and --live exclude each other: one answers calls as recorded, the other runs them")
    settings = load_settings(model=model)
    recording = SessionStore(settings.sessions_dir).read(session_id)
    if check or live:
        return run_command(lambda: _again(recording, settings, chosen=model is not None, live=live))
    view = open_view(sys.stdout, settings, show_summary=True)
    replay(recording, view, pause_s=pause if sys.stdout.isatty() else 0)
    return 0


async def _again(recording: Recording, settings: Settings, *, chosen: bool, live: bool) -> int:
    """Run the fix again with the recorded model, or with the one that was `chosen`; tell how far it went."""
    import dataclasses

    from m3agent.events import FixAsked
    from m3agent.fix.rerun import Diverged, recheck, rerun_live
    from m3agent.llm.factory import open_model

    asked = next((event for event in recording.events if isinstance(event, FixAsked)), None)
    if asked is not None and not chosen:
        settings = dataclasses.replace(settings, model=str(asked.choices["model"]))
    try:
        if live:
            steps = await rerun_live(recording, settings, open_model)
        else:
            model = await open_model(settings)
            try:
                steps = await recheck(recording, settings, model)
            finally:
                await model.aclose()
    except Diverged as first:
        click.echo(f"the first divergence: {first}")
        return int(Exit.NOT_FIXED)
    click.echo(f"the same: all {steps} steps")
    return int(Exit.OK)
