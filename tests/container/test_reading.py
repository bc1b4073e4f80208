"""How a Dockerfile and a .dockerignore are read, where no engine reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import ROOT

from .build_context import left_out, rules, sent
from .dockerfile import DockerfileError, expanded, needed, read, steps

SAMPLE = r"""
# a comment
FROM debian:x AS one
ARG NAME=value
RUN first \
    # a comment in between
 && second

FROM one AS two
COPY --from=one /a /b
FROM scratch
COPY --from=two /b /
ENTRYPOINT ["/a", "b c"]
"""


def write(tmp_path: Path, text: str) -> Path:
    """A Dockerfile with this text."""
    path = tmp_path / "Dockerfile"
    path.write_text(text, encoding="utf-8")
    return path


def test_stages_and_steps_are_found(tmp_path: Path) -> None:
    """Continued lines are one step, with the line where it begins."""
    stages = read(write(tmp_path, SAMPLE))
    assert list(stages) == ["one", "two", "2"]
    arg, run = stages["one"].steps
    assert arg.pairs({}) == {"NAME": "value"}
    assert (run.line, run.text) == (5, "first  && second")
    assert stages["2"].steps[1].command() == ["/a", "b c"]


def test_only_the_stages_of_a_target_are_made(tmp_path: Path) -> None:
    """Its base, what it copies from, and theirs; in order."""
    stages = read(write(tmp_path, SAMPLE + "FROM scratch AS other\n"))
    assert [stage.name for stage in needed(stages, "2")] == ["one", "two", "2"]
    assert [stage.name for stage in needed(stages, "other")] == ["other"]
    with pytest.raises(DockerfileError, match="'none' is not a stage; there are one, two"):
        needed(stages, "none")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("ONBUILD RUN x", "ONBUILD is not understood"),
        ("RUN --mount=type=cache,target=/x ls", "RUN --mount is not understood"),
        ("COPY --link a b", "COPY --link is not understood"),
        ("RUN <<END", "a here-document is not understood"),
        ("RUN a \\", "the last line ends in"),
        ("FROM a b", "FROM 'a b' is not"),
        ("RUN a", "RUN before the first FROM"),
        ("FROM a AS x\nFROM b AS x", "there are two stages 'x'"),
    ],
)
def test_what_is_not_read_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    """With its line."""
    with pytest.raises(DockerfileError, match=rf"line \d: .*{sentence}"):
        read(write(tmp_path, text))


def test_a_shell_form_is_not_a_command() -> None:
    """Nothing splits it here."""
    [step] = steps("CMD serve --port 1")
    with pytest.raises(DockerfileError, match=r"line 1: CMD .* is not an exec form"):
        step.command()


def test_variables_are_put_in() -> None:
    """As Docker does it; one that is not known is empty."""
    known = {"A": "1", "B": ""}
    assert expanded("$A ${A}x ${B:-2} ${C:-3} $C.", known) == "1 1x 2 3 ."


@pytest.mark.parametrize(
    ("path", "out"),
    [
        ("a.txt", True),
        ("keep/a.txt", False),
        ("keep/deep/er.txt", False),
        ("keep/deep/x.pyc", True),
        ("keep/__pycache__/x.py", True),
        ("named.txt", False),
        ("named.txt.bak", True),
        ("dir/only.txt", False),
        ("dir/other.txt", True),
    ],
)
def test_the_last_rule_that_matches_decides(path: str, out: bool) -> None:
    """A folder's rule holds for all that is in it; * stays in one folder, ** does not."""
    known = rules(
        "# first nothing\n*\n!keep\n!named.txt\n!dir/only.txt\n**/__pycache__\n**/*.pyc\n"
    )
    assert left_out(path, known) is out


SENT = rules((ROOT / ".dockerignore").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "path",
    [
        ".env",
        ".git/config",
        ".venv/bin/python",
        "src/.env",
        "src/gpu_mem_calculator/.env.local",
        "src/gpu_mem_calculator/__pycache__/x.cpython-311.pyc",
        "tests/ground_truth/runs.jsonl",
        "deploy/helm/gpu-mem-calculator/values.yaml",
        "shared/README.md",
        "docs/web.md",
        "secrets.json",
        "id_rsa",
        ".ssh/id_ed25519",
        "dist/a.whl",
        "src/x.egg-info/PKG-INFO",
    ],
)
def test_what_must_not_go_into_an_image_is_not_sent(path: str) -> None:
    """Secrets, environments, data, histories."""
    assert left_out(path, SENT)


def test_what_is_sent_is_what_is_copied() -> None:
    """Sources and five files, a few megabytes; nothing that no COPY takes."""
    files = [
        path
        for source in ("src", "deploy", "README.md", "LICENSE", "pyproject.toml", "constraints.txt")
        for path in sent(ROOT, SENT, source)
    ]
    assert {path for path in files if not path.startswith("src/gpu_mem_calculator/")} == {
        "LICENSE",
        "README.md",
        "constraints.txt",
        "deploy/healthcheck.py",
        "deploy/torch-constraints.txt",
        "pyproject.toml",
    }
    assert sum((ROOT / path).stat().st_size for path in files) < 8e6


def test_every_source_of_a_copy_is_sent() -> None:
    """A COPY of what .dockerignore leaves out would fail in the engine."""
    for stage in read(ROOT / "deploy" / "Dockerfile").values():
        for step in stage.steps:
            if step.name == "COPY" and "from" not in step.flags:
                for source in step.words()[:-1]:
                    assert list(sent(ROOT, SENT, source)), source
