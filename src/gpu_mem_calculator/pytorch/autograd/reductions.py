"""Workspace of torch's reduction kernels."""

from __future__ import annotations

from ...ledger.num import EMPTY, Bytes, Num, ceil_div, choose, larger, round_up, sized, smaller


def row_sum_workspace(rows: Num, columns: int) -> Bytes:
    """Bytes of workspace of a sum over rows: the gradient of a bias, or of a norm's weight.

    torch 2.11 ATen/native/cuda/Reduce.cuh:1040 (setReduceConfig), which is what an H200 was seen
    to take: a block has 128 threads, 32 of them along the columns (fewer where there are few
    columns), and each adds 4 columns. Where a thread would add 256 rows or more, several blocks
    share a column and leave fp32 partial sums: as many as fill the card (132 multiprocessors of 16
    blocks), but with at least 16 rows for each thread, and at most 256.
    """
    threads = min(32, 1 << (max(int(columns) // 4, 1).bit_length() - 1))
    grid = ceil_div(columns, 4 * threads)
    thread_rows = ceil_div(rows, 128 // threads)
    blocks = smaller(ceil_div(132 * 16, grid), ceil_div(thread_rows, 16))
    sums = columns * (4 * threads) * larger(blocks, ceil_div(thread_rows, 256))
    return choose(thread_rows >= 256, sized(sums, 32), EMPTY)


def embedding_sort_workspace(tokens: Num, rows: Num, columns: Num) -> Bytes:
    """Bytes of workspace of the gradient of an embedding table, for `tokens` indices.

    torch 2.11 ATen/native/cuda/Embedding.cu: from 3,073 indices on they are sorted, with five
    tensors of int64, and each run of equal ones is summed in fp32 partial rows of at most 10
    indices (EmbeddingBackwardKernel.cu), whose rows are padded to 32 columns.
    """
    return sum(embedding_sort_tensors(tokens, rows, columns), EMPTY)


def embedding_sort_tensors(tokens: Num, rows: Num, columns: Num) -> tuple[Bytes, ...]:
    """Bytes of each tensor of that workspace."""
    partial_rows = tokens // 10 + smaller(tokens, rows)
    sums = (sized(partial_rows, 64), sized(partial_rows * round_up(columns, 32), 32))
    return tuple(choose(tokens > 3072, one, EMPTY) for one in (*[sized(tokens, 64)] * 5, *sums))
