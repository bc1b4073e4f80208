"""A policy's generation against transformers' generate on fake tensors, as TRL calls it."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.pytorch.replay.stream import AllocationStream
from gpu_mem_calculator.run.cuda.chips import cublas_bytes
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.training.engines.pytorch_ddp.options import PRECISIONS
from gpu_mem_calculator.training.generation.rollout import rollout_case, rollout_ledger
from gpu_mem_calculator.training.step.activations import setting
from tests.corpus import sampled
from tests.serving.conftest import FAMILIES
from tests.serving.test_traced import highest, on_a_gpu
from tests.training.generation.test_rollout import policy

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")
pytest.importorskip("accelerate")

SMALL = 16 * 1024  # bytes of flags and counters
LT_BYTES = 1024**2
SEQUENCES, PROMPT, NEW = 8, 40, 8


def traced(family: str, precision: str, adapters: bool) -> AllocationStream:
    """What the program asks of the allocator; accelerate has wrapped the model's forward."""
    import torch
    from accelerate.utils.operations import convert_outputs_to_fp32
    from transformers import AutoModelForCausalLM, GenerationConfig

    from gpu_mem_calculator.lab.jobs.model import auto_config
    from gpu_mem_calculator.lab.trace.recorder import Recorder

    recorder = Recorder(cublas_bytes("9.0"))
    dtype = torch.float32 if precision == "bf16_mixed" else torch.bfloat16
    with on_a_gpu(), recorder.recording():
        model: Any = AutoModelForCausalLM.from_config(auto_config(FAMILIES[family]), dtype=dtype)
        model.train()
        if adapters:
            model = _adapted(model)
        cast = torch.autocast("cpu", dtype=torch.bfloat16)
        model.forward = convert_outputs_to_fp32(cast(model.forward))
        model.generation_config.eos_token_id = None
        recorder.mark("load")
        ids = torch.randint(1, 900, (SEQUENCES, PROMPT))
        config = GenerationConfig(
            max_new_tokens=NEW, do_sample=True, pad_token_id=0, top_k=0, disable_compile=True
        )
        with torch.no_grad():
            model.generate(
                input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=config
            )
        recorder.mark("gen")
    recorder.sums.clear()
    return recorder.recorded()


def _adapted(model: Any) -> Any:
    from peft import LoraConfig, get_peft_model

    lora = LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM")
    return get_peft_model(model, lora)


def loaded(stream: AllocationStream) -> int:
    """Bytes alive when the model is loaded, each tensor in steps of 512 bytes."""
    events = stream.events[: stream.marks[0][0]]
    sizes = [-(-size // 512) * 512 for size in stream.sizes]
    return sum(sizes[e] if e >= 0 else -sizes[~e] for e in events)


def estimated(family: str, precision: str, adapters: bool) -> int:
    """The peak of the generation by its ledger."""
    training: dict[str, Any] = {"precision": precision, "autocast": precision == "bf16_pure"}
    if adapters:
        training["lora"] = {"r": 8, "target_modules": "all-linear"}
    tokens = {"prompt": PROMPT, "new_tokens": NEW, "sequences": SEQUENCES}
    run = resolve(read(policy(family, generation=tokens, **training)).file).run
    assert run.rollout is not None
    case = rollout_case(run, run.rollout, setting(run, PRECISIONS[precision]))
    return int(rollout_ledger(case).peak())


@pytest.mark.reference
@pytest.mark.parametrize(
    ("family", "precision", "adapters"),
    sampled(
        [
            ("llama", "bf16_mixed", False),
            ("falcon", "bf16_mixed", False),
            ("qwen2", "bf16_pure", False),
            ("llama", "bf16_pure", True),
            ("qwen2", "bf16_mixed", True),
        ],
        keep=3,
    ),
)
def test_a_generation_is_the_traced_one(family: str, precision: str, adapters: bool) -> None:
    """Beyond the weights and the workspaces, within small tensors."""
    stream = traced(family, precision, adapters)
    workspaces = cublas_bytes("9.0") + (LT_BYTES if family == "qwen2" else 0)
    own = highest(stream) - loaded(stream) - workspaces
    assert own == pytest.approx(estimated(family, precision, adapters), abs=SMALL)
