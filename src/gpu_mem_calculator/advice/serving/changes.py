"""What a change of a server brings: more users, another number of GPUs, another model."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ... import catalog
from ...estimates.calculator import Estimate, full_estimate, verdict
from ...estimates.fit_verdict import FITS, SHORT
from ...estimates.result import MemoryResult
from ...estimates.serving.infer_command import InferCommand, infer_command
from ...models.arch.blocks import LatentAttention, Moe
from ...run.server_row import FormatChange
from ...runfile.read import as_dict, with_settings
from ...runfile.resolve.resolve_inference import find_server
from ...runfile.resolve.serving_split import DATA, PIPELINE, TENSOR, shards_layers, splits
from ...runfile.text.errors import InputError
from ...serving import server_row
from ...tools.read import read

EXPERTS, CONTEXT = "expert_parallel_size", "decode_context_parallel_size"
MOST_GPUS = 64
NODES = ("num_nodes", "gpus_per_node")


class ServingChange(Struct, frozen=True, kw_only=True):
    """Settings of a server that are changed, and what they bring; `problem` if they are refused.

    - `users`: whole sequences of `context` tokens that then run concurrently
    - `changes`: a title for each change; `cost`: what they cost
    - `command`: the `infer` command with the changes
    """

    title: str
    setting: tuple[str, ...]
    device_bytes: int = 0
    kv_tokens: int = 0
    max_concurrency: float = 0.0
    fits: bool = False
    verdict: str = SHORT
    problem: str = ""
    users: int = 0
    context: int = 0
    gpus: int = 1
    changes: tuple[str, ...] = ()
    cost: str = ""
    command: str = ""


class Server(Struct, frozen=True):
    """A server that is to be changed: its estimate, and the command that asked for it."""

    estimate: Estimate
    command: InferCommand

    @classmethod
    def of(cls, estimate: Estimate, command: InferCommand | None = None) -> Server:
        """The server of an estimate; without a command, that of its run file."""
        return cls(estimate, command or infer_command(estimate.result.run))

    @property
    def ranks(self) -> int:
        """GPUs of one replica."""
        mesh = self.estimate.resolved.run.mesh
        return int(mesh.tp * mesh.pp)

    def formats(self) -> Iterator[FormatChange]:
        """Smaller formats that the engine has and the run leaves out."""
        row = server_row(self.estimate.resolved.engine.name)
        return (one for one in row.changes if self.has_option(one.key))

    def has_option(self, key: str) -> bool:
        """Whether the engine has an option that the run leaves out."""
        given = self.estimate.result.run["inference"]
        return key in self.estimate.resolved.engine.options and key not in given


def what_ifs(server: Server) -> list[ServingChange]:
    """One change at a time. Left out are changes that are refused, and those that change nothing
    but how experts are shared.
    """
    tried = (try_settings(server, *candidate) for candidate in _candidates(server))
    same = taken(server.estimate.result)
    return [
        change
        for change in tried
        if not change.problem
        and (
            (change.device_bytes, change.kv_tokens, change.users) != same
            or EXPERTS in change.setting[0]
        )
    ]


def _candidates(server: Server) -> Iterator[tuple[str, tuple[str, ...]]]:
    for one in server.formats():
        if one.gains:
            yield one.title, (one.setting,)
    yield from _sharing(server)
    ranks = server.ranks
    for count in (2 * ranks, *([ranks // 2] if ranks > 1 else [])):
        for settings in list(gpu_settings(server, count))[:1]:
            yield gpus_title(count), settings


def _sharing(server: Server) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What ranks can share instead of replicating: experts, the KV cache of MLA."""
    run = server.estimate.resolved.run
    tp, mixers = int(run.mesh.tp), [m for layer, _, _ in run.arch.runs for m in layer.mixers]
    if tp == 1:
        return
    if any(isinstance(layer.mlp, Moe) for layer, _, _ in run.arch.runs) and server.has_option(
        EXPERTS
    ):
        yield f"expert parallelism {tp}", (f"inference.{EXPERTS}={tp}",)
    if any(isinstance(mixer, LatentAttention) for mixer in mixers):
        if server.has_option(CONTEXT):
            yield f"KV cache sharded over {tp}", (f"inference.{CONTEXT}={tp}",)
        if server.has_option("enable_dp_attention") and server.has_option(DATA):
            dp = ("inference.enable_dp_attention=true", f"inference.{DATA}={tp}")
            yield f"DP attention {tp}", dp


def gpus_title(count: int) -> str:
    """`8 GPUs`."""
    return f"{count} GPU{'s' * (count > 1)}"


def gpu_settings(server: Server, ranks: int) -> Iterator[tuple[str, ...]]:
    """Settings that run a replica on `ranks` GPUs, the widest tensor parallelism first."""
    run, engine = server.estimate.resolved.run, server.estimate.resolved.engine
    given = server.estimate.result.run
    replicas = 1 if run.options.get("enable_dp_attention") else int(run.mesh.dp)
    hardware = given.get("hardware", {})
    count = f"hardware.num_gpus={ranks * replicas}"
    nodes = [f"hardware.{key}=null" for key in NODES if key in hardware]
    if not shards_layers(engine):
        shared = server.estimate.resolved.hardware.shared is not None  # such a machine has one GPU
        if engine.serve is not None and not shared:
            yield (count, *_same_context(server), *nodes)
        return
    total = [count, *nodes] if "num_gpus" in hardware else nodes
    for sizes in splits(run.arch, engine, ranks):
        axes = {TENSOR: sizes[TENSOR], PIPELINE: sizes.get(PIPELINE, 1)}
        shown = {a: n for a, n in axes.items() if n > 1 or a in given["inference"] or a == TENSOR}
        experts = [f"inference.{EXPERTS}={sizes[TENSOR]}"] if int(run.mesh.ep) > 1 else []
        if DATA not in sizes:
            yield (*(f"inference.{axis}={size}" for axis, size in shown.items()), *experts, *total)


def _same_context(server: Server) -> Iterator[str]:
    """The context that Ollama chose by the memory of the GPUs, which more of them would change."""
    options = server.estimate.resolved.run.options
    given = server.estimate.result.run["inference"]
    if options.get("ollama_version") and "max_seq_len" not in given:
        yield f"inference.max_seq_len={options['max_seq_len']}"


def taken(result: MemoryResult) -> tuple[int, int, int]:
    """Bytes that a run takes by the ledger, the tokens of its KV cache, and its users."""
    serving, device = result.serving, result.allocated_bytes + result.outside_torch_bytes
    return (device, 0, 0) if serving is None else (device, serving.kv_tokens, serving.users)


def try_settings(
    server: Server, title: str, settings: tuple[str, ...], **more: Any
) -> ServingChange:
    """The figures of a server with some settings by the ledger, and its verdict."""
    data = with_settings(server.estimate.result.run, settings)
    try:
        found = full_estimate(data, replay=False)
    except InputError as error:
        return ServingChange(title=title, setting=settings, problem=error.problems[0])
    result, serving = found.result, found.result.serving
    device, tokens, users = taken(result)
    word = verdict(data) if serving is None else SHORT if result.spills else result.verdict
    run = found.resolved.run
    if serving is None:
        users = int(run.batch) if word == FITS else 0
    return ServingChange(
        title=title,
        setting=settings,
        device_bytes=device,
        fits=word == FITS,
        verdict=word,
        kv_tokens=tokens,
        max_concurrency=0.0 if serving is None else serving.max_concurrency,
        users=users,
        context=serving.users_context if serving else int(run.seq + run.generated),
        gpus=found.resolved.hardware.num_gpus,
        command=shlex.join(server.command.words(settings)),
        **{"changes": (title,), **more},
    )


def fewest_gpus(server: Server) -> ServingChange | None:
    """The smallest power of two of GPUs on which a replica starts, at most 64."""
    ranks = 1
    while ranks <= MOST_GPUS:
        for settings in gpu_settings(server, ranks):
            change = try_settings(server, gpus_title(ranks), settings)
            if change.fits:
                return change
        ranks *= 2
    return None


def largest_models(
    data: dict[str, Any], most: int = 10, command: InferCommand | None = None
) -> list[ServingChange]:
    """The largest presets that the run's GPUs can serve, largest first, at most `most`."""
    sized = sorted(catalog.rows("index"), key=lambda row: -row["num_parameters"])
    changes: list[ServingChange] = []
    configs = set()
    for row in sized:
        if row["config"] in configs:
            continue
        configs.add(row["config"])
        change = _served_model(data, row, command)
        if change is not None:
            changes.append(change)
        if len(changes) == most:
            break
    return changes


def _served_model(
    data: dict[str, Any], row: catalog.Row, command: InferCommand | None
) -> ServingChange | None:
    """A preset on the run's GPUs; None where it does not fit or holds no whole sequence."""
    file = read({**data, "model": {"name": row["name"]}}).file
    assert file.inference is not None
    try:
        found = full_estimate(file, replay=False)
    except InputError:
        return None
    pool = find_server(file.inference).serve is not None
    keys = command.keys if command else infer_command(as_dict(file)).keys
    server = Server(found, InferCommand([row["name"]], keys))
    change = try_settings(server, row["title"], ())
    if not change.fits or (pool and change.max_concurrency < 1):
        return None
    return replace(change, setting=(f"model.name={row['name']}",))
