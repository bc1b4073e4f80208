"""Over Ray, without Ray: a stand-in for what is used of it runs actors in this process."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gpu_mem_calculator.cli import main as cli
from gpu_mem_calculator.lab.measure import ray_cluster
from gpu_mem_calculator.lab.measure.ray_cluster import ClusterShape, RayNode, command, run_over_ray
from gpu_mem_calculator.runfile.text.errors import InputError


class RayError(Exception):
    """Ray's own."""


class FakeRay:
    """A cluster: GPUs by node, where actors were put, and what was given back."""

    def __init__(self, gpus: list[int]) -> None:
        self.gpus = gpus
        self.placed: list[Any] = []
        self.actors: list[Any] = []
        self.removed = 0
        self.exceptions = SimpleNamespace(RayError=RayError)
        self.util = SimpleNamespace(get_node_ip_address=lambda: "127.0.0.1")

    def is_initialized(self) -> bool:
        """It is."""
        return True

    def nodes(self) -> list[dict[str, Any]]:
        """As Ray describes them."""
        return [{"Alive": True, "Resources": {"GPU": float(n)} if n else {}} for n in self.gpus]

    def get(self, value: Any) -> Any:
        """Everything has happened already."""
        if isinstance(value, Exception):
            raise value
        return value

    def remote(self, **asked: Any) -> Any:
        """`ray.remote(...)(class)`: an actor is an object whose methods have `remote`."""
        self.asked = asked

        def made(kind: type) -> Any:
            def options(scheduling_strategy: Any) -> Any:
                self.placed.append(scheduling_strategy)
                return SimpleNamespace(remote=lambda: self.actor(kind()))

            return SimpleNamespace(options=options)

        return made

    def actor(self, node: Any) -> Any:
        """An actor around an object of this process."""

        def method(name: str) -> Any:
            def call(*given: Any) -> Any:
                return getattr(node, name)(*given)

            return SimpleNamespace(
                remote=call, options=lambda num_returns: SimpleNamespace(remote=call)
            )

        self.actors.append(node)
        return SimpleNamespace(**{name: method(name) for name in ("address", "run", "stop")})


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    """`import ray` gives a cluster of a head and two nodes of two GPUs."""
    ray = FakeRay([0, 2, 2])

    def group(bundles: list[dict[str, int]], strategy: str) -> Any:
        assert strategy == "STRICT_SPREAD"
        enough = sum(n >= bundles[0]["GPU"] for n in ray.gpus) >= len(bundles)
        return SimpleNamespace(wait=lambda seconds: enough)

    def remove(_: Any) -> None:
        ray.removed += 1

    groups = SimpleNamespace(placement_group=group, remove_placement_group=remove)
    strategies = SimpleNamespace(
        PlacementGroupSchedulingStrategy=lambda **place: place["placement_group_bundle_index"]
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.util.placement_group", groups)
    monkeypatch.setitem(sys.modules, "ray.util.scheduling_strategies", strategies)
    monkeypatch.setattr(ray_cluster, "find_spec", lambda name: ModuleType(name))
    return ray


def says(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Every node runs this in place of torchrun; its number is sys.argv[1]."""
    monkeypatch.setattr(
        ray_cluster,
        "command",
        lambda shape, node, meet, words: [sys.executable, "-c", script, str(node)],
    )


def test_each_node_runs_torchrun_with_its_number() -> None:
    """Node 0's address and port are where all meet."""
    words = command(
        ClusterShape(2, 8), 1, ("10.0.0.5", 4242), ["-m", "gpu_mem_calculator", "measure"]
    )
    assert words[1:] == [
        "-m",
        "gpu_mem_calculator.lab.measure.torchrun",
        "--nnodes",
        "2",
        "--nproc-per-node",
        "8",
        "--node-rank",
        "1",
        "--master-addr",
        "10.0.0.5",
        "--master-port",
        "4242",
        "-m",
        "gpu_mem_calculator",
        "measure",
    ]


def test_what_the_nodes_say_is_passed_on(
    fake: FakeRay, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """To the same streams; a sentence that several have to say comes once."""
    says(
        monkeypatch,
        "import sys; print('out', sys.argv[1]);print('gpu-mem-calc: no', file=sys.stderr)",
    )
    assert run_over_ray(ClusterShape(2, 2), ["script.py"]) == 0
    found = capsys.readouterr()
    assert sorted(found.out.splitlines()) == ["out 0", "out 1"]
    assert found.err == "gpu-mem-calc: no\n"
    assert fake.asked == {"num_cpus": 0, "num_gpus": 2, "max_concurrency": 2}
    assert (fake.placed, fake.removed) == ([0, 1], 1)


def test_the_first_node_that_fails_ends_the_others(
    fake: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its exit code; a node that waits for it is stopped."""
    says(monkeypatch, "import sys, time; sys.exit(5) if sys.argv[1] == '1' else time.sleep(60)")
    assert run_over_ray(ClusterShape(2, 2), ["script.py"]) == 5
    waits, fails = (node.process for node in fake.actors)
    assert waits is None or waits.poll() == -15  # it may not have begun
    assert fails.poll() == 5
    assert fake.removed == 1


def test_a_node_that_is_stopped_does_not_begin() -> None:
    """The others may fail while it is still on its way."""
    node = RayNode()
    node.stop()
    assert list(node.run(["no such program"])) == [("code", -15)]


def test_a_command_that_does_not_end_when_asked_is_made_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun may wait for a rank that hangs."""
    monkeypatch.setattr(ray_cluster, "GRACE", 0.2)
    node = RayNode()
    lines = node.run(
        [
            sys.executable,
            "-c",
            "import signal, time;"
            "signal.signal(signal.SIGTERM, signal.SIG_IGN);"
            "print('deaf', flush=True); time.sleep(60)",
        ]
    )
    assert next(lines) == ("out", "deaf\n")
    node.stop()
    assert list(lines) == [("code", -9)]
    node.stop()  # once more does nothing


def test_a_node_that_is_lost_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    """Its machine may be gone; the others are not waited for."""
    ray = FakeRay([])

    def waits() -> Iterator[Any]:
        threading.Event().wait(60)
        yield "code", 0

    assert ray_cluster.follow(ray, [[RayError("the actor died\nmore")], waits()]) == 1
    assert capsys.readouterr().err == "gpu-mem-calc: node 0 is lost: the actor died\n"


@pytest.mark.parametrize(
    ("shape", "gpus", "sentence"),
    [
        (
            ClusterShape(3, 2),
            [0, 2, 2],
            "--ray 3x2: the Ray cluster has 2 of 3 nodes with 2 GPUs "
            r"\(GPUs by node: 2, 2, 0\); add nodes or ask for fewer",
        ),
        (ClusterShape(1, 2), [2], "--ray 1x2: the Ray cluster's GPUs are in use by others"),
    ],
)
def test_too_few_nodes_are_a_sentence(
    fake: FakeRay,
    monkeypatch: pytest.MonkeyPatch,
    shape: ClusterShape,
    gpus: list[int],
    sentence: str,
) -> None:
    """What is there, or that others have it; what was reserved is given back."""
    groups = sys.modules["ray.util.placement_group"]
    monkeypatch.setattr(
        groups, "placement_group", lambda *_, **__: SimpleNamespace(wait=lambda seconds: False)
    )
    fake.gpus = gpus
    with pytest.raises(InputError, match=sentence):
        run_over_ray(shape, ["script.py"])
    assert fake.removed == 1


RUN = [
    "measure",
    "--preset",
    "llama2-7b",
    "--set",
    "hardware.num_gpus=16",
    "--set",
    "hardware.gpu=h100-80gb-sxm",
    "--set",
    "engine.type=fsdp",
]


def test_the_verb_hands_its_options_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every option of `measure` reaches the ranks, or is refused."""
    given: list[Any] = []
    monkeypatch.setattr(
        "gpu_mem_calculator.cli.measure.run_over_ray",
        lambda shape, words: given.append((shape, words)) or 3,
    )
    options = [
        "--steps",
        "5",
        "--alloc-conf",
        "expandable_segments:True",
        "--append",
        "r.jsonl",
        "--id",
        "x",
        "--snapshot",
        "s.pickle",
        "--format",
        "json",
        "--output",
        "o.json",
    ]
    assert cli.main([*RUN, "--ray", "2x8", "--cap", "24GiB", *options]) == 3
    ((shape, words),) = given
    assert shape == ClusterShape(2, 8)
    assert words == ["-m", "gpu_mem_calculator", *RUN, *options, "--cap", f"{24 * 2**30}B"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--ray", "2x8"], "--ray needs ray, which is not installed"),
        (["--ray", "1x8"], "num_gpus=16, but the launcher starts 8 processes"),
        (["--ray", "8"], "--ray '8' must be nodes x GPUs on each, such as 2x8"),
        (["--ray", "0x8"], "must be nodes x GPUs on each"),
        (["--ray", "2x8", "--find-minimum"], "without --cases and --find-minimum"),
        (["--ray", "2x8", "--rank", "1"], "--rank: the launcher says which rank"),
        (["--ray", "2x8", "--timeout", "9"], "--timeout is for a case on one GPU"),
    ],
)
def test_the_verb_refuses_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    sentence: str,
) -> None:
    """Before a GPU is taken."""
    monkeypatch.setattr(ray_cluster, "find_spec", lambda name: None)
    assert cli.main([*RUN, *words]) == 2
    assert sentence in capsys.readouterr().err


def test_under_a_launcher_it_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of them starts the ranks."""
    monkeypatch.setenv("WORLD_SIZE", "16")
    monkeypatch.setenv("RANK", "3")
    assert cli.main([*RUN, "--ray", "2x8"]) == 2
    assert "--ray starts every rank itself" in capsys.readouterr().err
