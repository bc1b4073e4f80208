"""Reads commands of Megatron-LM's pretrain_gpt.py (branch core_r0.19.0
megatron/training/arguments.py), its YAML (--yaml-cfg, megatron/training/yaml_arguments.py), and its
test configurations. The size of the vocabulary follows from the tokenizer
(core/tokenizers/utils/build_tokenizer.py:140).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import lcm
from typing import Any

from ...ledger import frameworks
from ...runfile.config import ModelConfig
from ...runfile.find_model.model_source import find_model
from ...runfile.text.errors import InputError, quoted
from ..reading.command import Command
from ..reading.keys import sort_keys
from ..reading.named_files import NamedFiles
from ..reading.options import ParsedOptions, parse_options, renamed_note
from ..reading.reading import Limit, Reading, Section
from ..translation.arguments import MEMORY, argument_values, tables
from .arguments import LISTS, NUMBERS, SINGLE, SYNTAX, TABLE, TITLE, TOOL

TOKENIZER_SIZES: Mapping[str, int] = tables(__file__)["tokenizer_sizes"]
GPT2 = TOKENIZER_SIZES["GPT2BPETokenizer"]  # openai-community/gpt2 vocab.json
NAMED = ("HuggingFaceTokenizer", "SFTTokenizer", "MultimodalTokenizer")
SECTIONS = ("language_model", "model_parallel")
# Names of megatron-core's configurations, and of the arguments that mean the same.
RENAMED: dict[str, str] = tables(__file__)["renamed"]
OLDER: Mapping[str, Section] = tables(__file__)["older"]  # options, each with what it means today
GATED, ACTIVATION, FUSION = "gated_linear_unit", "activation_func", "bias_activation_fusion"
GPT = "pretrain_gpt.py"
ENVIRONMENT, ARGUMENTS = "ENV_VARS", "MODEL_ARGS"  # of a test configuration
# Transformer Engine chooses among the kernels of attention that are on
# (transformer_engine/pytorch/attention/dot_product_attention/utils.py get_attention_backend).
KERNELS = ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN")
ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
SIZES = tuple(tables(__file__)["sizes"])
WORDS = {bool: "true or false", int: "a number", float: "a number", str: "a text"}


def add_vocabulary(reading: Reading, kept: Section, files: NamedFiles) -> None:
    """Set vocab_size by the tokenizer, where it is not given."""
    if kept.get("vocab_size") is not None or kept.get("padded_vocab_size") is not None:
        return
    kind, model = kept.get("tokenizer_type"), kept.get("tokenizer_model")
    size, source = None, ""
    if kind in NAMED and isinstance(model, str):
        size, source = _of_model(model), f"of {model}"
    elif isinstance(kept.get("vocab_file"), str) and kind in (None, "GPT2BPETokenizer"):
        size, source = _of_file(kept["vocab_file"], files)
    elif str(kind) in TOKENIZER_SIZES:
        size, source = TOKENIZER_SIZES[str(kind)], f"of {kind}"
    if size is not None:
        kept["vocab_size"] = size
        reading.assumed.append(f"the vocabulary has {size:,} entries, as that {source}")


def _of_file(name: str, files: NamedFiles) -> tuple[int, str]:
    """The entries of vocab.json; without the file it is GPT-2's."""
    if files.exists(name):
        data: Any = files.data(name, "--vocab-file")
        if isinstance(data, Mapping) and data:
            return len(data), f"of {name}"
    return GPT2, "of GPT-2's BPE"


def _of_model(name: str) -> int | None:
    try:
        return int(find_model(ModelConfig(name=name)).arch.vocab)
    except (InputError, AttributeError):
        return None


def yaml_arguments(data: Any) -> Section:
    """The arguments of a file, those of its sections among them."""
    if not isinstance(data, Mapping):
        raise InputError(f"--yaml-cfg must be an object of arguments, not {quoted(data)}")
    flat: Section = {}
    for key, value in data.items():
        flat |= value if key in SECTIONS and isinstance(value, Mapping) else {str(key): value}
    given = {RENAMED.get(key, key): value for key, value in flat.items() if value is not None}
    return _with_activation(given)


def _with_activation(given: Section) -> Section:
    """The activation: swiglu, squared_relu, quick_geglu, or GELU (yaml_arguments.py:309)."""
    gated, function = given.pop(GATED, None), given.pop(ACTIVATION, None)
    fused = given.pop(FUSION, None)
    if gated or function == "swiglu":
        given["quick_geglu" if function == "quick_gelu" else "swiglu"] = True
    elif function == "squaredrelu":
        given["squared_relu"] = True
    if fused is not None:
        given["bias_swiglu_fusion" if gated or function == "swiglu" else "bias_gelu_fusion"] = fused
    return given


def read_command(command: Command) -> Reading:
    """What a command of Megatron-LM means."""
    reading = _reading()
    parsed = parse_options(TITLE, command.words[1:], TABLE, SYNTAX)
    reading.problems += parsed.problems
    given = _of_today(reading, parsed)
    for word in parsed.positional:
        if word.startswith("$"):
            why = "the script does not say what it is; options in it are left out"
            reading.limits.append(Limit(key=word, why=why))
        elif not parsed.problems:  # else it is the value of an option that is not known
            reading.problems.append(f"{word!r} is not an option of {TITLE}; leave it out")
    if "yaml_cfg" in given:
        reading.keys["--yaml-cfg"] = "memory"
        data = command.files.data(str(given.pop("yaml_cfg")), "--yaml-cfg")
        given = yaml_arguments(data)
    _fill(reading, given, command.files, command.environment, command.num_gpus)
    if command.program != GPT:  # only GPT is modelled
        reading.problems = parsed.problems
        reading.run = {"program": {"tool": f"megatron.{command.program.removesuffix('.py')}"}}
        return reading
    if command.num_nodes > 1:
        reading.run["hardware"]["num_nodes"] = command.num_nodes
    return reading


def read_data(data: Mapping[str, Any], files: NamedFiles) -> Reading:
    """A test configuration (ENV_VARS, MODEL_ARGS), or the arguments in YAML."""
    reading = _reading()
    if ARGUMENTS not in data:
        _fill(reading, yaml_arguments(data), files, {}, None)
        return reading
    arguments, environment = data[ARGUMENTS], data.get(ENVIRONMENT) or {}
    for name, section in ((ARGUMENTS, arguments), (ENVIRONMENT, environment)):
        if not isinstance(section, Mapping):
            raise InputError(f"{name}={quoted(section)} must be an object")
    parsed = parse_options(TITLE, _words(arguments), TABLE, SYNTAX)
    reading.problems += parsed.problems
    variables = {str(name): str(value) for name, value in environment.items()}
    _fill(reading, _of_today(reading, parsed), files, variables, None)
    return reading


def _of_today(reading: Reading, parsed: ParsedOptions) -> Section:
    """The values of options, those of older releases by what they mean today."""
    reading.assumed += renamed_note(parsed)
    given = dict(parsed.values)
    for name, meant in OLDER.items():
        if given.get(name) or name in parsed.renamed:
            given = {**meant, **given}
            said = ", ".join(f"{key}={value}" for key, value in meant.items())
            reading.assumed.append(f"--{name.replace('_', '-')} of older releases means {said}")
            reading.keys[f"--{name}"] = "memory"
        given.pop(name, None)
    return given


def _reading() -> Reading:
    return Reading(tool=TITLE, version=frameworks.MEGATRON_CORE.version)


def _words(arguments: Mapping[str, Any]) -> list[str]:
    """The options of a test configuration as words; true is an option without a value
    (tests/functional_tests/shell_test_utils/_run_training.sh).
    """
    words: list[str] = []
    for name, value in arguments.items():
        if value is True or value is None or value == "":
            words.append(str(name))
        elif isinstance(value, list):
            words += [str(name), *map(str, value)]
        elif isinstance(value, str) and value.startswith("[") and value.endswith("]"):
            words += [str(name), *value[1:-1].split()]
        elif value is not False:
            words += [str(name), str(value)]
    return words


def _fill(
    reading: Reading,
    given: Section,
    files: NamedFiles,
    environment: Mapping[str, str],
    num_gpus: int | None,
) -> None:
    """The run file of the arguments."""
    for name in SINGLE:
        if isinstance(given.get(name), list) and len(given[name]) == 1:
            given[name] = given[name][0]
    kept = sort_keys(reading, TABLE, given, "--")
    reading.problems += _type_problems(kept)
    _read_environment(reading, kept, environment)
    add_vocabulary(reading, kept, files)
    args = {name: value for name, value in kept.items() if TABLE[name].effect == MEMORY}
    _group_experts(reading, args)
    count = {} if reading.problems else {"num_gpus": num_gpus or _fewest(reading, args)}
    reading.run |= {"program": {"tool": TOOL, "args": args}, "hardware": count}


def _group_experts(reading: Reading, args: Section) -> None:
    """Experts one after the other are modelled with local layers alone."""
    local = args.get("transformer_impl") == "local"
    if args.get("num_experts") and not args.get("moe_grouped_gemm") and not local:
        args["moe_grouped_gemm"] = True
        why = "experts run one after the other, and are modelled in one kernel (moe_grouped_gemm)"
        reading.limits.append(Limit(key="--moe-grouped-gemm is left out", why=why, could="more"))


def _type_problems(given: Mapping[str, Any]) -> list[str]:
    """A sentence for each value that the tool's parser would not take."""
    problems = []
    for name, value in given.items():
        row = TABLE[name]
        kind = int if name in NUMBERS else type(row.default)
        if row.effect != MEMORY or kind not in WORDS or value is None:
            continue
        number = isinstance(value, int | float) and not isinstance(value, bool)
        fits = number if kind in (int, float) else isinstance(value, kind)
        if not fits and not (name in SINGLE or name in LISTS):
            what = f"--{name.replace('_', '-')} {value}"
            unset = ", which the script does not say" if str(value).startswith("$") else ""
            problems.append(f"{what} must be {WORDS[kind]}{unset}; write its value")
    return problems


def _read_environment(reading: Reading, kept: Section, variables: Mapping[str, str]) -> None:
    """Transformer Engine's choice of attention, and the allocator's settings."""
    off = [name for name in KERNELS if variables.get(name) == "0"]
    for name in (*KERNELS, *ALLOCATOR):
        if name in variables:
            reading.keys[name] = "memory"
    if len(off) == len(KERNELS):
        kept.setdefault("attention_backend", "unfused")
    conf = next((variables[name] for name in ALLOCATOR if variables.get(name)), None)
    if conf is not None:
        reading.run["training"] = {"pytorch_alloc_conf": conf}


def _fewest(reading: Reading, args: Mapping[str, Any]) -> int:
    """The fewest GPUs that all groups together need, where nothing says how many there are."""
    values = argument_values(TABLE, args)
    tp, pp, cp, ep, instances, etp = (_size(values[name]) for name in SIZES)
    etp = etp if values[SIZES[-1]] else tp
    count = pp * lcm(tp * lcm(cp, instances), ep * etp * instances)
    reading.assumed.append(
        f"the number of GPUs is not said; {count} is the fewest for its tensor, pipeline, context "
        "and expert parallelism"
    )
    return count


def _size(value: Any) -> int:
    return value if isinstance(value, int) and 0 < value < 2**20 else 1
