"""The action, the hook and the template of a forge: their steps, run as the forge runs them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import yaml

from tests.conftest import ROOT

ACTION = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
HOOKS = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
TEMPLATE = yaml.safe_load((ROOT / "deploy/gitlab/gpu-mem-calc.yml").read_text("utf-8"))
COMMAND = Path(sys.executable).with_name("gpu-mem-calc")
SMALL = {"model": {"name": "gpt2"}, "training": {"batch_size": 1, "seq_len": 512}}
LARGE = {**SMALL, "training": {"batch_size": 512, "seq_len": 1024}}
OPEN = "vllm serve Qwen/Qwen3-8B\n"  # without a card
REPOSITORY, BOT = "owner/project", "github-actions[bot]"

Files = Mapping[str, Any]


class Forge(BaseHTTPRequestHandler):
    """A stand-in for the part of GitHub's API that comments use."""

    comments: list[dict[str, Any]]
    status = 200

    def do_GET(self) -> None:
        """The comments, by pages."""
        found = re.fullmatch(
            rf"/repos/{REPOSITORY}/issues/7/comments\?per_page=(\d+)&page=(\d+)", self.path
        )
        assert found, self.path
        size, page = int(found[1]), int(found[2])
        self.answer(self.comments[size * (page - 1) : size * page])

    def do_POST(self) -> None:
        """A new comment."""
        assert self.path == f"/repos/{REPOSITORY}/issues/7/comments"
        new = {"id": 1000 + len(self.comments), "user": {"login": BOT}, **self.body()}
        if self.status == 200:
            self.comments.append(new)
        self.answer(new)

    def do_PATCH(self) -> None:
        """A comment's new text."""
        number = int(self.path.removeprefix(f"/repos/{REPOSITORY}/issues/comments/"))
        (old,) = [one for one in self.comments if one["id"] == number]
        old.update(self.body())
        self.answer(old)

    def body(self) -> Any:
        """The JSON that was sent, with the token."""
        assert self.headers["authorization"] == "Bearer a-token"
        return json.loads(self.rfile.read(int(self.headers["content-length"])))

    def answer(self, data: Any) -> None:
        """Send JSON."""
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(json.dumps(data).encode())

    def log_message(self, *_: Any) -> None:
        """Nothing is printed."""


@contextmanager
def forge(comments: list[dict[str, Any]], status: int = 200) -> Iterator[str]:
    """Its address, as long as it runs."""
    handler = type("Handler", (Forge,), {"comments": comments, "status": status})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Project:
    """A git repository of a user, with a branch whose files differ from those of main."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.git("init", "-q", "-b", "main")

    def git(self, *words: str) -> str:
        """What git prints."""
        own = ("git", "-c", "user.name=A", "-c", "user.email=a@example.org", *words)
        done = subprocess.run(
            own, cwd=self.folder, capture_output=True, text=True, check=True, env=clean()
        )
        return done.stdout.strip()

    def write(self, files: Files) -> None:
        """Write files and add them."""
        for name, content in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content if isinstance(content, str) else json.dumps(content))
        self.git("add", "-A")

    def commit(self, files: Files) -> str:
        """Write files and commit them; the commit's name."""
        self.write(files)
        self.git("commit", "-q", "-m", "A change")
        return self.git("rev-parse", "HEAD")


def clean() -> dict[str, str]:
    """The environment without settings of this machine's git, and without the hub."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    nothing = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    return {**kept, **nothing, "HF_HUB_OFFLINE": "1"}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A repository with a configuration that fits."""
    made = Project(tmp_path / "project")
    made.commit({"runs/small.json": SMALL, "README.md": "x"})
    return made


class Job:
    """What a forge's runner does with the steps of the action."""

    def __init__(self, project: Project, base: str, api: str = "", **inputs: str) -> None:
        self.project, self.folder = project, project.folder.parent / "runner"
        self.folder.mkdir(exist_ok=True)
        self.outputs: dict[str, dict[str, str]] = {}
        defaults = {name: one.get("default", "") for name, one in ACTION["inputs"].items()}
        given = {"command": str(COMMAND), "token": "a-token", "gpu": "4090", **inputs}
        self.context = {
            **{f"inputs.{name}": value for name, value in {**defaults, **given}.items()},
            "github.action_path": str(ROOT),
            "github.event.pull_request.base.sha": base,
            "github.event.pull_request.number": "7",
        }
        self.api = api
        self.log = ""
        self.code = 0

    def value(self, text: str) -> str:
        """A text with its expressions filled in: names, and `||` between them."""

        def filled(match: re.Match[str]) -> str:
            names = (name.strip() for name in match[1].split("||"))
            return next((found for name in names if (found := self.named(name))), "")

        return re.sub(r"\$\{\{ *(.*?) *\}\}", filled, text)

    def named(self, name: str) -> str:
        """The value of a name; empty where there is none, as on a forge."""
        step = re.fullmatch(r"steps\.([\w-]+)\.outputs\.([\w-]+)", name)
        if step:
            return self.outputs.get(step[1], {}).get(step[2], "")
        assert name in self.context or name.startswith("github.event."), name
        return self.context.get(name, "")

    def run(self) -> Job:
        """All steps, up to the first one that fails."""
        for step in ACTION["runs"]["steps"]:
            assert step.keys() <= {"name", "id", "shell", "env", "run"}
            assert step["shell"] == "bash"
            assert "${{" not in step["run"]  # what a user writes is never part of a script
            said = self.folder / "output"
            said.write_text("")
            environment = {
                **clean(),
                **{name: self.value(text) for name, text in step["env"].items()},
                "GITHUB_API_URL": self.api,
                "GITHUB_OUTPUT": str(said),
                "GITHUB_REPOSITORY": REPOSITORY,
                "GITHUB_STEP_SUMMARY": str(self.folder / "summary.md"),
                "RUNNER_TEMP": str(self.folder),
            }
            script = self.folder / "step.sh"
            script.write_text(step["run"])
            words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)]
            done = subprocess.run(
                words, cwd=self.project.folder, env=environment, capture_output=True, text=True
            )
            self.log += done.stdout + done.stderr
            rows = (line.partition("=") for line in said.read_text().splitlines())
            self.outputs[step.get("id", step["name"])] = {name: text for name, _, text in rows}
            self.code = done.returncode
            if self.code:
                break
        return self

    def output(self, name: str) -> str:
        """An output of the action."""
        return self.value(ACTION["outputs"][name]["value"])

    def file(self, name: str) -> str:
        """The text of the file that an output names."""
        return Path(self.output(name)).read_text("utf-8")


def test_the_action_writes_one_comment_and_updates_it(project: Project) -> None:
    """Of the bot's own: a comment of somebody else with the marker stays."""
    base = project.git("rev-parse", "HEAD")
    spoof = {"id": 1, "user": {"login": "somebody"}, "body": "<!-- gpu-mem-calculator -->\nmine"}
    others = [{"id": n, "user": {"login": "a"}, "body": "x"} for n in range(2, 140)]
    comments: list[dict[str, Any]] = [spoof, *others]
    with forge(comments) as api:
        project.commit({"runs/small.json": LARGE})
        first = Job(project, base, api).run()
        assert (first.code, first.output("exit-code")) == (1, "1"), first.log
        assert len(comments) == 140
        assert "does not fit" in comments[-1]["body"]
        assert "`--set training." in comments[-1]["body"]
        project.commit({"runs/small.json": {**SMALL, "training": {"batch_size": 2}}})
        second = Job(project, base, api).run()
        assert (second.code, second.output("exit-code")) == (0, "0"), second.log
    assert len(comments) == 140
    assert "1 run, fits" in comments[-1]["body"]
    assert spoof["body"].endswith("mine")


def test_the_action_writes_files_and_a_summary(project: Project) -> None:
    """Those that its outputs name."""
    base = project.git("rev-parse", "HEAD")
    project.commit({"runs/small.json": LARGE, "runs/new.json": SMALL})
    with forge([]) as api:
        job = Job(project, base, api).run()
    results = json.loads(job.file("sarif"))["runs"][0]["results"]
    assert [one["ruleId"] for one in results] == ["does_not_fit"]
    assert ET.fromstring(job.file("junit")).attrib["tests"] == "2"
    assert (job.folder / "summary.md").read_text("utf-8") == job.file("comment")


@pytest.mark.proof
def test_no_comment_is_written_where_nothing_changed(project: Project) -> None:
    """Nor where it is not wanted; an old one is updated."""
    base = project.git("rev-parse", "HEAD")
    comments: list[dict[str, Any]] = []
    project.commit({"README.md": "y"})
    with forge(comments) as api:
        assert Job(project, base, api).run().code == 0
        assert comments == []
        project.commit({"runs/small.json": LARGE})
        assert Job(project, base, api, comment="false").run().code == 1
        assert comments == []
        comments.append({"id": 3, "user": {"login": BOT}, "body": "<!-- gpu-mem-calculator -->"})
        project.commit({"runs/small.json": SMALL})
        assert Job(project, base, api).run().code == 0
    assert "no training or serving configuration changed" in comments[0]["body"]


@pytest.mark.proof
def test_a_token_that_may_not_write_is_a_warning(project: Project) -> None:
    """As that of a pull request from a fork; the verdict decides."""
    base = project.git("rev-parse", "HEAD")
    project.commit({"runs/new.json": SMALL})
    with forge([], status=403) as api:
        job = Job(project, base, api).run()
    assert job.code == 0
    assert "::warning::the token may not write a comment (HTTP 403)" in job.log
    with forge([], status=500) as api:
        assert Job(project, base, api).run().code == 1


@pytest.mark.parametrize(("how", "code"), [("fail", 3), ("pass", 0)])
def test_what_cannot_be_told_fails_or_passes(project: Project, how: str, code: int) -> None:
    """As the input says; the output has the code in any case."""
    base = project.git("rev-parse", "HEAD")
    project.commit({"serve.sh": OPEN})
    with forge([]) as api:
        job = Job(project, base, api, gpu="", **{"cannot-tell": how}).run()
    assert (job.code, job.output("exit-code")) == (code, "3"), job.log


def test_bad_input_and_a_base_that_is_missing(project: Project) -> None:
    """Exit code 2."""
    base = project.git("rev-parse", "HEAD")
    with forge([]) as api:
        assert Job(project, "a" * 40, api).run().code == 2
        project.commit({"runs/small.json": '{"model": '})
        assert Job(project, base, api).run().code == 2
        assert Job(project, "0" * 40, api).run().code == 2  # HEAD^ is the base


def test_names_and_inputs_are_not_run(project: Project) -> None:
    """Neither a file's name nor an input is a command of the shell or of the runner."""
    base = project.git("rev-parse", "HEAD")
    project.commit({"$(touch hit).json": LARGE, "x\n::error::hit.json": LARGE})
    with forge([]) as api:
        job = Job(project, base, api, options="$(touch hit) ; touch hit").run()
        assert job.code == 2
        job = Job(project, base, api, gpu="$(touch hit)").run()
        assert job.code == 2
        job = Job(project, base, api).run()
    assert job.code == 1
    assert not (project.folder / "hit").exists()
    before, stopped, rest = job.log.partition("::stop-commands::")
    token = rest.partition("\n")[0]
    _, ended, after = rest.partition(f"::{token}::")
    assert stopped
    assert ended
    assert "::error" not in before + after


def test_a_shallow_clone_fetches_its_base(project: Project, tmp_path: Path) -> None:
    """As the forge's checkout makes one."""
    base = project.git("rev-parse", "HEAD")
    project.commit({"runs/small.json": {**SMALL, "training": {"batch_size": 2}}})
    project.git("config", "uploadpack.allowAnySHA1InWant", "true")
    clone = tmp_path / "clone"
    project.git("clone", "-q", "--depth=1", f"file://{project.folder}", str(clone))
    shallow = Project.__new__(Project)
    shallow.folder = clone
    with forge([]) as api:
        job = Job(shallow, base, api).run()
    assert job.code == 0, job.log
    assert "1 run, fits" in job.file("comment")


@pytest.mark.proof
def test_the_action_installs_its_own(project: Project) -> None:
    """From this checkout; what it needs comes from an index, each file by its hash."""
    base = project.git("rev-parse", "HEAD")
    project.commit({"runs/small.json": LARGE})
    with forge([]) as api:
        job = Job(project, base, api, command="").run()
    if "No matching distribution" in job.log or "ProxyError" in job.log:
        pytest.skip("no index can be asked here")
    assert job.code == 1, job.log
    assert (job.folder / "gpu-mem-calc" / "bin" / "gpu-mem-calc").exists()


def test_the_hook_stops_a_commit(project: Project, tmp_path: Path) -> None:
    """pre-commit runs it with the command that is installed here, where git commits."""
    pre_commit = shutil.which("pre-commit", path=str(COMMAND.parent))
    if pre_commit is None:
        pytest.skip("pre-commit is not installed")
    (hook,) = HOOKS
    own = {**hook, "language": "system", "args": ["--gpu", "4090"]}
    config = {"repos": [{"repo": "local", "hooks": [own]}]}
    project.commit({".pre-commit-config.yaml": yaml.safe_dump(config)})
    path = f"{COMMAND.parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**clean(), "PATH": path, "PRE_COMMIT_HOME": str(tmp_path / "cache")}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, cwd=project.folder, env=environment, capture_output=True, text=True
        )

    installed = run(pre_commit, "install")
    assert installed.returncode == 0, installed.stderr
    commit = ("git", "-c", "user.name=A", "-c", "user.email=a@example.org", "commit", "-m", "x")
    project.write({"runs/small.json": LARGE})
    stopped = run(*commit)
    assert stopped.returncode == 1
    assert "runs/small.json" in stopped.stdout + stopped.stderr
    assert "does not fit" in stopped.stdout + stopped.stderr
    project.write({"runs/small.json": {**SMALL, "training": {"batch_size": 2}}})
    assert run(*commit).returncode == 0
    project.write({"README.md": "z"})
    passed = run(*commit)
    assert passed.returncode == 0
    assert "Skipped" in passed.stdout + passed.stderr


def gitlab(project: Project, **variables: str) -> tuple[int, str]:
    """Run the template's script; its exit code, and what it printed."""
    job = TEMPLATE["gpu-mem-calc"]
    lines = [*job["before_script"], *job["script"]]
    environment = {
        **clean(),
        **job["variables"],
        "PATH": f"{COMMAND.parent}{os.pathsep}{os.environ['PATH']}",
        **variables,
    }
    words = ["bash", "-eo", "pipefail", "-c", "\n".join(lines)]
    done = subprocess.run(
        words, cwd=project.folder, env=environment, capture_output=True, text=True
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.proof
def test_the_template_of_gitlab(project: Project) -> None:
    """Its script writes every file that its artifacts name; 3 is allowed."""
    base = project.git("rev-parse", "HEAD")
    project.commit({"runs/small.json": LARGE})
    known = {"CI_MERGE_REQUEST_DIFF_BASE_SHA": base, "GPU_MEM_CALC_GPU": "4090"}
    code, said = gitlab(project, **known)
    assert code == 1, said
    artifacts = TEMPLATE["gpu-mem-calc"]["artifacts"]
    names = [*artifacts["paths"], *artifacts["reports"].values()]
    assert all((project.folder / name).stat().st_size for name in names)
    quality = json.loads((project.folder / artifacts["reports"]["codequality"]).read_text())
    assert [one["check_name"] for one in quality] == ["does_not_fit"]
    assert ET.parse(project.folder / artifacts["reports"]["junit"]).getroot().attrib["tests"] == "1"
    project.git("clean", "-qfd")
    code, said = gitlab(project, **known, GPU_MEM_CALC_OPTIONS="--set training.batch_size=1")
    assert code == 0, said
    project.commit({"runs/small.json": SMALL, "serve.sh": OPEN})
    code, said = gitlab(project, CI_MERGE_REQUEST_DIFF_BASE_SHA=base)
    assert code == TEMPLATE["gpu-mem-calc"]["allow_failure"]["exit_codes"] == 3, said


def test_requirements_have_the_pinned_versions() -> None:
    """Each with a hash; they are what the package and its build ask for."""
    text = (ROOT / "deploy/requirements.txt").read_text("utf-8")
    found = dict(re.findall(r"^([\w.-]+)==(\S+) \\$", text, re.MULTILINE))
    pins = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    assert all(f"{name}=={version}" in pins for name, version in found.items())
    assert {"msgspec", "PyYAML", "hatchling"} <= found.keys()
    blocks = re.split(r"^(?=[\w.-]+==)", text, flags=re.MULTILINE)[1:]
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", block) for block in blocks)


def test_the_page_has_every_input() -> None:
    """docs/pulls.md names those that a user sets, and the example uses some of them."""
    page = (ROOT / "docs" / "pulls.md").read_text("utf-8")
    table = page.partition("| input | |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE)) == {
        name for name in ACTION["inputs"] if name != "token"
    }
    (workflow,) = re.findall(r"```yaml\n(name: GPU memory\n.*?)```", page, re.DOTALL)
    (step,) = yaml.safe_load(workflow)["jobs"]["check"]["steps"][1:]
    assert step["with"].keys() <= ACTION["inputs"].keys()
    (entry,) = re.findall(r"- id: ([\w-]+)", page)
    assert entry == HOOKS[0]["id"]
