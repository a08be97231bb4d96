"""The benchmark of a reduced stack runs from end to end on a CPU, and its floors are those of the notes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="its timing uses Triton")

from benchmarks.stack import floors
from benchmarks.stack.__main__ import main
from benchmarks.stack.model import stack_config

K = 1024


def test_every_part_runs(tmp_path: Path) -> None:
    out = tmp_path / "stack.json"
    main(["--small", "--only", "decode,engine,prefill,restore", "--out", str(out)])
    result = json.loads(out.read_text())
    assert result["failed"] == {}
    rows = result["rows"]
    for what in ("decode", "prefill"):
        mine = [row for row in rows if row["what"] == what]
        assert {row["layer"] for row in mine if "layer" in row} == {"dense", "sparse"}
        assert sum("composed_of_60_layers" in row for row in mine) == 2
    restored = [row for row in rows if row["what"] == "prompt comes back"]
    assert [row["identical"] for row in restored] == [True, True]
    assert [row["pages"] for row in restored] == [2, 2]
    assert {row["pages"] for row in rows if row["what"] == "pages are read"} == {2}


@pytest.mark.slow
def test_nano_runs_beside_transformers(tmp_path: Path) -> None:
    out = tmp_path / "stack.json"
    main(["--small", "--only", "nano", "--out", str(out)])
    rows = json.loads(out.read_text())["rows"]
    (nano,) = (row for row in rows if row["what"] == "nano, greedy tokens")
    assert nano["graphs on, same as on the CPU"]
    (beside,) = (row for row in rows if row["what"] == "nano beside transformers")
    assert beside["same tokens"]


def test_a_part_that_fails_stops_no_other(tmp_path: Path) -> None:
    out = tmp_path / "stack.json"
    with pytest.raises(SystemExit, match="failed: no-such-part"):
        main(["--small", "--only", "no-such-part,decode", "--out", str(out)])
    result = json.loads(out.read_text())
    assert list(result["failed"]) == ["no-such-part"]
    assert len(result["rows"]) == 6


def test_the_floors_are_those_of_the_arithmetic() -> None:
    """TFLOP of attention and MB of the cache, worked out by hand for M3's widths."""
    config = stack_config()
    linear = 2 * 8 * K * (floors.attention_weights(config, "dense") + floors.mlp_weights(config, "dense", 4))
    assert floors.prefill_flops(config, "dense", 8 * K, 8 * K) - linear == pytest.approx(1.1e12, rel=0.01)
    assert floors.prefill_flops(config, "dense", K * K, 8 * K) - linear == pytest.approx(280.4e12, rel=0.01)
    linear = 2 * 8 * K * (floors.attention_weights(config, "sparse") + floors.mlp_weights(config, "sparse", 4))
    attention = floors.prefill_flops(config, "sparse", 128 * K, 8 * K) - linear
    assert attention == pytest.approx((1.065 + 0.55) * 1e12, rel=0.01)
    weights = 2 * (floors.attention_weights(config, "sparse") + floors.mlp_weights(config, "sparse", 4))
    assert floors.decode_bytes(config, "sparse", K * K) - weights == 268_435_456 + 4_194_304
    assert floors.decode_bytes(config, "dense", 128 * K) == pytest.approx(268e6 + 2 * (107e6 + 226.5e6), rel=0.01)


def test_the_floor_of_one_token_is_the_same_by_both_ways() -> None:
    """Reading the weights once bounds a single token in prefill as in decoding, in the same unit."""
    config = stack_config()
    for kind in ("dense", "sparse"):
        prefill_ms = floors.prefill_floor_ms(config, kind, 1, 1, matmul_tflops=700, copy_tbs=4.2)
        assert prefill_ms == pytest.approx(floors.decode_floor_ms(config, kind, 1, copy_tbs=4.2), rel=0.01)
