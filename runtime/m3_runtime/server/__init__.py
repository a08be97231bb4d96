"""An OpenAI-compatible server over one ChatEngine; needs the extra `serve` (starlette and uvicorn)."""

from m3_runtime.server.app import create_app, run

__all__ = ["create_app", "run"]
