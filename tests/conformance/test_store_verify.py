"""``verify``: every flipped bit, every missing or foreign object is found and named; nothing is repaired."""

from __future__ import annotations

import random

import pytest

import holdfast.ledger.logs
import holdfast.store.pruning
import holdfast.store.writing
from holdfast.blobs.memory import MemoryBlobs
from holdfast.ids import CheckpointId
from holdfast.ledger import HoldRecord, OutcomeRecord, PruneRecord, StopRecord
from holdfast.manifest import CheckpointManifestV2, SinkCommitStatus, SourceOffsetEntry
from holdfast.store import PartitionedCheckpointStore
from holdfast.store.verifying import VerifyReport, verify_store


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> PartitionedCheckpointStore:
    # So that small things become objects of their own, as large ones do.
    monkeypatch.setattr(holdfast.store.writing, "PACKED_BELOW_BYTES", 8)
    monkeypatch.setattr(holdfast.ledger.logs, "INLINE_BYTES", 8)
    return PartitionedCheckpointStore(MemoryBlobs())


def fill(store: PartitionedCheckpointStore, checkpoints: int) -> list[CheckpointManifestV2]:
    """A chain with one object of every kind in each link, and a savepoint-like sidecar at the end."""
    made: list[CheckpointManifestV2] = []
    for epoch in range(1, checkpoints + 1):
        writer = store.writer(epoch, made[-1].checkpoint_id if made else None)
        writer.add("0", 0, b"tiny", delta=bool(made))
        writer.add("0", 1, b"of its own", delta=bool(made))
        writer.add_logs(b"l", delta=bool(made))
        writer.add_offsets("s", SourceOffsetEntry(source_type="file", offsets={"é\x1f": "1"}, epoch=epoch))
        writer.logs = {"offsets/1": "v1\n{}", "commits/1": "a longer log file"}
        writer.manifest.sink_commit_statuses = {"lake": SinkCommitStatus.PENDING}
        made.append(writer.publish())
    return made


def verify(store: PartitionedCheckpointStore, *, read_data: bool = True) -> VerifyReport:
    return verify_store(store, read_data=read_data)


def keys(store: PartitionedCheckpointStore) -> list[str]:
    return [info.key for info in store.blobs.list("")]


def test_a_sound_store_has_no_problems_and_every_object_was_looked_at(
    store: PartitionedCheckpointStore,
) -> None:
    fill(store, 3)
    sidecar = CheckpointManifestV2.new(CheckpointId.now(), 4)
    store.save_with_state(sidecar, b"state")
    seen: list[str] = []

    report = verify_store(store, read_data=True, progress=seen.append)

    assert report == VerifyReport(examined=len(keys(store)) - 1, problems=())
    assert sorted(seen) == [key for key in keys(store) if not key.endswith("_latest")]
    assert verify(store, read_data=False).ok


def test_every_flipped_bit_is_found_and_named(store: PartitionedCheckpointStore) -> None:
    fill(store, 1)
    store.ledger.append(
        OutcomeRecord(epoch=1, statuses={"lake": SinkCommitStatus.failed("x")}), author=store.author
    )
    objects = {key: store.blobs.get(key) for key in keys(store)}
    assert {key.rpartition("/")[2].partition("-")[0] for key in objects} == {
        "manifest.json",
        "batch",
        "partition",
        "000000000001.json",
        "000000000002.json",
        "000000000001",
    }

    silent, misnamed = [], []
    for key, data in objects.items():
        damaged = bytearray(data)
        for bit in range(len(data) * 8):
            damaged[bit // 8] ^= 1 << bit % 8
            store.blobs.put(key, bytes(damaged))
            report = verify(store)
            if report.ok:
                silent.append((key, bit))
            elif key not in [problem.key for problem in report.problems]:
                misnamed.append((key, bit, report.problems))
            damaged[bit // 8] ^= 1 << bit % 8
        store.blobs.put(key, data)

    assert silent == []
    assert misnamed == []
    assert verify(store).ok


def test_three_hundred_flips_in_a_chain_are_found_and_recovery_never_gives_wrong_state(
    store: PartitionedCheckpointStore,
) -> None:
    fill(store, 3)
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    choose = random.Random(seed)
    sound = {id: state_of(store, id) for id in store.list_ids()}
    sizes = [(info.key, info.size) for info in store.blobs.list("")]

    for number in range(300):
        key, size = choose.choices(sizes, weights=[size for _, size in sizes])[0]
        data = store.blobs.get(key)
        damaged = bytearray(data)
        damaged[choose.randrange(size)] ^= 1 << choose.randrange(8)
        store.blobs.put(key, bytes(damaged))
        fresh = PartitionedCheckpointStore(store.blobs)

        report = verify(fresh)
        assert key in [problem.key for problem in report.problems]
        assert all(problem.hint for problem in report.problems)
        for id in fresh.list_ids() if number % 10 == 0 else ():
            if fresh.validate_checkpoint(id).valid:
                assert state_of(fresh, id) == sound[id]
        store.blobs.put(key, data)


def state_of(store: PartitionedCheckpointStore, id: CheckpointId) -> list[list[bytes]]:
    return [store.read_state(id, "0", partition) for partition in (0, 1)] + [store.read_logs(id)]


@pytest.mark.parametrize("read_data", [True, False])
def test_every_missing_or_shortened_object_is_named(
    store: PartitionedCheckpointStore, read_data: bool
) -> None:
    fill(store, 2)

    for key in keys(store):
        data = store.blobs.get(key)
        store.blobs.put(key, data[:-1])
        shortened = verify(store, read_data=read_data)
        store.blobs.delete(key)
        missing = verify(store, read_data=read_data)
        store.blobs.put(key, data)

        assert key in [problem.key for problem in shortened.problems], key
        if (
            key != "ledger/000000000002.json"
        ):  # the newest record leaves no trace: its checkpoint was never decided
            assert key in [problem.key for problem in missing.problems], key
        else:
            assert {problem.code for problem in missing.warnings} == {"orphan"}


def test_sizes_alone_do_not_show_a_flip_in_an_artifact(store: PartitionedCheckpointStore) -> None:
    (manifest,) = fill(store, 1)
    key = store.paths.snapshot(manifest.checkpoint_id, "0", 1)
    store.blobs.put(key, b"of ITS own")

    assert verify(store, read_data=False).ok
    (problem,) = verify(store, read_data=True).problems
    assert (problem.code, problem.key) == ("object", key)
    assert str(manifest.checkpoint_id) in problem.hint


def test_a_manifest_rewritten_with_the_same_meaning_loads_and_is_reported(
    store: PartitionedCheckpointStore,
) -> None:
    (manifest,) = fill(store, 1)
    key = store.paths.manifest(manifest.checkpoint_id)
    store.blobs.put(key, store.blobs.get(key) + b"\n")

    assert store.load_by_id(manifest.checkpoint_id) == manifest
    (problem,) = verify(store).problems
    assert (problem.code, problem.key) == ("manifest-form", key)


def test_records_swapped_for_sound_ones_are_found(store: PartitionedCheckpointStore) -> None:
    fill(store, 3)
    other = PartitionedCheckpointStore(MemoryBlobs())
    fill(other, 3)

    store.blobs.put("ledger/000000000002.json", other.blobs.get("ledger/000000000002.json"))
    assert "ledger/000000000002.json" in [problem.key for problem in verify(store).problems]
    store.blobs.put("ledger/000000000002.json", store.blobs.get("ledger/000000000001.json"))
    assert "ledger/000000000002.json" in [problem.key for problem in verify(store).problems]


def test_every_flipped_bit_of_a_trimmed_ledgers_boundary_is_found(
    store: PartitionedCheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holdfast.store.pruning, "TRIMMED_AT_ONCE", 1)
    for epoch in range(1, 4):
        writer = store.writer(epoch)
        writer.add("0", 0, b"x")
        writer.publish()
    store.prune(1)
    (key,) = [key for key in keys(store) if "boundary" in key]
    assert verify(store).ok
    data = store.blobs.get(key)

    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        store.blobs.put(key, bytes(damaged))
        assert key in [problem.key for problem in verify(store).problems], bit


def test_the_pointer_may_be_anything(store: PartitionedCheckpointStore) -> None:
    fill(store, 1)
    store.blobs.put(store.paths.latest_pointer(), b"\xff\x00")

    assert verify(store) == VerifyReport(examined=len(keys(store)) - 1, problems=())


def test_leftovers_are_warned_of_and_are_not_damage(store: PartitionedCheckpointStore) -> None:
    manifests = fill(store, 2)
    attempt = store.writer(3)
    attempt.add("0", 0, b"x")
    attempt.write()
    store.blobs.put("stranger.txt", b"?")

    report = verify(store)

    assert report.ok
    assert {warning.code for warning in report.warnings} == {"orphan"}
    assert {warning.key for warning in report.warnings} == {
        "stranger.txt",
        store.paths.manifest(attempt.id),
        store.paths.batch(attempt.id, 3),
    }
    ids = [manifest.checkpoint_id for manifest in manifests]
    store.ledger.append(PruneRecord(ids=ids), author=store.author)
    report = verify(store)
    assert report.ok
    assert len([warning for warning in report.warnings if "pruned" in warning.message]) == 6


def test_where_a_stop_took_state_is_looked_at_too(store: PartitionedCheckpointStore) -> None:
    (first,) = fill(store, 1)
    light = store.writer(2)
    light.add("0", 0, b"x")
    manifest = light.write()
    stop = StopRecord(epoch=1, checkpoint_id=light.id, seal=manifest.seal)
    store.ledger.append(stop, author=store.author)
    store.ledger.append(HoldRecord(checkpoint_id=first.checkpoint_id, name="a"), author=store.author)

    assert verify(store) == VerifyReport(examined=len(keys(store)), problems=())
    assert store.list_ids() == [first.checkpoint_id, light.id]
    store.blobs.delete(store.paths.batch(light.id, 2))
    assert [problem.key for problem in verify(store).problems] == [store.paths.batch(light.id, 2)]


def test_a_foreign_tree_is_verified_as_far_as_it_goes() -> None:
    store = PartitionedCheckpointStore(MemoryBlobs())
    id = CheckpointId.now()
    store.blobs.put(f"checkpoints/{id}manifest.json", CheckpointManifestV2.new(id, 1).to_json())

    assert verify(store) == VerifyReport(examined=1, problems=())
    store.blobs.put(f"checkpoints/{id}manifest.json", b"{}")
    (problem,) = verify(store).problems
    assert (problem.code, problem.key) == ("manifest", f"checkpoints/{id}manifest.json")
