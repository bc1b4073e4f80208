"""The card of a Pod: by the labels that its node must have, and by its MIG resources.

Kubernetes: nodeSelector and the required terms of nodeAffinity. What is only preferred is not
certain, so it names no card.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...catalog.machines import label_cards, labels, machine, memory_size
from ..reading.card import NamedCard, all_of, one_of, slice_of
from .containers import inside, objects, section

SLICE = re.compile(r"(?:nvidia\.com/)?(?:mig-)?(\d+g\.\d+gb)(?:[.+]me)?(?:\.shared)?")
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
EQUAL, MORE = ("In", "Exists", ""), ("Gt", "Gte")


def pod_card(pod: Mapping[str, Any]) -> NamedCard | None:
    """The card of a Pod's node, with its slice where a label says it; None where nothing does."""
    selector = section(pod, "nodeSelector")
    labelled = (_label(str(key), "", [str(value)]) for key, value in selector.items())
    said = [card for card in labelled if card]
    affinity = inside(pod, "affinity", "nodeAffinity", REQUIRED, "nodeSelectorTerms")
    terms = [all_of(list(_term(one))) for one in affinity] if isinstance(affinity, list) else []
    known = [one for one in terms if one is not None]
    either = one_of(known) if known and len(known) == len(terms) else None
    card = all_of([*said, *([either] if either else [])])
    profile = _slice_label(selector)
    return slice_of(profile, card) if profile else card


def _term(term: Any) -> Iterator[NamedCard]:
    """The cards of one term: each of its expressions has to hold."""
    for one in objects(inside(term, "matchExpressions")):
        if isinstance(one.get("values"), list):
            values = [str(value) for value in one["values"]]
            card = _label(str(one.get("key")), str(one.get("operator", "")), values)
            if card:
                yield card


def _label(key: str, operator: str, values: Sequence[str]) -> NamedCard | None:
    """What one label says of the card; None where it says nothing."""
    said = f"{key}{'=' if operator in EQUAL else f' {operator} '}{'|'.join(values)}"
    row = labels().get(key)
    if row is not None and row["says"] == "memory":
        return _memory(operator, values, said)
    if operator not in EQUAL or not values:
        return None
    cards = []
    for value in values:
        name = label_cards(key, value)
        if name is None:
            return None
        known = machine(value) if row is not None and row["says"] == "machine" else None
        cards.append(NamedCard(name=name, gpus=known[1] if known else None, said=said))
    return one_of(cards)


def _memory(operator: str, values: Sequence[str], said: str) -> NamedCard | None:
    """A label that says a size in MiB: one of several, or more than one."""
    sizes = [int(value) for value in values if value.isdecimal() and len(value) < 9]
    if not sizes or operator not in (*EQUAL, *MORE):
        return None
    more = operator in MORE
    found = memory_size(min(sizes), more=more)
    return NamedCard(memory_gb=found, at_least=more or len(sizes) > 1, said=said)


def _slice_label(selector: Mapping[str, Any]) -> str:
    """The MIG profile in a label of the selector; empty where there is none."""
    for key, value in selector.items():
        row = labels().get(str(key))
        found = SLICE.fullmatch(str(value)) if row and row["says"] == "slice" else None
        if found:
            return found[1]
    return ""


def resource_slice(resources: Any) -> str:
    """The MIG profile among a container's resources; empty where there is none."""
    for part in ("limits", "requests"):
        for name in section(resources, part):
            found = SLICE.fullmatch(str(name)) if "mig-" in str(name) else None
            if found:
                return found[1]
    return ""
