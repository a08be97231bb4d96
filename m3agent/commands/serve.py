"""`m3 serve`: a local model for other programs, over the OpenAI-compatible API."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from m3agent.commands.options import device_option, gpus_option, model_option
from m3agent.errors import M3Error, ModelUnavailable
from m3agent.llm.gpus import check_gpus, follow_if_told, loading_bar, ranks_config
from m3agent.settings import Device, Settings, load_settings

if TYPE_CHECKING:
    import socket

    from m3_runtime.chat.session import ChatEngine


@click.command()
@model_option
@device_option
@gpus_option
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="Port; 0 is a free one.")
@click.option(
    "--api-key-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File that holds the API key, instead of M3_API_KEY.",
)
@click.option(
    "--grace",
    "grace_s",
    default=10.0,
    show_default=True,
    type=click.FloatRange(0, 3600),
    help="Seconds that answers may go on after SIGTERM or Ctrl-C.",
)
def command(
    model: str | None,
    device: Device | None,
    gpus: int | None,
    host: str,
    port: int,
    api_key_file: Path | None,
    grace_s: float,
) -> int:
    """Serve the embedded model or a checkpoint folder at http://HOST:PORT/v1.

    With M3_API_KEY set, or a key file, requests need the key as their bearer token. Other addresses than those of this
    machine need a key.
    """
    settings = load_settings(model=model, device=device, gpus=gpus)
    follow_if_told(settings)
    if settings.model.startswith(("http://", "https://", "scripted:")):
        raise M3Error(f"{settings.model} is not a local model: give nano or a checkpoint folder")
    check_gpus(settings)
    try:
        from m3_runtime import server
    except ImportError as error:
        raise ModelUnavailable(f"serving needs the extra: pip install 'm3-agent[serve]' ({error})") from error
    api_key = _key(api_key_file) if api_key_file is not None else settings.server_key
    # The address comes before the model, which may take minutes to load.
    try:
        listening = server.bind(host, port, api_key=api_key)
    except ValueError as error:
        raise M3Error(f"{error}; M3_API_KEY or --api-key-file sets it") from error
    except OSError as error:
        raise M3Error(f"{host}:{port} cannot be used: {error.strerror}; give another --host or --port") from error
    engine = _load(settings)
    url = _url(listening)

    def announce() -> None:
        print(f"m3: {engine.name} answers at {url} (Ctrl-C ends it)", file=sys.stderr, flush=True)
        if engine.plan is not None and engine.plan.was_a_choice:
            print(f"m3: {engine.plan.sentence}", file=sys.stderr, flush=True)

    try:
        server.run(engine, listening, api_key=api_key, grace_s=grace_s, on_start=announce)
    except RuntimeError as error:
        raise ModelUnavailable(f"{engine.name} failed: {error}") from error
    return 0


def _key(path: Path) -> str:
    """The key in a file: its only line."""
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise M3Error(f"the key file {path} cannot be read: {error}") from error
    if not key or not key.isascii() or any(c.isspace() for c in key):
        raise M3Error(f"the key file {path} must hold the key alone: one line of ASCII without spaces")
    return key


def _load(settings: Settings) -> ChatEngine:
    from m3_runtime.chat.session import ChatEngine
    from m3_runtime.config import DiskConfig
    from m3agent.images import resize_rule

    folder = "nano" if settings.model == "nano" else Path(settings.model).expanduser()
    prefixes, kept_bytes = settings.prefixes_dir, settings.disk_cache_bytes
    try:
        disk = DiskConfig(folder=prefixes, max_bytes=kept_bytes) if prefixes else None
        rule = None if settings.image_rule == "long_side" else resize_rule(settings.image_rule)
        return ChatEngine.load(
            folder,
            disk=disk,
            image_rule=rule,
            ranks=ranks_config(settings),
            progress=loading_bar(settings),
            **settings.placement,
        )
    except (ValueError, OSError, RuntimeError, KeyError) as error:
        raise ModelUnavailable(f"{settings.model} cannot be loaded: {error}") from error


def _url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"
