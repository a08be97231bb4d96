"""Routed experts that the device has no room for: in host memory with the last used ones on the device, or on the CPU.

Legend: T tokens, C hidden size, E experts, K experts a token, R rows, one for each expert of a token.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from m3_kernels.launch import new_stream
from m3_model.moe import Router, SeparateExperts, StackedExperts

FEW_TOKENS = 16
"""With at most so many tokens a step is short, and guessing the next layer's experts is worth it."""


@dataclass(frozen=True, kw_only=True)
class ExpertPlacement:
    """Where routed experts are, and in how many bits."""

    where: Literal["device", "streamed", "cpu"] = "device"
    """With all other weights; in host memory, computed with on the device; or computed with by the CPU."""
    bits: Literal[16, 4] = 16
    """4 rounds them to MXFP4 when they are loaded; 16 leaves them in the model's dtype."""
    slots: int = 0
    """Experts of a layer that the device keeps where they are streamed."""


@dataclass(frozen=True)
class CpuExperts:
    """Experts that the CPU computes: a token's numbers travel, not the weights."""

    experts: SeparateExperts

    def __call__(self, x_TC: Tensor, ids_TK: Tensor, weights_TK: Tensor) -> Tensor:
        """The same sum as StackedExperts."""
        return self.experts(x_TC.cpu(), ids_TK.cpu(), weights_TK.cpu()).to(x_TC.device)


class StreamedExperts:
    """A layer's experts in host memory and, of those used last, a copy on the device.

    A step that needs no more experts than there are slots copies what is missing. One that needs more, a prompt, takes
    them in turns: while one half of the slots is computed with, the other is filled. Where all of a GPU's copies come
    from page-locked memory, both happen at once.
    """

    def __init__(self, host: StackedExperts, *, slots: int, device: torch.device | str):
        E = len(host.w13_EXC)
        if slots < 2:
            raise ValueError(f"{slots} slots: two at least, one to fill while the other is used")
        self._device = torch.device(device)
        on_gpu = self._device.type == "cuda"
        self._host = tuple(part.pin_memory() if on_gpu and not part.is_pinned() else part for part in _parts(host))
        self._slots = tuple(part.new_empty(min(slots, E), *part.shape[1:], device=device) for part in self._host)
        w13, w2, *scales = self._slots
        self._experts = replace(host, w13_EXC=w13, w2_ECI=w2, scales=(scales[0], scales[1]) if scales else None)
        self._slot_of: OrderedDict[int, int] = OrderedDict()
        """The experts on the device, the one used longest ago first."""
        self._free = list(range(min(slots, E)))
        self._table_E = torch.zeros(E, dtype=torch.int64, device=device)
        self._stream: Any = new_stream(self._device) if on_gpu else None
        self._used: Any = None
        self._copied: Any = None
        self._ahead: tuple[Router, StreamedExperts] | None = None
        self.num_copied = 0
        """Experts copied so far."""

    def look_ahead(self, router: Router, experts: "StreamedExperts") -> None:
        """Guess by the router of a later layer what that layer will need, and begin to copy it."""
        self._ahead = (router, experts)

    def __call__(self, x_TC: Tensor, ids_TK: Tensor, weights_TK: Tensor) -> Tensor:
        """The same sum as StackedExperts."""
        wanted = torch.unique(ids_TK).tolist()
        guessed: list[int] = []
        if self._ahead is not None and len(x_TC) <= FEW_TOKENS:
            guessed = torch.unique(self._ahead[0](x_TC)[0]).tolist()
        if len(wanted) <= len(self._slots[0]):
            self._await(self._fetch(wanted))
            out_TC = self._experts(x_TC, self._table_E[ids_TK], weights_TK)
            self._mark_used()
        else:
            out_TC = self._in_turns(wanted, x_TC, ids_TK, weights_TK)
        if self._ahead is not None and guessed:
            self._ahead[1].prefetch(guessed)
        return out_TC

    def prefetch(self, experts: Sequence[int]) -> None:
        """Begin to copy experts that may be needed next; at most half of the slots are given to a guess."""
        self._fetch(experts[: len(self._slots[0]) // 2])

    def _in_turns(self, wanted: list[int], x_TC: Tensor, ids_TK: Tensor, weights_TK: Tensor) -> Tensor:
        T, K = ids_TK.shape
        half = len(self._slots[0]) // 2
        wanted.sort(key=lambda expert: expert not in self._slot_of)  # first those that are there, or they would be lost
        groups = [wanted[i : i + half] for i in range(0, len(wanted), half)]
        ids_R, weights_R = ids_TK.flatten(), weights_TK.flatten()
        out_RC = torch.empty(T * K, x_TC.shape[1], dtype=torch.float32, device=x_TC.device)
        copied = self._fetch(groups[0])
        for i, group in enumerate(groups):
            ready = copied
            if i + 1 < len(groups):
                copied = self._fetch(groups[i + 1], keep=group)
            self._await(ready)
            member_E = torch.zeros_like(self._table_E, dtype=torch.bool)
            member_E[torch.tensor(group, device=x_TC.device)] = True
            rows = member_E[ids_R].nonzero().flatten()
            slots_R1 = self._table_E[ids_R[rows]][:, None]
            out_RC[rows] = self._experts(x_TC[rows // K], slots_R1, weights_R[rows, None]).float()
            self._mark_used()
        return out_RC.view(T, K, -1).sum(1).to(x_TC.dtype)

    def _fetch(self, experts: Sequence[int], keep: Iterable[int] = ()) -> Any:
        """Copy those that are missing in place of the ones used longest ago. Returns what `_await` takes."""
        kept = {*experts, *keep}
        missing = [expert for expert in experts if expert not in self._slot_of]
        with torch.cuda.stream(self._stream) if self._stream is not None else nullcontext():
            if self._stream is not None and self._used is not None:
                self._stream.wait_event(self._used)
            for expert in missing:
                slot = self._free.pop() if self._free else self._take_from(kept)
                for target, source in zip(self._slots, self._host, strict=True):
                    target[slot].copy_(source[expert], non_blocking=True)
                self._slot_of[expert] = slot
            if self._stream is not None:
                self._copied = self._stream.record_event()
        for expert in experts:
            self._slot_of.move_to_end(expert)
        if missing:
            slots = torch.tensor([self._slot_of[expert] for expert in missing], device=self._device)
            self._table_E[torch.tensor(missing, device=self._device)] = slots
        self.num_copied += len(missing)
        return self._copied

    def _take_from(self, kept: set[int]) -> int:
        """The slot of the expert used longest ago that is none of `kept`."""
        return self._slot_of.pop(next(expert for expert in self._slot_of if expert not in kept))

    def _await(self, copied: Any) -> None:
        """Let the device's next work begin when these copies, and all before them, are there."""
        if copied is not None:
            torch.cuda.current_stream(self._device).wait_event(copied)

    def _mark_used(self) -> None:
        if self._stream is not None:
            self._used = torch.cuda.current_stream(self._device).record_event()


def _parts(experts: StackedExperts) -> tuple[Tensor, ...]:
    return (experts.w13_EXC, experts.w2_ECI, *(experts.scales or ()))
