"""The shapes of bodies and answers that have no type elsewhere, for the OpenAPI document."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field

from ..advice.comparison import KeyDifference
from ..estimates.result import MemoryResult
from .fact_bodies import FACTS


class ProblemsBody(Struct, frozen=True):
    """What is wrong, all of it together and one sentence each; the files that a text names and that
    are not beside it.
    """

    detail: str
    problems: list[str]
    files: list[str] = []


class Status(Struct, frozen=True):
    """How the service is."""

    status: str


class Validation(Struct, frozen=True):
    """Whether a run file is right, and what to know of it."""

    valid: bool
    errors: list[str]
    verdict: str
    summary: str
    warnings: list[str]
    assumed: list[str]


class ChangeBody(Struct, frozen=True, kw_only=True):
    """One change, what it saves on each GPU by the ledger, and the verdict of the run with it."""

    title: str
    settings: list[str]
    saves_bytes: int
    total_bytes: int
    fits: bool
    verdict: str
    cost: str
    kv_tokens: int | None = None
    max_concurrency: float | None = None
    users: int | None = None
    context: int | None = None


class ChangesBody(Struct, frozen=True):
    """Changes worth trying."""

    changes: list[ChangeBody]


class RunChoices(Struct, frozen=True, forbid_unknown_fields=True):
    """A run file, and choices: settings `section.key=value`, which each belong together."""

    run: dict[str, Any]
    choices: list[list[str]]


class RefusedChoices(Struct, frozen=True):
    """Why the run is refused with each choice, a sentence; null where it is not."""

    refused: list[str | None]


class HeadroomBody(Struct, frozen=True):
    """How far a run's sequence can grow, or must shrink; empty where there is nothing to say."""

    room: str


class CheckBody(Struct, frozen=True, omit_defaults=True):
    """Whether a command fits, with the exit code of `check`; of several, the worst of `answers`.

    - summary: the answer in one line, made to be pasted; problems: why nothing is estimated
    - tool, version, keys: what was read, and the effect of each key: memory, free or refused
    - assumed: what was assumed in reading it; limits: what of it is not modelled
    - run: its run file; result: the estimate of that
    - together: what commands take of a GPU that they share
    """

    verdict: str
    exit_code: int
    summary: str = ""
    problems: list[str] = []
    tool: str = ""
    version: str = ""
    keys: dict[str, str] = {}
    assumed: list[str] = []
    limits: list[dict[str, Any]] = []
    run: dict[str, Any] = {}
    result: MemoryResult | None = None
    answers: list[dict[str, Any]] = []
    together: list[dict[str, Any]] = []


class AdmissionRequest(Struct, frozen=True):
    """What Kubernetes asks: an object that is created or changed; null where it is deleted."""

    uid: str
    operation: str = "CREATE"
    object: dict[str, Any] | None = None


class AdmissionReview(Struct, frozen=True):
    """A question of a ValidatingAdmissionWebhook; what it has besides is not needed."""

    api_version: Literal["admission.k8s.io/v1"] = field(name="apiVersion")
    kind: Literal["AdmissionReview"]
    request: AdmissionRequest


class DeniedStatus(Struct, frozen=True):
    """Why an object is denied."""

    code: int
    message: str


class AdmissionResponse(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whether an object is admitted, and what its sender is told."""

    uid: str
    allowed: bool
    status: DeniedStatus | None = None
    warnings: list[str] = []


class AdmissionAnswer(Struct, frozen=True, kw_only=True):
    """The answer to an AdmissionReview."""

    api_version: str = field(name="apiVersion", default="admission.k8s.io/v1")
    kind: str = "AdmissionReview"
    response: AdmissionResponse


class SkyPilotRequest(Struct, frozen=True):
    """What SkyPilot asks: a task and its configuration, both as YAML."""

    task: str
    skypilot_config: str = ""


class TwoRuns(Struct, frozen=True, forbid_unknown_fields=True):
    """Two runs, each a run file or a text that means one."""

    a: dict[str, Any]
    b: dict[str, Any]


class ComparedSide(Struct, frozen=True):
    """One of two runs; `used_bytes` of a server is what it takes beside its KV cache."""

    name: str
    verdict: str
    used_bytes: int
    kv_pool_bytes: int
    result: MemoryResult


class ComparedPart(Struct, frozen=True):
    """A part of the memory in both; null where one of them does not have it."""

    part: str
    a_bytes: int | None
    b_bytes: int | None


class ComparisonBody(Struct, frozen=True):
    """Two runs side by side; `differences` are the keys with other values."""

    verdict: str
    summary: str
    a: ComparedSide
    b: ComparedSide
    parts: list[ComparedPart]
    differences: list[KeyDifference]


class PrintedText(Struct, frozen=True, forbid_unknown_fields=True):
    """What a program printed when it died; and its run, a run file or a text that means one."""

    text: str
    run: dict[str, Any] | None = None


class PrintedLine(Struct, frozen=True):
    """A line that was read; the names of sizes end in `_bytes`."""

    line: int
    what: str
    tool: str
    figures: dict[str, float | str]


class CauseBody(Struct, frozen=True):
    """Why a run died: certain, likely or possible; in which phase, and for which tensor."""

    id: str
    sentence: str
    certainty: Literal["certain", "likely", "possible"]
    phase: str
    tensor: str
    formula: str


class PrintedPartBody(Struct, frozen=True):
    """A printed figure beside the estimate: of a device, or of a phase; `beyond` the error of the
    estimate, and what that means. `estimated` is null where the estimate has none.
    """

    name: str
    where: str
    line: int
    unit: Literal["bytes", "tokens", "layers"]
    printed: int
    estimated: int | None
    beyond: bool
    means: str


class RemedyBody(Struct, frozen=True):
    """What helps; `fits` is null where no run is known with which that could be computed."""

    sentence: str
    command: str
    fits: bool | None


class DiagnosisBody(Struct, frozen=True):
    """Why a run died; `cause` is null where nothing in the text says it."""

    read: list[PrintedLine]
    run: dict[str, Any] | None
    cause: CauseBody | None
    others: list[CauseBody]
    evidence: list[str]
    parts: list[PrintedPartBody]
    remedies: list[RemedyBody]
    error: str
    question: str
    notes: list[str]
    verdict: str
    summary: str


class PastedText(Struct, frozen=True, forbid_unknown_fields=True):
    """A text: a run file, a config.json, a command, a file of another tool, or a model's name; and
    texts of the files that it names, by their names.
    """

    text: str
    files: dict[str, str] = {}


class OtherCommand(Struct, frozen=True):
    """One of several commands of a text: what ImportedRun has of it, or why it cannot be read."""

    name: str
    run: dict[str, Any] = {}
    what: str = ""
    notes: list[str] = []
    problems: list[str] = []


class ImportedRun(Struct, frozen=True):
    """The run file, or the sections of one, that a text means.

    - what: `run file`, `config.json`, `model`, `DeepSpeed`, the tool with its version, or `what a
      program printed`, which `POST /api/diagnose` reads
    - notes: what was assumed for another tool's text, and what of it is not modelled
    - name: of several commands the first that can be read; others: the rest, in their order
    - wanted: files that it names and that are not beside it, without which it could be read
    - verdict, summary: of `run`, by the ledger alone
    """

    run: dict[str, Any]
    what: str
    verdict: str
    summary: str
    notes: list[str] = []
    name: str = ""
    others: list[OtherCommand] = []
    wanted: list[str] = []


class ExportedFile(Struct, frozen=True, kw_only=True):
    """A file's text and usual name; of a foreign configuration also its data, and the result."""

    format: str
    content: str
    filename: str
    config: dict[str, Any] | None = None
    memory_result: MemoryResult | None = None


_OWN = [kind for kind in globals().values() if getattr(kind, "__module__", "") == __name__]
ALL = [*_OWN, *FACTS]
