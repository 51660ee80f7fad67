"""A checkpoint comes out of the store as a directory: whole, fresh, and with a report of what was done."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.blobs.memory import MemoryBlobs
from holdfast.capture import capture_directory
from holdfast.errors import CheckpointNotFoundError, ConflictError, CorruptError, InvalidInputError
from holdfast.ids import CheckpointId
from holdfast.ledger import PruneRecord, RestoreRecord
from holdfast.manifest import CheckpointManifestV2
from holdfast.recovery import restore
from holdfast.sparkdir import SparkCheckpoint
from holdfast.sparkdir.statefiles import frame_lz4
from holdfast.store import PartitionedCheckpointStore

CONF = {
    "spark.sql.streaming.stateStore.providerClass": "o.a.s.HDFSBackedStateStoreProvider",
    "spark.sql.shuffle.partitions": "1",
}
OPERATOR = {
    "operatorInfo": {"operatorId": 0, "operatorName": "stateStoreSave"},
    "stateStoreInfo": [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 1}],
}


def run_batch(directory: MemoryBlobs, n: int) -> None:
    """What one more batch leaves in a checkpoint directory of a stateful query."""
    directory.put("metadata", b'{"id":"0b0c"}')
    directory.put("state/0/_metadata/metadata", b"v1\n" + json.dumps(OPERATOR).encode())
    head = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": n + 1, "conf": CONF})
    directory.put(f"offsets/{n}", f'v1\n{head}\n{{"logOffset":{n}}}'.encode())
    directory.put(f"sources/0/{n}", b"v1\n")
    directory.put(f"state/0/0/{n + 1}.delta", frame_lz4(b"state %d" % n))
    directory.put(f"commits/{n}", b'v1\n{"nextBatchWatermarkMs":5}')


def contents(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


@pytest.fixture
def store() -> PartitionedCheckpointStore:
    return PartitionedCheckpointStore(MemoryBlobs())


@pytest.fixture
def captured(store: PartitionedCheckpointStore) -> list[CheckpointManifestV2]:
    directory = MemoryBlobs()
    manifests = []
    for n in range(3):
        run_batch(directory, n)
        manifests.append(capture_directory(SparkCheckpoint(directory), store))
    return manifests


def test_a_checkpoint_comes_back_byte_for_byte_and_says_where_the_query_goes_on(
    store, captured, tmp_path: Path
) -> None:
    middle = captured[1]

    report = restore(store, middle.checkpoint_id, tmp_path / "new")

    assert (tmp_path / "new" / "state/0/0/2.delta").read_bytes() == frame_lz4(b"state 1")
    assert (tmp_path / "new" / "commits/1").is_file()
    assert not (tmp_path / "new" / "offsets/2").exists()
    assert (report.checkpoint_id, report.epoch, report.batch_id) == (middle.checkpoint_id, 2, 1)
    assert report.chain == (captured[0].checkpoint_id, middle.checkpoint_id)
    assert report.bytes == sum(p.stat().st_size for p in (tmp_path / "new").rglob("*") if p.is_file())
    assert not report.abandoned
    printed = json.loads(json.dumps(report.to_json()))
    assert (printed["next_batch_id"], printed["target"]) == (2, str(tmp_path / "new"))


def test_a_directory_that_holds_something_is_left_alone(store, captured, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")

    with pytest.raises(ConflictError):
        restore(store, captured[-1].checkpoint_id, tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_what_is_not_there_or_pruned_is_not_found(store, captured, tmp_path: Path) -> None:
    store.ledger.append(PruneRecord(ids=[captured[0].checkpoint_id]), author=store.author)

    for id in (CheckpointId.now(), captured[0].checkpoint_id):
        with pytest.raises(CheckpointNotFoundError):
            restore(store, id, tmp_path / "new")

    assert not (tmp_path / "new").exists()


def test_a_flip_anywhere_in_the_chain_is_an_error_or_touches_nothing_that_is_restored(
    store, captured, tmp_path: Path
) -> None:
    child = captured[1].checkpoint_id
    restore(store, child, tmp_path / "sound")
    sound = contents(tmp_path / "sound")
    first = store.paths.checkpoint_dir(captured[0].checkpoint_id)
    (pack,) = [info.key for info in store.blobs.list(first) if "batch-" in info.key]
    data = store.blobs.get(pack)
    refused = 0

    for byte in range(0, len(data), 19):
        flipped = bytearray(data)
        flipped[byte] ^= 1 << byte % 8
        store.blobs.put(pack, bytes(flipped))
        target = tmp_path / str(byte)
        try:
            restore(PartitionedCheckpointStore(store.blobs), child, target)
        except CorruptError:
            refused += 1
            assert not (target / "metadata").exists(), "Spark would start from it"
        else:
            assert contents(target) == sound

    assert refused > len(data) // 19 // 2


def test_an_abandoned_checkpoint_can_be_looked_at_and_the_report_says_what_it_is(
    store, captured, tmp_path: Path
) -> None:
    target = store.ledger.read().decision_for(captured[0].checkpoint_id)
    store.ledger.append(RestoreRecord(to=target.n), author=store.author)

    assert restore(store, captured[1].checkpoint_id, tmp_path / "one").abandoned
    assert not restore(store, captured[0].checkpoint_id, tmp_path / "two").abandoned


def test_a_checkpoint_that_is_not_of_spark_cannot_become_its_directory(store, tmp_path: Path) -> None:
    writer = store.writer(1)
    writer.add("0", 0, b"state")
    writer.publish()

    with pytest.raises(InvalidInputError, match="Spark"):
        restore(store, writer.id, tmp_path / "new")
