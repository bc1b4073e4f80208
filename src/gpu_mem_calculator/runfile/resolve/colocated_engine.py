"""vLLM on the cards of a training run: what its engine takes of each, as a server of the model.

TRL starts it in the trainer's process with these arguments (trl 1.16.0
generation/vllm_generation.py _init_vllm). Its share of the card is counted from what is free then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from ...run.rollout import VLLM, EngineItem, Rollout
from ..config import EngineConfig, GenerationConfig, ParallelismConfig, RunFile, TrainingConfig
from ..inference_config import InferenceConfig
from ..text.errors import InputError

if TYPE_CHECKING:
    from ...run.served import ServerMemory

BATCHED_TOKENS = 4096  # max_num_batched_tokens
UTILIZATION = 0.3  # trainer/grpo_config.py vllm_gpu_memory_utilization
PATH = "training.generation"


def with_engine(file: RunFile, rollout: Rollout | None) -> Rollout | None:
    """The generation with what vLLM takes of a card, if that is what generates."""
    given = file.training.generation
    if rollout is None or given is None or given.engine != VLLM:
        return rollout
    served = _served(file, given, rollout)
    if served.problem:
        raise InputError(f"{PATH}: {served.problem}")
    items = tuple(
        EngineItem(figure=item.figure, name=item.name, bytes=item.bytes)
        for item in served.items
        if item.bytes > 0 and item.place == "gpu"
    )
    asleep = 0 if served.host is None else served.host.asleep_bytes or 0
    return replace(rollout, items=items, sleep_level=given.sleep_level, asleep_bytes=asleep)


def _served(file: RunFile, given: GenerationConfig, rollout: Rollout) -> ServerMemory:
    from .resolve_inference import resolve_inference  # a run without vLLM imports no server

    ranks = given.tensor_parallel_size or 1
    inference = InferenceConfig(
        engine=VLLM,
        gpu_memory_utilization=given.gpu_memory_utilization or UTILIZATION,
        max_seq_len=given.max_model_len,
        max_num_seqs=int(rollout.sequences) * ranks,
        max_num_batched_tokens=BATCHED_TOKENS,
        tensor_parallel_size=ranks,
        quantization="nf4" if file.training.quantization == "nf4" else None,
        enable_sleep_mode=given.sleep_level > 0,
    )
    data = replace(
        file,
        training=TrainingConfig(),
        parallelism=ParallelismConfig(),
        engine=EngineConfig(),
        inference=inference,
        hardware=replace(file.hardware, num_gpus=ranks, num_nodes=None),
        program=None,
    )
    try:
        resolved = resolve_inference(data)
    except InputError as error:
        raise InputError(f"{PATH}: {problem}" for problem in error.problems) from None
    assert resolved.engine.serve is not None
    return resolved.engine.serve(resolved.run)
