"""Pictures of the trial run: V1 sends as many of the largest through the tower as a step takes.

They stay on the GPU with what the tower makes of them while the language model runs (vllm 0.11.0
vllm/v1/worker/gpu_model_runner.py profile_run). Logs of Gemma 3 and Llama 4 at 0.19.0 agree within
0.02 GiB. How large the largest is, and into how many patches the tower cuts it, is a model's own:
vllm/model_executor/models, get_image_size_with_most_features.

Legend: p patches, w width of the tower, f its feed-forward.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from ...ledger.num import ceil_div
from ...ledger.source import code
from ...model.arch import Arch
from ...model.blocks import Weight
from ...run.run import Run
from .sampler import SourcedBytes
from .versions import v1, version

TRIAL = code("vllm 0.11.0 vllm/v1/worker/gpu_model_runner.py profile_run, "
             "vllm/v1/worker/utils.py MultiModalBudget")  # fmt: skip
PADDED = ((0, 11, 0), (0, 13, 0))  # each output is copied into as many rows as the budget has
QWEN_TOKENS, QWEN_MERGED = 16384, 4  # max_pixels of their processors; patches of a token
GEMMA3_SIDE, GEMMA3_AROUND = 896, 4  # marks and lines around a picture
LLAMA4_SIDE, LLAMA4_TILES, LLAMA4_TOKENS = 336, 17, 144
PIXTRAL_SIDES = {14: 1540, 16: 1024}  # by the size of a patch


class LargestImage(Struct, frozen=True):
    """The largest one."""

    tokens: int  # of a step's budget
    rows: int  # that the language model reads
    patches: int  # that the tower reads
    elements: int  # that the processor makes


def picture(arch: Arch) -> LargestImage | None:
    """The largest picture of a model; none where it sees nothing, or it is not known."""
    tower = {weight.name.rpartition("model.")[2]: weight for weight in arch.tower}
    shape = [size for _, size in _first(arch, "patch").dims] if arch.tower else []
    if "visual.patch_embed.proj.weight" in tower:
        patches = QWEN_TOKENS * QWEN_MERGED
        read = 1 + sum("deepstack" in name and name.endswith("fc2.weight") for name in tower)
        elements = patches * shape[1] * shape[2] * shape[3] * shape[4]
        return LargestImage(QWEN_TOKENS, QWEN_TOKENS * read, patches, elements)
    if arch.family.startswith("llama4") and arch.tower:
        tile = (LLAMA4_SIDE // 14) ** 2 + 1
        rows = LLAMA4_TILES * LLAMA4_TOKENS
        return LargestImage(rows, rows, LLAMA4_TILES * tile, LLAMA4_TILES * 3 * LLAMA4_SIDE**2)
    if arch.family.startswith("gemma3") and len(shape) == 4:
        patches = (GEMMA3_SIDE // shape[2]) ** 2
        return LargestImage(256 + GEMMA3_AROUND, 256, patches, 3 * GEMMA3_SIDE**2)
    if "vision_tower.patch_conv.weight" in tower:
        side = PIXTRAL_SIDES.get(shape[2], PIXTRAL_SIDES[14])
        merged = 2 if any("patch_merger" in name for name in tower) else 1
        grid = side // (shape[2] * merged)
        return LargestImage(grid * (grid + 1), grid**2, (side // shape[2]) ** 2, 3 * side**2)
    return None


def pictures(run: Run) -> int:
    """How many of them a step takes."""
    one, options = picture(run.arch), run.options
    if one is None or not v1(run):
        return 0
    fits = max(1, int(options["max_seq_len"]) // one.tokens)
    return max(1, min(_budget(run, one) // one.tokens, int(options["max_num_seqs"]) * fits))


def kept(run: Run, size: int) -> Iterator[SourcedBytes]:
    """What stays while the language model runs."""
    one, count = picture(run.arch), pictures(run)
    if one is None or not count:
        return
    since, until = PADDED
    rows = max(one.rows, _budget(run, one)) if since <= version(run) < until else one.rows
    yield f"pictures: {count} of the largest", count * one.elements * size, TRIAL
    yield "what the tower makes of them", count * rows * run.arch.hidden * size, TRIAL


def tower(run: Run, size: int, ranks: int) -> tuple[SourcedBytes, ...]:
    """The tower's own highest moment, in a feed-forward: 2w + 2f a patch, 3f where it is gated."""
    one, count = picture(run.arch), pictures(run)
    if one is None or not count:
        return ()
    inner = _first(run.arch, "fc1.weight", "gate_proj", "w1.weight")
    (_, wide), (_, width) = inner.dims[0], inner.dims[-1]
    copies = 3 if "gate" in inner.name or "w1" in inner.name else 2
    each = 2 * width + copies * int(ceil_div(wide, ranks))
    return (
        (f"pictures: {count} of the largest", count * one.elements * size, TRIAL),
        ("tower: activations", count * one.patches * each * size, TRIAL),
    )


def _budget(run: Run, one: LargestImage) -> int:
    return max(int(run.options["max_num_batched_tokens"]), one.tokens)


def _first(arch: Arch, *words: str) -> Weight:
    """The first of the tower's weights with one of the words in its name."""
    return next(weight for weight in arch.tower if any(word in weight.name for word in words))
