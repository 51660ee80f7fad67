"""Which files a resume needs, on directories made by hand. Spark's own directories are in tests/spark."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable

import pytest

from holdfast.blobs.memory import MemoryBlobs
from holdfast.errors import CorruptError, UnsupportedFormatError
from holdfast.sparkdir import IncompleteBatchError, SparkCheckpoint, plan_batch, required_files

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
END = struct.pack("<8sBiiI", b"LZ4Block", 0x15, 0, 0, 0)


class Directory:
    """A checkpoint directory under construction."""

    def __init__(self, provider: str = HDFS, partitions: int = 1) -> None:
        self.blobs = MemoryBlobs()
        self.checkpoint = SparkCheckpoint(self.blobs)
        self._conf = {
            "spark.sql.streaming.stateStore.providerClass": provider,
            "spark.sql.shuffle.partitions": str(partitions),
        }
        self.put("metadata", '{"id":"0b0c"}')

    def put(self, path: str, text: str | bytes = "x") -> None:
        self.blobs.put(path, text.encode() if isinstance(text, str) else text)

    def offsets(self, n: int, *sources: str) -> None:
        head = {"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": self._conf}
        self.put(f"offsets/{n}", "\n".join(["v1", json.dumps(head), *sources]))

    def commit(self, n: int, ids: dict[str, list[list[str]]] | None = None) -> None:
        document: dict[str, object] = {"nextBatchWatermarkMs": 7}
        if ids is not None:
            document["stateUniqueIds"] = ids
        self.put(f"commits/{n}", f"v{1 if ids is None else 2}\n{json.dumps(document)}")

    def batches(self, last: int, *sources: str) -> None:
        for n in range(last + 1):
            self.offsets(n, *sources)
            self.commit(n)

    def operator(self, op: int, stores: Iterable[str] = ("default",), partitions: int = 1) -> None:
        info = [{"storeName": s, "numColsPrefixKey": 0, "numPartitions": partitions} for s in stores]
        document = {
            "operatorInfo": {"operatorId": op, "operatorName": "stateStoreSave"},
            "stateStoreInfo": info,
        }
        self.put(f"state/{op}/_metadata/metadata", "v1\n" + json.dumps(document))

    def changelog(self, directory: str, version: int, uid: str, lineage: Iterable[tuple[int, str]]) -> None:
        text = json.dumps([{"version": v, "checkpointUniqueId": u} for v, u in lineage]).encode()
        plain = b"\x00\x02v3" + struct.pack(">H", len(text)) + text + b"\xff\xff\xff\xff"
        block = struct.pack("<8sBiiI", b"LZ4Block", 0x15, len(plain), len(plain), 0) + plain
        self.put(f"{directory}/{version}_{uid}.changelog", block + END)

    def state(self, n: int) -> set[str]:
        return {f.path for f in required_files(self.checkpoint, n) if f.partition is not None}

    def paths(self, n: int) -> set[str]:
        return {f.path for f in required_files(self.checkpoint, n)}


def test_a_stateless_batch_needs_two_offsets_and_its_commit() -> None:
    directory = Directory()
    directory.batches(9, '{"logOffset":9}')
    for n in range(10):
        directory.put(f"sources/0/{n}")

    assert {p for p in directory.paths(5) if not p.startswith("sources")} == {
        "metadata",
        "offsets/4",
        "offsets/5",
        "commits/5",
    }


def test_the_first_batch_needs_no_offsets_before_it() -> None:
    directory = Directory()
    directory.batches(0, "-")

    assert directory.paths(0) == {"metadata", "offsets/0", "commits/0"}


@pytest.mark.parametrize("gone", ["metadata", "offsets/4", "offsets/5", "commits/5"])
def test_a_missing_log_file_is_named(gone: str) -> None:
    directory = Directory()
    directory.batches(6, "-")
    directory.blobs.delete(gone)

    with pytest.raises(IncompleteBatchError, match=gone):
        required_files(directory.checkpoint, 5)


def test_an_empty_commit_file_is_a_crash_and_not_a_commit() -> None:
    directory = Directory()
    directory.batches(6, "-")
    directory.put("commits/6", b"")

    assert directory.checkpoint.latest_committed() == 5
    with pytest.raises(IncompleteBatchError, match="commits/6"):
        required_files(directory.checkpoint, 6)


def test_inside_the_batch_the_commit_is_what_the_caller_says_it_will_be() -> None:
    directory = Directory()
    directory.batches(4, "-")
    directory.offsets(5, "-")

    plan = plan_batch(directory.checkpoint, 5, 'v1\n{"nextBatchWatermarkMs":12}')

    assert plan.contents["commits/5"] == b'v1\n{"nextBatchWatermarkMs":12}'
    assert plan.commit.next_watermark_ms == 12


def test_a_source_log_is_needed_from_the_newest_compacted_entry_to_the_batches_own() -> None:
    directory = Directory()
    directory.batches(9, '{"logOffset":7}')
    for name in ("0", "1", "2.compact", "3", "4", "5.compact", "6", "7", "8.compact", "9"):
        directory.put(f"sources/0/{name}")

    sources = {p for p in directory.paths(9) if p.startswith("sources")}

    assert sources == {"sources/0/5.compact", "sources/0/6", "sources/0/7"}


def test_a_hole_in_a_source_log_is_incomplete() -> None:
    directory = Directory()
    directory.batches(3, '{"logOffset":3}')
    for name in ("0", "1", "3"):
        directory.put(f"sources/0/{name}")

    with pytest.raises(IncompleteBatchError, match="sources/0/2"):
        required_files(directory.checkpoint, 3)


def test_other_sources_keep_where_they_began() -> None:
    directory = Directory()
    directory.batches(3, '{"topic":{"0":23}}', "12")
    directory.put("sources/0/0", 'v1\n{"topic":{"0":1}}')
    directory.put("sources/1/0", "1700000000000")
    directory.put("sources/1/.0.crc")

    assert {p for p in directory.paths(3) if p.startswith("sources")} == {"sources/0/0", "sources/1/0"}


def test_a_named_source_keeps_its_log_under_its_name() -> None:
    directory = Directory()
    head = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": {}})
    directory.put("offsets/0", f'v2\n{head}\norders:{{"logOffset":0}}')
    directory.commit(0)
    directory.put("sources/orders/0")

    assert "sources/orders/0" in directory.paths(0)


# --- format 1


def test_a_delta_store_needs_its_newest_snapshot_and_the_deltas_after_it() -> None:
    directory = Directory()
    directory.batches(8, "-")
    directory.operator(0)
    for name in (*(f"{v}.delta" for v in range(1, 10)), "3.snapshot", "6.snapshot", "9.snapshot"):
        directory.put(f"state/0/0/{name}")
    directory.put("state/0/0/.7.delta.crc")

    assert directory.state(7) == {"state/0/0/6.snapshot", "state/0/0/7.delta", "state/0/0/8.delta"}


def test_without_snapshot_every_delta_from_the_first_on_is_needed() -> None:
    directory = Directory()
    directory.batches(2, "-")
    directory.operator(0)
    for v in (1, 2, 3):
        directory.put(f"state/0/0/{v}.delta")

    assert directory.state(2) == {f"state/0/0/{v}.delta" for v in (1, 2, 3)}


def test_a_missing_delta_is_named() -> None:
    directory = Directory()
    directory.batches(4, "-")
    directory.operator(0)
    for v in (1, 2, 4, 5):
        directory.put(f"state/0/0/{v}.delta")

    with pytest.raises(IncompleteBatchError, match=r"state/0/0/3\.delta"):
        required_files(directory.checkpoint, 4)


def test_a_partition_without_state_is_incomplete_and_not_empty() -> None:
    directory = Directory(partitions=2)
    directory.batches(0, "-")
    directory.operator(0, partitions=2)
    directory.put("state/0/0/1.delta")

    with pytest.raises(IncompleteBatchError, match=r"state/0/1/1\.delta"):
        required_files(directory.checkpoint, 0)


def test_every_store_of_a_join_is_needed_and_so_is_what_describes_it() -> None:
    stores = ("left-keyToNumValues", "left-keyWithIndexToValue")
    directory = Directory()
    directory.batches(0, "-")
    directory.operator(0, stores)
    for store in stores:
        directory.put(f"state/0/0/{store}/1.delta")
        directory.put(f"state/0/0/{store}/_metadata/schema")

    paths = directory.paths(0)

    assert {f"state/0/0/{s}/1.delta" for s in stores} <= paths
    assert {f"state/0/0/{s}/_metadata/schema" for s in stores} | {"state/0/_metadata/metadata"} <= paths


def test_an_unknown_state_provider_is_refused_by_name() -> None:
    directory = Directory(provider="com.example.MyProvider")
    directory.batches(0, "-")
    directory.operator(0)

    with pytest.raises(UnsupportedFormatError, match="MyProvider"):
        required_files(directory.checkpoint, 0)


# --- format 2


def format_2(*, uid: str = "c3") -> Directory:
    """Batches 0 to 2, whose changelogs are a1, b2, c3. A retried task left another version 3, ``lost``."""
    directory = Directory(ROCKSDB)
    directory.batches(1, "-")
    directory.offsets(2, "-")
    directory.commit(2, {"0": [[uid]]})
    directory.operator(0)
    directory.changelog("state/0/0", 1, "a1", [])
    directory.changelog("state/0/0", 2, "b2", [(1, "a1")])
    directory.changelog("state/0/0", 3, "c3", [(1, "a1"), (2, "b2")])
    directory.changelog("state/0/0", 3, "lost", [(1, "a1"), (2, "b2")])
    return directory


def test_ids_come_from_the_commit_and_never_from_a_listing() -> None:
    assert format_2().state(2) == {f"state/0/0/{name}.changelog" for name in ("1_a1", "2_b2", "3_c3")}
    assert "state/0/0/3_lost.changelog" in format_2(uid="lost").state(2)


def test_sparks_checksums_come_along_where_they_are() -> None:
    directory = format_2()
    directory.put("state/0/0/2_b2.changelog.crc")

    assert "state/0/0/2_b2.changelog.crc" in directory.state(2)


def test_a_lineage_that_reaches_neither_a_snapshot_nor_the_beginning_is_incomplete() -> None:
    directory = format_2()
    directory.changelog("state/0/0", 3, "c3", [(2, "b2")])

    with pytest.raises(IncompleteBatchError, match=r"2_b2\.zip"):
        required_files(directory.checkpoint, 2)


@pytest.mark.parametrize(
    "lineage",
    [[(3, "c3")], [(1, "a1")], [(2, "b2"), (2, "b2")], [(0, "z"), (1, "a"), (2, "b")]],
)
def test_a_lineage_that_is_not_the_run_of_versions_before_is_corrupt(lineage: list[tuple[int, str]]) -> None:
    directory = format_2()
    directory.changelog("state/0/0", 3, "c3", lineage)

    with pytest.raises(CorruptError, match="lineage"):
        required_files(directory.checkpoint, 2)


def test_a_missing_changelog_and_snapshot_are_incomplete() -> None:
    directory = format_2()
    directory.blobs.delete("state/0/0/3_c3.changelog")

    with pytest.raises(IncompleteBatchError, match="3_c3"):
        required_files(directory.checkpoint, 2)


def test_a_commit_with_too_few_ids_for_the_stores_is_corrupt() -> None:
    directory = format_2()
    directory.operator(0, ("left", "right"))

    with pytest.raises(CorruptError, match="1 state ids for 2 stores"):
        required_files(directory.checkpoint, 2)


def test_what_a_chain_holds_under_a_unique_name_is_not_asked_for_again() -> None:
    directory = format_2()
    held = {"state/0/0/1_a1.changelog", "state/0/0/2_b2.changelog"}

    plan = plan_batch(directory.checkpoint, 2, held=held)

    assert [f.path for f in plan.files if f.partition is not None] == ["state/0/0/3_c3.changelog"]


def test_a_plan_does_not_hold_large_state_in_memory() -> None:
    directory = format_2()
    head = directory.blobs.get("state/0/0/3_c3.changelog").removesuffix(END)
    rows = struct.pack("<8sBiiI", b"LZ4Block", 0x15, 1 << 19, 1 << 19, 0) + bytes(1 << 19)
    directory.put("state/0/0/3_c3.changelog", head + rows + END)

    plan = plan_batch(directory.checkpoint, 2)

    assert "state/0/0/3_c3.changelog" in {f.path for f in plan.files}
    assert "state/0/0/3_c3.changelog" not in plan.contents


def test_what_a_chain_lacks_of_the_lineage_is_asked_for() -> None:
    directory = format_2()

    plan = plan_batch(directory.checkpoint, 2, held={"state/0/0/1_a1.changelog"})

    assert {f.path for f in plan.files if f.partition is not None} == {
        "state/0/0/2_b2.changelog",
        "state/0/0/3_c3.changelog",
    }


def test_a_chain_that_holds_everything_from_the_beginning_needs_no_snapshot() -> None:
    directory = format_2()
    directory.put("state/0/0/2_b2.zip", b"a snapshot that came later, and that nobody needs to read")

    plan = plan_batch(directory.checkpoint, 2, held={"state/0/0/1_a1.changelog", "state/0/0/2_b2.changelog"})

    assert [f.path for f in plan.files if f.partition is not None] == ["state/0/0/3_c3.changelog"]


def test_a_source_log_is_followed_down_to_what_the_chain_holds() -> None:
    directory = Directory()
    directory.batches(9, '{"logOffset":9}')
    for name in ("8", "9"):
        directory.put(f"sources/0/{name}")

    plan = plan_batch(directory.checkpoint, 9, held={"sources/0/7"})

    assert {f.path for f in plan.files if f.role == "source"} == {"sources/0/8", "sources/0/9"}


def test_descriptions_of_an_operator_from_later_batches_stay_behind() -> None:
    directory = Directory()
    directory.batches(3, "-")
    info = {"operatorInfo": {"operatorId": 0, "operatorName": "tws"}, "stateStoreInfo": []}
    for batch in (0, 2, 3):
        directory.put(f"state/0/_metadata/v2/{batch}", "v2\n" + json.dumps(info))
        directory.put(f"state/0/_stateSchema/default/{batch}_some-id", b"schema")

    described = {f.path for f in required_files(directory.checkpoint, 2) if f.role == "operator"}

    assert described == {
        "state/0/_metadata/v2/0",
        "state/0/_metadata/v2/2",
        "state/0/_stateSchema/default/0_some-id",
        "state/0/_stateSchema/default/2_some-id",
    }


# --- logs as text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "v1",
        "x1\n{}",
        "v1\nnot json",
        "v1\n[]",
        'v1\n{"batchWatermarkMs":"soon","batchTimestampMs":1}',
        "v1\n{}",
    ],
)
def test_an_offsets_file_that_is_none_is_corrupt_or_absent(text: str) -> None:
    directory = Directory()
    directory.batches(1, "-")
    directory.put("offsets/1", text)

    with pytest.raises((CorruptError, IncompleteBatchError)):
        required_files(directory.checkpoint, 1)


def test_a_newer_log_version_asks_for_an_upgrade() -> None:
    directory = Directory()
    directory.batches(1, "-")
    directory.put("commits/1", "v9\n{}")

    with pytest.raises(UnsupportedFormatError):
        required_files(directory.checkpoint, 1)


def test_a_store_name_that_leads_elsewhere_is_corrupt() -> None:
    directory = Directory()
    directory.batches(0, "-")
    directory.operator(0, ("../../../../etc",))

    with pytest.raises(CorruptError, match="cannot name a state store"):
        required_files(directory.checkpoint, 0)
