"""The words of a command line as people type them, turned into options that exist."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

# Axes of Megatron, as options of training commands.
AXES = {
    "--tp": "parallelism.tensor_parallel_size",
    "--pp": "parallelism.pipeline_parallel_size",
    "--cp": "parallelism.context_parallel_size",
}
# Other spellings of options: those of Hugging Face, of the servers, and short ones.
ALIASES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("--seq", "--seq-length", "--sequence-length", "--max-seq-length", "--max-length"),
        ("--seq-len",),
    ),
    **dict.fromkeys(
        ("--bs", "--batch", "--micro-batch-size", "--per-device-train-batch-size", "--mbs"),
        ("--batch-size",),
    ),
    **dict.fromkeys(("--global-batch-size", "--gbs", "--train-batch-size"), ("--global-batch",)),
    **dict.fromkeys(
        ("--gradient-accumulation-steps", "--gradient-accumulation", "--ga", "--accumulation"),
        ("--grad-accum",),
    ),
    **dict.fromkeys(
        (
            *("--gradient-checkpointing", "--activation-checkpointing", "--grad-checkpointing"),
            *("--recompute", "--recomputation"),
        ),
        ("--checkpointing",),
    ),
    **dict.fromkeys(
        ("--no-recompute", "--no-checkpointing", "--no-gradient-checkpointing"),
        ("--checkpointing", "none"),
    ),
    "--lora-r": ("--lora",),
    "--lora-rank": ("--lora",),
    "--rank": ("--lora",),
    "--full": ("--recipe", "full"),
    "--load-in-4bit": ("--qlora",),
    "--optim": ("--optimizer",),
    "--dtype": ("--precision",),
    "--bf16": ("--precision", "bf16"),
    "--fp16": ("--precision", "fp16"),
    "--fp32": ("--precision", "fp32"),
    **dict.fromkeys(("--zero-stage", "--stage"), ("--zero",)),
    **dict.fromkeys(("--offload-optimizer", "--cpu-offload"), ("--offload",)),
    **dict.fromkeys(("--num-gpus", "--n-gpus", "--num-processes", "--nproc"), ("--gpus",)),
    **dict.fromkeys(("--num-nodes", "--nnodes", "--num-machines"), ("--nodes",)),
    **dict.fromkeys(("--vram", "--gpu-memory", "--memory", "--mem"), ("--gpu-mem",)),
    **dict.fromkeys(("--card", "--device", "--gpu-name", "--gpu-type"), ("--gpu",)),
    **dict.fromkeys(("--framework", "--strategy", "--server", "--backend"), ("--engine",)),
    **dict.fromkeys(("--tensor-parallel-size", "--tp-size", "--tensor-parallel"), ("--tp",)),
    **dict.fromkeys(("--pipeline-parallel-size", "--pp-size"), ("--pp",)),
    **dict.fromkeys(("--data-parallel-size", "--dp-size"), ("--dp",)),
    **dict.fromkeys(("--enable-expert-parallel", "--expert-parallel-size", "--ep-size"), ("--ep",)),
    **dict.fromkeys(
        ("--ctx", "--ctx-size", "--context-length", "--context-len", "--max-seq-len", "--seq-len"),
        ("--context",),
    ),
    **dict.fromkeys(("--concurrent", "--num-users", "--concurrent-users"), ("--users",)),
    **dict.fromkeys(("--quant", "--quantize"), ("--quantization",)),
    "--max-new-tokens": ("--new-tokens",),
    **dict.fromkeys(("--cost", "--price-per-hour", "--hourly-price"), ("--price",)),
    "--model": ("--model-path",),
    "--gpus": ("--gpus-per-node",),
    **{f"--{name}": ("--quantization", name) for name in ("fp8", "awq", "gptq", "int4", "int8")},
    "--json": ("--format", "json"),
    "--silent": ("--quiet",),
}
# Names of a context, which training commands call a sequence.
CONTEXTS = (
    *("--ctx", "--ctx-size", "--context", "--context-length", "--context-len", "--max-seq-len"),
    "--max-model-len",
)
RANKS = ("--lora-r", "--lora-rank", "--rank")  # of LoRA, and of QLoRA where that is asked for
# Options that may lack their value: what a value looks like, and the value without one.
OPTIONAL: Mapping[str, tuple[str, str]] = {
    "--lora": (r"[0-9]+", "16"),
    "--qlora": (r"[0-9]+", "16"),
    "--offload": (r"cpu|nvme|none", "cpu"),
    "--checkpointing": (r"true|false", "full"),  # and the names of policies
    "--ep": (r"[0-9]+", "all"),
    "--serve": (r"any|vllm|sglang|tgi|llama.*|ollama|tensorrt.*|trtllm|transformers|hf", "any"),
}
CARDS = re.compile(r"([0-9]+)\s*[x×*]\s*(?=[a-z0-9])(.+)", re.IGNORECASE)  # 2x4090


def known_words(words: Sequence[str], known: Collection[str]) -> list[str]:
    """The words with other spellings of options replaced by those that are `known`."""
    replaced: list[str] = []
    words = _ranked(words)
    for place, word in enumerate(words):
        if word == "--":
            return replaced + list(words[place:])
        name, sign, value = word.partition("=")
        if sign and name.startswith("--"):
            replaced += [*_option(name, known), value]
        else:
            replaced += _option(word, known)
    return _with_values(_cards(_axes(replaced, known), known), known)


def _ranked(words: Sequence[str]) -> Sequence[str]:
    """`--qlora --rank 64` as `--qlora 64`: the rank is that of the recipe."""
    plain = [word.partition("=")[0].replace("_", "-") for word in words]
    four_bits = next((name for name in ("--qlora", "--load-in-4bit") if name in plain), None)
    if four_bits is None or not any(name in RANKS for name in plain):
        return words
    place = plain.index(four_bits)
    if place + 1 < len(words) and words[place + 1].isdecimal():
        return words  # it has a rank already
    named = zip(words, plain, strict=True)
    renamed = ["--qlora" + word[len(name) :] if name in RANKS else word for word, name in named]
    return renamed[:place] + renamed[place + 1 :]


def _option(name: str, known: Collection[str]) -> tuple[str, ...]:
    """A word as a known option; any other word as it is."""
    if not name.startswith("--") or name in known:
        return (name,)
    plain = name.replace("_", "-").lower()
    if plain in known:
        return (plain,)
    alias = ALIASES[plain] if plain in ALIASES else _engine(plain.removeprefix("--"))
    if plain in CONTEXTS and "--context" not in known:
        alias = ("--seq-len",)
    return alias if alias and (alias[0] in known or alias[0] in AXES) else (name,)


def _engine(word: str) -> tuple[str, ...]:
    """An engine or a server that is named as an option of its own, by any of its spellings."""
    from ..serving import spellings as servers
    from ..training.engines import shorthands, spellings

    named = (*spellings(), *shorthands(), *servers())
    name = next((one for one in named if one.replace("_", "-") == word), "")
    return ("--engine", name) if name else ()


def _axes(words: list[str], known: Collection[str]) -> list[str]:
    """Megatron's axes as settings, where the command trains with it and has no such option."""
    if not any(word.lower().startswith("megatron") for word in words):
        return words
    replaced: list[str] = []
    for word in words:
        axis = AXES.get(replaced[-1]) if replaced and replaced[-1] not in known else None
        if axis:
            replaced[-1:] = ["--set", f"{axis}={word}"]
        else:
            replaced.append(word)
    return replaced


def _cards(words: list[str], known: Collection[str]) -> list[str]:
    """`--gpu 2x4090` and `--gpus 2x4090` as a number of GPUs and a card."""
    replaced: list[str] = []
    for word in words:
        cards = CARDS.fullmatch(word)
        if cards and replaced[-1:] in (["--gpu"], ["--gpus"], ["-g"]) and "--gpus" in known:
            replaced[-1:] = ["--gpus", cards[1], "--gpu", cards[2]]
        else:
            replaced.append(word)
    return replaced


def _with_values(words: list[str], known: Collection[str]) -> list[str]:
    """Options that may lack their value, each with one."""
    replaced: list[str] = []
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        if word in OPTIONAL and word in known:
            pattern, default = OPTIONAL[word]
            if word == "--checkpointing":
                from ..runfile.resolve.recompute_policies import LEVELS, NAMES

                pattern = "|".join((pattern, *map(str, LEVELS), *NAMES))
            given = bool(waiting) and re.fullmatch(pattern, waiting[0], re.IGNORECASE)
            word += f"={waiting.pop(0) if given else default}"
        replaced.append(word)
    return replaced
