"""The phases of a run: start-up, then forward, backward and optimizer in every step of training, or
prefill and decode in generation. A policy's step may begin with a generation, and any may be
followed by an evaluation and a save. Before start-up a checkpoint is loaded; a run can be resumed,
and its adapters merged. A server loads, runs a trial, captures graphs, serves, and may sleep.
"""

from __future__ import annotations

from msgspec import Struct

LOADING = "loading"
STARTUP, FORWARD, BACKWARD, OPTIMIZER = "startup", "forward", "backward", "optimizer"
PREFILL, DECODE = "prefill", "decode"
PROFILING, CAPTURE, SERVING, ASLEEP = "profiling", "capture", "serving", "asleep"
GENERATION, EVALUATION, SAVING = "generation", "evaluation", "saving"
SAVING_OPTIMIZER, SAVING_MERGED = "saving the optimizer", "saving merged"
GENERATING = "generating"  # between two steps
RESUMING, MERGING = "resuming", "merging"
MERGING_ON_HOST = "merging on the host"


class LifePhase(Struct, frozen=True, kw_only=True):
    """What a phase takes, in bytes.

    - gpu_bytes: torch's max_memory_allocated on the busiest GPU
    - rank_bytes: of each rank's process on the host, what its libraries take left out
    - first_bytes: what the first rank of a node has besides
    - file_bytes: pages of files, once for a node; the kernel takes them back
    - disk_bytes: files of the whole job that it reads or writes
    - apart: files are read before or after the rest is there
    - own_process: of one that has taken no step; `rank_bytes` is all of it
    """

    name: str
    gpu_bytes: int
    rank_bytes: int = 0
    first_bytes: int = 0
    file_bytes: int = 0
    disk_bytes: int = 0
    apart: bool = False
    own_process: bool = False
    source: str = ""
