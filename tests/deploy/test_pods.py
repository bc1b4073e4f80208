"""The Jobs' pods, run: the guide's commands against a hub and a bucket, and mistakes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.resources import files
from typing import Any

import pytest

from tests.catalog.hub.buckets import KEY, SECRET, bucket
from tests.catalog.hub.servers import hub
from tests.corpus import sampled
from tests.published.test_chart_table import PRINTED

from .cases import CASES, Case, documents, rendered
from .pods import BEST, RUNNERS, Ended, Objects, PodError, expanded, made, run, setpriv

# A model that is on this test's hub alone; the guide's own is a preset and needs no hub.
OURS = "our-team/Llama-3.1-70B-tuned"
CONFIG = (files("gpu_mem_calculator") / "catalog/models/llama3.1-70b.json").read_bytes()
TOKEN = "hf_aVerySecretToken"
OTHER = "n0t-th1s-0ne"
GENERIC = (
    PRINTED.replace("69503M", "70000M")
    .replace("3107.03", "3129.24")
    .replace("129.46", "130.39")
    .replace("275.10", "277.07")
)


def log_end(log: str) -> str:
    """The last six lines, without the blanks at their ends."""
    return "".join(f"{line.rstrip()}\n" for line in log.splitlines()[-6:])


def ended(case: Case, objects: Objects | None = None, *options: str) -> Ended:
    """A case's pod, run to its end."""
    with made(rendered(case), objects or {}) as pod:
        pod.extra += options
        return run(pod)


def given(name: str, *sets: str) -> Case:
    """A case with more --set lines: where this test's servers are."""
    return replace(CASES[name], sets=(*CASES[name].sets, *sets))


def from_hub(address: str) -> Case:
    """The guide's first command with our model and this test's hub."""
    return given("guide-hub", f"modelPath={OURS}", f"hfEndpoint={address}")


def keys(access: str = KEY, secret: str = SECRET) -> Objects:
    """The bucket's secret, under the chart's default names."""
    return {
        ("Secret", "minio-credentials"): {"minio-access-key": access, "minio-secret-key": secret}
    }


def token(value: str = TOKEN) -> Objects:
    """The hub's secret, as the override names it."""
    return {("Secret", "hf-token"): {"hf-token": value}}


@contextmanager
def gated_hub(**more: Any) -> Iterator[Any]:
    """A hub where our model is gated, and the token's owner may read it."""
    models = {OURS: {"config.json": CONFIG}}
    with hub(models, TOKEN, gated=[OURS], **{"members": [OURS], **more}) as there:
        yield there


def one_sentence(done: Ended) -> None:
    """A user's mistake: exit code 2, a line or two, no traceback, no secret."""
    assert done.code == 2, done.log
    assert "Traceback" not in done.log
    assert len(done.log.strip().splitlines()) <= 3, done.log
    assert not any(secret in done.log for secret in (TOKEN, KEY, SECRET, OTHER)), done.log


# --- the guide's three commands ---------------------------------------------------------------


@pytest.mark.parametrize("name", ["guide-hub", "guide-hub-yaml"])
@pytest.mark.parametrize("where", [BEST])
def test_the_guides_first_command(where: str, name: str) -> None:
    """The log ends in the guide's table; the model is a preset, so no network is needed."""
    options = ("--unshare-net",) if where.startswith("bwrap") else ()
    done = ended(CASES[name], token(), *options)
    assert (done.code, log_end(done.log)) == (0, PRINTED)
    assert TOKEN not in done.log
    assert done.written == []


@pytest.mark.parametrize("where", [BEST])
def test_a_model_of_ones_own_on_the_hub(where: str) -> None:
    """A gated one, by the token in a secret: the same table, and the token only at the hub."""
    with gated_hub() as there:
        done = ended(from_hub(there.address), token())
    assert (done.code, log_end(done.log)) == (0, PRINTED)
    assert there.asked[0] == (f"/{OURS}/resolve/main/config.json", f"Bearer {TOKEN}")
    assert TOKEN not in done.log
    assert done.written == []


@pytest.mark.parametrize("where", [BEST])
def test_the_guides_second_command(where: str) -> None:
    """A model in a bucket; its config.json is all that is asked for."""
    path = "models/meta-llama/Llama-3.1-70B/config.json"
    with bucket("default-bucket", {path: CONFIG}) as there:
        done = ended(given("guide-bucket", f"bucketStorageHost={there.endpoint}"), keys())
    assert (done.code, log_end(done.log)) == (0, PRINTED)
    assert {asked[0] for asked in there.asked} == {f"/default-bucket/{path}"}
    assert {asked[2] for asked in there.asked} == {KEY}
    assert SECRET not in done.log
    assert done.written == []


@pytest.mark.parametrize("runner", RUNNERS)
def test_the_guides_third_command(runner: str) -> None:
    """A number alone, with every way to run a pod that there is."""
    with made(documents("guide-number"), {}) as pod:
        done = run(pod, runner)
    assert (done.code, log_end(done.log)) == (0, GENERIC)
    assert done.written == []


@pytest.mark.parametrize(
    ("case", "table"),
    [
        (CASES["number-in-a-file"], GENERIC),
        (given("deepspeed-kaiwo", "modelPath=meta-llama/Llama-3.1-70B"), PRINTED),
        (Case(sets=("modelPath=llama3.1-70b", "numParameters=1e9", "stage=2")), PRINTED),
    ],
    ids=["a number as a values file has it", "within a KaiwoJob", "a model wins over a number"],
)
def test_other_ways_to_the_same_table(case: Case, table: str) -> None:
    """7e+10, as Helm writes it; a wrapped Job; a model and a number."""
    done = ended(case)
    assert (done.code, log_end(done.log)) == (0, table)


def test_stage_3_from_numbers() -> None:
    """The table of stage 3, six rows."""
    done = ended(CASES["stage-3-numbers"])
    assert done.code == 0
    assert "70000M total params, 1050M largest layer params" in done.log
    assert done.log.count("offload_param=") == 6


# --- mistakes --------------------------------------------------------------------------------


def test_a_gated_model_without_permission() -> None:
    """Who is not let in is told so."""
    with gated_hub(members=[]) as there:
        done = ended(from_hub(there.address), token())
    one_sentence(done)
    assert OURS in done.log


def test_a_gated_model_without_a_token() -> None:
    """Without the override, nothing is sent, and the answer says what to do."""
    with gated_hub() as there:
        done = ended(Case(sets=(f"modelPath={OURS}", f"hfEndpoint={there.address}")))
    one_sentence(done)
    assert there.asked[0][1] is None
    assert "HF_TOKEN" in done.log


def test_a_wrong_token() -> None:
    """It is not shown."""
    with gated_hub() as there:
        done = ended(from_hub(there.address), token(f"hf_{OTHER}"))
    one_sentence(done)


@pytest.mark.parametrize("pair", [(OTHER, SECRET), (KEY, OTHER)], ids=["key", "secret"])
def test_wrong_keys_of_a_bucket(pair: tuple[str, str]) -> None:
    """Neither key is shown."""
    with bucket("default-bucket", {"models/meta-llama/Llama-3.1-70B/config.json": CONFIG}) as there:
        done = ended(given("guide-bucket", f"bucketStorageHost={there.endpoint}"), keys(*pair))
    one_sentence(done)
    assert "s3://default-bucket" in done.log


def test_a_model_that_is_not_there() -> None:
    """In a bucket that is."""
    with bucket("default-bucket", {"other/config.json": CONFIG}) as there:
        done = ended(given("guide-bucket", f"bucketStorageHost={there.endpoint}"), keys())
    one_sentence(done)


@pytest.mark.parametrize("name", sampled(["guide-hub", "guide-bucket"], keep=1))
@pytest.mark.parametrize("where", [BEST])
def test_no_network(where: str, name: str) -> None:
    """A pod that reaches nothing says so (without bubblewrap: where nothing listens)."""
    closed = "http://127.0.0.1:9"
    options = ("--unshare-net",) if where.startswith("bwrap") else ()
    case = from_hub(closed) if name == "guide-hub" else given(name, f"bucketStorageHost={closed}")
    done = ended(case, {**keys(), **token()}, *options)
    one_sentence(done)
    assert closed.removeprefix("http://") in done.log


def test_a_secret_that_is_not_there() -> None:
    """The kubelet does not start the container."""
    with (
        pytest.raises(PodError, match="minio-access-key"),
        made(documents("guide-bucket"), token()),
    ):
        pass


# --- the pod itself --------------------------------------------------------------------------


LOOK = """
import json, os
def can_write(path):
    try:
        open(path + "/trial", "w").close()
    except OSError:
        return False
    return True
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({
    "user": [os.getuid(), os.getgid()], "pid": os.getpid(), "work": os.getcwd(),
    "caps": [int(status[key], 16) for key in ("CapEff", "CapPrm", "CapBnd")],
    "new": status["NoNewPrivs"].strip(), "names": sorted(os.environ),
    "written": [p for p in ("/", "/etc", "/usr", "/run", "/var/tmp", "/tmp") if can_write(p)],
}))
"""


@pytest.mark.skipif(BEST != "bwrap", reason="looks at the pod that bubblewrap makes here")
def test_the_pod_is_what_it_says() -> None:
    """User 1000, process 1, its own variables only, nothing to write to but /tmp."""
    with made(documents("guide-hub"), token()) as pod:
        pod.command = [sys.executable, "-c", LOOK]
        found = json.loads(run(pod).log)
    assert found == {
        "user": [1000, 1000],
        "pid": 1,
        "work": "/tmp",
        "caps": [0, 0, 0],
        "new": "1",
        "names": ["HF_TOKEN", "HOME", "HOSTNAME", "LC_CTYPE", "PATH", "PWD"],
        "written": ["/tmp"],
    }


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_without_bubblewrap_the_user_is_the_pods() -> None:
    """What is run instead: user 1000 and no capability, in the volume's folder."""
    with made(documents("guide-number"), {}) as pod:
        pod.command = ["sh", "-c", "id -u; id -g; pwd; grep -h Cap.*f /proc/self/status"]
        done = subprocess.run(setpriv(pod), capture_output=True, text=True, check=True)
        user, group, folder, effective = done.stdout.splitlines()
        assert (user, group, folder) == ("1000", "1000", str(pod.tmp))
        assert int(effective.split()[1], 16) == 0


def test_variables_are_expanded_as_kubernetes_does() -> None:
    """Known ones, unknown ones, and a dollar of its own."""
    assert expanded("$(A)-$(B)-$$(A)-$A", {"A": "1"}) == "1-$(B)-$(A)-$A"
