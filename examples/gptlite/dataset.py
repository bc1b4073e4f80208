"""Text as training data, character by character: from the text that ships, a file or an address."""

from __future__ import annotations

import hashlib
import http.client
import math
import os
import random
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor
from torch.utils.data import Dataset

SHIPPED = Path(__file__).parent / "text" / "shakespeare.txt"
ADDRESSES = ("http://", "https://")
LIMITS = {"bytes": 256 * 1024**2, "seconds": 120.0, "silence": 15.0, "chunk": 64 * 1024}
"""Of a download: its size, its time in all, and how long the other side may say nothing."""
HELD_OUT = 0.1  # of the text, for validation
GOLDEN = (math.sqrt(5) - 1) / 2


def load_text(source: str | None = None) -> str:
    """The text that ships, or that of a path or of an http(s) address (downloaded once)."""
    if source is None:
        return _read(SHIPPED, "the text that ships")
    if source.lower().startswith(ADDRESSES):
        kept = cached(source)
        return _read(kept if kept.exists() else _download(source, kept), source)
    if "://" in source:
        raise ValueError(f"{source}: only http:// and https:// addresses and paths are read")
    return _read(Path(source).expanduser(), source)


def cached(address: str) -> Path:
    """Where the text of an address is kept; delete the file to have it downloaded again."""
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    name = hashlib.sha256(address.encode()).hexdigest()[:32]
    return Path(root).expanduser() / "gptlite" / f"{name}.txt"


def _read(path: Path, name: str) -> str:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} is not UTF-8 text (byte {error.start}): convert it") from None
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror}") from None
    if not text:
        raise ValueError(f"{name} is empty: give a text of at least one block")
    return text


def _download(address: str, kept: Path) -> Path:
    """Fetch into a file beside `kept` and rename it: there is a whole text or none."""
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=kept.parent, prefix=kept.stem, suffix=".part")
    except OSError as error:
        raise ValueError(
            f"{address} cannot be kept in {kept.parent} ({error.strerror}): set XDG_CACHE_HOME"
        ) from None
    part = Path(name)
    try:
        with open(handle, "wb") as file:
            _fetch(address, file)
        _read(part, address)
        part.replace(kept)
    finally:
        part.unlink(missing_ok=True)
    return kept


def _fetch(address: str, file: BinaryIO) -> None:
    """What an address answers, into a file; all that goes wrong there is one sentence."""
    try:
        for chunk in _chunks(address):
            file.write(chunk)
    except (OSError, http.client.HTTPException, ValueError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        cause = getattr(error, "reason", error)
        words = str(getattr(cause, "strerror", None) or cause).split()
        raise ValueError(
            f"{address} cannot be had ({' '.join(words)}): download the text and give its path"
        ) from None


def _chunks(address: str) -> Iterator[bytes]:
    """The body piece by piece, as long as it keeps to the limits."""
    end = time.monotonic() + LIMITS["seconds"]
    with urllib.request.urlopen(address, timeout=LIMITS["silence"]) as answer:
        announced = answer.length  # None where the server does not say
        size = 0
        while chunk := answer.read(LIMITS["chunk"]):
            size += len(chunk)
            if size > LIMITS["bytes"]:
                raise OSError(f"it is larger than {LIMITS['bytes']:,} bytes")
            if time.monotonic() > end:
                raise OSError(f"it took longer than {LIMITS['seconds']:g} s")
            yield chunk
        if announced is not None and size != announced:
            raise OSError(f"it broke off after {size:,} of {announced:,} bytes")


def split(text: str) -> tuple[str, str]:
    """The beginning to train on, and the last tenth to validate with."""
    cut = len(text) - int(len(text) * HELD_OUT)
    return text[:cut], text[cut:]


class Characters:
    """The vocabulary: every character of a text, in sorted order, has its place as number."""

    def __init__(self, text: str) -> None:
        self.all = sorted(set(text))
        self.numbers = {one: number for number, one in enumerate(self.all)}

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self.all)

    def encode(self, text: str) -> Tensor:
        """Text as numbers."""
        try:
            numbers = [self.numbers[one] for one in text]
        except KeyError as error:
            raise ValueError(
                f"{error} is none of the {self.size} characters of the vocabulary: leave it out"
            ) from None
        return torch.tensor(numbers, dtype=torch.int64, device="cpu")  # also beside a meta model

    def decode(self, numbers: Tensor) -> str:
        """Numbers as text."""
        return "".join(self.all[number] for number in numbers.tolist())


class TextDataset(Dataset):
    """Blocks of a text, each with the same block one character further on as its target.

    There is an item for every place where a block can begin. Item 0 begins where the seed says,
    and every further one a golden section of the text later, round and round: any few items in a
    row are spread over the whole text, and none comes twice. Nothing is drawn when an item is
    asked for, so that all ranks, and a run that is resumed, see the same items.
    """

    validation: TextDataset | None = None  # what was held out, where something was

    def __init__(self, text: str, characters: Characters, block_size: int, seed: int = 0) -> None:
        if block_size < 1:
            raise ValueError(f"block_size={block_size} is no length: it must be 1 or more")
        if len(text) <= block_size:
            raise ValueError(
                f"block_size={block_size} needs {block_size + 1} characters or more, the text has "
                f"{len(text)}: give a longer text or a smaller block_size"
            )
        self.characters = characters
        self.block_size = block_size
        self.numbers = characters.encode(text)
        self.count = len(text) - block_size
        self.first = random.Random(seed).randrange(self.count)
        self.step = next(
            step
            for step in range(max(1, int(self.count * GOLDEN)), self.count + 1)
            if math.gcd(step, self.count) == 1
        )

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not 0 <= index < self.count:
            raise IndexError(f"item {index} of {self.count}")
        start = (self.first + index * self.step) % self.count
        block = self.numbers[start : start + self.block_size + 1]
        return block[:-1], block[1:]
