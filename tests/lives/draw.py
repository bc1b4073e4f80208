"""Draws lives and distributions of lengths, to be measured once and predicted blind.

    python -m tests.lives.draw

Writes `drawn_lives.jsonl` and `drawn_lengths.jsonl`. A row whose number is odd may be read by
developers after it was measured; one whose number is even is only scored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from .models import MODELS, WIDTH, Row, parameters, rough_needs, stored_bytes

HERE = Path(__file__).parent
SMALL = [n for n, m in MODELS.items() if parameters(m) < 1.3e9]
MIDDLE = [n for n, m in MODELS.items() if 0.55e9 < parameters(m) < 2.2e9]
MOST_GPU, MOST_HOST, MOST_DISK = 70e9, 55e9, 36e9
MOST_LENGTHS_GPU = 85e9  # what torch may reserve
ALL_LINEAR = {"lora_alpha": 32, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}
STEPS = 100
H200 = {"gpu": "h200", "num_gpus": 1}


def model(rng: Random, names: list[str]) -> tuple[str, Row]:
    """A model, and the dtype of its checkpoint."""
    name = rng.choice(names)
    return name, {"config": MODELS[name] | {"dtype": rng.choice(list(WIDTH))}}


def checkpoint(rng: Random) -> Row:
    """How the checkpoint lies on disk."""
    return {
        "max_shard_size": rng.choice(["50GB", "50GB", "50GB", "1GB", "500MB"]),
        "page_cache": rng.choice(["warm", "warm", "cold"]),
    }


def arguments(rng: Random, dtype: str) -> Row:
    """TrainingArguments, by their own names; what is left out is the default."""
    args: Row = {"per_device_train_batch_size": rng.choice([1, 2, 4])}
    if dtype == "float32" or rng.random() < 0.7:
        args["bf16"] = True
    if rng.random() < 0.4:
        args["gradient_checkpointing"] = True
    if rng.random() < 0.45:
        args["per_device_eval_batch_size"] = rng.choice([1, 2, 4, 12])
    if rng.random() < 0.3:
        args["dataloader_num_workers"] = rng.choice([1, 2, 4])
        if rng.random() < 0.3:
            args["dataloader_pin_memory"] = False
    if rng.random() < 0.3:
        args["optim"] = rng.choice(["adamw_torch", "sgd", "adafactor"])
    if rng.random() < 0.2:
        args["gradient_accumulation_steps"] = 2
    return args


def evaluation(rng: Random, args: Row) -> Row:
    """The data: lengths of training and evaluation, and what is kept of the logits."""
    seq = rng.choice([512, 768, 1024, 1500, 2048])
    rows = rng.choice([8, 8, 16, 20])
    data: Row = {"seq_len": seq, "eval_rows": rows}
    data["eval_batches"] = -(-rows // args.get("per_device_eval_batch_size", 8))
    if rng.random() < 0.3:
        data["eval_seq_len"] = rng.choice([256, 640, 1280])
    if rng.random() < 0.4:
        data["compute_metrics"] = True
        kind = rng.random()
        if kind < 0.35:
            args["eval_accumulation_steps"] = 1
        elif kind < 0.6:
            data["preprocess_logits_for_metrics"] = "argmax"
    return data


def trainer(rng: Random, number: int, names: list[str] = SMALL) -> Row:
    """transformers.Trainer; full fine-tuning, unless more is said by the caller."""
    name, drawn = model(rng, names)
    dtype = rng.choice(["float32", "float32", "bfloat16", "auto"])
    load: Row = {"dtype": dtype}
    place = rng.choice([None, None, "cuda", "auto"])
    if place:
        load["device_map"] = place
    args = arguments(rng, drawn["config"]["dtype"] if dtype == "auto" else dtype)
    data = evaluation(rng, args)
    program = {"tool": "transformers.Trainer", "args": args, "load": load, "data": data}
    if rng.random() < 0.5:
        program["generate"] = {
            "batch_size": rng.choice([1, 2, 4]),
            "prompt_len": rng.choice([64, 256, 512]),
            "max_new_tokens": rng.choice([32, 64]),
            "use_cache": True,
        }
    life = {"checkpoint": checkpoint(rng), "resumed_in_a_second_process": number % 3 == 0}
    return {"name": name, "config": _run(drawn, program), "life": life}


def lora(rng: Random, number: int) -> Row:
    """Adapters of PEFT, merged into the base at the end, which is saved."""
    row = trainer(rng, number, list(MODELS))
    targets = {} if rng.random() < 0.5 else {"lora_dropout": 0.05}
    row["config"]["program"]["peft"] = {"r": rng.choice([8, 16, 64])} | ALL_LINEAR | targets
    row["life"]["merged"] = True
    return row


def qlora(rng: Random, number: int) -> Row:
    """A base in 4 or 8 bits under adapters."""
    row = lora(rng, 1)
    del row["life"]["merged"]
    program = row["config"]["program"]
    program["load"]["dtype"] = "bfloat16"
    program["args"]["bf16"] = True
    if number % 4 == 0:
        program["quantization"] = {"load_in_8bit": True}
    else:
        program["quantization"] = {
            "load_in_4bit": True,
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": rng.random() < 0.5,
            "bnb_4bit_compute_dtype": "bfloat16",
        }
    return row


def trl(rng: Random, number: int) -> Row:
    """TRL's SFT and DPO by turns of two, with and without adapters."""
    row = lora(rng, 1) if rng.random() < 0.5 else trainer(rng, 1)
    row["life"].pop("merged", None)
    program = row["config"]["program"]
    data, args = program["data"], program["args"]
    program["tool"] = "trl.SFTTrainer" if number % 4 < 2 else "trl.DPOTrainer"
    program.pop("generate", None)
    for key in ("compute_metrics", "preprocess_logits_for_metrics", "eval_seq_len"):
        data.pop(key, None)
    args.pop("eval_accumulation_steps", None)
    args["max_length"] = data["seq_len"]
    args.pop("gradient_checkpointing", None)
    if rng.random() < 0.4:
        args["gradient_checkpointing"] = False
    if program["tool"] == "trl.DPOTrainer":
        data["prompt"] = data["seq_len"] // 4
    return row


def engine_run(rng: Random, ranks: int, names: list[str]) -> Row:
    """The parts of a run file that FSDP and DeepSpeed share."""
    name, drawn = model(rng, names)
    drawn["config"]["dtype"] = "float32" if rng.random() < 0.5 else "bfloat16"
    training = {
        "batch_size": rng.choice([1, 2]),
        "seq_len": rng.choice([512, 1024, 2048]),
        "precision": "bf16_mixed",
        "optimizer": "adamw",
        "activation_checkpointing": rng.choice(["none", "full"]),
    }
    config = {
        "model": drawn,
        "training": training,
        "parallelism": {"data_parallel_size": ranks},
        "hardware": {"gpu": "h200", "num_gpus": ranks},
    }
    return {"name": name, "config": config, "life": {"checkpoint": checkpoint(rng)}}


def fsdp(rng: Random, number: int) -> Row:
    """A rank of FSDP 1 or 2 whose whole state dict is gathered on rank 0."""
    row = engine_run(rng, rng.choice([2, 4, 8]), MIDDLE)
    version = 1 + number % 4 // 2
    engine: Row = {"type": "fsdp", "fsdp_version": version}
    row["config"]["training"]["optimizer_implementation"] = rng.choice(["foreach", "fused"])
    if version == 1:
        engine["reduce_dtype"] = rng.choice(["bf16", "fp32"])
        config = {"offload_to_cpu": True, "rank0_only": True}
        engine |= {"state_dict_type": "FULL_STATE_DICT", "state_dict_config": config}
    else:
        engine["reduce_dtype"] = "fp32"
        engine["reshard_after_forward"] = rng.choice([True, False])
        engine["state_dict_options"] = {"full_state_dict": True, "cpu_offload": rng.random() < 0.7}
    row["config"]["engine"] = engine
    row["life"]["load"] = {"dtype": "float32"}
    return row


def deepspeed(rng: Random, number: int) -> Row:
    """A rank of ZeRO-2 or ZeRO-3 with states on the host."""
    row = engine_run(rng, rng.choice([2, 4, 8]), MIDDLE)
    stage = 2 + number % 4 // 2
    engine: Row = {"type": "deepspeed", "zero_stage": stage, "offload_optimizer": "cpu"}
    if stage == 3:
        engine["offload_param"] = rng.choice(["none", "cpu"])
        engine["stage3_gather_16bit_weights_on_model_save"] = True
    engine["pin_memory"] = rng.random() < 0.6
    row["config"]["engine"] = engine
    row["life"]["load"] = {"dtype": rng.choice(["float32", "bfloat16"])}
    return row


# Group -> how many, and what draws them.
LIVES: dict[str, tuple[int, Callable[[Random, int], Row]]] = {
    "trainer": (14, trainer),
    "lora": (10, lora),
    "qlora": (8, qlora),
    "trl": (8, trl),
    "fsdp": (6, fsdp),
    "deepspeed": (4, deepspeed),
}


def _run(drawn: Row, program: Row) -> Row:
    return {"model": drawn, "program": program, "hardware": H200}


def sample(rng: Random, count: int) -> tuple[list[int], Row]:
    """Lengths in the order of the data set, and the distribution that they were drawn from."""
    kind = rng.choice(["uniform", "p50", "p50", "histogram"])
    if kind == "uniform":
        low, high = rng.choice([32, 64, 256]), rng.choice([512, 1024, 1536, 2048])
        return [rng.randint(low, high) for _ in range(count)], {"uniform": [low, high]}
    if kind == "p50":
        middle, tail = rng.choice([150, 300, 500]), rng.choice([900, 1400, 2000])
        sigma = math.log(tail / middle) / 2.3263478740408408  # the normal quantile of 0.99
        drawn = [round(math.exp(rng.gauss(math.log(middle), sigma))) for _ in range(count)]
        return [min(max(16, n), 2048) for n in drawn], {"p50": middle, "p99": tail}
    edges = sorted(rng.sample([64, 128, 256, 512, 768, 1024, 1536, 2048], 4))
    shares = [round(rng.uniform(0.1, 1), 2) for _ in edges[1:]]
    bins = list(zip(edges, edges[1:], shares, strict=False))
    chosen = rng.choices(bins, weights=shares, k=count)
    histogram = [[low, high, share] for low, high, share in bins]
    return [rng.randrange(low, high) for low, high, _ in chosen], {"histogram": histogram}


def lengths(rng: Random, number: int) -> Row:
    """A hundred steps of batches of drawn lengths."""
    name, drawn = model(rng, ["qwen2-05b", "llama1b", "qwen3-06b", "smollm360m", "gpt2-medium"])
    batch = rng.choice([1, 2, 3, 4, 6, 8])
    dtype = rng.choice(["bfloat16", "float32"])
    args: Row = {"per_device_train_batch_size": batch, "bf16": True, "max_steps": STEPS}
    program: Row = {"tool": "transformers.Trainer", "args": args, "load": {"dtype": dtype}}
    count = STEPS * batch
    if rng.random() < 0.2:
        args["gradient_accumulation_steps"] = 2
        count *= 2
    if rng.random() < 0.2:
        count = count * 2 // 5 // batch * batch  # several epochs
    drawn_lengths, source = sample(rng, count)
    data: Row = {"lengths": drawn_lengths, "drawn_from": source, "padding": "longest"}
    if number % 5 == 0:
        data["padding"] = "padding_free"
        data["collator"] = "DataCollatorWithFlattening"
    elif number % 6 == 1:
        program["tool"] = "trl.SFTTrainer"
        ways = ["wrapped", "bfd", "free"]
        way = ways[number // 6 % 3]
        args["max_length"] = None if way == "free" else 2048  # padding_free refuses a length
        args |= {"padding_free": True} if way == "free" else {}
        args |= {} if way == "free" else {"packing": True, "packing_strategy": way}
    elif rng.random() < 0.35:
        args["train_sampling_strategy"] = "group_by_length"
    elif rng.random() < 0.5:
        data["pad_to_multiple_of"] = rng.choice([8, 64])
    if program["tool"] == "trl.SFTTrainer" or rng.random() < 0.3:
        args["gradient_checkpointing"] = rng.random() < 0.6
    program["data"] = data
    if rng.random() < 0.3:
        program["env"] = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    life = {"checkpoint": {"max_shard_size": "50GB", "page_cache": "warm"}}
    return {"name": name, "config": _run(drawn, program), "life": life}


def suitable(row: Row) -> bool:
    """Whether a row fits on the machine; adafactor and sgd need what fp32 weights do not have."""
    gpu, host, disk = rough_needs(row)
    model, program = row["config"]["model"]["config"], row["config"].get("program", {})
    data = program.get("data", {})
    longest = max(data.get("lengths", [0]))
    positions = model.get("max_position_embeddings") or model["n_positions"]
    if max(longest, data.get("seq_len", 0), data.get("eval_seq_len", 0)) > positions:
        return False
    if "lengths" in data:
        return gpu < MOST_LENGTHS_GPU
    if program.get("quantization") and model["model_type"] in ("gpt2", "opt"):
        return False
    return (
        gpu < MOST_GPU and host < MOST_HOST and disk < MOST_DISK and stored_bytes(row["config"]) > 0
    )


def draw(group: str, prefix: str, number: int, make: Callable[[Random, int], Row]) -> Row:
    """One row; what is not suitable is drawn again."""
    rng = Random(f"lives 2026-11-19/{prefix}/{number}")
    while not suitable(row := make(rng, number)):
        pass
    name = f"{group}-{number:02}-{row.pop('name')}"
    name = name if prefix == group else name.replace(group, f"{group}-{prefix}", 1)
    return {"id": name, "group": group, "number": number} | row


def drawn() -> Iterator[tuple[str, list[Row]]]:
    """Every file's name and rows."""
    yield (
        "drawn_lives.jsonl",
        [
            draw("life", prefix, number, make)
            for prefix, (count, make) in LIVES.items()
            for number in range(1, count + 1)
        ],
    )
    yield (
        "drawn_lengths.jsonl",
        [draw("lengths", "lengths", number, lengths) for number in range(1, 25)],
    )


if __name__ == "__main__":
    for file, rows in drawn():
        (HERE / file).write_text("".join(json.dumps(row) + "\n" for row in rows))
