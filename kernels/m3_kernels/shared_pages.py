"""Attend many short queries whose sequences share pages: a shared page is read once, with all its rows as queries.

Forked sequences (candidates of one prompt) have page tables that begin alike. The tables form a tree; every inner edge
of it is a run of pages with a range of rows, and what is left is each sequence's own pages, padded and gathered.
Scores of both parts stand side by side in one row, so one softmax covers them and the result does not depend on the
split. Columns of a score row: first the positions 0 to `shared_columns`, then the own pages of the row's sequence.
Pages that are neighbours in the cache are read where they lie, without a copy.

Legend: T rows, B sequences, G key heads, M query heads of a key head, D head size, C columns, S tokens a page,
L keys of one run.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

NEVER = 1 << 60
"""Position of a column that no row may see."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """Pages that the sequences of neighbouring rows have in common, neighbours in the cache too."""

    first_row: int
    end_row: int
    first_column: int
    end_column: int
    pages: slice

    def read(self, cache_PSGD: Tensor) -> Tensor:
        """The run's cached entries, [L, G, D]."""
        return cache_PSGD[self.pages].flatten(0, 1)[: self.end_column - self.first_column]


@dataclass(frozen=True, kw_only=True)
class SharedPages:
    """Which rows read which pages. Build it with `plan`, once a step."""

    rows_T: Tensor
    """Where the plan's rows stand in the batch; the plan's own order puts sequences that share pages side by side."""
    in_order: bool
    """Whether the plan's rows are all rows of the batch, in order."""
    runs: tuple[Run, ...]
    shared_columns: int
    own_pages: tuple[Tensor | slice, ...]
    """The first, second, ... own page of every sequence; a slice where these are neighbours in the cache."""
    own_columns: int
    own_first_block_T: Tensor
    """Number of the first own block of each row's sequence."""
    rows_per_sequence: int
    """Most rows of one sequence: Q."""
    padded_rows_X: Tensor | None
    """Q rows of each sequence, its last one repeated where it has fewer; None if all sequences have Q rows."""
    row_slot_T: Tensor | None
    """Where each row stands in padded_rows_X."""
    hidden_TC: Tensor | None
    """True where a row must not see a column; None if every row sees every column."""
    page_size: int

    @classmethod
    def plan(
        cls,
        *,
        rows: Sequence[range],
        lengths: Sequence[int],
        pages: Sequence[Sequence[int]],
        page_size: int,
        device: torch.device | str,
    ) -> "SharedPages":
        """Plan the sequences whose new tokens stand in `rows` of the batch; each has at least one page and one row."""
        order = sorted(range(len(rows)), key=lambda b: tuple(pages[b]))
        sorted_rows = [row for b in order for row in rows[b]]
        tables = [tuple(pages[b]) for b in order]
        counts = [len(rows[b]) for b in order]
        ends = [lengths[b] for b in order]
        first_rows = [sum(counts[:b]) for b in range(len(order))]

        runs: list[Run] = []
        own_first = [0] * len(order)

        def share(low: int, high: int, depth: int, end: int) -> None:
            """Sequences low to high read pages depth to end together, one run for each stretch of neighbours."""
            table = tables[low]
            while depth < end:
                stop = depth + 1
                while stop < end and table[stop] == table[stop - 1] + 1:
                    stop += 1
                runs.append(
                    Run(
                        first_row=first_rows[low],
                        end_row=first_rows[high - 1] + counts[high - 1],
                        first_column=depth * page_size,
                        end_column=min(stop * page_size, max(ends[low:high])),
                        pages=slice(table[depth], table[depth] + stop - depth),
                    )
                )
                depth = stop

        def divide(low: int, high: int, depth: int) -> None:
            """Sequences low to high agree on the first `depth` pages, which are already covered."""
            while low < high:
                own_first[low] = depth
                if len(tables[low]) == depth:
                    low += 1
                    continue
                middle = low + 1
                while middle < high and tables[middle][depth] == tables[low][depth]:
                    middle += 1
                if middle - low > 1:
                    first, last = tables[low], tables[middle - 1]
                    end = depth
                    # Sorted tables: what the first and the last have in common, all between have too.
                    while end < min(len(first), len(last)) and first[end] == last[end]:
                        end += 1
                    share(low, middle, depth, end)
                    divide(low, middle, end)
                low = middle

        if len(order) == 1:
            share(0, 1, 0, len(tables[0]))
            own_first[0] = len(tables[0])
        else:
            divide(0, len(order), 0)

        own = [table[first:] for table, first in zip(tables, own_first, strict=True)]
        own_width = max(len(table) for table in own)
        own_tokens = [end - first * page_size for end, first in zip(ends, own_first, strict=True)]
        own_columns = max(0, *own_tokens) if own_width else 0
        shared_columns = max((r.end_column for r in runs), default=0)
        if own_columns:
            shared_columns = -(-shared_columns // page_size) * page_size
        row_first = [first for first, count in zip(own_first, counts, strict=True) for _ in range(count)]
        positions = [end - count + i for end, count in zip(ends, counts, strict=True) for i in range(count)]
        widest = max(counts)
        padded = [
            first + min(i, count - 1) for first, count in zip(first_rows, counts, strict=True) for i in range(widest)
        ]
        row_slot = [b * widest + i for b, count in enumerate(counts) for i in range(count)]
        own_first_block_T = torch.tensor(row_first, device=device)
        return cls(
            rows_T=torch.tensor(sorted_rows, device=device),
            in_order=sorted_rows == list(range(len(sorted_rows))),
            runs=tuple(runs),
            shared_columns=shared_columns,
            own_pages=tuple(_column(own, o, device) for o in range(own_width)),
            own_columns=own_columns,
            own_first_block_T=own_first_block_T,
            rows_per_sequence=widest,
            padded_rows_X=torch.tensor(padded, device=device) if len(padded) > len(row_slot) else None,
            row_slot_T=torch.tensor(row_slot, device=device) if len(padded) > len(row_slot) else None,
            hidden_TC=_hidden(
                own_first_block_T * page_size, torch.tensor(positions, device=device), shared_columns, own_columns
            ),
            page_size=page_size,
        )

    def take(self, x_TX: Tensor) -> Tensor:
        """The plan's rows of a tensor over the batch's rows, in the plan's order."""
        return x_TX if self.in_order and len(x_TX) == len(self.rows_T) else x_TX[self.rows_T]

    def put(self, out_TX: Tensor, x_TX: Tensor) -> None:
        """Write the plan's rows into a tensor over the batch's rows."""
        out_TX[self.rows_T] = x_TX

    def scores(self, q_GTMD: Tensor, k_PSGD: Tensor) -> Tensor:
        """Dot products of every row with its columns, [G, T, M, C]; hidden columns hold -inf."""
        G, T, M, _ = q_GTMD.shape
        if self._is_one_run(T):
            scores = _run_scores(q_GTMD, self.runs[0].read(k_PSGD))
        else:
            scores = q_GTMD.new_empty(G, T, M, self.shared_columns + self.own_columns)
            for run in self.runs:
                rows = slice(run.first_row, run.end_row)
                scores[:, rows, :, run.first_column : run.end_column] = _run_scores(q_GTMD[:, rows], run.read(k_PSGD))
            if self.own_columns:
                q_GBXD = self._by_sequence(q_GTMD)
                for columns, k_BLGD in self._own(k_PSGD):
                    for g in range(G):
                        s_BXL = torch.bmm(q_GBXD[g], k_BLGD[:, :, g].transpose(1, 2))
                        scores[g, :, :, columns] = self._by_row(s_BXL, M)
        if self.hidden_TC is not None:
            scores.masked_fill_(self.hidden_TC[:, None], float("-inf"))
        return scores

    def values(self, p_GTMC: Tensor, v_PSGD: Tensor) -> Tensor:
        """Sum of the rows' values weighted by p, [G, T, M, D]."""
        G, T, M, _ = p_GTMC.shape
        if self._is_one_run(T):
            return _run_values(p_GTMC, self.runs[0].read(v_PSGD))
        out = p_GTMC.new_zeros(G, T, M, v_PSGD.shape[-1])
        for run in self.runs:
            rows = slice(run.first_row, run.end_row)
            p_GNML = p_GTMC[:, rows, :, run.first_column : run.end_column]
            out[:, rows] += _run_values(p_GNML, run.read(v_PSGD))
        for columns, v_BLGD in self._own(v_PSGD):
            p_GBXL = self._by_sequence(p_GTMC[..., columns])
            for g in range(G):
                out[g] += self._by_row(torch.bmm(p_GBXL[g], v_BLGD[:, :, g]), M)
        return out

    def _is_one_run(self, num_rows: int) -> bool:
        """Whether a single run holds everything that any row reads."""
        return not self.own_columns and len(self.runs) == 1 and self.runs[0].end_row == num_rows

    def column_blocks(self, num_blocks: int) -> Tensor:
        """Block number of every S columns, [T, ceil(C / S)]; num_blocks where the row has no such block."""
        shared = -(-self.shared_columns // self.page_size)
        own = -(-self.own_columns // self.page_size)
        T = len(self.rows_T)
        first_T1 = self.own_first_block_T[:, None]
        j = torch.arange(shared, device=self.rows_T.device).expand(T, shared)
        left = torch.where(j < first_T1, j, num_blocks)
        right = (first_T1 + torch.arange(own, device=self.rows_T.device)).clamp(max=num_blocks)
        return torch.cat([left, right], 1)

    def block_maxima(self, scores_TRC: Tensor, num_blocks: int) -> Tensor:
        """Largest score of each block, [T, R, num_blocks]; -inf for blocks without a visible key."""
        T, R, C = scores_TRC.shape
        padded = F.pad(scores_TRC, (0, -C % self.page_size), value=float("-inf"))
        maxima = padded.view(T, R, -1, self.page_size).amax(-1)
        out = scores_TRC.new_full((T, R, num_blocks + 1), float("-inf"))
        return out.scatter_(2, self.column_blocks(num_blocks)[:, None].expand(T, R, -1), maxima)[..., :num_blocks]

    def _own(self, cache_PSGD: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Columns of each own page, and what every sequence has there, float32 [B, L, G, D]."""
        for o, pages in enumerate(self.own_pages):
            first, end = o * self.page_size, min((o + 1) * self.page_size, self.own_columns)
            if first < end:
                entries = cache_PSGD[:, : end - first][pages].float()
                yield slice(self.shared_columns + first, self.shared_columns + end), entries

    def _by_sequence(self, x_GTMD: Tensor) -> Tensor:
        """Rows put together by their sequence, [G, B, Q * M, D]."""
        padded = x_GTMD if self.padded_rows_X is None else x_GTMD[:, self.padded_rows_X]
        return padded.reshape(len(padded), -1, self.rows_per_sequence * x_GTMD.shape[2], x_GTMD.shape[3])

    def _by_row(self, x_BXD: Tensor, M: int) -> Tensor:
        """The opposite for one key head, [T, M, D]."""
        rows = x_BXD.reshape(-1, M, x_BXD.shape[-1])
        return rows if self.row_slot_T is None else rows[self.row_slot_T]


def _column(own: Sequence[Sequence[int]], o: int, device: torch.device | str) -> Tensor | slice:
    """The o-th own page of every sequence; any page for one that has none, its columns are hidden."""
    pages = [table[o] if o < len(table) else 0 for table in own]
    if all(page == pages[0] + i for i, page in enumerate(pages)):
        return slice(pages[0], pages[0] + len(pages))
    return torch.tensor(pages, device=device)


def _run_scores(q_GNMD: Tensor, k_LGD: Tensor) -> Tensor:
    G, N, M, D = q_GNMD.shape
    return torch.bmm(q_GNMD.reshape(G, N * M, D), k_LGD.to(q_GNMD.dtype).permute(1, 2, 0)).view(G, N, M, -1)


def _run_values(p_GNML: Tensor, v_LGD: Tensor) -> Tensor:
    G, N, M, L = p_GNML.shape
    return torch.bmm(p_GNML.reshape(G, N * M, L), v_LGD.to(p_GNML.dtype).transpose(0, 1)).view(G, N, M, -1)


def _hidden(own_start_T: Tensor, positions_T: Tensor, shared_columns: int, own_columns: int) -> Tensor | None:
    """True where a column's position lies after the row's, or the column belongs to no page of the row's sequence."""
    device = positions_T.device
    left = torch.arange(shared_columns, device=device).expand(len(positions_T), -1)
    left = torch.where(left < own_start_T[:, None], left, NEVER)
    right = own_start_T[:, None] + torch.arange(own_columns, device=device)
    hidden = torch.cat([left, right], 1) > positions_T[:, None]
    return hidden if bool(hidden.any()) else None
