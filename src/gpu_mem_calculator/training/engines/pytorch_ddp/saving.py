"""What rank 0's host holds while save_pretrained writes the model: the bytes of one file."""

from __future__ import annotations

from ....ledger.num import Bytes, sized, smaller
from ....ledger.source import code
from ....run.run import Precision, Run
from ...step.weights import base_bytes, trained_bits, trained_total

FILE_BYTES = 50 * 10**9  # transformers 5.17.0 modeling_utils.py save_pretrained: max_shard_size
SAVED_CODE = code(
    "transformers 5.17.0 modeling_utils.py save_pretrained: files of at most 50 GB; "
    "safetensors torch.py save_file: a file's bytes on the host"
)


def saved_bytes(run: Run, precision: Precision) -> Bytes:
    """Bytes of the largest file: of the adapters, where there are any, else of the weights."""
    if run.adapter is not None:
        return sized(trained_total(run), trained_bits(run, precision))
    return smaller(base_bytes(run, precision), sized(FILE_BYTES, 8))
