"""An OpenAI-compatible server over one ChatEngine; needs the extra `serve`."""

from m3_runtime.server.app import create_app
from m3_runtime.server.process import bind, run

__all__ = ["bind", "create_app", "run"]
