"""An engine on several ranks answers as on one: with prefixes, forks, searches, images, and pages from disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from m3_model.cache import KVCache
from m3_model.loading import load_decoder
from m3_runtime.config import DiskConfig, EngineConfig
from m3_runtime.engine import Engine
from m3_runtime.graphs import Recording
from m3_runtime.parallel.ranks import Ranks
from m3_runtime.request import PrefillProgress, Request, SamplingParams, TokenOutput
from m3_runtime.visuals import Visual, encoding_rank
from tests.runtime.parallel.conftest import led

CONFIG = EngineConfig(num_pages=24, max_context=800, vocab_size=400)
TEXT = [(7919 * i) % 380 for i in range(500)]
MARK = 390
GREEDY = SamplingParams(temperature=0, max_tokens=6)


def picture(seed: int, start: int) -> Visual:
    """Noise of 20 x 10 tokens."""
    pixels = torch.randint(256, (2, 3, 560, 280), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    return Visual(key=bytes([0, 0, 0, seed]) * 8, runs=(range(start, start + 200),), frames=lambda: pixels)


def prompt(*seeds: int) -> Request:
    """150 tokens of text, then each picture with ten more behind it."""
    ids, visuals = TEXT[:150], []
    for number, seed in enumerate(seeds):
        visuals.append(picture(seed, len(ids)))
        ids = [*ids, *[MARK] * 200, *TEXT[150 + 10 * number :][:10]]
    return Request(prompt=ids, visuals=visuals, sampling=GREEDY)


def answer(engine: Engine, request: Request) -> tuple[list[int], int]:
    """The tokens of the answer, and how many tokens of the prompt were not computed."""
    outputs = list(engine.stream(request))
    (cached,) = {output.cached_tokens for output in outputs if isinstance(output, PrefillProgress)}
    return [i for output in outputs if isinstance(output, TokenOutput) for i in output.token_ids], cached


def forked(engine: Engine, request: Request) -> list[list[int]]:
    """What one sequence and its fork, made in the middle, go on with by seeds of their own."""
    sampling = SamplingParams(temperature=1.0, seed=5, max_tokens=12)
    ids = [engine.add(Request(prompt=request.prompt, visuals=request.visuals, sampling=sampling))]
    found: dict[int, list[int]] = {}
    while engine.has_work:
        for output in engine.step():
            if isinstance(output, TokenOutput):
                found.setdefault(output.request_id, []).extend(output.token_ids)
        if len(ids) == 1 and len(found.get(ids[0], ())) >= 3:
            ids.append(engine.fork(ids[0], SamplingParams(temperature=1.0, seed=6, max_tokens=12)))
    return [found[i] for i in ids]


def test_prefixes_forks_searches_and_images_are_those_of_one_process(ranks: Ranks, seeing_folder: Path) -> None:
    alone = load_decoder(seeing_folder)
    together = led(ranks, seeing_folder, num_pages=24, spread_rows=100)
    encoders = {encoding_rank(picture(seed, 0), ranks.size) for seed in (1, 2)}
    assert len(encoders) == 2  # so that both rank 0 and another rank encode a picture
    expected, got = (
        Engine(alone, KVCache.zeros(alone.config, 24), CONFIG),
        Engine(together.decoder, together.cache, CONFIG, runner=together.runner),
    )
    for request in (prompt(1), prompt(1, 2), prompt(1, 2), prompt(2), Request(prompt=TEXT[:300], sampling=GREEDY)):
        assert answer(got, request) == answer(expected, request)
    assert answer(got, prompt(1, 2))[1] == 512  # four pages, with both pictures in them
    assert forked(got, prompt(1)) == forked(expected, prompt(1))
    tokens = [[token] for token in range(0, 400, 40)]
    ours, theirs = (engine.score(prompt(1, 2).prompt, tokens, prompt(1, 2).visuals) for engine in (got, expected))
    assert ours == pytest.approx(theirs, abs=1e-5)
    beams, beams_alone = (engine.search(prompt(2), 5, max_tokens=4) for engine in (got, expected))
    assert [beam.token_ids for beam in beams] == [beam.token_ids for beam in beams_alone]


def test_where_another_rank_cannot_capture_all_decode_without_graphs(
    ranks: Ranks, seeing_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def never_replayed(step: Callable[[], torch.Tensor]) -> Recording:
        return lambda: pytest.fail("rank 0 replays alone")

    request = Request(prompt=TEXT[:40], sampling=GREEDY)
    answers = []
    for name in ("tiny", "cannot capture"):
        monkeypatch.setattr(ranks.member, "capture", lambda decoder, cache, config: never_replayed)
        model = led(ranks, seeing_folder, num_pages=25, name=name, engine=CONFIG)
        assert (model.runner.graphs is None) == (name == "tiny")  # where the others cannot have graphs at all
        engine = Engine(model.decoder, model.cache, CONFIG, runner=model.runner)
        answers.append([answer(engine, request), forked(engine, request)])
    assert answers[0] == answers[1]
    assert [record.getMessage() for record in caplog.records] == [
        "m3: decoding goes on without CUDA graphs: another rank cannot capture this step"
    ]


def test_a_page_is_restored_where_all_ranks_have_it(ranks: Ranks, seeing_folder: Path, tmp_path: Path) -> None:
    request = Request(prompt=TEXT, sampling=GREEDY)
    disk = DiskConfig(folder=tmp_path, max_bytes=10**9)

    def run(times: int) -> list[tuple[list[int], int]]:
        """Answers of an engine whose memory is empty at first."""
        model = led(ranks, seeing_folder, num_pages=24, disk=disk)
        engine = Engine(model.decoder, model.cache, CONFIG, model.disk, runner=model.runner)
        answers = [answer(engine, request) for _ in range(times)]
        engine.close()
        return answers

    def files() -> dict[str, int]:
        return {folder.name.rsplit("-", 1)[0]: len(list(folder.glob("*.page"))) for folder in tmp_path.iterdir()}

    (tokens, _), _ = run(2)
    assert run(1) == [(tokens, 384)]  # waits for what the other ranks were writing, too
    assert files() == {f"tiny-rank-{rank}-of-{ranks.size}": 3 for rank in range(ranks.size)}
    own = sorted((path.stat().st_mtime_ns, path) for path in tmp_path.glob(f"tiny-rank-{ranks.size - 1}-*/*.page"))
    assert len({path.read_bytes() for path in tmp_path.rglob("*.page")}) == 3 * ranks.size  # each has its own content
    own[1][1].unlink()  # the second page of the last rank: times go back by depth
    assert run(1) == [(tokens, 128)]
    assert set(files().values()) == {2}
    assert run(1) == [(tokens, 128)]
