"""Writes files of the archive, and reads them back: a directory, or an S3-compatible bucket.

A file appears under its name when it is whole. The names contain digests, so nothing is ever
written over another file with that name.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Final

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from inference.archive.plans import BucketPlace, DirectoryPlace, Place

# The parts of a file that are sent by themselves, of at most 10,000. One is held in memory.
PART_BYTES: Final = 32 * 1024 * 1024
_READ_BYTES: Final = 1024 * 1024
_MISSING: Final = {"404", "NoSuchKey", "NotFound"}


class StoreFailed(Exception):
    """The archive cannot be written or read; nothing was dropped."""


class Store(ABC):
    @abstractmethod
    def has(self, name: str) -> bool:
        """Returns whether there is a file of that name."""

    @abstractmethod
    def write(self, name: str, chunks: Iterable[bytes]) -> None:
        """Stores a file durably; raises :class:`StoreFailed`, and then has none of it."""

    @abstractmethod
    def open(self, name: str) -> contextlib.AbstractContextManager[IO[bytes]]:
        """Opens a file at its beginning; raises :class:`StoreFailed`."""

    @abstractmethod
    def locate(self, name: str) -> str:
        """Returns where a file is, for people."""


def open_store(place: Place) -> Store:
    """Returns the store of a place; connects to nothing yet."""
    return DirectoryStore(place) if isinstance(place, DirectoryPlace) else BucketStore(place)


class DirectoryStore(Store):
    """Files under a directory, readable by their owner alone."""

    def __init__(self, place: DirectoryPlace) -> None:
        self._path = place.path

    def has(self, name: str) -> bool:
        return (self._path / name).is_file()

    def write(self, name: str, chunks: Iterable[bytes]) -> None:
        path = self._path / name
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                with open(part, "wb", opener=_open_private) as file:
                    for chunk in chunks:
                        file.write(chunk)
                    file.flush()
                    os.fsync(file.fileno())
                part.rename(path)
            finally:
                part.unlink(missing_ok=True)
            _sync_directory(path.parent)
        except OSError as exc:
            raise StoreFailed(f"{path}: {exc.strerror}") from None

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        path = self._path / name
        try:
            file = path.open("rb")
        except OSError as exc:
            raise StoreFailed(f"{path}: {exc.strerror}") from None
        with file:
            yield file

    def locate(self, name: str) -> str:
        return str(self._path / name)


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
        return (
            import_module("botocore.session")
            .get_session()
            .create_client(
                "s3",
                endpoint_url=place.endpoint,
                region_name=place.region,
                config=Config(
                    connect_timeout=10,
                    read_timeout=60,
                    retries={"mode": "standard", "max_attempts": 4},
                ),
            )
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


def _open_private(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
