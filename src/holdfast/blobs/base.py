"""Bytes by key. Nothing here knows what an epoch is.

Two sentences carry everything above this file: *a call that returned has made its effect
durable*, and *of any number of rivals exactly one creates a key*.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from holdfast.errors import InvalidInputError, StoreUnavailableError

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


#: Longest key that every backend takes, in UTF-8 bytes, and longest part between two slashes.
MAX_KEY_BYTES = 1024
MAX_SEGMENT_BYTES = 255
#: No key may have a part that starts like this: FileBlobs calls its unfinished files so.
TEMPORARY_PREFIX = ".holdfast-tmp-"


class RefusedError(StoreUnavailableError):
    """The store answered, and will answer the same again: wrong credentials, no such bucket. Not retried."""


# What XML can't hold, an object store can't list.
_NOT_LISTABLE = frozenset(map(chr, (*range(0x20), 0x7F, 0xFFFE, 0xFFFF)))


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

    def sweep_leftovers(self, *, min_age_seconds: float) -> int:
        """Remove what interrupted writes left behind, where it is older than that; how many are gone.

        Such leftovers are never listed and never in the way. Most backends leave none.
        """
        del min_age_seconds
        return 0


def check_key(key: str) -> None:
    """Raise InvalidInputError unless ``key`` means the same on every backend."""
    if not isinstance(key, str) or not key:
        raise InvalidInputError(f"a key is a text that is not empty, not {key!r}")
    encoded = _utf8(key)
    if len(encoded) > MAX_KEY_BYTES:
        raise InvalidInputError(f"key {key[:60]!r}… has {len(encoded)} bytes, more than {MAX_KEY_BYTES}")
    if not _NOT_LISTABLE.isdisjoint(key):
        raise InvalidInputError(f"key {key!r} holds a control character, and object stores can't list that")
    if key.startswith("/"):
        raise InvalidInputError(f"key {key!r} is absolute; keys are relative to the store")
    for segment in key.split("/"):
        if segment in ("", ".", ".."):
            raise InvalidInputError(f"key {key!r} has {segment!r} between its slashes")
        if segment.startswith(TEMPORARY_PREFIX):
            raise InvalidInputError(f"key {key!r}: names that start with {TEMPORARY_PREFIX!r} are ours")
        # A character has at most four bytes, so most segments need no second look.
        if len(segment) * 4 > MAX_SEGMENT_BYTES and len(segment.encode()) > MAX_SEGMENT_BYTES:
            raise InvalidInputError(
                f"key {key!r}: a file system takes {MAX_SEGMENT_BYTES} bytes between two slashes"
            )


def is_key(text: str) -> bool:
    """Whether ``text`` could be a key: for what lies around in a store and was not put there by us."""
    try:
        check_key(text)
    except InvalidInputError:
        return False
    return True


def check_prefix(prefix: str) -> None:
    """Raise InvalidInputError unless some key could start with ``prefix``. The empty one means all."""
    if not isinstance(prefix, str):
        raise InvalidInputError(f"a prefix is a text, not {prefix!r}")
    _utf8(prefix)
    whole = prefix.split("/")[:-1]
    if not _NOT_LISTABLE.isdisjoint(prefix) or any(segment in ("", ".", "..") for segment in whole):
        raise InvalidInputError(f"no key starts with {prefix!r}")


def check_range(key: str, start: int, length: int) -> None:
    if start < 0 or length < 0:
        raise InvalidInputError(f"{key!r}: no range starts at {start} with {length} bytes")


def chunks(data: Data) -> list[memoryview]:
    """``data`` as flat views of its bytes, none of them copied."""
    if isinstance(data, str):
        raise InvalidInputError("a store takes bytes, not text")
    parts: Sequence[Buffer] = [data] if _is_buffer(data) else data  # type: ignore[list-item,assignment]
    if not isinstance(parts, Sequence):
        raise InvalidInputError(f"a store takes bytes or a sequence of them, not {type(data).__name__}")
    return [_flat(part) for part in parts]


def joined(data: Data) -> bytes:
    """``data`` as one piece that nobody can change afterwards."""
    return data if isinstance(data, bytes) else b"".join(chunks(data))


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"{text!r} holds a lone surrogate, which UTF-8 can't") from error


def _is_buffer(data: object) -> bool:
    try:
        memoryview(data)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True


def _flat(part: Buffer) -> memoryview:
    try:
        view = memoryview(part)
    except TypeError as error:
        raise InvalidInputError(f"a store takes bytes, not {type(part).__name__}") from error
    return view.cast("B") if view.c_contiguous else memoryview(view.tobytes())
