"""A hub that speaks as the real one does: revisions, tokens, gates, and what each refusal says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpu_mem_calculator.catalog.hub.access import Access, allow
from gpu_mem_calculator.catalog.hub.sources import hub_checkpoint
from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.runfile.config import ModelConfig
from gpu_mem_calculator.runfile.find_model.model_source import ResolvedModel, find_model
from gpu_mem_calculator.runfile.resolve.resolve import resolve
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.read import read
from tests.catalog.hub.models import GGUF, MANY, ONE, OWN_CODE
from tests.catalog.hub.servers import Hub, commit, hub
from tests.catalog.hub.test_checkpoint import CONFIG

TOKEN = "hf_not_to_be_told"
OTHER = {"config.json": ONE["config.json"].replace(b'"vocab_size": 256', b'"vocab_size": 512')}
MODELS = {
    "owner/one": ONE,
    "owner/one@v1.0": OTHER,
    "owner/one@refs/pr/1": OTHER,
    "owner/many": MANY,
    "owner/gguf": GGUF,
    "owner/private": ONE,
    "owner/gated": ONE,
    "owner/let-in": ONE,
    "owner/own-code": OWN_CODE,
}


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with all of these; nobody has a token yet."""
    with hub(
        MODELS,
        TOKEN,
        ["owner/gated", "owner/let-in"],
        private=["owner/private"],
        members=["owner/let-in"],
    ) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.address)
        monkeypatch.delenv("HF_HUB_OFFLINE")
        yield running


def read_model(name: str, revision: str | None = None) -> ResolvedModel:
    """A model without its headers."""
    return find_model(ModelConfig(name=name, revision=revision))


def refusal(name: str, revision: str | None = None) -> str:
    """What is said of a model that is not read; never a token."""
    with pytest.raises(InputError) as caught:
        read_model(name, revision)
    assert "hf_" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "revision", "vocab"),
    [
        ("owner/one", None, 256),
        ("owner/one@main", None, 256),
        ("owner/one", "main", 256),
        ("owner/one@v1.0", None, 512),
        ("owner/one", "v1.0", 512),
        ("owner/one@v1.0", "v1.0", 512),
        ("owner/one", "refs/pr/1", 512),
        (f"owner/one@{commit('owner/one')}", None, 256),
        ("owner/one", commit("owner/one@v1.0"), 512),
    ],
)
def test_branches_tags_and_commits(there: Hub, name: str, revision: str | None, vocab: int) -> None:
    """In the name or in `revision`; a slash in one does not make a folder."""
    model = read_model(name, revision)
    assert (model.arch.vocab, model.title, model.source) == (vocab, "one", "from the hub")
    assert model.address == "owner/one"  # what a server's command has


@pytest.mark.parametrize("revision", ["", "../x", "a b", "a?b", "a//b", "%2e", "v1@v2", "a\nb"])
def test_what_is_no_revision_is_asked_of_nobody(there: Hub, revision: str) -> None:
    """The name is then none of the hub's."""
    assert "is neither a preset nor a file" in refusal(f"owner/one@{revision}")
    assert not there.asked


def test_training_needs_the_config_alone(there: Hub) -> None:
    """One file, sent on once; a server's estimate adds the headers and asks no config twice."""
    run = {"model": {"name": "owner/many"}, "training": {"seq_len": 128}}
    full_estimate(run, replay=False)
    resolve(read({"model": {"name": "owner/many"}, "inference": {}}).file, headers=False)
    assert [path for path, _ in there.asked if "resolve-cache" not in path] == [
        "/owner/many/resolve/main/config.json"
    ]
    assert not there.cdn_asked
    served = full_estimate({"model": {"name": "owner/many"}, "inference": {}}, replay=False)
    assert len(served.resolved.model.stored) == 12
    assert sum("config.json" in path for path, _ in there.asked) == 2
    assert len(there.cdn_asked) == 24  # two ranges of each file


def test_no_weights_are_fetched(there: Hub) -> None:
    """The bytes that come are those of the config, the index and the headers."""
    held = dict(MODELS["owner/many"])
    there.models = {
        "owner/many": {
            k: v + bytes(10**6) if "safetensors" in k and "index" not in k else v
            for k, v in held.items()
        }
    }
    assert len(hub_checkpoint("owner/many", headers=True).tensors) == 12
    assert there.sent == sum(map(len, held.values()))


def test_the_order_is_the_index_s(there: Hub) -> None:
    """However many are read at once."""
    names = [one.name for one in hub_checkpoint("owner/many", headers=True).tensors]
    assert names == [f"model.layers.{i}.weight" for i in range(12)]


def test_one_broken_file_of_many_is_a_sentence(there: Hub) -> None:
    """It is named, and what was not begun is not asked for."""
    there.models = {"owner/many": {**MANY, "model-03.safetensors": b"<html>no</html>" * 9}}
    with pytest.raises(InputError, match=r"model-03.safetensors: not a safetensors file"):
        find_model(ModelConfig(name="owner/many"), headers=True)


def test_the_token_opens_what_is_its_owners(there: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A private model, and a gated one whose terms were accepted; the CDN never sees it."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    for name in ("owner/private", "owner/let-in"):
        assert len(hub_checkpoint(name, headers=True).tensors) == 1
    assert {token for _, token in there.asked} == {f"Bearer {TOKEN}"}
    assert {token for _, token in there.cdn_asked} == {None}


NOT_READ = {
    ("owner/gated", None): "it is gated: accept its terms on its page, and set HF_TOKEN",
    ("owner/gated", TOKEN): "it is gated, and the account of HF_TOKEN has no access",
    ("owner/private", None): "there is no such model, or it is private: check the name, or set HF_",
    ("owner/gone", TOKEN): "there is no such model, or the account of HF_TOKEN may not read it",
    ("owner/one", "hf_wrong"): "the hub does not take the token of HF_TOKEN",
    ("owner/one@v2", None): "it has no such branch, tag or commit",
    ("owner/gguf", None): "the repository has no config.json; give one of its GGUF files as owner/",
    ("owner/gguf/gone.gguf", None): "there is no such file",
}


@pytest.mark.parametrize(("name", "token"), NOT_READ)
def test_what_is_said_where_a_model_is_not_read(
    there: Hub, name: str, token: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reason has its sentence, and nothing is asked twice for it."""
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    message = refusal(name)
    assert NOT_READ[name, token].replace("set HF_", "set ") in message.replace("set HF_", "set ")
    assert len(there.asked) == 1


@pytest.mark.parametrize(("name", "token"), NOT_READ)
def test_a_service_tells_none_of_these_apart(
    there: Hub, name: str, token: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not there, private, gated: one sentence, without an address."""
    monkeypatch.setenv("HF_TOKEN", token or "")
    allow(Access(files=False, hosts=frozenset({"127.0.0.1"})))
    message = refusal(name)
    if name.endswith(".gguf"):
        assert "opens no files" in message
    else:
        assert "it is not there, or not open to this service; paste its config.json" in message
    assert "127.0.0.1" not in message


def test_a_gguf_file_of_a_repository(there: Hub) -> None:
    """By its path in it, at a revision where one is named."""
    assert read_model("owner/gguf/tiny-Q8_0.gguf").title == "Tiny"
    assert "it has no such branch" in refusal("owner/gguf/tiny-Q8_0.gguf@v9")


def test_code_of_a_repository_is_never_run(there: Hub) -> None:
    """It is not even fetched; the sentence says what can be done."""
    message = refusal("owner/own-code")
    assert "'mystery' is not a known family: the repository brings code of its own" in message
    assert "which is never run here; use gpu-mem-calc trace --trust-remote-code" in message
    assert "plain numbers" in message
    assert not any(path.endswith(".py") for path, _ in there.asked)


def test_a_revision_is_looked_up_even_of_a_preset(there: Hub) -> None:
    """The preset is one state of it: another is looked up, never guessed."""
    assert read_model("meta-llama/Llama-2-7b-hf").source == "a preset"
    assert "there is no such model" in refusal("meta-llama/Llama-2-7b-hf", "v1")


def test_a_server_is_not_told_the_revision(there: Hub) -> None:
    """Its command line has another option for it with each; the report says so."""
    run = {
        "model": {"name": "owner/one@v1.0"},
        "inference": {"engine": "vllm"},
        "hardware": {"gpu": "h200"},
    }
    estimate = full_estimate(run, replay=False)
    assert any("leaves the revision out" in one for one in estimate.resolved.warnings)
    run["model"] = {"name": "owner/one"}
    estimate = full_estimate(run, replay=False)
    assert not any("revision" in one for one in estimate.resolved.warnings)


def test_numbers_beside_a_name_still_win(there: Hub) -> None:
    """A run file's own numbers over those of the config."""
    model = find_model(ModelConfig(name="owner/one@v1.0", num_layers=1))
    assert (len(model.arch.layers), model.arch.vocab) == (1, 512)
    assert hub_checkpoint("owner/one").config == CONFIG
