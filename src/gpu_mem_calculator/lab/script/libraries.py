"""The libraries that are changed when a script imports them, so that nothing is imported without
need: data sets, tokenizers and models that are not on this machine have stand-ins.

Rows of data have the columns that the script reads, and tokenizers the model's vocabulary, a word
for each token. Triton's kernels are not launched: their wrappers allocate what they write.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...runfile.text.errors import InputError
from ...tools.translation.arguments import tables
from ..jobs.program import word_tokenizer
from ..trace.huggingface import simulated_generate
from .hub_models import catalogue_config, change_configurations, change_models

if TYPE_CHECKING:
    from .simulation import Simulation

logger = logging.getLogger(__name__)
DATA = tables(__file__)  # stand-ins: tokens and encodings, and the columns of data sets


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
            count, made = _vocab_size(simulation, str(name)), DATA["tokenizer"]
            tokenizer = word_tokenizer(made["special"], count, made["template"])
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
                if name not in DATA["byte_pair"]:
                    raise InputError(f"tiktoken's {name} is not on this machine") from None
                simulation.note(f"The encoding {name} of tiktoken is a stand-in.")
                return _Words(DATA["byte_pair"][name])

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


SEQ_LEN, ROWS = 1024, 512
SPLITS = ("train", "validation", "test")


def columns_of(source: str) -> tuple[str, ...]:
    """The columns of the data of trl's trainers (its dataset_formats) that a script's text names;
    other scripts read `text`.
    """
    found, known = re.findall(r"\b(\w+Trainer)\b", source), DATA["columns"]
    return next((tuple(known[name]) for name in found if name in known), ("text",))


def example(columns: tuple[str, ...], seq_len: int, prompt_len: int) -> dict[str, Any]:
    """A row: a prompt and what follows it have `seq_len` words together; where the completion is
    generated, the prompt has them.
    """
    prompt = seq_len if "solution" in columns else prompt_len
    lengths = {"prompt": prompt, "text": seq_len}
    rest = seq_len - prompt_len if "prompt" in columns else seq_len
    values: dict[str, Any] = {
        name: " ".join(["w9"] * lengths.get(name, max(1, rest))) for name in columns
    }
    if "solution" in columns:  # trl's reward functions read messages
        values["prompt"] = [{"role": "user", "content": values["prompt"]}]
    if "label" in columns:
        values["label"] = True
    return values


def change_datasets(simulation: Simulation) -> Any:
    """A change of `datasets`: load_dataset makes rows where the data is not on this machine."""

    def change(module: Any) -> None:
        read = module.load_dataset

        def load_dataset(path: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return read(path, *args, **kwargs)
            except Exception as error:  # what a library raises for a missing file differs
                if Path(str(path)).exists() or kwargs.get("data_files"):
                    raise
                return _made(simulation, module, str(path), error, **kwargs)

        simulation.replace(module, "load_dataset", load_dataset)
        new_name = module.fingerprint.generate_random_fingerprint
        for user in (module.fingerprint, module.arrow_dataset):
            # a hash of data and code, by which results are cached; the code cannot be pickled
            for name in ("update_fingerprint", "generate_fingerprint"):
                simulation.replace(user, name, lambda *_, **__: new_name())
        for name in ("map", "filter"):
            method = _in_this_process(getattr(module.Dataset, name))
            simulation.replace(module.Dataset, name, method)

    return change


def _in_this_process(method: Any) -> Any:
    def call(data: Any, *args: Any, num_proc: Any = None, **kwargs: Any) -> Any:
        return method(data, *args, **kwargs)

    return call


def _made(
    simulation: Simulation,
    module: Any,
    path: str,
    error: Exception,
    *,
    split: Any = None,
    streaming: bool = False,
    **_: Any,
) -> Any:
    plan = simulation.plan
    seq_len = int(plan.shapes.get("seq_len", SEQ_LEN))
    prompt_len = int(plan.shapes.get("prompt_len", max(1, seq_len // 2)))
    columns = columns_of(_source(plan))
    rows = [example(columns, seq_len, prompt_len)] * int(plan.shapes.get("rows", ROWS))
    data = module.Dataset.from_list(rows)
    data = data.to_iterable_dataset() if streaming else data
    words = f"{', '.join(columns)} of {seq_len:,} tokens in all"
    simulation.note(f"The data set {path} is not on this machine: its rows are {words} (--shapes).")
    if split is not None:
        return data
    kind = module.IterableDatasetDict if streaming else module.DatasetDict
    return kind(dict.fromkeys(SPLITS, data))


def _source(plan: Any) -> str:
    spec = find_spec(plan.target) if plan.module else None
    file = plan.target if not plan.module else spec and spec.origin
    return Path(file).read_text(encoding="utf-8", errors="replace") if file else ""


Change = Callable[[Any], None]


class _ChangedLoader(Loader):
    """Loads a module, and changes it."""

    def __init__(self, loader: Any, change: Change) -> None:
        self.loader, self.change = loader, change

    def create_module(self, spec: ModuleSpec) -> Any:
        return self.loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__loader__ = module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        self.change(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)


class _WatchingFinder(MetaPathFinder):
    """Finds the modules that are changed."""

    def __init__(self, changes: Mapping[str, Change]) -> None:
        self.changes = dict(changes)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        change = self.changes.pop(name, None)
        if change is None:
            return None
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _ChangedLoader(spec.loader, change)
        return spec


@contextmanager
def changed_on_import(changes: Mapping[str, Change]) -> Iterator[None]:
    """Change modules at their first import; those that are imported already, at once."""
    later = {}
    for name, change in changes.items():
        if name in sys.modules:
            change(sys.modules[name])
        else:
            later[name] = change
    finder = _WatchingFinder(later)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def change_triton(simulation: Simulation) -> Any:
    """A change of Triton: a launch does nothing."""

    def change(module: Any) -> None:
        tuner = module.runtime.autotuner
        for kind in (module.runtime.jit.JITFunction, tuner.Autotuner, tuner.Heuristics):
            simulation.replace(kind, "run", lambda *_, **__: None)

    return change


def change_generation(simulation: Simulation) -> Any:
    """A change of transformers' `generate`: it runs to its last token."""

    def change(module: Any) -> None:
        simulation.stack.enter_context(simulated_generate())

    return change


CHANGES = {
    "transformers.configuration_utils": change_configurations,
    "transformers.modeling_utils": change_models,
    "transformers.models.auto.tokenization_auto": change_tokenizers,
    "transformers.generation.utils": change_generation,
    "tiktoken": change_byte_pairs,
    "triton": change_triton,
    "datasets": change_datasets,
}


def simulated_libraries(simulation: Simulation) -> AbstractContextManager[None]:
    """Models, tokenizers and data of the hub come from this machine alone."""
    return changed_on_import({name: make(simulation) for name, make in CHANGES.items()})
