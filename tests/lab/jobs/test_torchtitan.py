"""torchtitan's model from a Llama's config.json; the package itself is replaced by a small one."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gpu_mem_calculator.lab.jobs import torchtitan  # noqa: E402
from gpu_mem_calculator.runfile.resolve.resolve import resolve  # noqa: E402
from gpu_mem_calculator.runfile.text.errors import InputError  # noqa: E402
from gpu_mem_calculator.tools.read import read  # noqa: E402
from tests.conftest import SMALL_LLAMA  # noqa: E402


class Transformer(torch.nn.Module):
    """Keeps its arguments; returns logits of two tokens."""

    def __init__(self, args: Any) -> None:
        super().__init__()
        self.args = args
        self.output = torch.nn.Linear(4, args.vocab_size)

    def forward(self, ids: Any) -> Any:
        """Logits."""
        return self.output(torch.ones(*ids.shape, 4))

    def _precompute_freqs_cis(self) -> Any:
        return torch.zeros(self.args.max_seq_len, 2)


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of torchtitan's names."""
    contents: dict[str, dict[str, Any]] = {
        "models.llama3.model.args": {"TransformerModelArgs": SimpleNamespace},
        "models.llama3.model.model": {"Transformer": Transformer},
        "components.loss": {
            "cross_entropy_loss": lambda pred, labels: torch.nn.functional.cross_entropy(
                pred.flatten(0, 1), labels.flatten(0, 1), reduction="sum"
            )
        },
    }
    for path, names in contents.items():
        parts = ["torchtitan", *path.split(".")]
        for count in range(1, len(parts) + 1):
            name = ".".join(parts[:count])
            monkeypatch.setitem(sys.modules, name, sys.modules.get(name) or ModuleType(name))
        for key, value in names.items():
            setattr(sys.modules[".".join(parts)], key, value)


def job(**config: Any) -> Any:
    """The job of a small Llama in torchtitan's code."""
    file = {
        "model": {
            "config": {**SMALL_LLAMA, "tie_word_embeddings": False, **config},
            "implementation": "torchtitan",
        },
        "training": {"seq_len": 16, "precision": "bf16_pure"},
        "hardware": {"gpu": "h200", "num_gpus": 1},
    }
    return SimpleNamespace(resolved=resolve(read(file).file))


@pytest.mark.parametrize(("hidden", "ffn"), [(256, 688), (512, 1000), (4096, 11008), (4096, 14336)])
def test_the_mlp_has_the_size_of_the_config(package: None, hidden: int, ffn: int) -> None:
    """torchtitan scales int(2 / 3 · 4 · dim) by its multiplier, and rounds down."""
    args = torchtitan.build(job(hidden_size=hidden, intermediate_size=ffn), "meta").args
    assert int(args.ffn_dim_multiplier * int(2 * (4 * hidden) / 3)) == ffn
    assert args.multiple_of == 1


def test_weights_have_the_runs_dtype_and_the_table_its_length(package: None) -> None:
    """bf16 weights are made as such, and the default dtype is fp32 again."""
    model = torchtitan.build(job(), "cpu")
    assert model.output.weight.dtype == torch.bfloat16
    assert torch.get_default_dtype() == torch.float32
    torchtitan.make_table(model, "cpu")
    assert model.freqs_cis.shape == (16, 2)


def test_the_loss_is_the_mean_over_tokens(package: None) -> None:
    """torchtitan sums, and divides by the number of tokens."""
    model = Transformer(SimpleNamespace(vocab_size=8))
    torch.nn.init.zeros_(model.output.weight)
    torch.nn.init.zeros_(model.output.bias)
    ids = torch.zeros(1, 2, dtype=torch.long)
    loss = torchtitan.LossOf(model)(ids, ids)
    assert loss.item() == pytest.approx(torch.log(torch.tensor(8.0)).item())


def test_without_the_package_its_name_and_version_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence, with what to install."""
    monkeypatch.setitem(sys.modules, "torchtitan", None)
    with pytest.raises(InputError, match=r"pip install torchtitan==0\.2\.2"):
        torchtitan.build(job(), "cpu")
