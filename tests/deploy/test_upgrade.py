"""Upgrades between any two cases go through, and nothing is left behind at the end.

The model of Helm here: what the old manifest has and the new one has not is deleted, unless a
policy keeps it; what both have is changed in place, where Kubernetes refuses some changes.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pytest

from .cases import CASES, rendered
from .policies import without_tests
from .render import CHART

Document = dict[str, Any]
Name = tuple[str, str]
# What Kubernetes (or the operator) does not let change, by kind.
IMMUTABLE = {
    "Deployment": ["selector"],
    "Job": ["template", "selector", "completionMode", "completions"],
    "KaiwoJob": ["job"],
    "PersistentVolumeClaim": ["accessModes", "storageClassName", "volumeName"],
    "Service": ["clusterIP"],
    "TrainJob": ["runtimeRef", "trainer"],
}


class RefusedError(Exception):
    """What the cluster says to a change."""


@dataclass
class Cluster:
    """A namespace, and the manifest that Helm remembers."""

    objects: dict[Name, Document] = field(default_factory=dict)
    manifest: dict[Name, Document] = field(default_factory=dict)

    def release(self, documents: list[Document]) -> None:
        """An install or an upgrade."""
        new = {(one["kind"], one["metadata"]["name"]): one for one in documents}
        assert len(new) == len(documents), "one object twice"
        for name, document in new.items():
            if name in self.objects and name not in self.manifest:
                raise RefusedError(f"{name} exists and is not of this release")
            if name in self.objects:
                self.change(self.objects[name], document)
            self.objects[name] = copy.deepcopy(document)
        self.delete(self.manifest.keys() - new.keys())
        self.manifest = new

    def change(self, old: Document, new: Document) -> None:
        """What stays may change, but for some fields."""
        for key in IMMUTABLE.get(old["kind"], []):
            before, after = old.get("spec", {}).get(key), new.get("spec", {}).get(key)
            if before != after:
                raise RefusedError(
                    f"{old['kind']} {old['metadata']['name']}: spec.{key} is immutable"
                )

    def delete(self, names: set[Name]) -> None:
        """What goes, unless it is to be kept."""
        for name in names:
            kept = self.objects[name]["metadata"].get("annotations", {})
            if kept.get("helm.sh/resource-policy") != "keep":
                del self.objects[name]

    def uninstall(self) -> None:
        """What the manifest has goes."""
        self.delete(set(self.manifest))
        self.manifest = {}


@cache
def revision(name: str, number: int) -> list[Document]:
    """A case as a revision of one release."""
    return without_tests(rendered(replace(CASES[name], name="same", namespace="default"), number))


@pytest.mark.parametrize("first", CASES)
def test_a_release_can_become_any_other_and_go(first: str) -> None:
    """From one case to every other and back, then away: the namespace is as it was."""
    for second in CASES:
        cluster = Cluster()
        cluster.release(revision(first, 1))
        cluster.release(revision(second, 2))
        assert set(cluster.objects) == set(cluster.manifest), second
        cluster.release(revision(first, 3))
        assert set(cluster.objects) == set(cluster.manifest), second
        cluster.uninstall()
        assert cluster.objects == {}, second


def test_two_releases_live_in_one_namespace() -> None:
    """No object has a name that is not its release's own."""
    for name, case in CASES.items():
        one, two = (
            {(d["kind"], d["metadata"]["name"]) for d in rendered(replace(case, name=who))}
            for who in ("one", "two")
        )
        assert not one & two, name


def test_helm_knows_of_everything() -> None:
    """Helm never removes what is under crds/, so there is no such folder."""
    assert not (CHART / "crds").exists()


def test_the_model_refuses() -> None:
    """A Job whose name stays cannot become another; what is kept is left behind."""
    cluster = Cluster()
    cluster.release(revision("guide-number", 1))
    with pytest.raises(RefusedError, match=r"spec\.template is immutable"):
        cluster.release(revision("guide-hub", 1))
    kept = copy.deepcopy(revision("web-default", 1))
    kept[0]["metadata"]["annotations"] = {"helm.sh/resource-policy": "keep"}
    cluster = Cluster()
    cluster.release(kept)
    cluster.uninstall()
    assert len(cluster.objects) == 1
    with pytest.raises(RefusedError, match="not of this release"):
        cluster.release(revision("web-default", 1))
