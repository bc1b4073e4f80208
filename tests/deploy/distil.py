"""A published CustomResourceDefinition as the schema of one version: its structure alone.

    python -m tests.deploy.distil CRD.yaml VERSION "where it is from" >schemas/KIND.json

What is Kubernetes' own within it (pod templates, Jobs, metadata ...) becomes a reference, so that
it is checked against the schemas of Kubernetes itself; descriptions are left out; a key that is
not named is refused.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

CORE, META = "io.k8s.api.core.v1", "io.k8s.apimachinery.pkg.apis.meta.v1"
# Keys under which Kubernetes' own objects are held: (the object's name, or a list of it).
OWN: dict[str, str | list[str]] = {
    "metadata": f"{META}.ObjectMeta",
    "job": "io.k8s.api.batch.v1.Job",
    "headService": f"{CORE}.Service",
    "affinity": f"{CORE}.Affinity",
    "tolerations": [f"{CORE}.Toleration"],
    "volumes": [f"{CORE}.Volume"],
    "resources": f"{CORE}.ResourceRequirements",
    "securityContext": f"{CORE}.SecurityContext",
    "env": [f"{CORE}.EnvVar"],
    "envFrom": [f"{CORE}.EnvFromSource"],
    "volumeMounts": [f"{CORE}.VolumeMount"],
    "imagePullSecrets": [f"{CORE}.LocalObjectReference"],
}
KEPT = (
    "type",
    "enum",
    "required",
    "minimum",
    "maximum",
    "pattern",
    "minItems",
    "maxItems",
    "minLength",
    "maxLength",
)


def reference(name: str) -> dict[str, str]:
    """Where a definition of Kubernetes' own is."""
    return {"$ref": f"https://kubernetes.io/api/_definitions.json#/$defs/{name}"}


def structure(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema without its words, closed to keys that it does not name."""
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    made = {key: schema[key] for key in KEPT if key in schema}
    inner = {key: one for key, one in schema.get("properties", {}).items() if key != "status"}
    if inner:
        made["properties"] = {key: under(key, one) for key, one in inner.items()}
        made["additionalProperties"] = False
    elif isinstance(schema.get("additionalProperties"), dict):
        made["additionalProperties"] = structure(schema["additionalProperties"])
    if "items" in schema:
        made["items"] = structure(schema["items"])
    return made


def template(schema: dict[str, Any]) -> str | None:
    """Which template of Kubernetes' own a schema is, by the keys of its spec."""
    keys = schema.get("properties", {}).get("spec", {}).get("properties", {})
    if "containers" in keys and "restartPolicy" in keys:
        return f"{CORE}.PodTemplateSpec"
    return "io.k8s.api.batch.v1.JobTemplateSpec" if "backoffLimit" in keys else None


def under(key: str, schema: dict[str, Any]) -> dict[str, Any]:
    """What a key holds: a reference where that is Kubernetes' own."""
    own = OWN.get(key) or template(schema)
    named = bool(schema.get("properties")) or "items" in schema or key in ("metadata", "job")
    if own is None or not named:
        return structure(schema)
    return reference(own) if isinstance(own, str) else {"type": "array", "items": reference(own[0])}


def distilled(text: str, version: str, source: str) -> dict[str, Any]:
    """The schema of one version of a definition; a status is the operator's and left out."""
    crd = yaml.safe_load(text)
    (found,) = [one for one in crd["spec"]["versions"] if one["name"] == version]
    group, kind = crd["spec"]["group"], crd["spec"]["names"]["kind"]
    spec = found["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$comment": source,
        "type": "object",
        "required": ["apiVersion", "kind", "metadata", "spec"],
        "properties": {
            "apiVersion": {"const": f"{group}/{version}"},
            "kind": {"const": kind},
            "metadata": reference(f"{META}.ObjectMeta"),
            "spec": structure(spec),
        },
        "additionalProperties": False,
    }


if __name__ == "__main__":
    file, wanted, said = sys.argv[1:]
    made = distilled(Path(file).read_text(encoding="utf-8"), wanted, said)
    print(json.dumps(made, indent=1))
