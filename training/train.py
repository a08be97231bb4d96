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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from training.conversations import DataSettings
from training.corpus import Corpus, build_corpus
from training.executed import Executed, read_executed
from training.feed import Feed, Pack
from training.held_out import Case, held_out_set
from training.model import NANO, Shape, TrainedNano
from training.optimizer import Muon, split_parameters
from training.sources import merged_records, write_record
from training.start import start_weights


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
    balance_rate: float = 1e-3
    workers: int = 14
    """Data processes per GPU."""
    installed: bool = True
    """Whether the installed packages are read beside the archive."""
    cases: int = 2400
    """Held-out cases to judge the model on; 0 judges nothing, which saves a minute."""
    seed: int = 1
    log_every: int = 100
    eval_every_s: float = 180.0
    start_from: Path | None = None
    """Weights of an earlier run to go on from, or the folder of a checkpoint."""
    without_layers: tuple[int, ...] = ()
    """Layers of a checkpoint that the model of this run lacks; the weights of an earlier run lack them already."""


@dataclasses.dataclass(frozen=True)
class Batch:
    """A pack on the device, with next-token targets. The last token of a document has no target."""

    ids: Tensor
    targets: Tensor
    classes: Tensor
    positions: Tensor
    starts: Tensor
    longest: int


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
    if device.type == "cuda":
        tensors = [t.pin_memory().to(device, non_blocking=True) for t in tensors]
    return Batch(*tensors, longest=int(lengths.max()))


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


def weighted_loss(
    hidden_TD: Tensor, embedding: Tensor, targets: Tensor, classes: Tensor, code_weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Weighted mean loss, and [sum target nll, targets, sum code nll, codes] for the log."""
    logits = (hidden_TD @ embedding.to(hidden_TD.dtype).T).float()
    nll = F.cross_entropy(logits, targets, reduction="none")
    is_target, is_code = (classes == 1).float(), (classes == 2).float()
    weight = is_target + code_weight * is_code
    stats = torch.stack([(nll * is_target).sum(), is_target.sum(), (nll * is_code).sum(), is_code.sum()])
    return (nll * weight).sum() / weight.sum().clamp(min=1), stats.detach()


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
    rank: int, world: int, config: TrainConfig, corpus: Corpus, executed: list[Executed], cases: list[Case]
) -> None:
    """One rank's run, forked from `main` with the corpus; CUDA is touched after the data workers are forked."""
    torch.set_num_threads(1)
    feed = Feed(
        corpus,
        processes=config.workers,
        pack_tokens=config.tokens_per_step,
        seed=config.seed * 1000 + rank,
        settings=DataSettings(),
        executed=executed,
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
    shape = Shape.from_config(NANO / "config.json")
    model = TrainedNano(dataclasses.replace(shape, layers=shape.layers - len(config.without_layers)))
    if config.start_from:
        model.load_state_dict(start_weights(config.start_from, config.without_layers))
    model.to(device)
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)
    uncompiled = [(layer.before, layer.after) for layer in model.layers]
    loss_function = weighted_loss
    if cuda:
        model.compile_layers()
        loss_function = torch.compile(weighted_loss, dynamic=False)
    compiled = [(layer.before, layer.after) for layer in model.layers]
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
            torch.save(small, config.out / "weights.pt")

    def measure() -> dict[str, float]:
        for layer, halves in zip(model.layers, uncompiled, strict=True):
            layer.before, layer.after = halves
        result = evaluate(model, cases, labels, device) if rank == 0 and cases else {}
        for layer, halves in zip(model.layers, compiled, strict=True):
            layer.before, layer.after = halves
        return result

    started = time.monotonic()
    last_eval, last_log, waited = started, started, 0.0
    stats = torch.zeros(4, device=device)
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
        hidden, loads = model(batch.ids, batch.positions, batch.starts, batch.longest)
        loss, step_stats = loss_function(
            hidden, model.embedding, batch.targets, batch.classes, torch.tensor(code_weight, device=device)
        )
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
            target_nll, targets, code_nll, codes = stats.tolist()
            elapsed = time.monotonic() - last_log
            write(
                step=step,
                seconds=round(time.monotonic() - started, 1),
                tokens=step * config.tokens_per_step * world,
                lr_factor=round(factor, 3),
                target_loss=round(target_nll / max(targets, 1), 4),
                code_loss=round(code_nll / max(codes, 1), 4),
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
                write(step=step, held_out=measure())
                save()
                last_eval = last_log = time.monotonic()
    write(step=step, seconds=round(time.monotonic() - started, 1), final=measure())
    save()
    dist.barrier()
    feed.close()
    os._exit(0)  # the thread that moves packs ahead waits for ever and would keep the rank alive


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--archive", type=Path)
    parser.add_argument("--executed", type=Path)
    parser.add_argument("--minutes", type=float, default=TrainConfig.minutes)
    parser.add_argument("--tokens-per-step", type=int, default=TrainConfig.tokens_per_step)
    parser.add_argument("--workers", type=int, default=TrainConfig.workers)
    parser.add_argument("--decay-share", type=float, default=TrainConfig.decay_share)
    parser.add_argument("--warmup-steps", type=int, default=TrainConfig.warmup_steps)
    parser.add_argument("--archive-only", dest="installed", action="store_false")
    parser.add_argument("--cases", type=int, default=TrainConfig.cases)
    parser.add_argument("--seed", type=int, default=TrainConfig.seed)
    parser.add_argument("--log-every", type=int, default=TrainConfig.log_every)
    parser.add_argument("--eval-every-s", type=float, default=TrainConfig.eval_every_s)
    parser.add_argument("--start-from", type=Path, help="weights.pt, or the folder of a checkpoint")
    parser.add_argument(
        "--without-layers", type=int, nargs="*", default=[], help="layers of the checkpoint that are left out"
    )
    options = vars(parser.parse_args())
    config = TrainConfig(**{**options, "without_layers": tuple(options["without_layers"])})
    world = max(1, torch.cuda.device_count())
    started = time.monotonic()
    cores = os.cpu_count() or 1
    corpus = build_corpus(config.archive, processes=cores, installed=config.installed)
    cases = held_out_set(count=config.cases, processes=cores) if config.cases else []
    more, executed = read_executed(config.executed) if config.executed else ([], [])
    config.out.mkdir(parents=True, exist_ok=True)
    write_record(merged_records(corpus.records, more), config.out / "sources.json")
    read = f"{len(corpus.units)} units, {len(executed)} executed bugs, {len(cases)} held-out cases"
    print(f"{read} in {time.monotonic() - started:.0f} s", flush=True)
    context = mp.get_context("fork")
    ranks = [
        context.Process(target=train, args=(rank, world, config, corpus, executed, cases)) for rank in range(world)
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
