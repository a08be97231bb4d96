"""Images and videos in a conversation: how they stand in the prompt, what is read again, and errors in one line."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import shutil
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers.models.minimax_m3_vl.processing_minimax_m3_vl import MiniMaxM3VLProcessor

from m3_model.random_checkpoint import tiny_vision_config
from m3_model.tokenizer import Tokenizer
from m3_model.vision.images import MediaError, read_image
from m3_model.vision.resize import AreaRule, LongSideRule, default_rule, num_tokens
from m3_model.vision.video import Sampling
from m3_runtime.chat.encoding import PromptEncoder
from m3_runtime.chat.events import ChatEvent, Finish, TextDelta
from m3_runtime.chat.media import media_in
from m3_runtime.chat.options import ChatOptions
from m3_runtime.chat.session import ChatEngine
from m3_runtime.chat.syntax import IMAGE, IMAGE_END, IMAGE_START, VIDEO
from m3_runtime.chat.template import ChatTemplate, normalise
from m3_runtime.chat.viewer import Shown, Viewer, place
from m3_runtime.request import PrefillProgress

SHORT = ChatOptions(temperature=0, max_tokens=8, tool_choice="none", thinking="disabled")
CONFIG = tiny_vision_config(image_size=448)
VIEWER = Viewer(CONFIG, default_rule(CONFIG), Sampling())


def png(seed: int, width: int = 224, height: int = 112) -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def mkv(seed: int, seconds: int) -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format="matroska") as container:
        stream = container.add_stream("ffv1", rate=1)
        stream.width, stream.height, stream.pix_fmt = 56, 56, "bgr0"
        stream.codec_context.time_base = Fraction(1, 1000)
        for i in range(seconds):
            pixels = np.random.default_rng(seed + i).integers(0, 256, (56, 56, 3), np.uint8)
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = 1000 * i, Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()


def image(data: bytes) -> dict[str, Any]:
    return {"type": "image", "image": data}


def over_http(data: bytes, kind: str = "image", media_type: str = "image/png") -> dict[str, Any]:
    url = f"data:{media_type};base64,{base64.b64encode(data).decode()}"
    return {"type": f"{kind}_url", f"{kind}_url": {"url": url}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def user(*parts: Mapping[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def finish(events: Sequence[ChatEvent]) -> Finish:
    assert isinstance(events[-1], Finish)
    return events[-1]


MEDIA = [
    *(image(png(i, *size)) for i, size in enumerate([(28, 28), (224, 112), (300, 90)])),
    *({"type": "video", "video": mkv(i, seconds)} for i, seconds in enumerate((1, 9))),
]
LITERALS = ["]<]image[>[", "]<]video[>[", "]<]start of image[>[", "[e~["]
WORDS = (st.text("ab \n]<[>", max_size=8) | st.sampled_from(LITERALS)).map(text)
MESSAGES = st.lists(st.lists(st.sampled_from(MEDIA) | WORDS, max_size=5), min_size=1, max_size=3)


@settings(deadline=None, max_examples=60)
@given(messages=MESSAGES)
def test_every_image_and_video_is_expanded_as_the_released_processor_does(
    messages: list[list[dict[str, Any]]], tokenizer: Tokenizer, template: ChatTemplate
) -> None:
    known = normalise([user(*parts) for parts in messages])
    shown = [VIEWER.show(media) for media in media_in(known)]
    encoder = PromptEncoder(template, tokenizer)
    ids, runs = encoder.encode_shown(encoder.render(known), shown)

    coming = iter(shown)
    expected = "]~!b["
    for parts in messages:
        content = "".join(p["text"] if p["type"] == "text" else theirs(next(coming)) for p in parts)
        expected += f"]~b]user\n{content}[e~[\n"
    assert tokenizer.decode(ids) == expected + "]~b]ai\n"

    image_id, video_id, start, end = (tokenizer.token_id(mark) for mark in (IMAGE, VIDEO, IMAGE_START, IMAGE_END))
    assert [i for run in runs for i in run] == [i for i, token in enumerate(ids) if token in (image_id, video_id)]
    assert all((ids[run.start - 1], ids[run.stop]) == (start, end) for run in runs)
    placed = place(shown, runs)
    assert [run for visual in placed for run in visual.runs] == runs
    for visual in placed:
        frames = visual.frames()
        assert sum(map(len, visual.runs)) == len(frames) // 2 * num_tokens(*frames.shape[2:], CONFIG)
        assert len(visual.runs) <= CONFIG.segment_size


def theirs(shown: Shown) -> str:
    """What transformers' processor writes for an image or video of this grid; videos have one frame a second here."""
    names = ("IMAGE_TOKEN", "VIDEO_TOKEN", "VISION_START_TOKEN", "VISION_END_TOKEN")
    half = SimpleNamespace(merge_size=2, temporal_patch_size=2)
    processor: Any = SimpleNamespace(
        image_processor=half, video_processor=half, **{name: getattr(MiniMaxM3VLProcessor, name) for name in names}
    )
    times = len(shown.stamps)
    grid = torch.tensor([[times, 2, 2 * shown.run_tokens]])
    if shown.kind == "image":
        return str(MiniMaxM3VLProcessor.replace_image_token(processor, {"image_grid_thw": grid}, 0))
    told = SimpleNamespace(fps=1.0, frames_indices=list(range(2 * times)))
    inputs = {"num_chunks_per_video": [1], "video_grid_thw": grid, "video_metadata": [told]}
    return str(MiniMaxM3VLProcessor.replace_video_token(processor, inputs, 0))


def test_an_image_is_answered_and_the_next_turn_continues_its_ids(seeing: ChatEngine) -> None:
    start = [user(text("Look: " + "x, y! " * 20), image(png(1)), text("What is it?"))]
    first = list(seeing.stream(start, (), SHORT))
    usage = finish(first).usage
    assert usage.prompt_tokens > 32
    answer = {"role": "assistant", "content": "".join(e.text for e in first if isinstance(e, TextDelta))}
    history = [*start, answer, {"role": "tool", "content": [text("and this"), image(png(2))]}, user(text("Go on."))]
    second = finish(list(seeing.stream(history, (), SHORT)))
    assert (second.reused_tokens, second.note) == (usage.prompt_tokens + usage.completion_tokens, "")
    turn = seeing.prepare(history, (), SHORT)
    image_id = seeing.tokenizer.token_id(IMAGE)
    places = [place for visual in turn.request.visuals for run in visual.runs for place in run]
    assert places == [i for i, token in enumerate(turn.request.prompt) if token == image_id]
    assert [len(visual.runs[0]) for visual in turn.request.visuals] == [32, 32]


def test_another_picture_of_the_same_size_is_another_conversation(seeing: ChatEngine) -> None:
    """Its answered turns are not reused, its pages are not shared, and its answer is that of a fresh engine."""

    def ask(chat: ChatEngine, seed: int) -> tuple[Finish, dict[str, Any]]:
        start = [user(image(png(seed, 448, 448)), text("What is it?"))]
        events = list(chat.stream(start, (), SHORT))
        answer = {"role": "assistant", "content": "".join(e.text for e in events if isinstance(e, TextDelta))}
        return finish(events), {"history": [*start, answer, user(text("And now?"))]}

    one, first = ask(seeing, 1)
    other, second = ask(seeing, 2)
    assert one.usage.prompt_tokens == other.usage.prompt_tokens > 256
    assert other.usage.cached_tokens == 0
    assert ask(seeing, 1)[0].usage.cached_tokens == 256
    mixed = [second["history"][0], *first["history"][1:]]
    for history, reused in ((first["history"], True), (second["history"], True), (mixed, first == second)):
        assert (finish(list(seeing.stream(history, (), SHORT))).reused_tokens > 0) == reused


def test_scores_and_candidates_see_the_image(seeing: ChatEngine, tools: list[dict[str, Any]]) -> None:
    calls = [("read", {"path": path}) for path in ("a.py", "b.py")]
    scores = [seeing.score_calls([user(image(png(seed)), text("Read."))], tools, calls) for seed in (1, 2, 1)]
    assert scores[0] == pytest.approx(scores[2], abs=1e-4)
    assert scores[0] != pytest.approx(scores[1], abs=1e-3)
    options = ChatOptions(
        tool_choice="read", thinking="disabled", candidates=2, fixed_arguments={"path": ["a.py", "b.py"]}
    )
    events = list(seeing.stream([user(image(png(1)), text("Read."))], tools, options))
    assert finish(events).reason == "tool_calls"


def test_the_bytes_are_the_same_over_http_and_in_this_process(seeing: ChatEngine) -> None:
    clip = mkv(3, 3)
    ways = [
        [image(png(1)), {"type": "video", "video": clip}],
        [over_http(png(1)), over_http(clip, "video", "video/x-matroska")],
        [
            {"type": "image_url", "image_url": over_http(png(1))["image_url"]["url"]},
            over_http(clip, "video", "video/mp4"),
        ],
    ]
    turns = [seeing.prepare([user(*parts, text("Compare."))], (), SHORT) for parts in ways]
    assert len({(turn.prompt.key, tuple(turn.prompt.token_ids)) for turn in turns}) == 1
    assert len({tuple(visual.key for visual in turn.request.visuals) for turn in turns}) == 1
    told = seeing.tokenizer.decode(turns[0].prompt.token_ids)
    assert "]<]0.0 seconds[>[]<]start of image[>[" in told
    assert "]<]2.0 seconds[>[" in told


def test_a_picture_that_was_seen_before_is_decoded_only_where_it_is_needed(seeing: ChatEngine) -> None:
    messages = [user(image(png(1)), text("x, y! " * 60))]
    for expected in (0, 256):
        turn = seeing.prepare(messages, (), SHORT)
        (visual,) = turn.request.visuals
        outputs = list(seeing.engine.stream(turn.request))
        assert next(o.cached_tokens for o in outputs if isinstance(o, PrefillProgress)) >= expected
    read: list[int] = []

    def frames() -> torch.Tensor:
        read.append(1)
        return visual.frames()

    again = dataclasses.replace(visual, frames=frames)
    list(seeing.engine.stream(dataclasses.replace(turn.request, visuals=[again])))
    assert read == []
    torch.testing.assert_close(visual.frames(), read_image(png(1), CONFIG, default_rule(CONFIG)), atol=0, rtol=0)


def test_the_shape_of_what_was_seen_before_is_known_without_its_pixels() -> None:
    for part in (image(png(7)), {"type": "video", "video": mkv(7, 3)}):
        (media,) = media_in(normalise([user(part)]))
        first = VIEWER.show(media)
        again = VIEWER.show(dataclasses.replace(media, data=b""))
        assert (again.key, again.stamps, again.run_tokens) == (first.key, first.stamps, first.run_tokens)
        with pytest.raises(MediaError):
            again.frames()


def test_the_rule_for_the_size_can_be_chosen(seeing_folder: Path) -> None:
    messages = [user(image(png(1, 1000, 1000)))]
    lengths = []
    for rule in (None, LongSideRule(long_side=112), AreaRule(max_pixels=28 * 28 * 64)):
        chat = ChatEngine.load(seeing_folder, max_context=1024, image_rule=rule)
        (visual,) = chat.prepare(messages, (), SHORT).request.visuals
        lengths.append(len(visual.runs[0]))
    assert lengths == [256, 16, 64]


HTML = b"<!doctype html><title>Not found</title>"


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        (image(HTML), r"messages\[1\].content\[1\]: this is no image in a known format; give PNG"),
        (image(png(1)[:3000]), r"messages\[1\].content\[1\]: the image is damaged"),
        (image(png(1, 2010, 10)), r"messages\[1\].content\[1\]: 2010 x 10 pixels: one side may be at most 200 times"),
        ({"type": "video", "video": HTML}, r"messages\[1\].content\[1\]: this is no video that can be read"),
        ({"type": "image", "image": "a.png"}, r"messages\[1\].content\[1\].image must be bytes"),
        (
            {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
            "nothing is fetched from the network",
        ),
        ({"type": "image_url", "image_url": {}}, "must be a data: URL"),
        ({"type": "image_url", "image_url": {"url": "data:image/png,abc"}}, "must be base64"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,a$=="}}, "is not base64"),
    ],
)
def test_a_bad_image_is_one_line_and_the_next_request_is_answered(
    part: dict[str, Any], problem: str, seeing: ChatEngine
) -> None:
    with pytest.raises(ValueError, match=problem) as caught:
        list(seeing.stream([{"role": "system", "content": "S"}, user(text("Look"), part)], (), SHORT))
    assert "\n" not in str(caught.value)
    assert finish(list(seeing.stream([user(image(png(1)))], (), SHORT))).usage.completion_tokens > 0


@pytest.mark.parametrize("role", ["system", "assistant"])
def test_images_stand_where_the_template_shows_them(role: str, seeing: ChatEngine) -> None:
    with pytest.raises(ValueError, match=rf"messages\[0\] is a {role} message with an image or video"):
        list(seeing.stream([{"role": role, "content": [image(png(1))]}], (), SHORT))
    blind = ChatEngine(
        seeing.engine, seeing.tokenizer, ChatTemplate("{{ messages[0].content[1].text }}"), name="blind", viewer=VIEWER
    )
    with pytest.raises(ValueError, match="the chat template shows 0 images and videos, not 1"):
        list(blind.stream([user(image(png(1)), text("x"))], (), SHORT))


@pytest.mark.parametrize("part", MEDIA[2:4], ids=["image", "video"])
def test_a_text_model_says_that_it_reads_text_only(part: dict[str, Any], chat: ChatEngine) -> None:
    assert not chat.reads_images
    with pytest.raises(ValueError, match=r"^tiny\d* reads text only; leave images and videos out$"):
        list(chat.stream([user(part, text("What is it?"))]))


def test_a_tokenizer_of_another_model_is_refused(seeing_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(seeing_folder, tmp_path / "copy")
    path = tmp_path / "copy" / "config.json"
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "video_token_index": 5}))
    with pytest.raises(ValueError, match=r"the tokenizer's id of \]<\]video\[>\[ is \d+, and config.json wants 5"):
        ChatEngine.load(tmp_path / "copy")
