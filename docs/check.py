"""Writes the table of check.md: how many public configurations are read (tests/formats/corpora).

python docs/check.py    about five minutes
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.formats.corpora import score  # noqa: E402  (after its folder is on the path)

PAGE = ROOT / "docs" / "check.md"
# The corpora in the order of the table, each with its title and where it is from.
CORPORA = {
    "huggingface": ("transformers, TRL", "TRL, Accelerate, alignment-handbook, open-r1"),
    "deepspeed": ("DeepSpeed", "DeepSpeedExamples"),
    "vllm": ("vLLM", "vLLM's recipes"),
    "sglang": ("SGLang", "its documents"),
    "tensorrt_llm": ("TensorRT-LLM", "its documents"),
    "llamacpp": ("llama.cpp", "its documents"),
    "ollama": ("Ollama, with Modelfiles", "its documents"),
    "tgi": ("text-generation-inference", "its documents and tests"),
    "manifests": ("Kubernetes, KServe, compose", "vLLM, SGLang, KServe, GKE"),
    "axolotl": ("Axolotl", "its examples"),
    "llamafactory": ("LLaMA-Factory", "its examples"),
    "megatron": ("Megatron-LM", "its examples and test configurations"),
    "swift": ("ms-swift", "its examples"),
    "verl": ("verl", "its examples"),
    "openrlhf": ("OpenRLHF", "its examples"),
}
HEAD = "| tool | from | files | read in full | answered | with a limit | refused |"


def table() -> str:
    """A row for each corpus."""
    lines = [HEAD, "|---|---|---|---|---|---|---|"]
    for name, (title, origin) in CORPORA.items():
        if not (score.FOLDER / f"{name}.jsonl").is_file():
            continue
        found = Counter(score.outcome(row)[0] for row in score.rows(name))
        count = found.total()
        full = 100 * sum(found[one] for one in score.IN_FULL) / count
        cells = [title, origin, str(count), f"{full:.0f} %"]
        cells += [str(found[one]) for one in (score.ANSWERED, score.LIMITED, score.REFUSED)]
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    return "\n".join(lines)


def main() -> None:
    """Write the table between its marks."""
    text = PAGE.read_text("utf-8")
    marked = re.compile(r"(?<=<!-- corpora -->\n).*?(?=<!-- end -->)", re.DOTALL)
    PAGE.write_text(marked.sub(lambda _: table() + "\n", text), encoding="utf-8")


if __name__ == "__main__":
    main()
