"""Attend many short queries whose sequences share pages: a shared page is read once, with all its rows as queries.

Forked sequences (candidates of one prompt) have page tables that begin alike. The tables form a tree; every inner edge
of it is a run of pages with a range of rows, and what is left is each sequence's own pages, padded and gathered.
Scores of both parts stand side by side in one row, so one softmax covers them and the result does not depend on the
split. Columns of a score row: first the positions 0 to `shared_columns`, then the own pages of the row's sequence.

Legend: T rows, B sequences, G key heads, M query heads of a key head, D head size, C columns, S tokens a page,
L keys of one run.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

NEVER = 1 << 60
"""Position of a column that no row may see."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """Neighbouring pages that the sequences of neighbouring rows have in common."""

    first_row: int
    end_row: int
    first_column: int
    end_column: int
    pages: Tensor | slice
    """A slice where the pages are neighbours in the cache: then nothing is copied."""

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
    own_pages_BO: Tensor | None
    own_columns: int
    own_first_block_T: Tensor
    """Number of the first own block of each row's sequence."""
    padded_rows_BQ: Tensor
    """Rows of each sequence, the last repeated up to the longest: queries of one shape for the own pages."""
    row_slot_T: Tensor
    """Where each row stands in the flattened padded_rows_BQ."""
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

        def run(low: int, high: int, depth: int, end: int) -> Run:
            chosen = tables[low][depth:end]
            neighbours = all(page == chosen[0] + i for i, page in enumerate(chosen))
            return Run(
                first_row=first_rows[low],
                end_row=first_rows[high - 1] + counts[high - 1],
                first_column=depth * page_size,
                end_column=min(end * page_size, max(ends[low:high])),
                pages=slice(chosen[0], chosen[0] + len(chosen)) if neighbours else torch.tensor(chosen, device=device),
            )

        runs: list[Run] = []
        own_first = [0] * len(order)

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
                    runs.append(run(low, middle, depth, end))
                    divide(low, middle, end)
                low = middle

        if len(order) == 1:
            runs.append(run(0, 1, 0, len(tables[0])))
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
            [first_row + min(i, count - 1) for i in range(widest)]
            for first_row, count in zip(first_rows, counts, strict=True)
        ]
        own_first_block_T = torch.tensor(row_first, device=device)
        return cls(
            rows_T=torch.tensor(sorted_rows, device=device),
            in_order=sorted_rows == list(range(len(sorted_rows))),
            runs=tuple(runs),
            shared_columns=shared_columns,
            own_pages_BO=torch.tensor([[*t, *[0] * (own_width - len(t))] for t in own], device=device)
            if own_columns
            else None,
            own_columns=own_columns,
            own_first_block_T=own_first_block_T,
            padded_rows_BQ=torch.tensor(padded, device=device),
            row_slot_T=torch.tensor(
                [b * widest + i for b, count in enumerate(counts) for i in range(count)], device=device
            ),
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
        G, T, M, D = q_GTMD.shape
        only = self.runs[0] if len(self.runs) == 1 and self.own_pages_BO is None else None
        if only is not None and (only.first_row, only.end_row) == (0, T):
            scores = _run_scores(q_GTMD, only.read(k_PSGD))
        else:
            scores = q_GTMD.new_zeros(G, T, M, self.shared_columns + self.own_columns)
            for run in self.runs:
                rows = slice(run.first_row, run.end_row)
                scores[:, rows, :, run.first_column : run.end_column] = _run_scores(q_GTMD[:, rows], run.read(k_PSGD))
            if self.own_pages_BO is not None:
                k_BCGD = self._own(k_PSGD, self.own_pages_BO)
                B, Q = self.padded_rows_BQ.shape
                for g in range(G):
                    q_BXD = q_GTMD[g, self.padded_rows_BQ].view(B, Q * M, D)
                    s_BXC = torch.bmm(q_BXD, k_BCGD[:, :, g].transpose(1, 2))
                    scores[g, :, :, self.shared_columns :] = s_BXC.view(B * Q, M, -1)[self.row_slot_T]
        if self.hidden_TC is not None:
            scores.masked_fill_(self.hidden_TC[:, None], float("-inf"))
        return scores

    def values(self, p_GTMC: Tensor, v_PSGD: Tensor) -> Tensor:
        """Sum of the rows' values weighted by p, [G, T, M, D]."""
        G, T, M, _ = p_GTMC.shape
        D = v_PSGD.shape[-1]
        out = p_GTMC.new_zeros(G, T, M, D)
        for run in self.runs:
            rows = slice(run.first_row, run.end_row)
            p_GXL = p_GTMC[:, rows, :, run.first_column : run.end_column].flatten(1, 2)
            out[:, rows] += torch.bmm(p_GXL, run.read(v_PSGD).to(p_GXL.dtype).permute(1, 0, 2)).view(G, -1, M, D)
        if self.own_pages_BO is not None:
            v_BCGD = self._own(v_PSGD, self.own_pages_BO)
            B, Q = self.padded_rows_BQ.shape
            for g in range(G):
                p_BXC = p_GTMC[g, :, :, self.shared_columns :][self.padded_rows_BQ].view(B, Q * M, -1)
                out[g] += torch.bmm(p_BXC, v_BCGD[:, :, g]).view(B * Q, M, D)[self.row_slot_T]
        return out

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

    def _own(self, cache_PSGD: Tensor, own_pages_BO: Tensor) -> Tensor:
        """Own entries of every sequence, float32 [B, own columns, G, D]."""
        if own_pages_BO.shape[1] == 1:
            return cache_PSGD[:, : self.own_columns][own_pages_BO[:, 0]].float()
        return cache_PSGD[own_pages_BO].flatten(1, 2)[:, : self.own_columns].float()


def _run_scores(q_GNMD: Tensor, k_LGD: Tensor) -> Tensor:
    G, N, M, D = q_GNMD.shape
    return torch.bmm(q_GNMD.reshape(G, N * M, D), k_LGD.to(q_GNMD.dtype).permute(1, 2, 0)).view(G, N, M, -1)


def _hidden(own_start_T: Tensor, positions_T: Tensor, shared_columns: int, own_columns: int) -> Tensor | None:
    """True where a column's position lies after the row's, or the column belongs to no page of the row's sequence."""
    device = positions_T.device
    left = torch.arange(shared_columns, device=device).expand(len(positions_T), -1)
    left = torch.where(left < own_start_T[:, None], left, NEVER)
    right = own_start_T[:, None] + torch.arange(own_columns, device=device)
    hidden = torch.cat([left, right], 1) > positions_T[:, None]
    return hidden if bool(hidden.any()) else None
