"""Keeps files of the archive in an S3-compatible bucket; the extra ``s3`` installs botocore."""

from __future__ import annotations

import contextlib
import logging
import re
import tempfile
from collections.abc import Iterable, Iterator
from datetime import timedelta
from functools import cache
from typing import IO, Any, Final

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.session import get_session

from config.clocks.clock import clock
from inference.archive.plans import BucketPlace
from inference.archive.stores import Store, StoreFailed

# The parts of a file that are sent by themselves, of at most 10,000. One is held in memory.
PART_BYTES: Final = 32 * 1024 * 1024
_READ_BYTES: Final = 1024 * 1024
# The longest time for which a writer may be writing one file.
_ABANDONED: Final = timedelta(days=1)
_MISSING: Final = {"404", "NoSuchKey", "NotFound"}
_DAY: Final = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
# Others may share the bucket: only what has the form of this archive's files was begun here.
_NAME: Final = re.compile(rf"[a-z_]+/(0|{_DAY})_{_DAY}-[0-9a-f]{{16}}\.parquet")

logger = logging.getLogger("causeway.retention")


class BucketStore(Store):
    """Objects of a bucket; AWS's usual variables and files have the credentials."""

    def __init__(self, place: BucketPlace) -> None:
        self._place = place

    def has(self, name: str) -> bool:
        try:
            self._client.head_object(**self._key(name))
        except ClientError as exc:
            if exc.response["Error"]["Code"] in _MISSING:
                return False
            raise self._failure(name, exc) from None
        except BotoCoreError as exc:
            raise self._failure(name, exc) from None
        return True

    def write(self, name: str, chunks: Iterable[bytes]) -> None:
        key = self._key(name)
        try:
            upload = self._client.create_multipart_upload(**key)["UploadId"]
            try:
                parts = [
                    {"PartNumber": number, "ETag": self._send(key, upload, number, part)}
                    for number, part in enumerate(_join(chunks), 1)
                ]
                self._client.complete_multipart_upload(
                    **key, UploadId=upload, MultipartUpload={"Parts": parts}
                )
            except BaseException:
                with contextlib.suppress(ClientError, BotoCoreError):
                    self._client.abort_multipart_upload(**key, UploadId=upload)
                raise
        except (ClientError, BotoCoreError) as exc:
            raise self._failure(name, exc) from None

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        # The end of a Parquet file says where its columns are, so a stream is not enough.
        with tempfile.TemporaryFile() as file:
            try:
                body = self._client.get_object(**self._key(name))["Body"]
                for chunk in body.iter_chunks(_READ_BYTES):
                    file.write(chunk)
            except (ClientError, BotoCoreError) as exc:
                raise self._failure(name, exc) from None
            except OSError as exc:
                raise StoreFailed(f"{tempfile.gettempdir()}: {exc.strerror}") from None
            file.seek(0)
            yield file

    def clear(self) -> None:
        place = {"Bucket": self._place.bucket, "Prefix": self._place.prefix}
        before = clock.now() - _ABANDONED
        try:
            # At most 1,000 of them; the next pass takes the others.
            found = self._client.list_multipart_uploads(**place).get("Uploads", ())
            for upload in found:
                name = upload["Key"].removeprefix(self._place.prefix)
                if upload["Initiated"] < before and _NAME.fullmatch(name):
                    self._client.abort_multipart_upload(
                        Bucket=self._place.bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                    )
                    logger.info(
                        "the parts of %s were removed: their writer has died", upload["Key"]
                    )
        except (ClientError, BotoCoreError) as exc:
            raise self._failure("", exc) from None

    def locate(self, name: str) -> str:
        return f"s3://{self._place.bucket}/{self._place.prefix}{name}"

    @property
    def _client(self) -> Any:
        return _connect(self._place)

    def _key(self, name: str) -> dict[str, str]:
        return {"Bucket": self._place.bucket, "Key": f"{self._place.prefix}{name}"}

    def _send(self, key: dict[str, str], upload: str, number: int, part: bytes) -> str:
        answer = self._client.upload_part(**key, UploadId=upload, PartNumber=number, Body=part)
        return str(answer["ETag"])

    def _failure(self, name: str, exc: Exception) -> StoreFailed:
        return StoreFailed(f"{self.locate(name)}: {exc}")


@cache
def _connect(place: BucketPlace) -> Any:
    try:
        return get_session().create_client(
            "s3",
            endpoint_url=place.endpoint,
            region_name=place.region,
            config=Config(
                connect_timeout=10,
                read_timeout=60,
                retries={"mode": "standard", "max_attempts": 4},
            ),
        )
    except (BotoCoreError, ValueError) as exc:
        raise StoreFailed(f"s3://{place.bucket}: {exc}") from None


def _join(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yields parts of ``PART_BYTES``; the last one may be smaller, and there is always one."""
    buffer = bytearray()
    for chunk in chunks:
        buffer += chunk
        while len(buffer) >= PART_BYTES:
            yield bytes(buffer[:PART_BYTES])
            del buffer[:PART_BYTES]
    yield bytes(buffer)
