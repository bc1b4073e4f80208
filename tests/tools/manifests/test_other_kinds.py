"""Objects beside Pods: Ray Serve LLM, KAITO, sidecars; and counts that are filled in elsewhere."""

from __future__ import annotations

import pytest

from gpu_mem_calculator.runfile.text.yaml_text import parse_yaml_documents
from gpu_mem_calculator.tools.manifests.read import read_manifest
from gpu_mem_calculator.tools.reading.command import Command
from gpu_mem_calculator.tools.reading.named_files import NamedFiles
from gpu_mem_calculator.tools.reading.tools import UnknownToolError, read_command

RAY = """
apiVersion: ray.io/v1
kind: RayService
metadata: {name: r}
spec:
  serveConfigV2: |
    applications:
      - args:
          llm_configs:
            - model_loading_config: {model_id: q, model_source: Qwen/Qwen3-32B}
              accelerator_type: %s
              engine_kwargs: {tensor_parallel_size: 4, pipeline_parallel_size: 2,
                max_model_len: 8192, enforce_eager: true, enable_prefix_caching: false,
                compilation_config: {level: 0}}
  rayClusterConfig:
    workerGroupSpecs:
      - template: {spec: {containers: [{name: w, image: ray,
          resources: {limits: {nvidia.com/gpu: 4}}}]}}
"""
WORKSPACE = """
apiVersion: kaito.sh/v1beta1
kind: Workspace
metadata: {name: w}
resource: {instanceType: %s}
inference: {template: {spec: {containers: [{name: c, command: [vllm, serve, Qwen/Qwen3-8B],
  resources: {limits: {nvidia.com/gpu: 1}}}]}}}
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  initContainers:
    - {name: get, image: busybox, command: [wget, x]}
    - {name: first, command: [vllm, serve, Qwen/Qwen3-8B],
       resources: {limits: {nvidia.com/gpu: 1}}%s}
  containers:
    - {name: main, command: [vllm, serve, Qwen/Qwen3-4B], resources: {limits: {nvidia.com/gpu: %s}}}
"""


def commands(text: str) -> list[Command]:
    """The commands of a manifest's text."""
    return read_manifest(parse_yaml_documents(text), NamedFiles(None))


def test_a_server_of_ray_serve_llm() -> None:
    """The engine's arguments are options; its ranks need two worker Pods."""
    (one,) = commands(RAY % "L4")
    reading = read_command(one)
    assert not reading.problems
    inference, hardware = reading.run["inference"], reading.run["hardware"]
    assert reading.run["model"] == {"name": "Qwen/Qwen3-32B"}
    assert (inference["max_seq_len"], inference["enforce_eager"]) == (8192, True)
    assert hardware == {"gpu": "L4", "num_gpus": 8}
    assert one.num_nodes == 2


def test_a_card_of_ray_that_nobody_knows() -> None:
    """It is named, and not replaced."""
    (one,) = commands(RAY % "X9000")
    assert "gpu" not in read_command(one).run["hardware"]
    assert one.card is not None
    assert one.card.said == "accelerator_type=X9000"


def test_an_application_of_ray_that_is_not_read() -> None:
    """Its Pods take GPUs, and the sentence says that their command is in the image."""
    with pytest.raises(UnknownToolError, match="container w: the command is in the image ray"):
        commands((RAY % "L4").replace("llm_configs", "other"))


@pytest.mark.parametrize(
    ("kind", "card"), [("Standard_NC24ads_A100_v4", "a100-80gb-pcie"), ("'<TYPE>'", "")]
)
def test_a_workspace_of_kaito(kind: str, card: str) -> None:
    """Its machine type says the card, unless it is filled in elsewhere."""
    (one,) = commands(WORKSPACE % kind)
    assert one.card is not None
    assert (one.card.name, one.num_gpus) == (card, 1)


@pytest.mark.parametrize(("policy", "together"), [("", False), (", restartPolicy: Always", True)])
def test_init_containers(policy: str, together: bool) -> None:
    """One that stays runs beside the others, with GPUs of its own; another one ends before."""
    first, main = commands(POD % (policy, "1"))
    assert bool(set(first.slots) & set(main.slots)) is together
    assert (first.devices, main.devices) == (("0",), ("1",) if together else ("0",))


@pytest.mark.parametrize("count", ["$GPUS", "'${GPUS}'", "'{{ .Values.gpus }}'", "<GPUS>"])
def test_a_count_that_is_filled_in_elsewhere(count: str) -> None:
    """It is open; the command decides."""
    found = commands(POD % ("", count))
    assert found[-1].num_gpus is None
    assert read_command(found[-1]).run["hardware"] == {"num_gpus": 1}


def test_counts_of_a_compose_file() -> None:
    """A default is used; `all`, an error message and a variable are no number."""
    service = "{image: vllm/vllm-openai, command: --model Q, gpus: [{count: '%s'}]}"
    numbers = [
        commands(f"services: {{a: {service % count}}}")[0].num_gpus
        for count in ("${N:-2}", "${N:-all}", "${N:?set it}", "$N")
    ]
    assert numbers == [2, None, None, None]
