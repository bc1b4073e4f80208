"""The Jobs' pods, run as OpenShift and AWS have them: a user of the cluster's choice, a role."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.catalog.hub.buckets import KEY, SECRET, bucket
from tests.catalog.hub.servers import serving
from tests.published.test_chart_table import PRINTED

from .cases import CASES, Case, documents
from .pods import BEST, made, run
from .test_pods import CONFIG, GENERIC, ended, keys, log_end, one_sentence


@pytest.mark.parametrize("where", [BEST])
def test_a_user_that_the_cluster_chooses(where: str) -> None:
    """OpenShift's: a high number that no file of the image knows, in group 0."""
    with made(documents("override-openshift"), {}) as pod:
        assert pod.user == (1_000_650_000, 0)
        outcome = run(pod)
    assert (outcome.code, log_end(outcome.log)) == (0, GENERIC)
    assert outcome.written == []


def test_a_bucket_of_aws_without_a_network() -> None:
    """Without bucketStorageHost AWS is asked, and the sentence says so."""
    nowhere = [{"name": "HTTPS_PROXY", "value": "http://127.0.0.1:9"}]
    values = {"modelPath": "s3://bucket/a/model", "bucketStorageHost": "", "extraEnv": nowhere}
    outcome = ended(Case(values), keys())
    one_sentence(outcome)
    assert "AWS was asked" in outcome.log


def test_keys_of_a_role() -> None:
    """Without a Secret, the keys come from the address that the account's role names."""
    role = {"AccessKeyId": KEY, "SecretAccessKey": SECRET, "Token": "t"}
    answer = json.dumps({**role, "Expiration": "2099-01-01T00:00:00Z"}).encode()
    with (
        bucket("bucket", {"a/model/config.json": CONFIG}) as there,
        serving({"/keys": answer}) as (address, asked),
    ):
        brought = {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{address}/keys",
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "/dev/null",
        }
        values = {
            "modelPath": "s3://bucket/a/model",
            "bucketStorageHost": there.endpoint,
            "bucketRegion": "us-east-1",
            "extraEnv": [{"name": name, "value": value} for name, value in brought.items()],
        }
        outcome = ended(replace(CASES["override-aws"], values=values))
    assert (outcome.code, log_end(outcome.log)) == (0, PRINTED), outcome.log
    assert [path for path, _ in asked] == ["/keys"]
    assert {key for *_, key in there.asked} == {KEY}
