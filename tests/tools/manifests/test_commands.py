"""Commands that start what a manifest describes, and manifests of several documents."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.manifests.commands import manifest_files
from gpu_mem_calculator.tools.reading.named_files import NamedFiles
from tests.tools.reading_of import readings_of

SERVICE = "services: {a: {image: ollama/ollama, command: run llama3.2}}\n"
POD = "{apiVersion: v1, kind: Pod, spec: {containers: [{image: ollama/ollama, args: [run, %s]}]}}\n"


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("kubectl apply -f a.yaml", ["a.yaml"]),
        ("kubectl -n x create --filename=a.yaml -f b.yaml", ["a.yaml", "b.yaml"]),
        ("docker compose up -d", ["compose.yml"]),
        ("docker compose -f a.yaml up", ["a.yaml"]),
        ("docker-compose up", ["compose.yml"]),
        ("docker run ollama/ollama", []),
        ("docker compose ps", []),
        ("kubectl get pods", []),
        ("vllm serve x", []),
    ],
)
def test_the_files_of_a_command(tmp_path: Path, line: str, names: list[str]) -> None:
    """Files that are named, or the one that compose finds by itself."""
    (tmp_path / "compose.yml").write_text(SERVICE, encoding="utf-8")
    assert manifest_files(shlex.split(line), NamedFiles(tmp_path)) == names


def test_an_applied_manifest_is_read(tmp_path: Path) -> None:
    """Each container of each document is a reading, from a file or pasted."""
    text = POD % "llama3.2:1b" + "---\n" + POD % "qwen3:8b"
    (tmp_path / "a.yaml").write_text(text, encoding="utf-8")
    found = readings_of(["kubectl", "apply", "-f", "a.yaml"], tmp_path)
    names = [one.run["model"]["name"] for one in found]
    assert names == ["llama3.2-1b", "qwen3-8b"]
    assert [one.run["model"]["name"] for one in readings_of(text)] == names


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("kubectl apply", "names no file"),
        ("docker compose up", "finds no compose.yaml"),
        ("kubectl apply -f a.txt", "no manifest of Kubernetes"),
        ("kubectl apply -f b.yaml", "no such file"),
    ],
)
def test_commands_without_a_manifest(tmp_path: Path, line: str, sentence: str) -> None:
    """What is missing."""
    (tmp_path / "a.txt").write_text("x", encoding="utf-8")
    with pytest.raises(InputError, match=sentence):
        readings_of(shlex.split(line), tmp_path)
