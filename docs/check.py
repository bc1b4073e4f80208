"""Writes the tables of check.md: where a card is read, and how many public configurations are read.

python docs/check.py            about five minutes (tests/tools/corpora)
python docs/check.py --cards    only where a card is read
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.tools.corpora import score  # noqa: E402  (after its folder is on the path)

from gpu_mem_calculator.catalog.machines import labels, machines  # noqa: E402

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
SHOWN = (  # labels in the table of cards
    "cloud.google.com/gke-accelerator",
    "nvidia.com/gpu.product",
    "nvidia.com/gpu.memory",
    "karpenter.k8s.aws/instance-gpu-name",
    "node.kubernetes.io/instance-type",
    "amd.com/gpu.product-name",
)
HEAD = "| tool | from | files | read in full | answered | with a limit | refused |"


def cards() -> str:
    """Where a card is read: labels and machine types of the catalogue, options of tools."""
    keys = [key for key in labels() if " " not in key]
    shown = ", ".join(f"`{key}`" for key in SHOWN if key in keys)
    counts: Counter[str] = Counter()
    for row in machines():
        counts[row["provider"]] += len(row["sizes"])
    types = ", ".join(f"{count} of {name}" for name, count in counts.items())
    rows = {
        "the command line": "`--gpu NAME`, `--gpu-mem GB`: they win over all that follows",
        "Kubernetes": "labels in `nodeSelector` and in required `nodeAffinity` (what is only"
        f" preferred counts as nothing): {shown} and {len(keys) - len(SHOWN)} more; also labels of"
        " your own such as `gpu-type: a100`",
        "machine types": "such as `g5.12xlarge`, `a2-highgpu-1g`, `Standard_NC24ads_A100_v4`: "
        + types,
        "MIG": "a resource such as `nvidia.com/mig-3g.40gb`: a slice with its own memory",
        "KServe, Ray, KAITO": "the Pod's labels; `accelerator_type`; `instanceType`",
        "Slurm": "`--gres=gpu:a100:8`, `--gpus`, `--gpus-per-node`, `--gpus-per-task`,"
        " `--constraint` (`a100\\|h100` is a choice), a partition whose name is a card's",
        "SkyPilot": "`accelerators` (A100 is the 40 GB card there), `any_of`, `instance_type`",
        "compose": "`node.labels` in `deploy.placement`",
        "this machine": "nvidia-smi, where nothing above names a card",
    }
    lines = ["| where | what is read |", "|---|---|"]
    return "\n".join([*lines, *(f"| {where} | {what} |" for where, what in rows.items())])


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
    """Write the tables between their marks."""
    text = PAGE.read_text("utf-8")
    makers = {"cards": cards} if "--cards" in sys.argv else {"cards": cards, "corpora": table}
    for mark, make in makers.items():
        marked = re.compile(rf"(?<=<!-- {mark} -->\n).*?(?=<!-- end -->)", re.DOTALL)
        made = make() + "\n"
        text = marked.sub(made.replace("\\", r"\\"), text, count=1)
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
