"""Documents with pictures: training shows what the runtime shows, and packs keep pictures and tokens together."""

from __future__ import annotations

import io
import itertools

import numpy as np
import pytest
from PIL import Image

from m3_model import reading
from m3_model.tokenizer import Tokenizer
from m3_model.vision.resize import default_rule
from m3_model.vision.video import Sampling
from m3_runtime.chat.encoding import PromptEncoder
from m3_runtime.chat.media import media_in
from m3_runtime.chat.template import ChatTemplate, normalise
from m3_runtime.chat.viewer import Viewer
from training.conversations import Example
from training.feed import PADDING_RUN, Pack, packs
from training.model import NANO
from training.pictures import SeenExample, answer, cut, picture_examples, rows, seen_example
from training.screens.draw import Screen, screen
from training.transcript import SEEN, Encoder
from training.write_config import eyes_config

tokenizer = Tokenizer.from_folder(NANO)
IMAGE = tokenizer.token_id("]<]image[>[")
assert IMAGE is not None
CONFIG = eyes_config(IMAGE, IMAGE + 1)
TEXTS = [Example(np.full(100, 5, np.uint16), np.ones(100, np.uint8)) for _ in range(60)]


@pytest.mark.parametrize("number", range(4))
def test_the_prompt_of_the_runtime_is_that_of_training(encoder: Encoder, number: int) -> None:
    made = screen(number)
    file = io.BytesIO()
    made.image.save(file, "PNG")
    parts = [{"type": "image", "image": file.getvalue()}, {"type": "text", "text": reading.ERROR}]
    messages = normalise([{"role": "user", "content": parts}])
    viewer = Viewer(CONFIG, default_rule(CONFIG), Sampling())
    prompt = PromptEncoder(ChatTemplate.from_folder(NANO), tokenizer)
    shown = [viewer.show(media) for media in media_in(messages)]
    ids, runs = prompt.encode_shown(prompt.render(messages, thinking="disabled"), shown)
    example = seen_example(encoder, CONFIG, made, reading.ERROR, cut(made.image, CONFIG))
    assert example.tokens[: len(ids)].tolist() == ids
    assert runs == [range(example.image_start, example.image_start + len(example.patches) // 4)]
    answered = encoder.decode(example.tokens[len(ids) :].tolist())
    assert answered == answer(made, reading.ERROR) + "[e~[\n"


def drawn(*lines: tuple[str, tuple[int, int, int, int]]) -> Screen:
    return Screen(kind="editor", image=Image.new("RGB", (9, 9)), lines=lines, layout="", font="", exception="KeyError",
                  place="12")  # fmt: skip


def test_rows_are_read_from_top_to_bottom_and_from_left_to_right() -> None:
    made = drawn(
        ("OK", (200, 50, 220, 66)), ("  12", (4, 4, 30, 20)), ("Cancel", (100, 51, 150, 67)),
        ("    return  x", (40, 6, 90, 22)), ("E   KeyError: 'x'", (40, 24, 90, 40)),
    )  # fmt: skip
    assert rows(made.lines) == ["12 return x", "E KeyError: 'x'", "Cancel OK"]
    assert answer(made, reading.ERROR) == "KeyError: 'x'\n12"


@pytest.fixture(scope="module")
def made() -> list[SeenExample]:
    return list(itertools.islice(picture_examples(CONFIG, seed=3), 30))


def test_the_same_seed_gives_the_same_documents_of_all_kinds(made: list[SeenExample]) -> None:
    again = list(itertools.islice(picture_examples(CONFIG, seed=3), 30))
    assert all(np.array_equal(a.patches, b.patches) for a, b in zip(made, again, strict=True))
    assert {one.question for one in made} == {reading.READ, reading.ERROR, reading.LABEL}


def test_packs_hold_whole_pictures_within_their_patches_and_point_to_their_tokens(made: list[SeenExample]) -> None:
    made = [one for one in made if len(one.patches) <= 4 * 512]
    pack = next(packs(TEXTS, 4096, pictures=made, patches=4 * 1024))
    patches = pack.patches
    assert patches is not None
    assert len(patches.places) == 4 * 1024
    assert len(patches.colours) == 4 * len(patches.rows)
    assert (pack.tokens[patches.rows] == IMAGE).all()
    assert set(pack.classes[patches.rows]) == {0}
    seen = [b for a, b in itertools.pairwise(patches.starts) if b <= 4 * len(patches.rows)]
    assert seen[-1] == 4 * len(patches.rows) > 2 * 1024
    assert np.diff(patches.starts).max() <= max(PADDING_RUN, *(len(one.patches) for one in made))
    assert patches.starts[-1] == len(patches.places)
    first = next(one for one in made if np.array_equal(one.patches, patches.colours[: len(one.patches)]))
    assert np.array_equal(patches.places[: len(first.patches)], first.places)
    assert set(pack.classes) >= {0, SEEN}


def test_a_pack_without_pictures_has_no_patches() -> None:
    pack: Pack = next(packs(TEXTS, 1000))
    assert pack.patches is None
