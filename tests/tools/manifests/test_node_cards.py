"""The card of a Pod: labels of its node, MIG resources; and where no card is named."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_mem_calculator.catalog.cards import meant
from gpu_mem_calculator.runfile.text.yaml_text import parse_yaml_documents
from gpu_mem_calculator.tools.manifests.read import read_manifest
from gpu_mem_calculator.tools.reading.named_files import NamedFiles
from gpu_mem_calculator.tools.reading.reading import Reading
from gpu_mem_calculator.tools.reading.tools import read_command

POD = """
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  %s
  containers:
    - {name: a, image: vllm/vllm-openai, args: [Qwen/Qwen3-8B], resources: {limits: {%s: 1}}}
"""
GPU = "nvidia.com/gpu"
REQUIRED = (
    "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution:"
    " {nodeSelectorTerms: [%s]}}}"
)
PREFERRED = (
    "affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1,"
    " preference: {matchExpressions: [{key: gpu-type, operator: In, values: [l4]}]}}]}}"
)


def reading(node: str, resource: str = GPU) -> Reading:
    """What a Pod on a node means."""
    (one,) = read_manifest(parse_yaml_documents(POD % (node, resource)), NamedFiles(None))
    return read_command(one)


def cards(node: str, resource: str = GPU) -> list[str]:
    """The cards that the Pod may have."""
    name = reading(node, resource).run["hardware"].get("gpu")
    return [row["name"] for row in meant(name)] if name else []


def expression(key: str, values: str, operator: str = "In") -> str:
    """A term with one expression."""
    return (
        f"{{matchExpressions: [{{key: {key}, operator: {operator}, values: [{values}]}},"
        " {key: kubernetes.io/os, operator: In, values: [linux]}]}"
    )


@pytest.mark.parametrize(
    ("node", "names"),
    [
        ("nodeSelector: {cloud.google.com/gke-accelerator: nvidia-l4}", ["l4"]),
        ("nodeSelector: {nvidia.com/gpu.product: NVIDIA-L40S, disk: ssd}", ["l40s"]),
        ("nodeSelector: {node.kubernetes.io/instance-type: g5.12xlarge}", ["a10g"]),
        (REQUIRED % expression("nvidia.com/gpu.product", "NVIDIA-L4"), ["l4"]),
        (REQUIRED % expression("gpu-type", "l4, l40s"), ["l4", "l40s"]),
        (
            REQUIRED % f"{expression('gpu-type', 'l4')}, {expression('gpu-type', 't4')}",
            ["t4", "l4"],
        ),
        (
            "nodeSelector: {gpu-type: a100, nvidia.com/gpu.memory: '81920'}",
            ["a100-80gb-pcie", "a100-80gb-sxm"],
        ),
        (
            "nodeSelector: {cloud.google.com/gke-accelerator: nvidia-tesla-a100,"
            " cloud.google.com/gke-gpu-partition-size: 1g.5gb}",
            ["a100-40gb-mig-1g.5gb"],
        ),
        ("nodeSelector: {disk: ssd}", []),
        ("nodeSelector: {nvidia.com/gpu.product: NVIDIA-X9000}", []),
        ("nodeSelector: {gpu-type: l4, nvidia.com/gpu.product: Tesla-T4}", []),
        (REQUIRED % expression("gpu-type", "l4", "NotIn"), []),
        (REQUIRED % f"{expression('gpu-type', 'l4')}, {expression('zone', 'a')}", []),
        (PREFERRED, []),
        ("hostNetwork: true", []),
    ],
)
def test_the_labels_of_a_node_name_the_card(node: str, names: list[str]) -> None:
    """A selector and required terms count; what is preferred or contradicted does not."""
    assert cards(node) == names


@pytest.mark.parametrize(
    ("node", "resource", "names"),
    [
        (
            "restartPolicy: Never",
            "nvidia.com/mig-3g.40gb",
            ["a100-80gb-mig-3g.40gb", "h100-80gb-mig-3g.40gb"],
        ),
        (
            "nodeSelector: {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}",
            "nvidia.com/mig-3g.40gb",
            ["h100-80gb-mig-3g.40gb"],
        ),
        ("restartPolicy: Never", "nvidia.com/mig-1g.10gb.me", ["a100-80gb-mig-1g.10gb"]),
        ("restartPolicy: Never", "nvidia.com/mig-9g.99gb", []),
    ],
)
def test_a_slice_has_its_own_memory(node: str, resource: str, names: list[str]) -> None:
    """A MIG resource is a slice: of the card that is named, else of any that has the profile."""
    assert cards(node, resource)[: len(names)] == names


def test_a_card_that_nobody_knows_is_named() -> None:
    """No card is put in its place."""
    found = reading("nodeSelector: {nvidia.com/gpu.product: NVIDIA-X9000}")
    assert "gpu" not in found.run["hardware"]
    assert found.assumed[-1].startswith("nvidia.com/gpu.product=NVIDIA-X9000 names no card")


def test_a_size_alone() -> None:
    """A label in MiB is the size that is marketed; a least size can be more."""
    exact = reading("nodeSelector: {nvidia.com/gpu.memory: '24576'}")
    assert exact.run["hardware"]["gpu_memory_gb"] == 24
    more = reading(REQUIRED % expression("nvidia.com/gpu.memory", "'40000'", "Gt"))
    assert more.run["hardware"]["gpu_memory_gb"] == 40
    assert more.limits[-1].key == "nvidia.com/gpu.memory Gt 40000"


def test_memory_of_a_vgpu_is_no_number_of_gpus() -> None:
    """nvidia.com/gpumem and gpucores, which HAMi adds, count no GPUs."""
    text = (POD % ("restartPolicy: Never", GPU)).replace(
        "gpu: 1", "gpu: 1, nvidia.com/gpumem: 3000"
    )
    (one,) = read_manifest(parse_yaml_documents(text), NamedFiles(None))
    assert one.num_gpus == 1


SERVED: dict[str, Any] = {
    "InferenceService": """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
spec:
  predictor:
    nodeSelector: {cloud.google.com/gke-accelerator: nvidia-l4}
    model: {modelFormat: {name: huggingface}, args: [--model_id=Qwen/Qwen3-8B],
      resources: {limits: {nvidia.com/gpu: 1}}}
""",
    "LLMInferenceService": """
apiVersion: serving.kserve.io/v1alpha1
kind: LLMInferenceService
spec:
  model: {uri: "hf://Qwen/Qwen3-8B"}
  template:
    nodeSelector: {cloud.google.com/gke-accelerator: nvidia-l4}
    containers: [{name: main, resources: {limits: {nvidia.com/gpu: 1}}}]
""",
    "RayCluster": """
apiVersion: ray.io/v1
kind: RayCluster
spec:
  workerGroupSpecs:
    - template: {spec: {nodeSelector: {cloud.google.com/gke-accelerator: nvidia-l4},
        containers: [{command: [vllm, serve, Qwen/Qwen3-8B],
          resources: {limits: {nvidia.com/gpu: 1}}}]}}
""",
}


@pytest.mark.parametrize("kind", SERVED)
def test_other_kinds_have_a_node_too(kind: str) -> None:
    """KServe's and Ray's objects carry the Pod's selector in their own places."""
    (one,) = read_manifest(parse_yaml_documents(SERVED[kind]), NamedFiles(None))
    assert read_command(one).run["hardware"]["gpu"] == "nvidia-l4"


def test_too_few_gpus_are_blamed_on_the_manifest() -> None:
    """The sentence says where the number of GPUs stands."""
    text = (POD % ("restartPolicy: Never", GPU)).replace("B]", "B, --tensor-parallel-size=4]")
    (one,) = read_manifest(parse_yaml_documents(text), NamedFiles(None))
    (problem,) = read_command(one).problems
    assert problem.startswith("nvidia.com/gpu: 1 gives 1 of the 4 GPUs")
