"""What a diagnosis says."""

from __future__ import annotations

from msgspec import Struct

from ...estimates.fit_verdict import UNSURE
from ...ledger.shown import Shown
from ...tools.logs.read import LogLine

CERTAIN, LIKELY, POSSIBLE = "certain", "likely", "possible"
CERTAINTIES = (CERTAIN, LIKELY, POSSIBLE)
BYTES, TOKENS, LAYERS = "bytes", "tokens", "layers"  # units of a printed figure


class Cause(Struct, frozen=True, kw_only=True):
    """Why a run died.

    - `id`: a row of causes.toml; `sentence`: it with the figures
    - `certainty`: certain, where the message itself says the cause, or the size that was asked for
      is that of one tensor where the stack has it; likely; possible
    - `phase`, `tensor`: where it died, and for what; "" where that is not known
    - `formula`: the size as a product of the run's numbers
    - `evidence`: what speaks for it; `advice`: what helps in general; a sentence each
    """

    id: str
    sentence: str
    certainty: str
    phase: str = ""
    tensor: str = ""
    formula: str = ""
    evidence: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()


class Advice(Struct, frozen=True, kw_only=True):
    """A remedy: what to change; the command with it, where there is one; and whether it then fits.

    `fits` is None where no run is known with which that could be computed.
    """

    sentence: str
    command: str = ""
    fits: bool | None = None


class PrintedPart(Struct, frozen=True, kw_only=True):
    """A printed figure, and what the estimate says of it.

    - `name`: what it is, such as weights or allocated; `where`: a device, or a phase with its step
    - `line`: the number of its line in the text; `unit`: bytes, tokens or layers
    - `estimated`: None where the estimate has no such figure
    - `beyond`: by more than the error of the estimate
    - `means`: what a difference says, where it is `beyond`
    """

    name: str
    where: str = ""
    line: int
    unit: str = BYTES
    printed: int
    estimated: int | None = None
    beyond: bool = False
    means: str = ""


class Diagnosis(Shown, Struct, frozen=True, kw_only=True):
    """What a text says, and why the run died.

    - `read`: the lines that were read
    - `run`: the run's file; None where no run is known
    - `cause`: the likeliest; None where nothing can be told; `others`: the next ones
    - `evidence`: measured against predicted; `parts`: the same part by part
    - `remedies`: the cheapest first
    - `error`: without a cause, the last line of the text where it is an error of another kind
    - `question`: what to send if it is still unclear; "" where nothing is missing
    - `notes`: what was assumed, and what was not read
    - `verdict`: of the run by its estimate; open where no run is known
    - `summary`: one line, made to be pasted into an issue
    """

    read: tuple[LogLine, ...] = ()
    run: dict[str, object] | None = None
    cause: Cause | None = None
    others: tuple[Cause, ...] = ()
    evidence: tuple[str, ...] = ()
    parts: tuple[PrintedPart, ...] = ()
    remedies: tuple[Advice, ...] = ()
    error: str = ""
    question: str = ""
    notes: tuple[str, ...] = ()
    verdict: str = UNSURE
    summary: str = ""
