"""A rendered pod's container run as the kubelet would: its user, its variables and no others, its
volumes, a root that is read-only, no capability, no way to gain one.

The image is this machine's own root, with the tests' Python as the entry point. Bubblewrap makes
the pod; where there is none, setpriv gives the user alone, and where that cannot be, nothing does:
a test's id says which.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .policies import Document, pods, without_tests

HERE = Path(__file__).parents[2]
ENTRYPOINT = [sys.executable, "-m", "gpu_mem_calculator"]
IMAGE_VARIABLES = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
NOT_BOUND = {"dev", "lost+found", "proc", "run", "sys", "tmp"}  # the runtime's own
Objects = Mapping[tuple[str, str], Mapping[str, str]]  # (kind, name): its data


class PodError(Exception):
    """What keeps a container from being made: CreateContainerConfigError, in Kubernetes."""


@dataclass
class Pod:
    """A container's process to be: what it runs, with which variables, and what is where."""

    command: list[str]
    variables: dict[str, str]
    folders: dict[str, Path]  # by mount path
    read_only: set[str]
    work: str
    grace: int
    user: tuple[int, int] = (1000, 1000)
    extra: list[str] = field(default_factory=list)  # more options of bubblewrap

    @property
    def tmp(self) -> Path:
        """The volume at /tmp."""
        return self.folders["/tmp"]


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """`$(NAME)` as Kubernetes expands it: one that is not there stays, `$$` is a dollar."""

    def one(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return variables.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)", one, text)


def looked_up(kind: str, reference: Mapping[str, Any], objects: Objects) -> str | None:
    """An entry of a secret or a config map; none where it is missing and may be."""
    held = objects.get((kind, reference["name"]), {})
    if reference["key"] in held:
        return held[reference["key"]]
    if reference.get("optional"):
        return None
    raise PodError(f"couldn't find key {reference['key']} in {kind} {reference['name']}")


def variables(container: Document, objects: Objects, fields: Mapping[str, str]) -> dict[str, str]:
    """The container's variables, in order, each seeing those before it."""
    made = {**IMAGE_VARIABLES, "HOSTNAME": fields["metadata.name"]}
    for one in container.get("env", []):
        source = one.get("valueFrom", {})
        if "secretKeyRef" in source:
            value = looked_up("Secret", source["secretKeyRef"], objects)
        elif "configMapKeyRef" in source:
            value = looked_up("ConfigMap", source["configMapKeyRef"], objects)
        elif "fieldRef" in source:
            value = fields[source["fieldRef"]["fieldPath"]]
        else:
            value = expanded(one.get("value", ""), made)
        if value is not None:
            made[one["name"]] = value
    return made


def volume(spec: Document, mount: Document, objects: Objects, at: Path) -> Path:
    """A mount's folder, or its file where it names a subPath."""
    (held,) = [one for one in spec["volumes"] if one["name"] == mount["name"]]
    folder = at / mount["name"]
    folder.mkdir(exist_ok=True)
    if "configMap" in held:
        name = held["configMap"]["name"]
        if ("ConfigMap", name) not in objects:
            raise PodError(f'configmap "{name}" not found')
        for key, text in objects["ConfigMap", name].items():
            (folder / key).write_text(text, encoding="utf-8")
    else:
        assert "emptyDir" in held, held
        folder.chmod(0o777)
    return folder / mount["subPath"] if "subPath" in mount else folder


def whom(security: Document) -> tuple[int, int]:
    """User and group; where a pod does not say, what OpenShift chooses: a high number, group 0."""
    return security.get("runAsUser", 1_000_650_000), security.get("runAsGroup", 0)


@contextmanager
def made(
    documents: list[Document], objects: Objects, fields: Mapping[str, str] | None = None
) -> Iterator[Pod]:
    """The pod of a case's documents with these secrets; its volumes go at the end."""
    (pod,) = pods(without_tests(documents) or documents)
    (container,) = pod.spec["containers"]
    own = {
        ("ConfigMap", one["metadata"]["name"]): one["data"]
        for one in documents
        if one["kind"] == "ConfigMap"
    }
    objects = {**objects, **own}
    known = {"metadata.name": f"{documents[0]['metadata']['name']}-x7k2p", **(fields or {})}
    given = variables(container, objects, known)
    at = Path(tempfile.mkdtemp(prefix="pod-"))
    try:
        at.chmod(0o755)
        mounts = container.get("volumeMounts", [])
        folders = {one["mountPath"]: volume(pod.spec, one, objects, at) for one in mounts}
        entry = container.get("command") or ENTRYPOINT
        yield Pod(
            [expanded(word, given) for word in [*entry, *container.get("args", [])]],
            given,
            folders,
            {one["mountPath"] for one in mounts if one.get("readOnly")},
            container["workingDir"],
            pod.spec.get("terminationGracePeriodSeconds", 30),
            whom(pod.spec["securityContext"]),
        )
    finally:
        shutil.rmtree(at)


# --- how a pod is run ------------------------------------------------------------------------


def bubblewrap(pod: Pod) -> list[str]:
    """The command line of a pod in its own namespaces, its first process being the command."""
    line = ["bwrap", "--unshare-user", "--cap-drop", "ALL"]
    line += ["--uid", str(pod.user[0]), "--gid", str(pod.user[1])]
    line += ["--unshare-pid", "--as-pid-1", "--unshare-ipc", "--unshare-uts", "--new-session"]
    line += ["--hostname", pod.variables["HOSTNAME"], "--die-with-parent", "--tmpfs", "/"]
    for one in sorted(Path("/").iterdir()):
        if one.name not in NOT_BOUND:
            link = (
                ["--symlink", str(one.readlink())] if one.is_symlink() else ["--ro-bind", str(one)]
            )
            line += [*link, f"/{one.name}"]
    line += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/run"]
    for path, folder in sorted(pod.folders.items()):
        line += ["--ro-bind" if path in pod.read_only else "--bind", str(folder), path]
    for needed in {str(HERE), sys.prefix, sys.base_prefix}:  # seen also under a volume's path
        if any(needed.startswith(f"{path}/") for path in pod.folders):
            line += ["--ro-bind", needed, needed]
    line += ["--remount-ro", "/run", "--remount-ro", "/", "--clearenv", "--chdir", pod.work]
    for name, value in pod.variables.items():
        line += ["--setenv", name, value]
    return [*line, *pod.extra, "--", *pod.command]


def moved(pod: Pod, text: str) -> str:
    """A text whose mount paths are the folders themselves, where nothing can be mounted."""
    for path, folder in pod.folders.items():
        text = re.sub(rf"(?<![^=]){re.escape(path)}(?=/|$)", str(folder), text)
    return text


def setpriv(pod: Pod) -> list[str]:
    """The same with the pod's user, no capability and no way to one; the root is its own guard."""
    given = [f"{name}={moved(pod, value)}" for name, value in pod.variables.items()]
    user = ["setpriv", "--reuid", str(pod.user[0]), "--regid", str(pod.user[1])]
    limits = ["--clear-groups", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
    return [*user, *limits, *plain(pod, given)]


def plain(pod: Pod, given: list[str] | None = None) -> list[str]:
    """The process and its variables alone."""
    given = given or [f"{name}={moved(pod, value)}" for name, value in pod.variables.items()]
    work = ["--chdir", moved(pod, pod.work)]
    program, *words = pod.command  # the program is this machine's, also where it lies in /tmp
    return ["env", "-i", *work, *given, program, *(moved(pod, word) for word in words)]


def works(command: list[str]) -> bool:
    """Whether a command ends well here."""
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def found_runners() -> dict[str, Any]:
    """How pods can be run here, the best first."""
    trial = Pod(
        [*ENTRYPOINT, "--version"],
        {**IMAGE_VARIABLES, "HOSTNAME": "x"},
        {"/tmp": Path(tempfile.gettempdir())},
        set(),
        "/tmp",
        1,
    )
    ways = {"bwrap": bubblewrap, "setpriv": setpriv}
    return {name: way for name, way in ways.items() if works(way(trial))} | {"plain": plain}


RUNNERS = found_runners()
BEST = next(iter(RUNNERS))


@dataclass
class Ended:
    """How a container ended: its code, its log as `kubectl logs` has it, its volume at /tmp."""

    code: int
    log: str
    written: list[str]


def run(pod: Pod, runner: str = BEST, seconds: float = 60) -> Ended:
    """The container until it ends."""
    done = subprocess.run(
        RUNNERS[runner](pod),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    return Ended(done.returncode, done.stdout, written(pod))


def written(pod: Pod) -> list[str]:
    """The files that are in the volume at /tmp."""
    return sorted(str(one.relative_to(pod.tmp)) for one in pod.tmp.rglob("*") if one.is_file())


@dataclass
class Running:
    """A container that stays up."""

    process: subprocess.Popen[str]
    first: int  # its first process, as this machine counts

    def stop(self, grace: float) -> tuple[int, float, str]:
        """SIGTERM, as a pod that is deleted gets it: the code, the seconds and the log."""
        begun = time.monotonic()
        os.kill(self.first, signal.SIGTERM)
        try:
            log, _ = self.process.communicate(timeout=grace)
        except subprocess.TimeoutExpired:
            os.kill(self.first, signal.SIGKILL)
            log, _ = self.process.communicate()
        return self.process.returncode, time.monotonic() - begun, log


@contextmanager
def running(pod: Pod, runner: str = BEST) -> Iterator[Running]:
    """A container that is started, and killed if it still runs at the end."""
    read, write = os.pipe()
    if runner == "bwrap":
        pod.extra += ["--info-fd", str(write)]
    process = subprocess.Popen(
        RUNNERS[runner](pod),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        stdin=subprocess.DEVNULL,
        pass_fds=[write],
    )
    os.close(write)
    with os.fdopen(read) as told:
        first = json.loads(told.read())["child-pid"] if runner == "bwrap" else process.pid
    try:
        yield Running(process, first)
    finally:
        if process.poll() is None:
            os.kill(first, signal.SIGKILL)
            process.communicate()
