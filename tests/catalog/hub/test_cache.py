"""huggingface_hub's cache and token on this machine: read on a command line, never written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpu_mem_calculator.catalog.hub import environment
from gpu_mem_calculator.catalog.hub.access import Access, allow
from gpu_mem_calculator.catalog.hub.bounds import HubError
from gpu_mem_calculator.catalog.hub.sources import hub_checkpoint
from gpu_mem_calculator.runfile.config import ModelConfig
from gpu_mem_calculator.runfile.find_model.model_source import find_model
from gpu_mem_calculator.runfile.text.errors import InputError
from tests.catalog.hub.models import GGUF, MANY, ONE
from tests.catalog.hub.servers import commit, hub

SERVICE = Access(files=False, hosts=frozenset({"127.0.0.1"}))


def keep(cache: Path, model: str, files: dict[str, bytes], revision: str = "main") -> Path:
    """Put files into a cache as huggingface_hub does: blobs, a snapshot of links, a ref."""
    folder = cache / f"models--{model.replace('/', '--')}"
    snapshot = folder / "snapshots" / commit(model)
    (folder / "blobs").mkdir(parents=True, exist_ok=True)
    snapshot.mkdir(parents=True)
    ref = folder / "refs" / revision
    ref.parent.mkdir(parents=True)
    ref.write_text(commit(model))
    for number, (file, data) in enumerate(files.items()):
        blob = folder / "blobs" / str(number)
        blob.write_bytes(data)
        (snapshot / file).symlink_to(Path("../../blobs") / str(number))
    return snapshot


@pytest.mark.parametrize(
    ("variable", "below"),
    [
        ("HF_HUB_CACHE", ""),
        ("HF_HOME", "hub"),
        ("XDG_CACHE_HOME", "huggingface/hub"),
        ("HOME", ".cache/huggingface/hub"),
    ],
)
def test_where_the_cache_is(
    variable: str, below: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As huggingface_hub has it; what is there is read although everything is offline."""
    for name in ("HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    keep(tmp_path / below, "owner/kept", ONE)
    checkpoint = hub_checkpoint("owner/kept", headers=True)
    assert (checkpoint.title, len(checkpoint.tensors)) == ("kept", 1)
    assert checkpoint.source == "from the hub's cache on this machine"


def test_huggingface_hub_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The layout of the test is the library's own."""
    library = pytest.importorskip("huggingface_hub")
    snapshot = keep(tmp_path, "owner/kept", ONE, "refs/pr/3")
    held = library.try_to_load_from_cache(
        "owner/kept", "config.json", cache_dir=tmp_path, revision="refs/pr/3"
    )
    assert held == str(snapshot / "config.json")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert hub_checkpoint("owner/kept@refs/pr/3").title == "kept"


@pytest.mark.parametrize("revision", ["v1", commit("owner/kept")])
def test_revisions_of_the_cache(home: Path, revision: str) -> None:
    """By the name that it was downloaded under, or the commit; another is not guessed."""
    keep(home / "hub", "owner/kept", ONE, "v1")
    assert find_model(ModelConfig(name="owner/kept", revision=revision)).title == "kept"
    for other in ("owner/kept", "owner/kept@v2", f"owner/kept@{commit('another')}"):
        with pytest.raises(HubError, match=r"^HF_HUB_OFFLINE=1 keeps off the hub, and .*no config"):
            hub_checkpoint(other)


def test_the_cache_comes_before_the_hub(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has is not asked for, what it has not is."""
    monkeypatch.delenv("HF_HUB_OFFLINE")
    keep(home / "hub", "owner/kept", ONE)
    with hub({"owner/kept": MANY, "owner/one": ONE}) as there:
        monkeypatch.setenv("HF_ENDPOINT", there.address)
        assert len(hub_checkpoint("owner/kept", headers=True).tensors) == 1
        assert not there.asked
        assert hub_checkpoint("owner/one").source == "from the hub"


def test_a_part_of_a_checkpoint_counts_by_its_config(home: Path) -> None:
    """Only config.json was downloaded, or some of the weights: no stored bytes, no error."""
    some = {k: v for k, v in MANY.items() if k != "model-05.safetensors"}
    keep(home / "hub", "owner/some", some)
    keep(home / "hub", "owner/config", {"config.json": ONE["config.json"]})
    for name in ("owner/some", "owner/config"):
        assert hub_checkpoint(name, headers=True).tensors == ()


def test_a_gguf_file_of_the_cache(home: Path) -> None:
    """By its path in the repository."""
    keep(home / "hub", "owner/gguf", GGUF)
    assert hub_checkpoint("owner/gguf/tiny-Q8_0.gguf").title == "Tiny"


def test_a_service_reads_no_cache(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it tell what one has."""
    keep(home / "hub", "owner/kept", ONE)
    allow(SERVICE)
    for name in ("owner/kept", "owner/other"):
        with pytest.raises(HubError, match=r"^HF_HUB_OFFLINE=1 keeps off the hub$"):
            hub_checkpoint(name)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    with hub({}) as there:
        monkeypatch.setenv("HF_ENDPOINT", there.address)
        with pytest.raises(InputError, match="it is not there, or not open"):
            find_model(ModelConfig(name="owner/kept"))


def test_a_ref_does_not_lead_out_of_the_cache(home: Path) -> None:
    """Whatever is written in it."""
    keep(home / "hub", "owner/kept", ONE)
    (home / "hub" / "models--owner--kept" / "refs" / "main").write_text("../..")
    (home / "hub" / "models--owner--kept" / "config.json").write_bytes(ONE["config.json"])
    with pytest.raises(HubError, match=r"no config\.json of it"):
        hub_checkpoint("owner/kept")


def test_the_cache_is_left_as_it_is(home: Path) -> None:
    """Nothing is made, nothing is written."""
    keep(home / "hub", "owner/kept", MANY)
    before = sorted((str(p), p.lstat().st_mtime_ns) for p in home.rglob("*"))
    hub_checkpoint("owner/kept", headers=True)
    with pytest.raises(HubError):
        hub_checkpoint("owner/other")
    assert sorted((str(p), p.lstat().st_mtime_ns) for p in home.rglob("*")) == before


@pytest.mark.parametrize(
    ("value", "off"),
    [
        ("1", True),
        ("true", True),
        ("YES", True),
        ("On", True),
        ("0", False),
        ("no", False),
        ("", False),
    ],
)
def test_the_spellings_of_offline(value: str, off: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of huggingface_hub, whose older variable counts where this one is not set."""
    monkeypatch.setenv("HF_HUB_OFFLINE", value)
    assert bool(environment.offline()) is off
    monkeypatch.setenv("HF_HUB_OFFLINE", "")
    monkeypatch.setenv("TRANSFORMERS_OFFLINE", value)
    assert bool(environment.offline()) is off


def test_which_token_is_taken(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HF_TOKEN, the older variable, the file that a login wrote; none where that is wanted."""
    assert environment.token().value == ""
    home.mkdir()
    (home / "token").write_text("hf_file\n")
    assert environment.token() == environment.Token("hf_file", "the token's file")
    other = home / "other"
    other.write_text("hf_other")
    monkeypatch.setenv("HF_TOKEN_PATH", str(other))
    assert environment.token().value == "hf_other"
    monkeypatch.setenv("HUGGING_FACE_HUB_TOKEN", "hf_old")
    assert environment.token().value == "hf_old"
    monkeypatch.setenv("HF_TOKEN", " hf_new\n")
    assert environment.token() == environment.Token("hf_new", "HF_TOKEN")
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
    assert environment.token().value == ""


def test_a_service_reads_no_token_s_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its operator sets a variable."""
    home.mkdir()
    (home / "token").write_text("hf_file")
    allow(SERVICE)
    assert environment.token().value == ""
    monkeypatch.setenv("HF_TOKEN", "hf_set")
    assert environment.token().value == "hf_set"


def test_a_token_s_file_opens_a_private_model(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a login nothing has to be set; a file that no header holds is a sentence."""
    monkeypatch.delenv("HF_HUB_OFFLINE")
    home.mkdir()
    (home / "token").write_text("hf_file")
    with hub({"owner/own": ONE}, "hf_file", private=["owner/own"]) as there:
        monkeypatch.setenv("HF_ENDPOINT", there.address)
        assert hub_checkpoint("owner/own").title == "own"
        (home / "token").write_text("hf\x00file")
        with pytest.raises(HubError, match=r"^the token's file has a character") as caught:
            hub_checkpoint("owner/other")
        assert "hf\x00" not in str(caught.value)
    os.chmod(home / "token", 0o600)
