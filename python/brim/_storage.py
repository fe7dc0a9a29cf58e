# SPDX-License-Identifier: Apache-2.0
"""Storage for inputs and parts: directories and S3 buckets. A name is published once: the first writer wins, and later
publish() returns False to later ones."""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import hashlib
import io
import logging
import os
import pathlib
import re
import tempfile
from collections.abc import Iterator
from typing import Any, BinaryIO

from .errors import BadData, CannotWrite, UsageError
from .results import imported

_log = logging.getLogger("brim")
_FOOTER = 64 << 10  # Parquet metadata is at the end and changes with the data


def is_s3(name: str) -> bool:
    return name.startswith("s3://")


def expand(pattern: str) -> list[str]:
    """Files that match a pattern, sorted. `*` matches within one folder, `**` any number of folders. Wildcards do not match
    hidden names or names that start with an underscore (_delta_log, _temporary)."""
    if is_s3(pattern):
        return _expand_s3(pattern)
    plain = os.path.normpath(pattern)
    parts = plain.split(os.sep)
    found = [name for name in glob.glob(plain, recursive=True) if _matches(name.split(os.sep), parts)]
    if "**" in parts:
        found = [name for name in found if os.path.isfile(name)]
    names = sorted({os.path.abspath(name) for name in found})
    if not names:
        raise UsageError(f"{pattern}: no such file", "pass files, or a quoted pattern: 'in/*.parquet'")
    return names


def _matches(names: list[str], parts: list[str]) -> bool:
    """Whether the components of a path match those of a pattern."""
    if not parts:
        return not names
    if parts[0] == "**":
        return _matches(names, parts[1:]) or (bool(names) and _is_visible(names[0]) and _matches(names[1:], parts))
    return bool(names) and _matches_part(names[0], parts[0]) and _matches(names[1:], parts[1:])


def _matches_part(name: str, part: str) -> bool:
    if not _has_wildcard(part):
        return name == part
    return fnmatch.fnmatchcase(name, part) and (_is_visible(name) or part[0] == name[0])


def _is_visible(name: str) -> bool:
    """Same rule as Spark: names of partition columns may start with an underscore."""
    return not name.startswith(".") and (not name.startswith("_") or "=" in name)


def _has_wildcard(text: str) -> bool:
    return any(character in text for character in "*?[")


def open_input(name: str) -> BinaryIO:
    if is_s3(name):
        return io.BufferedReader(_S3File(name), 1 << 20)
    try:
        return open(name, "rb")
    except OSError as error:
        raise BadData(f"{name}: {error.strerror}", "use a readable file") from None


def signature(name: str) -> str:
    """A value that changes when the file changes."""
    if is_s3(name):
        head = _S3File(name).head
        return f"{head['ContentLength']}-{head['ETag']}"
    try:
        with open(name, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _FOOTER))
            return f"{size}-{hashlib.sha256(file.read()).hexdigest()[:32]}"
    except OSError as error:
        raise BadData(f"{name}: {error.strerror}", "plan the job again with existing files") from None


@contextlib.contextmanager
def writing(path: str) -> Iterator[None]:
    """Converts OSError, such as a full disk, to CannotWrite."""
    try:
        yield
    except OSError as error:
        if isinstance(error, CannotWrite):
            raise
        raise CannotWrite(f"{path}: {error.strerror or error}", "free some space, or use another output") from None


class Store:
    """A directory."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)

    @staticmethod
    def of(name: str) -> Store:
        return _S3Store(name) if is_s3(name) else Store(name)

    def path(self, name: str) -> str:
        return os.path.join(self.root, name)

    def read(self, name: str) -> bytes | None:
        try:
            return pathlib.Path(self.path(name)).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise BadData(f"{self.path(name)}: {error.strerror}", "use a readable location") from None

    def has(self, name: str) -> bool:
        return os.path.exists(self.path(name))

    def names(self, prefix: str) -> set[str]:
        """Existing names that start with `prefix`."""
        try:
            return {name for name in os.listdir(self.root) if name.startswith(prefix)}
        except FileNotFoundError:
            return set()
        except OSError as error:
            raise BadData(f"{self.root}: {error.strerror}", "use a readable location") from None

    def open(self, name: str) -> BinaryIO:
        return open_input(self.path(name))

    @contextlib.contextmanager
    def draft(self) -> Iterator[str]:
        """A temporary file, deleted afterwards."""
        folder = self.path("_brim")
        try:
            os.makedirs(folder, exist_ok=True)
            handle, path = tempfile.mkstemp(prefix="draft-", dir=folder)
        except OSError as error:
            raise CannotWrite(f"{folder}: {error.strerror}", "use a writable location") from None
        os.close(handle)
        try:
            yield path
        finally:
            with contextlib.suppress(FileNotFoundError):  # finish() may have removed it
                os.unlink(path)

    def remove(self, name: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self.path(name))

    def remove_drafts(self) -> None:
        """Removes the drafts of killed workers."""
        for path in glob.glob(os.path.join(glob.escape(self.path("_brim")), "draft-*")):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def publish(self, draft: str, name: str) -> bool:
        """Publishes the draft as `name`; False if that name exists."""
        target = self.path(name)
        try:
            with open(draft, "rb") as file:
                os.fsync(file.fileno())
            os.chmod(draft, 0o644)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.link(draft, target)  # unlike a rename, never replaces
            folder = os.open(os.path.dirname(target), os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
            return True
        except OSError as error:
            if os.path.exists(target):
                return False
            raise CannotWrite(f"{target}: {error.strerror}", "free some space, or use another output") from None

    def put(self, name: str, data: bytes) -> bool:
        with self.draft() as draft:
            with writing(draft):
                pathlib.Path(draft).write_bytes(data)
            return self.publish(draft, name)


class _S3Store(Store):
    """A prefix of a bucket. Requires support for conditional writes (If-None-Match)."""

    def __init__(self, name: str) -> None:
        self.root = name.rstrip("/")

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def read(self, name: str) -> bytes | None:
        bucket, key = _split(self.path(name))
        with _reading(self.path(name)):
            try:
                return bytes(_s3().get_object(Bucket=bucket, Key=key)["Body"].read())
            except _s3().exceptions.NoSuchKey:
                return None

    def has(self, name: str) -> bool:
        bucket, key = _split(self.path(name))
        with _reading(self.path(name)):
            found = _s3().list_objects_v2(Bucket=bucket, Prefix=key, MaxKeys=1).get("Contents", [])
        return bool(found) and found[0]["Key"] == key

    def names(self, prefix: str) -> set[str]:
        bucket, key = _split(self.path(prefix))
        with _reading(self.path(prefix)):
            pages = _s3().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=key, Delimiter="/")
            return {item["Key"].rpartition("/")[2] for page in pages for item in page.get("Contents", [])}

    def remove(self, name: str) -> None:
        bucket, key = _split(self.path(name))
        try:
            _s3().delete_object(Bucket=bucket, Key=key)
        except imported("botocore.exceptions", "boto3").ClientError as error:
            _log.warning("cannot remove %s: %s", self.path(name), error)

    def remove_drafts(self) -> None:
        pass  # drafts are in the temporary folders of the workers

    @contextlib.contextmanager
    def draft(self) -> Iterator[str]:
        with tempfile.NamedTemporaryFile(prefix="brim-") as file:
            yield file.name

    def publish(self, draft: str, name: str) -> bool:
        bucket, key = _split(self.path(name))
        errors = imported("botocore.exceptions", "boto3")
        try:
            with open(draft, "rb") as file:
                _s3().put_object(Bucket=bucket, Key=key, Body=file, IfNoneMatch="*")
            return True
        except errors.ClientError as error:
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            if status in (409, 412):
                return False
            if status == 501:
                raise CannotWrite(f"{self.root}: the store does not support conditional writes", "use one that does") from None
            raise CannotWrite(f"{self.path(name)}: {error}", "allow s3:PutObject there") from None
        except errors.BotoCoreError as error:
            raise CannotWrite(f"{self.path(name)}: {error}", _reach(error)) from None


class _S3File(io.RawIOBase):
    """An object, read in ranges."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._bucket, self._key = _split(name)
        with _reading(name):
            self.head = _s3().head_object(Bucket=self._bucket, Key=self._key)
        self._size, self._at = int(self.head["ContentLength"]), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        count = min(len(buffer), self._size - self._at)
        if count <= 0:
            return 0
        byte_range = f"bytes={self._at}-{self._at + count - 1}"
        with _reading(self._name):
            data = _s3().get_object(Bucket=self._bucket, Key=self._key, Range=byte_range)["Body"].read()
        buffer[:len(data)] = data
        self._at += len(data)
        return len(data)


@contextlib.contextmanager
def _reading(name: str) -> Iterator[None]:
    """Converts errors of the store to BadData with the name of the object."""
    _s3()  # raises UsageError if boto3 is missing
    errors = imported("botocore.exceptions", "boto3")
    try:
        yield
    except errors.ClientError as error:
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        remedy = "allow s3:GetObject and s3:ListBucket there" if status in (401, 403) else "use existing objects"
        raise BadData(f"{name}: {error}", remedy) from None
    except errors.BotoCoreError as error:
        raise BadData(f"{name}: {error}", _reach(error)) from None


def _reach(error: Exception) -> str:
    return ("set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile" if "credentials" in str(error).lower()
            else "check AWS_ENDPOINT_URL and AWS_DEFAULT_REGION")


def _split(name: str) -> tuple[str, str]:
    bucket, _, key = name.removeprefix("s3://").partition("/")
    return bucket, key


def _expand_s3(pattern: str) -> list[str]:
    bucket, key = _split(pattern)
    if not _has_wildcard(key):
        return [pattern]
    parts = key.split("/")
    prefix = re.split(r"[*?[]", key, maxsplit=1)[0]
    with _reading(pattern):
        pages = _s3().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        names = sorted(f"s3://{bucket}/{item['Key']}" for page in pages for item in page.get("Contents", [])
                       if not item["Key"].endswith("/") and _matches(item["Key"].split("/"), parts))
    if not names:
        raise UsageError(f"{pattern}: no such object", "pass objects, or a pattern: s3://bucket/in/*.parquet")
    return names


_clients: dict[int, Any] = {}


def _s3() -> Any:
    """One client per process, because forked processes must not share connections."""
    if os.getpid() not in _clients:
        _clients[os.getpid()] = imported("boto3").client("s3")
    return _clients[os.getpid()]
