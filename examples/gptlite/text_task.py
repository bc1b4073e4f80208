"""The first task: GPT-lite learns to write, one character after the other."""

from __future__ import annotations

from argparse import Namespace

import torch
from dataset import Characters, TextDataset, load_text, split
from gptlite import SIZES, GPTlite

UNUSED: tuple[str, ...] = ()
"""Options of train.py that mean nothing here, and are refused."""
SAMPLE = 200  # characters


def get_model_and_dataset(options: Namespace) -> tuple[GPTlite, TextDataset]:
    """A model with the vocabulary of the text, and the text's blocks.

    Sizes that are None are those of GPT-3 Small. With `validation` the last tenth of the text is
    held out: it is the `validation` of the dataset.
    """
    given = {name: getattr(options, name) for name in SIZES}
    sizes = {name: SIZES[name] if value is None else value for name, value in given.items()}
    text = load_text(options.text)
    characters = Characters(text)
    parts = split(text) if options.validation else (text,)
    dataset, *held_out = (
        TextDataset(part, characters, sizes["block_size"], options.seed) for part in parts
    )
    if held_out:
        dataset.validation = held_out[0]
    return GPTlite(characters.size, **sizes), dataset


def show_sample(model: GPTlite, dataset: TextDataset, device: torch.device | str) -> str:
    """What the model writes after a new line (or the text's first character)."""
    characters = dataset.characters
    start = "\n" if "\n" in characters.numbers else characters.all[0]
    training = model.training
    model.eval()
    try:
        written = model.generate(characters.encode(start)[None].to(device), SAMPLE)
    finally:
        model.train(training)
    return characters.decode(written[0, 1:])
