"""What is true of a server beside its memory, as data: the `ROW` of its folder's `row.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from msgspec import Struct

from .releases import Version
from .run import Run

ANY_RELEASE: Version = (0, 0, 0)
CardSteps = tuple[tuple[Version, str], ...]  # a first release, the oldest compute capability since
EMULATES, REFUSES, TAKES_FP16 = "emulates", "refuses", "takes fp16"
LESS_EXACT = "weights are less exact"


class CardRules(Struct, frozen=True, kw_only=True):
    """The NVIDIA cards that a server runs on.

    - `oldest`: by release; `formats`: of weight formats, where that is newer than the server's
    - `without_bf16`: what it does with bf16 on a card that has no units for it: torch EMULATES it;
      it REFUSES, unless no dtype was given; it TAKES_FP16
    """

    oldest: CardSteps = ()
    formats: Mapping[str, CardSteps] = {}
    without_bf16: str = EMULATES


class FormatChange(Struct, frozen=True):
    """A smaller format or limit that people try first: one key with another value.

    - `axis`: changes of one axis exclude each other
    - `gains`: it leaves more memory for users, so it is offered to a server that fits, too
    """

    axis: str
    key: str
    value: str
    title: str
    cost: str
    gains: bool = True

    @property
    def setting(self) -> str:
        """The change in `--set` notation."""
        return f"inference.{self.key}={self.value}"


SMALLER_FORMATS = (
    FormatChange("cache", "kv_cache_dtype", "fp8", "KV cache in fp8", "attention is less exact"),
    FormatChange("weights", "quantization", "fp8", "weights in fp8", LESS_EXACT),
    FormatChange("weights", "quantization", "awq", "weights in AWQ", "needs an AWQ checkpoint"),
)


class ServerRow(Struct, frozen=True, kw_only=True):
    """A server's row.

    - `package`: by whose releases it is modelled; empty where one release is
    - `runtimes`: the kinds of cards that it has kernels for (run/cuda/runtimes.py)
    - `no_code`: families that its newest release does not serve, with the last release that did;
      "" where none that is modelled did
    - `instead`: of families in `no_code`, the section with which another server has them, where
      that is better than an older release of this one
    - `as_transformers`: families that it runs as transformers' own code
    - `changes`: smaller formats and limits, in the order in which they are tried
    - `prompt_chunk`: the option for the most tokens of a prompt in one pass, and its least default
    - `request_limit`: the option for the most tokens of a request, where it is not `max_seq_len`
    - `reads_gguf`: its weights are a GGUF file's
    - `splits_by_layer`: each GPU has some of the layers, and one batch runs through all of them
    - `replicas_share_experts`: data-parallel replicas do
    - `timed_as`: its name in the table of costs, for a run, where that is not its own
    """

    title: str
    package: str = ""
    runtimes: tuple[str, ...]
    cards: CardRules
    no_code: Mapping[str, str]
    instead: Mapping[str, Mapping[str, str]] = {}
    as_transformers: frozenset[str] = frozenset()
    changes: tuple[FormatChange, ...]
    prompt_chunk: tuple[str, int]
    request_limit: str = "max_seq_len"
    reads_gguf: bool = False
    splits_by_layer: bool = False
    replicas_share_experts: bool = False
    timed_as: Callable[[Run], str] | None = None

    def borrowed_notes(self, family: str) -> Iterator[str]:
        """A sentence where the server has no code of its own for a family."""
        if family in self.as_transformers:
            own = f"{self.title} has no {family} model of its own and runs transformers' code"
            yield f"{own}; its activations are estimated as those of {self.title}'s own layers"
