"""The archive in an S3-compatible store: over TLS, in parts, believed only when it is read back."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from django.conf import LazySettings

from billing.models import Fold
from inference.archive import buckets
from inference.archive.buckets import BucketStore
from inference.archive.plans import BucketPlace, parse_place
from inference.archive.restoring import restore
from inference.archive.retention import archive_due
from inference.archive.stores import StoreFailed, open_store
from tests.support.database import archive, snapshots
from tests.support.database.archive import HOUR
from tests.support.factories import Tenant
from tests.support.upstreams.buckets import failing, forgetting, serve_buckets
from tests.support.upstreams.tls import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch, authority: Authority) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test-secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_CA_BUNDLE", authority.bundle)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")


@pytest.fixture
def endpoint(request: pytest.FixtureRequest, authority: Authority) -> Iterator[str]:
    with serve_buckets(authority, getattr(request, "param", None)) as address:
        yield address


@pytest.fixture
def place(endpoint: str) -> BucketPlace:
    """A new bucket: the server keeps its buckets for as long as the process lives."""
    bucket = f"archive-{uuid.uuid4().hex}"
    client: Any = botocore.session.get_session().create_client("s3", endpoint_url=endpoint)
    client.create_bucket(Bucket=bucket)
    made = parse_place(f"s3://{bucket}/old/rows?endpoint={endpoint}&region=us-east-1")
    assert isinstance(made, BucketPlace)
    return made


@pytest.fixture
def due(db: None, tenant: Tenant, settings: LazySettings, place: BucketPlace) -> Tenant:
    """A month that may leave for the bucket."""
    archive.let_leave(settings, place)
    archive.fill(tenant, archive.months()[0] + HOUR)
    archive.sum_all()
    return tenant


def test_a_month_goes_to_a_bucket_and_comes_back(due: Tenant, place: BucketPlace) -> None:
    assert archive_due() == 2
    assert archive.verify() == []
    fold = Fold.objects.get(number=1)
    store = open_store(place)
    assert store.has(fold.files[0]["name"])
    assert store.locate("x") == f"s3://{place.bucket}/old/rows/x"
    assert sum(restore(fold, store).values()) == sum(file["rows"] for file in fold.files) > 0


def test_a_large_file_is_sent_in_parts(place: BucketPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    # Of all parts but the last one the protocol demands five MiB.
    monkeypatch.setattr(buckets, "PART_BYTES", 5 * 1024 * 1024)
    store = BucketStore(place)
    chunks = [bytes([number]) * 1_000_000 for number in range(12)]
    store.write("a/b", iter(chunks))
    with store.open("a/b") as file:
        assert file.read() == b"".join(chunks)
    assert [store.has("a/b"), store.has("a/c")] == [True, False]
    with pytest.raises(StoreFailed, match="a/c"), store.open("a/c"):
        pass


def test_a_broken_off_file_is_not_there(place: BucketPlace) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"1"
        raise RuntimeError("the database went away")

    store = BucketStore(place)
    with pytest.raises(RuntimeError):
        store.write("a", chunks())
    assert not store.has("a")


def test_parts_of_dead_writers_are_removed(
    place: BucketPlace, settings: LazySettings, monkeypatch: pytest.MonkeyPatch, db: None
) -> None:
    """The server of the tests names the same day of 2010 for every upload."""
    client: Any = botocore.session.get_session().create_client("s3", endpoint_url=place.endpoint)
    own = f"inference_generation/0_2026-03-31-{'a1' * 8}.parquet"
    foreign = {f"another/{own}", "old/rows/backups/of-another.parquet", f"old/rows/{own}.tmp"}
    for key in (f"old/rows/{own}", *foreign):
        client.create_multipart_upload(Bucket=place.bucket, Key=key)

    def list_uploads() -> set[str]:
        found = client.list_multipart_uploads(Bucket=place.bucket)["Uploads"]
        return {upload["Key"] for upload in found}

    settings.RETENTION_DAYS, settings.ARCHIVE_PLACE = {"generations": 36_000}, place
    monkeypatch.setattr(buckets, "_ABANDONED", timedelta(days=100_000))
    assert archive_due() == 0
    assert list_uploads() == {f"old/rows/{own}", *foreign}
    monkeypatch.setattr(buckets, "_ABANDONED", timedelta(days=1))
    assert archive_due() == 0
    assert list_uploads() == foreign


def test_a_store_that_cannot_be_cleared_keeps_nothing_else_back(
    due: Tenant, caplog: pytest.LogCaptureFixture, settings: LazySettings
) -> None:
    endpoint = settings.ARCHIVE_PLACE.endpoint
    settings.ARCHIVE_PLACE = BucketPlace("no-such-bucket", "", endpoint, None)
    assert archive_due() == 0
    assert "unfinished files of the archive stay: s3://no-such-bucket/" in caplog.text
    assert "were not archived and stay" in caplog.text


@pytest.mark.parametrize(
    ("endpoint", "message"),
    [(forgetting, "was written, but"), (failing, "s3://")],
    indirect=["endpoint"],
)
def test_nothing_is_dropped_for_a_store_that_stores_nothing(
    due: Tenant, caplog: pytest.LogCaptureFixture, message: str
) -> None:
    before, names = snapshots.everything(), archive.partition_names()
    assert archive_due() == 0
    assert "were not archived and stay" in caplog.text
    assert message in caplog.text
    assert (snapshots.everything(), archive.partition_names()) == (before, names)


def test_a_stranger_with_another_certificate_gets_nothing(
    due: Tenant, tmp_path: Path, settings: LazySettings, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "stranger").mkdir()
    before = archive.partition_names()
    with serve_buckets(Authority(tmp_path / "stranger")) as address:
        settings.ARCHIVE_PLACE = BucketPlace("archive", "", address, "us-east-1")
        assert archive_due() == 0
    assert "SSL" in caplog.text
    assert archive.partition_names() == before
