"""Writes a server as the command that starts it.

A run of another server is moved: the keys that both have are kept, but for those whose meaning
differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from ...core.errors import quoted
from ...core.models import RunFile
from ...core.resolve import resolve
from ...core.resolved_run import ResolvedRun
from ...core.runfile import given_keys
from ...core.serving_result import PLACEHOLDER
from ...serving import server
from ..writing.read_back import read_back
from ..writing.texts import command_text
from ..writing.unsaid import unsaid_sentences
from ..writing.written import Written

# Keys whose meaning differs between servers: vLLM's share is of the whole card, SGLang's is of
# weights and cache alone.
OWN = ("engine_version", "engine_generation", "gpu_memory_utilization", "attention")


def write_vllm(file: RunFile, resolved: ResolvedRun) -> Written:
    """`vllm serve`."""
    return _write("vllm", file, resolved)


def write_sglang(file: RunFile, resolved: ResolvedRun) -> Written:
    """`python -m sglang.launch_server`."""
    return _write("sglang", file, resolved)


def write_tgi(file: RunFile, resolved: ResolvedRun) -> Written:
    """`text-generation-launcher`."""
    return _write("tgi", file, resolved)


def write_tensorrt_llm(file: RunFile, resolved: ResolvedRun) -> Written:
    """`trtllm-serve`, with the options that have no flag in a file beside it."""
    from ...serving.tensorrt_llm.command import FILE, extra_options

    moved, _ = moved_to("tensorrt_llm", file)
    lines = extra_options(resolve(moved, headers=False).run)
    return _write("tensorrt_llm", file, resolved, {FILE: "\n".join(lines) + "\n"} if lines else {})


def write_llamacpp(file: RunFile, resolved: ResolvedRun) -> Written:
    """`llama-server`."""
    return _write("llamacpp", file, resolved)


def _write(
    name: str, file: RunFile, resolved: ResolvedRun, beside: Mapping[str, str] | None = None
) -> Written:
    """The command of a server; beside: the files that it names."""
    moved, dropped = moved_to(name, file)
    if resolved.engine.name != name:
        resolved = resolve(moved, headers=False)
    assert resolved.engine.serve is not None
    served = resolved.engine.serve(resolved.run)
    address = resolved.model.address
    text = command_text([address if one == PLACEHOLDER else one for one in served.command])
    title = resolved.engine.title
    data = read_back("script", text, beside)
    unsaid = unsaid_sentences(title, moved, resolved, data) if data else ()
    return Written(
        text=text,
        notes=tuple(_notes(resolved)),
        beside=beside or {},
        unsaid=(*(f"{key}: {title} has no key of this meaning" for key in dropped), *unsaid),
    )


def _notes(resolved: ResolvedRun) -> Iterator[str]:
    """On which GPUs the command runs, as far as the run says it."""
    hardware = resolved.hardware
    count = f"{hardware.num_gpus} × " if hardware.num_gpus > 1 else ""
    if hardware.card:
        yield f"on {count}{hardware.card}"


def moved_to(name: str, file: RunFile) -> tuple[RunFile, list[str]]:
    """A run file of another server, and `key=value` of what was left out."""
    assert file.inference is not None
    if (file.inference.engine or "vllm") == name:
        return file, []
    known = server(name).options
    given = given_keys(file.inference)
    given.pop("engine", None)
    lost = [key for key in given if key in OWN or key not in known]
    kept = dict.fromkeys(lost)
    moved = replace(file, inference=replace(file.inference, engine=name, **kept))
    return moved, [f"inference.{key}={quoted(given[key])}" for key in lost]
