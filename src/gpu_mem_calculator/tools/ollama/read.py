"""Commands of Ollama and Modelfiles: the llama-server that Ollama starts for a model (Ollama
fb30760 llm/llama_server.go startLlamaServer, server/sched.go and server/routes.go).

A model is named as in `llama3.1:8b-instruct-q4_K_M` or `hf.co/OWNER/MODEL:TYPE`, or by a path.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ... import catalog
from ...catalog.model_names import spelled
from ...ledger.frameworks import OLLAMA
from ...runfile.text.errors import InputError, nearest
from ..llamacpp.model import add_named, projector_limit, sees_images
from ..llamacpp.model_file import DEFAULT, FileName, read_file_name, read_model_name
from ..reading.command import Command
from ..reading.keys import sort_keys
from ..reading.named_files import NamedFiles
from ..reading.option_values import whole_value
from ..reading.options import option_syntax, parse_options
from ..reading.reading import Limit, Reading, Section
from ..translation.arguments import argument_data, argument_table, tables
from .modelfile import Modelfile, parse_modelfile

FOLDER = Path(__file__).parent
HUBS = ("hf.co/", "huggingface.co/", "https://hf.co/", "https://huggingface.co/")
LENGTH, LEAST = "OLLAMA_CONTEXT_LENGTH", 4  # tokens of a request
TARGET = "LLAMA_ARG_FIT_TARGET"
VARIABLES = ("OLLAMA_", "LLAMA_ARG_FIT")
# Families that serve one request at a time (server/sched.go load), as transformers names them.
ONE_AT_A_TIME = tuple(tables(__file__)["one_at_a_time"])
WITH_EQUALS = ("--think", "--truncate")  # a value is only read after an equals sign
ELSEWHERE = "loads a model when it is asked for; check ollama run MODEL with the same variables"


def read_name(text: str) -> FileName:
    """The model and the quantization of a name, with the library's defaults."""
    for hub in HUBS:
        if text.lower().startswith(hub):
            return _of_hub(text[len(hub) :])
    name, _, tag = text.rpartition("/")[2].partition(":")
    if tag == "cloud" or tag.endswith("-cloud"):
        raise InputError(f"{text} runs in Ollama's cloud, and nothing is loaded here")
    library, key = argument_data("library", FOLDER), name.lower()
    size = library["latest"].get(key, "") if tag in ("", "latest") else tag
    if size and not any(one.isdecimal() for one in size):  # mistral:instruct
        size = "-".join([*filter(None, [library["latest"].get(key)]), size])
    found = read_model_name(f"{name}-{size}" if size else name)
    model = library["models"].get(found.model.lower(), found.model)
    kind = found.quantization or library["quantization"].get(key, DEFAULT)
    return FileName(model, kind, found.similar)


def named_file(text: str) -> FileName | None:
    """The model and the quantization of a GGUF file that is not here, or of a name that only
    Ollama has, such as qwen3:8b-q4_K_M; None where the text is another name.
    """
    hub = text.lower().startswith(HUBS) and (
        ":" in text.rpartition("/")[2] or "gguf" in text.lower()
    )
    if text.lower().endswith(".gguf"):
        found = read_file_name(text)
    elif hub or (":" in text and "/" not in text and "\\" not in text and spelled(text) is None):
        found = read_name(text)
    else:
        return None
    return found if found.is_known and found.quantization else None


def _of_hub(text: str) -> FileName:
    """A repository of GGUF files on the hub, with the type behind a colon."""
    repository, _, tag = text.partition(":")
    found = read_model_name(repository.rpartition("/")[2])
    kind = read_model_name(f"x-{tag}") if tag and tag != "latest" else found
    whole = FileName(found.model, kind.quantization or DEFAULT, kind.similar)
    return whole if whole.is_known else replace(whole, model=repository)


def read_command(command: Command) -> Reading:
    """What `ollama run MODEL` or `ollama create NAME -f Modelfile` means."""
    action = command.words[1] if len(command.words) > 1 else ""
    reading = Reading(tool=f"ollama {action}".strip(), version=OLLAMA.version)
    if action == "serve":
        raise InputError(f"ollama serve {ELSEWHERE}")
    if action not in ("run", "create"):
        hint = nearest(action, ("run", "create")) or "; ollama run MODEL and ollama create do"
        raise InputError(f"ollama {action}".strip() + f" loads no model{hint}")
    table = argument_table("arguments", FOLDER)
    words = [f"{word}=true" if word in WITH_EQUALS else word for word in command.words[2:]]
    parsed = parse_options(reading.tool, words, table, option_syntax("arguments", FOLDER))
    reading.problems += parsed.problems
    values = sort_keys(reading, table, parsed.values, "--")
    if action == "create":
        name = str(values.get("file") or "Modelfile")
        file = parse_modelfile(command.files.text(name, "--file"), name)
    else:
        if not parsed.positional:
            raise InputError("ollama run names no model; write it after run")
        file = Modelfile(base=parsed.positional[0])
    quantize = values.get("quantize")
    _add(reading, file, command, str(quantize) if quantize else "")
    return reading


def read_modelfile(text: str, files: NamedFiles, gpu_bytes: int | None = None) -> Reading:
    """What a Modelfile means; the default context depends on the memory of a GPU."""
    reading = Reading(tool="Modelfile", version=OLLAMA.version)
    command = Command(words=("ollama", "create"), files=files, gpu_bytes=gpu_bytes)
    _add(reading, parse_modelfile(text), command, "")
    return reading


def _add(reading: Reading, file: Modelfile, command: Command, quantize: str) -> None:
    """Add the model of a Modelfile, or of a name alone, and the server that Ollama starts."""
    reading.run["inference"] = {"engine": "ollama"}
    given = {name: _number(text) for name, text in file.parameters.items()}
    parameters = sort_keys(reading, argument_table("parameters", FOLDER), given, "PARAMETER ")
    variables = _variables(reading, command.environment)
    reading.keys |= dict.fromkeys(file.instructions, "free")
    reading.keys["FROM"] = "memory"
    _add_model(reading, file, command, quantize)
    _add_parts(reading, file)
    reading.run["inference"] |= _server(reading, parameters, variables, command)
    if command.num_gpus is not None:
        reading.run["hardware"] = {"num_gpus": command.num_gpus}


def _variables(reading: Reading, environment: Mapping[str, str]) -> dict[str, Any]:
    given = {
        name: _number(text)
        for name, text in environment.items()
        if name.startswith(VARIABLES) and text
    }
    return sort_keys(reading, argument_table("variables", FOLDER), given)


def _add_model(reading: Reading, file: Modelfile, command: Command, quantize: str) -> None:
    """The model of FROM: a file, a folder, or a name."""
    base = file.base
    is_path = base.startswith((".", "/", "~")) or base.lower().endswith(".gguf")
    if is_path and command.files.exists(base) and base.endswith(".gguf"):
        reading.run["model"] = {"name": str(command.files.path(base, "FROM"))}
        return
    found = read_file_name(base) if is_path else read_name(base)
    if not found.model or found.model.startswith("sha256-"):
        raise InputError(f"FROM {base}: the file is not here, and its name says no model")
    if quantize:
        found = FileName(found.model, quantize)
    elif not found.quantization:
        found = FileName(found.model, "F16")  # a checkpoint is converted to F16 (server/create.go)
    if not quantize:
        own = (_config(found.model).get("quantization_config") or {}).get("quant_method", "")
        kept = f"{own.upper()} with {found.quantization} beside" if own else found.quantization
        said = f"{base} is {found.model} in {kept}, by its name"
        reading.assumed.append(said)
    add_named(reading, found, f"FROM={base}")


def _add_parts(reading: Reading, file: Modelfile) -> None:
    """Limits for what is loaded beside the model."""
    for path in file.adapters:
        why = "an adapter's weights are not counted: rank x (inputs + outputs) of each matrix"
        reading.limits.append(Limit(key=f"ADAPTER={path}", why=why, could="more"))
    for path in file.drafts:
        why = "a draft model's weights and cache are not counted"
        reading.limits.append(Limit(key=f"DRAFT={path}", why=why, could="more"))
    model = str(reading.run["model"]["name"])
    if file.more_bases or sees_images(model):
        named = [*file.more_bases, file.base][0]
        reading.limits.append(projector_limit(f"FROM={named}", model))


def _server(
    reading: Reading, parameters: Mapping[str, Any], variables: Mapping[str, Any], command: Command
) -> Section:
    """The options of the server that Ollama starts; its release chooses what nobody says."""
    section: Section = {}
    slots = variables.get("OLLAMA_NUM_PARALLEL")
    config = _config(str(reading.run["model"]["name"]))
    one = config.get("model_type") in ONE_AT_A_TIME
    if one or slots:
        section["n_parallel"] = 1 if one else whole_value("OLLAMA_NUM_PARALLEL", slots)
    for name, context in (
        ("PARAMETER num_ctx", parameters.get("num_ctx")),
        (LENGTH, variables.get(LENGTH)),
    ):
        if context and "max_seq_len" not in section:
            tokens = max(whole_value(name, context), LEAST)
            trained = (config.get("text_config") or config).get("max_position_embeddings")
            tokens = min(tokens, trained) if isinstance(trained, int) else tokens
            section["max_seq_len"] = tokens * section.get("n_parallel", 1)
    if parameters.get("num_batch"):
        section["n_ubatch"] = whole_value("PARAMETER num_batch", parameters["num_batch"])
    kind = str(variables.get("OLLAMA_KV_CACHE_TYPE") or "").lower()
    if kind:
        section |= {"cache_type_k": kind, "cache_type_v": kind}
    if "OLLAMA_FLASH_ATTENTION" in variables:
        section["flash_attn"] = variables["OLLAMA_FLASH_ATTENTION"] not in (0, False)
    if parameters.get("main_gpu") is not None:
        main = whole_value("PARAMETER main_gpu", parameters["main_gpu"])
        section |= {"split_mode": "none", "main_gpu": main}
    layers = parameters.get("num_gpu", -1)
    if isinstance(layers, int) and layers >= 0:
        section["n_gpu_layers"] = layers
    if str(variables.get("LLAMA_ARG_FIT", "on")).lower() not in ("on", "1", "true"):
        section["fit"] = False
    if TARGET in variables:
        section["fit_target"] = whole_value(TARGET, variables[TARGET])
    return section


def _config(name: str) -> Mapping[str, Any]:
    """The config.json of the catalogue's model of this name; empty where there is none."""
    row = spelled(name)
    return catalog.row_config(row) if row is not None else {}


def _number(text: str) -> Any:
    lowered = text.strip().lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    return int(lowered) if lowered.removeprefix("-").isdecimal() and len(lowered) < 20 else text
