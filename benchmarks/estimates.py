"""How many estimates a second one process makes, by the ledger alone and with the replay.

python -m benchmarks.estimates
"""

from __future__ import annotations

import time

from gpu_mem_calculator import estimate


def estimates_per_second(engine: str, count: int, *, replay: bool) -> float:
    """Estimates of one model at changing batch sizes."""
    run: dict[str, dict[str, object]] = {
        "model": {"name": "llama2-7b"},
        "training": {"batch_size": 1, "seq_len": 4096},
        "engine": {"type": engine},
        "hardware": {"gpu": "h100-80gb-sxm", "num_gpus": 8},
    }
    estimate(run, replay=replay)
    start = time.process_time()
    for i in range(count):
        run["training"]["batch_size"] = 1 + i % 7
        estimate(run, replay=replay)
    return count / (time.process_time() - start)


if __name__ == "__main__":
    for engine in ("pytorch_ddp", "fsdp", "deepspeed", "megatron_lm"):
        ledger = estimates_per_second(engine, 300, replay=False)
        whole = estimates_per_second(engine, 7, replay=True)
        print(f"ledgers a second      {ledger:6.0f} {engine:12}   (aim: 1,000)")
        print(f"replayed a second     {whole:6.1f} {engine}")
