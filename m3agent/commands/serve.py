"""`m3 serve`: a local model for other programs, over the OpenAI-compatible API."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from m3agent.commands.options import model_option
from m3agent.errors import M3Error, ModelUnavailable
from m3agent.settings import load_settings


@click.command()
@model_option
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="Port to listen on.")
def command(model: str | None, host: str, port: int) -> int:
    """Serve the embedded model or a checkpoint folder at http://HOST:PORT/v1.

    With M3_API_KEY set, requests need it as their bearer token.
    """
    settings = load_settings(model=model)
    if settings.model.startswith(("http://", "https://", "scripted:")):
        raise M3Error(f"{settings.model} is not a local model: give nano or a checkpoint folder")
    try:
        from m3_runtime import server
        from m3_runtime.chat.session import ChatEngine
        from m3_runtime.config import DiskConfig
    except ImportError as error:
        raise ModelUnavailable(f"serving needs the extra: pip install 'm3-agent[serve]' ({error})") from error
    folder = "nano" if settings.model == "nano" else Path(settings.model).expanduser()
    prefixes, kept_bytes = settings.prefixes_dir, settings.disk_cache_bytes
    try:
        engine = ChatEngine.load(folder, disk=DiskConfig(folder=prefixes, max_bytes=kept_bytes) if prefixes else None)
    except (ValueError, OSError, RuntimeError, KeyError) as error:
        raise ModelUnavailable(f"{settings.model} cannot be loaded: {error}") from error
    print(f"m3: {engine.name} answers at http://{host}:{port}/v1 (Ctrl-C ends it)", file=sys.stderr, flush=True)
    try:
        server.run(engine, host=host, port=port, api_key=settings.api_key)
    except ValueError as error:
        raise M3Error(f"{error}; M3_API_KEY sets it") from error
    return 0
