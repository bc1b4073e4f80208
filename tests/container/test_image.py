"""The program as the image has it: the wheel, the pins, user 1000, files that cannot be written."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distributions
from pathlib import Path

import pytest

from gpu_mem_calculator import __version__
from tests.conftest import ROOT
from tests.deploy.pods import BEST, Pod, Running, run, running
from tests.deploy.test_web_pod import asked, prepared

from .dockerfile import last


def runs(engine: str) -> bool:
    """Whether a container engine is installed and answers."""
    path = shutil.which(engine)
    return path is not None and not subprocess.run([path, "info"], capture_output=True).returncode


ENGINE = next(filter(runs, ("docker", "podman", "buildah")), None)
REPLAY = "C" if shutil.which("cc") else "Python"
HEALTHCHECK = [sys.executable, "-IS", str(ROOT / "deploy/healthcheck.py")]
# What an image of Debian's packages could lack: a library of a module, certificates.
LOADS = """
import importlib, os, ssl, obstore, uvloop, httptools, yaml._yaml
for name in os.listdir('/usr/lib/python3.13/lib-dynload'):
    importlib.import_module(name.split('.')[0])
assert ssl.create_default_context().cert_store_stats()['x509_ca'] > 100
assert not os.path.exists('/bin/sh') and os.getuid() == 1000 and not os.access('/', os.W_OK)
"""


@contextmanager
def pod(program: Path, *words: str) -> Iterator[Pod]:
    """The installed program in a pod with nothing to write to but /tmp."""
    with tempfile.TemporaryDirectory() as folder:
        tmp = Path(folder)
        tmp.chmod(0o1777)
        variables = {"PATH": "/usr/bin", "HOME": "/tmp", "HOSTNAME": "image", "LANG": "C.UTF-8"}
        mounts = {"/tmp": tmp, str(program): program}
        command = [str(program / "bin/gpu-mem-calc"), *words]
        yield Pod(command, variables, mounts, {str(program)}, "/tmp", 10)


def test_it_has_what_is_listed(program: Path) -> None:
    """The packages and versions of sbom.cdx.json, and no other."""
    listed = json.loads((ROOT / "deploy/sbom.cdx.json").read_text(encoding="utf-8"))
    entries = [*listed["components"], listed["metadata"]["component"]]
    (packages,) = program.glob("lib/python*/site-packages")
    installed = {
        (one.name.lower().replace("_", "-"), one.version)
        for one in distributions(path=[str(packages)])
    }
    wheels = {(one["name"], one["version"]) for one in entries if "pkg:pypi" in one["purl"]}
    assert installed == wheels


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (json.loads(last("tool", "CMD")), "usage: gpu-mem-calc COMMAND"),
        (["--version"], f"gpu-mem-calc {__version__} (replay in {REPLAY})"),
        (["quick", "7"], "GiB"),
        (["infer", "llama3.1-8b", "--gpu", "h100-80gb-sxm"], "vllm serve"),
        (["deepspeed", "--stage", "2", "--num-parameters", "70e9"], "offload_optimizer=none"),
    ],
)
def test_a_command_runs(program: Path, words: list[str], shown: str) -> None:
    """It ends well, and writes nothing."""
    with pod(program, *words) as made:
        ended = run(made)
    assert ended.code == 0, ended.log
    assert shown in ended.log
    assert ended.written == []


@pytest.fixture(scope="module")
def service(program: Path) -> Iterator[tuple[Running, str]]:
    """The program serving in a pod, and its port."""
    with pod(program, "serve", "--port", "8000") as made:
        port = prepared(made)
        with running(made) as there:
            yield there, port


@pytest.mark.skipif(BEST != "bwrap", reason="the check looks at the first process of a pod")
def test_the_healthcheck_passes_while_the_service_answers(service: tuple[Running, str]) -> None:
    """Run in the pod, as an engine runs it."""
    there, port = service
    asked(there, port)  # waits until it is ready
    inside = ["nsenter", "-t", str(there.first), "-U", "-m", "-n", "-p", "--preserve-credentials"]
    done = subprocess.run([*inside, *HEALTHCHECK], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"127.0.0.1 port {port}: 200\n"), done.stderr


@pytest.mark.skipif(BEST != "bwrap", reason="the check looks at the first process of a pod")
@pytest.mark.parametrize(("words", "code"), [([], 0), (["serve", "--port", "8000"], 1)])
def test_the_healthcheck_fails_where_a_service_is_silent(
    program: Path, words: list[str], code: int
) -> None:
    """The first process is to be a service and nothing listens; any other command is healthy."""
    with pod(program) as made:
        made.command = [*HEALTHCHECK, *words]
        prepared(made)
        ended = run(made)
    assert (ended.code, "refused" in ended.log) == (code, bool(code)), ended.log


def test_the_page_is_in_the_wheel(service: tuple[Running, str]) -> None:
    """With its styles, scripts and facts."""
    paths = ["/", "/static/css/report.css", "/static/js/form.js", "/api/presets"]
    answers = asked(*service, *((path,) for path in paths))
    assert [status for status, *_ in answers] == [200] * len(paths), answers


@pytest.mark.skipif(ENGINE is None, reason="no docker, podman or buildah builds the image here")
def test_an_engine_builds_it_and_it_runs() -> None:
    """Every module finds its library; there is no shell, and nothing to write to but /tmp."""
    assert ENGINE is not None
    verb = "bud" if ENGINE.endswith("buildah") else "build"
    name = "gpu-mem-calculator:test"
    target = ["-f", "deploy/Dockerfile", "--target", "tool", "-t", name, "."]
    subprocess.run([ENGINE, verb, *target], cwd=ROOT, check=True)
    if verb == "bud":
        return  # buildah has no command that runs an image read-only
    limits = ["--rm", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL"]
    python = ["--entrypoint", "/usr/bin/python3.13", name, "-c", LOADS]
    subprocess.run([ENGINE, "run", *limits, *python], check=True)
    done = subprocess.run(
        [ENGINE, "run", *limits, name, "quick", "7"], capture_output=True, text=True
    )
    assert (done.returncode, "GiB" in done.stdout) == (0, True), done.stderr
