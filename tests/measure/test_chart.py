"""The chart's values for measuring: what starts the ranks, and what is refused before it starts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import small_run
from tests.deploy.render import ChartError, render

PYTORCHJOB, RAYJOB = "kubeflow.org/v1/PyTorchJob", "ray.io/v1/RayJob"


def values(gpus: int = 16, **measure: Any) -> dict[str, Any]:
    """A run of 16 ranks, on two nodes of eight where all run."""
    return {"mode": "measure", "run": small_run("fsdp", gpus), "nodes": 2, "measure": measure}


@pytest.mark.parametrize(("given", "apis", "kinds"), [
    (values(), (PYTORCHJOB, RAYJOB), {"Job"}),
    (values(ranks="all"), (), {"Job", "Service"}),
    (values(ranks="all"), (RAYJOB,), {"RayJob"}),
    (values(ranks="all"), (RAYJOB, PYTORCHJOB), {"PyTorchJob"}),
    (values(ranks="all", ray={"version": ""}), (RAYJOB,), {"Job", "Service"}),
    (values(ranks="all", launcher="job"), (RAYJOB, PYTORCHJOB), {"Job", "Service"}),
    ({**values(8, ranks="all"), "nodes": 1}, (RAYJOB, PYTORCHJOB), {"Job"}),
    ({**values(ranks="all"), "kaiwo": {"enabled": True}}, (PYTORCHJOB,), {"KaiwoJob", "Service"}),
])  # fmt: skip
def test_the_launcher_is_what_the_cluster_has(
    given: dict[str, Any], apis: tuple[str, ...], kinds: set[str]
) -> None:
    """One rank and one node need none."""
    documents = render(given, api_versions=apis)
    assert {one["kind"] for one in documents} - {"ConfigMap"} == kinds


@pytest.mark.parametrize(("given", "sentence"), [
    (values(cap="9GiB", findMinimum=True), "findMinimum tries caps itself; leave measure.cap out"),
    (values(launcher="ray"), "launcher=ray starts every rank, and measure.ranks=one plays one"),
    (values(ranks="all", findMinimum=True), "findMinimum is for measure.ranks=one"),
    (values(ranks="all", rank=3), "measure.rank=3 says which rank one GPU plays"),
    (values(8, ranks="all"), "num_gpus=8, but nodes=2 and gpusPerNode=8 start 16 ranks"),
    (values(ranks="all", settings=["hardware.num_gpus=4"]), "num_gpus=4, but nodes=2"),
    (values(ranks="all", backoffLimit=1), "a pod that starts again cannot join the others"),
    ({**values(backoffLimit=1), "kaiwo": {"enabled": True}}, "Kaiwo starts nothing again"),
    ({**values(ranks="all", launcher="pytorchjob"), "kaiwo": {"enabled": True}},
     "wraps a Job or a RayJob, not a PyTorchJob"),
    ({**values(ranks="all", launcher="ray", gpuResource="example.com/gpu"),
      "kaiwo": {"enabled": True}}, "counts nvidia.com/gpu or amd.com/gpu"),
    (values(ranks="all", launcher="ray", ray={"version": ""}), "needs ray in measure.image"),
    (values(ranks="all", launcher="ray", allocConf="a; b"), "the shells of a RayJob's entrypoint"),
    (values(ranks="all", launcher="ray", settings=["model.name=$(x)"]), "has characters that"),
])  # fmt: skip
def test_what_does_not_go_together_is_refused(given: dict[str, Any], sentence: str) -> None:
    """Before anybody waits for a GPU."""
    with pytest.raises(ChartError) as refused:
        render(given)
    assert sentence in str(refused.value)


def test_a_ray_job_needs_a_short_name() -> None:
    """KubeRay takes 47 characters."""
    given = values(ranks="all", launcher="ray")
    render(given, name="a" * 47)
    with pytest.raises(ChartError, match="has 48 characters and may have 47"):
        render(given, name="a" * 48)


def test_every_option_is_on_the_command_line() -> None:
    """And nothing that was not set."""
    (job,) = (one for one in render(values()) if one["kind"] == "Job")
    (pod,) = job["spec"]["template"]["spec"]["containers"]
    plain = ["gpu-mem-calc", "measure", "--config", "/run/run.json", "--id", "release"]
    assert pod["command"] == [*plain, "--format", "table"]
    given = values(rank=3, steps=5, cap="24GiB", allocConf="expandable_segments:True",
                   format="json", resultsClaim="runs",
                   settings=["training.seq_len=256"])  # fmt: skip
    (job,) = (one for one in render(given) if one["kind"] == "Job")
    (pod,) = job["spec"]["template"]["spec"]["containers"]
    assert pod["command"] == [
        *plain, "--rank", "3", "--steps", "5", "--cap", "24GiB",
        "--alloc-conf", "expandable_segments:True", "--set", "training.seq_len=256",
        "--append", "/results/runs.jsonl", "--format", "json",
    ]  # fmt: skip
    assert {"name": "results", "mountPath": "/results"} in pod["volumeMounts"]
