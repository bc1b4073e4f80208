"""Values that do not go together: what `helm template` says in place of documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .cases import SMALL_RUN, WEB_ALL, Case, measuring
from .helm_program import RENDERERS
from .render import ChartError

MODEL = {"modelPath": "llama2-7b"}
ESTIMATE = {"mode": "estimate", "run": SMALL_RUN}


def web(**given: Any) -> Case:
    """The page, with these keys of web."""
    return Case({"mode": "web", "web": given})


# name: (what is given, words that the answer must have: a sentence's, or a key's own).
REFUSED: dict[str, tuple[Case, tuple[str, ...]]] = {
    "no model": (Case(), ("needs a model", "modelPath", "numParameters")),
    "stage 4": (Case({**MODEL, "stage": 4}), ("stage",)),
    "stage 0 by --set": (Case(MODEL, sets=("stage=0",)), ("stage",)),
    "stage 3 without the largest layer": (
        Case({"stage": 3, "numParameters": "70e9"}),
        ("stage 3", "largestLayerParameters"),
    ),
    "an unknown mode": (Case({**MODEL, "mode": "estimat"}), ("mode",)),
    "no node": (Case({**MODEL, "nodes": 0}), ("nodes",)),
    "half a node": (Case({**MODEL, "nodes": 1.5}), ("nodes",)),
    "no GPU": (Case({**MODEL, "gpusPerNode": 0}), ("gpusPerNode",)),
    "a factor of 0": (Case({**MODEL, "bufferFactor": 0}), ("bufferFactor",)),
    "parameters in words": (Case({"numParameters": "many"}), ("numParameters",)),
    "no parameters": (Case({"numParameters": 0}), ("numParameters",)),
    "an unknown key": (Case({**MODEL, "modelpath": "x"}), ("modelpath",)),
    "an unknown key within": (Case({**MODEL, "kaiwo": {"enable": True}}), ("enable",)),
    "a key that is gone": (Case(MODEL, sets=("memoryForPod=null",)), ("memoryForPod",)),
    "memory in words": (Case({**MODEL, "memoryForPod": "much"}), ("memoryForPod",)),
    "no tag": (Case({**MODEL, "image": "gpu-mem-calculator"}), ("image",)),
    "the latest": (Case({**MODEL, "image": "gpu-mem-calculator:latest"}), ("image",)),
    "a secret without a key": (Case({**MODEL, "hfTokenSecret": {"name": "x"}}), ("hfTokenSecret",)),
    "a bucket's host without http": (
        Case({**MODEL, "bucketStorageHost": "minio:80"}),
        ("bucketStorageHost",),
    ),
    "a model for a run file's mode": (Case({**ESTIMATE, **MODEL}), ("modelPath", "estimate")),
    "no run file": (Case({"mode": "estimate"}), ("needs a run file", "runConfigMap")),
    "no run file to measure": (Case({"mode": "measure"}), ("needs a run file", "runConfigMap")),
    "two run files": (Case({**ESTIMATE, "runConfigMap": {"name": "x"}}), ("both", "keep one")),
    "a run file for deepspeed": (Case({**MODEL, "run": SMALL_RUN}), ("run", "deepspeed")),
    "an unknown format": (Case({**ESTIMATE, "estimate": {"format": "xml"}}), ("format",)),
    "a page for Kaiwo": (Case({"mode": "web", "kaiwo": {"enabled": True}}), ("kaiwo", "web")),
    "an ingress without hosts": (web(ingress={"enabled": True}), ("hosts",)),
    "fewer pods at most than at least": (
        web(autoscaling={"enabled": True, "minReplicas": 5, "maxReplicas": 2}),
        ("minReplicas=5", "maxReplicas=2"),
    ),
    "a budget that keeps every pod": (web(replicas=1), ("minAvailable=1", "drained")),
    "a service of no kind": (web(service={"type": "External"}), ("type",)),
    "a setting that is none of ours": (web(settings={"PATH": "/"}), ("PATH",)),
    "a release that names no service": (Case(WEB_ALL, name="1.page"), ("1.page", "Service")),
    "other ranks than GPUs": (
        Case({**measuring(2).values, "nodes": 3}),
        ("num_gpus=16", "24 ranks"),
    ),
    "an unknown launcher": (measuring(2, launcher="mpi"), ("launcher",)),
    "a minimum of every rank": (measuring(2, findMinimum=True), ("findMinimum",)),
    "a launcher that is gone": (measuring(2, launcher="pytorchjob"), ("launcher",)),
    "a TrainJob for Kaiwo": (measuring(2, kaiwo=True, launcher="trainjob"), ("kaiwo", "TrainJob")),
    "another port for a TrainJob": (
        measuring(2, launcher="trainjob", port=29501),
        ("port=29501", "29500"),
    ),
    "root": (Case({**MODEL, "podSecurity": {"runAsUser": 0}}), ("runAsUser",)),
    "a user in words": (Case({**MODEL, "podSecurity": {"runAsUser": "me"}}), ("runAsUser",)),
    "a queue for the page": (
        Case({"mode": "web", "jobLabels": {"kueue.x-k8s.io/queue-name": "a"}}),
        ("jobLabels", "podLabels"),
    ),
    "a token without an account": (
        Case({**MODEL, "automountServiceAccountToken": True}),
        ("automountServiceAccountToken", "serviceAccountName"),
    ),
    "a key without a value": (Case(MODEL, sets=("nodes",)), ("nodes", "has no value")),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("renderer", RENDERERS)
def test_values_are_refused(renderer: str, name: str, tmp_path: Path) -> None:
    """With what is wrong in words, by gotpl and by Helm itself where it is there."""
    case, words = REFUSED[name]
    with pytest.raises(ChartError) as said:
        RENDERERS[renderer](case, tmp_path)
    sentence = str(said.value)
    assert all(word in sentence for word in words), sentence
    assert "nil pointer" not in sentence
    assert "can't evaluate" not in sentence
