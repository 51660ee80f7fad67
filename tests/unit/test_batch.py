"""LCB1: what is written can be read by others, and what others write is believed only where it holds."""

from __future__ import annotations

import struct
import subprocess
import sys
import tracemalloc

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.batch import BatchMetrics, BatchReader, CheckpointBatcher, decode_batch, encode_batch
from holdfast.blobs.memory import MemoryBlobs
from holdfast.errors import (
    CorruptError,
    InvalidInputError,
    KeyNotFoundError,
    OutcomeUnknownError,
    StoreUnavailableError,
    UnsupportedFormatError,
)
from holdfast.testing import FaultyBlobs

ENTRIES = [
    ("operators/0/partition-0.snap", b"state " * 50),
    ("", b""),
    ("größe", b"\x00\xff"),
    ("", b"again"),
]


def crc32c(data: bytes) -> int:
    """Bit by bit, from the definition: a second opinion on the wheel."""
    crc = 0xFFFF_FFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F6_3B78 if crc & 1 else 0)
    return crc ^ 0xFFFF_FFFF


def entry(key: bytes, data: bytes) -> bytes:
    return struct.pack("<I", len(key)) + key + struct.pack("<I", len(data)) + data


def literals(body: bytes) -> bytes:
    """``body`` as a raw LZ4 block of literals alone, by hand."""
    if len(body) < 15:
        return bytes([len(body) << 4]) + body
    full, rest = divmod(len(body) - 15, 255)
    return b"\xf0" + b"\xff" * full + bytes([rest]) + body


def batch(
    body: bytes,
    count: int,
    *,
    version: int = 2,
    size: int | None = None,
    claimed: int | None = None,
    block: bytes | None = None,
    magic: bytes = b"LCB1",
) -> bytes:
    """A batch object made by hand, with whatever lies are asked for; its checksum is right."""
    real = len(body)
    payload = struct.pack("<I", real if claimed is None else claimed) + (
        literals(body) if block is None else block
    )
    header = magic + struct.pack("<III", version, count, real if size is None else size)
    return header + (b"" if version == 1 else struct.pack("<I", crc32c(payload))) + payload


GOLDEN_BODY = entry(b"a/b", b"one") + entry("ü".encode(), b"")
GOLDEN = bytes.fromhex(
    # LCB1, version 2, 2 entries, 24 bytes
    "4c434231" "02000000" "02000000" "18000000"
    # CRC-32C, then the size again
    "70f51b52" "18000000"
    # LZ4: 24 literals
    "f009"
    "03000000" "612f62" "03000000" "6f6e65"
    "02000000" "c3bc" "00000000"
)  # fmt: skip


def test_the_checksum_here_is_castagnoli() -> None:
    assert crc32c(b"123456789") == 0xE306_9283


def test_golden_bytes_are_read() -> None:
    assert batch(GOLDEN_BODY, 2) == GOLDEN, "the hex above is what the format says"
    assert decode_batch(GOLDEN) == [("a/b", b"one"), ("ü", b"")]


def test_golden_bytes_of_version_1_are_read() -> None:
    old = GOLDEN[:4] + b"\x01" + GOLDEN[5:16] + GOLDEN[20:]

    assert decode_batch(old) == [("a/b", b"one"), ("ü", b"")]


def test_what_is_written_is_what_the_format_says() -> None:
    encoded = encode_batch(ENTRIES)

    body = b"".join(entry(key.encode(), data) for key, data in ENTRIES)
    assert encoded[:4] == b"LCB1"
    assert struct.unpack_from("<IIII", encoded, 4) == (2, len(ENTRIES), len(body), crc32c(encoded[20:]))
    assert struct.unpack_from("<I", encoded, 20) == (len(body),)
    assert bytes(cramjam.lz4.decompress_block(encoded[20:])) == body


@given(st.lists(st.tuples(st.text(max_size=20), st.binary(max_size=300)), max_size=20))
def test_entries_come_back_in_order_with_duplicates(entries: list[tuple[str, bytes]]) -> None:
    assert decode_batch(encode_batch(entries)) == entries
    assert decode_batch(memoryview(bytearray(encode_batch(entries)))) == entries


def test_entries_may_be_any_kind_of_bytes() -> None:
    encoded = encode_batch([("a", bytearray(b"1")), ("b", memoryview(b"x23x")[1:3]), ("c", [b"4", b"5"])])

    assert decode_batch(encoded) == [("a", b"1"), ("b", b"23"), ("c", b"45")]


def test_zeros_are_compressed() -> None:
    assert len(encode_batch([("zeros", bytes(1_000_000))])) < 10_000


def test_an_empty_batch_is_a_batch() -> None:
    assert decode_batch(encode_batch([])) == []
    assert decode_batch(batch(b"", 0, version=1)) == []
    assert decode_batch(b"LCB1" + struct.pack("<III", 1, 0, 0) + b"\0") == [], (
        "17 bytes, the shortest of version 1"
    )


def test_a_name_that_is_not_text_is_refused() -> None:
    with pytest.raises(InvalidInputError):
        encode_batch([("\ud800", b"")])


# -- hostile bytes

ONE = entry(b"key", b"data")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        pytest.param(b"", "too short", id="nothing"),
        pytest.param(b"LCB", "too short", id="three bytes"),
        pytest.param(GOLDEN[:16], "too short", id="no checksum"),
        pytest.param(GOLDEN[:19], "too short", id="half a checksum"),
        pytest.param(batch(ONE, 1, magic=b"LCB2"), "begins with", id="magic"),
        pytest.param(batch(ONE, 1, magic=b"\0\0\0\0"), "begins with", id="zeros"),
        pytest.param(batch(ONE, 1, version=0), "no batch version 0", id="version 0"),
        pytest.param(GOLDEN[:-1] + b"\x01", "CRC-32C", id="last byte"),
        pytest.param(GOLDEN + b"\0", "CRC-32C", id="a byte more"),
        pytest.param(GOLDEN[:-1], "CRC-32C", id="a byte less"),
        pytest.param(GOLDEN[:20], "CRC-32C", id="header alone"),
        pytest.param(b"LCB1" + struct.pack("<IIII", 2, 0, 0, 0), "ends before", id="no body"),
        pytest.param(
            b"LCB1" + struct.pack("<III", 1, 0, 0) + b"\0\0\0", "ends before", id="no body, version 1"
        ),
        pytest.param(batch(ONE, 1, size=len(ONE) + 1), "header says", id="header's size"),
        pytest.param(batch(ONE, 1, claimed=len(ONE) + 1), "header says", id="body's size"),
        pytest.param(batch(ONE, 1, size=14, claimed=14), "LZ4", id="both sizes too small"),
        pytest.param(batch(ONE, 1, size=99, claimed=99), "holds 15", id="both sizes too large"),
        pytest.param(
            batch(b"", 0, size=1, claimed=1, block=b""), "no 0 compressed bytes", id="something from nothing"
        ),
        pytest.param(batch(ONE, 1, block=b"\xff" * 20), "LZ4", id="not LZ4"),
        pytest.param(batch(ONE, 0), "left over", id="fewer entries claimed"),
        pytest.param(batch(ONE + b"\0", 1), "left over", id="a byte left over"),
        pytest.param(batch(ONE, 2), "truncated", id="more entries claimed"),
        pytest.param(batch(ONE, 0xFFFF_FFFF), "truncated", id="4 billion entries claimed"),
        pytest.param(batch(ONE[:-1], 1), "truncated", id="data cut"),
        pytest.param(batch(ONE[:9], 1), "truncated", id="size of the data cut"),
        pytest.param(batch(ONE[:6], 1), "truncated", id="key cut"),
        pytest.param(batch(ONE[:3], 1), "truncated", id="size of the key cut"),
        pytest.param(batch(b"\xff\xff\xff\xff" + ONE[4:], 1), "truncated", id="key of 4 GiB"),
        pytest.param(batch(entry(b"\xff\xfe", b""), 1), "not UTF-8", id="name"),
    ],
)
def test_damage_and_lies_are_named(data: bytes, said: str) -> None:
    with pytest.raises(CorruptError, match=said) as caught:
        decode_batch(data, key="checkpoints/x/batch-000041.lz4")

    assert caught.value.key == "checkpoints/x/batch-000041.lz4"


@pytest.mark.parametrize("version", [3, 99, 0xFFFF_FFFF])
def test_a_newer_version_asks_for_an_upgrade(version: int) -> None:
    with pytest.raises(UnsupportedFormatError, match=str(version)):
        decode_batch(GOLDEN[:4] + struct.pack("<I", version) + GOLDEN[8:])


def test_every_single_bit_flip_is_found() -> None:
    encoded = encode_batch(ENTRIES)

    for bit in range(len(encoded) * 8):
        flipped = bytearray(encoded)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises((CorruptError, UnsupportedFormatError)):
            decode_batch(flipped)


@given(st.binary(max_size=200))
def test_bytes_of_any_kind_are_refused_in_an_orderly_way(data: bytes) -> None:
    for candidate in (data, b"LCB1\x01\0\0\0" + data):
        try:
            decode_batch(candidate)
        except (CorruptError, UnsupportedFormatError):
            pass
        else:
            assert candidate[:4] == b"LCB1"


@given(st.data())
def test_cuts_and_edits_of_version_1_never_escape(data: st.DataObject) -> None:
    whole = bytearray(
        batch(b"".join(entry(key.encode(), value) for key, value in ENTRIES), len(ENTRIES), version=1)
    )
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(whole[: data.draw(st.integers(0, len(whole)))])

    # Without a checksum some edits must go unnoticed. None may do anything but be read or be refused.
    try:
        decode_batch(cut)
    except (CorruptError, UnsupportedFormatError):
        return


@pytest.mark.parametrize("version", [1, 2])
def test_a_claim_of_4_gib_in_a_small_object_allocates_nothing(version: int) -> None:
    huge = 0xFFFF_FFFF
    bomb = batch(ONE, huge, version=version, size=huge, claimed=huge)

    tracemalloc.start()
    try:
        with pytest.raises(CorruptError, match="hold 4294967295"):
            decode_batch(bomb)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 1_000_000


def test_a_claim_just_within_reason_takes_no_memory_that_the_block_does_not_fill() -> None:
    # 4 MiB of literals that claim to be 1 GiB: possible by the ratio alone. Measured in a process of its own,
    # by what the kernel gave it at most.
    program = """
import re, struct
from pathlib import Path
from holdfast.batch import decode_batch
from holdfast.errors import CorruptError
body = bytes(4 << 20)
full, rest = divmod(len(body) - 15, 255)
block = b"\\xf0" + b"\\xff" * full + bytes([rest]) + body
claimed = 1 << 30
bomb = b"LCB1" + struct.pack("<IIII", 1, 1, claimed, claimed) + block
try:
    decode_batch(bomb)
except CorruptError as error:
    assert "holds 4194304" in str(error), error
    print(int(re.search(r"VmHWM:\\s+([0-9]+) kB", Path("/proc/self/status").read_text())[1]) // 1024)
"""
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert int(told.stdout) < 150, f"{told.stdout.strip()} MiB resident for an object of 4 MiB"


# -- one entry


def test_one_entry_is_read_by_name_with_one_fetch() -> None:
    blobs = MemoryBlobs()
    blobs.create("batch.lz4", encode_batch(ENTRIES))
    faulty = FaultyBlobs(blobs)
    reader = BatchReader(faulty, "batch.lz4")

    assert reader.read("größe") == b"\x00\xff"
    faulty.fail("get", times=None)

    assert reader.keys() == ["operators/0/partition-0.snap", "", "größe"]
    assert reader.read("") == b"again", "the last of two entries with one name"
    with pytest.raises(KeyNotFoundError, match=r"batch\.lz4#missing"):
        reader.read("missing")


def test_a_reader_takes_bytes_that_were_fetched_already() -> None:
    reader = BatchReader(MemoryBlobs(), "batch.lz4", data=encode_batch(ENTRIES))

    assert reader.read("größe") == b"\x00\xff"


def test_a_reader_names_the_object_that_is_damaged_or_missing() -> None:
    blobs = MemoryBlobs()
    blobs.create("bad.lz4", GOLDEN[:-1])

    with pytest.raises(CorruptError, match=r"bad\.lz4"):
        BatchReader(blobs, "bad.lz4").read("a/b")
    with pytest.raises(KeyNotFoundError):
        BatchReader(blobs, "missing.lz4").keys()


# -- the batcher


def test_sizes_count_the_key_the_data_and_eight_more() -> None:
    batcher = CheckpointBatcher(MemoryBlobs())

    batcher.add("four", bytes(100))
    assert batcher.buffer_size() == 112
    batcher.add("ü", b"")

    assert batcher.buffer_size() == 122
    assert len(batcher) == 2


def test_the_threshold_is_reached_at_exactly_its_size() -> None:
    batcher = CheckpointBatcher(MemoryBlobs(), flush_threshold=112)

    batcher.add("four", bytes(99))
    assert not batcher.should_flush()
    batcher.add("", b"")

    assert batcher.should_flush()
    batcher.flush(1)
    assert not batcher.should_flush()


def test_the_default_threshold_is_8_mib() -> None:
    batcher = CheckpointBatcher(MemoryBlobs())

    batcher.add("", bytes(8 * 1024 * 1024 - 9))
    assert not batcher.should_flush()
    batcher.add("", b"")

    assert batcher.should_flush()


def test_nothing_to_flush_writes_and_counts_nothing() -> None:
    blobs = MemoryBlobs()
    batcher = CheckpointBatcher(blobs)

    assert batcher.flush(7) is None
    assert list(blobs.list("")) == []
    assert batcher.metrics() == BatchMetrics()


@pytest.mark.parametrize(
    ("prefix", "directory", "key"),
    [
        ("", "checkpoints/", "checkpoints/batch-000007.lz4"),
        ("nodes/abc123/", "checkpoints/", "nodes/abc123/checkpoints/batch-000007.lz4"),
        ("", "", "batch-000007.lz4"),
    ],
)
def test_a_flush_writes_one_object_where_it_belongs(prefix: str, directory: str, key: str) -> None:
    blobs = MemoryBlobs()
    batcher = CheckpointBatcher(blobs, prefix, directory=directory)
    for name, data in ENTRIES:
        batcher.add(name, data)

    assert batcher.flush(7) == key

    assert [info.key for info in blobs.list("")] == [key]
    assert decode_batch(blobs.get(key)) == ENTRIES
    assert (len(batcher), batcher.buffer_size()) == (0, 0)


def test_metrics_add_up() -> None:
    blobs = MemoryBlobs()
    batcher = CheckpointBatcher(blobs)
    batcher.add("four", bytes(100))
    batcher.flush(1)
    batcher.add("four", bytes(100))
    batcher.add("five!", bytes(1))
    batcher.flush(2)

    written = sum(info.size for info in blobs.list(""))
    assert batcher.metrics() == BatchMetrics(
        batches_flushed=2,
        entries_flushed=3,
        bytes_before_compression=112 + 112 + 14,
        bytes_after_compression=written,
        put_count=2,
    )


def test_a_second_flush_of_an_epoch_overwrites_nothing() -> None:
    # One epoch could flush twice, by size and at its end, to one key: the first half of the state was lost.
    blobs = MemoryBlobs()
    batcher = CheckpointBatcher(blobs)
    keys = []
    for _ in range(3):
        batcher.add("same", b"entry")
        keys.append(batcher.flush(7))

    assert keys == [f"checkpoints/batch-000007{suffix}.lz4" for suffix in ("", "-1", "-2")]
    assert len(list(blobs.list(""))) == 3


def test_another_writers_object_is_stepped_around_even_if_it_holds_the_same() -> None:
    blobs = MemoryBlobs()
    for _ in range(2):
        batcher = CheckpointBatcher(blobs)
        batcher.add("same", b"entry")
        key = batcher.flush(7)

    assert key == "checkpoints/batch-000007-1.lz4"


def test_a_failed_write_leaves_the_entries_to_be_flushed_again() -> None:
    faulty = FaultyBlobs(MemoryBlobs())
    faulty.fail("create")
    batcher = CheckpointBatcher(faulty)
    batcher.add("key", b"data")

    with pytest.raises(StoreUnavailableError):
        batcher.flush(7)

    assert (len(batcher), batcher.metrics()) == (1, BatchMetrics())
    assert batcher.flush(7) == "checkpoints/batch-000007.lz4"


def test_a_write_whose_reply_was_lost_is_recognised_and_not_repeated() -> None:
    blobs = MemoryBlobs()
    faulty = FaultyBlobs(blobs)
    faulty.lose_reply("create")
    batcher = CheckpointBatcher(faulty)
    batcher.add("key", b"data")
    with pytest.raises(OutcomeUnknownError):
        batcher.flush(7)

    assert batcher.flush(7) == "checkpoints/batch-000007.lz4"

    assert [info.key for info in blobs.list("")] == ["checkpoints/batch-000007.lz4"]


def test_a_rivals_object_is_not_taken_for_ours_when_the_reply_was_lost() -> None:
    blobs = MemoryBlobs()
    faulty = FaultyBlobs(blobs)
    faulty.fail("create", OutcomeUnknownError("timed out"))
    batcher = CheckpointBatcher(faulty)
    batcher.add("key", b"ours")
    with pytest.raises(OutcomeUnknownError):
        batcher.flush(7)
    blobs.create("checkpoints/batch-000007.lz4", encode_batch([("key", b"theirs")]))

    assert batcher.flush(7) == "checkpoints/batch-000007-1.lz4"


def test_data_changed_after_it_was_added_changes_nothing() -> None:
    blobs = MemoryBlobs()
    batcher = CheckpointBatcher(blobs)
    buffer = bytearray(b"before")
    batcher.add("key", buffer)

    buffer[:] = b"after!"

    assert decode_batch(blobs.get(batcher.flush(1) or "")) == [("key", b"before")]


def test_a_batcher_that_would_write_beside_its_prefix_is_refused() -> None:
    for wrong in ({"prefix": "nodes"}, {"directory": "checkpoints"}, {"flush_threshold": 0}):
        with pytest.raises(InvalidInputError):
            CheckpointBatcher(MemoryBlobs(), **wrong)  # type: ignore[arg-type]
