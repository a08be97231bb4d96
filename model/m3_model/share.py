"""What one of several ranks holds of a model: its heads, its experts, and its part of every large matrix."""

from dataclasses import dataclass, replace

from m3_model.config import M3Config


@dataclass(frozen=True, kw_only=True)
class Share:
    """The parts of rank `rank` of `size`. Build it with `of`.

    Query heads are split. A key head goes with its query heads, and with it its index head; where there are more ranks
    than key heads, several ranks hold a copy of one. The index key, the router, norms and the image side are copied to
    every rank; experts, vocabulary and the widths of feed-forward parts are split.
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
    def of(cls, config: M3Config, rank: int, size: int) -> "Share":
        """Errors: ValueError that says which numbers of ranks would do."""
        H, G = config.num_heads, config.num_kv_heads
        if H % size or (G % size and size % G):
            fitting = [n for n in range(1, H + 1) if not H % n and not (G % n and n % G)]
            raise ValueError(
                f"{H} query and {G} key heads cannot be split among {size} GPUs; use "
                f"{', '.join(map(str, fitting[:-1]))}{' or ' if fitting[1:] else ''}{fitting[-1]}"
            )
        return cls(
            rank=rank,
            size=size,
            heads=part(H, rank, size),
            kv_heads=part(G, rank, size) if size <= G else part(G, rank // (size // G), G),
            experts=part(config.num_experts, rank, size),
            vocabulary=part(config.vocab_size, rank, size),
            dense_width=part(config.dense_intermediate_size, rank, size),
            shared_width=part(config.shared_intermediate_size, rank, size),
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


def replica_groups(config: M3Config, size: int) -> list[list[int]]:
    """The ranks that hold the same key heads, for each of those heads."""
    copies = max(1, size // config.num_kv_heads)
    return [list(range(first, first + copies)) for first in range(0, size, copies)]
