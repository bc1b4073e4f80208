"""The steps that need no root: what they make of a stage, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import ROOT

from . import bare_image
from .bare_image import STEPS, Image, begun, lacking, size
from .bare_run import entry
from .dockerfile import DockerfileError, Stage, steps


def played(root: Path, text: str, **images: Image) -> Image:
    """A stage after some steps."""
    image = Image(root)
    for step in steps(text):
        STEPS[step.name](image, step, images)
    return image


def test_an_instruction_changes_the_configuration_as_docker_does(tmp_path: Path) -> None:
    """ENV wins over ARG; folders are made; exec forms are kept."""
    image = played(
        tmp_path,
        "ARG A=1\nENV A=2 B=${A}\nWORKDIR /x\nWORKDIR y\nUSER 5:6\nEXPOSE 80\nLABEL a.b=c\n"
        'ENTRYPOINT ["/p"]\nCMD ["q"]\nHEALTHCHECK --retries=2 CMD ["/h", "i"]',
    )
    assert image.known() == {"A": "2", "B": "1"}
    assert (tmp_path / "x/y").is_dir()
    assert image.config == {
        "WorkingDir": "/x/y",
        "User": "5:6",
        "ExposedPorts": {"80/tcp": {}},
        "Labels": {"a.b": "c"},
        "Entrypoint": ["/p"],
        "Cmd": ["q"],
        "Healthcheck": {"Test": ["CMD", "/h", "i"], "retries": "2"},
    }


def test_files_are_copied_from_stages(tmp_path: Path) -> None:
    """A folder's contents, links as links."""
    earlier = Image(tmp_path / "one")
    (earlier.root / "a/b").mkdir(parents=True)
    (earlier.root / "a/b/file").write_text("text")
    (earlier.root / "a/link").symlink_to("b/file")
    made = tmp_path / "two"
    made.mkdir()
    played(made, "COPY --from=one /a/ /c/\nCOPY --from=one /a/b/file /d/", one=earlier)
    assert (made / "c/b/file").read_text() == (made / "d/file").read_text() == "text"
    assert (made / "c/link").is_symlink()
    assert size(made) == 2 * len("text") + len("b/file")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("USER 1:1\nRUN ls", "line 2: RUN after USER is not done here"),
        ("COPY tests /x", "line 1: COPY tests: not in the build context"),
        ("CMD ls", "line 1: CMD 'ls' is not an exec form"),
    ],
)
def test_what_cannot_be_done_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    """With its line, before anything runs."""
    with pytest.raises(DockerfileError, match=sentence):
        played(tmp_path, text)


def test_another_base_is_refused(tmp_path: Path) -> None:
    """Only Debian can be made here."""
    with pytest.raises(DockerfileError, match="FROM alpine:3 is neither Debian, scratch nor"):
        begun(Stage("x", "alpine:3", 7), tmp_path, {}, tmp_path)


def test_a_build_argument_that_nobody_reads_is_refused(tmp_path: Path) -> None:
    """Before anything is made."""
    with pytest.raises(DockerfileError, match="tool has no ARG EXTRAS"):
        bare_image.build("tool", tmp_path / "root", given={"EXTRAS": "hub"})


def test_every_instruction_that_is_read_is_done() -> None:
    """None is accepted and ignored."""
    from .dockerfile import FLAGS

    assert STEPS.keys() == FLAGS.keys() - {"FROM"}


def test_a_machine_that_cannot_build_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence with all that is missing."""
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert lacking() == (
        "building without an engine needs mmdebstrap and bwrap and the right to be root"
    )


def test_the_entry_point_runs_as_the_images_user(tmp_path: Path) -> None:
    """Its environment and no other, nothing writable but /tmp, no capability."""
    config = {"User": "1000:1001", "Env": ["A=b=c"], "WorkingDir": "/tmp", "Entrypoint": ["/p"]}
    (tmp_path / "r.json").write_text(json.dumps({**config, "Cmd": ["--help"]}))
    line = " ".join(entry(tmp_path / "r", []))
    assert line.endswith("--clearenv --setenv A b=c --chdir /tmp /p --help")
    assert f"--ro-bind {tmp_path}/r / " in line
    assert "--uid 1000 --gid 1001" in line
    assert "--cap-drop ALL" in line


def test_the_scripts_are_short_too() -> None:
    """The house's rule for files holds here."""
    scripts = [*(ROOT / "deploy").glob("*.py"), *(ROOT / "tests/container").glob("*.py")]
    assert not [path.name for path in scripts if len(path.read_text().splitlines()) > 300]
