"""Train nano: `python -m training.train --out DIR`, on as many GPUs as the machine has, for a given number of minutes.

One process a GPU. Each starts its data workers before it touches CUDA, because they are forked and share the sources.
The learning rate follows the clock, not the step count: warm-up, constant, then linear to zero over the last part, so a
run always ends decayed. The log (JSON lines) and the weights land in DIR; `training.export` makes the checkpoint.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from m3_model.config import M3Config
from training.conversations import DataSettings
from training.corpus import Corpus, build_corpus
from training.executed import Executed, read_executed
from training.feed import Feed, Pack, joined
from training.held_out import Case, held_out_set
from training.model import NANO, Seen, Shape, TrainedNano
from training.optimizer import Muon, split_parameters
from training.pictures import QUESTIONS, SeenExample, held_out_pictures
from training.sources import merged_records, write_record
from training.start import first_weights
from training.transcript import SEEN
from training.write_config import write_config


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """What a run is; the defaults are the shipped model's."""

    out: Path
    archive: Path | None = None
    """Carried sources, read beside the installed packages; None reads the installed ones alone."""
    executed: Path | None = None
    """Executed bugs that `training.execute` made; None trains on made-up reports alone."""
    minutes: float = 20.0
    tokens_per_step: int = 65_536
    """Per GPU."""
    muon_lr: float = 0.02
    adam_lr: float = 2e-3
    warmup_steps: int = 100
    decay_share: float = 0.5
    """The last share of the time, over which the learning rate falls to zero."""
    code_weight: float = 0.3
    """Loss weight of code tokens in the prompt; falls to `code_weight_end` over the decay."""
    code_weight_end: float = 0.03
    picture_share: float = 0.25
    """Share of a step's tokens that stand for parts of pictures; what is asked and answered about them comes on
    top."""
    picture_weight: float = 0.3
    """Loss weight of answers about pictures, of which there are far more than of edits."""
    balance_rate: float = 1e-3
    workers: int = 14
    """Data processes per GPU."""
    installed: bool = True
    """Whether the installed packages are read beside the archive."""
    cases: int = 2400
    """Held-out cases to judge the model on; 0 judges nothing, which saves a minute."""
    seen_cases: int = 200
    """Held-out pictures to judge the model on."""
    seed: int = 1
    log_every: int = 100
    eval_every_s: float = 180.0
    start_from: Path | None = None
    """What to go on from: weights of an earlier run, or the folder of a checkpoint."""
    leave_out: tuple[int, ...] = (7, 10)
    """Layers of that folder that are left out where it has more than the model."""


@dataclasses.dataclass(frozen=True)
class Batch:
    """A pack on the device, with next-token targets. The last token of a document has no target."""

    ids: Tensor
    targets: Tensor
    classes: Tensor
    positions: Tensor
    starts: Tensor
    longest: int
    seen: Seen | None


def to_batch(pack: Pack, device: torch.device) -> Batch:
    """Shift by one: position i predicts token i + 1, weighted by that token's class (0 none, 1 target, 2 code)."""
    ids = torch.from_numpy(pack.tokens.astype(np.int64))
    classes = torch.from_numpy(pack.classes)
    starts = torch.from_numpy(pack.starts)
    lengths = starts.diff()
    positions = torch.arange(len(ids)) - torch.repeat_interleave(starts[:-1], lengths)
    targets, next_classes = torch.zeros_like(ids), torch.zeros_like(classes)
    targets[:-1], next_classes[:-1] = ids[1:], classes[1:]
    next_classes[starts[1:].long() - 1] = 0
    tensors = [ids, targets, next_classes, positions, starts]
    seen = None
    if pack.patches is not None:
        colours = pack.patches.colours
        if missing := len(pack.patches.places) - len(colours):
            colours = np.concatenate([colours, np.zeros((missing, colours.shape[1]), np.uint8)])
        arrays = colours, pack.patches.places, pack.patches.starts, pack.patches.rows
        tensors_seen = [_moved(torch.from_numpy(array), device) for array in arrays]
        seen = Seen(*tensors_seen, longest=int(np.diff(pack.patches.starts).max()))
    return Batch(*(_moved(t, device) for t in tensors), longest=int(lengths.max()), seen=seen)


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy on the device: what came in may be overwritten afterwards."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.clone()


Parts = tuple[Tensor, Tensor]


class Ahead:
    """Packs moved to the device a few steps ahead, by a thread."""

    def __init__(self, packs: Iterator[Pack], device: torch.device):
        self.packs, self.device = packs, device
        self.ready: queue.Queue[Batch] = queue.Queue(maxsize=4)
        threading.Thread(target=self._fill, daemon=True).start()

    def _fill(self) -> None:
        for pack in self.packs:
            self.ready.put(to_batch(pack, self.device))

    def next(self) -> Batch:
        return self.ready.get()


def weighted_loss(hidden_TD: Tensor, embedding: Tensor, targets: Tensor, weights_C: Tensor, classes: Tensor) -> Parts:
    """Weighted mean loss by the weight of each class of token, and [sum of nll, tokens] of each class for the log."""
    logits = (hidden_TD @ embedding.to(hidden_TD.dtype).T).float()
    nll = F.cross_entropy(logits, targets, reduction="none")
    weight = weights_C[classes.long()]
    is_class_CT = (classes[None] == torch.arange(1, 4, device=classes.device, dtype=classes.dtype)[:, None]).float()
    stats_C2 = torch.stack([(is_class_CT * nll).sum(1), is_class_CT.sum(1)], dim=1)
    return (nll * weight).sum() / weight.sum().clamp(min=1), stats_C2.detach()


@torch.no_grad()
def evaluate(model: TrainedNano, cases: list[Case], labels: Tensor, device: torch.device) -> dict[str, float]:
    """Held-out cases, teacher forced: mean nll, share that greedy decoding gets exactly, share of right lines."""
    total = {"nll": 0.0, "tokens": 0.0, "exact": 0.0, "line": 0.0}
    size = 256
    for at in range(0, len(cases), size):
        chosen = cases[at : at + size]
        starts = np.cumsum([0, *(len(c.prompt) + len(c.target) for c in chosen)]).astype(np.int32)
        tokens = np.concatenate([part for c in chosen for part in (c.prompt, c.target)]).astype(np.int32)
        kinds = [np.full(len(part), kind, np.uint8) for c in chosen for kind, part in enumerate((c.prompt, c.target))]
        classes = np.concatenate(kinds)
        batch = to_batch(Pack(tokens=tokens, classes=classes, starts=starts), device)
        hidden, _ = model(batch.ids, batch.positions, batch.starts, batch.longest)
        rows = (batch.classes == 1).nonzero()[:, 0]
        logits = model.logits(hidden[rows]).float()
        targets = batch.targets[rows]
        right = logits.argmax(-1) == targets
        document = torch.bucketize(rows, batch.starts[1:].long(), right=True)
        wrong = torch.zeros(len(chosen), device=device).index_add_(0, document, (~right).float())
        is_label = torch.isin(targets, labels)
        line_wrong = torch.zeros(len(chosen), device=device).index_add_(0, document, (~right & is_label).float())
        total["nll"] += float(F.cross_entropy(logits, targets, reduction="sum"))
        total["tokens"] += len(rows)
        total["exact"] += float((wrong == 0).sum())
        total["line"] += float((line_wrong == 0).sum())
    count = len(cases)
    return {"nll": total["nll"] / total["tokens"], "exact": total["exact"] / count, "line": total["line"] / count}


@torch.no_grad()
def evaluate_seen(model: TrainedNano, cases: list[SeenExample], device: torch.device) -> dict[str, float]:
    """Held-out pictures, teacher forced: mean nll and share of right tokens; and for each question the share of answers
    that greedy decoding gets exactly."""
    exact: dict[str, list[bool]] = {}
    nll, right, count = 0.0, 0.0, 0
    for at in range(0, len(cases), 16):
        chosen = cases[at : at + 16]
        size, patches = sum(len(c.tokens) for c in chosen), sum(len(c.patches) for c in chosen)
        batch = to_batch(joined(chosen, size, patches, model.eyes.config.merge_size**2), device)
        hidden, _ = model(batch.ids, batch.positions, batch.starts, batch.longest, batch.seen)
        rows = (batch.classes == SEEN).nonzero()[:, 0]
        logits, targets = model.logits(hidden[rows]).float(), batch.targets[rows]
        is_right = logits.argmax(-1) == targets
        document = torch.bucketize(rows, batch.starts[1:].long(), right=True)
        wrong = torch.zeros(len(chosen), device=device).index_add_(0, document, (~is_right).float())
        for case, missed in zip(chosen, wrong.tolist(), strict=True):
            exact.setdefault(QUESTIONS[case.question], []).append(missed == 0)
        nll += float(F.cross_entropy(logits, targets, reduction="sum"))
        right, count = right + float(is_right.sum()), count + len(rows)
    shares = {f"{name}_exact": round(sum(found) / len(found), 4) for name, found in sorted(exact.items())}
    return {"nll": round(nll / count, 4), "right_tokens": round(right / count, 4), **shares}


def learning_rate_factor(step: int, fraction: float, config: TrainConfig) -> float:
    """Warm-up by step, decay by the share of the time that has passed."""
    left = max(0.0, 1.0 - fraction)
    return min(1.0, (step + 1) / config.warmup_steps) * min(1.0, left / config.decay_share)


def average_gradients(parameters: list[nn.Parameter]) -> None:
    """The mean of all ranks' gradients, in one collective."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    flat = torch.cat([g.flatten() for g in gradients])
    dist.all_reduce(flat, op=dist.ReduceOp.AVG)
    at = 0
    for g in gradients:
        g.copy_(flat[at : at + g.numel()].view_as(g))
        at += g.numel()


def train(
    rank: int,
    world: int,
    config: TrainConfig,
    corpus: Corpus,
    executed: list[Executed],
    cases: list[Case],
    seen_cases: list[SeenExample],
) -> None:
    """One rank's run, forked from `main` with the corpus; CUDA is touched after the data workers are forked."""
    torch.set_num_threads(1)
    model_config = M3Config.from_folder(config.out)
    assert model_config.vision is not None
    feed = Feed(
        corpus,
        processes=config.workers,
        pack_tokens=config.tokens_per_step,
        seed=config.seed * 1000 + rank,
        settings=DataSettings(),
        executed=executed,
        vision=model_config.vision,
        picture_tokens=round(config.picture_share * config.tokens_per_step),
    )
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.set_float32_matmul_precision("high")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29511")
    dist.init_process_group("nccl" if cuda else "gloo", rank=rank, world_size=world)
    clock = dist.new_group(backend="gloo")

    torch.manual_seed(config.seed)
    random.seed(config.seed)
    model = TrainedNano(Shape.from_config(config.out / "config.json"), model_config.vision)
    if config.start_from:
        model.load_state_dict(first_weights(config.start_from, model, config.leave_out))
    model.to(device)
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)
    parts = model.compiled_parts()
    uncompiled = [getattr(module, name) for module, name in parts]
    torch._dynamo.config.cache_size_limit = 64  # Muon alone has a dozen shapes
    compiled = [torch.compile(part, dynamic=False) if cuda else part for part in uncompiled]
    loss_function = torch.compile(weighted_loss, dynamic=False) if cuda else weighted_loss

    def use(methods: list[Callable[..., Any]]) -> None:
        for (module, name), method in zip(parts, methods, strict=True):
            setattr(module, name, method)

    use(compiled)
    matrices, rest = split_parameters(model)
    muon = Muon(matrices)
    adam = torch.optim.AdamW(rest, lr=config.adam_lr, betas=(0.9, 0.95), weight_decay=0.0, fused=cuda)
    vocabulary = Tokenizer.from_file(str(NANO / "tokenizer.json")).get_vocab()
    labels = torch.tensor([vocabulary[f"L{n}|"] for n in range(1, 1000)], device=device)
    ahead = Ahead(iter(feed), device)

    log = (config.out / "log.jsonl").open("a") if rank == 0 else None

    def write(**values: Any) -> None:
        if log:
            log.write(json.dumps(values) + "\n")
            log.flush()
            print(json.dumps(values), flush=True)

    def save() -> None:
        if rank == 0:
            small = {k: v.bfloat16() if v.ndim >= 2 and "router" not in k else v for k, v in model.state_dict().items()}
            torch.save(small, config.out / "weights.new")
            os.replace(config.out / "weights.new", config.out / "weights.pt")  # it may be copied at any time

    def measure() -> dict[str, dict[str, float]]:
        use(uncompiled)
        text = evaluate(model, cases, labels, device) if rank == 0 and cases else {}
        seen = evaluate_seen(model, seen_cases, device) if rank == 0 and seen_cases else {}
        use(compiled)
        return {"held_out": text, "pictures": seen}

    started = time.monotonic()
    last_eval, last_log, waited = started, started, 0.0
    stats = torch.zeros(3, 2, device=device)
    step, fraction = 0, 0.0
    while True:
        now = torch.tensor([(time.monotonic() - started) / (60 * config.minutes)])
        dist.broadcast(now, 0, group=clock)
        fraction = float(now)
        if fraction >= 1:
            break
        factor = learning_rate_factor(step, fraction, config)
        decayed = min(1.0, max(0.0, (fraction - 1 + config.decay_share) / config.decay_share))
        code_weight = config.code_weight + decayed * (config.code_weight_end - config.code_weight)
        at = time.monotonic()
        batch = ahead.next()
        waited += time.monotonic() - at
        hidden, loads = model(batch.ids, batch.positions, batch.starts, batch.longest, batch.seen)
        weights = torch.tensor([0.0, 1.0, code_weight, config.picture_weight], device=device)
        loss, step_stats = loss_function(hidden, model.embedding, batch.targets, weights, batch.classes)
        loss.backward()
        if world > 1:
            average_gradients([*matrices, *rest])
            dist.all_reduce(loads)
        muon.step(config.muon_lr * factor)
        for group in adam.param_groups:
            group["lr"] = config.adam_lr * factor
        adam.step()
        model.zero_grad(set_to_none=True)
        model.balance(loads, config.balance_rate * factor)
        stats += step_stats
        step += 1
        if step % config.log_every == 0:
            (target_nll, targets), (code_nll, codes), (seen_nll, seen) = stats.tolist()
            elapsed = time.monotonic() - last_log
            write(
                step=step,
                seconds=round(time.monotonic() - started, 1),
                tokens=step * config.tokens_per_step * world,
                lr_factor=round(factor, 3),
                target_loss=round(target_nll / max(targets, 1), 4),
                code_loss=round(code_nll / max(codes, 1), 4),
                picture_loss=round(seen_nll / max(seen, 1), 4),
                pictures_share=round(seen / (config.log_every * config.tokens_per_step), 4),
                target_share=round(targets / (config.log_every * config.tokens_per_step), 4),
                tokens_per_s=round(config.log_every * config.tokens_per_step * world / elapsed),
                waited_share=round(waited / elapsed, 3),
                load_spread=round(float((loads / loads.sum(1, keepdim=True)).std(1).max()), 4),
            )
            stats.zero_()
            last_log, waited = time.monotonic(), 0.0
            due = torch.tensor([float(last_log - last_eval > config.eval_every_s)])
            dist.broadcast(due, 0, group=clock)
            if due:
                write(step=step, **measure())
                save()
                last_eval = last_log = time.monotonic()
    result = measure()
    save()
    write(step=step, seconds=round(time.monotonic() - started, 1), final=True, **result)
    dist.barrier()
    feed.close()
    os._exit(0)  # the thread that moves packs ahead waits for ever and would keep the rank alive


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--archive", type=Path)
    parser.add_argument("--executed", type=Path)
    parser.add_argument("--minutes", type=float, default=TrainConfig.minutes)
    parser.add_argument("--tokens-per-step", type=int, default=TrainConfig.tokens_per_step)
    parser.add_argument("--picture-share", type=float, default=TrainConfig.picture_share)
    parser.add_argument("--workers", type=int, default=TrainConfig.workers)
    parser.add_argument("--decay-share", type=float, default=TrainConfig.decay_share)
    parser.add_argument("--warmup-steps", type=int, default=TrainConfig.warmup_steps)
    parser.add_argument("--archive-only", dest="installed", action="store_false")
    parser.add_argument("--cases", type=int, default=TrainConfig.cases)
    parser.add_argument("--seen-cases", type=int, default=TrainConfig.seen_cases)
    parser.add_argument("--seed", type=int, default=TrainConfig.seed)
    parser.add_argument("--log-every", type=int, default=TrainConfig.log_every)
    parser.add_argument("--eval-every-s", type=float, default=TrainConfig.eval_every_s)
    parser.add_argument("--start-from", type=Path, help="weights.pt, or a checkpoint folder such as the shipped one")
    parser.add_argument("--leave-out", type=_numbers, default=TrainConfig.leave_out, metavar="N,N")
    config = TrainConfig(**vars(parser.parse_args()))
    torch.set_num_threads(1)  # before anything is forked: a pool of threads does not survive it
    world = max(1, torch.cuda.device_count())
    started = time.monotonic()
    cores = os.cpu_count() or 1
    corpus = build_corpus(config.archive, processes=cores, installed=config.installed)
    cases = held_out_set(count=config.cases, processes=cores) if config.cases else []
    more, executed = read_executed(config.executed) if config.executed else ([], [])
    config.out.mkdir(parents=True, exist_ok=True)
    write_config(config.out)
    vision = M3Config.from_folder(config.out).vision
    assert vision is not None
    seen_cases = held_out_pictures(vision, config.seen_cases)
    write_record(merged_records(corpus.records, more), config.out / "sources.json")
    read = f"{len(corpus.units)} units, {len(executed)} executed bugs, {len(cases)} held-out cases"
    print(f"{read} in {time.monotonic() - started:.0f} s", flush=True)
    context = mp.get_context("fork")
    ranks = [
        context.Process(target=train, args=(rank, world, config, corpus, executed, cases, seen_cases))
        for rank in range(world)
    ]
    for process in ranks:
        process.start()
    while any(process.is_alive() for process in ranks):
        time.sleep(1)
        if any(process.exitcode for process in ranks):
            for process in ranks:
                process.kill()
            raise SystemExit("a rank failed; its traceback stands above")


if __name__ == "__main__":
    main()
