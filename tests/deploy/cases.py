"""The chart's cases: every mode and override, with everything on and with the least.

A case is what a person gives to `helm template`; the guide's three commands are kept as they were
written.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from .render import render

KAIWO = {"kaiwo": {"enabled": True}}


@dataclass(frozen=True)
class Case:
    """What is given: values (as one more file), files of the chart, --set lines, a name."""

    values: dict[str, Any] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    name: str = "release"
    namespace: str = "default"

    def options(self) -> dict[str, Any]:
        """What `render` takes besides values and files."""
        return {"name": self.name, "sets": self.sets, "namespace": self.namespace}


GUIDE = {
    "guide-hub": "helm template . --set modelPath=meta-llama/Llama-3.1-70B"
    ' --values overrides/hf-token --name-template "llama-70b-ds-estimate"',
    "guide-hub-yaml": "helm template . --set modelPath=meta-llama/Llama-3.1-70B"
    ' --values overrides/hf-token.yaml --name-template "llama-70b-ds-estimate"',
    "guide-bucket": "helm template ."
    " --set modelPath=s3://default-bucket/models/meta-llama/Llama-3.1-70B"
    ' --name-template "llama-70b-ds-estimate"',
    "guide-number": "helm template . --set numParameters=70e9"
    ' --name-template "generic-70b-ds-estimate"',
}


def command_case(line: str) -> Case:
    """A `helm template .` command as a case."""
    program, verb, chart, *options = shlex.split(line)
    assert (program, verb, chart) == ("helm", "template", "."), line
    given: dict[str, list[str]] = {"--set": [], "--values": [], "--name-template": []}
    for option, value in zip(options[::2], options[1::2], strict=True):
        given[option].append(value)
    (name,) = given["--name-template"]
    return Case({}, tuple(given["--values"]), tuple(given["--set"]), name)


SMALL_RUN = {
    "model": {"name": "llama2-7b"},
    "training": {"batch_size": 1, "seq_len": 2048},
    "engine": {"type": "deepspeed", "zero_stage": 2, "reduce_bucket_size": 500_000_000},
    "hardware": {"gpu": "h100-80gb-sxm", "num_gpus": 8},
}
# Keys of every pod, each with a value of its own.
PODS = {
    "serviceAccountName": "reader",
    "automountServiceAccountToken": True,
    "priorityClassName": "low",
    "podSecurity": {"runAsUser": 1001, "runAsGroup": 1002, "fsGroup": 1003},
    "imagePullPolicy": "Always",
    "imagePullSecrets": [{"name": "our-registry"}],
    "podLabels": {"team": "training"},
    "podAnnotations": {"example.com/cost-centre": "42"},
    "nodeSelector": {"kubernetes.io/arch": "amd64"},
    "tolerations": [{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 1,
                    "preference": {
                        "matchExpressions": [
                            {"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]}
                        ]
                    },
                }
            ]
        }
    },
    "extraEnv": [{"name": "TZ", "value": "Europe/Zurich"}],
    "extraVolumes": [{"name": "cache", "emptyDir": {"sizeLimit": "1Gi"}}],
    "extraVolumeMounts": [{"name": "cache", "mountPath": "/cache"}],
}
# Keys of every Job.
JOBS = {
    "jobLabels": {"kueue.x-k8s.io/queue-name": "gpus", "app.kubernetes.io/name": "not-this"},
    "jobAnnotations": {"example.com/asked-by": "ada"},
}
WEB_ALL = {
    "mode": "web",
    "hfTokenSecret": {"name": "hf-token", "key": "token"},
    "hfEndpoint": "http://hub.example:8080",
    **PODS,
    "web": {
        "hub": True,
        "workers": 4,
        "prometheus": True,
        "settings": {"GPU_MEM_CALC_SLOW_SECONDS": 60, "GPU_MEM_CALC_LOG_LEVEL": "warning"},
        "service": {"type": "NodePort", "port": 8080},
        "forwardedAllowIps": "10.0.0.0/8,fd00::/8",
        "ingress": {
            "enabled": True,
            "className": "nginx",
            "annotations": {"example.com/a": "b"},
            "hosts": [
                {"host": "a.example.com", "paths": [{"path": "/mem", "pathType": "Exact"}]},
                {"host": "b.example.com"},
            ],
            "tls": [{"secretName": "a-tls", "hosts": ["a.example.com"]}],
        },
        "autoscaling": {
            "enabled": True,
            "minReplicas": 3,
            "maxReplicas": 9,
            "targetCPUUtilizationPercentage": 60,
        },
        "podDisruptionBudget": {"enabled": True, "minAvailable": "50%"},
        "networkPolicy": {
            "enabled": True,
            "from": [{"podSelector": {"matchLabels": {"role": "front"}}}],
            "egress": [{"ports": [{"port": 8443, "protocol": "TCP"}]}],
        },
    },
}
WEB_LEAST = {
    "mode": "web",
    "web": {
        "replicas": 1,
        "podDisruptionBudget": {"enabled": False},
        "networkPolicy": {"enabled": False},
    },
}
MEASURE_ALL = {
    "image": "example/gpu-mem-calculator:0.9.0-torch",
    "ranks": "all",
    "steps": 4,
    "cap": "40GiB",
    "allocConf": "expandable_segments:True",
    "format": "json",
    "resultsClaim": "results",
    "gpuResource": "amd.com/gpu",
    "cpu": "16",
    "memory": "64Gi",
    "shmSize": "16Gi",
    "tmpSize": "32Gi",
    "nodeSelector": {"gpu": "mi300x"},
    "tolerations": [{"operator": "Exists"}],
    "runtimeClassName": "amd",
    "activeDeadlineSeconds": 600,
    "waitForNodesSeconds": 60,
    "port": 29501,
    "settings": ["training.batch_size=2"],
}


def measuring(nodes: int, kaiwo: bool = False, **measure: Any) -> Case:
    """A measured run of every rank on these nodes, eight GPUs each."""
    run = {**SMALL_RUN, "hardware": {"gpu": "h100-80gb-sxm", "num_gpus": 8 * nodes}}
    values = {"mode": "measure", "run": run, "nodes": nodes, "kaiwo": {"enabled": kaiwo}}
    return Case({**values, "measure": {"ranks": "all", **measure}}, name="measured")


CASES: dict[str, Case] = {
    **{name: command_case(line) for name, line in GUIDE.items()},
    "number-in-a-file": Case({"numParameters": 70e9}),
    "stage-3-numbers": Case(
        {"stage": 3, "numParameters": "70e9", "largestLayerParameters": 1050673152, "nodes": 4}
    ),
    "deepspeed-all": Case(
        {
            **PODS,
            **JOBS,
            "stage": 2,
            "gpusPerNode": 4,
            "nodes": 2,
            "bufferFactor": 2,
            "modelPath": "s3://bucket/a/model",
            "trustRemoteCode": True,
            "memoryForPod": "2Gi",
            "image": "example/gpu-mem-calculator:0.9.0",
            "ttlSecondsAfterFinished": 60,
            "activeDeadlineSeconds": 120,
            "bucketStorageHost": "http://s3.example:9000",
            "bucketRegion": "eu-west-1",
            "cpuForPod": "2",
            "bucketCredentialsSecret": {"name": "keys", "accessKeyKey": "a", "secretKeyKey": "s"},
            "hfTokenSecret": {"name": "hub", "key": "token"},
            "hfEndpoint": "https://hub.example",
        },
        name="all",
        namespace="training",
    ),
    "deepspeed-kaiwo": Case(
        {**KAIWO, **JOBS, "modelPath": "meta-llama/Llama-3.1-8B"}, name="kaiwo"
    ),
    "override-deepseek-v3": Case({}, ("overrides/deepseek-v3.yaml",)),
    "override-openshift": Case({"numParameters": "70e9"}, ("overrides/openshift.yaml",)),
    "override-aws": Case({"modelPath": "s3://bucket/a/model"}, ("overrides/aws.yaml",)),
    "override-deepspeed": Case({}, ("overrides/deepspeed.yaml",)),
    "override-estimate": Case({}, ("overrides/estimate.yaml",)),
    "override-estimate-serving": Case({}, ("overrides/estimate-serving.yaml",)),
    "override-web": Case({}, ("overrides/web.yaml",)),
    "estimate-all": Case(
        {
            **PODS,
            "mode": "estimate",
            "run": {**SMALL_RUN, "model": {"name": "s3://bucket/model"}},
            "estimate": {"format": "json", "check": True},
        },
        sets=("estimate.settings={hardware.num_gpus=16,training.batch_size=2}",),
    ),
    "estimate-configmap": Case(
        {"mode": "estimate", "runConfigMap": {"name": "my-run", "key": "big.yaml"}}
    ),
    "estimate-kaiwo": Case({"mode": "estimate", "run": SMALL_RUN, **KAIWO}),
    "measure-one": Case({"mode": "measure", "run": SMALL_RUN}),
    "measure-one-all": Case(
        {
            "mode": "measure",
            "runConfigMap": {"name": "my-run"},
            **PODS,
            "measure": {"rank": 3, "findMinimum": True, "backoffLimit": 2},
        }
    ),
    "measure-node": measuring(1),
    "measure-job": measuring(2, launcher="job"),
    "measure-job-all": measuring(4, **MEASURE_ALL, launcher="job"),
    "measure-job-kaiwo": measuring(2, kaiwo=True),
    "measure-trainjob": measuring(2, launcher="trainjob"),
    "measure-trainjob-all": replace(
        trained := measuring(4, **{**MEASURE_ALL, "port": 29500}, launcher="trainjob"),
        values={**trained.values, **PODS, **JOBS},
    ),
    "override-measure": Case({}, ("overrides/measure.yaml",)),
    "override-measure-all": Case({}, ("overrides/measure.yaml", "overrides/measure-all.yaml")),
    "web-least": Case(WEB_LEAST, name="page"),
    "web-default": Case({"mode": "web"}, name="page"),
    "web-all": Case(WEB_ALL, name="page", namespace="tools"),
    "web-hub": Case({"mode": "web", "web": {"hub": True}}, name="page"),
}


@cache
def documents(name: str, revision: int = 1) -> list[dict[str, Any]]:
    """A case's documents, rendered once."""
    return rendered(CASES[name], revision)


def rendered(case: Case, revision: int = 1) -> list[dict[str, Any]]:
    """A case's documents."""
    return render(case.values, *case.files, revision=revision, **case.options())
