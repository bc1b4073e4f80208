"""What people write in Chinese is read by the rules for English."""

from __future__ import annotations

import pytest

from gpu_mem_calculator.advice.diagnosis.diagnose import diagnose
from gpu_mem_calculator.tools.logs.figure import Figure
from gpu_mem_calculator.tools.logs.in_english import in_english
from gpu_mem_calculator.tools.logs.set_up import set_up


@pytest.mark.parametrize(
    ("text", "english"),
    [
        ("保存模型的时候爆显存", "saving model while CUDA out of memory"),
        ("用6张40G的A100", "用 6 GPUs 40G 的 A100"),
        ("单机8卡，内存不足", "1 node 8 GPUs , RAM out of memory"),
        ("no word of it", "no word of it"),
    ],
)
def test_words(text: str, english: str) -> None:
    """Words that no row knows stay."""
    assert " ".join(in_english(text).split()) == english


def test_figures() -> None:
    """Their names are those of English texts."""
    found = {
        name: one.value
        for _, figures in set_up("3090显存24GB，2机16卡，上下文长度8192，500步")
        for name, one in figures.items()
        if isinstance(one, Figure)
    }
    assert found == {"vram_bytes": 24 * 2**30, "node": 2, "gpu": 16, "context": 8192, "step": 500}


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("训练正常，评估的时候爆显存", "evaluation"),
        ("zero2全参微调，训练可以，保存模型的时候内存不足，进程被杀死", "host_ram"),
        ("合并lora权重时显存不足", "merging"),
    ],
)
def test_causes(text: str, cause: str) -> None:
    """As of the same sentence in English."""
    found = diagnose(text).cause
    assert found is not None
    assert found.id == cause
