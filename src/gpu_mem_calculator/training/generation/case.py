"""The passes of a generation and their instants, of a server or of a policy that is trained."""

from __future__ import annotations

from msgspec.structs import replace

from ...pytorch.modelling.huggingface.setting import BlockSetting
from ...run.run import Run
from . import decode_steps, model_inputs
from .decode_steps import CacheMode, layer_kinds
from .entries import GenerationCase
from .instants import generation_instants, unrolled_instants
from .token_choice import TokenChoice


def build_case(run: Run, how: BlockSetting, mode: CacheMode, choice: TokenChoice) -> GenerationCase:
    """The generation of `run.batch` sequences, each beam and each answer one; `run.seq` is the
    prompt's tokens.
    """
    found = layer_kinds(run.arch, windows=not how.quirks.buffer_windows)
    mode = replace(mode, whole=model_inputs.reads_whole_cache(run, found))
    walk = decode_steps.replayed_passes if run.unrolled else decode_steps.rolled_passes
    passes = [walk(kind, run.seq, run.generated, mode) for kind in found]
    beams = mode.beams > 1
    if run.unrolled:
        table = unrolled_instants(found, int(run.generated), beams=beams)
    else:
        prompts = [each[decode_steps.PROMPT] for each in passes]
        first = model_inputs.inputs_before_layers(run, how, found, prompts)
        table = generation_instants(found, run.generated, first, beams=beams)
    return GenerationCase(
        run=run, how=how, manner=mode, found=found, passes=passes, table=table, choice=choice
    )
