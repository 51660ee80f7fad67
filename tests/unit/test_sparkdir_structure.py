"""What structure alone can tell, on files that Spark wrote (recorded as hex) and on forgeries of them."""

from __future__ import annotations

import io
import struct
import zipfile

import cramjam
import pytest

from holdfast.errors import CorruptError
from holdfast.sparkdir.statefiles import lz4_blocks
from holdfast.sparkdir.structure import check_structure
from holdfast.sparkdir.xxh import xxh32

# Spark 4.3, HDFS-backed: one removed window. RocksDB, format 2: the first changelog of a partition.
DELTA = bytes.fromhex(
    "4c5a34426c6f636b25240000003c000000a8bc3b0b5300000030000100131804000c0200328096981300302d3101090080ff"
    "ffffffffffffff4c5a34426c6f636b15000000000000000000000000"
)
CHANGELOG = bytes.fromhex(
    "4c5a34426c6f636b2559000000020100000e038708d40002763300025b5d00000031000100131804000f020005348096981b"
    "00141909002300020a00130508000f520002110318000e02000f52000a160b30000ea40016041d000902000f52000ac00d00"
    "000000000000ffffffff4c5a34426c6f636b15000000000000000000000000"
)
SEED = 0x9747B28C


def framed(plain: bytes) -> bytes:
    """As lz4-java frames it, checksum and end mark included."""
    head = struct.pack("<8sBiiI", b"LZ4Block", 0x15, len(plain), len(plain), xxh32(plain, SEED) & 0x0FFF_FFFF)
    return head + plain + struct.pack("<8sBiiI", b"LZ4Block", 0x15, 0, 0, 0)


@pytest.mark.parametrize(
    ("data", "seed", "expected"),
    [
        (b"", 0, 0x02CC5D05),
        (b"a", 0, 0x550D7456),
        (b"abc", 0, 0x32D153FF),
        (b"Nobody inspects the spammish repetition", 0, 0xE2293B2F),
    ],
)
def test_xxh32_gives_the_published_values(data: bytes, seed: int, expected: int) -> None:
    assert xxh32(data, seed) == expected


@pytest.mark.parametrize(
    ("path", "data"), [("state/0/0/9.delta", DELTA), ("state/0/0/1_u.changelog", CHANGELOG)]
)
def test_what_spark_wrote_is_sound(path: str, data: bytes) -> None:
    check_structure(path, data)


@pytest.mark.parametrize(
    ("path", "data"), [("state/0/0/9.delta", DELTA), ("state/0/0/1_u.changelog", CHANGELOG)]
)
def test_every_flipped_bit_that_could_change_the_state_is_found(path: str, data: bytes) -> None:
    plain = list(lz4_blocks(data, path))
    passed = 0
    for position in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            try:
                check_structure(path, bytes(flipped))
            except CorruptError:
                continue
            # A compression level, the end mark's checksum, a match that copies the same zeros from elsewhere.
            assert list(lz4_blocks(bytes(flipped), path)) == plain, (position, bit)
            passed += 1

    assert passed < len(data), "most flips are not harmless"


@pytest.mark.parametrize("cut", [1, 20, 40])
def test_a_file_cut_short_is_found(cut: int) -> None:
    with pytest.raises(CorruptError):
        check_structure("state/0/0/9.delta", DELTA[:-cut])


def record(key: bytes, value: bytes | None) -> bytes:
    head = struct.pack(">i", len(key)) + key
    return head + (struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value)


@pytest.mark.parametrize(
    "plain",
    [
        record(b"k", b"v"),  # no end
        record(b"k", b"v") + struct.pack(">i", -1) + b"x",  # something after the end
        struct.pack(">i", 1 << 30) + b"k",  # a key longer than the file
        struct.pack(">i", -7),
        struct.pack(">i", 1) + b"k" + struct.pack(">i", -9),
    ],
)
def test_records_that_do_not_add_up_are_corrupt(plain: bytes) -> None:
    with pytest.raises(CorruptError):
        check_structure("state/0/0/1.delta", framed(plain))


def test_typed_records_of_version_2_are_walked() -> None:
    put, removed, merged = (
        b"\x01" + record(b"k", b"v"),
        b"\x10" + record(b"k", None),
        b"\x11" + record(b"k", b"w"),
    )
    end = b"\x00"

    check_structure("state/0/0/1.changelog", framed(b"\x00\x02v2" + put + removed + merged + end))

    with pytest.raises(CorruptError, match="type"):
        check_structure("state/0/0/1.changelog", framed(b"\x00\x02v2" + b"\x07" + put + end))


def test_zstd_state_is_walked_without_a_block_checksum() -> None:
    plain = record(b"k", b"v") + struct.pack(">i", -1)

    check_structure("state/0/0/1.delta", bytes(cramjam.zstd.compress(plain)), codec="zstd")

    with pytest.raises(CorruptError):
        check_structure("state/0/0/1.delta", bytes(cramjam.zstd.compress(plain[:-1])), codec="zstd")


def test_a_flipped_bit_in_a_snapshots_member_is_found_by_its_crc() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("metadata", 'v1\n{"sstFiles":[]}')
        archive.writestr("MANIFEST-000005", b"manifest bytes")
    data = bytearray(buffer.getvalue())
    data[data.index(b"manifest bytes")] ^= 4

    with pytest.raises(CorruptError, match="MANIFEST-000005"):
        check_structure("state/0/0/1.zip", bytes(data))


def test_an_sst_without_its_footer_is_corrupt() -> None:
    check_structure("state/0/0/SSTs/1-u.sst", bytes(64) + bytes.fromhex("f7cff485b741e288"))

    for torn in (b"", bytes(72)):
        with pytest.raises(CorruptError, match="SST"):
            check_structure("state/0/0/SSTs/1-u.sst", torn)


@pytest.mark.parametrize(
    "path", ["offsets/1", "commits/1", "state/0/_metadata/metadata", "state/0/_metadata/v2/0"]
)
def test_a_log_that_is_none_is_corrupt(path: str) -> None:
    with pytest.raises(CorruptError):
        check_structure(path, b"v1\n{")
