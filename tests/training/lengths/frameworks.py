"""Orders as torch, transformers and Accelerate draw them; run with them, it writes orders.json.

python tests/training/lengths/frameworks.py > tests/training/lengths/orders.json
"""

from __future__ import annotations

import json
import sys
import tempfile
from typing import Any

LENGTHS = [(37 * i * i + 11 * i) % 397 + 3 for i in range(75)]
EPOCHS = 3


def permutations() -> list[dict[str, Any]]:
    """torch.randperm of generators with several numbers."""
    import torch

    found = []
    for number, count in ((0, 10), (42, 75), (2**40 + 7, 33), (12345, 1), (3, 2000)):
        generator = torch.Generator()
        generator.manual_seed(number)
        orders = [torch.randperm(count, generator=generator).tolist() for _ in range(2)]
        found.append({"number": number, "orders": orders})
    return found


def trainer_orders() -> list[dict[str, Any]]:
    """The examples of each epoch in the batches that Trainer's loader gives."""
    import torch
    from transformers import Trainer, TrainingArguments

    rows = [{"input_ids": [i] * size} for i, size in enumerate(LENGTHS)]
    found = []
    for strategy, more in (
        ("random", {}),
        ("random", {"data_seed": 7}),
        ("random", {"seed": 5, "dataloader_drop_last": True}),
        ("sequential", {}),
        ("group_by_length", {}),
        ("group_by_length", {"seed": 9, "gradient_accumulation_steps": 3}),
    ):
        args = TrainingArguments(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=4,
            train_sampling_strategy=strategy,
            use_cpu=True,
            report_to=[],
            remove_unused_columns=False,
            **more,
        )
        trainer = Trainer(
            model=torch.nn.Linear(2, 2),
            args=args,
            train_dataset=rows,
            data_collator=lambda own: {"id": torch.tensor([r["input_ids"][0] for r in own])},
        )
        loader = trainer.get_train_dataloader()
        epochs = []
        for epoch in range(EPOCHS):
            loader.set_epoch(epoch)
            epochs.append([batch["id"].tolist() for batch in loader])
        found.append({"strategy": strategy, "given": more, "epochs": epochs})
    return found


def shards() -> list[dict[str, Any]]:
    """The batches of each rank, by Accelerate and by torch's DistributedSampler."""
    from accelerate.data_loader import BatchSamplerShard
    from torch.utils.data import BatchSampler, DistributedSampler, SequentialSampler

    found = []
    for count, rows, ranks, drop in (
        (75, 4, 4, False),
        (75, 4, 4, True),
        (64, 4, 4, False),
        (65, 8, 2, False),
        (3, 4, 2, False),
        (17, 2, 3, False),
    ):
        batches = BatchSampler(SequentialSampler(range(count)), rows, drop)
        own = [list(BatchSamplerShard(batches, ranks, rank)) for rank in range(ranks)]
        torch_own = []
        for rank in range(ranks):
            sampler = DistributedSampler(range(count), ranks, rank, shuffle=False, drop_last=drop)
            torch_own.append(list(BatchSampler(sampler, rows, drop)))
        found.append(
            {
                "count": count,
                "rows": rows,
                "drop_last": drop,
                "accelerate": own,
                "distributed": torch_own,
            }
        )
    return found


if __name__ == "__main__":
    made = {"permutations": permutations(), "trainer": trainer_orders(), "shards": shards()}
    json.dump(made, sys.stdout, separators=(",", ":"))
    print()
