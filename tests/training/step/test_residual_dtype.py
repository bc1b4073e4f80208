"""Hidden states between quantized layers under autocast: fp32 after torch's layer norm."""

from __future__ import annotations

import pytest

from gpu_mem_calculator.estimates.calculator import full_estimate

SIZES = {"hidden_size": 512, "num_hidden_layers": 12, "num_attention_heads": 8, "vocab_size": 512}
STARCODER = {"model_type": "starcoder2", "num_key_value_heads": 2, "intermediate_size": 2048}
LLAMA = {"model_type": "llama", "intermediate_size": 2048}
TOKENS = 4096


@pytest.mark.parametrize(("config", "bits"), [(STARCODER, 32), (LLAMA, 16)])
@pytest.mark.parametrize("quantization", ["nf4", "none"])
def test_checkpointed_inputs(config: dict[str, object], bits: int, quantization: str) -> None:
    """bitsandbytes' projections return the dtype of the norm's output; torch's linear does not."""
    training = {
        "seq_len": TOKENS,
        "precision": "bf16_pure",
        "autocast": True,
        "activation_checkpointing": "full",
        "lora": {"r": 8, "target_modules": ["q_proj"]},
        "quantization": quantization,
    }
    run = {"model": {"config": {**SIZES, **config}}, "training": training}
    ledger = full_estimate(run).ledgers[0]  # the replay agrees with it
    kept = [entry for entry in ledger.entries if entry.name.endswith("checkpointed inputs")]
    bits = bits if quantization == "nf4" else 16
    assert [int(entry.bytes) for entry in kept] == [TOKENS * 512 * bits // 8]
