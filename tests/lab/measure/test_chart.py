"""The chart's values for measuring: what starts the ranks, and what is refused before it starts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import small_run
from tests.deploy.render import ChartError, render


def values(gpus: int = 16, **measure: Any) -> dict[str, Any]:
    """A run of 16 ranks, on two nodes of eight where all run."""
    return {"mode": "measure", "run": small_run("fsdp", gpus), "nodes": 2, "measure": measure}


ONE_NODE = {**values(8, ranks="all"), "nodes": 1}
TRAINED = values(ranks="all", launcher="trainjob")


@pytest.mark.parametrize(
    ("given", "kinds"),
    [
        (values(), {"Job"}),
        (values(ranks="all"), {"Job", "Service"}),
        (ONE_NODE, {"Job"}),
        (TRAINED, {"TrainJob", "TrainingRuntime"}),
        ({**ONE_NODE, "measure": TRAINED["measure"]}, {"TrainJob", "TrainingRuntime"}),
        ({**values(ranks="all"), "kaiwo": {"enabled": True}}, {"KaiwoJob", "Service"}),
    ],
)
def test_the_launcher_is_what_was_asked_for(given: dict[str, Any], kinds: set[str]) -> None:
    """One rank and one node need none; whatever the cluster has, the same values mean the same."""
    assert {one["kind"] for one in render(given)} - {"ConfigMap"} == kinds


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            values(cap="9GiB", findMinimum=True),
            "findMinimum tries caps itself; leave measure.cap out",
        ),
        (values(launcher="trainjob"), "launcher=trainjob starts every rank"),
        (values(ranks="all", findMinimum=True), "findMinimum is for measure.ranks=one"),
        (values(ranks="all", rank=3), "measure.rank=3 says which rank one GPU plays"),
        (values(8, ranks="all"), "num_gpus=8, but nodes=2 and gpusPerNode=8 start 16 ranks"),
        (values(ranks="all", settings=["hardware.num_gpus=4"]), "num_gpus=4, but nodes=2"),
        (values(ranks="all", backoffLimit=1), "a pod that starts again cannot join the others"),
        ({**values(backoffLimit=1), "kaiwo": {"enabled": True}}, "Kaiwo starts nothing again"),
        ({**TRAINED, "kaiwo": {"enabled": True}}, "wraps a Job, not a TrainJob"),
        (values(ranks="all", launcher="trainjob", backoffLimit=1), "cannot join the others"),
    ],
)
def test_what_does_not_go_together_is_refused(given: dict[str, Any], sentence: str) -> None:
    """Before anybody waits for a GPU."""
    with pytest.raises(ChartError) as refused:
        render(given)
    assert sentence in str(refused.value)


def test_every_option_is_on_the_command_line() -> None:
    """And nothing that was not set."""
    (job,) = (one for one in render(values()) if one["kind"] == "Job")
    (pod,) = job["spec"]["template"]["spec"]["containers"]
    plain = ["gpu-mem-calc", "measure", "--config", "/run/run.json", "--id", "release"]
    assert pod["command"] == [*plain, "--format", "table"]
    given = values(
        rank=3,
        steps=5,
        cap="24GiB",
        allocConf="expandable_segments:True",
        format="json",
        resultsClaim="runs",
        settings=["training.seq_len=256"],
    )
    (job,) = (one for one in render(given) if one["kind"] == "Job")
    (pod,) = job["spec"]["template"]["spec"]["containers"]
    assert pod["command"] == [
        *plain,
        "--rank",
        "3",
        "--steps",
        "5",
        "--cap",
        "24GiB",
        "--alloc-conf",
        "expandable_segments:True",
        "--set",
        "training.seq_len=256",
        "--append",
        "/results/runs.jsonl",
        "--format",
        "json",
    ]
    assert {"name": "results", "mountPath": "/results"} in pod["volumeMounts"]
