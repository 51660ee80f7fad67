"""Many small entries in one object: the ``LCB1`` format. Nothing here knows what an entry means.

    offset  bytes
    0       4      "LCB1"
    4       4      version: 2 is written, 1 is read too
    8       4      number of entries
    12      4      size of the body before compression
    16      4      CRC-32C of everything after the header; version 1 has none
    20      4      size of the body again, as LZ4 wants it
    24      …      the body as one raw LZ4 block

    body:   per entry  size of key, key in UTF-8, size of data, data

Integers are unsigned, 32 bits, little-endian. A raw LZ4 block carries no checksum of its own and its
header is hearsay, so reading believes neither: sizes must agree with each other and with what is really
there, and memory is only spent on bytes that do come out of the block.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import cramjam
import google_crc32c

from holdfast.blobs.base import BlobStore, Buffer, Data, chunks, joined
from holdfast.errors import (
    CorruptError,
    InvalidInputError,
    KeyExistsError,
    KeyNotFoundError,
    OutcomeUnknownError,
    UnsupportedFormatError,
)
from holdfast.layout import batch_name

MAGIC = b"LCB1"
VERSION = 2
DEFAULT_FLUSH_THRESHOLD = 8 * 1024 * 1024

_HEADER = struct.Struct("<4sIIII")
_HEADER_V1 = struct.Struct("<4sIII")
_U32 = struct.Struct("<I")

# What one LZ4 block can hold at most, and how far one can shrink it.
_LARGEST_BODY = 0x7E00_0000
_LARGEST_RATIO = 255

# An LZ4 block of nothing. An empty v1 batch may consist of the header and this, without the size.
_EMPTY_BLOCK = b"\0"

# The checksum takes read-only bytes alone, so a view is copied, this much at a time.
_CHECKSUM_STEP = 1 << 18


def encode_batch(entries: Iterable[tuple[str, Data]]) -> bytes:
    """The object that holds ``entries`` in their order, duplicates included."""
    parts: list[Buffer] = []
    count = size = 0
    for key, data in entries:
        name = _encoded(key)
        pieces = chunks(data)
        length = _checked_size(sum(map(len, pieces)))
        parts += (_U32.pack(len(name)), name, _U32.pack(length), *pieces)
        count += 1
        size += 8 + len(name) + length
    _checked_size(size)
    compressed = bytes(cramjam.lz4.compress_block(b"".join(parts)))
    return _HEADER.pack(MAGIC, VERSION, count, size, google_crc32c.value(compressed)) + compressed


def decode_batch(data: Buffer, *, key: str = "batch") -> list[tuple[str, bytes]]:
    """The entries of ``data``, in order. ``key`` is what errors call it."""
    body, count = _body(data, key)
    return [(name, bytes(body[start : start + size])) for name, start, size in _entries(body, count, key)]


class BatchReader:
    """Entries of one batch object, by name. The object is fetched and checked once, at first use.

    Only what is asked for is copied out. One LZ4 block can't be entered in the middle, so the body is
    decompressed as a whole.
    """

    def __init__(self, blobs: BlobStore, key: str, *, data: Buffer | None = None) -> None:
        """``data``: the object's bytes, where the caller has fetched and checked them already."""
        self._blobs = blobs
        self._key = key
        self._data = data
        self._opened: tuple[memoryview, dict[str, tuple[int, int]]] | None = None

    def keys(self) -> list[str]:
        """The names inside, in order. Of a name that was written twice, the last entry counts."""
        _, index = self._open()
        return list(index)

    def read(self, name: str) -> bytes:
        body, index = self._open()
        found = index.get(name)
        if found is None:
            raise KeyNotFoundError(f"{self._key}#{name}")
        start, size = found
        return bytes(body[start : start + size])

    def _open(self) -> tuple[memoryview, dict[str, tuple[int, int]]]:
        if self._opened is None:
            data = self._data if self._data is not None else self._blobs.get(self._key)
            body, count = _body(data, self._key)
            index = {name: (start, size) for name, start, size in _entries(body, count, self._key)}
            self._opened = body, index
            self._data = None
        return self._opened


@dataclass(frozen=True, slots=True)
class BatchMetrics:
    """What a batcher has written so far. Sizes after compression are those of whole objects."""

    batches_flushed: int = 0
    entries_flushed: int = 0
    bytes_before_compression: int = 0
    bytes_after_compression: int = 0
    put_count: int = 0


class CheckpointBatcher:
    """Collects small entries and writes them as one object an epoch. For one thread."""

    def __init__(
        self,
        blobs: BlobStore,
        prefix: str = "",
        flush_threshold: int | None = None,
        *,
        directory: str = "checkpoints/",
    ) -> None:
        for what, text in (("prefix", prefix), ("directory", directory)):
            if text and not text.endswith("/"):
                raise InvalidInputError(f"the {what} {text!r} must be empty or end with a slash")
        if flush_threshold is not None and flush_threshold < 1:
            raise InvalidInputError(f"a flush threshold of {flush_threshold} bytes makes no sense")
        self._blobs = blobs
        self._place = prefix + directory
        self._threshold = DEFAULT_FLUSH_THRESHOLD if flush_threshold is None else flush_threshold
        self._entries: list[tuple[str, bytes]] = []
        self._size = 0
        self._metrics = BatchMetrics()
        # The key of a write that may have happened: there, and only there, equal bytes are taken for ours.
        self._in_doubt: str | None = None

    def add(self, key: str, data: Data) -> None:
        """Keep an entry for the next flush. Nothing is written yet."""
        content = joined(data)
        self._size += len(_encoded(key)) + _checked_size(len(content)) + 8
        self._entries.append((key, content))

    def should_flush(self) -> bool:
        return self._size >= self._threshold

    def buffer_size(self) -> int:
        return self._size

    def metrics(self) -> BatchMetrics:
        return self._metrics

    def flush(self, epoch: int) -> str | None:
        """Write what was added as one new object and return its key; None if there is nothing.

        A failed write leaves the entries where they are: flush again. No object is ever overwritten;
        a further one of the same epoch gets a number.
        """
        if not self._entries:
            return None
        encoded = encode_batch(self._entries)
        key = self._create(epoch, encoded)
        done = self._metrics
        self._metrics = replace(
            done,
            batches_flushed=done.batches_flushed + 1,
            entries_flushed=done.entries_flushed + len(self._entries),
            bytes_before_compression=done.bytes_before_compression + self._size,
            bytes_after_compression=done.bytes_after_compression + len(encoded),
            put_count=done.put_count + 1,
        )
        self._entries = []
        self._size = 0
        return key

    def __len__(self) -> int:
        return len(self._entries)

    def _create(self, epoch: int, encoded: bytes) -> str:
        attempt = 0
        while True:
            key = self._place + batch_name(epoch, attempt)
            try:
                self._blobs.create(key, encoded)
            except KeyExistsError:
                if key != self._in_doubt or self._blobs.get(key) != encoded:
                    attempt += 1
                    continue
            except OutcomeUnknownError:
                self._in_doubt = key
                raise
            self._in_doubt = None
            return key


def _encoded(key: str) -> bytes:
    try:
        return key.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"entry {key!r} holds a lone surrogate, which UTF-8 can't") from error


def _checked_size(size: int) -> int:
    if size > _LARGEST_BODY:
        raise InvalidInputError(f"a batch holds at most {_LARGEST_BODY} bytes, not {size}").with_hint(
            "write large entries as objects of their own"
        )
    return size


def _body(data: Buffer, key: str) -> tuple[memoryview, int]:
    """The decompressed body and the number of entries that the header claims."""
    view = memoryview(data).cast("B")
    count, size, payload = _checked_header(view, key)
    if view.nbytes == _HEADER_V1.size + 1 and payload == _EMPTY_BLOCK and count == size == 0:
        return memoryview(b""), 0
    if len(payload) < _U32.size:
        raise CorruptError(key, "it ends before the compressed body")
    (claimed,) = _U32.unpack_from(payload)
    block = payload[_U32.size :]
    if claimed != size:
        raise CorruptError(key, f"the header says {size} bytes, the compressed body {claimed}")
    if claimed > _LARGEST_RATIO * len(block):
        raise CorruptError(key, f"no {len(block)} compressed bytes hold {claimed}")
    return _decompressed(block, claimed, key), count


def _checked_header(view: memoryview, key: str) -> tuple[int, int, memoryview]:
    if len(view) < _HEADER_V1.size:
        raise CorruptError(key, f"{len(view)} bytes are too short for a batch")
    magic, version, count, size = _HEADER_V1.unpack_from(view)
    if magic != MAGIC:
        raise CorruptError(key, f"it begins with {magic!r}, not with {MAGIC!r}")
    if version > VERSION:
        raise UnsupportedFormatError(key, f"batch version {version}; this one reads up to {VERSION}")
    if version == 1:
        return count, size, view[_HEADER_V1.size :]
    if version != VERSION:
        raise CorruptError(key, f"there is no batch version {version}")
    if len(view) < _HEADER.size:
        raise CorruptError(key, f"{len(view)} bytes are too short for a batch")
    payload = view[_HEADER.size :]
    expected = _HEADER.unpack_from(view)[4]
    actual = _checksum(payload)
    if actual != expected:
        raise CorruptError(key, f"its CRC-32C is {actual:#010x}, not {expected:#010x}")
    return count, size, payload


def _checksum(view: memoryview) -> int:
    total = 0
    for start in range(0, len(view), _CHECKSUM_STEP):
        total = google_crc32c.extend(total, bytes(view[start : start + _CHECKSUM_STEP]))
    return total


def _decompressed(block: memoryview, claimed: int, key: str) -> memoryview:
    # Anonymous pages cost nothing until they are written to: a claim that is a lie, but a possible one,
    # takes no more memory than what really comes out of the block. (Mapping zero bytes is an error.)
    try:
        target = mmap.mmap(-1, max(claimed, 1))
    except OSError as error:
        raise MemoryError(f"{key}: no {claimed} bytes to decompress it into") from error
    body = memoryview(target)[:claimed]
    try:
        written = cramjam.lz4.decompress_block_into(block, body)
    except cramjam.DecompressionError as error:
        raise CorruptError(key, f"its LZ4 block can't be decompressed: {error}") from error
    if written != claimed:
        raise CorruptError(key, f"it claims {claimed} bytes and holds {written}")
    return body


def _entries(body: memoryview, count: int, key: str) -> Iterator[tuple[str, int, int]]:
    """Name, start and size of each entry."""
    position = 0
    for number in range(count):
        name_start, name_size = _sized(body, position, key, number)
        start, size = _sized(body, name_start + name_size, key, number)
        try:
            name = str(body[name_start : name_start + name_size], "utf-8")
        except UnicodeDecodeError as error:
            raise CorruptError(key, f"the name of entry {number} is not UTF-8") from error
        yield name, start, size
        position = start + size
    if position != len(body):
        raise CorruptError(key, f"{len(body) - position} bytes are left over after entry {count}")


def _sized(body: memoryview, position: int, key: str, number: int) -> tuple[int, int]:
    """Where the bytes after the size at ``position`` start, and how many there are, all of them inside."""
    start = position + _U32.size
    if start > len(body):
        raise CorruptError(key, f"entry {number} is truncated")
    (size,) = _U32.unpack_from(body, position)
    if start + size > len(body):
        raise CorruptError(key, f"entry {number} is truncated")
    return start, size
