"""The image as its Dockerfile makes it: built without an engine, and run as its own user."""

from __future__ import annotations

import json
import signal
import stat
import subprocess
import time
from pathlib import Path

import components
import pytest

from gpu_mem_calculator import __version__
from tests.conftest import ROOT, small_run
from tests.services import free_port

from .bare_image import size
from .bare_run import configured, entry, inside
from .built import image_root

PYTHON = "/usr/bin/python3.13"


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image's files."""
    return image_root(tmp_path_factory)


def ran(root: Path, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """The entry point with words."""
    return subprocess.run(
        entry(root, words), input=given, capture_output=True, text=True, timeout=120, check=False
    )


def python(root: Path, code: str) -> str:
    """What code prints inside."""
    done = subprocess.run(
        inside(root, [PYTHON, "-c", code]), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_it_is_small(root: Path) -> None:
    """Under 150 MB as files, without anything compressed."""
    assert 50e6 < size(root) < 150e6


def test_it_has_no_tools_and_nothing_that_gives_rights(root: Path) -> None:
    """No shell, no pip, no package manager; no file that runs as its owner."""
    programs = {path.name for path in (root / "usr/bin").iterdir()}
    assert {"gpu-mem-calc", "python3.13"} <= programs
    assert not programs & {"sh", "bash", "dash", "busybox", "apt", "apt-get", "dpkg", "pip", "pip3"}
    assert not list((root / components.PACKAGES).glob("pip*"))
    files = [path.lstat().st_mode for path in root.rglob("*") if not path.is_symlink()]
    assert not [
        mode for mode in files if stat.S_ISREG(mode) and mode & (stat.S_ISUID | stat.S_ISGID)
    ]
    assert not [mode for mode in files if stat.S_ISREG(mode) and mode & stat.S_IWOTH]


def test_nothing_of_this_machine_is_in_it(root: Path) -> None:
    """Neither how it reaches the network nor where it was made."""
    assert not (root / "etc/pip.conf").exists()
    assert not (root / "root").exists() or not list((root / "root").iterdir())
    origins = [path.read_text() for path in root.rglob("direct_url.json")]
    assert not [text for text in origins if str(ROOT) in text]


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ([], "usage: gpu-mem-calc COMMAND"),
        (["--version"], f"gpu-mem-calc {__version__}"),
        (["quick", "7"], "GiB"),
        (["infer", "llama3.1-8b", "--gpu", "h100-80gb-sxm"], "vllm serve"),
        (["deepspeed", "--stage", "2", "--num-parameters", "70e9"], "offload_optimizer=none"),
        (["deepspeed", "--stage", "3", "--model-path", "llama2-7b"], "zero_init=1"),
    ],
)
def test_a_command_runs(root: Path, words: list[str], shown: str) -> None:
    """As user 1000, without a capability, on files that cannot be written."""
    done = ran(root, *words)
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout


def test_it_estimates_as_this_machine_does(root: Path) -> None:
    """The whole estimate of a run file, replay and all, byte for byte."""
    from gpu_mem_calculator import estimate

    # the program reads the run file from its standard input's device: nothing is mounted
    words = ["calculate", "--config", "/proc/self/fd/0", "--format", "json"]
    done = ran(root, *words, given=json.dumps(small_run()))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["needs_bytes"] == estimate(small_run()).needs_bytes


def test_a_mistake_is_a_sentence(root: Path) -> None:
    """Exit code 2 and no traceback, as anywhere."""
    done = ran(root, "quik")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1


def test_its_user_is_nobody_in_particular(root: Path) -> None:
    """1000:1000, a home in /tmp, and nothing else to write to."""
    code = (
        "import os, pwd; print(os.getuid(), os.getgid(), pwd.getpwuid(1000).pw_name, os.getcwd(), "
        "os.access('/', os.W_OK), os.access('/tmp', os.W_OK))"
    )
    assert python(root, code) == "1000 1000 calculator /tmp False True"


def test_every_module_and_library_loads(root: Path) -> None:
    """What is there works: no extension without its library; buckets, certificates."""
    code = (
        "import importlib, os, ssl, obstore, uvloop, httptools, yaml._yaml\n"
        "for name in os.listdir('/usr/lib/python3.13/lib-dynload'):\n"
        "    importlib.import_module(name.split('.')[0])\n"
        "print(ssl.create_default_context().cert_store_stats()['x509_ca'])"
    )
    assert int(python(root, code)) > 100


def test_every_module_is_compiled_for_where_it_lies(root: Path) -> None:
    """A read-only file system cannot keep what the first start would compile."""
    code = (
        "import sys, json, gpu_mem_calculator.cli.main as own\n"
        "loaded = [m for m in sys.modules.values() if getattr(m, '__cached__', None)]\n"
        "import os; print([m.__name__ for m in loaded if not os.path.exists(m.__cached__)])\n"
        "print(own.main.__code__.co_filename)"
    )
    missing, path = python(root, code).splitlines()
    assert missing == "[]"
    assert path == f"/{components.PACKAGES}/gpu_mem_calculator/cli/main.py"


def test_the_healthcheck_follows_the_service(root: Path) -> None:
    """Fails before it listens, passes while it does, fails when it is gone."""
    port = free_port()
    config = configured(root)
    check = config["Healthcheck"]["Test"][1:]
    # The first process that a check sees is the service's, as in a container: here bubblewrap's own
    # first process, which has the check's words; so the words of the service are put behind it.
    words = [*check, "serve", "--host", "0.0.0.0", "--port", str(port)]

    def healthy() -> bool:
        return subprocess.run(inside(root, words), capture_output=True).returncode == 0

    assert not healthy()
    serving = entry(root, ["serve", "--host", "0.0.0.0", "--port", str(port)])
    with subprocess.Popen(serving, stdout=subprocess.DEVNULL) as service:
        end = time.monotonic() + 60
        while not healthy() and time.monotonic() < end:
            time.sleep(0.2)
        assert healthy()
        service.send_signal(signal.SIGTERM)
        service.wait(20)
    assert not healthy()
    assert subprocess.run(inside(root, check), capture_output=True).returncode == 0


def test_its_lists_are_of_what_it_holds(root: Path) -> None:
    """The components and licences of sbom.cdx.json; Debian's versions move on by themselves."""
    kept = json.loads((ROOT / "deploy/sbom.cdx.json").read_text(encoding="utf-8"))
    found = components.bill(root)
    assert _comparable(found) == _comparable(kept)
    for name in components.DEBIAN:
        assert (root / "usr/share/doc" / name / "copyright").stat().st_size > 100


def _comparable(listed: dict[str, object]) -> list[tuple[str, str, str]]:
    """Name, version where it is pinned, licence."""
    entries = listed["components"]
    assert isinstance(entries, list)
    return [
        (each["name"], "" if "pkg:deb" in each["purl"] else each["version"], str(each["licenses"]))
        for each in entries
    ]
