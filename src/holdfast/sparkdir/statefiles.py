"""The bytes inside Spark's state files: frames, changelog headers, RocksDB snapshot metadata.

Only as much as it takes to know which other files a state file needs, and whether it is whole.
Keys and values of the state are never interpreted.

Changelog versions (the first thing in the decompressed stream, as Java ``writeUTF``):

    1   no header                records: key length, key, value length (-1: removed), value; ends with -1
    2   "v2"                     records with a type byte in front; ends with type 0
    3   "v3" + lineage (JSON)    records as in 1
    4   "v4" + lineage (JSON)    records as in 2
"""

from __future__ import annotations

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import cramjam
import google_crc32c

from holdfast.errors import CorruptError, UnsupportedFormatError
from holdfast.sparkdir.xxh import XXH_KEPT, XXH_SEED, xxh32

_MAGIC = b"LZ4Block"
_FRAME_HEADER = struct.Struct("<8sBiiI")
_RAW, _LZ4 = 0x10, 0x20
_WRITTEN_BLOCK = 1 << 15
# lz4-java never writes a larger block; whoever claims one is lying about how much to allocate.
_MAX_BLOCK = 1 << 25
# A lineage is cut at every snapshot, and writeUTF cannot hold more than this.
_MAX_UTF = 65_535
_MAX_ZIP_METADATA = 64 << 20
_MAX_ZSTD_BYTES = 1 << 30
# What zipfile raises for bytes that are not a zip, or not one it can read, over the years.
ZIP_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    KeyError,
    ValueError,
    EOFError,
    NotImplementedError,
    RuntimeError,
)


@dataclass(frozen=True, slots=True)
class StateVersion:
    """One version of one store in state checkpoint format 2: a number and the id that makes it unique."""

    version: int
    unique_id: str

    @property
    def stem(self) -> str:
        return f"{self.version}_{self.unique_id}"


@dataclass(frozen=True, slots=True)
class ChangelogHeader:
    version: int
    #: Ascending, from the newest snapshot known when the file was written to the version before it.
    lineage: tuple[StateVersion, ...] | None


def lz4_blocks(data: bytes, key: str) -> Iterator[bytes]:
    """The decompressed blocks of lz4-java's LZ4BlockOutputStream, one by one, up to the end mark.

    Raises CorruptError at a bad magic, a length that cannot be true, a block that does not decompress to its
    length, a stream without its end mark, or bytes after it. The xxHash of each block is left to
    ``check_structure``: no Python that we depend on computes it fast.
    """
    return (plain for _, plain, _ in lz4_frames(data, key))


def lz4_frames(data: bytes, key: str) -> Iterator[tuple[int, bytes, int]]:
    """Where each block begins, its decompressed bytes, and the checksum recorded of them."""
    at = 0
    while True:
        if len(data) - at < _FRAME_HEADER.size:
            raise CorruptError(key, f"an LZ4 block header is cut short at byte {at}")
        magic, token, stored, plain, checksum = _FRAME_HEADER.unpack_from(data, at)
        begin, at = at, at + _FRAME_HEADER.size
        if magic != _MAGIC:
            raise CorruptError(key, f"no LZ4 block at byte {begin}")
        if plain == 0 and stored == 0:
            break
        if not (0 < plain <= _MAX_BLOCK and 0 < stored <= len(data) - at):
            raise CorruptError(
                key, f"an LZ4 block claims {stored} bytes for {plain}, of {len(data) - at} there"
            )
        yield begin, _block(data[at : at + stored], token & 0xF0, plain, key), checksum
        at += stored
    if at != len(data):
        raise CorruptError(key, f"{len(data) - at} bytes are left after the last LZ4 block")


def _block(stored: bytes, method: int, plain: int, key: str) -> bytes:
    if method == _RAW and len(stored) == plain:
        return stored
    if method != _LZ4:
        raise CorruptError(key, f"an LZ4 block of {len(stored)} bytes has method {method:#x}")
    block = bytearray(plain)
    try:
        # Not decompress_block: that pads a short block with zeros up to the claim, without a word.
        written = cramjam.lz4.decompress_block_into(stored, block, output_len=plain)
    except cramjam.DecompressionError as error:
        raise CorruptError(key, f"an LZ4 block does not decompress: {error}") from error
    if written != plain:
        raise CorruptError(key, f"an LZ4 block holds {written} bytes and says {plain}")
    return bytes(block)


def head_of(data: bytes, length: int, codec: str, key: str) -> bytes:
    """The first ``length`` decompressed bytes (fewer if the stream is shorter)."""
    head = b""
    for block in decompressed(data, codec, key):
        head += block
        if len(head) >= length:
            break
    return head[:length]


def decompressed(data: bytes, codec: str, key: str) -> Iterator[bytes]:
    """``data`` in pieces of bounded size, by the codec that the query's pinned conf names."""
    if is_lz4(codec):
        yield from lz4_blocks(data, key)
    elif codec.rsplit(".", 1)[-1].lower() in ("zstd", "zstdcompressioncodec"):
        yield _zstd(data, key)
    else:
        raise UnsupportedFormatError(
            key, f"state compressed with {codec!r}; lz4 and zstd can be read"
        ).with_hint("set spark.sql.streaming.stateStore.compression.codec to lz4 or zstd for a new query")


def is_lz4(codec: str) -> bool:
    """By its short name or its class, as Spark takes both."""
    return codec.rsplit(".", 1)[-1].lower() in ("lz4", "lz4compressioncodec")


def _zstd(data: bytes, key: str) -> bytes:
    # A zstd stream from Java doesn't say its length. Buffers of a fixed size grow until it fits, so that a
    # few bytes can't ask for all memory.
    for times in (8, 64, 512, 4096):
        buffer = bytearray(min(times * len(data) + 4096, _MAX_ZSTD_BYTES))
        try:
            length = cramjam.zstd.decompress_into(data, buffer)
        except (cramjam.DecompressionError, OSError) as error:
            reason = str(error)
        else:
            return bytes(memoryview(buffer)[:length])
    raise CorruptError(key, f"the zstd stream does not decompress: {reason}")


def read_changelog_header(data: bytes, codec: str, key: str) -> ChangelogHeader:
    """Version and lineage of a changelog. A file without a header is version 1 (and so is a delta)."""
    head = head_of(data, 6 + _MAX_UTF, codec, key)
    if head[:3] != b"\x00\x02v":
        return ChangelogHeader(1, None)
    if len(head) < 4:
        raise CorruptError(key, "the changelog ends inside its header")
    version = head[3] - ord("0")
    if version == 2:
        return ChangelogHeader(2, None)
    if version not in (3, 4):
        raise UnsupportedFormatError(key, f"changelog version {head[3:4]!r}")
    if len(head) < 6:
        raise CorruptError(key, "the changelog ends inside its header")
    (length,) = struct.unpack_from(">H", head, 4)
    return ChangelogHeader(version, _lineage(head[6 : 6 + length], length, key))


def _lineage(text: bytes, length: int, key: str) -> tuple[StateVersion, ...]:
    if len(text) != length:
        raise CorruptError(key, "the changelog ends inside its lineage")
    try:
        items = [StateVersion(int(i["version"]), str(i["checkpointUniqueId"])) for i in json.loads(text)]
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptError(key, f"the lineage is not readable: {error!r}") from error
    return tuple(sorted(items, key=lambda item: item.version))


def write_lineage(plain: bytes, lineage: Sequence[StateVersion], shift: int) -> bytes:
    """The decompressed changelog ``plain`` with every version of its lineage moved by ``shift``."""
    (length,) = struct.unpack_from(">H", plain, 4)
    items = [{"version": i.version + shift, "checkpointUniqueId": i.unique_id} for i in lineage]
    text = json.dumps(items, separators=(",", ":")).encode()
    return plain[:4] + struct.pack(">H", len(text)) + text + plain[6 + length :]


def frame_lz4(plain: bytes) -> bytes:
    """``plain`` as lz4-java frames it: blocks of 32 KiB and an end mark."""
    out = []
    for at in range(0, len(plain), _WRITTEN_BLOCK):
        block = plain[at : at + _WRITTEN_BLOCK]
        stored = bytes(cramjam.lz4.compress_block(block, store_size=False))
        method = _LZ4
        if len(stored) >= len(block):
            stored, method = block, _RAW
        checksum = xxh32(block, XXH_SEED) & XXH_KEPT
        out += [_FRAME_HEADER.pack(_MAGIC, method | 5, len(stored), len(block), checksum), stored]
    return b"".join([*out, _FRAME_HEADER.pack(_MAGIC, _RAW | 5, 0, 0, 0)])


def check_checksum(data: bytes, checksum: bytes, key: str) -> None:
    """Compare ``data`` with Spark's own ``<file>.crc`` of it. Raises CorruptError.

    A checksum by an algorithm we don't know proves nothing either way, and passes.
    """
    try:
        document = json.loads(checksum)
        algorithm, value, size = document["algorithm"], int(document["value"]), int(document["mainFileSize"])
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptError(f"{key}.crc", f"not a checksum file: {error!r}") from error
    if algorithm != "CRC32C":
        return
    # A Java int: the upper half of the range is written negative.
    if size != len(data) or value & 0xFFFF_FFFF != google_crc32c.value(data):
        raise CorruptError(key, "it does not match the checksum that Spark wrote beside it").with_hint(
            "capture an older batch with --batch; Spark's own restart may fail on this file too"
        )


def snapshot_files(data: bytes, key: str) -> list[str]:
    """What a RocksDB snapshot (``.zip``) needs beside itself, relative to its store's directory.

    SSTs are found only here: a directory also holds torn and orphaned ones.
    """
    document = _zip_metadata(data, key)
    try:
        names = ["SSTs/" + str(f["dfsSstFileName"]) for f in document.get("sstFiles") or []]
        names += ["logs/" + str(f["dfsLogFileName"]) for f in document.get("logFiles") or []]
    except (TypeError, KeyError) as error:
        raise CorruptError(key, f"the snapshot's metadata lacks a file name: {error!r}") from error
    for name in names:
        if name.count("/") != 1 or "\x00" in name or name.endswith(("/..", "/.")):
            raise CorruptError(key, f"the snapshot's metadata names {name!r}, outside its store")
    return names


def _zip_metadata(data: bytes, key: str) -> dict[str, Any]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            info = archive.getinfo("metadata")
            if info.file_size > _MAX_ZIP_METADATA:
                raise CorruptError(key, f"the snapshot's metadata claims {info.file_size} bytes")
            with archive.open(info) as entry:
                # The claimed size bounds what we read, whatever the compressed bytes would expand to.
                text = entry.read(info.file_size).decode()
    except ZIP_ERRORS as error:
        raise CorruptError(key, f"the snapshot is not a readable zip: {error!r}") from error
    version, _, body = text.partition("\n")
    if version != "v1":
        raise UnsupportedFormatError(key, f"snapshot metadata of version {version[:20]!r}")
    try:
        document = json.loads(body)
    except ValueError as error:
        raise CorruptError(key, f"the snapshot's metadata is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise CorruptError(key, "the snapshot's metadata is not a JSON object")
    return document
