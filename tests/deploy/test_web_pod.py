"""The page's pod, run: its probes, its answers, and its end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from importlib.resources import files
from typing import Any

import pytest

from tests.catalog.hub.servers import hub
from tests.corpus import sampled
from tests.services import free_port

from .cases import CASES, SMALL_RUN, documents, rendered
from .pods import BEST, Pod, Running, made, run, running, written
from .policies import pods, without_tests

# Asks from within the pod's network, as the kubelet and the Service do: first whether it is ready,
# then each question; prints the answers.
ASK = """
import json, sys, time, urllib.error, urllib.request
port, questions = sys.argv[1], json.loads(sys.argv[2])
def ask(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    kind = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, kind)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return [answer.status, answer.headers["Content-Type"], answer.read().decode()]
    except urllib.error.HTTPError as refused:
        return [refused.code, refused.headers["Content-Type"], refused.read().decode()]
until = time.monotonic() + 60
while True:
    try:
        if ask("/readyz")[0] == 200 or time.monotonic() > until:
            break
    except OSError:
        if time.monotonic() > until:
            raise
    time.sleep(0.1)
print(json.dumps([ask(*question) for question in questions]))
"""
Answer = tuple[int, str, str]  # status, type, body
# A pod's first process ends with 0. One that is not the first ends, once it has tidied up, by the
# signal that it got.
WELL = {0} if BEST == "bwrap" else {0, -signal.SIGTERM}


def prepared(pod: Pod, alone: bool = True) -> str:
    """The port to ask at: the pod's own where it has a network of its own, else a free one."""
    if BEST == "bwrap" and alone:
        pod.extra.append("--unshare-net")
        return "8000"
    port = str(free_port())
    pod.command = [port if word == "8000" else word for word in pod.command]
    return port


def asked(there: Running, port: str, *questions: tuple[Any, ...]) -> list[Answer]:
    """The answers to questions: (path,) or (path, body)."""
    inside = ["nsenter", "-t", str(there.first), "-U", "-n", "--preserve-credentials"]
    done = subprocess.run(
        [
            *(inside if BEST == "bwrap" else []),
            sys.executable,
            "-c",
            ASK,
            port,
            json.dumps(questions),
        ],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=120,
    )
    found: list[Answer] = [tuple(one) for one in json.loads(done.stdout)]
    return found


@pytest.mark.parametrize(("name", "workers"), sampled([("web-all", 1), ("web-least", 2)], keep=1))
@pytest.mark.parametrize("where", [BEST])
def test_the_page_lives_and_ends(where: str, name: str, workers: int) -> None:
    """Probes, page and estimate answer; SIGTERM ends it in time and well."""
    found = rendered(replace(CASES[name], sets=(f"web.workers={workers}",)))
    ((container,),) = [pod.spec["containers"] for pod in pods(without_tests(found))]
    probes = {container[kind]["httpGet"]["path"] for kind in container if kind.endswith("Probe")}
    paths = [*((path,) for path in sorted(probes)), ("/",), ("/api/calculate", SMALL_RUN)]
    objects = {("Secret", "hf-token"): {"token": "hf_aVerySecretToken"}}
    with made(found, objects) as pod:
        port = prepared(pod)
        with running(pod) as there:
            answers = asked(there, port, *paths)
            code, seconds, log = there.stop(pod.grace)
        left = written(pod)
    page, estimate = answers[-2:]
    assert [status for status, *_ in answers] == [200] * len(answers), answers
    assert page[1].startswith("text/html")
    assert json.loads(estimate[2])["fits_on_gpu"] is True
    assert code in WELL, log
    assert seconds < pod.grace - 5  # the five that come before SIGTERM
    assert "Traceback" not in log
    assert "hf_aVerySecretToken" not in log + page[2]
    assert left == []


@pytest.mark.proof
@pytest.mark.parametrize("where", [BEST])
def test_helm_test_asks_the_page(where: str) -> None:
    """Its pod's own command ends well against the page, and not where nothing answers."""
    found = rendered(replace(CASES["web-least"], sets=("web.workers=1",)))
    (test,) = [one for one in found if one["kind"] == "Pod"]
    with made(found, {}) as page, made([test], {}) as pod:
        _, option, script, _ = pod.command
        pod.command = [sys.executable, option, script]
        pod.command.append(f"http://127.0.0.1:{prepared(page, alone=False)}")
        with running(page):
            answered = run(pod)
        pod.command[-2] = script.replace("+ 60", "+ 0")  # nobody waits a minute here
        refused = run(pod)
    assert answered.code == 0, answered.log
    assert "answers: llama2-7b on 8 GPUs allocates" in answered.log
    assert refused.code == 1
    assert "is not ready after a minute" in refused.log
    assert "Traceback" not in refused.log


@pytest.mark.proof
@pytest.mark.parametrize("where", [BEST])
def test_visitors_may_ask_the_hub(where: str) -> None:
    """With web.hub and a token, a private model is read; the token stays in the pod."""
    config = (files("gpu_mem_calculator") / "catalog/models/llama3.1-8b.json").read_bytes()
    token = "hf_aVerySecretToken"
    models = {"our-team/tuned": {"config.json": config}}
    with hub(models, token, private=["our-team/tuned"]) as there:
        case = replace(CASES["web-all"], sets=("web.workers=1", f"hfEndpoint={there.address}"))
        with made(rendered(case), {("Secret", "hf-token"): {"token": token}}) as pod:
            port = prepared(pod, alone=False)
            with running(pod) as service:
                question = ("/api/validate", {"model": {"name": "our-team/tuned"}})
                ((status, _, body),) = asked(service, port, question)
                code, _, log = service.stop(pod.grace)
    assert status == 200, body
    assert code in WELL, log
    assert json.loads(body)["valid"], body
    assert there.asked[0] == ("/our-team/tuned/resolve/main/config.json", f"Bearer {token}")
    assert token not in log + body


def test_probes_ask_what_answers() -> None:
    """The two addresses that the service has for it."""
    for name in (name for name in CASES if name.startswith("web")):
        for pod in pods(without_tests(documents(name))):
            (container,) = pod.spec["containers"]
            kinds = ("startupProbe", "readinessProbe", "livenessProbe")
            asked_at = [container[kind]["httpGet"]["path"] for kind in kinds]
            assert asked_at == ["/readyz", "/readyz", "/healthz"]
