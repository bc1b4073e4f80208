"""The service's own addresses: the same answers as the library, and sentences for the rest."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import msgspec
import pytest

from gpu_mem_calculator.estimates.calculator import estimate

RUN: dict[str, Any] = {
    "model": {"name": "llama2-7b"},
    "training": {"batch_size": 2, "seq_len": 2048},
    "engine": {"type": "deepspeed", "zero_stage": 2},
    "hardware": {"num_gpus": 8, "gpu": "a100-80gb-sxm"},
}
SERVER: dict[str, Any] = {
    "model": {"name": "llama3.1-8b"},
    "inference": {"engine": "vllm"},
    "hardware": {"gpu": "h100-80gb-sxm"},
}


@pytest.mark.parametrize("path", ["/api/calculate", "/api/replay"])
def test_calculate_is_the_whole_estimate(client: httpx.Client, path: str) -> None:
    """The same figures and verdict as the Python interface."""
    found = client.post(path, json=RUN)
    assert found.status_code == 200
    assert found.json() == msgspec.to_builtins(estimate(RUN))


def test_a_server_is_calculated(client: httpx.Client) -> None:
    """With the tokens of its cache."""
    found = client.post("/api/calculate", json=SERVER).json()
    assert found["serving"]["kv_tokens"] == estimate(SERVER).serving.kv_tokens  # type: ignore[union-attr]


def test_infer_answers_for_the_contexts_that_are_asked(client: httpx.Client) -> None:
    """Rows and columns as the address says."""
    found = client.post("/api/infer?contexts=4096,8192&concurrency=1,16", json=SERVER).json()
    assert found["matrix"]["contexts"] == [4096, 8192]
    assert found["matrix"]["concurrencies"] == [1, 16]
    assert found["serving"]["command"].startswith("vllm serve")


def test_explain_gives_formulas_with_sources(client: httpx.Client) -> None:
    """Every entry says where it comes from."""
    found = client.post("/api/explain", json=RUN).json()
    assert found["symbolic"]
    assert all(entry["source"] and entry["formula"] for entry in found["entries"])


def test_what_ifs_show_their_saving(client: httpx.Client) -> None:
    """Each change, applied, has the total by the ledger and the verdict that it promised."""
    changes = client.post("/api/what-ifs", json=RUN).json()["changes"]
    assert {"full recompute"} <= {change["title"] for change in changes}
    one = next(change for change in changes if change["title"] == "full recompute")
    run = {**RUN, "training": {**RUN["training"], "activation_checkpointing": "full"}}
    by_ledger = estimate(run, replay=False).total_memory_per_gpu_gb
    assert round(by_ledger * 2**30) == one["total_bytes"]
    assert client.post("/api/calculate", json=run).json()["verdict"] == one["verdict"]


def test_room_is_what_the_report_says(client: httpx.Client) -> None:
    """How far the sequence can grow; a server has a table for that."""
    assert "longest sequence that fits: about" in client.post("/api/room", json=RUN).json()["room"]
    assert client.post("/api/room", json=SERVER).json()["room"] == ""


def test_look_has_the_pages_pieces(client: httpx.Client) -> None:
    """A picture of the width that was asked for, and the columns behind it."""
    found = client.post("/api/look?width=640", json=RUN).json()
    assert {"verdict", "picture", "numbers", "breakdown", "ledger"} <= found["parts"].keys()
    assert 'viewBox="0 0 640 ' in found["parts"]["picture"]
    assert found["columns"][0]["slices"]
    assert not any("style=" in part for part in found["parts"].values())


def test_look_at_a_server_has_its_map_and_command(client: httpx.Client) -> None:
    """Contexts by sequences, speed, and how it is started."""
    parts = client.post("/api/look", json=SERVER).json()["parts"]
    assert "vllm serve" in parts["start"]
    assert "<svg" in parts["room"]


def test_the_report_is_a_file(client: httpx.Client) -> None:
    """To be saved, not shown by the service's address."""
    found = client.post("/api/report", json=RUN)
    assert found.headers["content-disposition"] == 'attachment; filename="report.html"'
    assert found.text.startswith("<!doctype html>")


def test_a_picture_has_an_address(client: httpx.Client) -> None:
    """Settings as --set writes them; its policy lets it have its own styles and nothing else."""
    found = client.get("/api/picture.svg?model.name=gpt2&training.batch_size=4&theme=dark")
    assert found.headers["content-type"].startswith("image/svg+xml")
    assert found.text.startswith("<svg")
    assert "default-src 'none'" in found.headers["content-security-policy"]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (json.dumps(RUN), "run file"),
        ("model:\n  name: llama2-7b\n", "run file"),
        ('[model]\nname = "llama2-7b"\n', "run file"),
        ('{"model_type": "llama", "hidden_size": 4096}', "config.json"),
        ("llama2-7b", "model"),
        (" meta-llama/Llama-3.1-8B\n", "model"),
        ("https://huggingface.co/meta-llama/Llama-3.1-8B/tree/main", "model"),
        ("huggingface.co/Qwen/Qwen3-8B", "model"),
    ],
)
def test_what_is_pasted_becomes_a_run_file(client: httpx.Client, text: str, what: str) -> None:
    """Run files in three notations, a model's config.json, its name and its page."""
    found = client.post("/api/import", json={"text": text}).json()
    assert found["what"] == what
    assert "model" in found["run"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1, 2]", "is not a run file"),
        ('{"modell": {}}', "'modell' is not a section"),
        ('{"model": ', "not valid JSON"),
        ("", "it is empty"),
        ("nonsense", "give it as owner/model"),
        ("https://evil.com/a/b", "not a model's page on huggingface.co"),
        ("make coffee for two", "starts no tool that is known"),
        ("trl sft --model_name_or_path gpt2 --no_such", "--no_such is not"),
        ("trl sft --config sft.yaml", "no files are opened here"),
    ],
)
def test_what_cannot_be_read_is_a_sentence(client: httpx.Client, text: str, said: str) -> None:
    """What is wrong with it."""
    found = client.post("/api/import", json={"text": text})
    assert found.status_code == 422
    assert said in found.json()["problems"][0]


@pytest.mark.parametrize(
    ("text", "verdict", "said"),
    [
        (json.dumps(RUN), "fits", "Llama 2 7B"),
        ("vllm serve Qwen/Qwen3-8B", "cannot_tell", "Qwen3 8B, vLLM"),
        ("vllm serve Qwen/Qwen3-8B -tp 3", "cannot_tell", "does not divide 32 heads"),
        ("vllm serve Qwen/Qwen3-8B\nvllm serve gpt2", "cannot_tell", "open: the card"),
        ('{"train_micro_batch_size_per_gpu": 1}', "cannot_tell", "names no model"),
        ("CUDA out of memory. Tried to allocate 2.00 GiB.", "cannot_tell", "program printed"),
    ],
)
def test_what_is_pasted_has_a_verdict(
    client: httpx.Client, text: str, verdict: str, said: str
) -> None:
    """And a line to be pasted: by the ledger, or why nothing is estimated."""
    found = client.post("/api/import", json={"text": text}).json()
    assert found["verdict"] == verdict
    assert said in found["summary"]


def test_a_command_is_pasted(client: httpx.Client) -> None:
    """Its run by the keys of the form, the tool, and what was assumed."""
    text = "accelerate launch \\\n  --num_processes 4 \\\n  sft.py --model_name_or_path gpt2"
    found = client.post("/api/import", json={"text": text}).json()
    assert found["what"].startswith("trl.SFTTrainer")
    assert found["run"]["model"]["name"] == "gpt2"
    assert found["run"]["training"]["batch_size"] == 8
    assert found["run"]["hardware"]["num_gpus"] == 4
    assert "program" not in found["run"]
    assert any("float32" in note for note in found["notes"])


def test_several_commands_are_pasted(client: httpx.Client) -> None:
    """The first that can be read, and the others in their order with what is wrong of them."""
    text = "vllm serve --tp many a/b\nvllm serve gpt2\nvllm serve Qwen/Qwen3-0.6B"
    found = client.post("/api/import", json={"text": text}).json()
    assert found["name"] == "vllm serve gpt2"
    wrong, last = found["others"]
    assert wrong["problems"]
    assert "run" not in wrong
    assert last["run"]["model"]["name"] == "Qwen/Qwen3-0.6B"
    wrongs = client.post("/api/import", json={"text": "vllm serve --a 1\nvllm serve --b 1"})
    assert wrongs.status_code == 422
    assert [one.partition(":")[0] for one in wrongs.json()["problems"]] == [
        "vllm serve --a 1",
        "vllm serve --b 1",
    ]


def test_deepspeeds_json_is_pasted(client: httpx.Client) -> None:
    """Its training and engine; the number of GPUs where its batch sizes determine it."""
    config = {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4}
    config |= {"gradient_accumulation_steps": 1, "bf16": {"enabled": True}}
    config["zero_optimization"] = {"stage": 3}
    found = client.post("/api/import", json={"text": json.dumps(config)}).json()
    assert found["what"] == "DeepSpeed"
    assert found["run"]["engine"]["zero_stage"] == 3
    assert found["run"]["training"]["batch_size"] == 4
    assert found["run"]["hardware"] == {"num_gpus": 8}
    del config["train_batch_size"]
    open_count = client.post("/api/import", json={"text": json.dumps(config)}).json()
    assert "hardware" not in open_count["run"]


def test_validate_tells_every_problem(client: httpx.Client) -> None:
    """All at once, with a status that says the question was fine."""
    bad = {**RUN, "training": {"batch_size": 0, "seq_len": -1}}
    found = client.post("/api/validate", json=bad).json()
    assert not found["valid"]
    assert len(found["errors"]) == 2
    assert client.post("/api/validate", json=RUN).json()["valid"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "said"),
    [
        ("POST", "/api/calculate", b"{", 422, "not JSON"),
        ("POST", "/api/calculate", b"[" * 100_000, 422, "not JSON"),
        ("POST", "/api/calculate", b"[]", 422, "a run file is an object"),
        ("POST", "/api/calculate", b"null", 422, "a run file is an object"),
        ("POST", "/api/calculate", b"", 422, "no 'model' section"),
        ("POST", "/api/calculate", b"\xff\xfe", 422, "not JSON"),
        ("POST", "/api/calculate", b'{"model": {"name": "x' + b"y" * 2**20 + b'"}}', 413, "larger"),
        (
            "POST",
            "/api/calculate?replays=true",
            b"{}",
            422,
            "'replays' is not an option here; it has: replay",
        ),
        ("POST", "/api/look?width=3", b"{}", 422, "from 320 to 1600"),
        ("POST", "/api/infer?contexts=a", b"{}", 422, "must be a whole number"),
        ("GET", "/api/picture.svg?theme=red&model.name=gpt2", b"", 422, "light or dark"),
        ("GET", "/api/picture.svg?x=1", b"", 422, "not an option here; it has: "),
        ("GET", "/api/picture.svg?x=1", b"", 422, "theme"),
        ("GET", "/api/calculate", b"", 405, "does not take GET"),
        ("GET", "/api/nothing", b"", 404, "there is no /api/nothing"),
        ("GET", "/api/preset/nothing", b"", 404, "is not a preset"),
        ("POST", "/api/export/lightning", json.dumps(RUN).encode(), 422, "is not known; use"),
    ],
)
def test_mistakes_are_sentences(
    client: httpx.Client, method: str, path: str, body: bytes, status: int, said: str
) -> None:
    """A status that fits, and one sentence for each problem."""
    found = client.request(method, path, content=body)
    assert found.status_code == status
    assert said in found.json()["detail"]
    assert found.json()["problems"]


def test_every_answer_keeps_a_browser_safe(client: httpx.Client) -> None:
    """Nothing but this service's own files; no guessing of types."""
    for path in ("/", "/api/gpus", "/api/nothing", "/static/js/main.js"):
        headers = client.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'self'")
        assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", ["/", "/plan", "/accuracy", "/docs"])
def test_pages_are_there_and_name_no_other_host(client: httpx.Client, path: str) -> None:
    """Each page is a file without a script or a style of its own."""
    found = client.get(path)
    assert found.status_code == 200
    assert found.headers["content-type"].startswith("text/html")
    assert "<script>" not in found.text
    assert " style=" not in found.text


def test_facts_are_the_catalogues(client: httpx.Client) -> None:
    """Presets, cards, the schema and the form."""
    assert "llama2-7b" in client.get("/api/presets").json()
    assert any(row["name"] == "h200-141gb-sxm" for row in client.get("/api/gpus").json()["gpus"])
    assert client.get("/api/schema").json()["$defs"]
    assert client.get("/api/form").json()["fields"]
    assert client.head("/api/gpus").status_code == 200


def test_operators_see_how_it_goes(client: httpx.Client) -> None:
    """Alive, ready, counted; clients cannot invent names in the counts."""
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/readyz").json() == {"status": "ready"}
    client.post("/api/calculate", json=RUN)
    client.get("/api/some-invented-name")
    text = client.get("/metrics").text
    assert 'gpu_mem_calc_requests_total{method="POST",route="/api/calculate",status="200"}' in text
    assert 'gpu_mem_calc_ready_processes{lane="quick"} 2.0' in text
    assert "invented" not in text


def test_the_service_describes_itself(client: httpx.Client) -> None:
    """Every address of ours, with the run file's schema."""
    document = client.get("/openapi.json").json()
    assert document["components"]["schemas"]["RunFile"]["properties"].keys() >= {
        "model",
        "training",
    }
    body = document["paths"]["/api/calculate"]["post"]["requestBody"]["content"]
    assert body["application/json"]["schema"] == {"$ref": "#/components/schemas/RunOrText"}


def test_every_reference_of_the_description_is_defined(client: httpx.Client) -> None:
    """A generated client finds the schema of each body, answer and refusal."""
    document = client.get("/openapi.json")
    named = set(re.findall(r'"#/components/schemas/([^"]+)"', document.text))
    assert named <= document.json()["components"]["schemas"].keys()


def test_large_answers_are_packed(client: httpx.Client) -> None:
    """Where the client takes it; small ones are not worth it."""
    assert client.post("/api/look", json=RUN).headers["content-encoding"] == "gzip"
    assert "content-encoding" not in client.post("/api/calculate", json=RUN).headers
    plain = client.post("/api/look", json=RUN, headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
