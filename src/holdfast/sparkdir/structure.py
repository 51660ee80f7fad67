"""Whether a file of a checkpoint directory is whole, from its own bytes: frames, checksums, record lengths.

This finds what Spark would find when it loads the file, and finds it now, offline. It does not find a flipped
bit in a file that carries no checksum (offsets, commits, SSTs): only a captured checkpoint knows better.
"""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Iterator

from holdfast.errors import CorruptError
from holdfast.sparkdir.reading import parse_commit, parse_offsets, parse_operator
from holdfast.sparkdir.statefiles import (
    ZIP_ERRORS,
    ChangelogHeader,
    decompressed,
    is_lz4,
    lz4_frames,
    read_changelog_header,
    snapshot_files,
)
from holdfast.sparkdir.xxh import XXH_KEPT, XXH_SEED, xxh32

_INT = struct.Struct(">i")
_SST_MAGICS = (0x88E2_41B7_85F4_CFF7, 0xDB47_7524_8B80_FB57)
_MAX_UNZIPPED = 1 << 30
_HASHED_IN_A_MOMENT = 1 << 16


def check_structure(path: str, data: bytes, *, codec: str = "lz4") -> None:
    """Raises CorruptError, or UnsupportedFormatError for what we can't read. ``path`` tells the kind."""
    name = path.rsplit("/", 1)[-1]
    if path.startswith("offsets/"):
        parse_offsets(data, path)
    elif path.startswith("commits/"):
        parse_commit(data, path)
    elif name.endswith((".delta", ".snapshot")):
        _check_blocks(path, data, codec)
        _check_records(path, data, codec, ChangelogHeader(1, None))
    elif name.endswith(".changelog"):
        # Checksums before versions: a flipped bit must not pass for a file of the future.
        _check_blocks(path, data, codec)
        _check_records(path, data, codec, read_changelog_header(data, codec, path))
    elif name.endswith(".zip"):
        _check_zip(path, data)
    elif name.endswith(".sst"):
        _check_sst(path, data)
    elif path.startswith("state/") and ("/_metadata/v2/" in path or path.endswith("/_metadata/metadata")):
        parse_operator(data, path)


def check_frames(path: str, data: bytes, codec: str) -> None:
    """The cheap part of ``check_structure`` for a state file: frames and checksums, not what is in them.

    Block checksums are computed up to a size where plain Python takes a moment and not more.
    """
    if path.endswith((".delta", ".snapshot", ".changelog")):
        if len(data) <= _HASHED_IN_A_MOMENT:
            _check_blocks(path, data, codec)
    elif path.endswith(".zip"):
        _check_zip(path, data)
    elif path.endswith(".sst"):
        _check_sst(path, data)


# --- records


def _check_blocks(path: str, data: bytes, codec: str) -> None:
    if is_lz4(codec):
        for at, plain, recorded in lz4_frames(data, path):
            if xxh32(plain, XXH_SEED) & XXH_KEPT != recorded:
                raise CorruptError(path, f"the LZ4 block at byte {at} does not match its checksum")


def _check_records(path: str, data: bytes, codec: str, header: ChangelogHeader) -> None:
    stream = _Stream(decompressed(data, codec, path), path)
    if header.version >= 2:
        stream.skip(4)
    if header.lineage is not None:
        (length,) = struct.unpack(">H", stream.read(2))
        stream.skip(length)
    if header.version in (2, 4):
        _walk_typed(stream, path)
    else:
        _walk_plain(stream)
    if not stream.at_end():
        raise CorruptError(path, "bytes are left after its last record")


def _walk_plain(stream: _Stream) -> None:
    """Key length, key, value length, value; a value length of -1 is a removal, a key length of -1 the end."""
    while (key := stream.length()) >= 0:
        stream.skip(key)
        stream.skip(max(0, stream.length()))


def _walk_typed(stream: _Stream, path: str) -> None:
    while (kind := stream.read(1)[0]) != 0:
        if kind not in (0x01, 0x10, 0x11):
            raise CorruptError(path, f"a record has type {kind:#x}")
        stream.skip(max(0, stream.length()))
        stream.skip(max(0, stream.length()))


class _Stream:
    """Bytes in pieces. Never holds more than the piece at hand, so a length that lies costs nothing."""

    def __init__(self, pieces: Iterator[bytes], path: str) -> None:
        self._pieces = pieces
        self._path = path
        self._piece = b""
        self._at = 0

    def length(self) -> int:
        (length,) = _INT.unpack(self.read(4))
        if length < -1:
            raise CorruptError(self._path, f"a record claims {length} bytes")
        return int(length)

    def read(self, size: int) -> bytes:
        """Only ever a few bytes."""
        taken = b""
        while len(taken) < size:
            self._need_more()
            step = self._piece[self._at : self._at + size - len(taken)]
            taken += step
            self._at += len(step)
        return taken

    def skip(self, size: int) -> None:
        while size > 0:
            self._need_more()
            step = min(size, len(self._piece) - self._at)
            self._at += step
            size -= step

    def at_end(self) -> bool:
        while self._at == len(self._piece):
            piece = next(self._pieces, None)
            if piece is None:
                return True
            self._piece, self._at = piece, 0
        return False

    def _need_more(self) -> None:
        if self.at_end():
            raise CorruptError(self._path, "it ends inside a record")


# --- RocksDB


def _check_zip(path: str, data: bytes) -> None:
    snapshot_files(data, path)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(info.file_size for info in archive.infolist()) > _MAX_UNZIPPED:
                raise CorruptError(path, "it claims to unpack to more than 1 GiB")
            bad = archive.testzip()
    except ZIP_ERRORS as error:
        raise CorruptError(path, f"the snapshot is not a readable zip: {error!r}") from error
    if bad is not None:
        raise CorruptError(path, f"{bad!r} inside does not match its CRC")


def _check_sst(path: str, data: bytes) -> None:
    if len(data) < 48 or struct.unpack("<Q", data[-8:])[0] not in _SST_MAGICS:
        raise CorruptError(path, "it does not end like an SST file")
