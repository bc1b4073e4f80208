"""The size of the vocabulary, which Megatron-LM takes from the tokenizer
(core/tokenizers/utils/build_tokenizer.py:140).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...runfile.config import ModelConfig
from ...runfile.find_model.model_source import find_model
from ...runfile.text.errors import InputError
from ..reading.named_files import NamedFiles
from ..reading.reading import Reading, Section

GPT2 = 50257  # openai-community/gpt2 vocab.json
# Tokenizers without a file: TikTokenizer's default size is 2**17
# (core/tokenizers/text/libraries/tiktoken_tokenizer.py DEFAULT_TIKTOKEN_MAX_VOCAB).
SIZES: Mapping[str, int] = {
    "GPT2BPETokenizer": GPT2,
    "TikTokenizer": 2**17,
    "Llama2Tokenizer": 32000,
}
NAMED = ("HuggingFaceTokenizer", "SFTTokenizer", "MultimodalTokenizer")


def add_vocabulary(reading: Reading, kept: Section, files: NamedFiles) -> None:
    """Set vocab_size by the tokenizer, where it is not given."""
    if kept.get("vocab_size") is not None or kept.get("padded_vocab_size") is not None:
        return
    kind, model = kept.get("tokenizer_type"), kept.get("tokenizer_model")
    size, source = None, ""
    if kind in NAMED and isinstance(model, str):
        size, source = _of_model(model), f"of {model}"
    elif isinstance(kept.get("vocab_file"), str) and kind in (None, "GPT2BPETokenizer"):
        size, source = _of_file(kept["vocab_file"], files)
    elif str(kind) in SIZES:
        size, source = SIZES[str(kind)], f"of {kind}"
    if size is not None:
        kept["vocab_size"] = size
        reading.assumed.append(f"the vocabulary has {size:,} entries, as that {source}")


def _of_file(name: str, files: NamedFiles) -> tuple[int, str]:
    """The entries of vocab.json; without the file it is GPT-2's."""
    if files.exists(name):
        data: Any = files.data(name, "--vocab-file")
        if isinstance(data, Mapping) and data:
            return len(data), f"of {name}"
    return GPT2, "of GPT-2's BPE"


def _of_model(name: str) -> int | None:
    try:
        return int(find_model(ModelConfig(name=name)).arch.vocab)
    except (InputError, AttributeError):
        return None
