"""Models that can be traced but not estimated: transformers knows them, or their own code runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...catalog.hub.access import access
from ...models.families import UnknownFamilyError, read_config
from ...run.run import Run
from ...runfile.text.errors import InputError
from ...runfile.text.text_data import load_text
from ..jobs.function import STAND_IN, elements
from ..jobs.model import causal_model, layers
from ..jobs.recompute import recompute

LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
REMOTE = (
    "model_type={!r} is not part of transformers {}: its code comes with the model, and "
    "--trust-remote-code runs it"
)


class ForeignModel:
    """Builds the model of a config.json with transformers, and a batch of full sequences."""

    def __init__(self, title: str, config: Any, *, trust: bool) -> None:
        self.title, self.config, self.trust = title, config, trust
        self.num_parameters = self.num_trained = 0
        self.run: Run | None = None
        self.device = "cpu"

    def run_file(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """The run file with a stand-in model that can be resolved, and this model's sequence."""
        training = dict(data.get("training") or {})
        if training.get("lora") is not None:
            fix = "use trace --function and make them there"
            raise InputError(
                f"training.lora: the adapters of {self.title} are not made here; {fix}"
            )
        known = (getattr(self.config, key, None) for key in LENGTHS)
        if training.get("attention") is not None:
            self.config._attn_implementation = training["attention"]
        training["seq_len"] = training.get("seq_len") or next(filter(None, known), 2048)
        return {**data, "model": dict(STAND_IN), "training": training}

    def __call__(self) -> tuple[Any, Any]:
        """The model, ready to train, and its batch of token ids."""
        import torch

        run = self.run
        assert run is not None
        rest = {"trust_remote_code": True} if self.trust else {}
        model = causal_model(self.config, run, self.device, **rest)
        recompute(run, model, layers(model))
        self.num_parameters = self.num_trained = sum(map(elements, model.parameters()))
        vocab = self.config.get_text_config().vocab_size
        device = "cpu" if self.device == "meta" else self.device
        ids = torch.randint(0, vocab, (int(run.batch), int(run.seq)), device=device)
        return model, {"input_ids": ids, "labels": ids}


def find_foreign_model(section: Any, *, trust: bool) -> ForeignModel | None:
    """The model of a run file's model section, where no estimate covers it; else None.

    `trust` lets the code that comes with a model run.
    """
    import transformers

    raw = _raw_config(section)
    if raw is None:
        return None
    title, values, folder = raw
    kind = values.get("model_type")
    if kind in transformers.CONFIG_MAPPING:
        if _has_estimate(values):
            return None
        options = {k: v for k, v in values.items() if k not in ("architectures", "auto_map")}
        config = transformers.AutoConfig.for_model(options.pop("model_type"), **options)
        return ForeignModel(title or str(kind), config, trust=False)
    if "auto_map" not in values:
        return None
    if not trust:
        raise InputError(REMOTE.format(kind, transformers.__version__))
    if folder is None:
        raise InputError(
            "--trust-remote-code needs the folder with the model's code; give it as model.name"
        )
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=True)
    return ForeignModel(title, config, trust=True)


def _raw_config(section: Any) -> tuple[str, dict[str, Any], str | None] | None:
    """Title, config.json and folder of a model section that has a config.json; else None."""
    if not isinstance(section, Mapping):
        return None
    name, config = section.get("name"), section.get("config")
    if isinstance(config, Mapping):
        return str(name or ""), dict(config), None
    path = Path(str(name)) if name and access().files else None
    if path is None or not (path.is_dir() or path.suffix == ".json"):
        return None
    file = path / "config.json" if path.is_dir() else path
    values = load_text(file) if file.is_file() else None
    if not isinstance(values, dict):
        return None
    return file.resolve().parent.name, values, str(file.parent)


def _has_estimate(config: Mapping[str, Any]) -> bool:
    """Whether the estimate covers a config; it also reports the other errors of the config."""
    try:
        return read_config(config).trains
    except UnknownFamilyError:
        return False
    except ValueError:
        return True
