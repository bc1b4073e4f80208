"""Models, configurations and tokenizers of the Hugging Face hub, without weights and downloads.

A configuration comes from the script's own folder, from the hub's cache on this machine, or from
the catalogue of presets. The model is built from it; its weights are fake.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from ...runfile.find_model.named_preset import exact_preset, variant_preset
from ...runfile.text.errors import InputError
from ...tools.translation.arguments import tables

if TYPE_CHECKING:
    from .simulation import Simulation

ARGUMENTS = tables(__file__)["arguments"]  # of from_pretrained


def catalogue_config(name: str) -> dict[str, Any] | None:
    """The config.json of a preset with this hub name; None where there is none."""
    from ... import catalog

    found = exact_preset(name) or variant_preset(name)
    return None if found is None else dict(catalog.row_config(found.row))


def change_configurations(simulation: Simulation) -> Any:
    """A change of transformers' configurations: the catalogue answers where the disk does not."""

    def change(module: Any) -> None:
        kind = module.PreTrainedConfig
        read = kind._get_config_dict.__func__

        def get(cls: Any, /, name: Any, **kwargs: Any) -> Any:
            try:
                return read(cls, name, **kwargs)
            except OSError:
                found = catalogue_config(str(name))
                if found is None:
                    fix = f"`hf download {name} config.json` fetches it"
                    raise InputError(f"there is no config.json of {name} here; {fix}") from None
                simulation.note(f"The configuration of {name} is the catalogue's.")
                return found, kwargs

        simulation.replace(kind, "_get_config_dict", classmethod(get))

    return change


def change_models(simulation: Simulation) -> Any:
    """A change of transformers' models: from_pretrained builds them from their configuration."""

    def change(module: Any) -> None:
        def from_pretrained(cls: Any, name: Any = None, *args: Any, **kwargs: Any) -> Any:
            return _model(simulation, cls, name, *args, **kwargs)

        kind = module.PreTrainedModel
        simulation.replace(kind, "from_pretrained", classmethod(from_pretrained))
        simulation.replace(kind, "save_pretrained", lambda *_, **__: None)

    return change


def _model(
    simulation: Simulation,
    cls: Any,
    name: Any,
    *args: Any,
    config: Any = None,
    dtype: Any = None,
    torch_dtype: Any = None,
    device_map: Any = None,
    quantization_config: Any = None,
    output_loading_info: bool = False,
    **kwargs: Any,
) -> Any:
    """modeling_utils.py from_pretrained: the model in its checkpoint's dtype, on its device."""
    import torch
    from transformers import PreTrainedConfig

    for key in ARGUMENTS["refused"]:
        if kwargs.pop(key, None):
            raise InputError(f"from_pretrained({key}=...) is not simulated in a script")
    rest = {key: value for key, value in kwargs.items() if key not in ARGUMENTS["loading"]}
    if not isinstance(config, PreTrainedConfig):
        source = name if config is None else config
        config, rest = cls.config_class.from_pretrained(source, return_unused_kwargs=True, **rest)
        rest = {key: value for key, value in rest.items() if key not in ARGUMENTS["loading"]}
    config = copy.deepcopy(config)
    if quantization_config is not None or getattr(config, "quantization_config", None):
        raise InputError(f"{name}: quantized weights are not simulated in a script")
    if attention := rest.pop("attn_implementation", None):
        config._attn_implementation = attention
    wanted = _dtype(simulation, config, str(name), dtype or torch_dtype or "auto")
    with torch.device("cpu"):
        model = cls._from_config(config, dtype=wanted, **rest)
    model.name_or_path = config.name_or_path = str(name)
    model.eval()
    if device_map is not None:
        model.to(_device(device_map))
    return (model, {}) if output_loading_info else model


def _dtype(simulation: Simulation, config: Any, name: str, dtype: Any) -> Any:
    """The dtype of the weights: the checkpoint's own where the script names none."""
    import torch

    if dtype == "auto":
        dtype = getattr(config, "dtype", None) or simulation.plan.shapes.get("dtype")
    if dtype is None:
        where = "the script names none, and its config.json is not here"
        fix = "`hf download` it, or add --shapes dtype=bfloat16"
        raise InputError(f"the dtype of the weights of {name} is not known: {where}; {fix}")
    return getattr(torch, dtype) if isinstance(dtype, str) else dtype


def _device(device_map: Any) -> Any:
    """The one device of a device map: a GPU is enough for everything, as far as it knows."""
    if isinstance(device_map, dict):
        places = set(map(str, device_map.values()))
        if len(places) > 1:
            raise InputError(f"device_map over {', '.join(sorted(places))} is not simulated")
        (device_map,) = device_map.values()
    if isinstance(device_map, str) and device_map in ("auto", "balanced", "sequential"):
        return "cuda"
    return device_map
