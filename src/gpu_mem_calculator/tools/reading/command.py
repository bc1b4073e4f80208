"""A command as a user would start it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from ...ledger.units import GIB, MIB
from ..releases.release import Release
from .card import NamedCard
from .named_files import NamedFiles
from .node_memory import NamedMemory
from .reading import Limit

VISIBLE = "CUDA_VISIBLE_DEVICES"
# Of MPS: what a client may take of each GPU, as in 0=10G,1=512MB.
MPS_LIMIT, MPS_SIZE = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", re.compile(r"\d+=(\d+)([MG])B?", re.I)


class Command(Struct, frozen=True, kw_only=True):
    """The words of a command after its launcher, and what the launcher says.

    - `words`: the program and its arguments: `("train.py", "--bf16", "true")`
    - `module`: whether the program is a module (`python -m`)
    - `environment`: variables that are set in front of it
    - `num_gpus`: of all nodes; None where nothing says it
    - `gpu_bytes`: memory of one GPU, on which some tools' defaults depend; None where not known
    - `accelerate`: the configuration of `accelerate launch`, its file and options together
    - `launcher`: torchrun, accelerate, deepspeed, ray, srun, mpirun, or empty
    - `release`: the one that the tag of its image says; None where none says any
    - `assumed`: a sentence for each thing that a launcher or a shell script leaves open
    - `card`: what its launcher or its file says of the card; None where they say nothing
    - `node`: what they say of a node's memory; None where they say nothing
    - `given_by`: where the number of GPUs stands, such as `nvidia.com/gpu: 2`
    - `name`: of the container, or the command itself, where there are several
    - `slots`: commands that run at the same time on one machine have a slot in common
    - `devices`: the GPUs that it uses; empty where it uses the first ones
    - `detached`: whether its launcher leaves it in the background, as `docker run -d` does
    - `limits`: what of its launcher or its file is not modelled
    - `unsaid`: a sentence on words that its script takes after its name and that are not given
    """

    words: tuple[str, ...]
    module: bool = False
    environment: Mapping[str, str] = {}
    files: NamedFiles = NamedFiles()
    num_gpus: int | None = None
    gpu_bytes: int | None = None
    num_nodes: int = 1
    accelerate: Mapping[str, Any] | None = None
    launcher: str = ""
    release: Release | None = None
    assumed: tuple[str, ...] = ()
    card: NamedCard | None = None
    node: NamedMemory | None = None
    given_by: str = VISIBLE
    name: str = ""
    slots: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    detached: bool = False
    limits: tuple[Limit, ...] = ()
    unsaid: str = ""

    @property
    def program(self) -> str:
        """The program's name without its folder."""
        return self.words[0].replace("\\", "/").rpartition("/")[2] if self.words else ""

    def count(self, variable: str) -> int | None:
        """The number, 1 or more, of a variable of the environment; None where it has none."""
        text = self.environment.get(variable, "").strip()
        return int(text) if text.isdecimal() and int(text) > 0 else None

    @property
    def mps_bytes(self) -> int | None:
        """The least that MPS leaves it of a GPU; None where it has no limit."""
        parts = self.environment.get(MPS_LIMIT, "").replace(" ", "").split(",")
        found = [one for one in map(MPS_SIZE.fullmatch, parts) if one]
        sizes = [int(one[1]) * (GIB if one[2].upper() == "G" else MIB) for one in found]
        return min(filter(None, sizes), default=None)

    @property
    def hardware(self) -> dict[str, int]:
        """The `hardware` section of a run file, as far as the command says it."""
        known = {"num_gpus": self.num_gpus, "num_nodes": self.num_nodes}
        return {key: value for key, value in known.items() if value and value > (key != "num_gpus")}
