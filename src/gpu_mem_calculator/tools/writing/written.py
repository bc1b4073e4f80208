"""A run as a file of another tool, and the launcher that starts a script on every GPU of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from ...runfile.resolve.resolved_run import ResolvedRun

COMMENT = "# "


class Written(Struct, frozen=True, kw_only=True):
    """A run as a file of another tool.

    - `text`: what the file contains, comments included
    - `filename`: its usual name; `start`: the command that uses it
    - `unsaid`: one sentence for each thing of the run that the file cannot say
    - `notes`: other sentences for the user, such as what the program itself must do
    - `commented`: whether start, notes and what is unsaid are comments in the text
    - `beside`: the texts of other files that it names, by their names
    """

    text: str
    filename: str = ""
    start: str = ""
    unsaid: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    commented: bool = False
    beside: Mapping[str, str] = {}


def comment_lines(sentences: Iterable[str]) -> str:
    """Sentences as comments, one on each line; an empty text where there are none."""
    return "".join(f"{COMMENT}{line}\n" for one in sentences for line in one.splitlines())


def launch_words(resolved: ResolvedRun) -> str:
    """python on one GPU, else torchrun."""
    hardware = resolved.hardware
    if hardware.num_gpus == 1:
        return "python"
    local = hardware.num_gpus // hardware.num_nodes
    if hardware.num_nodes == 1:
        return f"torchrun --nproc-per-node {local}"
    nodes = f"--nnodes {hardware.num_nodes} --nproc-per-node {local}"
    return f"torchrun {nodes} --rdzv-backend c10d --rdzv-endpoint HOST:29500"
