"""Tokenizers that are not on this machine: a stand-in with the model's vocabulary, whose tokens are
words."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ...runfile.text.errors import InputError
from .hub_models import catalogue_config

if TYPE_CHECKING:
    from .simulation import Simulation

logger = logging.getLogger(__name__)
SPECIAL = ("<unk>", "<s>", "</s>", "<pad>")
TEMPLATE = (
    "{% for message in messages %}{{ '<s> ' + message['role'] + ' ' }}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + ' </s> ' }}"
    "{% endgeneration %}{% else %}{{ message['content'] + ' </s> ' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<s> assistant ' }}{% endif %}"
)
BYTE_PAIR = {"gpt2": 50257, "r50k_base": 50257, "p50k_base": 50281, "cl100k_base": 100277}
"""Vocabularies of tiktoken's encodings (tiktoken_ext/openai_public.py)."""


def word_tokenizer(vocab_size: int) -> Any:
    """A tokenizer of this vocabulary, for which a word is a token."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = [*SPECIAL, *(f"w{number}" for number in range(len(SPECIAL), vocab_size))]
    vocabulary = {word: number for number, word in enumerate(words)}
    plain = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL[0]))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    unk, bos, eos, pad = SPECIAL
    return PreTrainedTokenizerFast(
        tokenizer_object=plain,
        unk_token=unk,
        bos_token=bos,
        eos_token=eos,
        pad_token=pad,
        chat_template=TEMPLATE,
    )


def change_tokenizers(simulation: Simulation) -> Any:
    """A change of AutoTokenizer: a stand-in where the tokenizer is not on this machine."""

    def change(module: Any) -> None:
        kind = module.AutoTokenizer
        read = kind.from_pretrained.__func__

        def from_pretrained(cls: Any, name: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                tokenizer = read(cls, name, *args, **kwargs)
                if len(tokenizer) > len(tokenizer.all_special_tokens):  # else it found no file
                    return tokenizer
            except InputError:
                raise
            except Exception as error:  # what is raised for a missing file differs by version
                logger.debug("%s: %s", name, error)
            tokenizer = word_tokenizer(_vocab_size(simulation, str(name)))
            tokenizer.name_or_path = str(name)
            simulation.note(f"The tokenizer of {name} is a stand-in of its vocabulary.")
            return tokenizer

        simulation.replace(kind, "from_pretrained", classmethod(from_pretrained))

    return change


def _vocab_size(simulation: Simulation, name: str) -> int:
    """The vocabulary that --shapes, or the model's configuration of the same name, has."""
    declared = simulation.plan.shapes.get("vocab_size")
    if declared is not None:
        return int(declared)
    from transformers import AutoConfig

    config = catalogue_config(name)
    size = (config or {}).get("vocab_size") or AutoConfig.from_pretrained(name).vocab_size
    return int(size)


def change_byte_pairs(simulation: Simulation) -> Any:
    """A change of tiktoken: a stand-in where the encoding is not on this machine."""

    def change(module: Any) -> None:
        read = module.get_encoding

        def get_encoding(name: str) -> Any:
            try:
                return read(name)
            except OSError:
                if name not in BYTE_PAIR:
                    raise InputError(f"tiktoken's {name} is not on this machine") from None
                simulation.note(f"The encoding {name} of tiktoken is a stand-in.")
                return _Words(BYTE_PAIR[name])

        simulation.replace(module, "get_encoding", get_encoding)

    return change


class _Words:
    """An encoding for which a word is a token."""

    def __init__(self, n_vocab: int) -> None:
        self.n_vocab = n_vocab
        self.max_token_value = self.eot_token = n_vocab - 1

    def encode(self, text: str, **_: Any) -> list[int]:
        """One token for each word."""
        return [1 for _ in text.split()]

    encode_ordinary = encode

    def decode(self, tokens: Any) -> str:
        """One word for each token."""
        return " ".join("w" for _ in tokens)
