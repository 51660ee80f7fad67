"""Spark's framings, bytes in, facts out. The blocks here are made by hand; real ones are in tests/spark."""

from __future__ import annotations

import io
import json
import struct
import zipfile

import cramjam
import google_crc32c
import pytest

from holdfast.errors import CorruptError, UnsupportedFormatError
from holdfast.sparkdir.statefiles import (
    StateVersion,
    check_checksum,
    decompressed,
    read_changelog_header,
    snapshot_files,
)

END = struct.pack("<8sBiiI", b"LZ4Block", 0x15, 0, 0, 0)


def block(plain: bytes, *, compress: bool = False, claim: int | None = None) -> bytes:
    stored = bytes(cramjam.lz4.compress_block(plain, store_size=False)) if compress else plain
    method = 0x25 if compress else 0x15
    return struct.pack("<8sBiiI", b"LZ4Block", method, len(stored), claim or len(plain), 0) + stored


def changelog(version: int, lineage: list[dict[str, object]] | None) -> bytes:
    head = b"\x00\x02v%d" % version
    if lineage is not None:
        text = json.dumps(lineage).encode()
        head += struct.pack(">H", len(text)) + text
    return block(head + b"\xff\xff\xff\xff", compress=True) + END


def rocksdb_zip(metadata: str, name: str = "metadata") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("CURRENT", "MANIFEST-000005\n")
        archive.writestr(name, metadata)
    return buffer.getvalue()


def test_raw_and_compressed_blocks_are_joined_in_order() -> None:
    data = block(b"first ") + block(b"second " * 20, compress=True) + END

    assert b"".join(decompressed(data, "lz4", "k")) == b"first " + b"second " * 20


def test_a_codec_may_be_named_by_its_class() -> None:
    data = block(b"x") + END

    assert list(decompressed(data, "org.apache.spark.io.LZ4CompressionCodec", "k")) == [b"x"]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "cut short"),
        (block(b"abc"), "cut short"),
        (b"LZ5Block" + block(b"abc")[8:] + END, "no LZ4 block"),
        (block(b"abc", claim=1 << 30) + END, "claims"),
        (block(b"abc", compress=True, claim=4000) + END, "block"),
        (block(b"abcd" * 50, compress=True, claim=3) + END, "decompress"),
        (block(b"abc")[:-2], "claims"),
        (struct.pack("<8sBiiI", b"LZ4Block", 0x75, 3, 3, 0) + b"abc" + END, "method"),
        (struct.pack("<8sBiiI", b"LZ4Block", 0x15, -3, 3, 0) + b"abc" + END, "claims"),
    ],
)
def test_a_block_that_lies_is_corrupt(data: bytes, reason: str) -> None:
    with pytest.raises(CorruptError, match=reason):
        list(decompressed(data, "lz4", "state/0/0/1.delta"))


def test_zstd_is_read_and_its_bombs_are_not() -> None:
    state = b"row" * 1000
    bomb = bytes(cramjam.zstd.compress(bytes(200_000_000)))

    assert b"".join(decompressed(bytes(cramjam.zstd.compress(state)), "zstd", "k")) == state
    with pytest.raises(CorruptError, match="does not decompress"):
        list(decompressed(bomb, "zstd", "k"))


def test_an_unknown_codec_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedFormatError, match="snappy"):
        list(decompressed(b"", "snappy", "k"))


def test_a_file_without_header_is_changelog_version_1() -> None:
    data = block(struct.pack(">i", 3) + b"key") + END

    header = read_changelog_header(data, "lz4", "k")

    assert (header.version, header.lineage) == (1, None)


def test_version_2_has_no_lineage() -> None:
    assert read_changelog_header(changelog(2, None), "lz4", "k").lineage is None


@pytest.mark.parametrize("version", [3, 4])
def test_a_lineage_comes_out_ascending(version: int) -> None:
    lineage = [{"version": 4, "checkpointUniqueId": "b"}, {"version": 3, "checkpointUniqueId": "a"}]

    header = read_changelog_header(changelog(version, lineage), "lz4", "k")

    assert header.lineage == (StateVersion(3, "a"), StateVersion(4, "b"))


def test_a_lineage_longer_than_one_block_is_read_across_blocks() -> None:
    items = [{"version": v, "checkpointUniqueId": f"id-{v}"} for v in range(1, 900)]
    text = json.dumps(items).encode()
    plain = b"\x00\x02v3" + struct.pack(">H", len(text)) + text
    data = b"".join(block(plain[at : at + 1000]) for at in range(0, len(plain), 1000)) + END

    header = read_changelog_header(data, "lz4", "k")

    assert header.lineage is not None
    assert len(header.lineage) == 899


def test_a_lineage_cut_short_is_corrupt() -> None:
    data = block(b"\x00\x02v3" + struct.pack(">H", 500) + b"[]") + END

    with pytest.raises(CorruptError, match="inside its lineage"):
        read_changelog_header(data, "lz4", "k")


def test_a_newer_changelog_asks_for_an_upgrade() -> None:
    with pytest.raises(UnsupportedFormatError, match="version"):
        read_changelog_header(changelog(9, None), "lz4", "k")


def test_a_snapshot_names_its_ssts() -> None:
    metadata = {"sstFiles": [{"localFileName": "8.sst", "dfsSstFileName": "8-uuid.sst", "sizeBytes": 1}]}

    files = snapshot_files(rocksdb_zip("v1\n" + json.dumps(metadata)), "state/0/0/3.zip")

    assert files == ["SSTs/8-uuid.sst"]


@pytest.mark.parametrize("name", ["../../../etc/passwd", "..", "a/b", "a\x00b"])
def test_a_snapshot_that_names_files_outside_its_store_is_corrupt(name: str) -> None:
    metadata = {"sstFiles": [{"localFileName": "8.sst", "dfsSstFileName": name}]}

    with pytest.raises(CorruptError, match="outside its store"):
        snapshot_files(rocksdb_zip("v1\n" + json.dumps(metadata)), "state/0/0/3.zip")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PK\x03\x04 and then nothing",
        rocksdb_zip("v1\n{}")[:-30],
        rocksdb_zip("v1\n{}", name="other"),
        rocksdb_zip("v1\nnot json"),
        rocksdb_zip("v1\n[]"),
        rocksdb_zip('v1\n{"sstFiles":[{}]}'),
    ],
)
def test_a_snapshot_that_is_no_snapshot_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptError):
        snapshot_files(data, "state/0/0/3.zip")


def test_a_zip_bomb_is_refused_before_it_expands() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("metadata", b"v1\n" + bytes(80 << 20))

    with pytest.raises(CorruptError, match="claims"):
        snapshot_files(buffer.getvalue(), "state/0/0/3.zip")


def test_sparks_own_checksum_is_checked_as_a_signed_number() -> None:
    data = b"\x00" * 32  # its CRC-32C has the highest bit set
    value = struct.unpack(">i", struct.pack(">I", google_crc32c.value(data)))[0]
    checksum = json.dumps({"algorithm": "CRC32C", "value": value, "mainFileSize": 32}).encode()

    check_checksum(data, checksum, "state/0/0/1.zip")

    assert value < 0
    for wrong in (b"\x01" + data[1:], data + b"\x00", b""):
        with pytest.raises(CorruptError, match="checksum"):
            check_checksum(wrong, checksum, "state/0/0/1.zip")


def test_a_checksum_of_another_algorithm_proves_nothing() -> None:
    checksum = json.dumps({"algorithm": "MD99", "value": 1, "mainFileSize": 5}).encode()

    check_checksum(b"anything", checksum, "k")


def test_a_checksum_that_is_no_checksum_is_corrupt() -> None:
    with pytest.raises(CorruptError, match=r"k\.crc"):
        check_checksum(b"anything", b"{}", "k")
