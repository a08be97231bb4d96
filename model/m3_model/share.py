"""What one of several ranks holds of a model: its heads, its experts, and its part of every large matrix."""

from dataclasses import dataclass, replace

from m3_model.config import M3Config
from m3_model.quantization import GROUP


@dataclass(frozen=True, kw_only=True)
class Share:
    """The parts of rank `rank` of `size`. Build it with `of`.

    Query heads are split. A key head goes with its query heads, and with it its index head; where there are more ranks
    than key heads, several ranks hold a copy of one. The index key, the router, norms and the image side are copied to
    every rank; experts, vocabulary and the widths of feed-forward parts are split, these between groups of numbers that
    share a scale in MXFP8 where they have enough of them.
    """

    rank: int
    size: int
    heads: range
    """Query heads."""
    kv_heads: range
    """Key heads, and index heads of the same numbers."""
    experts: range
    """Routed experts."""
    vocabulary: range
    """Rows of the embedding table and of the head."""
    dense_width: range
    """Columns between the two matrices of a dense feed-forward part."""
    shared_width: range
    """The same of the shared expert."""
    exchanges: bool
    """Whether a spread step sends its rows to their experts, rather than all rows to all ranks."""

    @classmethod
    def of(cls, config: M3Config, rank: int, size: int, *, mxfp8: bool = False) -> "Share":
        """`mxfp8`: matrices stay so, and are cut between groups alone. Errors: ValueError that says what would do."""
        H, G = config.num_heads, config.num_kv_heads
        if H % size or (G % size and size % G):
            fitting = [n for n in range(1, H + 1) if not H % n and not (G % n and n % G)]
            raise ValueError(
                f"{H} query and {G} key heads cannot be split among {size} GPUs; use "
                f"{', '.join(map(str, fitting[:-1]))}{' or ' if fitting[1:] else ''}{fitting[-1]}"
            )
        if mxfp8:
            _check_cuts(config, size)
        return cls(
            rank=rank,
            size=size,
            heads=part(H, rank, size),
            kv_heads=part(G, rank, size) if size <= G else part(G, rank // (size // G), G),
            experts=part(config.num_experts, rank, size),
            vocabulary=part(config.vocab_size, rank, size),
            dense_width=_width(config.dense_intermediate_size, rank, size),
            shared_width=_width(config.shared_intermediate_size, rank, size),
            # A row goes to at most experts_per_token ranks, or to all of them; a copy of the shared expert pays for it.
            exchanges="moe" in config.mlp_kinds and size > config.experts_per_token,
        )

    def local(self, config: M3Config) -> M3Config:
        """The configuration of what this rank holds of attention and of the cache."""
        num_kv_heads = len(self.kv_heads)
        return replace(
            config,
            num_heads=len(self.heads),
            num_kv_heads=num_kv_heads,
            index_heads=num_kv_heads if config.index_heads else 0,
        )


def part(total: int, rank: int, size: int) -> range:
    """The rank's part of 0 to total - 1; parts differ by one at most."""
    return range(total * rank // size, total * (rank + 1) // size)


def _width(total: int, rank: int, size: int) -> range:
    """The rank's part of a width, of whole groups if there is one for each rank."""
    step = GROUP if total % GROUP == 0 and total // GROUP >= size else 1
    groups = part(total // step, rank, size)
    return range(groups.start * step, groups.stop * step)


def _check_cuts(config: M3Config, size: int) -> None:
    """Errors: ValueError if ranks would share a group of numbers that have one scale."""
    cuts = {"attention's output": [part(config.num_heads, rank, size).stop * config.head_dim for rank in range(size)]}
    widths = {"dense": config.dense_intermediate_size, "moe": config.shared_intermediate_size}
    for kind, name in (("dense", "dense feed-forward part"), ("moe", "shared expert")):
        if kind in config.mlp_kinds:
            cuts[name] = [_width(widths[kind], rank, size).stop for rank in range(size)]
    for name, stops in cuts.items():
        for stop in stops:
            if stop % GROUP:
                raise ValueError(
                    f"{size} GPUs would cut the {name} at {stop}, within {GROUP} numbers that share a scale in MXFP8: "
                    "use fewer GPUs, or the BF16 checkpoint"
                )


def replica_groups(config: M3Config, size: int) -> list[list[int]]:
    """The ranks that hold the same key heads, for each of those heads."""
    copies = max(1, size // config.num_kv_heads)
    return [list(range(first, first + copies)) for first in range(0, size, copies)]
