"""Releases in requirements, lock files, Dockerfiles, tags of images and pip's list."""

from pathlib import Path

import pytest

from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.releases.pins import (
    MOST_PIN_BYTES,
    file_releases,
    frozen,
    image_releases,
    pinned,
)
from gpu_mem_calculator.tools.releases.release import first_of_each


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("requirements.txt", "torch>=2.6\nvllm[audio]==0.14.1  # serves\n"),
        ("requirements-gpu.txt", "vllm @ git+https://github.com/vllm-project/vllm@v0.14.1\n"),
        ("uv.lock", '[[package]]\nname = "vllm"\nversion = "0.14.1"\n'),
        ("poetry.lock", '[[package]]\nname = "vllm"\nversion = "0.14.1"\noptional = false\n'),
        ("Pipfile.lock", '{"default": {"vllm": {"hashes": [], "version": "==0.14.1"}}}'),
        ("environment.yml", "dependencies:\n  - python=3.12\n  - vllm=0.14.1=cuda\n"),
        ("environment.yaml", "dependencies:\n  - pip:\n    - vllm==0.14.1\n"),
        ("Dockerfile", "FROM ubuntu:24.04\nRUN pip install 'vllm==0.14.1'\n"),
        ("Dockerfile", "FROM --platform=linux/amd64 vllm/vllm-openai:v0.14.1 AS base\n"),
        ("Dockerfile", "ARG TAG=v0.14.1\nFROM vllm/vllm-openai:$TAG\n"),
        ("Dockerfile", "ARG MINOR=0.14\nENV V=${MINOR}.1\nRUN pip install vllm==${V}\n"),
        ("Dockerfile", "ARG V\nENV A=1 B='2'\nRUN pip install \"vllm==${V:-0.14.1}\" && x\n"),
        ("requirements.txt", f"vllm==0.14.1 \\\n    --hash=sha256:{'ab' * 32}\n"),
    ],
)
def test_each_kind_of_file_pins_a_release(tmp_path: Path, name: str, text: str) -> None:
    """What has a lower bound alone pins nothing."""
    (tmp_path / name).write_text(text, encoding="utf-8")
    found = [(one.package, one.version, one.read_from) for one in pinned(tmp_path).releases]
    assert found == [("vllm", "0.14.1", name)]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("requirements.txt", "vllm==banana\n", "has vllm 'banana', which is no release"),
        ("requirements.txt", "== @ git+\n[[[ -r\nvllm>=0.9\n]]] = \x00 \u2603\n", ""),
        ("requirements.txt", "", ""),
        ("uv.lock", "<<<<<<< HEAD\n", "has no package with a release, so nothing is read from it"),
        ("Pipfile.lock", '{"default": {"vllm"', "has no package with a release"),
        ("Pipfile.lock", "[" * 100_000, "has no package with a release"),
        (
            "poetry.lock",
            '\nname = "vllm"\nversion = "new"\n',
            "has vllm 'new', which is no release",
        ),
        ("Dockerfile", "ARG V\nRUN pip install vllm==$V\n", "has vllm '$V', which is no release"),
        ("Dockerfile", "FROM vllm/vllm-openai:${T#v}\n", "begins with vllm/vllm-openai:${T#v}"),
        ("Dockerfile", "ARG V=$V\nFROM nvidia/cuda:${V}\nRUN ${", ""),
        ("environment.yml", "dependencies: [\n  - vllm=\n", ""),
    ],
)
def test_what_names_no_release_is_said(tmp_path: Path, name: str, text: str, said: str) -> None:
    """Nonsense that is of no tool is passed over."""
    (tmp_path / name).write_text(text, encoding="utf-8")
    found = pinned(tmp_path)
    assert found.releases == ()
    assert len(found.notes) == bool(said)
    assert all(note.startswith(f"{name} ") and said in note for note in found.notes)


def test_a_pattern_of_a_release_is_its_part(tmp_path: Path) -> None:
    """Which means the newest of it."""
    (tmp_path / "requirements.txt").write_text("vllm==0.14.*\n", encoding="utf-8")
    assert [one.version for one in pinned(tmp_path).releases] == ["0.14"]


def test_a_lock_file_wins_over_requirements(tmp_path: Path) -> None:
    """It is the more exact of the two."""
    (tmp_path / "requirements.txt").write_text("trl==0.19.0\nvllm==0.9.2\n", encoding="utf-8")
    lock = '[[package]]\nname = "trl"\nversion = "0.24.0"\n'
    (tmp_path / "uv.lock").write_text(lock, encoding="utf-8")
    chosen = first_of_each(pinned(tmp_path).releases)
    assert {name: one.version for name, one in chosen.items()} == {"trl": "0.24.0", "vllm": "0.9.2"}


@pytest.mark.parametrize(
    ("image", "package", "version"),
    [
        ("vllm/vllm-openai:v0.8.5.post1", "vllm", "0.8.5.post1"),
        ("docker.io/vllm/vllm-openai:v0.10.1", "vllm", "0.10.1"),
        ("lmsysorg/sglang:v0.4.6.post5-cu124", "sglang", "0.4.6.post5"),
        (
            "ghcr.io/huggingface/text-generation-inference:3.3.4",
            "text-generation-inference",
            "3.3.4",
        ),
        ("ghcr.io/ggml-org/llama.cpp:server-cuda-b4719", "llama-cpp", "b4719"),
        ("nvcr.io/nvidia/tensorrt-llm/release:1.0.0", "tensorrt-llm", "1.0.0"),
        ("ollama/ollama:0.5.1-rocm", "ollama", "0.5.1"),
        ("axolotlai/axolotl:0.16.1-py3.12-cu130-2.12.0", "axolotl", "0.16.1"),
        ("axolotlai/axolotl-cloud:0.16.1", "axolotl", "0.16.1"),
        ("verlai/verl:app-verl0.5-transformers4.55.4-vllm0.10.0", "verl", "0.5"),
        (
            "registry.example/modelscope-repo/modelscope:ubuntu22.04-torch2.7.1-swift3.8.3",
            "ms-swift",
            "3.8.3",
        ),
    ],
)
def test_an_images_tag_names_a_release(image: str, package: str, version: str) -> None:
    """Of the tool whose own image it is."""
    assert [(one.package, one.version) for one in image_releases(image)] == [(package, version)]


@pytest.mark.parametrize(
    "image",
    [
        "vllm/vllm-openai:latest",
        "vllm/vllm-openai",
        "me/vllm:v0.9.1",
        "localhost:5000/x",
        "axolotlai/axolotl:main-py3.12-cu130-2.12.0",
    ],
)
def test_a_tag_without_a_release_says_nothing(image: str) -> None:
    """Nor does the tag of somebody else's image."""
    assert list(image_releases(image)) == []


def test_the_lines_of_pip_freeze_are_taken_out_of_a_text() -> None:
    """What is left is the command."""
    text = "accelerate==1.6.0\nms-swift @ file:///src\ntransformers==4.51.3\nswift sft --model m"
    found, rest = frozen(text, "a list")
    assert {one.package: one.version for one in found} == {
        "accelerate": "1.6.0",
        "transformers": "4.51.3",
    }
    assert rest == "swift sft --model m"


PIP_LIST = "Package      Version  Editable project location\n------------ -------\n"
LISTS = {
    "pip freeze": "numpy==2.1\nvllm==0.14.1\n",
    "pip list": PIP_LIST + "numpy        2.1\nvllm         0.14.1   /src/vllm\n",
    "uv pip list": "Package Version\n------- -------\nnumpy   2.1\nvllm    0.14.1\n",
    "conda list": "# packages in environment at /opt/conda:\n#\n# Name   Version   Build  Channel\n"
    "numpy    2.1   py312_0   conda-forge\nvllm     0.14.1   pypi_0   pypi\n",
    "conda list --export": "numpy=2.1=py312_0\nvllm=0.14.1=pypi_0\n",
    "collect_env": "[pip3] numpy==2.1\n[pip3] vllm==0.14.1\n",
}


@pytest.mark.parametrize("name", LISTS)
def test_what_a_package_manager_prints_is_read(name: str, tmp_path: Path) -> None:
    """From a file, and out of a text that has a command, too."""
    (tmp_path / "list.txt").write_text(LISTS[name], encoding="utf-8")
    in_file = file_releases(str(tmp_path / "list.txt"))
    assert in_file is not None
    assert {(one.package, one.version, one.read_from) for one in in_file} == {
        ("vllm", "0.14.1", "list.txt")
    }
    found, rest = frozen(f"{LISTS[name]}\nvllm serve m --max-model-len 4096", "a list")
    assert {one.version for one in found} == {"0.14.1"}
    assert rest.splitlines()[-1] == "vllm serve m --max-model-len 4096"
    assert "0.14.1" not in rest


def test_json_of_pip_list_is_read(tmp_path: Path) -> None:
    """As pip and conda write it."""
    path = tmp_path / "list.json"
    path.write_text('[{"name": "vllm", "platform": "pypi", "version": "0.14.1"}]')
    found = file_releases(str(path))
    assert [one.version for one in found or ()] == ["0.14.1"]


def test_a_file_without_a_release_is_a_sentence(tmp_path: Path) -> None:
    """A file that is not there is none, so --at says what it could be."""
    (tmp_path / "a.txt").write_text("numpy==2.0\n# vllm==0.9.2 is broken\n")
    with pytest.raises(InputError, match="has no release of a tool that is known"):
        file_releases(str(tmp_path / "a.txt"))
    assert file_releases(str(tmp_path / "b.txt")) is None


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    """A binary file, one of 100 MB, a folder, a link to itself; the others are read."""
    (tmp_path / "requirements.txt").write_bytes(b"\x7fELF\xff\xfe")
    with (tmp_path / "uv.lock").open("wb") as file:
        file.truncate(100 << 20)
    (tmp_path / "Dockerfile").mkdir()
    (tmp_path / "environment.yml").symlink_to("environment.yml")
    (tmp_path / "pdm.lock").write_text('[[package]]\nname = "vllm"\nversion = "0.14.1"\n')
    found = pinned(tmp_path)
    assert [one.version for one in found.releases] == ["0.14.1"]
    said = "\n".join(found.notes)
    assert len(found.notes) == 4
    assert f"uv.lock: it is larger than {MOST_PIN_BYTES:,} bytes" in said
    assert "requirements.txt: it is not UTF-8 text" in said
    (tmp_path / "loop").symlink_to("loop")
    assert "loop cannot be read" in pinned(tmp_path / "loop").notes[0]


def test_one_such_line_alone_is_part_of_a_command() -> None:
    """And stays there."""
    assert frozen("vllm serve m --revision a==b", "a list") == ([], "vllm serve m --revision a==b")
