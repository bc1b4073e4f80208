"""What a written file does not say: the differences between a run and the one that is read back by
the reader of the file's format.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from msgspec.structs import replace

from ...models.arch.adapters import Adapter
from ...run.recompute import RecomputeRule
from ...run.run import Run
from ...runfile.config import RunFile
from ...runfile.keys.keys import LORA, key_row, run_fields
from ...runfile.read import as_dict, parse
from ...runfile.resolve.resolve import resolve
from ...runfile.resolve.resolve_training import AXES as MODEL_AXES
from ...runfile.resolve.resolved_run import ResolvedRun
from ...runfile.text.errors import InputError, quoted
from ...runfile.text.text_data import parse_text
from ..program_section import with_program
from ..reading.named_files import NamedFiles
from ..reading.tools import read_command, read_data
from ..shell.read import main_command, read_script

SCRIPT = "script"  # a text that a shell reads; others are files of a tool
QUANTIZED = "training.quantization="  # what a key needs that counts only under a quantized base
QUESTION = ("batch_size", "prompt_len", "new_tokens")  # what a user asks of a server
FUSED = {"", "fused"}
AS_ITS_TOOL = ("saving", "loading", "load_dtype")  # where a run does not say them
AXES = {"dp": "data_parallel_size", **MODEL_AXES}
# Keys without which a file describes another run; it is refused then.
ANOTHER_RUN = (
    *("model.name", "engine.type", "inference.engine", "training.lora", "training.quantization"),
    *(f"parallelism.{key}" for key in AXES.values()),
)


def read_back(
    kind: str, text: str, beside: Mapping[str, str] | None = None
) -> dict[str, Any] | None:
    """The sections of a run file that a text means; None where its tool has no reader.

    beside: the files that it names; no others can be read
    """
    files = NamedFiles(None, beside or {})
    try:
        if kind == SCRIPT:
            return read_command(main_command(read_script(text, files))).run
        ending = ".json" if text.startswith("{") else ".yaml"
        reading = read_data(parse_text(text, ending, "the file"), files)
    except ModuleNotFoundError:
        return None
    return None if reading is None else reading.run


def unsaid_sentences(
    title: str, file: RunFile, resolved: ResolvedRun, data: Mapping[str, Any]
) -> tuple[str, ...]:
    """One sentence for each key of a run that differs in the run read back from a file.

    title: of the tool whose file it is; data: sections of the run file that was read back
    """
    back_file = read_sections(title, file, data)
    back = _resolved(title, back_file)
    if same_server(resolved, back):
        return ()
    own, other = as_dict(file), as_dict(back_file)
    found: dict[str, str] = {}
    for key, one, two in _fields(resolved, back):
        ours, theirs = _shown(own, key, one), _shown(other, key, two)
        if key in ANOTHER_RUN:
            raise _refusal(title, InputError(f"{key}={ours} is {theirs or 'none'} there"))
        found.setdefault(key, f"{key}{ours and f'={ours}'}: {title} has {theirs or 'its default'}")
    return tuple(found.values())


def same_server(one: ResolvedRun, two: ResolvedRun) -> bool:
    """Whether two runs are the same server, byte by byte, in whatever words they say it."""
    if one.engine.name != two.engine.name or one.engine.serve is None:
        return False
    facts = [_server_facts(resolved) for resolved in (one, two)]
    return one.run.mesh == two.run.mesh and facts[0] == facts[1]


def _server_facts(resolved: ResolvedRun) -> tuple[Any, ...]:
    assert resolved.engine.serve is not None
    served = resolved.engine.serve(resolved.run)
    memory = tuple((item.figure, item.bytes, item.place) for item in served.items)
    return memory, served.tokens, served.max_seq_len, served.most_sequences


def program_keys(file: RunFile, resolved: ResolvedRun, data: Mapping[str, Any]) -> tuple[str, ...]:
    """`key=value` for each key that a file leaves to the program that it configures."""
    back_file = read_sections("the program", file, data)
    back, own = _resolved("the program", back_file), as_dict(file)
    keys = {key: _shown(own, key, one) for key, one, _ in _fields(resolved, back)}
    return tuple(f"{key}={value}" for key, value in keys.items() if value)


def read_sections(title: str, file: RunFile, data: Mapping[str, Any]) -> RunFile:
    """The run file of sections that were read back, on the hardware of the run."""
    own = as_dict(file)
    given = {name: values for name, values in data.items() if name != "hardware"}
    if "name" in (given.get("model") or {}):  # the same model, by the name that its tool takes
        del given["model"]
    sections = {name: own[name] for name in ("model", "hardware") if name in own}
    try:
        return parse({**sections, **given}, translate=with_program)
    except InputError as error:
        raise _refusal(title, error) from None


def _resolved(title: str, file: RunFile) -> ResolvedRun:
    try:
        return resolve(file, headers=False)
    except InputError as error:
        raise _refusal(title, error) from None


def _refusal(title: str, error: InputError) -> InputError:
    return InputError(
        f"the run cannot be written for {title}: {problem}" for problem in error.problems
    )


def _shown(sections: Mapping[str, Any], key: str, value: Any) -> str:
    """The value of a key as the run file has it, else that of the run; empty where it has none."""
    found: Any = sections
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    shown = value if found is None else found
    if key.endswith("_dtype") and isinstance(shown, int):
        return f"{shown} bits" if shown else ""
    plain = isinstance(shown, str | int | float | bool | list | Mapping)
    return quoted(shown) if plain else ""


def _fields(resolved: ResolvedRun, back: ResolvedRun) -> Iterator[tuple[str, Any, Any]]:
    """Key, own value, other value of each field that differs."""
    one, two = resolved.run, back.run
    if resolved.engine.name != back.engine.name:
        key = "engine.type" if one.new_tokens is None else "inference.engine"
        yield key, resolved.engine.name, back.engine.name
    if one.arch != two.arch and one.disable_dropout == two.disable_dropout:
        yield "model.name", resolved.model.title, back.model.title
    for axis, key in AXES.items():
        if (own := int(getattr(one.mesh, axis))) != (other := int(getattr(two.mesh, axis))):
            yield f"parallelism.{key}", own, other
    sections = ("training", "parallelism") if one.new_tokens is None else ("parallelism",)
    for key, field in chain.from_iterable(map(run_fields, sections)):
        own, other = getattr(one, field), getattr(two, field)
        if own == other or _without_effect(one, two, key, field):
            continue
        if field == "adapter" and own is not None and other is not None:
            yield from _adapters(own, other)
        else:
            yield key, own, other
    if resolved.allocator != back.allocator:
        yield "training.pytorch_alloc_conf", resolved.allocator, back.allocator
    if resolved.engine.name == back.engine.name:
        yield from _options(resolved, back)


def _adapters(one: Adapter, two: Adapter) -> Iterator[tuple[str, Any, Any]]:
    """Keys of training.lora in which two runs differ."""
    for key, field in run_fields(LORA):
        own, other = getattr(one, field), getattr(two, field)
        if own != other:
            yield key, own, other


def _without_effect(one: Run, two: Run, key: str, field: str) -> bool:
    """Whether a field has no effect on either run, or follows from another one that differs."""
    if any(setting.startswith(QUANTIZED) for setting in key_row(key).needs):
        return one.quantization is None and two.quantization is None
    if field in AS_ITS_TOOL and not getattr(one, field):
        return True
    if field == "rule":  # the same policy, in the words of a framework or in those of all
        return _plain_rule(one) == _plain_rule(two)
    if field == "implementation":  # DeepSpeed's own optimizer is the fused one
        return "zero_stage" in one.options and {one.implementation, two.implementation} <= FUSED
    return field == "loss_chunk" and one.loss != two.loss


def _plain_rule(run: Run) -> RecomputeRule:
    """The details of recompute; Megatron recomputes core attention where no module is named."""
    modules = () if run.rule.modules == ("core_attn",) else run.rule.modules
    return replace(run.rule, framework="", modules=modules)


def _options(resolved: ResolvedRun, back: ResolvedRun) -> Iterator[tuple[str, Any, Any]]:
    """Options of the engine in which two runs differ."""
    section = "engine" if resolved.run.new_tokens is None else "inference"
    one, two = resolved.run.options, back.run.options
    for key in dict.fromkeys((*one, *two)):
        if section == "inference" and (key in QUESTION or one.get(key) is None):
            continue  # a server's command may state a default
        own, other = one.get(key), two.get(key)
        if own != other and not (key == "sync_each_batch" and resolved.run.micro_batches == 1):
            yield f"{section}.{key}", own, other
