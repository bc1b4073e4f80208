"""`check` with several commands or containers, and where it finds the card."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_mem_calculator.cli import this_machine

from .conftest import Command

SERVICE = """
  %s:
    image: vllm/vllm-openai:v0.10.2
    command: --model Qwen/Qwen3-%s --gpu-memory-utilization %s
    deploy: {resources: {reservations: {devices: [{device_ids: ["%s"], capabilities: [gpu]}]}}}
"""
CARD = "name, memory.total [MiB]\nNVIDIA H100 80GB HBM3, 81559 MiB"
SMALL = "trl sft --model_name_or_path Qwen/Qwen2.5-0.5B --dataset_name x --use_peft"
LARGE = "trl sft --model_name_or_path Qwen/Qwen2.5-7B --dataset_name x --max_length 8192"
DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: llm}
spec:
  template:
    spec:
      nodeSelector: {%s}
      containers:
        - name: server
          image: vllm/vllm-openai:v0.10.2
          args: [--model, Qwen/Qwen3-14B, --max-model-len, "16384"]
          resources: {limits: {%s: 1}}
"""


@pytest.fixture(autouse=True)
def no_gpu_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine has no GPU, whatever it has."""
    monkeypatch.setattr(this_machine, "QUERY", ("no-such-program",))


def written(folder: Path, name: str, text: str) -> Path:
    """A file with a text."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def compose(folder: Path, shares: tuple[float, float], second: str = "0") -> Path:
    """Two servers with shares of the card, the second one on a GPU."""
    first = SERVICE % ("a", "8B", shares[0], "0")
    return written(
        folder, "compose.yaml", f"services:{first}{SERVICE % ('b', '4B', shares[1], second)}"
    )


def test_two_servers_on_one_card_are_added_up(command: Command, tmp_path: Path) -> None:
    """Each fits alone, both together do not; the first line says so."""
    answer = command("check", "--gpu", "h100-sxm", compose(tmp_path, (0.6, 0.6)))
    assert answer.code == 1
    first = answer.out.splitlines()[0]
    assert first.startswith("does not fit: GPU 0: 97.0 of 79.2 GiB together (48.5 service a")
    assert answer.out.count("\nfits         ") == 2


@pytest.mark.parametrize(("shares", "second"), [((0.5, 0.4), "0"), ((0.6, 0.6), "1")])
def test_two_servers_with_room(
    command: Command, tmp_path: Path, shares: tuple[float, float], second: str
) -> None:
    """Both fit: on one card, or on a card each."""
    answer = command("check", "--gpu", "h100-sxm", compose(tmp_path, shares, second))
    assert answer.code == 0
    assert answer.out.startswith("fits: ")
    assert ("together" in answer.out) is (second == "0")
    if second == "0":  # one line for all
        assert answer.out.splitlines()[-1].count("service b") == 1


def test_a_server_beside_others_is_not_shown_as_alone(command: Command, tmp_path: Path) -> None:
    """SGLang's pool is a share of what the others leave."""
    text = (
        "vllm serve Qwen/Qwen3-8B --gpu-memory-utilization 0.5 --max-model-len 16384 &\n"
        "python -m sglang.launch_server --model-path Qwen/Qwen3-4B --mem-fraction-static 0.4 &\n"
        "llama-server -hf unsloth/gemma-3-4b-it-GGUF:Q4_K_M -ngl 99 -c 8192\n"
    )
    answer = command("check", "--gpu", "l40s", written(tmp_path, "a.sh", text))
    said = "takes 10.8 GiB beside the others; its row has the card alone"
    assert " ".join(answer.out.split()).count(said) == 1


def test_servers_in_the_background_of_a_script(command: Command, tmp_path: Path) -> None:
    """Three of them share GPU 0; with a card each they fit."""
    serve = (
        "CUDA_VISIBLE_DEVICES=%s vllm serve Qwen/Qwen3-4B --gpu-memory-utilization %s --port %s &"
    )
    shares = (0.5, 0.4, 0.4)
    one, three = (
        "\n".join(serve % (gpu * times, share, gpu) for gpu, share in enumerate(shares))
        for times in (0, 1)
    )
    answer = command("check", "--gpu", "h100-sxm", written(tmp_path, "a.sh", one))
    assert answer.code == 1
    assert answer.out.startswith("does not fit: GPU 0: ")
    assert command("check", "--gpu", "h100-sxm", written(tmp_path, "b.sh", three)).code == 0


def test_the_worst_of_several_commands_decides(command: Command, tmp_path: Path) -> None:
    """Not the first one; commands one after another are not added up."""
    script = written(tmp_path, "seq.sh", f"{SMALL}\n{LARGE}\n")
    answer = command("check", "--gpu", "4090", script)
    assert answer.code == 1
    assert answer.out.startswith("does not fit: trl sft --model_name_or_path Qwen/Qwen2.5-7B")
    assert "together" not in answer.out


def test_several_answers_as_data(command: Command, tmp_path: Path) -> None:
    """One object, with the answers and what is shared."""
    path = compose(tmp_path, (0.6, 0.6))
    data = json.loads(command("check", "--gpu", "h100-sxm", "--format", "json", path).out)
    assert (data["verdict"], data["exit_code"]) == ("does_not_fit", 1)
    assert [(one["name"], one["verdict"]) for one in data["answers"]] == [
        ("service a", "fits"),
        ("service b", "fits"),
    ]
    (shared,) = data["together"]
    assert shared["devices"] == ["0"]
    assert shared["total_bytes"] == sum(part["bytes"] for part in shared["parts"])


def test_a_command_that_cannot_be_read_is_named(command: Command, tmp_path: Path) -> None:
    """Exit code 2 where the others fit, and their answers."""
    script = written(tmp_path, "a.sh", f"{SMALL}\nvllm serve Qwen/Qwen3-4B --no-such-option\n")
    answer = command("check", "--gpu", "4090", script)
    assert answer.code == 2
    assert "--no-such-option is not an option" in answer.err
    assert "\nfits   " in answer.out


def test_each_of_several_has_a_row_the_worst_first(command: Command, tmp_path: Path) -> None:
    """Verdict, figures, model, tool; the whole answer of what does not fit, with --long of all."""
    broken = "vllm serve Qwen/Qwen3-4B --no-such-option"
    script = written(tmp_path, "a.sh", f"{SMALL}\n{broken}\n{LARGE}\n")
    answer = command("check", "--gpu", "4090", script)
    rows = answer.out.split("\n\n")[1].splitlines()
    assert [row[:14].strip() for row in rows] == ["does not fit", "cannot tell", "fits"]
    assert " of 23.5 GiB  Qwen2.5 7B, trl.SFTTrainer " in rows[0]
    assert " of 23.5 GiB  Qwen2.5 0.5B LoRA, trl.SFTTrainer " in rows[2]
    assert max(map(len, rows)) <= 80
    assert "fits: needs" not in answer.out
    assert answer.out.count("does not fit: needs") == 1
    assert "\ndetails: gpu-mem-calc check --gpu 4090" in answer.out
    whole = command("check", "--gpu", "4090", "--long", script).out
    assert whole.count("Qwen2.5 0.5B") > answer.out.count("Qwen2.5 0.5B")


def test_the_same_command_twice_has_one_answer(command: Command, tmp_path: Path) -> None:
    """Under both names."""
    text = "for i in 0 1; do CUDA_VISIBLE_DEVICES=$i vllm serve Qwen/Qwen3-4B --port $i & done"
    answer = command("check", "--gpu", "h100-sxm", "--long", written(tmp_path, "a.sh", text))
    assert answer.code == 0
    assert answer.out.count("  nvidia-smi  ") == 1
    assert answer.out.count("\nvllm serve Qwen/Qwen3-4B --port") == 2


@pytest.mark.parametrize(
    ("label", "resource", "code", "card"),
    [
        ("cloud.google.com/gke-accelerator: nvidia-l4", "nvidia.com/gpu", 1, "NVIDIA L4"),
        ("nvidia.com/gpu.product: NVIDIA-L40S", "nvidia.com/gpu", 0, "NVIDIA L40S"),
        ("disk: ssd", "nvidia.com/mig-3g.40gb", 0, "MIG 3g.40gb"),
        ("disk: ssd", "nvidia.com/mig-2g.20gb", 1, "MIG 2g.20gb"),
        ("disk: ssd", "nvidia.com/gpu", 3, "80 GB GPU"),
        ("nvidia.com/gpu.product: NVIDIA-X9000", "nvidia.com/gpu", 3, "80 GB GPU"),
    ],
)
def test_the_card_of_a_manifest_decides(
    command: Command, tmp_path: Path, label: str, resource: str, code: int, card: str
) -> None:
    """Without a card nobody can tell; --gpu wins over the manifest."""
    path = written(tmp_path, "a.yaml", DEPLOYMENT % (label, resource))
    answer = command("check", path)
    assert answer.code == code
    assert card in answer.out
    assert command("check", "--gpu", "h100-sxm", path).code == 0


def test_this_machine_is_asked_last(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The card of a manifest wins over this machine's, which wins over none."""
    monkeypatch.setattr(this_machine, "QUERY", ("echo", CARD))
    named = DEPLOYMENT % ("cloud.google.com/gke-accelerator: nvidia-l4", "nvidia.com/gpu")
    assert command("check", written(tmp_path, "a.yaml", named)).code == 1
    plain = DEPLOYMENT % ("disk: ssd", "nvidia.com/gpu")
    assert command("check", written(tmp_path, "b.yaml", plain)).code == 0
    unknown = DEPLOYMENT % ("nvidia.com/gpu.product: NVIDIA-X9000", "nvidia.com/gpu")
    assert command("check", written(tmp_path, "c.yaml", unknown)).code == 3


def test_a_slurm_job_names_its_card(command: Command, tmp_path: Path) -> None:
    """14B in bf16 fits an L40S, and no L4."""
    job = "#SBATCH --gres=gpu:%s:1\nvllm serve Qwen/Qwen3-14B --max-model-len 4096\n"
    codes = [
        command("check", written(tmp_path, "job.sbatch", job % card)).code
        for card in ("l40s", "l4", "x9000")
    ]
    assert codes == [0, 1, 3]


def test_what_others_hold_counts_in_the_share_of_some_releases(command: Command) -> None:
    """Of vLLM 0.6.4 and of V1 from 0.6.5 to 0.9.0: the second of two servers does not start, though
    both together fit (vllm-project/vllm#2248, #17431).
    """
    server = "vllm serve Qwen/Qwen3-8B --gpu-memory-utilization 0.4"
    for release, starts in (("0.6.3", True), ("0.8.5", False), ("0.9.1", True)):
        words = ["check", "--gpu", "a800-80gb", "--at", f"vllm={release}"]
        answer = command(*words, f"{server} & {server} & wait")
        assert (answer.code == 0) == starts, release
        text = " ".join(answer.out.split())
        assert ("counts in its share what others hold" in text) == (not starts)
        assert ("Use --gpu-memory-utilization 0." in text) == (not starts)
