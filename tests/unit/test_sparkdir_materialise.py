"""Writing a checkpoint directory: whole or refused, inside its target, whatever the store holds."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from holdfast.batch import decode_batch, encode_batch
from holdfast.blobs.memory import MemoryBlobs
from holdfast.capture import capture_directory
from holdfast.errors import ConflictError, CorruptError, InvalidInputError
from holdfast.manifest import CheckpointManifestV2, Engine
from holdfast.sparkdir import FileEntry, IncompleteBatchError, SparkCheckpoint
from holdfast.sparkdir.index import INDEX_PATH, encode_index
from holdfast.sparkdir.materialise import chain_index, materialise
from holdfast.sparkdir.statefiles import frame_lz4
from holdfast.store.partitioned import PartitionedCheckpointStore

COMMIT = b'v1\n{"nextBatchWatermarkMs":5}'


def offsets(timestamp_ms: int = 1) -> bytes:
    conf = {
        "spark.sql.streaming.stateStore.providerClass": "o.a.s.HDFSBackedStateStoreProvider",
        "spark.sql.shuffle.partitions": "1",
    }
    head = {"batchWatermarkMs": 0, "batchTimestampMs": timestamp_ms, "conf": conf}
    return f'v1\n{json.dumps(head)}\n{{"logOffset":0}}'.encode()


def operator(partitions: int = 1) -> bytes:
    document = {
        "operatorInfo": {"operatorId": 0, "operatorName": "stateStoreSave"},
        "stateStoreInfo": [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": partitions}],
    }
    return b"v1\n" + json.dumps(document).encode()


def delta(version: int, life: bytes = b"state") -> bytes:
    return frame_lz4(life + b" %d" % version)


def directory(batches: int, *, timestamp_ms: int = 1, life: bytes = b"state") -> MemoryBlobs:
    blobs = MemoryBlobs()
    blobs.put("metadata", b'{"id":"0b0c"}')
    blobs.put("sources/0/0", b"v1\n")
    blobs.put("state/0/_metadata/metadata", operator())
    for n in range(batches):
        blobs.put(f"offsets/{n}", offsets(timestamp_ms + n))
        blobs.put(f"commits/{n}", COMMIT)
        blobs.put(f"state/0/0/{n + 1}.delta", delta(n + 1, life))
    blobs.put("state/0/0/.1.delta.crc", b"hadoop's own")
    return blobs


@pytest.fixture
def store() -> PartitionedCheckpointStore:
    return PartitionedCheckpointStore(MemoryBlobs())


def files(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


# --- what comes back


def test_what_was_captured_comes_back_byte_for_byte(
    store: PartitionedCheckpointStore, tmp_path: Path
) -> None:
    blobs = directory(3)
    manifest = capture_directory(SparkCheckpoint(blobs), store)

    restored = materialise(manifest, store, tmp_path / "new")

    expected = {info.key: blobs.get(info.key) for info in blobs.list("") if "/." not in info.key}
    for old in ("offsets/0", "commits/0", "commits/1"):
        del expected[old]
    assert files(tmp_path / "new") == expected
    assert restored.batch_id == 2
    assert restored.bytes == sum(map(len, expected.values()))


def test_a_chain_is_the_union_of_its_captures(store: PartitionedCheckpointStore, tmp_path: Path) -> None:
    first = capture_directory(SparkCheckpoint(directory(2)), store)
    second = capture_directory(SparkCheckpoint(directory(4)), store)

    restored = materialise(second, store, tmp_path / "new")

    assert second.parent_id == first.checkpoint_id
    assert {f"state/0/0/{v}.delta" for v in (1, 2, 3, 4)} <= set(files(tmp_path / "new"))
    assert restored.files == chain_index(store, second.checkpoint_id)


def test_a_delta_stores_only_what_the_chain_lacks(store: PartitionedCheckpointStore) -> None:
    capture_directory(SparkCheckpoint(directory(2)), store)
    second = capture_directory(SparkCheckpoint(directory(3)), store)

    newest = dict(decode_batch(store.read_state(second.checkpoint_id, "0", 0)[-1]))

    assert newest == {"state/0/0/3.delta": delta(3)}


def test_a_file_written_again_with_other_bytes_travels_again(
    store: PartitionedCheckpointStore, tmp_path: Path
) -> None:
    capture_directory(SparkCheckpoint(directory(2)), store)
    rerun = directory(3, life=b"again")

    newest = capture_directory(SparkCheckpoint(rerun), store)
    materialise(newest, store, tmp_path / "new")

    assert newest.parent_id is not None
    assert files(tmp_path / "new")["state/0/0/1.delta"] == delta(1, b"again")


def test_a_directory_that_went_another_way_is_not_taken_for_a_continuation(
    store: PartitionedCheckpointStore,
) -> None:
    capture_directory(SparkCheckpoint(directory(2, timestamp_ms=1)), store)

    other = capture_directory(SparkCheckpoint(directory(4, timestamp_ms=9_000)), store)

    assert other.parent_id is None
    assert not any(part.is_delta for entry in other.operators.values() for part in entry.partitions)


def test_the_chain_starts_anew_before_it_gets_too_long(
    store: PartitionedCheckpointStore, tmp_path: Path
) -> None:
    lengths = []
    for batches in range(1, 30):
        manifest = capture_directory(SparkCheckpoint(directory(batches)), store)
        lengths.append(len(store.chain(manifest.checkpoint_id)))
        if lengths[-1] == 1:
            materialise(manifest, store, tmp_path / f"new-{batches}")

    assert max(lengths) == 20
    assert lengths.count(1) == 2


def test_an_older_batch_stands_on_its_own(store: PartitionedCheckpointStore, tmp_path: Path) -> None:
    capture_directory(SparkCheckpoint(directory(5)), store)

    older = capture_directory(SparkCheckpoint(directory(5)), store, batch=2)
    materialise(older, store, tmp_path / "new")

    assert older.parent_id is None
    assert "state/0/0/4.delta" not in files(tmp_path / "new")


def test_a_batch_captured_twice_is_written_once(store: PartitionedCheckpointStore) -> None:
    first = capture_directory(SparkCheckpoint(directory(3)), store)
    before = [info.key for info in store.blobs.list("")]

    again = capture_directory(SparkCheckpoint(directory(3)), store)

    assert again.checkpoint_id == first.checkpoint_id
    assert [info.key for info in store.blobs.list("")] == before


def test_input_files_that_were_moved_are_known_under_their_new_names(
    store: PartitionedCheckpointStore, tmp_path: Path
) -> None:
    blobs = directory(1)
    entries = [
        '{"path":"file:///data/in%20box/a%20b.json","timestamp":1,"batchId":0}',
        '{"path":"file:///data/in%20boxes/c.json","timestamp":1,"batchId":0}',
    ]
    blobs.put("sources/0/0", "\n".join(["v1", *entries]).encode())
    manifest = capture_directory(SparkCheckpoint(blobs), store)

    moved = materialise(manifest, store, tmp_path / "new", moved_inputs={"/data/in box/": "s3://lake/in"})
    left = materialise(manifest, store, tmp_path / "as-it-was")

    assert (tmp_path / "new/sources/0/0").read_text().split("\n") == [
        "v1",
        '{"path":"s3://lake/in/a%20b.json","timestamp":1,"batchId":0}',
        entries[1],
    ]
    assert moved.rewritten == ("sources/0/0",)
    assert left.rewritten == ()
    assert (tmp_path / "as-it-was/sources/0/0").read_bytes() == blobs.get("sources/0/0")


def test_schema_paths_inside_operator_metadata_name_the_new_place(
    store: PartitionedCheckpointStore, tmp_path: Path
) -> None:
    blobs = directory(1)
    info = json.loads(operator().split(b"\n", 1)[1])
    info["stateStoreInfo"][0]["stateSchemaFilePaths"] = ["file:/old/place/state/0/_stateSchema/default/0_u"]
    blobs.put("state/0/_metadata/v2/0", b"v2\n" + json.dumps(info).encode())
    blobs.put("state/0/_stateSchema/default/0_u", b"schema")
    manifest = capture_directory(SparkCheckpoint(blobs), store)

    restored = materialise(manifest, store, tmp_path / "new")

    text = (tmp_path / "new/state/0/_metadata/v2/0").read_text().split("\n")[1]
    paths = json.loads(text)["stateStoreInfo"][0]["stateSchemaFilePaths"]
    assert paths == [f"file:{tmp_path}/new/state/0/_stateSchema/default/0_u"]
    assert restored.rewritten == ("state/0/_metadata/v2/0",)
    assert json.loads(text)["operatorInfo"] == info["operatorInfo"]


# --- what is refused


def test_a_directory_with_something_in_it_is_left_alone(
    store: PartitionedCheckpointStore, tmp_path: Path
) -> None:
    manifest = capture_directory(SparkCheckpoint(directory(1)), store)
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "precious").write_text("mine")

    with pytest.raises(ConflictError, match="not empty"):
        materialise(manifest, store, tmp_path / "new")

    assert files(tmp_path / "new") == {"precious": b"mine"}


def test_a_file_where_the_directory_should_be_is_refused(
    store: PartitionedCheckpointStore, tmp_path: Path
) -> None:
    manifest = capture_directory(SparkCheckpoint(directory(1)), store)
    (tmp_path / "new").write_text("mine")

    with pytest.raises(ConflictError, match="not a directory"):
        materialise(manifest, store, tmp_path / "new")


def test_a_checkpoint_of_something_else_cannot_be_materialised(
    store: PartitionedCheckpointStore, tmp_path: Path
) -> None:
    manifest = store.writer(1).publish()

    with pytest.raises(InvalidInputError, match="not taken from a Spark checkpoint"):
        materialise(manifest, store, tmp_path / "new")


HOSTILE = [
    "../outside",
    "state/0/0/../../../../outside",
    "/etc/outside",
    "state//0",
    "state/0/0/.hidden",
    "elsewhere/x",
    "",
    "state/0/0/a\\b",
]


def hostile(store: PartitionedCheckpointStore, path: str, *, among_logs: bool) -> CheckpointManifestV2:
    """A checkpoint, sealed and sound, by somebody who means harm."""
    blobs = directory(1)
    logs = {info.key: blobs.get(info.key) for info in blobs.list("") if "/0/0/" not in info.key}
    state = {"state/0/0/1.delta": b"state 1"}
    (logs if among_logs else state)[path] = b"harm"
    index = {key: FileEntry.of(data) for key, data in {**logs, **state}.items()}
    writer = store.writer(1)
    writer.add("0", 0, encode_batch(state.items()))
    writer.add_logs(encode_batch([(INDEX_PATH, encode_index(index)), *logs.items()]))
    writer.manifest.engine = Engine(batch_id=0)
    return writer.publish()


@pytest.mark.parametrize("path", HOSTILE)
@pytest.mark.parametrize("among_logs", [True, False])
def test_a_name_that_spark_would_not_write_is_refused_and_nothing_lands_outside(
    store: PartitionedCheckpointStore, tmp_path: Path, path: str, among_logs: bool
) -> None:
    manifest = hostile(store, path, among_logs=among_logs)

    with pytest.raises(CorruptError):
        materialise(manifest, store, tmp_path / "a" / "new")

    assert {p.name for p in tmp_path.rglob("*")} <= {"a", "new"}


def test_a_file_held_twice_is_written_once(store: PartitionedCheckpointStore, tmp_path: Path) -> None:
    blobs = directory(1)
    logs = {info.key: blobs.get(info.key) for info in blobs.list("") if "/0/0/" not in info.key}
    index = {key: FileEntry.of(data) for key, data in {**logs, "state/0/0/1.delta": delta(1)}.items()}
    writer = store.writer(1)
    writer.add("0", 0, encode_batch([("state/0/0/1.delta", delta(1))] * 2))
    writer.add_logs(encode_batch([(INDEX_PATH, encode_index(index)), *logs.items()]))
    writer.manifest.engine = Engine(batch_id=0)

    restored = materialise(writer.publish(), store, tmp_path / "new")

    assert restored.bytes == sum(map(len, files(tmp_path / "new").values()))


def test_a_partition_cannot_write_another_partitions_files(
    store: PartitionedCheckpointStore, tmp_path: Path
) -> None:
    manifest = hostile(store, "state/0/1/1.delta", among_logs=False)

    with pytest.raises(CorruptError, match="where its artifact belongs"):
        materialise(manifest, store, tmp_path / "new")


def test_a_checkpoint_that_lacks_a_file_never_looks_whole(
    store: PartitionedCheckpointStore, tmp_path: Path
) -> None:
    blobs = directory(1)
    logs = {info.key: blobs.get(info.key) for info in blobs.list("") if "/0/0/" not in info.key}
    writer = store.writer(1)
    writer.add("0", 0, encode_batch([]))
    index = {key: FileEntry.of(data) for key, data in logs.items()}
    writer.add_logs(encode_batch([(INDEX_PATH, encode_index(index)), *logs.items()]))
    writer.manifest.engine = Engine(batch_id=0)
    manifest = writer.publish()

    with pytest.raises(CorruptError, match=r"1\.delta"):
        materialise(manifest, store, tmp_path / "new")

    assert not (tmp_path / "new" / "metadata").exists()


@pytest.mark.parametrize("wrong", ["other bytes", "no such file", "other metadata"])
def test_an_index_that_disagrees_with_the_artifacts_is_corrupt(
    store: PartitionedCheckpointStore, tmp_path: Path, wrong: str
) -> None:
    blobs = directory(1)
    logs = {info.key: blobs.get(info.key) for info in blobs.list("") if "/0/0/" not in info.key}
    index = {key: FileEntry.of(data) for key, data in {**logs, "state/0/0/1.delta": b"state 1"}.items()}
    if wrong == "no such file":
        index["state/0/0/1.snapshot"] = FileEntry.of(b"")
    if wrong == "other metadata":
        logs["metadata"] = b'{"id":"another query"}'
    writer = store.writer(1)
    writer.add("0", 0, encode_batch([("state/0/0/1.delta", b"x" if wrong == "other bytes" else b"state 1")]))
    writer.add_logs(encode_batch([(INDEX_PATH, encode_index(index)), *logs.items()]))
    writer.manifest.engine = Engine(batch_id=0)
    manifest = writer.publish()

    with pytest.raises(CorruptError, match=r"recorded in the (chain's )?index"):
        materialise(manifest, store, tmp_path / "new")

    assert not (tmp_path / "new" / "metadata").exists()


# --- reading a hostile directory


def test_a_link_out_of_the_directory_is_not_followed(
    store: PartitionedCheckpointStore, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("do not copy")
    place = tmp_path / "checkpoint"
    blobs = directory(1)
    for info in blobs.list(""):
        path = place / info.key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(blobs.get(info.key))
    (place / "state/0/0/1.delta").unlink()
    (place / "state/0/0/1.delta").symlink_to(secret)

    with pytest.raises(InvalidInputError, match="leads out"):
        capture_directory(SparkCheckpoint(place), store)

    assert list(store.blobs.list("")) == []


def test_a_log_too_large_to_be_true_is_refused_unread(
    store: PartitionedCheckpointStore, tmp_path: Path
) -> None:
    place = tmp_path / "checkpoint"
    (place / "offsets").mkdir(parents=True)
    (place / "commits").mkdir()
    (place / "metadata").write_text('{"id":"0b0c"}')
    (place / "commits/0").write_bytes(COMMIT)
    with (place / "offsets/0").open("wb") as sparse:
        sparse.truncate(10 << 30)

    with pytest.raises(CorruptError, match="too many"):
        capture_directory(SparkCheckpoint(place), store)


# --- a directory that changes under our hands


class Vanishing(MemoryBlobs):
    """Spark's cleanup, at the worst moment: the first read of a path loses it, and brings the next batch."""

    def __init__(self, before: MemoryBlobs, after: MemoryBlobs, path: str) -> None:
        super().__init__()
        self._path = path
        self._after: MemoryBlobs | None = after
        self.become(before)

    def become(self, other: MemoryBlobs) -> None:
        now = {info.key: other.get(info.key) for info in other.list("")}
        for info in list(self.list("")):
            if info.key not in now:
                self.delete(info.key)
        for key, data in now.items():
            if self.head(key) is None or super().get(key) != data:
                self.put(key, data)

    def get(self, key: str) -> bytes:
        if key == self._path and self._after is not None:
            self.become(self._after)
            self._after = None
        return super().get(key)


def test_a_file_that_vanishes_means_a_newer_batch(store: PartitionedCheckpointStore, tmp_path: Path) -> None:
    after = directory(5)
    for old in ("state/0/0/1.delta", "state/0/0/2.delta"):
        after.delete(old)
    after.put("state/0/0/2.snapshot", frame_lz4(b"all of it"))
    said: list[str] = []

    manifest = capture_directory(
        SparkCheckpoint(Vanishing(directory(3), after, "state/0/0/1.delta")), store, progress=said.append
    )
    materialise(manifest, store, tmp_path / "new")

    assert manifest.engine is not None
    assert manifest.engine.batch_id == 4
    assert any("looking again" in sentence for sentence in said)
    assert "state/0/0/2.snapshot" in files(tmp_path / "new")


def test_a_batch_asked_for_by_number_is_not_replaced_by_another(store: PartitionedCheckpointStore) -> None:
    blobs = directory(5)
    blobs.delete("state/0/0/1.delta")

    with pytest.raises(IncompleteBatchError, match=r"1\.delta") as caught:
        capture_directory(SparkCheckpoint(blobs), store, batch=2)

    assert "newest complete batch" in (caught.value.hint or "")
    assert list(store.blobs.list("")) == []


def test_a_state_file_written_again_while_it_is_read_is_not_captured_torn(
    store: PartitionedCheckpointStore,
) -> None:
    rerun = directory(3, life=b"again")

    manifest = capture_directory(SparkCheckpoint(Vanishing(directory(3), rerun, "state/0/0/3.delta")), store)

    held = dict(decode_batch(store.read_state(manifest.checkpoint_id, "0", 0)[0]))
    assert set(held.values()) == {delta(v, b"again") for v in (1, 2, 3)}


def test_offsets_written_again_while_state_is_read_are_not_captured_torn(
    store: PartitionedCheckpointStore,
) -> None:
    rerun = directory(3, timestamp_ms=500)

    manifest = capture_directory(SparkCheckpoint(Vanishing(directory(3), rerun, "state/0/0/3.delta")), store)

    logs = dict(decode_batch(store.read_logs(manifest.checkpoint_id)[0]))
    assert logs["offsets/2"] == rerun.get("offsets/2")


def test_bits_that_were_flipped_before_the_capture_are_not_vouched_for(
    store: PartitionedCheckpointStore,
) -> None:
    blobs = directory(1)
    checksum = {"algorithm": "CRC32C", "value": 17, "mainFileSize": 7}
    blobs.put("state/0/0/1.delta.crc", json.dumps(checksum).encode())

    with pytest.raises(CorruptError, match=r"1\.delta.*checksum"):
        capture_directory(SparkCheckpoint(blobs), store)


def test_a_flipped_bit_in_a_file_without_sparks_checksum_is_found_by_its_frames(
    store: PartitionedCheckpointStore,
) -> None:
    blobs = directory(1)
    flipped = bytearray(blobs.get("state/0/0/1.delta"))
    flipped[24] ^= 1
    blobs.put("state/0/0/1.delta", bytes(flipped))

    with pytest.raises(CorruptError, match=r"1\.delta.*LZ4 block"):
        capture_directory(SparkCheckpoint(blobs), store)

    assert list(store.blobs.list("")) == []


def test_a_capture_that_fails_late_leaves_nothing_behind(store: PartitionedCheckpointStore) -> None:
    large = random.Random(7).randbytes(2_000_000)
    blobs = directory(1, life=large)
    blobs.put("state/0/_metadata/metadata", operator(partitions=2))
    blobs.put("state/0/1/1.delta", b"flipped")
    blobs.put("state/0/1/1.delta.crc", b'{"algorithm":"CRC32C","value":17,"mainFileSize":7}')

    with pytest.raises(CorruptError):
        capture_directory(SparkCheckpoint(blobs), store)

    assert list(store.blobs.list("")) == []
