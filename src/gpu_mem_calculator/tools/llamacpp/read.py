"""Commands of llama.cpp: llama-server, llama-cli, llama-completion and llama-mtmd-cli; and of its
fork ik_llama.cpp, which has programs of the same names.

llama.cpp b10586 (b21e4de7) common/arg.cpp, common/fit.cpp and tools/server/server.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...ledger.frameworks import LLAMA_CPP
from ...runfile.text.errors import InputError, nearest, quoted
from ..reading.command import Command
from ..reading.keys import sort_keys
from ..reading.option_values import whole_value
from ..reading.options import option_syntax, parse_options
from ..reading.reading import Limit, Reading, Section
from ..translation.arguments import argument_data, argument_table, tables
from ..translation.releases import release_lock
from .model import add_model, add_projector, with_presets

FOLDER = Path(__file__).parent
TABLE = "llamacpp/arguments"
VARIABLE = "LLAMA_ARG_"
SERVER = "llama-server"
# Commands of the program `llama` (app/llama.cpp), and the programs that they are.
PARTS = dict.fromkeys(("serve", "server"), SERVER) | dict.fromkeys(("cli", "client"), "llama-cli")
PARTS |= dict.fromkeys(("completion", "complete"), "llama-completion")
TRUE, FALSE = ("on", "enabled", "true", "1"), ("off", "disabled", "false", "0")  # is_truthy
ALL_LAYERS = 10**6  # -ngl all
ALL_EXPERTS = 10_000  # layers, more than a model has
# Numbers that have the same meaning in a run file.
NUMBERS: dict[str, str] = tables(__file__)["numbers"]
DEVICE = re.compile(r"CPU|CUDA_Host|[A-Za-z]+\d+")  # where a pattern puts tensors
FORK, FORK_FOLDER = "ik_llama_cpp", "ik_llama"
FORK_LIMIT = "its buffers for computing are its own; llama.cpp's are estimated"
LATENTS_ALONE = 3
MLA_LIMIT = (
    "0 caches keys and values of every head of DeepSeek's models, 1 a second copy of the latents"
)
EACH_SLOT = "without -c, each slot has the whole context of the model; one context is estimated"


def read_command(command: Command) -> Reading:
    """What a command of llama.cpp means."""
    program, rest = _program(command)
    reading = Reading(tool=program, version=LLAMA_CPP.version)
    fork = _is_fork(command)
    path = FORK if fork else "arguments"
    table, syntax = argument_table(path, FOLDER), option_syntax(path, FOLDER)
    parsed = parse_options(program, _with_plain_flash(rest), table, syntax)
    problems = zip(parsed.unknown, parsed.problems, strict=True)
    reading.problems += [_elsewhere(program, word) or problem for word, problem in problems]
    reading.problems += [f"{word!r} is no option of llama.cpp" for word in parsed.strays]
    given = _variables(reading, command.environment) | parsed.values
    kept = sort_keys(reading, table, given, "--")
    values = with_presets(reading, kept)
    if fork:
        values = _of_fork(reading, values)
    reading.run["inference"] = {"engine": "llamacpp"}
    add_model(reading, values, command)
    add_projector(reading, values)
    reading.run["inference"] |= _inference(reading, values)
    gpus = _gpus(values, command)
    if gpus is not None:
        reading.run["hardware"] = {"num_gpus": gpus}
    return reading


def _is_fork(command: Command) -> bool:
    """Whether a command is of ik_llama.cpp: by its folder, or by an option that llama.cpp lacks."""
    added: Mapping[str, str] = argument_data(FORK, FOLDER)["options"]["aliases"]
    names = {*added, *(f"--{name}" for name in added.values()), "--fit-margin"}
    return FORK_FOLDER in command.words[0] or any(
        word.partition("=")[0] in names for word in command.words
    )


def _of_fork(reading: Reading, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a command of ik_llama.cpp as llama.cpp's, and the limit that all have."""
    reading.limits.append(Limit(key="ik_llama.cpp", why=FORK_LIMIT))
    reading.assumed.append("a server of ik_llama.cpp, a fork of llama.cpp, by its options")
    found = {name: one for name, one in values.items() if name != "fit-margin"}
    if "fit-margin" in values:
        found["fit-target"] = values["fit-margin"]
    latents = found.pop("mla-use", LATENTS_ALONE)
    if latents not in (2, LATENTS_ALONE):
        reading.limits.append(Limit(key=f"--mla-use={latents}", why=MLA_LIMIT, could="more"))
    # --fit is on, and layers are on GPUs, only where that is asked for
    return {"fit": "off", **({} if "fit" in found else {"n-gpu-layers": 0}), **found}


def _program(command: Command) -> tuple[str, tuple[str, ...]]:
    """The program and its words: `llama serve` is llama-server, `llama cli` is llama-cli."""
    name, rest = command.program.removesuffix(".exe"), command.words[1:]
    return (PARTS[rest[0]], rest[1:]) if name == "llama" else (name, rest)


def _elsewhere(program: str, word: str) -> str:
    """The sentence for an option that only other programs of llama.cpp take; empty where none does.

    common/arg.cpp common_params_parser_init leaves out what `set_examples` gives to others.
    """
    written = word.partition("=")[0].replace("_", "-")
    for name, spans in release_lock(TABLE).arguments.items():
        flags = {f"--{name}", *(flag for span in spans for flag in span.get("flags", ()))}
        programs = [span["programs"] for span in spans if "programs" in span][-1:]
        if written in flags and any(programs):
            others = ", ".join(programs[0])
            return f"{written} is an option of llama.cpp's {others}, which {program} does not take"
    return ""


def _with_plain_flash(words: tuple[str, ...]) -> list[str]:
    """The words; -fa without a value, as in builds before b6325, means that it is on."""
    result = list(words)
    for index in reversed(range(len(words))):
        value = words[index + 1] if index + 1 < len(words) else "-"
        if words[index] in ("-fa", "--flash-attn") and value.startswith("-"):
            result.insert(index + 1, "on")
    return result


def _variables(reading: Reading, environment: Mapping[str, str]) -> dict[str, Any]:
    """The options that environment variables set; an option of the command wins over them."""
    known: Mapping[str, str] = argument_data("arguments", FOLDER)["environment"]
    flags = option_syntax("arguments", FOLDER).flags
    given: dict[str, Any] = {}
    for variable, text in environment.items():
        positive = variable.replace(f"{VARIABLE}NO_", VARIABLE)
        name = known.get(variable) or (known.get(positive) if positive != variable else None)
        if name is not None and name in flags:
            given[name] = variable in known and text.lower() in TRUE
        elif name is not None:
            given[name] = int(text) if text.lstrip("-").isdecimal() else text
        elif variable.startswith(VARIABLE):
            hint = nearest(variable, known) or "; leave it out"
            reading.problems.append(f"{variable} is not a variable of llama.cpp{hint}")
    return given


def _inference(reading: Reading, values: Mapping[str, Any]) -> Section:
    """The keys of the `inference` section."""
    section: Section = {
        key: whole_value(f"--{name}", values[name])
        for name, key in NUMBERS.items()
        if name in values and not (name == "ctx-size" and values[name] == 0)
    }
    if values.get("cpu-moe"):
        section["n_cpu_moe"] = ALL_EXPERTS
    for name in ("cache-type-k", "cache-type-v"):
        if name in values:
            section[name.replace("-", "_")] = str(values[name])
    flash = str(values.get("flash-attn", "auto")).lower()
    if flash not in ("auto", "-1"):
        section["flash_attn"] = _switch("--flash-attn", flash)
    if values.get("kv-offload") is False:
        section["no_kv_offload"] = True
    if values.get("swa-full"):
        section["swa_full"] = True
    for add in (_add_slots, _add_split, _add_layers, _add_placement):
        add(reading, values, section)
    _add_drafts(reading, values)
    return section


def _add_slots(reading: Reading, values: Mapping[str, Any], section: Section) -> None:
    """The slots of a server: four that share one cache where their number is not given."""
    count = values.get("parallel", -1 if reading.tool == SERVER else 1)
    if not (isinstance(count, int) and (count > 0 or count == -1)):
        raise InputError(f"--parallel={quoted(count)} must be a whole number of 1 or more")
    if count > 0:
        section["n_parallel"] = count
    else:
        reading.assumed.append("4 slots that share one KV cache (--parallel)")
    if "kv-unified" in values:
        section["kv_unified"] = bool(values["kv-unified"])
    separate = count > 1 and not section.get("kv_unified")
    if separate and "max_seq_len" not in section and _fits(values):
        reading.limits.append(Limit(key=f"--parallel={count}", why=EACH_SLOT, could="more"))


def _add_split(reading: Reading, values: Mapping[str, Any], section: Section) -> None:
    """How layers are distributed over the GPUs."""
    if "split-mode" in values:
        mode = str(values["split-mode"]).lower()
        if mode == "tensor":
            why = "every layer is sharded over the GPUs; whole layers for each are estimated"
            reading.limits.append(Limit(key="--split-mode=tensor", why=why))
        elif mode in ("none", "layer", "row"):
            section["split_mode"] = mode
        else:
            raise InputError(f"--split-mode={mode} must be none, layer, row or tensor")
    if "tensor-split" in values:
        parts = re.split(r"[,/]+", str(values["tensor-split"]))
        try:
            section["tensor_split"] = [float(part) for part in parts]
        except ValueError:
            text = quoted(values["tensor-split"])
            raise InputError(f"--tensor-split={text} must be numbers such as 3,1") from None
    if section.get("main_gpu") is not None and section.get("split_mode") != "none":
        del section["main_gpu"]  # it holds the intermediate results of `row` alone


def _add_layers(reading: Reading, values: Mapping[str, Any], section: Section) -> None:
    """The layers on the GPUs, and what llama-server lowers by itself."""
    layers = values.get("n-gpu-layers", "auto")
    if isinstance(layers, int) and not isinstance(layers, bool) and layers >= 0:
        section["n_gpu_layers"] = layers
    elif not (layers in ("auto", "all") or (isinstance(layers, int) and layers < 0)):
        raise InputError(f"--n-gpu-layers={quoted(layers)} must be a number, auto or all")
    fits = _fits(values)
    if "max_seq_len" not in section:
        most = ", or what fits" if fits else ""
        reading.assumed.append(f"the model's whole context{most} (--ctx-size)")
    if layers not in ("auto", -1) and "n_gpu_layers" not in section:
        section["n_gpu_layers"] = ALL_LAYERS
    if not fits:
        section["fit"] = False
    if fits and "fit-target" in values:  # of several GPUs the first one's
        first = str(values["fit-target"]).partition(",")[0]
        section["fit_target"] = whole_value(
            "--fit-target", int(first) if first.isdecimal() else first
        )
    if fits and "fit-ctx" in values:
        section["fit_ctx"] = whole_value("--fit-ctx", values["fit-ctx"])


def _add_placement(reading: Reading, values: Mapping[str, Any], section: Section) -> None:
    """Tensors that a pattern puts elsewhere, and a run without GPUs."""
    pattern = values.get("override-tensor")
    if pattern is not None:
        pattern = ",".join(pattern) if isinstance(pattern, list) else pattern
        targets = {part.rpartition("=")[2] for part in str(pattern).split(",")}
        if all(DEVICE.fullmatch(one) for one in targets):
            section["override_tensor"] = str(pattern)
        else:
            why = "tensors whose names match are placed elsewhere; they are estimated in place"
            reading.limits.append(Limit(key=f"--override-tensor={pattern}", why=why))
    if "device" in values and values["device"] in (None, "none"):
        section |= {"n_gpu_layers": 0, "no_kv_offload": True}
        why = "nothing runs on a GPU; buffers for products of the host's weights are estimated"
        reading.limits.append(Limit(key="--device=none", why=why, could="less"))


def _add_drafts(reading: Reading, values: Mapping[str, Any]) -> None:
    kinds = str(values.get("spec-type") or "none")
    if any(kind.startswith("draft") for kind in kinds.split(",")):
        why = "the draft's weights and cache are not counted"
        reading.limits.append(Limit(key=f"--spec-type={kinds}", why=why, could="more"))


def _gpus(values: Mapping[str, Any], command: Command) -> int | None:
    """The GPUs that the command says: those of -dev, the shares of -ts, or the launcher's."""
    devices = values.get("device")
    if devices not in (None, "none"):
        return len([one for one in str(devices).split(",") if one.strip()])
    if "tensor-split" in values and command.num_gpus is None:
        return len(re.split(r"[,/]+", str(values["tensor-split"])))
    return command.num_gpus


def _fits(values: Mapping[str, Any]) -> bool:
    """Whether llama.cpp lowers options that are not given until they fit."""
    return _switch("--fit", str(values.get("fit", "on")).lower())


def _switch(option: str, text: str) -> bool:
    if text in TRUE or text in FALSE:
        return text in TRUE
    raise InputError(f"{option}={quoted(text)} must be on, off or auto")
