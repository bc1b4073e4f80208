"""The values of options: a text becomes a number, a size or a time, or is refused in a sentence.

`options.json` names these functions as types.
"""

from __future__ import annotations

import re
from argparse import ArgumentTypeError

from ..ledger.units import GIB, KIB, MIB
from ..runfile.text.counts import whole_count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..lab.measure.ray_cluster import ClusterShape

MOST = 10**9  # of a count
MOST_PORTS = 65535
UNITS = {
    **dict.fromkeys(("", "G", "GB", "GIB"), GIB),
    **dict.fromkeys(("M", "MB", "MIB"), MIB),
    **dict.fromkeys(("K", "KB", "KIB"), KIB),
    "B": 1,
}
Margin = tuple[float, str]  # a number, and its unit: GiB or %
# Names of methods that have one usual format, as servers' users say them.
METHODS = {"gptq": "gptq_int4", "bitsandbytes": "nf4", "bnb": "nf4"}


def whole(text: str) -> int:
    """A whole number, 1 or more."""
    return _count(text, least=1)


def natural(text: str) -> int:
    """A whole number, 0 or more."""
    return _count(text, least=0)


def tokens(text: str) -> int:
    """A number of tokens, 1 or more, of which k is 1,024."""
    return _count(text, least=1, tokens=True)


def _count(text: str, *, least: int, tokens: bool = False) -> int:
    number = whole_count(text, tokens=tokens)
    if number is None or number < least:
        such = ", such as 4096, 8k or 128k" if tokens else f", {least} or more"
        raise ArgumentTypeError(f"{text!r} must be a whole number{such}")
    if number > MOST:
        raise ArgumentTypeError(f"{text!r} must be a whole number of at most {MOST:,}")
    return number


def lengths(text: str) -> tuple[int, ...]:
    """Numbers of tokens, separated by commas."""
    return tuple(tokens(piece.strip()) for piece in text.split(","))


def numbers(text: str) -> tuple[int, ...]:
    """Whole numbers, 1 or more, separated by commas."""
    return tuple(whole(piece.strip()) for piece in text.split(","))


def positive(text: str) -> float:
    """A number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e12:
        raise ArgumentTypeError(f"{text!r} must be a number above 0")
    return number


def memory(text: str) -> float:
    """The memory of a GPU in GB; the unit may be written."""
    several = re.split(r"[,;+/&]", text)
    if len(several) > 1:
        least = min(memory(one) for one in several)
        why = "names several cards, and a run has one kind"
        raise ArgumentTypeError(f"{text!r} {why}; use the smallest, {least:g}")
    return positive(re.sub(r"(?<=[0-9])\s*(gb|gib|g)$", "", text.strip(), flags=re.IGNORECASE))


def memory_size(text: str) -> int:
    """Bytes from `24GiB`, `24GB` (the same: cards are sold so), `500MiB` or a number of GiB."""
    number = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)", text.strip(), re.IGNORECASE)
    unit = UNITS.get(number[2].upper()) if number else None
    size = int(float(number[1]) * unit) if number and unit else 0
    if size < 1:
        raise ArgumentTypeError(f"{text!r} must be a size such as 24GiB or 500MiB")
    return size


def memory_range(text: str) -> tuple[int, int]:
    """Two sizes from `12GiB:16GiB`, the lower one first."""
    low, _, high = text.partition(":")
    sizes = memory_size(low), memory_size(high)
    if sizes[0] >= sizes[1]:
        raise ArgumentTypeError(f"{text!r} must be two sizes, the lower one first")
    return sizes


def margin(text: str) -> Margin:
    """The memory to keep free: a number of GiB, or a share of the card in percent."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(%|gib|gb|g)?\s*", text, re.IGNORECASE)
    if match is None or (match[2] == "%" and float(match[1]) >= 100):
        raise ArgumentTypeError(f"{text!r} must be GiB or a percentage, such as 2 or 5%")
    return float(match[1]), "%" if match[2] == "%" else "GiB"


def seconds(text: str) -> float:
    """Seconds; ms may be written."""
    match = re.fullmatch(r"\s*([0-9.]+)\s*(ms|s)?\s*", text, re.IGNORECASE)
    if match is None:
        raise ArgumentTypeError(f"{text!r} must be a time, such as 50ms or 0.05")
    return positive(match[1]) * (0.001 if (match[2] or "").lower() == "ms" else 1)


def port(text: str) -> int:
    """A port's number."""
    if not (text.isdecimal() and len(text) <= 5 and int(text) <= MOST_PORTS):
        raise ArgumentTypeError(f"{text!r} must be a port from 0 to {MOST_PORTS}")
    return int(text)


def nodes_and_gpus(text: str) -> ClusterShape:
    """The shape of a cluster: `2x8` is two nodes of eight GPUs."""
    from ..lab.measure.ray_cluster import ClusterShape

    sizes = re.fullmatch(r"([1-9][0-9]{0,5})x([1-9][0-9]{0,5})", text.strip())
    if not sizes:
        raise ArgumentTypeError(f"{text!r} must be nodes x GPUs on each, such as 2x8")
    return ClusterShape(int(sizes[1]), int(sizes[2]))


def weight_format(text: str) -> str:
    """The format of a quantization method, or the format itself."""
    return METHODS.get(text.lower(), text)
