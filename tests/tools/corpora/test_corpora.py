"""Every public configuration is read in full: each key is honoured, free or refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.corpus import sampled
from tests.tools.corpora.score import IN_FULL, outcome, rows

# Tools, and how many of their files `make test` reads.
TOOLS = {"llamafactory": 10, "swift": 10, "huggingface": 10, "megatron": 10}
# Files that are not read, and why: a part of the source is enough.
UNREAD = {
    "opt/single_gpu/run_6.7b_lora.sh": "expected one argument",  # step 3 names no model
    "step3_rlhf_finetuning/training_scripts/opt/single_node/run_1.3b_lora.sh": "expected one",
    "step3_rlhf_finetuning/training_scripts/opt/single_node/run_30b_lora.sh": "expected one",
    "0_30_0_sagemaker.yaml": "AMAZON_SAGEMAKER",
    "ssd_eval.py": "makes no trainer",
    # The shell splits its schedule of batches into words that are no options.
    "gpt3/train_gpt3_175b_distributed.sh": "'2.4B:320' is not an option",
    "multimodal_llava_mcore_te_tp4_sp_cp2": "--dataloader-seq-length is not an option",
    "hybrid_flextron_nightly": "--flextron is not an option",  # of a script of its own
    "ms-swift@3602360:examples/ray/": "groups of workers under Ray are not read",
    # A backslash too many makes the second command a part of the first.
    "grpo/multi_node/server_multi_node.sh": "'NNODES=2' is not an option",
    "examples/scripts/distillation.py": "makes no trainer",  # it distils with a loop of its own
    "openenv/opencode.py": "makes no trainer",
    "modelopt/train.sh": "which the script does not say",  # another script sets its sizes
}
CASES = [
    case
    for tool, keep in TOOLS.items()
    for case in sampled({row["source"]: row for row in rows(tool)}, keep)
]


@pytest.mark.parametrize("row", CASES)
def test_a_public_configuration_is_read_in_full(row: dict[str, Any]) -> None:
    """No key is unknown, and no value is wrong."""
    kind, why = outcome(row)
    known = [reason for part, reason in UNREAD.items() if part in row["source"]]
    assert kind in IN_FULL or any(reason in why for reason in known), why
