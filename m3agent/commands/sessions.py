"""`m3 sessions`: past runs, as they were saved."""

from __future__ import annotations

import sys

import click

from m3agent.settings import load_settings


@click.group()
def command() -> None:
    """List, show, export and remove past sessions. The beginning of an id is enough."""


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@click.option("--limit", default=30, show_default=True, type=click.IntRange(min=1), help="How many, newest first.")
def list_sessions(as_json: bool, limit: int) -> int:
    """List the newest sessions."""
    import dataclasses
    import itertools
    import json

    from m3agent.session.store import SessionStore
    from m3agent.ui.clean import one_line

    store = SessionStore(load_settings().sessions_dir)
    for summary in itertools.islice(store.list(), limit):
        if as_json:
            print(json.dumps(dataclasses.asdict(summary)))
        else:
            state = one_line(summary.outcome or "not ended", 28)
            print(f"{summary.run_id}  {summary.command:<5}  {state:<28}  {one_line(summary.task, 60)}")
    return 0


@command.command()
@click.argument("session_id")
def show(session_id: str) -> int:
    """Print a session as its run looked, at once."""
    from m3agent.outputs import open_view
    from m3agent.session.replay import replay
    from m3agent.session.store import SessionStore

    settings = load_settings()
    recording = SessionStore(settings.sessions_dir).read(session_id)
    replay(recording, open_view(sys.stdout, settings, show_summary=True))
    return 0


@command.command()
@click.argument("session_id")
@click.option(
    "--format", "form", type=click.Choice(["markdown", "html", "jsonl"]), default="markdown", show_default=True
)
def export(session_id: str, form: str) -> int:
    """Write a session to stdout, to keep or to send."""
    import json

    from m3agent.events import event_to_json
    from m3agent.session.export import to_html, to_markdown
    from m3agent.session.store import SessionStore

    settings = load_settings()
    recording = SessionStore(settings.sessions_dir).read(session_id)
    if form != "jsonl":
        print((to_html if form == "html" else to_markdown)(recording, settings.secrets), end="")
    else:
        for event in recording.events:
            print(json.dumps(settings.secrets.redact_json(event_to_json(event)), separators=(",", ":")))
    return 0


@command.command("rm")
@click.argument("session_ids", nargs=-1, required=True, metavar="SESSION_ID...")
def remove(session_ids: tuple[str, ...]) -> int:
    """Remove sessions for good."""
    from m3agent.session.store import SessionStore

    store = SessionStore(load_settings().sessions_dir)
    for session_id in session_ids:
        print(f"removed {store.remove(session_id)}")
    return 0
