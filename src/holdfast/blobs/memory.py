"""Blobs in this process's memory: for tests, and for trying things out. Nothing outlives the process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from holdfast.blobs.base import BlobInfo, BlobStore, Data, check_key, check_prefix, check_range, joined
from holdfast.errors import KeyExistsError, KeyNotFoundError


@dataclass(frozen=True, slots=True)
class _Object:
    data: bytes
    info: BlobInfo


class MemoryBlobs(BlobStore):
    """A dictionary with the manners of a store."""

    def __init__(self, *, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._objects: dict[str, _Object] = {}
        self._writes = 0

    def get(self, key: str) -> bytes:
        return self._find(key).data

    def get_range(self, key: str, start: int, length: int) -> bytes:
        check_range(key, start, length)
        return self._find(key).data[start : start + length]

    def head(self, key: str) -> BlobInfo | None:
        check_key(key)
        found = self._objects.get(key)
        return found.info if found else None

    def create(self, key: str, data: Data) -> None:
        check_key(key)
        stored = joined(data)
        with self._lock:
            if key in self._objects:
                raise KeyExistsError(key)
            self._store(key, stored)

    def put(self, key: str, data: Data) -> None:
        check_key(key)
        stored = joined(data)
        with self._lock:
            self._store(key, stored)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[BlobInfo]:
        check_prefix(prefix)
        return self._listed(prefix, start_after or "")

    def delete(self, key: str) -> None:
        check_key(key)
        with self._lock:
            self._objects.pop(key, None)

    def _find(self, key: str) -> _Object:
        check_key(key)
        found = self._objects.get(key)
        if found is None:
            raise KeyNotFoundError(key)
        return found

    def _store(self, key: str, data: bytes) -> None:
        self._writes += 1
        info = BlobInfo(key=key, size=len(data), modified_ms=self._now_ms(), etag=f"{self._writes:x}")
        self._objects[key] = _Object(data, info)

    def _listed(self, prefix: str, start_after: str) -> Iterator[BlobInfo]:
        with self._lock:
            keys = sorted(key for key in self._objects if key.startswith(prefix) and key > start_after)
        for key in keys:
            found = self._objects.get(key)
            if found is not None:
                yield found.info


_named: dict[str, MemoryBlobs] = {}
_named_lock = threading.Lock()


def named_memory(name: str) -> MemoryBlobs:
    """The store called ``name`` in this process: everyone who asks gets the same one."""
    with _named_lock:
        return _named.setdefault(name, MemoryBlobs())
