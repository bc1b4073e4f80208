"""GPT-lite as a pipeline: its layers in a row, cut into stages that are balanced by parameters.

A micro-batch walks through the stages; while the second works on the first micro-batch, the first
has the next one. The fewer micro-batches (`gradient_accumulation_steps`), the more a stage waits.
"""

from __future__ import annotations

import itertools
from argparse import Namespace
from types import ModuleType
from typing import Any

import torch
from deepspeed.pipe import LayerSpec, PipelineModule
from deepspeed.runtime.utils import partition_balanced
from gptlite import Block, Embedding, GPTlite, cross_entropy
from torch import distributed, nn


def specs(model: GPTlite) -> list[LayerSpec]:
    """What `to_layers` holds, not yet built: `model` is asked for its sizes alone.

    A process then makes its own stage's layers only, where `to_layers` needs the whole model
    in every process first.
    """
    vocab_size, n_embd = model.embedding.token.weight.shape
    block_size, n_head = model.block_size, len(model.blocks[0].sa.heads)
    dropout = model.blocks[0].sa.dropout.p
    return [
        LayerSpec(Embedding, vocab_size, n_embd, block_size),
        *(LayerSpec(Block, n_embd, n_head, block_size, dropout) for _ in model.blocks),
        LayerSpec(nn.LayerNorm, n_embd),
        LayerSpec(nn.Linear, n_embd, vocab_size, bias=False),
    ]


def seeded(seed: int) -> None:
    """What is drawn next follows from this; DeepSpeed counts layers in numpy's numbers."""
    torch.manual_seed(int(seed))


def staged(model: GPTlite, options: Namespace) -> PipelineModule:
    """The module that DeepSpeed runs as a pipeline; each process keeps its stage.

    With `--pipeline` the model is whole in the memory of every process's host, and one stage of
    it goes to the device. With `--pipeline_spec_layers` it is on the meta device: sizes, no data.
    A layer's weights follow from the seed and its place, however many stages there are.
    """
    spec = options.pipeline_spec_layers
    layers = specs(model) if spec else model.to_layers()
    if options.stages > len(layers):
        raise ValueError(
            f"--stages {options.stages} is more than the {len(layers)} layers of the "
            f"model: use {len(layers)} or fewer"
        )
    return PipelineModule(
        layers=layers,
        num_stages=options.stages,
        loss_fn=cross_entropy,
        partition_method="parameters",
        seed_layers=spec,
        seed_fn=seeded,
        base_seed=options.seed,
        activation_checkpoint_interval=1 if options.checkpointing else 0,
        checkpointable_layers=[Block.__name__],
    )


def largest_stage(layers: list[nn.Module], stages: int) -> tuple[int, nn.Module]:
    """The number and the layers of the stage with the most parameters, cut as DeepSpeed cuts."""
    counts = [sum(p.numel() for p in layer.parameters()) for layer in layers]
    bounds = [int(bound) for bound in partition_balanced(counts, stages)]
    sums = [sum(counts[start:end]) for start, end in itertools.pairwise(bounds)]
    chosen = sums.index(max(sums))
    return chosen, nn.Sequential(*layers[bounds[chosen] : bounds[chosen + 1]])


def checkpoints_kept(module: PipelineModule) -> int:
    """How many checkpoints a stage holds at most: its blocks, for each micro-batch on its way.

    Stage s of S begins S - s micro-batches before the first one comes back.
    """
    blocks = sum(isinstance(layer, Block) for layer in module.forward_funcs)
    return blocks * (module.num_stages - module.stage_id)


def gathered(engine: Any, task: ModuleType, options: Namespace) -> nn.Module | None:
    """The whole model on rank 0's host, put together from the stages; None on other ranks."""
    mine: dict[int, dict[str, torch.Tensor]] = {}
    if engine.grid.data_parallel_id == 0:
        mine = {
            int(name): {key: p.detach().float().cpu() for key, p in layer.named_parameters()}
            for name, layer in engine.module.named_children()
            if name.isdecimal()
        }
    parts: list[Any] | None = [None] * options.ranks if options.rank == 0 else None
    distributed.gather_object(mine, parts)
    if parts is None:
        return None
    model, _ = task.get_model_and_dataset(options)
    layers = model.to_layers()
    for part in parts:
        for place, state in part.items():
            layers[place].load_state_dict(state, strict=False)  # masks are made, not sent
    return model
