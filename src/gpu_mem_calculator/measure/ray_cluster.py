"""The ranks of a job on the nodes of a Ray cluster: one torchrun on each, started by Ray.

Ray says which nodes; node 0 offers the port where the ranks meet. The first node that fails ends
the others.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from msgspec import Struct

from ..core.errors import SAYS, InputError, tell

NO_RAY = ("--ray needs ray, which is not installed: pip install 'gpu-mem-calculator[ray]', or "
          "start the ranks by torchrun")  # fmt: skip
PATIENCE = 600.0  # seconds for the cluster to have the nodes free
GRACE = 30.0  # seconds for torchrun to end its ranks


class ClusterShape(Struct, frozen=True):
    """How many nodes, and GPUs on each."""

    nodes: int
    gpus: int

    @property
    def ranks(self) -> int:
        """One for each GPU."""
        return self.nodes * self.gpus


class RayNode:
    """Lives on one node of the cluster, as an actor: offers an address and runs torchrun."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None
        self.stopped, self.lock = False, threading.Lock()

    def address(self) -> tuple[str, int]:
        """Where the ranks can meet on this node: its address and a port that is free now."""
        own: str = import_module("ray").util.get_node_ip_address()
        with socket.socket(socket.AF_INET6 if ":" in own else socket.AF_INET) as found:
            found.bind((own, 0))
            return own, found.getsockname()[1]

    def run(self, words: Sequence[str]) -> Iterator[tuple[str, str | int]]:
        """Run a command: ("out" or "err", a line) as they come, then ("code", its exit code)."""
        with self.lock:
            process = self.process = None if self.stopped else subprocess.Popen(
                words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                env={**os.environ, "PYTHONUNBUFFERED": "1"}, start_new_session=True,
            )  # fmt: skip
        if process is None:  # another node failed before this one had begun
            yield "code", -signal.SIGTERM
            return
        lines: queue.Queue[tuple[str, str] | None] = queue.Queue()
        for name, stream in (("out", process.stdout), ("err", process.stderr)):
            threading.Thread(target=_pass_on, args=(name, stream, lines), daemon=True).start()
        open_streams = 2
        while open_streams:
            line = lines.get()
            if line is None:
                open_streams -= 1
            else:
                yield line
        yield "code", process.wait()

    def stop(self) -> None:
        """End the command and all that it started: asked first, then made to."""
        with self.lock:
            self.stopped, process = True, self.process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


def _pass_on(name: str, stream: Any, lines: queue.Queue[tuple[str, str] | None]) -> None:
    with stream:
        for line in stream:
            lines.put((name, line))
    lines.put(None)


def command(
    shape: ClusterShape, node: int, meet: tuple[str, int], program: Sequence[str]
) -> list[str]:
    """What node number `node` runs; `program` is a script or `-m` and a module, and its words."""
    address, port = meet
    return [
        sys.executable, "-m", "gpu_mem_calculator.measure.torchrun",
        "--nnodes", str(shape.nodes), "--nproc-per-node", str(shape.gpus),
        "--node-rank", str(node), "--master-addr", address, "--master-port", str(port), *program,
    ]  # fmt: skip


def run_over_ray(shape: ClusterShape, program: Sequence[str], patience: float = PATIENCE) -> int:
    """Run a program as every rank; the exit code of the node that failed first, else 0."""
    if find_spec("ray") is None:
        raise InputError([NO_RAY])
    ray = import_module("ray")
    if not ray.is_initialized():
        ray.init(log_to_driver=False, logging_level="WARNING")
    with reserve_nodes(ray, shape, patience) as nodes:
        meet = ray.get(nodes[0].address.remote())
        streams = [
            node.run.options(num_returns="streaming").remote(command(shape, i, meet, program))
            for i, node in enumerate(nodes)
        ]
        return follow(ray, streams)


@contextmanager
def reserve_nodes(ray: Any, shape: ClusterShape, patience: float) -> Iterator[list[Any]]:
    """An actor on each of as many nodes, each with all the GPUs asked for; stopped at the end."""
    groups = import_module("ray.util.placement_group")
    strategies = import_module("ray.util.scheduling_strategies")
    group = groups.placement_group([{"GPU": shape.gpus}] * shape.nodes, strategy="STRICT_SPREAD")
    nodes: list[Any] = []
    try:
        if not group.wait(patience):
            raise InputError([f"--ray {shape.nodes}x{shape.gpus}: {shortage(ray, shape)}"])
        # One thread runs the command while another may stop it.
        actor = ray.remote(num_cpus=0, num_gpus=shape.gpus, max_concurrency=2)(RayNode)
        for index in range(shape.nodes):
            place = strategies.PlacementGroupSchedulingStrategy(
                placement_group=group, placement_group_bundle_index=index
            )
            nodes.append(actor.options(scheduling_strategy=place).remote())
        yield nodes
    finally:
        for asked in [node.stop.remote() for node in nodes]:
            with ignored(ray.exceptions.RayError):
                ray.get(asked)
        groups.remove_placement_group(group)


@contextmanager
def ignored(*kinds: type[BaseException]) -> Iterator[None]:
    """A node that is gone needs no stopping."""
    try:
        yield
    except kinds:
        return


def shortage(ray: Any, shape: ClusterShape) -> str:
    """What the cluster has, where it does not have what is asked for."""
    found = [int(node["Resources"].get("GPU", 0)) for node in ray.nodes() if node["Alive"]]
    enough = sum(gpus >= shape.gpus for gpus in found)
    if enough < shape.nodes:
        return (f"the Ray cluster has {enough} of {shape.nodes} nodes with {shape.gpus} GPUs "
                f"(GPUs by node: {', '.join(map(str, sorted(found, reverse=True)))}); add nodes "
                "or ask for fewer")  # fmt: skip
    return "the Ray cluster's GPUs are in use by others; try again when they are free"


def follow(ray: Any, streams: Sequence[Any]) -> int:
    """Pass on what the nodes say until all are done or one has failed; its exit code, or 0."""
    said: queue.Queue[tuple[int, str, str | int]] = queue.Queue()
    for node, stream in enumerate(streams):
        threading.Thread(target=_listen, args=(ray, node, stream, said), daemon=True).start()
    running = len(streams)
    sentences: set[str] = set()  # nodes that refuse the same input say it once
    while running:
        node, kind, what = said.get()
        if kind == "code":
            running -= 1
            if what:
                return int(what) if int(what) > 0 else 1
        elif kind == "lost":
            tell(f"node {node} is lost: {what}")
            return 1
        elif not (kind == "err" and what in sentences):
            print(what, end="", file=sys.stdout if kind == "out" else sys.stderr, flush=True)
            sentences |= {str(what)} if str(what).startswith(SAYS) else set()
    return 0


def _listen(ray: Any, node: int, stream: Any, said: queue.Queue[tuple[int, str, Any]]) -> None:
    try:
        for item in stream:
            kind, what = ray.get(item)
            said.put((node, kind, what))
    except ray.exceptions.RayError as error:
        said.put((node, "lost", str(error).strip().splitlines()[0]))
