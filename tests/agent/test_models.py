"""`m3 models`: what is shown and verified of a checkpoint, and fetching one from a small hub on this machine."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import load_file, save_file

from m3_model.random_checkpoint import tiny_config, tiny_vision_config, write_random_checkpoint
from m3agent.commands.models import command
from m3agent.errors import M3Error
from m3agent.model_facts import describe

ROOT = Path(__file__).parents[2]
PATHS = [str(ROOT / part) for part in ("", "runtime", "kernels", "model", "tools")]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "owner/tiny-m3"


def pull(home: Path, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: huggingface_hub reads its variables when it is imported."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("M3_", "HF_"))}
    return subprocess.run(
        [sys.executable, "-m", "m3agent", "models", "pull", *map(str, arguments)],
        env={
            **kept,
            "PYTHONPATH": os.pathsep.join(PATHS),
            "M3_HOME": str(home / "m3"),
            "HF_HOME": str(home / "hf"),
            "HF_HUB_DISABLE_XET": "1",
            "OMP_NUM_THREADS": "1",
            **environment,
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def models(*arguments: str | Path) -> Result:
    """Here. The return value is the exit code; M3Error is what `m3` tells in one line."""
    return CliRunner().invoke(command, list(map(str, arguments)), standalone_mode=False)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    write_random_checkpoint(tmp_path / "tiny", tiny_config(), quantized=True)
    return tmp_path / "tiny"


class Hub(ThreadingHTTPServer):
    """Serves one repository as the hub does.

    With `status` every request gets it, weights break off at byte `cut_at`, and files claim `claimed_bytes`.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.files = {path.name: path.read_bytes() for path in folder.iterdir()}
        self.files["model.py"] = b"raise SystemExit"
        self.claimed_bytes = 0
        self.status = 0
        self.cut_at = 0
        self.sent: list[tuple[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Answer(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, *, body: bool) -> None:
        hub = self.server
        path = self.path.split("?")[0]
        if hub.status:
            self.reply(hub.status, b"{}", body=body)
        elif path == f"/api/models/{NAME}/revision/main":
            self.reply(200, json.dumps({"id": NAME, "sha": COMMIT, "siblings": []}).encode(), body=body)
        elif path.startswith(f"/api/models/{NAME}/tree/"):
            self.reply(200, json.dumps([self.entry(name) for name in hub.files]).encode(), body=body)
        elif path.startswith(f"/{NAME}/resolve/") and (name := path.rsplit("/", 1)[1]) in hub.files:
            self.file(name, body=body)
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def entry(self, name: str) -> dict[str, object]:
        data = self.server.files[name]
        size = max(len(data), self.server.claimed_bytes)
        entry: dict[str, object] = {"type": "file", "path": name, "size": size, "oid": git_hash(data)}
        if name.endswith(".safetensors"):
            entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": size, "pointerSize": 130}
        return entry

    def file(self, name: str, *, body: bool) -> None:
        hub, data = self.server, self.server.files[name]
        large = name.endswith(".safetensors")
        etag = hashlib.sha256(data).hexdigest() if large else git_hash(data)
        wanted = self.headers.get("Range", "")
        first = int(wanted.removeprefix("bytes=").split("-")[0]) if wanted else 0
        self.send_response(206 if first else 200)
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")
        self.send_header("ETag", f'"{etag}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("X-Linked-Size", str(max(len(data), hub.claimed_bytes)))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(data) - first))
        self.end_headers()
        if not body:
            return
        hub.sent.append((name, wanted))
        if large and hub.cut_at > first:
            self.wfile.write(data[first : hub.cut_at])
            self.close_connection = True
        else:
            self.wfile.write(data[first:])

    def reply(self, status: int, data: bytes, *, body: bool) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


def git_hash(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@pytest.fixture
def hub(checkpoint: Path) -> Iterator[Hub]:
    with Hub(checkpoint) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.parametrize("to", [(), ("--to", "folder")])
def test_what_is_pulled_is_whole_and_is_not_fetched_again(to: tuple[str, ...], hub: Hub, tmp_path: Path) -> None:
    place = [tmp_path / part if part == "folder" else part for part in to]
    done = pull(tmp_path, NAME, *place, HF_ENDPOINT=hub.url)
    assert done.returncode == 0, done.stderr
    assert {name for name, _ in hub.sent} == {"config.json", "model.safetensors"}
    assert "2 of 2 files to fetch" in done.stderr
    report = json.loads(models("verify", done.stdout.strip(), "--output", "json").stdout)
    assert report["problems"] == []
    assert report["hashes"] == {"config.json": "equal", "model.safetensors": "equal"}
    hub.sent.clear()
    done = pull(tmp_path, NAME, *place, HF_ENDPOINT=hub.url)
    assert (done.returncode, hub.sent) == (0, [])
    assert "0 of 2 files to fetch" in done.stderr


def test_a_download_that_broke_off_goes_on(hub: Hub, tmp_path: Path) -> None:
    data = random.Random(0).randbytes(13 << 20)
    hub.files["model.safetensors"], hub.cut_at = data, 12 << 20
    done = pull(tmp_path, NAME, HF_ENDPOINT=hub.url)
    assert (done.returncode, done.stdout) == (75, "")
    assert "broke off" in done.stderr.splitlines()[-1]
    assert ("model.safetensors", f"bytes={10 << 20}-") in hub.sent
    hub.cut_at = 0
    hub.sent.clear()
    done = pull(tmp_path, NAME, HF_ENDPOINT=hub.url)
    assert done.returncode == 0, done.stderr
    assert hub.sent == [("model.safetensors", "")]
    assert (Path(done.stdout.strip()) / "model.safetensors").read_bytes() == data


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (401, 75, "refuses owner/tiny-m3 (401)"),
        (403, 75, "its licence must be accepted"),
        (404, 2, "has no model owner/tiny-m3: check the name"),
        (400, 75, "answers 400 for owner/tiny-m3"),
    ],
)
def test_what_the_hub_answers_is_told_in_one_line(
    status: int, code: int, message: str, hub: Hub, tmp_path: Path
) -> None:
    hub.status = status
    done = pull(tmp_path, NAME, HF_ENDPOINT=hub.url)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (code, "", 1), done.stderr
    assert message in done.stderr


def test_no_network_no_space_and_no_name_are_told(hub: Hub, tmp_path: Path) -> None:
    hub.claimed_bytes = 1 << 60
    done = pull(tmp_path, NAME, HF_ENDPOINT=hub.url)
    assert (done.returncode, len(done.stderr.splitlines())) == (7, 1), done.stderr
    assert "GB are to be fetched" in done.stderr
    assert not hub.sent
    done = pull(tmp_path, NAME, HF_HUB_OFFLINE="1")
    assert (done.returncode, len(done.stderr.splitlines())) == (75, 1), done.stderr
    assert "HF_HUB_OFFLINE forbids it" in done.stderr
    done = pull(tmp_path, NAME, HF_ENDPOINT="http://127.0.0.1:9")
    assert (done.returncode, len(done.stderr.splitlines())) == (75, 1), done.stderr
    assert "cannot be reached" in done.stderr
    done = pull(tmp_path, "a/b/c", HF_ENDPOINT=hub.url)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert "expected OWNER/NAME" in done.stderr


def test_verify_tells_damage_by_its_exit_code_and_in_words(checkpoint: Path, tmp_path: Path) -> None:
    file = checkpoint / "model.safetensors"
    stored = load_file(file)
    scale = next(name for name in stored if name.endswith("w1.weight_scale_inv"))
    stored[scale][0, 0] = 0xFF
    save_file(stored, file)
    file.with_name(file.name + ".sha256").write_text(f"{'0' * 64}  {file.name}\n")
    done = models("verify", checkpoint, "--output", "json")
    report = json.loads(done.stdout)
    assert done.return_value == report["exit_code"] == 75
    assert [text.split(" holds ")[0].split(" is not ")[0] for text in report["problems"]] == [
        f"model.safetensors: {scale}",
        str(file),
    ]
    assert report["hashes"] == {"config.json": "unknown", "model.safetensors": "different"}
    file.write_bytes(file.read_bytes()[:-1])
    done = models("verify", checkpoint)
    assert done.return_value == 75
    assert f"WRONG    {file} is damaged or cut off" in done.stdout
    missing = models("verify", tmp_path / "none").exception
    assert isinstance(missing, M3Error)
    assert missing.exit_code == 2


def test_show_counts_from_the_config(checkpoint: Path, tmp_path: Path) -> None:
    facts = json.loads(models("show", checkpoint, "--output", "json").stdout)
    config = tiny_config()
    stored = load_file(checkpoint / "model.safetensors")
    assert facts["parameters"] == sum(t.numel() for name, t in stored.items() if not name.endswith("_scale_inv"))
    assert facts["stored_bytes"]["U8"] == sum(t.nbytes for t in stored.values() if t.dtype == torch.uint8)
    assert (facts["precision"], facts["problem"]) == ("mxfp8", None)
    assert facts["layers"] == {"dense attention": 1, "sparse attention": 2, "dense feed-forward": 1, "experts": 2}
    assert [row["tokens"] for row in facts["cache"]] == [1 << i for i in range(13, 21)]
    per_token = (2 * 3 * config.num_kv_heads * config.head_dim + 2 * config.index_dim) * 2
    assert facts["cache"][0]["bf16_bytes"] == 8192 * per_token == 2 * facts["cache"][0]["fp8_bytes"]
    (cpu, *_) = facts["fits"]
    assert (cpu["place"], cpu["context_tokens"] > 0) == ("cpu", True)


def test_show_counts_an_image_side_where_the_files_hold_one(tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path, tiny_config(vision=tiny_vision_config()))
    stored = load_file(tmp_path / "model.safetensors")
    image = {name: t for name, t in stored.items() if not name.startswith("language_model.")}
    facts = describe(tmp_path)
    assert facts["image_parameters"] == sum(t.numel() for t in image.values()) > 0
    assert facts["weights_bytes"]["bfloat16"] == sum(t.nbytes for t in stored.values())
    assert f"and {facts['image_parameters']:,} of the image side" in models("show", tmp_path).stdout
    save_file({name: t for name, t in stored.items() if name not in image}, tmp_path / "model.safetensors")
    alone = describe(tmp_path)
    assert (alone["image_parameters"], alone["parameters"]) == (0, facts["parameters"])


def test_the_page_names_every_field(checkpoint: Path, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    for name in ("verify", "show"):
        rows = page.split(f"<!-- table: {name} -->\n")[1].split("\n\n")[0].splitlines()[2:]
        written = json.loads(models(name, checkpoint, "--output", "json").stdout)
        assert [row.split("`")[1] for row in rows] == list(written)


def test_show_needs_only_the_config_and_tells_what_does_not_fit(tmp_path: Path) -> None:
    config = tiny_config(hidden_size=1 << 20, dense_intermediate_size=1 << 20, max_positions=100)
    (tmp_path / "config.json").write_text(json.dumps(config.to_json()))
    done = models("show", tmp_path)
    assert done.return_value == 0
    assert "no weights are here, only the config" in done.stdout
    assert "does not fit: " in done.stdout
    with pytest.raises(M3Error, match=r"none has no config\.json"):
        describe(tmp_path / "none")
