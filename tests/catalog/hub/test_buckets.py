"""Models in a bucket of a real S3 server: keys, ranges, and what each refusal says."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_mem_calculator.catalog.hub.access import Access, allow
from gpu_mem_calculator.estimates.calculator import full_estimate
from gpu_mem_calculator.runfile.config import ModelConfig
from gpu_mem_calculator.runfile.find_model.model_source import ResolvedModel, find_model
from gpu_mem_calculator.runfile.text.errors import InputError
from tests.catalog.hub.buckets import KEY, SECRET, Bucket, bucket
from tests.catalog.hub.models import GGUF, MANY, ONE

FILES = {
    **{f"models/owner/many/{file}": data for file, data in MANY.items()},
    **{f"with space/{file}": data for file, data in ONE.items()},
    "models/tiny.gguf": GGUF["tiny-Q8_0.gguf"],
    "models/mine.json": ONE["config.json"],
    "models/page/config.json": b"<html>",
    "models/list/config.json": b"[]",
    "config.json": ONE["config.json"],
}


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """A bucket that its keys open, as a pod's environment has them."""
    with bucket("default-bucket", FILES) as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        yield running


def read_model(path: str, headers: bool = False) -> ResolvedModel:
    """A model in the bucket."""
    return find_model(ModelConfig(name=f"s3://default-bucket/{path}"), headers)


def refusal(name: str) -> str:
    """What is said of a model that is not read, in one line, without a key."""
    with pytest.raises(InputError) as caught:
        find_model(ModelConfig(name=name))
    message = str(caught.value)
    assert KEY not in message
    assert SECRET not in message
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("path", "title"),
    [
        ("models/owner/many", "many"),
        ("models/owner/many/", "many"),
        ("models/tiny.gguf", "Tiny"),
        ("models/owner/many/config.json", "many"),
        ("models/mine.json", "mine"),
        ("models/owner/many/model-00.safetensors", "many"),
        ("with space", "with space"),
        ("", "default-bucket"),
        ("config.json", "config"),
    ],
)
def test_what_a_path_means(there: Bucket, path: str, title: str) -> None:
    """A folder, a config or a GGUF file; its config is all that is read of it."""
    model = read_model(path)
    assert (model.title, model.arch.vocab, model.source) == (title, 256, "from a bucket")
    assert len(there.asked) == 1
    assert {key for *_, key in there.asked} == {KEY}


def test_a_server_s_estimate_reads_headers_by_range(there: Bucket) -> None:
    """Two ranges of each file; training reads none."""
    name = "s3://default-bucket/models/owner/many"
    full_estimate({"model": {"name": name}, "training": {"seq_len": 128}}, replay=False)
    assert [path for path, *_ in there.asked] == ["/default-bucket/models/owner/many/config.json"]
    served = full_estimate({"model": {"name": name}, "inference": {}}, replay=False)
    stored = served.resolved.model.stored
    assert [one[0] for one in stored] == [f"model.layers.{i}.weight" for i in range(12)]
    assert served.resolved.model.address == name
    ranges = [span for path, span, _ in there.asked if path.endswith(".safetensors")]
    assert len(ranges) == 24
    assert set(ranges[:8]) >= {"bytes=0-7"}


NOT_READ = {
    "s3://default-bucket/gone": "gone/config.json: there is no such object; give a folder that",
    "s3://default-bucket/gone.json": "gone.json: there is no such object",
    "s3://default-bucket/gone.gguf": "gone.gguf: there is no such object",
    "s3://no-such-bucket/x": "there is no such bucket",
    "s3://default-bucket/models/page": "a web page and not JSON",
    "s3://default-bucket/models/list": "not a JSON object",
    "s3://default-bucket/a/../b": "no dots alone",
    "s3://default-bucket/a//b": "no empty parts",
    "s3://x/y": "that is not a bucket's name; it is s3://BUCKET/PATH",
    "s3://key:word@bucket-name/y": "that is not a bucket's name",
    "s3://": "that is not a bucket's name",
}


@pytest.mark.parametrize("name", NOT_READ)
def test_what_is_said_where_a_model_is_not_read(there: Bucket, name: str) -> None:
    """Each reason in a sentence."""
    message = refusal(name)
    assert NOT_READ[name] in message
    assert "key:word" not in message


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"AWS_SECRET_ACCESS_KEY": "wrong"},
            "the secret of AWS_SECRET_ACCESS_KEY is not that key's",
        ),
        ({"AWS_ACCESS_KEY_ID": "wrong"}, "the key of AWS_ACCESS_KEY_ID is not known there"),
        ({"AWS_ACCESS_KEY_ID": ""}, "AWS_SECRET_ACCESS_KEY is set and AWS_ACCESS_KEY_ID is not"),
        (
            {"AWS_SECRET_ACCESS_KEY": ""},
            "AWS_ACCESS_KEY_ID is set and AWS_SECRET_ACCESS_KEY is not",
        ),
        (
            {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""},
            "it is not open to all, and there are no keys; set AWS_ACCESS_KEY_ID and AWS_SECRET_",
        ),
        ({"AWS_REGION": "eu-west-1"}, "the bucket is in another region; set AWS_REGION"),
        ({"AWS_ENDPOINT_URL_S3": "minio:9000"}, "begins with http:// or https://"),
        (
            {"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9"},
            "the storage at http://127.0.0.1:9 cannot be reached",
        ),
        (
            {"AWS_ACCESS_KEY_ID": "A\nB"},
            "AWS_ACCESS_KEY_ID has a character that no request may have",
        ),
        (
            {"AWS_SESSION_TOKEN": "a\nb"},
            "AWS_SESSION_TOKEN has a character that no request may have",
        ),
        ({"AWS_REGION": "eu\nwest"}, "AWS_REGION has a character that no request may have"),
        (
            {"AWS_ENDPOINT_URL_S3": "http://a b"},
            "AWS_ENDPOINT_URL_S3 has a character that no request",
        ),
        (
            {
                "AWS_ACCESS_KEY_ID": "",
                "AWS_SECRET_ACCESS_KEY": "",
                "AWS_METADATA_ENDPOINT": "http://a\n",
            },
            "AWS_METADATA_ENDPOINT begins or ends with white space; set it without",
        ),
    ],
)
def test_what_is_said_of_keys_and_places(
    there: Bucket, changed: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which variable it is; never what is in it."""
    for name, value in changed.items():
        monkeypatch.setenv(name, value)
    assert message in refusal("s3://default-bucket/models/owner/many")


def test_keys_with_the_end_of_a_line(there: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """White space around keys, address and region is ignored: secrets made from files have it."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", f"{KEY}\n")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", f"{SECRET}\n")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"{there.endpoint}/\n")
    monkeypatch.setenv("AWS_REGION", "us-east-1\n")
    assert read_model("models/mine.json").arch.vocab == 256


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"])
def test_an_open_bucket_needs_no_keys(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are then not signed; the endpoint has several names."""
    with bucket("open-bucket", FILES, public=True) as there:
        monkeypatch.setenv(variable, there.endpoint)
        model = find_model(ModelConfig(name="s3://open-bucket/models/owner/many"), headers=True)
        assert len(model.stored) == 12
        assert {key for *_, key in there.asked} == {None}


def test_a_region_that_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """AWS_REGION is what is signed for."""
    with bucket("far-bucket", FILES, region="eu-west-1") as there:
        for name, value in there.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_REGION", "eu-west-1")
        assert find_model(ModelConfig(name="s3://far-bucket/config.json")).arch.vocab == 256


def test_a_busy_storage_is_asked_again(there: Bucket) -> None:
    """Three times; then it is a sentence."""
    there.troubles += ["SlowDown"] * 3
    assert read_model("models/mine.json").arch.vocab == 256
    there.troubles += ["SlowDown"] * 4
    assert "too many requests to the storage" in refusal("s3://default-bucket/models/owner/many")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("PermanentRedirect", "the bucket is in another region; set AWS_REGION"),
        ("ExpiredToken", "the token of AWS_SESSION_TOKEN is no longer good"),
        ("AccessDenied", "it is not there, or the keys may not read it"),
        ("MethodNotAllowed", "answers HTTP 405"),
    ],
)
def test_other_refusals_of_a_storage(there: Bucket, code: str, message: str) -> None:
    """By the code that S3 gives."""
    there.troubles.append(code)
    assert message in refusal("s3://default-bucket/models/mine.json")


def test_an_answer_that_is_cut_is_asked_for_again(there: Bucket) -> None:
    """A length that is not kept is noticed."""
    there.cuts = 2
    assert read_model("models/mine.json").arch.vocab == 256
    assert len(there.asked) >= 3


def test_bytes_are_bounded(there: Bucket) -> None:
    """As they are of the hub."""
    allow(Access(size=100))
    assert "larger than 100 bytes" in refusal("s3://default-bucket/models/mine.json")
    allow(Access(seconds=0.0))
    assert "longer than 0 seconds" in refusal("s3://default-bucket/models/mine.json")


def test_a_service_reads_no_bucket(there: Bucket) -> None:
    """Not even where its operator has keys."""
    allow(Access(files=False, hosts=frozenset({"127.0.0.1"})))
    assert "this service opens no files or addresses" in refusal(
        "s3://default-bucket/models/mine.json"
    )
    assert not there.asked


def test_without_obstore_the_line_to_type_is_said(
    there: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base install has the hub, and no buckets."""
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    message = refusal("s3://default-bucket/models/mine.json")
    assert message.endswith('one more package: pip install -e ".[hub]" in the clone of the project')


def test_keys_that_are_to_be_had_elsewhere(
    there: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cloud's own way to keys is tried where the environment names it: here a pod's address."""
    from tests.catalog.hub.servers import serving

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    keys = (
        f'{{"AccessKeyId": "{KEY}", "SecretAccessKey": "{SECRET}", "Token": "t",'
        '"Expiration": "2099-01-01T00:00:00Z"}'
    ).encode()
    (tmp_path / "word").write_text("let me in")
    with serving({"/keys": keys}) as (address, asked):
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{address}/keys")
        monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "word"))
        assert read_model("models/mine.json").arch.vocab == 256
    assert asked == [("/keys", "let me in")]
