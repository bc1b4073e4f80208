"""Images of the profile run: V1 sends a step's worth of the largest images through the tower.

They stay on the GPU with the tower's outputs while the language model runs (vllm 0.11.0
vllm/v1/worker/gpu_model_runner.py profile_run). Logs of Gemma 3 and Llama 4 at 0.19.0 agree within
0.02 GiB. The size of the largest image and its number of patches depend on the model:
vllm/model_executor/models, get_image_size_with_most_features.

Legend: p patches, w width of the tower, f its feed-forward.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from ...ledger.num import ceil_div
from ...ledger.source import code
from ...models.arch.arch import Arch
from ...models.arch.blocks import Weight
from ...run.run import Run
from .parts import SourcedBytes, part, step_sequences, step_tokens
from .versions import v1, version

PROFILE_SOURCE = code(
    "vllm 0.11.0 vllm/v1/worker/gpu_model_runner.py profile_run, "
    "vllm/v1/worker/utils.py MultiModalBudget"
)
# Versions that copy each output into as many rows as the budget has.
PADDED = ((0, 11, 0), (0, 13, 0))
QWEN_TOKENS, QWEN_MERGED = 16384, 4  # max_pixels of their processors; patches of a token
GEMMA3_SIDE, GEMMA3_AROUND = 896, 4  # tokens around an image
LLAMA4_SIDE, LLAMA4_TILES, LLAMA4_TOKENS = 336, 17, 144
PIXTRAL_SIDES = {14: 1540, 16: 1024}  # by the size of a patch


class LargestImage(Struct, frozen=True):
    """The largest image of a model.

    - `tokens`: what it takes of a step's token budget
    - `rows`: rows that the language model reads
    - `patches`: patches that the tower reads
    - `elements`: elements of the processor's output
    """

    tokens: int
    rows: int
    patches: int
    elements: int


def largest_image(arch: Arch) -> LargestImage | None:
    """The largest image of a model; None without a tower, or if its tower is not modelled."""
    tower = {weight.name.rpartition("model.")[2]: weight for weight in arch.tower}
    shape = [size for _, size in _first_weight(arch, "patch").dims] if arch.tower else []
    if "visual.patch_embed.proj.weight" in tower:
        patches = QWEN_TOKENS * QWEN_MERGED
        outputs = 1 + sum("deepstack" in name and name.endswith("fc2.weight") for name in tower)
        elements = patches * shape[1] * shape[2] * shape[3] * shape[4]
        return LargestImage(QWEN_TOKENS, QWEN_TOKENS * outputs, patches, elements)
    if arch.family.startswith("llama4") and arch.tower:
        tile = (LLAMA4_SIDE // 14) ** 2 + 1
        rows = LLAMA4_TILES * LLAMA4_TOKENS
        return LargestImage(rows, rows, LLAMA4_TILES * tile, LLAMA4_TILES * 3 * LLAMA4_SIDE**2)
    if arch.family.startswith("gemma3") and len(shape) == 4:
        patches = (GEMMA3_SIDE // shape[2]) ** 2
        return LargestImage(256 + GEMMA3_AROUND, 256, patches, 3 * GEMMA3_SIDE**2)
    if "vision_tower.patch_conv.weight" in tower:
        if shape[2] not in PIXTRAL_SIDES:
            return None
        side = PIXTRAL_SIDES[shape[2]]
        merged = 2 if any("patch_merger" in name for name in tower) else 1
        grid = side // (shape[2] * merged)
        return LargestImage(grid * (grid + 1), grid**2, (side // shape[2]) ** 2, 3 * side**2)
    return None


def num_images(run: Run) -> int:
    """Images of one profile step; 0 if none are modelled."""
    image, options = largest_image(run.arch), run.options
    if image is None or not v1(run):
        return 0
    per_sequence = max(1, int(options["max_seq_len"]) // image.tokens)
    allowed = (options["limit_mm_per_prompt"] or {}).get("image")
    if allowed is not None:
        per_sequence = min(per_sequence, allowed)
    most = step_sequences(run) * per_sequence
    return max(1, min(step_tokens(run) // image.tokens, most))


def image_parts(run: Run, size: int) -> Iterator[SourcedBytes]:
    """Images and tower outputs that stay while the language model runs.

    `size`: bytes of an element.
    """
    image, count = largest_image(run.arch), num_images(run)
    if image is None or not count:
        return
    since, until = PADDED
    padded = since <= version(run) < until
    rows = max(image.rows, image.tokens, step_tokens(run)) if padded else image.rows
    yield _pictures(image, count, size)
    outputs = ("images", count), ("rows", rows), run.arch.hidden, ("bytes", size)
    yield part("outputs of the vision tower", PROFILE_SOURCE, *outputs)


def _pictures(image: LargestImage, count: int, size: int) -> SourcedBytes:
    elements = ("images", count), ("elements", image.elements), ("bytes", size)
    return part(f"images: {count} of the largest", PROFILE_SOURCE, *elements)


def tower_parts(run: Run, size: int, ranks: int) -> tuple[SourcedBytes, ...]:
    """The tower's peak, in a feed-forward: 2w + 2f elements a patch, 2w + 3f if it is gated.

    With mm_encoder_tp_mode=data every rank has the whole tower and a part of the images
    (vllm 0.33.0 vllm/model_executor/models/vision.py run_dp_sharded_vision_model).
    """
    image, count = largest_image(run.arch), num_images(run)
    if image is None or not count:
        return ()
    pictures = _pictures(image, count, size)
    if run.options["mm_encoder_tp_mode"] == "data":
        count, ranks = int(ceil_div(count, ranks)), 1
    inner = _first_weight(run.arch, "fc1.weight", "gate_proj", "w1.weight")
    (_, ffn), (_, width) = inner.dims[0], inner.dims[-1]
    copies = 3 if "gate" in inner.name or "w1" in inner.name else 2
    patch_elements = 2 * width + copies * int(ceil_div(ffn, ranks))
    patches = ("images", count), ("patches", image.patches), patch_elements, ("bytes", size)
    return (pictures, part("tower: activations", PROFILE_SOURCE, *patches))


def _first_weight(arch: Arch, *words: str) -> Weight:
    """The tower's first weight whose name contains one of the words."""
    return next(weight for weight in arch.tower if any(word in weight.name for word in words))
