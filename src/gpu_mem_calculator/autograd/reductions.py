"""What torch's reduction kernels need beside their output."""

from __future__ import annotations

from ..ledger.num import Num, ceil_div, choose, larger, round_up, smaller


def row_sum_workspace(rows: Num, columns: int) -> Num:
    """Bytes that a sum over rows needs: the gradient of a bias, or of a norm's weight.

    torch 2.11 ATen/native/cuda/Reduce.cuh:1040 (setReduceConfig), which is what an H200 was seen
    to take: threads stand 32 wide (fewer where there are few columns), 128 to a block, and add 4
    columns each. Where a thread would add 256 rows or more, several blocks share a column and
    leave fp32 partial sums: as many as fill the card (132 multiprocessors of 16 blocks), but with
    16 rows for each thread and no more than 256.
    """
    wide = min(32, 1 << (max(int(columns) // 4, 1).bit_length() - 1))
    grid = ceil_div(columns, 4 * wide)
    each = ceil_div(rows, 128 // wide)
    blocks = smaller(ceil_div(132 * 16, grid), ceil_div(each, 16))
    size = columns * (16 * wide) * larger(blocks, ceil_div(each, 256))
    return choose(each >= 256, size, 0)


def embedding_sort_workspace(tokens: Num, rows: Num, columns: Num) -> Num:
    """Bytes that the gradient of a table of `rows` needs beside itself, for `tokens` indices.

    torch 2.11 ATen/native/cuda/Embedding.cu: from 3,073 indices on they are sorted, with five
    tensors of int64, and each run of equal ones is summed in fp32 partial rows of at most 10
    indices (EmbeddingBackwardKernel.cu), whose rows are padded to 32 columns.
    """
    partial = tokens // 10 + smaller(tokens, rows)
    size = 40 * tokens + partial * (8 + 4 * round_up(columns, 32))
    return choose(tokens > 3072, size, 0)
