"""A bucket's client: tokens, refusals and panics, without a server that answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

from gpu_mem_calculator.catalog.hub.access import Access
from gpu_mem_calculator.catalog.hub.bounds import Allowance
from gpu_mem_calculator.catalog.hub.bucket import Bucket as Folder
from gpu_mem_calculator.cli.main import main
from gpu_mem_calculator.runfile.config import ModelConfig
from gpu_mem_calculator.runfile.find_model.model_source import find_model
from tests.catalog.hub.buckets import KEY, SECRET

from .test_buckets import refusal


@pytest.mark.parametrize("code", ["PermanentRedirect", "NoSuchBucket", "InvalidAccessKeyId"])
def test_where_no_address_is_given_it_may_be_missing(code: str) -> None:
    """AWS answers that it knows nothing of the bucket: it may be that it was not meant."""
    asked = Folder("some-bucket", "", Allowance(Access()))
    message = str(
        asked._sentence(OSError(f"<Error><Code>{code}</Code></Error>"), "s3://some-bucket/x")
    )
    assert message.endswith("AWS was asked: set AWS_ENDPOINT_URL_S3 for a storage of your own")


def test_nobody_waits_for_a_cloud_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without keys and an endpoint AWS is asked once and for nothing but the file: no metadata
    address, which would take minutes.
    """
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    began = time.monotonic()
    message = refusal("s3://some-bucket/model")
    assert time.monotonic() - began < 15
    assert "the storage cannot be reached; AWS was asked: set AWS_ENDPOINT_URL_S3" in message


def test_a_token_file_with_the_end_of_a_line_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """obstore panics on such a header; the command names the variable and returns 2."""
    (tmp_path / "word").write_text("hunter2\n")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1:9/keys")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "word"))
    run = tmp_path / "run.json"
    run.write_text('{"model": {"name": "s3://default-bucket/model"}}')
    assert main(["calculate", "--config", str(run)]) == 2
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert "the file of AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE has a character that" in printed.err
    assert "hunter2" not in printed.err


@pytest.mark.parametrize("error", [PermissionDeniedError, UnauthenticatedError])
def test_a_refusal_is_known_by_its_class(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever obstore writes into it."""

    def store(*_: object) -> None:
        raise error("in words of another version")

    monkeypatch.setattr(Folder, "store", store)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    assert "the keys may not read it" in refusal("s3://some-bucket/x.json")


def test_a_panic_of_obstore_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rust's panics are no Exception; an interrupt by the user stays one."""

    class PanicException(BaseException):
        """Named as pyo3 names it."""

    def failing(error: type[BaseException]) -> Callable[..., None]:
        def store(*_: object) -> None:
            raise error

        return store

    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    monkeypatch.setattr(Folder, "store", failing(PanicException))
    assert "obstore cannot ask the storage at http://127.0.0.1:9" in refusal(
        "s3://some-bucket/x.json"
    )
    assert "obstore cannot ask the storage" in refusal("s3://some-bucket/x.gguf")
    monkeypatch.setattr(Folder, "store", failing(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        find_model(ModelConfig(name="s3://some-bucket/y.json"))


def test_a_password_in_the_storages_address_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host stays in the sentence, to find the mistake by."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://name:hunter2@127.0.0.1:9")
    monkeypatch.setattr("gpu_mem_calculator.catalog.hub.bucket.TRIES", 0)
    heard = refusal("s3://default-bucket/config.json")
    assert "the storage at http://127.0.0.1:9 cannot be reached" in heard
    assert "hunter2" not in heard
