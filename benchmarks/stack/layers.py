"""One layer of each kind: a chunk of a prompt, and one token, at some lengths of context."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.kernels.rows import Ceilings
from benchmarks.stack import floors
from benchmarks.stack.model import LAYERS_OF_M3
from m3_kernels.rms_norm import rms_norm
from m3_model.cache import KVCache
from m3_model.decoder import Decoder
from m3_model.inputs import ModelInputs
from m3_model.layers import Rotation

Work = Callable[[], object]


def measured_ms(work: Work, *, budget_s: float = 0.6, most: int = 30) -> float:
    """The median of at least three runs, by the GPU's own clock where there is one."""
    on_gpu = torch.cuda.is_available()
    work()
    times: list[float] = []
    end_s = time.perf_counter() + budget_s
    while len(times) < 3 or (len(times) < most and time.perf_counter() < end_s):
        if on_gpu:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            work()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        else:
            start_s = time.perf_counter()
            work()
            times.append(1e3 * (time.perf_counter() - start_s))
    return statistics.median(times)


def graph_of(work: Work) -> Work:
    """The same work as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            work()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        work()
    return graph.replay


class Bench:
    """A decoder and a cache full of random keys, and what its layers do with them."""

    def __init__(self, decoder: Decoder, cache: KVCache):
        self.decoder, self.cache, self.config = decoder, cache, decoder.config

    def inputs(self, length: int, count: int, *, longest: int | None = None) -> ModelInputs:
        """`count` tokens that end at `length`; with `longest` as in a graph that was captured for that context."""
        size = self.config.block_size
        pages = list(range(-(-(longest or length) // size)))
        inputs = ModelInputs.build([[1] * count], [length - count], [pages], page_size=size, device=self.decoder.device)
        if longest is None:
            return inputs
        table = torch.tensor([pages], dtype=torch.int32, device=self.decoder.device)
        fixed = dataclasses.replace(inputs.attention, page_table_BN=table, lengths=(longest,), pages=())
        return dataclasses.replace(inputs, attention=fixed)

    def work(self, i: int, inputs: ModelInputs) -> dict[str, Work]:
        """What layer i does for these inputs: all of it, and its two halves."""
        layer, eps = self.decoder.layers[i], self.config.rms_norm_eps
        rotation = Rotation.at(inputs.positions_T, self.config)
        rows = self.decoder.parallel.rows(len(inputs.token_ids_T))
        shape = (len(inputs.token_ids_T), self.config.hidden_size)
        x_TC, residual_TC = (torch.randn(shape, device=self.decoder.device, dtype=self.decoder.dtype) for _ in "xr")

        def attention() -> Tensor:
            normed_TC, _ = rms_norm(x_TC, residual_TC, layer.attention_norm_C, eps=eps)
            return layer.attention(normed_TC, inputs, self.cache.layer(i), rotation)

        def feed_forward() -> Tensor:
            return layer.feed_forward(rms_norm(x_TC, residual_TC, layer.mlp_norm_C, eps=eps)[0], rows)

        def whole() -> Tensor:
            normed_TC, total_TC = rms_norm(x_TC, residual_TC, layer.attention_norm_C, eps=eps)
            y_TC = layer.attention(normed_TC, inputs, self.cache.layer(i), rotation)
            return layer.feed_forward(rms_norm(y_TC, total_TC, layer.mlp_norm_C, eps=eps)[0], rows)

        return {"layer": whole, "attention": attention, "feed_forward": feed_forward}


def prefill_rows(bench: Bench, lengths: Sequence[int], chunk: int, ceilings: Ceilings) -> Iterator[dict[str, Any]]:
    """Milliseconds of a chunk that ends at each length, one row for each kind of layer, then all layers of M3."""
    for length in lengths:
        count, of_m3 = min(chunk, length), 0.0
        for i, kind in _kinds(bench):
            with torch.inference_mode():
                times = {name: measured_ms(work) for name, work in bench.work(i, bench.inputs(length, count)).items()}
            of_m3 += LAYERS_OF_M3[kind] * times["layer"]
            floor = floors.prefill_floor_ms(
                bench.config, kind, length, count, ceilings.matmul_tflops, ceilings.copy_tbs
            )
            yield {
                "what": "prefill",
                "layer": kind,
                "context": length,
                "tokens": count,
                **{f"{name}_ms": round(ms, 3) for name, ms in times.items()},
                "floor_ms": round(floor, 3),
                "of_floor": round(floor / times["layer"], 3),
            }
        yield {"what": "prefill", "composed_of_60_layers": True, "context": length, "tokens": count, "ms": round(of_m3)}


def decode_rows(bench: Bench, lengths: Sequence[int], ceilings: Ceilings) -> Iterator[dict[str, Any]]:
    """Microseconds of one token at each length, with graphs and without, then all layers of M3 with its head."""
    on_gpu = torch.cuda.is_available()
    head_us = _head_us(bench)
    for length in lengths:
        of_m3 = {"graph": head_us["graph"], "plain": head_us["plain"]}
        for i, kind in _kinds(bench):
            with torch.inference_mode():
                parts = bench.work(i, bench.inputs(length, 1, longest=max(lengths) if on_gpu else None))
                plain = 1e3 * measured_ms(parts["layer"])
                in_graph = {name: 1e3 * measured_ms(graph_of(work)) for name, work in parts.items()} if on_gpu else {}
            floor = 1e3 * floors.decode_floor_ms(bench.config, kind, length, ceilings.copy_tbs)
            of_m3["plain"] += LAYERS_OF_M3[kind] * plain
            of_m3["graph"] += LAYERS_OF_M3[kind] * in_graph.get("layer", plain)
            yield {
                "what": "decode",
                "layer": kind,
                "context": length,
                "without_graph_us": round(plain, 1),
                **{f"{name}_us": round(us, 1) for name, us in in_graph.items()},
                "floor_us": round(floor, 1),
                "of_floor": round(floor / in_graph.get("layer", plain), 3),
            }
        yield {
            "what": "decode",
            "composed_of_60_layers": True,
            "context": length,
            "with_head_ms": round(of_m3["graph"] / 1e3, 2),
            "without_graph_ms": round(of_m3["plain"] / 1e3, 2),
            "tokens_per_s": round(1e6 / of_m3["graph"], 1),
        }


def _head_us(bench: Bench) -> dict[str, float]:
    """Embedding is nothing; the last norm and the head."""
    hidden_1C = torch.randn(1, bench.config.hidden_size, device=bench.decoder.device, dtype=bench.decoder.dtype)

    def head() -> Tensor:
        return bench.decoder.logits(rms_norm(hidden_1C, None, bench.decoder.norm_C, eps=bench.config.rms_norm_eps)[0])

    with torch.inference_mode():
        plain = 1e3 * measured_ms(head)
        return {"plain": plain, "graph": 1e3 * measured_ms(graph_of(head)) if torch.cuda.is_available() else plain}


def _kinds(bench: Bench) -> list[tuple[int, str]]:
    """The first layer of each kind."""
    kinds = bench.config.attention_kinds
    return [(kinds.index(kind), kind) for kind in dict.fromkeys(kinds)]
