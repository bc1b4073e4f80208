"""Headers of checkpoints: in a folder, in a GGUF file, and at an address by range."""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Iterator
from functools import partial
from http.server import HTTPServer
from pathlib import Path
from typing import Any

import pytest

from gpu_mem_calculator.catalog.hub.bounds import HubError
from gpu_mem_calculator.catalog.hub.checkpoint import gguf, safetensors
from gpu_mem_calculator.catalog.hub.names import hub_name
from gpu_mem_calculator.catalog.hub.reader import file_reader
from gpu_mem_calculator.catalog.hub.sources import hub_checkpoint, local
from gpu_mem_calculator.runfile.config import ModelConfig
from gpu_mem_calculator.runfile.find_model.model_source import find_model
from gpu_mem_calculator.runfile.text.errors import InputError
from tests.catalog.hub.servers import Ranges

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 256,
    "tie_word_embeddings": True,
    "max_position_embeddings": 512,
}
# Its parameters; those of a layer are one tensor.
TABLE, NORM = (
    {"model.embed_tokens.weight": ("BF16", [256, 64], 32768)},
    {"model.norm.weight": ("F32", [64], 256)},
)
LAYERS = {f"model.layers.{i}.weight": ("BF16", [36_992], 73_984) for i in range(2)}
WHOLE = {"model.weight": ("BF16", [90_432], 180_864)}  # the same in one


def safetensors_bytes(tensors: dict[str, tuple[str, list[int], int]]) -> bytes:
    """A file's header without the weights after it."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text


def gguf_bytes(*, parts: int = 1, part: int = 1) -> bytes:
    """A GGUF header: some metadata, a long list of tokens, three tensors; those of a part."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    def number(key: str, value: int) -> bytes:
        return text(key) + struct.pack("<II", 4, value)

    tokens = b"".join(text(f"t{i}") for i in range(5000))
    values = [
        text("general.architecture") + struct.pack("<I", 8) + text("llama"),
        text("general.name") + struct.pack("<I", 8) + text("Tiny"),
        text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 5000) + tokens,
        text("tokenizer.ggml.scores") + struct.pack("<IIQ", 9, 6, 5000) + bytes(4 * 5000),
        number("llama.block_count", 2),
        number("llama.embedding_length", 64),
        number("llama.feed_forward_length", 128),
        number("llama.context_length", 512),
        number("llama.attention.head_count", 4),
        number("llama.attention.head_count_kv", 2),
    ]
    tensors = [
        ("token_embd.weight", (64, 256), 8),
        ("blk.0.ffn_up.weight", (256, 289), 12),
        ("output_norm.weight", (64,), 0),
    ]
    if parts > 1:
        values.append(number("split.count", parts))
        tensors = tensors[part - 1 :: parts]
    rows = [
        text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, 0)
        for name, shape, kind in tensors
    ]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values))
    return head + b"".join(values) + b"".join(rows)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint of two files with an index, on disk."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    parts = {"model-1.safetensors": TABLE, "model-2.safetensors": NORM | LAYERS}
    names = {}
    for file, tensors in parts.items():
        (tmp_path / file).write_bytes(safetensors_bytes(tensors))
        names |= dict.fromkeys(tensors, file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    return tmp_path


def test_a_folders_files_are_all_read(folder: Path) -> None:
    """Every shard that the index names, and no tensor's data."""
    checkpoint = local(str(folder), headers=True)
    assert checkpoint is not None
    assert [(t.name, t.num_bytes) for t in checkpoint.tensors] == [
        ("model.embed_tokens.weight", 32768),
        ("model.norm.weight", 256),
        ("model.layers.0.weight", 73984),
        ("model.layers.1.weight", 73984),
    ]
    model = find_model(ModelConfig(name=str(folder)), headers=True)
    assert model.stored[:2] == (
        ("model.embed_tokens.weight", 32768, 16384),
        ("model.norm.weight", 256, 64),
    )
    assert model.form == "safetensors"


def test_a_checkpoint_that_is_not_whole_counts_by_its_config(folder: Path) -> None:
    """Where a shard is missing nothing is said of stored bytes."""
    (folder / "model-2.safetensors").unlink()
    assert find_model(ModelConfig(name=str(folder)), headers=True).stored == ()


def test_a_gguf_file_says_what_model_it_is(tmp_path: Path) -> None:
    """Sizes from the metadata, bytes from the types of the tensors; tokens are skipped."""
    path = tmp_path / "tiny.gguf"
    path.write_bytes(gguf_bytes())
    checkpoint = gguf(file_reader(path), "tiny")
    assert checkpoint.metadata["tokenizer.ggml.tokens"] is None
    assert [(t.dtype, t.num_bytes) for t in checkpoint.tensors] == [
        ("Q8_0", 64 * 256 // 32 * 34),
        ("Q4_K", 289 * 144),
        ("F32", 256),
    ]
    model = find_model(ModelConfig(name=str(path)))
    assert (model.title, model.form, len(model.arch.layers)) == ("Tiny", "gguf", 2)
    assert (model.arch.vocab, model.arch.tied) == (256, True)


def test_a_split_gguf_model_is_all_of_its_files(tmp_path: Path) -> None:
    """The first names their number; another alone is a sentence, as is one that is not there."""
    names = [f"tiny-{part:05}-of-00002.gguf" for part in (1, 2)]
    for part, name in enumerate(names, 1):
        (tmp_path / name).write_bytes(gguf_bytes(parts=2, part=part))
    checkpoint = local(str(tmp_path / names[0]))
    assert checkpoint is not None
    assert {one.name for one in checkpoint.tensors} == {
        "token_embd.weight",
        "blk.0.ffn_up.weight",
        "output_norm.weight",
    }
    with pytest.raises(HubError, match=r"one of 2 parts; give the first.*-00001-of-00002.gguf"):
        local(str(tmp_path / names[1]))
    (tmp_path / names[1]).unlink()
    with pytest.raises(HubError, match="00002-of-00002"):
        local(str(tmp_path / names[0]))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a safetensors file"),
        (b"\xff" * 16, "not a safetensors file"),
        (b"\x03" + bytes(7) + b"{x}", "header is broken"),
        (b"\x0c" + bytes(7) + b'{"a": [1,2]}', "header is broken"),
    ],
)
def test_a_broken_safetensors_file_is_a_sentence(tmp_path: Path, data: bytes, message: str) -> None:
    """No traceback for any content."""
    path = tmp_path / "x.safetensors"
    path.write_bytes(data)
    with pytest.raises(HubError, match=message):
        safetensors(file_reader(path), "x")


@pytest.mark.parametrize(
    "value",
    [
        struct.pack("<Q", 2**60),  # a name longer than any memory
        struct.pack("<Q", 2**63 + 5),
        struct.pack("<Qc", 1, b"a") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 5000,
        struct.pack("<Qc", 1, b"a") + struct.pack("<IIQ", 9, 8, 2**60),
    ],
)
def test_a_gguf_file_that_asks_for_the_moon_is_a_sentence(tmp_path: Path, value: bytes) -> None:
    """Lengths that cannot be, and lists in lists without end."""
    file = tmp_path / "x.gguf"
    file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + value)
    with pytest.raises(InputError, match="GGUF"):
        find_model(ModelConfig(name=str(file)))


@pytest.mark.parametrize("cut", [2, 4, 10, 60, 100_000])
def test_a_cut_gguf_file_is_a_sentence(tmp_path: Path, cut: int) -> None:
    """A header may end at any place."""
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf_bytes()[: cut if cut < 100_000 else -8])
    with pytest.raises(HubError, match="ends too early"):
        gguf(file_reader(path), "x")


class Files(Ranges):
    """A server of one folder that knows ranges."""

    def __init__(self, folder: Path, asked: list[str], *rest: Any) -> None:
        self.folder, self.asked = folder, asked
        super().__init__(*rest)

    def do_GET(self) -> None:  # noqa: N802 (the name that http.server calls)
        """Whole files, or the range that is asked for."""
        self.asked.append(f"{self.path} {self.headers.get('Range')}")
        path = self.folder / self.path.rpartition("/main/")[2]
        if not path.is_file():
            self.send_error(404)
            return
        self.send(path.read_bytes())


@pytest.fixture
def asked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The requests that a hub, which has the folder as owner/tiny, is asked."""
    requests: list[str] = []
    with HTTPServer(("127.0.0.1", 0), partial(Files, folder, requests)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        yield requests
        server.shutdown()


def test_the_hub_is_asked_for_headers_only(asked: list[str], folder: Path) -> None:
    """The config and the index whole, of each shard two ranges."""
    checkpoint = hub_checkpoint("owner/tiny", headers=True)
    assert checkpoint.config == CONFIG
    assert [t.num_bytes for t in checkpoint.tensors] == [32768, 256, 73984, 73984]
    ranges = [one for one in asked if "bytes=" in one]
    assert len(ranges) == 4
    assert all("safetensors" in one for one in ranges)


def test_a_gguf_file_on_the_hub(asked: list[str], folder: Path) -> None:
    """Named by its path in the repository."""
    (folder / "tiny-Q8_0.gguf").write_bytes(gguf_bytes())
    assert hub_checkpoint("owner/tiny/tiny-Q8_0.gguf").title == "Tiny"


def test_what_the_hub_does_not_have_is_a_sentence(asked: list[str], folder: Path) -> None:
    """The name, and why."""
    (folder / "config.json").unlink()
    with pytest.raises(InputError, match=r"'owner/gone' is not a preset.*has no config\.json"):
        find_model(ModelConfig(name="owner/gone"))


def test_offline_means_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """HF_HUB_OFFLINE keeps every request away."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(HubError, match="HF_HUB_OFFLINE=1"):
        hub_checkpoint("owner/model")


def test_which_names_are_the_hubs() -> None:
    """Two parts, or a GGUF file below them."""
    assert hub_name("meta-llama/Llama-3.1-8B")
    assert hub_name("bartowski/Llama-GGUF/Llama-Q4_K_M.gguf")
    assert not any(map(hub_name, ("llama", "/a/b", "./a", "a/b/c", "s3://b/c")))
