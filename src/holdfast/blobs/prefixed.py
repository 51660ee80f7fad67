"""A part of a store as a store of its own. Whoever holds one can't reach, or see, anything beside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from holdfast.blobs.base import BlobInfo, BlobStore, Data, check_key, check_prefix
from holdfast.errors import InvalidInputError, KeyExistsError, KeyNotFoundError


class PrefixedBlobs(BlobStore):
    """Keys of ``blobs`` below ``prefix``, which reads like a directory: ``team/orders/``."""

    def __init__(self, blobs: BlobStore, prefix: str) -> None:
        if not prefix.endswith("/"):
            raise InvalidInputError(f"the prefix {prefix!r} must end with a slash")
        check_key(prefix[:-1])
        self._blobs = blobs
        self._prefix = prefix

    def get(self, key: str) -> bytes:
        with self._naming(key) as full:
            return self._blobs.get(full)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        with self._naming(key) as full:
            return self._blobs.get_range(full, start, length)

    def head(self, key: str) -> BlobInfo | None:
        with self._naming(key) as full:
            found = self._blobs.head(full)
        return self._shortened(found) if found else None

    def create(self, key: str, data: Data) -> None:
        with self._naming(key) as full:
            self._blobs.create(full, data)

    def put(self, key: str, data: Data) -> None:
        with self._naming(key) as full:
            self._blobs.put(full, data)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[BlobInfo]:
        check_prefix(prefix)
        after = None if start_after is None else self._prefix + start_after
        return map(self._shortened, self._blobs.list(self._prefix + prefix, after))

    def delete(self, key: str) -> None:
        with self._naming(key) as full:
            self._blobs.delete(full)

    def sweep_leftovers(self, *, min_age_seconds: float) -> int:
        return self._blobs.sweep_leftovers(min_age_seconds=min_age_seconds)

    def __repr__(self) -> str:
        return f"PrefixedBlobs({self._blobs!r}, {self._prefix!r})"

    @contextmanager
    def _naming(self, key: str) -> Iterator[str]:
        """The key in the whole store; errors that callers act upon name the key that they know."""
        check_key(key)
        try:
            yield self._prefix + key
        except KeyNotFoundError as error:
            raise KeyNotFoundError(key) from error
        except KeyExistsError as error:
            raise KeyExistsError(key) from error

    def _shortened(self, info: BlobInfo) -> BlobInfo:
        return replace(info, key=info.key.removeprefix(self._prefix))
