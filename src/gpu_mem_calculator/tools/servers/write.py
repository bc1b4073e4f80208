"""Writes a server as the command that starts it.

A run of another server is moved: the keys that both have are kept. Where the meaning of one
differs, a sentence says how.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from ...run.served import PLACEHOLDER, checkpoint_note
from ...runfile.config import RunFile
from ...runfile.read import given_keys
from ...runfile.resolve.resolve import resolve
from ...runfile.resolve.resolved_run import ResolvedRun
from ...runfile.text.errors import quoted
from ...serving import USUAL, server, spellings
from ..translation.arguments import tables
from ..writing.texts import command_text
from ..writing.unsaid import read_back, unsaid_sentences
from ..writing.written import Written

OWN = ("engine_version", "engine_generation")  # of one server
REQUEST, CONTEXT = "max_total_tokens", "max_seq_len"
# What a key is of, by server, for the keys that do not mean the same in all of them.
MEANINGS: Mapping[str, Mapping[str, str]] = tables(__file__)


def write_tensorrt_llm(file: RunFile, resolved: ResolvedRun) -> Written:
    """`trtllm-serve`, with the options that have no flag in a file beside it."""
    from ...serving.tensorrt_llm.command import FILE, extra_options

    moved = moved_to("tensorrt_llm", file)[0]
    lines = extra_options(resolve(moved, headers=False).run)
    return _write("tensorrt_llm", file, resolved, {FILE: "\n".join(lines) + "\n"} if lines else {})


def _write(
    name: str, file: RunFile, resolved: ResolvedRun, beside: Mapping[str, str] | None = None
) -> Written:
    """The command of a server; beside: the files that it names."""
    moved, dropped, differing = moved_to(name, file)
    if resolved.engine.name != name:
        resolved = resolve(moved, headers=False)
    assert resolved.engine.serve is not None
    served = resolved.engine.serve(resolved.run)
    address = resolved.model.address
    text = command_text([address if one == PLACEHOLDER else one for one in served.command])
    title = resolved.engine.title
    data = read_back("script", text, beside)
    unsaid = unsaid_sentences(title, moved, resolved, data) if data else ()
    note = checkpoint_note(text)
    if note:  # the checkpoint says its format
        unsaid = tuple(one for one in unsaid if not one.startswith("inference.quantization="))
    return Written(
        text=text,
        notes=(*_notes(resolved), *filter(None, [note]), *differing),
        beside=beside or {},
        unsaid=(*dropped, *unsaid),
    )


write_vllm, write_sglang, write_tgi, write_llamacpp = (
    partial(_write, name) for name in ("vllm", "sglang", "tgi", "llamacpp")
)


def _notes(resolved: ResolvedRun) -> Iterator[str]:
    """On which GPUs the command runs, as far as the run says it."""
    hardware = resolved.hardware
    count = f"{hardware.num_gpus} × " if hardware.num_gpus > 1 else ""
    if hardware.card:
        yield f"on {count}{hardware.card}"


def moved_to(name: str, file: RunFile) -> tuple[RunFile, list[str], list[str]]:
    """A run file of another server; a sentence on each key that is left out; one on each that is
    kept and has another meaning there.
    """
    assert file.inference is not None
    before = spellings()[file.inference.engine or USUAL]
    if before == name:
        return file, [], []
    given = given_keys(file.inference)
    given.pop("engine", None)
    changes: dict[str, Any] = {"engine": name}
    if before == "tgi" and REQUEST in given:  # TGI's two names of one limit
        changes |= {REQUEST: None, CONTEXT: given.pop(REQUEST)}
    dropped: list[str] = []
    differing: list[str] = []
    for key, value in given.items():
        why = _difference(key, before, name)
        left_out = key in OWN or key not in server(name).options or (key == REQUEST and why)
        if left_out:
            changes[key] = None
        if why:
            (dropped if left_out else differing).append(f"inference.{key}={quoted(value)}: {why}")
    return replace(file, inference=replace(file.inference, **changes)), dropped, differing


def _difference(key: str, before: str, name: str) -> str:
    """How a key differs between two servers; empty where it does not."""
    old, new = server(before), server(name)
    if key in OWN:
        return f"of {old.title}, not of {new.title}"
    if key not in new.options:
        return f"{new.title} has no such key"
    if key not in MEANINGS:
        return ""
    was, now = (MEANINGS[key][one] for one in (before, name))
    if was == now:
        return ""
    return f"{now} in {new.title}, {was} in {old.title}"
