"""Addresses of configs and of the hub's own pages, which a command line reads and a service not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpu_mem_calculator.catalog.hub.access import Access, allow
from gpu_mem_calculator.catalog.hub.names import page
from gpu_mem_calculator.runfile.config import ModelConfig
from gpu_mem_calculator.runfile.find_model.model_source import ResolvedModel, find_model
from gpu_mem_calculator.runfile.text.errors import InputError
from tests.catalog.hub.models import CONFIG_BYTES, GGUF, ONE
from tests.catalog.hub.servers import Asked, Hub, hub, serving

TOKEN = "hf_not_to_be_told"


@pytest.fixture
def host() -> Iterator[tuple[str, Asked]]:
    """A user's own server."""
    table: dict[str, bytes | str] = {
        "/mine/config.json": CONFIG_BYTES,
        "/mine/config.json?signature=x": CONFIG_BYTES,
        "/page.json": b"<html>",
        "/moved.json": "/mine/config.json",
        "/tiny.gguf": GGUF["tiny-Q8_0.gguf"],
        "/away.json": "file:///etc/hostname",
    }
    with serving(table) as running:
        yield running


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub, which HF_ENDPOINT names."""
    with hub({"owner/one": ONE, "owner/one@v1": ONE, "owner/gguf": GGUF}) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.address)
        monkeypatch.delenv("HF_HUB_OFFLINE")
        yield running


def read_model(name: str) -> ResolvedModel:
    """A model by an address."""
    return find_model(ModelConfig(name=name))


def refusal(name: str) -> str:
    """What is said of one that is not read."""
    with pytest.raises(InputError) as caught:
        read_model(name)
    return str(caught.value)


def test_a_config_behind_an_address(
    host: tuple[str, Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its query, sent on where it was moved to; the hub's token stays at home."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    for path in ("/mine/config.json", "/mine/config.json?signature=x", "/moved.json"):
        model = read_model(f"{host[0]}{path}")
        assert (model.arch.vocab, model.source, model.address) == (256, "from an address", "MODEL")
    assert {token for _, token in host[1]} == {None}
    assert any(path.endswith("?signature=x") for path, _ in host[1])


def test_a_gguf_file_behind_an_address(host: tuple[str, Asked]) -> None:
    """Its header, by range."""
    assert read_model(f"{host[0]}/tiny.gguf").title == "Tiny"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/gone.json", "there is no such file"),
        ("/page.json", "a web page and not JSON"),
        ("/away.json", "its address begins with 'file'; https is read"),
        ("/mine", "an address ends in .json or .gguf"),
        ("/", "an address ends in .json or .gguf"),
        ("/mine/config.json?signature=hidden word", "has no spaces or backslashes"),
    ],
)
def test_what_is_said_where_an_address_is_not_read(
    host: tuple[str, Asked], path: str, message: str
) -> None:
    """Each reason in a sentence, without what an address may be signed with."""
    heard = refusal(f"{host[0]}{path}")
    assert message in heard
    assert "hidden" not in heard


@pytest.mark.parametrize(
    ("address", "message"),
    [
        (
            "https://name:word@host.example/config.json",
            "a name and a password in an address are not",
        ),
        ("https:///config.json", "it has no host"),
        ("https://host:x/config.json", "check its host and port"),
        ("https://[::1/config.json", "check its host and port"),
        ("http://127.0.0.1:9/config.json?key=word", "cannot be reached, "),
        ("http://nowhere.invalid/config.json?key=word", "DNS lookup failed"),
    ],
)
def test_addresses_that_cannot_be(address: str, message: str) -> None:
    """Passwords are not repeated."""
    heard = refusal(address)
    assert message in heard
    assert "word@" not in heard
    assert "key=" not in heard


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/owner/model", "owner/model"),
        ("/owner/model/", "owner/model"),
        ("/owner/model?library=x#y", "owner/model"),
        ("/owner/model/tree/main", "owner/model"),
        ("/owner/model/tree/v1.0", "owner/model@v1.0"),
        ("/owner/model/tree/refs%2Fpr%2F1", "owner/model@refs/pr/1"),
        ("/owner/model/blob/main/config.json", "owner/model"),
        ("/owner/model/resolve/v1/config.json?download=true", "owner/model@v1"),
        ("/owner/model/raw/main/config.json", "owner/model"),
        ("/owner/model/blob/main/q/x.gguf", "owner/model/q/x.gguf"),
        ("/owner/model/resolve/v1/x.gguf", "owner/model/x.gguf@v1"),
        ("/datasets/owner/data", None),
        ("/owner", None),
        ("/", None),
        ("/owner/model/commits/x", None),
        ("/owner/model/tree", None),
    ],
)
@pytest.mark.parametrize(
    "host", ["https://huggingface.co", "https://hf.co", "HTTPS://HuggingFace.co"]
)
def test_the_hub_s_own_pages_are_names(host: str, path: str, name: str | None) -> None:
    """Whatever page of a model the address is copied from."""
    assert page(f"{host}{path}") == name


def test_other_hosts_pages_are_not_the_hub_s() -> None:
    """However they look."""
    for host in (
        "https://huggingface.co.evil.example",
        "http://huggingface.co",
        "https://evil/hf.co",
    ):
        assert page(f"{host}/owner/model") is None


def test_a_page_is_read_as_its_model(there: Hub) -> None:
    """At its revision; pages of the host that HF_ENDPOINT names, too."""
    assert read_model("https://huggingface.co/owner/one/tree/v1").source == "from the hub"
    assert there.asked[0][0] == "/owner/one/resolve/v1/config.json"
    assert read_model(f"{there.address}/owner/gguf/blob/main/tiny-Q8_0.gguf").title == "Tiny"
    assert read_model("https://huggingface.co/meta-llama/Llama-2-7b-hf").source == "a preset"
    assert "config.json and GGUF files are read" in refusal(
        f"{there.address}/owner/one/blob/main/a.md"
    )
    assert "it is not a model's page" in refusal(f"{there.address}/owner/one/tree/%2e%2e")


@pytest.mark.parametrize("path", ["/mine/config.json", "/tiny.gguf"])
def test_a_service_reads_no_address(host: tuple[str, Asked], path: str) -> None:
    """Nor the hub's pages, whose models have names."""
    allow(Access(files=False, hosts=frozenset({"127.0.0.1", "huggingface.co"})))
    assert "this service opens no files or addresses" in refusal(f"{host[0]}{path}")
    assert "opens no files or addresses" in refusal("https://huggingface.co/owner/model")
    assert not host[1]
