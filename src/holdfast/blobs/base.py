"""Bytes by key. Nothing here knows what an epoch is.

Two sentences carry everything above this file: *a call that returned has made its effect
durable*, and *of any number of rivals exactly one creates a key*.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
#: What can be written: one buffer, or several that are written one after the other without a joined copy.
Data: TypeAlias = Buffer | Sequence[Buffer]


@dataclass(frozen=True, slots=True)
class BlobInfo:
    """What a listing knows of an object. ``modified_ms`` is the store's clock: information only."""

    key: str
    size: int
    modified_ms: int
    etag: str | None = None


class BlobStore(ABC):
    """Durable bytes by key. Keys are relative, ``/``-separated, UTF-8; see ``check_key``."""

    @abstractmethod
    def get(self, key: str) -> bytes:
        """All bytes of ``key``. Raises KeyNotFoundError."""

    @abstractmethod
    def get_range(self, key: str, start: int, length: int) -> bytes:
        """``length`` bytes from ``start``; fewer only where the object ends. Raises KeyNotFoundError."""

    @abstractmethod
    def head(self, key: str) -> BlobInfo | None:
        """What is known of ``key``, or None if nothing is there."""

    @abstractmethod
    def create(self, key: str, data: Data) -> None:
        """Write ``data`` if ``key`` is free, atomically. Raises KeyExistsError.

        Of any number of concurrent creates of one key, exactly one returns. The whole
        exactly-once argument rests on this sentence, so there is no default. When it cannot
        be told whether our bytes landed, it raises OutcomeUnknownError.
        """

    @abstractmethod
    def put(self, key: str, data: Data) -> None:
        """Write ``data``, replacing what is there. Readers see the old or the new bytes, never a mix."""

    @abstractmethod
    def list(self, prefix: str, start_after: str | None = None) -> Iterator[BlobInfo]:
        """Objects whose key starts with ``prefix``, in ascending key order, streaming.

        ``start_after`` is exclusive. Objects written or deleted meanwhile may or may not show.
        """

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove ``key``. A missing one is fine; every other failure is raised."""
