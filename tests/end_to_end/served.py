"""`m3 serve` as its own process, and what its clients and its metrics say."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families


class Served:
    """A running server of the embedded model; `url` ends in /v1."""

    def __init__(self, environment: Mapping[str, str], *arguments: str):
        command = [sys.executable, "-m", "m3agent", "serve", "--model", "nano", "--port", "0", *arguments]
        self.process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        first = self.process.stderr.readline()
        found = re.search(r"answers at (http://\S+/v1)", first)
        assert found, first + self.process.stderr.read()
        self.url = found.group(1)

    def metrics(self, key: str = "") -> dict[str, float]:
        """Every sample, named as in the text format."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        text = httpx.get(f"{self.url.removesuffix('/v1')}/metrics", headers=headers).text
        return {
            sample.name + "".join(f"{{{value}}}" for value in sample.labels.values()): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def wait_until_idle(self, timeout_s: float = 5.0) -> dict[str, float]:
        """The metrics once nothing runs and no page is in use."""
        deadline = time.monotonic() + timeout_s
        while True:
            metrics = self.metrics()
            if not metrics["m3_answers_running"] and not metrics["m3_cache_pages{used}"]:
                return metrics
            assert time.monotonic() < deadline, "an answer was left behind"
            time.sleep(0.05)

    @property
    def resident_bytes(self) -> int:
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def end(self) -> tuple[int, str]:
        """Ask it to end, as a service manager does; its exit code and the rest of what it said."""
        self.process.send_signal(signal.SIGTERM)
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
