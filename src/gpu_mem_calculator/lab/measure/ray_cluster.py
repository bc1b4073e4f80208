"""Runs the ranks of a job on a Ray cluster: Ray starts one torchrun on each node.

Ray chooses the nodes; node 0 provides the rendezvous port. The first node that fails stops the
others.
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
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from msgspec import Struct

from ...ledger.extras import install
from ...runfile.text.errors import STDERR_PREFIX, InputError, print_to_stderr

NO_RAY = (
    f"--ray needs ray, which is not installed: {install('ray')}, or start the ranks by torchrun"
)
PATIENCE = 600.0  # seconds to wait until the cluster has free nodes
GRACE = 30.0  # seconds for torchrun to end its ranks


class ClusterShape(Struct, frozen=True):
    """The number of nodes, and of GPUs on each."""

    nodes: int
    gpus: int

    @property
    def ranks(self) -> int:
        """The number of ranks, one for each GPU."""
        return self.nodes * self.gpus


class RayNode:
    """A Ray actor on one node of the cluster: provides an address and runs torchrun."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None
        self.stopped, self.lock = False, threading.Lock()

    def address(self) -> tuple[str, int]:
        """The rendezvous of the ranks on this node: its IP address and a free port."""
        ip: str = import_module("ray").util.get_node_ip_address()
        with socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET) as probe:
            probe.bind((ip, 0))
            return ip, probe.getsockname()[1]

    def run(self, words: Sequence[str]) -> Iterator[tuple[str, str | int]]:
        """Run a command: yields ("out" or "err", line) as they come, then ("code", exit code)."""
        with self.lock:
            if not self.stopped:
                self.process = subprocess.Popen(
                    words,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    errors="replace",
                    env={**os.environ, "PYTHONUNBUFFERED": "1"},
                    start_new_session=True,
                )
        process = self.process
        if process is None:  # another node failed before this one started
            yield "code", -signal.SIGTERM
            return
        lines: queue.Queue[tuple[str, str] | None] = queue.Queue()
        for name, stream in (("out", process.stdout), ("err", process.stderr)):
            threading.Thread(target=_forward_lines, args=(name, stream, lines), daemon=True).start()
        open_streams = 2
        while open_streams:
            line = lines.get()
            if line is None:
                open_streams -= 1
            else:
                yield line
        yield "code", process.wait()

    def stop(self) -> None:
        """Terminate the command; kill its process group where it has not ended after `GRACE`."""
        with self.lock:
            self.stopped, process = True, self.process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


def _forward_lines(name: str, stream: Any, lines: queue.Queue[tuple[str, str] | None]) -> None:
    with stream:
        for line in stream:
            lines.put((name, line))
    lines.put(None)


def command(
    shape: ClusterShape, node: int, rendezvous: tuple[str, int], program: Sequence[str]
) -> list[str]:
    """The command line of node number `node`.

    `program` is a script, or `-m` and a module, with its arguments.
    """
    address, port = rendezvous
    options = {
        "nnodes": shape.nodes,
        "nproc-per-node": shape.gpus,
        "node-rank": node,
        "master-addr": address,
        "master-port": port,
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return [sys.executable, "-m", "gpu_mem_calculator.lab.measure.torchrun", *words, *program]


def run_over_ray(shape: ClusterShape, program: Sequence[str], patience: float = PATIENCE) -> int:
    """Run a program as every rank; returns the exit code of the node that failed first, else 0."""
    if find_spec("ray") is None:
        raise InputError(NO_RAY)
    ray = import_module("ray")
    if not ray.is_initialized():
        ray.init(log_to_driver=False, logging_level="WARNING")
    with reserve_nodes(ray, shape, patience) as nodes:
        rendezvous = ray.get(nodes[0].address.remote())
        streams = [
            node.run.options(num_returns="streaming").remote(command(shape, i, rendezvous, program))
            for i, node in enumerate(nodes)
        ]
        return follow(ray, streams)


@contextmanager
def reserve_nodes(ray: Any, shape: ClusterShape, patience: float) -> Iterator[list[Any]]:
    """Yields an actor for each node, with the GPUs of the shape; they are stopped at the end."""
    groups = import_module("ray.util.placement_group")
    strategies = import_module("ray.util.scheduling_strategies")
    group = groups.placement_group([{"GPU": shape.gpus}] * shape.nodes, strategy="STRICT_SPREAD")
    nodes: list[Any] = []
    try:
        if not group.wait(patience):
            raise InputError(f"--ray {shape.nodes}x{shape.gpus}: {shortage(ray, shape)}")
        # Two threads: one runs the command, the other may stop it.
        actor = ray.remote(num_cpus=0, num_gpus=shape.gpus, max_concurrency=2)(RayNode)
        for index in range(shape.nodes):
            place = strategies.PlacementGroupSchedulingStrategy(
                placement_group=group, placement_group_bundle_index=index
            )
            nodes.append(actor.options(scheduling_strategy=place).remote())
        yield nodes
    finally:
        for stopping in [node.stop.remote() for node in nodes]:
            with suppress(ray.exceptions.RayError):  # a node that is lost needs no stopping
                ray.get(stopping)
        groups.remove_placement_group(group)


def shortage(ray: Any, shape: ClusterShape) -> str:
    """What the cluster has less than the shape needs, in words."""
    counts = [int(node["Resources"].get("GPU", 0)) for node in ray.nodes() if node["Alive"]]
    enough = sum(gpus >= shape.gpus for gpus in counts)
    if enough < shape.nodes:
        return (
            f"the Ray cluster has {enough} of {shape.nodes} nodes with {shape.gpus} GPUs "
            f"(GPUs by node: {', '.join(map(str, sorted(counts, reverse=True)))}); add nodes "
            "or ask for fewer"
        )
    return "the Ray cluster's GPUs are in use by others; try again when they are free"


def follow(ray: Any, streams: Sequence[Any]) -> int:
    """Print the nodes' output until all have ended or one fails; returns its exit code, or 0."""
    messages: queue.Queue[tuple[int, str, str | int]] = queue.Queue()
    for node, stream in enumerate(streams):
        threading.Thread(target=_listen, args=(ray, node, stream, messages), daemon=True).start()
    running = len(streams)
    sentences: set[str] = set()  # a refusal that several nodes print is shown once
    while running:
        node, kind, what = messages.get()
        if kind == "code":
            running -= 1
            if what:
                return int(what) if int(what) > 0 else 1
        elif kind == "lost":
            print_to_stderr(f"node {node} is lost: {what}")
            return 1
        elif not (kind == "err" and what in sentences):
            print(what, end="", file=sys.stdout if kind == "out" else sys.stderr, flush=True)
            sentences |= {str(what)} if str(what).startswith(STDERR_PREFIX) else set()
    return 0


def _listen(ray: Any, node: int, stream: Any, messages: queue.Queue[tuple[int, str, Any]]) -> None:
    try:
        for item in stream:
            kind, what = ray.get(item)
            messages.put((node, kind, what))
    except ray.exceptions.RayError as error:
        messages.put((node, "lost", str(error).strip().splitlines()[0]))
