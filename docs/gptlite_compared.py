"""What gptlite.md compares with: the author's figures, and other ways to ask."""

from __future__ import annotations

import shlex

import gptlite_rows
from gptlite_rows import FOLDER, GIB, SMALL, rows
from gptlite_tables import off, table

ANSWER = FOLDER / "calculate.txt"
ASKED = (
    "gpu-mem-calc calculate --config configs/zero2_bf16.json --function "
    "gptlite:model_and_batch --set hardware.num_gpus=8 --set hardware.gpu=h200 --long"
)
WAYS = ("ddp_fp32", "zero2_bf16")  # the configurations that every way is asked about


def published() -> str:
    """The later post's figures beside these."""
    known = {one.name: one for one in gptlite_rows.memories()}
    lines = []
    for row in rows("published"):
        one = known.get(row.get("configuration", ""))
        if one is not None:
            lines.append(
                [
                    row["published"],
                    f"`{one.name}`",
                    f"{row['average_gb']:.2f}",
                    f"{one.held:.2f}",
                    f"{one.average:.2f}",
                    f"{row['most_gb']:.2f}",
                    f"{one.measured:.2f}",
                ]
            )
    return table(
        [
            "there",
            "here",
            "average there",
            "between steps here",
            "average here",
            "peak there",
            "peak here",
        ],
        lines,
        words=2,
    )


def apart() -> str:
    """By how much they differ, as far as numbers tell."""
    known = {one.name: one for one in gptlite_rows.memories()}
    pairs = [
        (row, known[row["configuration"]])
        for row in rows("published")
        if row.get("configuration") in known
    ]
    held = [one.held - row["average_gb"] for row, one in pairs]
    peak = [one.measured - row["most_gb"] for row, one in pairs]
    return (
        f"Ours minus theirs: {min(held):+.2f} to {max(held):+.2f} between steps, "
        f"{min(peak):+.2f} to {max(peak):+.2f} at the peak."
    )


def published_pipelines() -> str:
    """The same for pipelines."""
    ours = {
        row["stages"]: row
        for row in rows("measured_pipelines")
        if row["configuration"] == "pipeline_fp32"
    }
    lines = []
    for row in rows("published"):
        if "stages" in row:
            one = ours.get(row["stages"])
            here = [f"{max(one[key]) / GIB:.2f}" if one else "-" for key in ("average", "measured")]
            lines.append(
                [
                    str(row["stages"]),
                    f"{row['average_gb']:.1f}",
                    here[0],
                    f"{row['most_gb']:.1f}",
                    here[1],
                ]
            )
    return table(
        [
            "stages",
            "average there",
            "largest average of a rank here",
            "peak there",
            "largest peak of a rank here",
        ],
        lines,
    )


def ways() -> str:
    """The same two runs, asked about in every way."""
    known = {one.name: one for one in gptlite_rows.memories()}
    found = [known[name] for name in WAYS if name in known]
    deepspeed = {"zero2_bf16": gptlite_rows.deepspeeds(2)}
    lines = [
        [
            "DeepSpeed's table (`--run_memory_estimation_only`)",
            "parameters",
            *(
                off(deepspeed[one.name], one.measured) if one.name in deepspeed else "none"
                for one in found
            ),
        ],
        [
            "`calculate` from plain numbers",
            "sizes of a transformer",
            *(off(gptlite_rows.plain(one.name), one.measured) for one in found),
        ],
        [
            "`calculate --function`",
            "the module, torch",
            *(off(one.estimated, one.measured) for one in found),
        ],
        [
            "`trace --function`",
            "the module, torch, DeepSpeed",
            *(off(one.traced, one.measured) for one in found),
        ],
        [
            "`measure --function`",
            "the same and a GPU",
            *(f"**{one.measured:.2f}**" for one in found),
        ],
    ]
    return table(["way", "needs", *(f"`{one.name}`" for one in found)], lines, words=2)


def deepspeed() -> str:
    """What DeepSpeed's own estimator says, and what it leaves out."""
    two, three = (
        [gptlite_rows.deepspeeds(stage, offload=cpu) for cpu in (False, True)] for stage in (2, 3)
    )
    return (
        f"DeepSpeed's own estimator says {two[0]:.3f} GiB for ZeRO-2 ({two[1]:.3f} with the "
        f"optimizer offloaded) and {three[0]:.3f} for ZeRO-3 ({three[1]:.3f} with everything "
        "offloaded). It counts parameters, gradients and optimizer: no activations, and not "
        f"the {SMALL**2} causal masks, {gptlite_rows.masks():.2f} GiB in fp32."
    )


def plain() -> str:
    """Why plain numbers miss."""
    found = next(one for one in gptlite_rows.memories() if one.name == WAYS[0])
    missing = found.measured - gptlite_rows.plain(WAYS[0])
    return (
        f"Plain numbers are the sizes of an ordinary transformer with eager attention. "
        f"In `{WAYS[0]}` they miss {missing:.2f} GiB, of which the masks are "
        f"{gptlite_rows.masks():.2f}; the rest is other code: this model "
        "runs its heads one by one and has some biases."
    )


def answer() -> str:
    """The part of a real answer that says who holds what."""
    shown = ANSWER.read_text("utf-8").partition("at the peak")[2].partition("\n\nGiB per node")[0]
    words = shlex.split(ASKED)
    cut = words.index("--set")
    command = f"$ {' '.join(words[:cut])} \\\n    {' '.join(words[cut:])}"
    return f"```console\n{command}\n...\nat the peak{shown}\n```"
