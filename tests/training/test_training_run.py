"""A run of the trainer as a whole: from the shipped weights, a few steps on text and pictures, export, and an answer.

Of the full shape but for the length of a step, on the CPU.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from m3_model import reading
from m3_runtime.chat.events import Finish, TextDelta
from m3_runtime.chat.options import ChatOptions
from m3_runtime.chat.session import ChatEngine
from training.model import NANO
from training.screens.draw import screen

ROOT = Path(__file__).parents[2]
PATHS = [".", "runtime", "kernels", "model", "tools"]
SCRIPT = """
import sys
from pathlib import Path
from m3_model.config import M3Config
from training.corpus import build_corpus
from training.pictures import held_out_pictures
from training.train import TrainConfig, train
from training.write_config import write_config

out = Path(sys.argv[1])
write_config(out)
vision = M3Config.from_folder(out).vision
config = TrainConfig(out=out, minutes=float(sys.argv[3]), tokens_per_step=4096, workers=2, log_every=1, warmup_steps=1,
                     start_from=Path(sys.argv[2]))
train(0, 1, config, build_corpus(None, processes=1, limit=60), [], [], held_out_pictures(vision, 2))
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_begins_with_the_shipped_model_and_ends_with_one_that_answers_about_a_picture(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": ":".join(str(ROOT / path) for path in PATHS), "OMP_NUM_THREADS": "2"}
    run, exported = tmp_path / "run", tmp_path / "exported"
    run.mkdir()
    exported.mkdir()
    command = [sys.executable, "-c", SCRIPT, str(run), str(NANO), "0.3"]
    subprocess.run(command, check=True, env=environment, cwd=tmp_path, timeout=800)
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert log[0]["target_loss"] < 3, "the shipped model, without two of its layers, knows what an edit looks like"
    assert log[0]["picture_loss"] > 0
    assert set(log[-1]["pictures"]) >= {"nll", "right_tokens", "read_exact"}
    export = [sys.executable, "-m", "training.export", str(run / "weights.pt"), "--to", str(exported)]
    subprocess.run(export, check=True, env=environment, cwd=ROOT)
    assert (exported / "model.safetensors").stat().st_size <= 28_000_000
    for name in ("tokenizer.json", "chat_template.jinja"):
        shutil.copy(NANO / name, exported)
    file = io.BytesIO()
    screen(0).image.save(file, "PNG")
    parts = [{"type": "image", "image": file.getvalue()}, {"type": "text", "text": reading.READ}]
    chat = ChatEngine.load(exported)
    options = ChatOptions(temperature=0, max_tokens=8, thinking="disabled", tool_choice="none")
    events = list(chat.stream([{"role": "user", "content": parts}], options=options))
    assert isinstance(events[-1], Finish)
    assert any(isinstance(event, TextDelta) for event in events)
    chat.close()
