"""torchrun as `measure` starts it, with real agents and processes on this machine's CPU."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_mem_calculator.lab.measure import torchrun
from gpu_mem_calculator.runfile.text.errors import InputError
from tests.conftest import small_run
from tests.corpus import sampled
from tests.deploy.render import render

LAUNCH = [sys.executable, "-m", "gpu_mem_calculator.lab.measure.torchrun"]


def failure(code: int, second: int = 0, *problems: str) -> SimpleNamespace:
    """What torchrun knows of a rank that failed."""
    message = {"message": "", "problems": list(problems)} if problems else "<NONE>"
    return SimpleNamespace(
        exitcode=code,
        timestamp=second,
        error_file_data={"message": message},
        signal_name=lambda: "SIGKILL",
    )


@pytest.mark.parametrize(
    ("failures", "code", "said"),
    [
        ({0: failure(-15), 1: failure(3)}, 3, "gpu-mem-calc: rank 1 ended with exit code 3\n"),
        ({0: failure(1, 9), 5: failure(1, 7)}, 1, "gpu-mem-calc: rank 5 ended with exit code 1\n"),
        ({2: failure(-9)}, 137, "gpu-mem-calc: rank 2 was ended by SIGKILL\n"),
        ({0: failure(-15), 1: failure(2, 0, "a", "b")}, 2, "gpu-mem-calc: a\ngpu-mem-calc: b\n"),
    ],
)
def test_the_rank_that_failed_first_is_named(
    failures: dict[int, SimpleNamespace], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that torchrun ended because of it come after."""
    assert torchrun.report_failure(failures) == code
    assert capsys.readouterr().err == said


def test_a_rank_leaves_its_problems_only_where_it_was_asked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under a plain torchrun, each rank says them itself."""
    path = tmp_path / "error.json"
    monkeypatch.setenv(torchrun.ERROR_FILE, str(path))
    assert not torchrun.leave_problems(InputError(["wrong"]))
    monkeypatch.setenv(torchrun.STARTED_HERE, "1")
    assert torchrun.leave_problems(InputError(["wrong"]))
    assert json.loads(path.read_text())["message"]["problems"] == ["wrong"]


def test_without_torch_it_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same that the verb has."""
    monkeypatch.setattr(torchrun, "find_spec", lambda name: None)
    assert torchrun.main([]) == 2
    assert "torch, which is not installed" in capsys.readouterr().err


SENTENCE = (
    "gpu-mem-calc: measure needs a CUDA GPU, and this torch was built without CUDA; "
    "gpu-mem-calc trace runs the same job without one"
)
# In place of measure: says where it is, and ends with the launcher.
WHERE = """
import os, sys, time
from gpu_mem_calculator.lab.measure.ranks import launched_rank
from gpu_mem_calculator.lab.measure.torchrun import end_with_torchrun
end_with_torchrun()
print(os.getpid(), launched_rank(), flush=True)
time.sleep(float(sys.argv[1]))
"""


RUNNING: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    """No launcher outlives its test, whatever came of it."""
    yield
    while RUNNING:
        with RUNNING.pop() as process:
            process.kill()


@pytest.fixture
def cpu_torch() -> None:
    """torch, and one that cannot measure."""
    if pytest.importorskip("torch").version.cuda is not None:
        pytest.skip("this torch could measure")


def started(words: list[str], folder: Path, **variables: str) -> subprocess.Popen[str]:
    """A launcher as a pod starts it: nothing of this test's own launchers in its environment."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "TORCHELASTIC_"))}
    process = subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**kept, "TMPDIR": str(folder), **variables},
    )
    RUNNING.append(process)
    return process


def pods_of_the_chart(
    folder: Path, launcher: str, script: list[str] | None = None
) -> list[subprocess.Popen[str]]:
    """The two pods of a launcher, started as the kubelet would.

    What differs from pods is the interpreter's path, the run file's, a free port, and that the
    first pod's name is this machine.
    """
    measure = {"ranks": "all", "launcher": launcher, "waitForNodesSeconds": 90}
    values = {
        "mode": "measure",
        "run": small_run("fsdp", 2),
        "nodes": 2,
        "gpusPerNode": 1,
        "measure": measure,
    }
    path = folder / "run.json"
    path.write_text(json.dumps(values["run"]))
    here = {"python": sys.executable, "/run/run.json": str(path), "29500": str(free_port())}
    here |= dict.fromkeys(("release-0.release-ranks", "release-node-0-0.release"), "127.0.0.1")
    documents = {one["kind"]: one["spec"] for one in render(values) if "spec" in one}
    found = indexed(documents["Job"]) if launcher == "job" else trained(documents)
    pods = []
    for words, variables in found:
        if script is not None:
            words[words.index("gpu_mem_calculator") - 1 :] = script
        known = {name: here.get(value, value) for name, value in variables.items()}
        pods.append(started([here.get(word, word) for word in words], folder, **known))
    return pods


def indexed(job: dict[str, Any]) -> Iterator[tuple[list[str], dict[str, str]]]:
    """The pods of an indexed Job: the kubelet fills $(JOB_COMPLETION_INDEX) in."""
    assert job["completions"] == job["parallelism"] == 2
    (pod,) = job["template"]["spec"]["containers"]
    (index,) = (one for one in pod["env"] if one["name"] == "JOB_COMPLETION_INDEX")
    assert "job-completion-index" in index["valueFrom"]["fieldRef"]["fieldPath"]
    for number in "01":
        yield [word.replace("$(JOB_COMPLETION_INDEX)", number) for word in pod["command"]], {}


def trained(objects: dict[str, dict[str, Any]]) -> Iterator[tuple[list[str], dict[str, str]]]:
    """The pods of a TrainJob, with the variables that Kubeflow Trainer 2.3.0 adds.

    pkg/runtime/framework/plugins/torch/torch.go and pkg/constants/constants.go: to the container
    `node` of the Job `node`, which the ancestor's label marks.
    """
    trainer, runtime = objects["TrainJob"]["trainer"], objects["TrainingRuntime"]
    assert runtime["mlPolicy"]["torch"] == {}
    (job,) = runtime["template"]["spec"]["replicatedJobs"]
    assert job["name"] == "node"
    ancestor = job["template"]["metadata"]["labels"]["trainer.kubeflow.org/trainjob-ancestor-step"]
    assert ancestor == "trainer"
    (pod,) = job["template"]["spec"]["template"]["spec"]["containers"]
    assert pod["name"] == "node"
    for rank in range(trainer["numNodes"]):
        yield (
            list(pod["command"]),
            {
                "PET_NNODES": str(trainer["numNodes"]),
                "PET_NPROC_PER_NODE": str(trainer["numProcPerNode"]),
                "PET_NODE_RANK": str(rank),
                "PET_MASTER_ADDR": "release-node-0-0.release",
                "PET_MASTER_PORT": "29500",
            },
        )


def free_port() -> int:
    """One that nobody listens on now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.mark.proof
@pytest.mark.usefixtures("cpu_torch")
def test_two_ranks_without_cuda_say_one_sentence_and_end_with_2(tmp_path: Path) -> None:
    """No traceback of torchrun's around it."""
    path = tmp_path / "run.json"
    path.write_text(json.dumps(small_run("fsdp", 2)))
    node = started(
        [
            *LAUNCH,
            "--standalone",
            "--nproc-per-node",
            "2",
            "-m",
            "gpu_mem_calculator",
            "measure",
            "--config",
            str(path),
        ],
        tmp_path,
    )
    _, said = node.communicate(timeout=100)
    assert (node.returncode, said.splitlines()) == (2, [SENTENCE])


@pytest.mark.proof
@pytest.mark.usefixtures("cpu_torch")
def test_the_pods_of_an_indexed_job_say_it_each(tmp_path: Path) -> None:
    """Whichever pod's log a person reads."""
    for pod in pods_of_the_chart(tmp_path, "job"):
        _, said = pod.communicate(timeout=100)
        assert (pod.returncode, said.splitlines()) == (2, [SENTENCE])


@pytest.mark.usefixtures("cpu_torch")
@pytest.mark.parametrize("launcher", sampled(["trainjob", "job"], keep=1))
def test_pods_find_each_other_and_end_together(tmp_path: Path, launcher: str) -> None:
    """Ranks and nodes are right, and a launcher that is killed leaves no rank behind."""
    script = tmp_path / "where.py"
    script.write_text(WHERE)
    pods = pods_of_the_chart(tmp_path, launcher, [str(script), "90"])
    said = [pod.stdout.readline().split(maxsplit=1) for pod in pods if pod.stdout]
    for pod in pods:
        pod.kill()
        pod.communicate(timeout=100)
    assert [place.strip() for _, place in said] == [
        "RankPlace(rank=0, ranks=2, local_rank=0, local_ranks=1)",
        "RankPlace(rank=1, ranks=2, local_rank=0, local_ranks=1)",
    ]
    for number, _ in said:
        wait_until_gone(int(number))


def wait_until_gone(pid: int) -> None:
    """A process that was killed takes a moment."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return
        if state == "Z":
            return  # dead, and its new parent has not looked yet
        time.sleep(0.05)
    raise AssertionError(f"process {pid} lives on")
