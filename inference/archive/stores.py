"""Writes files of the archive, and reads them back: a directory, or an S3-compatible bucket.

A file appears under its name when it is whole. The names contain digests, so nothing is ever
written over another file with that name.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import IO, cast

from config.local.bootstrap import install_command
from inference.archive.plans import DirectoryPlace, Place

logger = logging.getLogger("causeway.retention")


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
    def clear(self) -> None:
        """Removes what writers that died left of unfinished files; raises :class:`StoreFailed`."""

    @abstractmethod
    def locate(self, name: str) -> str:
        """Returns where a file is, for people."""


def open_store(place: Place) -> Store:
    """Returns the store of a place; connects to nothing yet."""
    if isinstance(place, DirectoryPlace):
        return DirectoryStore(place)
    if find_spec("botocore") is None:
        raise StoreFailed(f"A bucket needs botocore: {install_command('s3')}, and start again")
    # The library takes thirty megabytes, which only installations with a bucket have.
    return cast(Store, import_module("inference.archive.buckets").BucketStore(place))


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
                    # The lock ends with the process, so an unlocked part has no writer any more.
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
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

    def clear(self) -> None:
        for part in self._path.glob("*/.*.part"):
            try:
                with part.open("rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    part.unlink()
            except BlockingIOError:
                continue
            except OSError as exc:
                raise StoreFailed(f"{part}: {exc.strerror}") from None
            logger.info("%s was removed: its writer has died", part)

    def locate(self, name: str) -> str:
        return str(self._path / name)


def _open_private(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
