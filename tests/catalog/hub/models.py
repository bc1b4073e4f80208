"""Small models for tests, as bytes of their files."""

from __future__ import annotations

import json

from tests.catalog.hub.test_checkpoint import CONFIG, WHOLE, gguf_bytes, safetensors_bytes

CONFIG_BYTES = json.dumps(CONFIG).encode()
ONE = {"config.json": CONFIG_BYTES, "model.safetensors": safetensors_bytes(WHOLE)}
# Twelve files with a tensor each, and an index.
SHARDS = {f"model-{i:02}.safetensors": f"model.layers.{i}.weight" for i in range(12)}
MANY = {
    "config.json": CONFIG_BYTES,
    "model.safetensors.index.json": json.dumps(
        {"weight_map": {tensor: file for file, tensor in SHARDS.items()}}
    ).encode(),
    **{
        file: safetensors_bytes({tensor: ("BF16", [64, 118], 15104)})
        for file, tensor in SHARDS.items()
    },
}
GGUF = {"tiny-Q8_0.gguf": gguf_bytes()}
OWN_CODE = {
    "config.json": json.dumps(
        {"model_type": "mystery", "auto_map": {"AutoConfig": "configuration_mystery.MysteryConfig"}}
    ).encode(),
    "configuration_mystery.py": b"raise SystemExit('it was run')",
}
