"""Draws commands of every verb but `check`: models and cards in many spellings, options of all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from random import Random

from gpu_mem_calculator import catalog
from gpu_mem_calculator.tools.writing.writers import WRITERS
from tests.questions import run_files
from tests.questions.question import COMMAND, Question

SIZES = ("7", "7b", "7B", "0.5b", "13B", "350M", "70b", "1.5T", "8e9", "0", "-1b", "x7")
COUNTS = ("1", "2", "3", "4", "8", "16", "64", "0", "-1", "two", "1e3", "8.0")
LENGTHS = ("1", "512", "2k", "4096", "8k", "32k", "128k", "1m", "0", "-4", "4kb", "lots", "1.5k")
WRONG = 0.12  # how often a value may be a mistake
RARE = 0.06  # how often a word is misspelt, left out or doubled
QUICK: dict[str, Sequence[str]] = {
    "--gpus": COUNTS,
    "--nodes": ("1", "2", "4"),
    "--seq-len": LENGTHS,
    "--batch-size": COUNTS,
    "--grad-accum": COUNTS,
    "--optimizer": ("adamw", "adamw_8bit", "sgd", "lion", "muon", "adafactor", "paged_adamw_8bit"),
    "--checkpointing": ("full", "none", "selective", "op", "2", "always"),
    "--engine": ("pytorch", "ddp", "fsdp", "fsdp1", "zero2", "zero3", "deepspeed", "megatron", "x"),
    "--zero": ("0", "1", "2", "3", "4"),
    "--offload": ("cpu", "nvme", "none", "disk"),
    "--precision": ("bf16", "fp16", "fp32", "bf16_pure", "16-mixed", "fp8", "int4"),
    "--lora": ("8", "16", "0", "64"),
    "--qlora": ("8", "16"),
    "--gpu-mem": ("8", "24", "80", "80GB", "0", "-3", "24gib"),
    "--set": ("training.loss=chunked", "training.liger=true", "hardware.gpu=t4", "x", "a.b=c"),
    "--recipe": ("full", "lora", "qlora"),
}
INFER: dict[str, Sequence[str]] = {
    "--gpus": COUNTS,
    "--tp": COUNTS,
    "--pp": ("1", "2", "3"),
    "--dp": ("1", "2"),
    "--ep": ("2", "8"),
    "--context": LENGTHS,
    "--max-model-len": LENGTHS,
    "--users": COUNTS,
    "--prompt-len": LENGTHS,
    "--new-tokens": LENGTHS,
    "--dtype": ("bf16", "fp16", "fp32", "float8"),
    "--quantization": ("fp8", "awq", "gptq", "nf4", "q4_k_m", "int8", "nvfp4", "q3", "none"),
    "--kv-cache-dtype": ("auto", "fp8", "int8", "int4", "q8_0"),
    "--gpu-memory-utilization": ("0.5", "0.9", "1", "1.2", "0", "90"),
    "--max-num-seqs": COUNTS,
    "--max-num-batched-tokens": LENGTHS,
    "--engine": ("vllm", "sglang", "tgi", "tensorrt_llm", "llamacpp", "transformers", "x"),
    "--gpu-mem": ("8", "24", "80"),
    "--set": ("inference.enforce_eager=true", "model.num_layers=2", "inference.max_loras=2"),
}
PLAN: dict[str, Sequence[str]] = {
    "--seq-len": ("256", "512", "1k"),
    "--fix": ("tp=1", "dp=2", "checkpointing=full", "x=1", "training.optimizer=sgd"),
    "--vary": ("training.optimizer=adamw,sgd", "zero_stage=2,3", "tp=1,2"),
    "--top": ("1", "3", "0"),
    "--price": ("2.5", "0", "-1"),
    "--tokens": ("1B", "1T", "many"),
}


@cache
def hub_ids() -> list[str]:
    """The names on the hub of all presets."""
    return [row["hub_id"] for row in catalog.rows("index") if row.get("hub_id")]


def model(rng: Random, most: float = run_files.MIDDLE) -> str:
    """A model as people write it."""
    kind = rng.random()
    name = rng.choice(run_files.presets(most))
    if kind < 0.5:
        return name
    if kind < 0.65:
        return rng.choice((name.upper(), name.replace("-", ""), name.replace("-", "_")))
    if kind < 0.8:
        return rng.choice(hub_ids()) + rng.choice(("", "", "-Instruct", "-AWQ", "-FP8", "-GGUF"))
    return likely(rng, SIZES) if kind < 0.92 else misspelt(rng, name)


def card(rng: Random) -> str:
    """A card as people write it."""
    name = rng.choice(catalog.names("gpus"))
    kind = rng.random()
    if kind < 0.5:
        return rng.choice(("h100", "4090", "a100", "t4", "h200", "3090", "l40s", "b200", "a10g"))
    if kind < 0.75:
        return name
    others = (name.upper(), name.replace("-", " "), f"2x{name}", "24gb", "80GB", "NVIDIA", "")
    return likely(rng, others) if kind < 0.97 else misspelt(rng, name)


def misspelt(rng: Random, word: str) -> str:
    """A word with one letter left out, doubled or exchanged."""
    place = rng.randrange(max(1, len(word)))
    kind = rng.choice(("left out", "doubled", "exchanged"))
    letter = word[place : place + 1]
    instead = {"left out": "", "doubled": letter * 2, "exchanged": rng.choice("aeiou0-/ ")}[kind]
    return word[:place] + instead + word[place + 1 :]


def spoilt(rng: Random, words: list[str]) -> tuple[str, ...]:
    """The words, now and then with a natural mistake in one of them."""
    if words and rng.random() < RARE:
        place = rng.randrange(len(words))
        words[place : place + 1] = rng.choice(
            ([], [words[place]] * 2, [misspelt(rng, words[place])], ["", words[place]])
        )
    return tuple(words)


def options(rng: Random, table: dict[str, Sequence[str]], most: int) -> list[str]:
    """Some options of a table with values."""
    words: list[str] = []
    for name in rng.sample(sorted(table), rng.randint(0, most)):
        words += [name, likely(rng, table[name])]
    return words


def likely(rng: Random, values: Sequence[str]) -> str:
    """A value, mostly one of the first two thirds: the last ones of a table are mistakes."""
    kept = values if rng.random() < WRONG else values[: -(-2 * len(values) // 3)]
    return rng.choice(kept)


def quick(rng: Random) -> Question:
    """`quick`, or no verb at all."""
    verb = rng.choice(("quick", "quick", "quick", "train", "", "explain"))
    words = [verb] * bool(verb) + [model(rng)]
    if rng.random() < 0.9:
        words += ["--gpu", card(rng)]
    words += options(rng, QUICK, 4)
    if rng.random() < 0.1:
        words += [rng.choice(("--long", "--check", "--quiet", "--help", "--explain"))]
    return Question(kind=COMMAND, name="quick", words=spoilt(rng, words), more=rng.random() < 0.15)


def infer(rng: Random) -> Question:
    """`infer`."""
    words = ["infer", model(rng, run_files.LARGE), "--gpu", card(rng), *options(rng, INFER, 4)]
    if rng.random() < 0.05:
        words += [rng.choice(("--fewest-gpus", "--long", "--check", "--enforce-eager"))]
    return Question(kind=COMMAND, name="infer", words=spoilt(rng, words), more=rng.random() < 0.3)


def calculate(rng: Random) -> Question:
    """`calculate`, `explain` or `validate` of a run file."""
    draw = rng.choice((run_files.training, run_files.serving, run_files.program))
    verb = rng.choices(("calculate", "explain", "validate"), (6, 2, 2))[0]
    words = spoilt(rng, [verb, "run.json", *(options(rng, QUICK, 1) if verb != "validate" else [])])
    more = verb == "calculate" and rng.random() < 0.3
    return Question(kind=COMMAND, name=verb, words=words, run=draw(rng), more=more)


def convert(rng: Random) -> Question:
    """`convert` of a run file to any format."""
    draw = rng.choice((run_files.training, run_files.serving, run_files.program))
    words = spoilt(rng, ["convert", "run.json", "--to", rng.choice(sorted(WRITERS))])
    return Question(kind=COMMAND, name="convert", words=words, run=draw(rng))


def plan(rng: Random) -> Question:
    """`plan` of a small model on few cards."""
    name = rng.choice(run_files.presets(7e8)) if rng.random() < 0.9 else model(rng, 7e8)
    engines = ("ddp", "fsdp", "deepspeed", "megatron", "megatron_deepspeed", "vllm", "fsdp,ddp")
    words = ["plan", name, "--gpus", rng.choice(("1", "2", "2", "4", "8", "0"))]
    words += ["--gpu", card(rng), "--global-batch", rng.choice(("2", "4", "8", "16", "7", "0"))]
    words += ["--engine", rng.choice(engines), *options(rng, PLAN, 1)]
    return Question(kind=COMMAND, name="plan", words=spoilt(rng, words))


def candidates(rng: Random) -> Question:
    """`plan --candidates` with one run file: it takes what `estimate` takes."""
    run = run_files.training(rng)
    if "gpu" not in run["hardware"]:  # seconds need a card
        run["hardware"] = {"gpu": "h100", **run["hardware"]}
        run["hardware"].pop("gpu_memory_gb", None)
    words = ("plan", "--candidates", "run.json")
    return Question(kind=COMMAND, name="plan --candidates", words=words, run=run)


def listing(rng: Random) -> Question:
    """`presets`, `gpus`, `schema`, `deepspeed`."""
    found = {
        "presets": (("llama",), ("qwen",), (), ("zzz",), ("--format", "json")),
        "gpus": (("h200",), (), ("amd",), ("nothing",), ("--format", "json")),
        "schema": ((), ("training",), ("optimizer",), ("x",)),
        "deepspeed": (
            ("--stage", rng.choice("1234"), "--num-parameters", rng.choice(SIZES)),
            ("--stage", "3", "--model-path", model(rng), "--gpus-per-node", rng.choice(COUNTS)),
            (),
        ),
    }
    verb = rng.choice(sorted(found))
    words = spoilt(rng, [verb, *rng.choice(found[verb])])
    return Question(kind=COMMAND, name=verb, words=words)


DRAWS: dict[Callable[[Random], Question], int] = {
    quick: 22,
    infer: 14,
    calculate: 16,
    convert: 8,
    plan: 1,
    candidates: 2,
    listing: 2,
}
