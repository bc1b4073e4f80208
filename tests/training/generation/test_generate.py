"""transformers' generate with static caches, beams, samples, assistants and packed weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from gpu_mem_calculator import estimate
from gpu_mem_calculator.estimates.calculator import STEP, full_estimate
from gpu_mem_calculator.estimates.explain.explain import explain
from gpu_mem_calculator.ledger.ledger import ACT, CACHE, Ledger
from gpu_mem_calculator.pytorch.modelling.huggingface.quantized import fused_rows
from gpu_mem_calculator.pytorch.modelling.huggingface.setting import BlockSetting
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import read
from gpu_mem_calculator.training.generation.token_choice import TokenChoice, choose_token
from tests.serving.conftest import assisted, served

TOKEN = 3 * 2 * 2 * 32 * 2  # keys and values of 2 heads of 32 in 3 layers, 2 bytes each


def ledger_of(family: str = "llama", **inference: Any) -> Ledger:
    """The ledger of a small model."""
    return full_estimate(served(family, **inference)).ledger


def cached(of: Ledger, instant: str) -> int:
    """Bytes of caches at an instant, without that of the layer that runs."""
    return sum(int(e.at(instant)) for e in of.entries if e.kind == CACHE)


def test_a_static_cache_has_space_for_all_but_the_last_token() -> None:
    """From the prompt on, also where it is empty; the last token is chosen and not run."""
    ledger = ledger_of(cache_implementation="static", prompt_len=10, new_tokens=5)
    assert cached(ledger, "prefill.scores") == cached(ledger, "decode.scores") == 3 * 14 * TOKEN


def test_a_static_cache_may_be_longer() -> None:
    """As long as max_seq_len, generate's max_cache_len."""
    ledger = ledger_of(cache_implementation="static", prompt_len=10, new_tokens=5, max_seq_len=900)
    assert cached(ledger, "prefill.scores") == 3 * 900 * TOKEN


def test_a_static_window_is_no_longer_than_the_window() -> None:
    """A prompt of 512 tokens leaves the last 128."""
    ledger = ledger_of("mistral", cache_implementation="static")
    assert cached(ledger, "prefill.scores") == 3 * 128 * TOKEN


def test_a_static_cache_is_read_with_a_mask() -> None:
    """With a mask SDPA does not share key-value heads: each step repeats all of them."""
    short, long = (
        int(
            next(
                e.bytes
                for e in ledger_of(cache_implementation="static", max_seq_len=n).entries
                if e.name.endswith("at work") and "decode.layer.0" in e.live
            )
        )
        for n in (1024, 2048)
    )
    repeated, own = 3 * 1024 * 8 * 32 * 2 * 2, 3 * 1024 * TOKEN // 3
    assert long - short == pytest.approx(repeated + own, rel=0.01)


def test_each_beam_is_a_sequence() -> None:
    """Four beams of three prompts cache as much as twelve prompts."""
    assert cached(ledger_of(num_beams=4), "decode.scores") == 4 * cached(
        ledger_of(), "decode.scores"
    )


def test_beams_copy_a_cache_layer_by_layer() -> None:
    """Only one layer's keys are there twice at a time."""
    beams = ledger_of(num_beams=4)
    whole = 12 * 514 * TOKEN
    assert cached(beams, "decode.reorder.2") == whole + whole // 6


def test_samples_of_one_prompt_are_sequences() -> None:
    """As many as num_return_sequences."""
    many = ledger_of(do_sample=True, num_return_sequences=3)
    assert cached(many, "decode.scores") == 3 * cached(ledger_of(), "decode.scores")


@pytest.mark.parametrize(
    ("fields", "width"),
    [
        ({"how": "greedy"}, 2 + 4),
        ({"how": "sample", "top_k": 0}, 2 + 4 + 4 + 4),  # logits, probs, as many numbers to draw
        ({"how": "sample", "top_k": 50}, 2 + 4 + 4 + 4 + 4),
        ({"how": "beams"}, 4 + 4 + 4),
        ({"how": "check"}, 2 + 4 + 4),
    ],
)
def test_what_the_first_token_is_chosen_from(fields: dict[str, Any], width: int) -> None:
    """Bytes for each logit at the peak."""
    choice = TokenChoice(rows=4, vocab=100_000, bits=16, length=9, new=2, **fields)
    peak = choose_token(choice, first=True).moment
    assert peak.total == pytest.approx(width * 400_000, rel=0.01)


def test_tensors_of_the_token_before_stay_alive() -> None:
    """An fp32 copy; for samples three, for beams two, and the beams' tokens."""
    modes: dict[str, Any] = {"greedy": {}, "sample": {"do_sample": True}, "beams": {"num_beams": 2}}
    before = {
        name: next(int(e.bytes) for e in ledger_of(**mode).entries if "before was chosen" in e.name)
        for name, mode in modes.items()
    }
    assert before["greedy"] == 3 * 1000 * 4
    assert before["sample"] == 3 * before["greedy"]
    assert before["beams"] == 2 * (2 * before["greedy"]) + 2 * 6 * (515 * 8 + 3 * 4)


def test_an_assistant_has_weights_and_a_cache() -> None:
    """In addition to the model's."""
    ledger = ledger_of(**assisted())
    names = [e.name for e in ledger.entries]
    assert "assistant: parameters" in names
    small = 2 * 2 * 2 * 32 * 2  # of one token in its two layers
    assert cached(ledger, "main.1.scores") == (300 + 1 + 4) * TOKEN + (300 + 1 + 3) * small


def test_candidates_are_checked_with_a_row_of_logits_each() -> None:
    """Four candidates and the token after them: five rows in 16 bits, then twice in fp32."""
    ledger = ledger_of(**assisted())
    checked = next(e for e in ledger.entries if e.name == "candidates checked")
    assert int(checked.bytes) == 5 * 1000 * (2 + 4 + 4)


def test_packed_weights() -> None:
    """4 bits and an fp32 scale for 64; 8 bits and one for each output; the rest stays."""
    whole, four, eight = (
        int(next(e.bytes for e in ledger_of(quantization=q).entries if e.name == "parameters"))
        for q in ("none", "nf4", "int8")
    )
    linears = 3 * (256 * 256 * 2 + 2 * 256 * 64 + 3 * 256 * 704)
    outputs = 3 * (2 * 256 + 2 * 64 + 2 * 704 + 256)
    assert whole - eight == linears - 4 * outputs
    assert whole - four == linears * 2 - linears // 2 - linears // 16 - 3 * 7 * 64


def test_few_rows_are_multiplied_by_packed_weights() -> None:
    """More rows take a copy of the weight in 16 bits."""
    setting = BlockSetting(batch=1, seq=1, hidden=1, bits=16, matmul_bits=16, weight_bits=16)
    hopper = replace(setting, hopper=True)
    assert fused_rows(setting, 4096, 14336) == 4
    assert fused_rows(hopper, 4096, 14336) == 32
    assert fused_rows(hopper, 4096, 4096) == 4
    assert fused_rows(hopper, 100, 4096) == 0  # no whole blocks


@pytest.mark.parametrize(("outs", "rows"), [(33 * 64, 32), (33 * 64 + 1, 16)])
def test_a_small_weight_s_rows_follow_from_its_tiles(outs: int, rows: int) -> None:
    """32 where tiles of 64 outputs fill at most a quarter of the 132 multiprocessors, else 16."""
    setting = BlockSetting(batch=1, seq=1, hidden=1, bits=16, matmul_bits=16, weight_bits=16)
    assert fused_rows(replace(setting, hopper=True), 64 * 20, outs) == rows


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
    """A ledger of many batches at once has the peaks of each, and gives formulas."""
    resolved = resolve(read(served(family, **mode)).file)
    sizes = [1, 3, 8]
    many = resolved.engine.ledger(replace(resolved.run, batch=np.asarray(sizes)))
    each = [int(resolved.engine.ledger(replace(resolved.run, batch=n)).peak()) for n in sizes]
    assert many.peak().tolist() == each
    assert explain(full_estimate(served(family, **mode))).symbolic


@pytest.mark.parametrize(
    ("section", "message"),
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
def test_options_that_exclude_each_other_are_refused(section: dict[str, Any], message: str) -> None:
    """One sentence: the key, the value, the rule."""
    with pytest.raises(InputError) as caught:
        estimate(served(**section))
    (sentence,) = caught.value.problems
    assert message in sentence


@pytest.mark.parametrize("family", ["falcon", "bloom", "deepseek_v3"])
def test_flash_attention_is_refused_where_it_is_not_modelled(family: str) -> None:
    """The family has its own code for it, or none, or values of another size than keys."""
    with pytest.raises(InputError, match="is not modelled for"):
        estimate(served(family, attention="flash_attention_2"))


def test_flash_attention_makes_no_mask() -> None:
    """The kernel knows the window; so it takes less memory than SDPA where one slides."""
    flash, sdpa = (
        estimate(served("mistral", attention=a)).allocated_bytes
        for a in ("flash_attention_2", "sdpa")
    )
    assert flash < sdpa


def test_an_assistant_reads_the_same_vocabulary() -> None:
    """Its candidates are the model's tokens."""
    small = {**assisted()["speculative_model"], "vocab_size": 900}
    with pytest.raises(InputError, match="a vocabulary of 900"):
        estimate(served(**assisted(speculative_model=small)))


def test_the_activations_part_has_the_kv_cache() -> None:
    """The documented breakdown has five parts: the cache is counted with the activations."""
    found = full_estimate(served("llama", prompt_len=200, new_tokens=5))
    parts = found.ledger.parts(found.ledger.peak_instant(phases=STEP))
    assert int(parts[CACHE]) > 0
    expected = (int(parts[ACT]) + int(parts[CACHE])) / 2**30
    assert found.result.breakdown.activations_gb == pytest.approx(expected, rel=1e-12)


def test_scores_in_fp16_are_alive_until_their_softmax_is_cast_back() -> None:
    """One statement takes the softmax to fp32 and back; the scores lose their name after it."""
    sequence, heads = 2048, 8
    config = {
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_size": 64 * heads,
        "intermediate_size": 256,
        "num_attention_heads": heads,
        "vocab_size": 256,
        "max_position_embeddings": sequence,
    }
    options = {"engine": "transformers", "dtype": "fp16", "attention": "eager"}
    prompt = {"batch_size": 2, "prompt_len": sequence, "new_tokens": 0}
    run = {
        "model": {"config": config},
        "inference": {**options, **prompt},
        "hardware": {"gpu": "h200", "num_gpus": 1},
    }
    area = 2 * heads * sequence**2
    result = full_estimate(run).result
    above = result.allocated_bytes - (result.startup_bytes or 0)
    assert (2 + 4 + 2) * area < above < (2 + 4 + 4) * area
