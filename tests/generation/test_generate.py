"""transformers' generate with static caches, beams, samples, assistants and packed weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from gpu_mem_calculator import estimate
from gpu_mem_calculator.core.calculator import full_estimate
from gpu_mem_calculator.core.errors import InputError
from gpu_mem_calculator.core.explain import explain
from gpu_mem_calculator.core.resolve import resolve
from gpu_mem_calculator.core.runfile import read
from gpu_mem_calculator.generation.token_choice import TokenChoice, choose_token
from gpu_mem_calculator.ledger.ledger import CACHE, Ledger
from gpu_mem_calculator.modelling.huggingface.quantized import fused_rows
from gpu_mem_calculator.modelling.huggingface.setting import BlockSetting
from tests.serving.conftest import assisted, served

TOKEN = 3 * 2 * 2 * 32 * 2  # keys and values of 2 heads of 32 in 3 layers, 2 bytes each


def ledger(family: str = "llama", **inference: Any) -> Ledger:
    """The ledger of a small model."""
    return full_estimate(served(family, **inference)).ledger


def cached(found: Ledger, instant: str) -> int:
    """Bytes of caches at an instant, those of the layer at work left out."""
    return sum(int(e.at(instant)) for e in found.entries if e.kind == CACHE)


def test_a_static_cache_has_room_for_all_but_the_last_token() -> None:
    """From the prompt on, whatever is in it; the last token is chosen and not run."""
    found = ledger(cache_implementation="static", prompt_len=10, new_tokens=5)
    assert cached(found, "prefill.scores") == cached(found, "decode.scores") == 3 * 14 * TOKEN


def test_a_static_cache_may_have_room_for_more() -> None:
    """As long as max_seq_len, generate's max_cache_len."""
    found = ledger(cache_implementation="static", prompt_len=10, new_tokens=5, max_seq_len=900)
    assert cached(found, "prefill.scores") == 3 * 900 * TOKEN


def test_a_static_window_is_no_longer_than_the_window() -> None:
    """A prompt of 512 tokens leaves the last 128."""
    found = ledger("mistral", cache_implementation="static")
    assert cached(found, "prefill.scores") == 3 * 128 * TOKEN


def test_a_static_cache_is_read_behind_a_mask() -> None:
    """Which keeps SDPA from sharing key-value heads: each step repeats all of them."""
    short, long = (
        int(next(e.bytes for e in ledger(cache_implementation="static", max_seq_len=n).entries
                 if e.name.endswith("at work") and "decode.layer.0" in e.live))
        for n in (1024, 2048)
    )  # fmt: skip
    repeated, own = 3 * 1024 * 8 * 32 * 2 * 2, 3 * 1024 * TOKEN // 3
    assert long - short == pytest.approx(repeated + own, rel=0.01)


def test_beams_are_sequences_of_their_own() -> None:
    """Four beams of three prompts keep what twelve prompts do."""
    assert cached(ledger(num_beams=4), "decode.scores") == 4 * cached(ledger(), "decode.scores")


def test_beams_copy_a_cache_layer_by_layer() -> None:
    """One layer's keys are there twice for a moment, no more."""
    found = ledger(num_beams=4)
    whole = 12 * 514 * TOKEN
    assert cached(found, "decode.reorder.2") == whole + whole // 6


def test_samples_of_one_prompt_are_sequences() -> None:
    """As many as num_return_sequences."""
    many = ledger(do_sample=True, num_return_sequences=3)
    assert cached(many, "decode.scores") == 3 * cached(ledger(), "decode.scores")


@pytest.mark.parametrize(
    ("given", "width"),
    [
        ({"how": "greedy"}, 2 + 4),
        ({"how": "sample", "top_k": 0}, 2 + 4 + 4 + 4),  # logits, probs, as many numbers to draw
        ({"how": "sample", "top_k": 50}, 2 + 4 + 4 + 4 + 4),
        ({"how": "beams"}, 4 + 4 + 4),
        ({"how": "check"}, 2 + 4 + 4),
    ],
)
def test_what_the_first_token_is_chosen_from(given: dict[str, Any], width: int) -> None:
    """Bytes of each logit at the highest moment."""
    choice = TokenChoice(rows=4, vocab=100_000, bits=16, length=9, new=2, **given)
    moment = choose_token(choice, first=True).moment
    assert moment.total == pytest.approx(width * 400_000, rel=0.01)


def test_names_of_the_token_before_stay() -> None:
    """An fp32 copy; of samples three, of beams two, and which tokens they are."""
    modes: dict[str, Any] = {"greedy": {}, "sample": {"do_sample": True}, "beams": {"num_beams": 2}}
    before = {
        name: next(int(e.bytes) for e in ledger(**mode).entries if "before was chosen" in e.name)
        for name, mode in modes.items()
    }
    assert before["greedy"] == 3 * 1000 * 4
    assert before["sample"] == 3 * before["greedy"]
    assert before["beams"] == 2 * (2 * before["greedy"]) + 2 * 6 * (515 * 8 + 3 * 4)


def test_an_assistant_has_weights_and_a_cache() -> None:
    """Beside the model's own."""
    found = ledger(**assisted())
    names = [e.name for e in found.entries]
    assert "assistant: parameters" in names
    small = 2 * 2 * 2 * 32 * 2  # of one token in its two layers
    assert cached(found, "main.1.scores") == (300 + 1 + 4) * TOKEN + (300 + 1 + 3) * small


def test_candidates_are_checked_with_logits_of_their_own() -> None:
    """Four candidates and the token behind them: five rows in 16 bits, then twice in fp32."""
    found = ledger(**assisted())
    checked = next(e for e in found.entries if e.name == "candidates checked")
    assert int(checked.bytes) == 5 * 1000 * (2 + 4 + 4)


def test_packed_weights() -> None:
    """4 bits and an fp32 scale for 64; 8 bits and one for each output; the rest stays."""
    whole, four, eight = (
        int(next(e.bytes for e in ledger(quantization=q).entries if e.name == "parameters"))
        for q in ("none", "nf4", "int8")
    )
    linears = 3 * (256 * 256 * 2 + 2 * 256 * 64 + 3 * 256 * 704)
    outputs = 3 * (2 * 256 + 2 * 64 + 2 * 704 + 256)
    assert whole - eight == linears - 4 * outputs
    assert whole - four == linears * 2 - linears // 2 - linears // 16 - 3 * 7 * 64


def test_few_rows_are_multiplied_by_packed_weights() -> None:
    """More than that take a copy of the weight in 16 bits."""
    how = BlockSetting(batch=1, seq=1, hidden=1, bits=16, matmul_bits=16, weight_bits=16)
    hopper = replace(how, hopper=True)
    assert fused_rows(how, 4096, 14336) == 4
    assert fused_rows(hopper, 4096, 14336) == 32
    assert fused_rows(hopper, 4096, 4096) == 4
    assert fused_rows(hopper, 100, 4096) == 0  # no whole blocks


@pytest.mark.parametrize("family", ["llama", "mixtral", "gemma2", "deepseek_v3"])
@pytest.mark.parametrize(
    "mode",
    [
        {"cache_implementation": "static"},
        {"num_beams": 3},
        {"do_sample": True, "top_p": 0.9},
        {"quantization": "nf4"},
    ],
)
def test_one_formula_for_numbers_arrays_and_letters(family: str, mode: dict[str, Any]) -> None:
    """A ledger of many batches at once has the peaks of each, and writes itself down."""
    resolved = resolve(read(served(family, **mode)))
    sizes = [1, 3, 8]
    many = resolved.engine.ledger(replace(resolved.run, batch=np.asarray(sizes)))
    each = [int(resolved.engine.ledger(replace(resolved.run, batch=n)).peak()) for n in sizes]
    assert many.peak().tolist() == each
    assert explain(full_estimate(served(family, **mode))).symbolic


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"cache_implementation": "quantized"}, "'quantized' is not modelled; use 'dynamic'"),
        ({"num_beams": 2, "do_sample": True}, "leave one of them out"),
        ({"num_return_sequences": 2}, "more than one search finds"),
        ({"num_return_sequences": 3, "num_beams": 2}, "more than one search finds"),
        ({"top_k": 5}, "acts on sampling alone"),
        ({"num_beams": 2, "new_tokens": 0}, "acts on tokens that are generated"),
        ({"quantization": "nf4", "dtype": "fp32"}, "use 'bf16' or 'fp16'"),
        ({"quantization": "fp8"}, "use 'none', 'nf4', 'int8'"),
        ({"num_speculative_tokens": 3}, "needs a speculative_model"),
        (assisted(batch_size=2), "inference.batch_size=2 is not modelled with a speculative_model"),
        (assisted(cache_implementation="static"), "set it to 'dynamic'"),
        ({"attention": "flash_attention_2", "cache_implementation": "static"}, "static cache"),
    ],
)
def test_what_does_not_go_together_is_refused(section: dict[str, Any], said: str) -> None:
    """One sentence: the key, the value, the rule."""
    with pytest.raises(InputError) as caught:
        estimate(served(**section))
    (sentence,) = caught.value.problems
    assert said in sentence


@pytest.mark.parametrize("family", ["falcon", "bloom", "deepseek_v3"])
def test_flash_attention_is_refused_where_a_family_has_its_own_code(family: str) -> None:
    """Or none at all, or values of another size than keys."""
    with pytest.raises(InputError, match="is not modelled for"):
        estimate(served(family, attention="flash_attention_2"))


def test_flash_attention_makes_no_mask() -> None:
    """Windows are the kernel's own; so it takes less than SDPA where one slides."""
    flash, sdpa = (estimate(served("mistral", attention=a)).allocated_bytes
                   for a in ("flash_attention_2", "sdpa"))  # fmt: skip
    assert flash < sdpa


def test_an_assistant_reads_the_same_vocabulary() -> None:
    """Its candidates are the model's tokens."""
    small = {**assisted()["speculative_model"], "vocab_size": 900}
    with pytest.raises(InputError, match="a vocabulary of 900"):
        estimate(served(**assisted(speculative_model=small)))
