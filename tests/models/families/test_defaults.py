"""What a config leaves out: a family's defaults are those of its class in transformers."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from gpu_mem_calculator.models.arch.arch import Arch
from gpu_mem_calculator.models.families import families, read_config
from gpu_mem_calculator.models.families.config import Config, ConfigError
from gpu_mem_calculator.models.families.vision import intern, pixtral, siglip

# Their classes write no number of experts.
LEFT_OUT = {"deepseek_v2", "dots1"}


def sizes(arch: Arch) -> tuple[object, ...]:
    """Everything that a default can change: shapes, windows and positions."""
    shapes = [(name, tuple(size for _, size in dims)) for name, dims in named(arch)]
    return shapes, len(arch.layers), arch.windows, arch.max_seq_len, arch.tied


def named(arch: Arch) -> list[tuple[str, tuple[tuple[str, object], ...]]]:
    """Every parameter of the distinct layers, and of what is around them."""
    weights = [w for layer, first, count in arch.runs for w in layer.weights()]
    return [
        (w.name, w.dims) for w in (*arch.embedding, *weights, *arch.after_weights(), *arch.tower)
    ]


@pytest.mark.parametrize("family", sorted(set(families()) - LEFT_OUT))
def test_what_is_left_out_is_what_transformers_would_take(family: str) -> None:
    """A config with `model_type` alone is the one with every key that its class writes."""
    transformers = pytest.importorskip("transformers")
    mapping = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    if family not in mapping:
        pytest.skip("the family's code is not in transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        full = mapping[family]().to_dict()
    if "text_config" in full:
        pytest.skip("a config of several parts: its text model is a family of this list")
    assert sizes(read_config({"model_type": family})) == sizes(read_config(full))


def test_llada_is_the_8b_unless_told() -> None:
    """Its code is not in transformers: hidden size, layers and vocabulary of LLaDA-8B-Base."""
    arch = read_config({"model_type": "llada"})
    assert (arch.hidden, len(arch.layers), arch.vocab) == (4096, 32, 126_464)


@pytest.mark.parametrize(
    ("tower", "layers", "hidden", "ffn"), [(siglip, 12, 768, 3072), (pixtral, 24, 1024, 4096)]
)
def test_a_tower_has_the_defaults_of_its_class(
    tower: Any, layers: int, hidden: int, ffn: int
) -> None:
    """SiglipVisionConfig and PixtralVisionConfig of transformers 5.17."""
    weights = {weight.name: weight.dims for weight in tower(Config({}), "tower")}
    assert (
        len({name.split(".layers.")[1].split(".")[0] for name in weights if ".layers." in name})
        == layers
    )
    wide = {dims for name, dims in weights.items() if ".layers.0." in name and dims[0][0] == "ffn"}
    assert wide >= {(("ffn", ffn), ("vision", hidden))}


@pytest.mark.parametrize("key", [{"use_qk_norm": True}, {"norm_type": "rms_norm"}])
def test_an_intern_tower_with_other_norms_is_refused(key: dict[str, Any]) -> None:
    """Either key alone."""
    with pytest.raises(ConfigError, match="not modelled; leave them out"):
        list(intern(Config(key), "tower"))
