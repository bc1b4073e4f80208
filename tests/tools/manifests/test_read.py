"""Manifests: the commands in containers of Kubernetes objects and of compose files."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.runfile.text.yaml_text import parse_yaml_documents
from gpu_mem_calculator.tools.launchers.launch import read_launch
from gpu_mem_calculator.tools.manifests.read import is_manifest, read_manifest
from gpu_mem_calculator.tools.reading.command import Command
from gpu_mem_calculator.tools.reading.named_files import NamedFiles
from gpu_mem_calculator.tools.reading.tools import read_command

CONTAINER = """
      - name: server
        image: {image}
        command: {command}
        args: {args}
        env: [{{name: MODEL, value: Qwen/Qwen3-8B}}, {{name: KEY, valueFrom: {{}}}}]
        resources: {{limits: {{nvidia.com/gpu: "2", cpu: 4}}}}
"""
DEPLOYMENT = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: llm}}\nspec:\n  template:\n"
DEPLOYMENT += "    spec:\n      containers:" + CONTAINER
POD = "{apiVersion: v1, kind: Pod, spec: {containers: %s}}"
ONE = "[{image: ollama/ollama, args: [run, llama3.2], resources: {limits: {nvidia.com/gpu: 1}}}]"
GROUP = """
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
spec:
  leaderWorkerTemplate:
    size: 2
    leaderTemplate: {spec: {containers: [{
      command: [sh, -c, "ray start; vllm serve Q -pp $LWS_GROUP_SIZE"],
      resources: {limits: {nvidia.com/gpu: 8}}}]}}
    workerTemplate: {spec: {containers: [{command: [ray, start],
      resources: {limits: {nvidia.com/gpu: 8}}}]}}
"""
JOB = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
spec:
  pytorchReplicaSpecs:
    Master: {replicas: 1, template: {spec: {containers: [{command: [torchrun, train.py],
      resources: {limits: {nvidia.com/gpu: 4}}}]}}}
    Worker: {replicas: 3, template: {spec: {containers: [{command: [torchrun, train.py]}]}}}
"""
ROLES = """
apiVersion: workload.serving.volcano.sh/v1alpha1
kind: ModelServing
spec:
  template:
    roles:
      - workerReplicas: 1
        entryTemplate: {spec: {containers: [{command: [vllm, serve, Q],
          resources: {limits: {nvidia.com/gpu: 8}}}]}}
        workerTemplate: {spec: {containers: [{command: [ray, start]}]}}
"""
KSERVE = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: llama}
spec:
  predictor:
    model:
      modelFormat: {name: huggingface}
      args: [--model_name=llama, --model_id, meta-llama/Llama-3.1-8B, --max-model-len=4096]
      resources: {limits: {nvidia.com/gpu: "1"}}
"""
KSERVE_LLM = """
apiVersion: serving.kserve.io/v1alpha2
kind: LLMInferenceService
spec:
  model: {uri: "hf://Qwen/Qwen2.5-7B-Instruct", name: q}
  parallelism: {tensor: 2, expert: true}
  template:
    containers:
      - name: main
        env: [{name: VLLM_ADDITIONAL_ARGS, value: "--max-model-len 8192 --enforce-eager"}]
        resources: {limits: {nvidia.com/gpu: "2"}}
"""
COMPOSE = """
services:
  llm:
    image: ghcr.io/ggml-org/llama.cpp:server-cuda
    command: -m /models/Qwen3-8B-Q8_0.gguf -c ${CONTEXT:-4096} --port 8080
    environment: ["LLAMA_ARG_N_GPU_LAYERS=99"]
    deploy: {resources: {reservations: {devices: [{driver: nvidia, count: 2}]}}}
  proxy: {image: nginx}
"""


def commands(text: str) -> list[Command]:
    """The commands of a manifest's text."""
    return read_manifest(parse_yaml_documents(text), NamedFiles(None))


@pytest.mark.parametrize(
    ("image", "command", "args", "words"),
    [
        ("x", "[vllm, serve, $(MODEL)]", "null", ("vllm", "serve", "Qwen/Qwen3-8B")),
        ("vllm/vllm-openai:v1", "null", "[a, --max-num-seqs, 9]", ("vllm", "serve", "a", "9")),
        ("x", "[bash, -ec]", '["x=1; exec vllm serve $MODEL"]', ("vllm", "serve", "Qwen/Qwen3-8B")),
        ("x", "[/bin/sh, -c, 'echo a && vllm serve b']", "null", ("vllm", "serve", "b")),
        ("x", "[python3, -m, sglang.launch_server]", "[--tp, 2]", ("sglang.launch_server", "2")),
        ("r/p/text-generation-inference:3", "null", "[-p, 80]", ("text-generation-launcher", "80")),
        ("ollama/ollama", "null", "[run, llama3.2]", ("ollama", "run", "llama3.2")),
    ],
)
def test_a_container_of_a_deployment(
    image: str, command: str, args: str, words: tuple[str, ...]
) -> None:
    """Command and arguments, scripts, variables, and the program of an image."""
    found = commands(DEPLOYMENT.format(image=image, command=command, args=args))
    (one,) = found
    assert one.num_gpus == 2
    assert one.words[: len(words) - 1] == words[:-1]
    assert words[-1] in one.words
    assert one.environment == {"MODEL": "Qwen/Qwen3-8B"} or "x" in one.environment


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("docker.io/vllm/vllm-openai:v0.10.0", "0.10.0"),
        ("vllm/vllm-openai:0.11.2-x86_64@sha256:ab", "0.11.2"),
        ("vllm/vllm-openai:latest", None),
        ("host:5000/mine:v0.10.0", None),
    ],
)
def test_the_tag_of_vllms_image_is_its_release(image: str, version: str | None) -> None:
    """The tag of another image may mean anything."""
    text = DEPLOYMENT.format(image=image, command="[vllm, serve, a/b]", args="null")
    (one,) = commands(text)
    assert read_command(one).run["inference"].get("engine_version") == version
    words = ["docker", "run", image, "vllm", "serve", "a/b"]
    launched = read_command(read_launch(words, NamedFiles(None)))
    assert launched.run["inference"].get("engine_version") == version


@pytest.mark.parametrize(
    ("text", "gpus", "nodes", "words"),
    [
        (GROUP, 16, 2, ("vllm", "serve", "Q", "-pp", "2")),
        (JOB, 16, 4, ("train.py",)),
        (ROLES, 16, 2, ("vllm", "serve", "Q")),
        (POD % ONE, 1, 1, ("ollama", "run", "llama3.2")),
        (KSERVE, 1, 1, ("vllm", "serve", "meta-llama/Llama-3.1-8B", "--max-model-len=4096")),
        (
            KSERVE_LLM,
            2,
            1,
            (
                *("vllm", "serve", "Qwen/Qwen2.5-7B-Instruct", "--tensor-parallel-size=2"),
                *("--enable-expert-parallel", "--max-model-len", "8192", "--enforce-eager"),
            ),
        ),
    ],
)
def test_kinds_of_objects(text: str, gpus: int, nodes: int, words: tuple[str, ...]) -> None:
    """Pods, groups of Pods, jobs, and KServe's servers."""
    (one,) = commands(text)
    assert (one.num_gpus, one.num_nodes, one.words) == (gpus, nodes, words)


def test_a_compose_file() -> None:
    """A service with an image of llama.cpp; a proxy without GPUs is none of ours."""
    (one,) = commands(COMPOSE)
    assert one.name == "service llm"
    assert one.words[:4] == ("llama-server", "-m", "/models/Qwen3-8B-Q8_0.gguf", "-c")
    assert one.words[4] == "4096"
    assert one.num_gpus == 2
    assert one.environment == {"LLAMA_ARG_N_GPU_LAYERS": "99"}


def test_several_documents_and_containers() -> None:
    """Each container is a command; one with GPUs that is not read is named in the first."""
    other = "[{image: nvcr.io/x, name: y, resources: {limits: {nvidia.com/gpu: 1}}}]"
    found = commands("---\n".join((POD % ONE + "\n", KSERVE, POD % other + "\n")))
    assert [one.words[0] for one in found] == ["ollama", "vllm"]
    assert "the command is in the image nvcr.io/x" in found[0].limits[-1].why
    with pytest.raises(InputError, match=r"the command is in the image nvcr\.io/x"):
        commands(POD % other)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[1, 2]", "no Kubernetes object"),
        ("{apiVersion: v1, kind: Service, spec: {}}", "no container in it starts a tool"),
        ("{apiVersion: v1, kind: List, items: 3}", "no container in it starts a tool"),
        (POD % "7", "must be a list"),
        (POD % "[{command: {a: b}}]", "must be a list of words"),
        (POD % "[{args: [[a]]}]", "must be a list of words"),
        (POD % "[{env: 3}]", "must be a list of names"),
        (POD % "[{resources: {limits: {nvidia.com/gpu: many}}}]", "must be a whole number"),
        (POD % f"[{', '.join(['{}'] * 300)}]", "more than 200 containers"),
        ("services: {a: {image: x, command: 'vllm \"'}}", "close the quotes"),
        (
            "services: {a: {command: [x], deploy: {resources: {reservations: {devices: "
            "[{count: -1}]}}}}}",
            "must be a whole number",
        ),
    ],
)
def test_malformed_manifests_get_a_sentence(text: str, sentence: str) -> None:
    """A value of a wrong type is one sentence, and nothing is recursed without a bound."""
    with pytest.raises(InputError, match=sentence):
        commands(text)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: &a [x]\nc: *x", "undefined alias"),
        (
            "a0: &a0 [x]\n" + "".join(f"a{n + 1}: &a{n + 1} [*a{n}, *a{n}]\n" for n in range(40)),
            "more than 20,000 values",
        ),
        ("[" * 500, "nested deeper than 100"),
        ("a: !!python/object:os.system x", "python/object"),
    ],
)
def test_documents_have_bounds(text: str, sentence: str) -> None:
    """Bombs of aliases, deep nesting and types of Python are refused before they are built."""
    with pytest.raises(ValueError, match=sentence):
        parse_yaml_documents(text)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"apiVersion": "v1", "kind": "Pod"}, True),
        ({"services": {"a": {"image": "x"}}}, True),
        ({"services": ["a"]}, False),
        ({"base_model": "x"}, False),
        (3, False),
    ],
)
def test_what_is_a_manifest(data: Any, expected: bool) -> None:
    """By the keys that every object and every compose file has."""
    assert is_manifest(data) is expected
