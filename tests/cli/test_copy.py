"""``copy``: a flow elsewhere, to the byte, or some checkpoints of it; cut short anywhere, it goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from click.testing import Result

from holdfast.blobs import BlobStore, FileBlobs, MemoryBlobs
from holdfast.ledger import Author, OutcomeRecord, StartRecord, new_writer
from holdfast.manifest import SinkCommitStatus
from holdfast.store import PartitionedCheckpointStore
from holdfast.store.copying import replicate
from holdfast.store.verifying import verify_store
from holdfast.testing import Crash, CrashingBlobs

Flow: TypeAlias = Any
Ask: TypeAlias = Callable[..., Result]
Document: TypeAlias = Callable[..., Any]


@pytest.fixture
def there(tmp_path: Path) -> Path:
    return tmp_path / "there"


@pytest.fixture
def chain(flow: Flow) -> Flow:
    """Three epochs: a snapshot, a delta on it, and a snapshot."""
    flow.decide(2, parent=flow.decide(1))
    flow.decide(3)
    flow.settle(3)
    return flow


def files(root: Path) -> dict[str, bytes]:
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def held(blobs: BlobStore) -> dict[str, bytes]:
    return {info.key: blobs.get(info.key) for info in blobs.list("")}


class TestAll:
    def test_the_target_is_the_flow_to_the_byte(
        self, chain: Flow, there: Path, ask: Ask, document: Document
    ) -> None:
        told = document("copy", "--store", chain.root, "--to", there)

        assert files(there) == files(chain.root)
        assert (told["ok"], told["checkpoints"], told["present_objects"]) == (True, 3, 0)
        assert told["sent_objects"] == len(files(there))
        assert told["sent_bytes"] == sum(map(len, files(there).values()))
        assert document("list", "--store", there) == document("list", "--store", chain.root)
        assert ask("verify", "--store", there, "--read-data").exit_code == 0

    def test_called_again_it_sends_only_what_is_new(
        self, chain: Flow, there: Path, document: Document
    ) -> None:
        document("copy", "--store", chain.root, "--to", there)
        again = document("copy", "--store", chain.root, "--to", there)
        before = files(there)
        chain.decide(4)

        more = document("copy", "--store", chain.root, "--to", there)

        assert (again["sent_objects"], again["sent_bytes"]) == (0, 0)
        assert more["sent_objects"] == len(files(there)) - len(before) == 3  # pack, manifest, record
        assert files(there) == files(chain.root)

    def test_what_the_target_lost_is_brought_back(
        self, chain: Flow, there: Path, ask: Ask, document: Document
    ) -> None:
        document("copy", "--store", chain.root, "--to", there)
        lost = [path for path in there.rglob("*") if path.name.startswith(("batch-", "manifest"))][:2]
        for path in lost:
            path.unlink()

        told = document("copy", "--store", chain.root, "--to", there)

        assert told["sent_objects"] == 2
        assert files(there) == files(chain.root)

    def test_a_trimmed_source_is_copied_and_brings_an_older_copy_up_to_date(
        self, flow: Flow, there: Path, tmp_path: Path, ask: Ask, document: Document
    ) -> None:
        for epoch in range(1, 40):
            flow.decide(epoch)
            flow.settle(epoch)
            if epoch == 30:
                document("copy", "--store", flow.root, "--to", there)
        ask("prune", "--keep-last", 2, "--store", flow.root, "--yes")
        assert list((flow.root / "ledger").glob("boundary-*"))

        fresh = document("copy", "--store", flow.root, "--to", tmp_path / "fresh")
        older = document("copy", "--store", flow.root, "--to", there)

        assert fresh["ok"]
        assert older["ok"]
        assert files(tmp_path / "fresh") == files(flow.root)
        assert document("list", "--store", there) == document("list", "--store", flow.root)
        assert ask("verify", "--store", there, "--read-data").exit_code == 0
        # What the source has let go lies there until somebody cleans up; that adds nothing to its history.
        assert ask("gc", "--store", there, "--yes").exit_code == 0
        assert files(there) == files(flow.root)

    def test_a_target_with_a_history_of_its_own_is_left_alone(
        self, chain: Flow, flow_at: Callable[..., Flow], there: Path, ask: Ask
    ) -> None:
        flow_at(there).decide(1)
        before = files(there)

        result = ask("copy", "--store", chain.root, "--to", there)

        assert result.exit_code == 11
        assert "a history of its own" in result.stderr
        assert files(there) == before

    def test_a_target_that_went_on_is_left_alone(self, chain: Flow, there: Path, ask: Ask) -> None:
        ask("copy", "--store", chain.root, "--to", there)
        ask("tag", "latest", "mine", "--store", there)

        result = ask("copy", "--store", chain.root, "--to", there)

        assert result.exit_code == 11
        assert "goes on to record" in result.stderr

    def test_what_is_damaged_is_left_out_named_and_told_by_the_code(
        self, chain: Flow, there: Path, ask: Ask, document: Document
    ) -> None:
        key = chain.damage("batch-*.lz4", chain.ids[2])

        result = ask("copy", "--store", chain.root, "--to", there)
        told = document("copy", "--store", chain.root, "--to", there)

        assert result.exit_code == 3
        assert f"left out: {key}" in result.stdout
        assert [one["key"] for one in told["problems"]] == [key]
        assert set(files(chain.root)) - set(files(there)) == {key}
        assert ask("verify", "epoch:2", "--store", there).exit_code == 0
        assert ask("verify", "--store", there).exit_code == 20

    def test_nothing_is_copied_while_a_record_cannot_be_read(
        self, chain: Flow, there: Path, ask: Ask
    ) -> None:
        chain.flip("ledger/000000000003.json")

        assert ask("copy", "--store", chain.root, "--to", there).exit_code == 20
        assert not there.exists() or files(there) == {}


class TestCutShort:
    @pytest.fixture
    def source(self) -> PartitionedCheckpointStore:
        """Two checkpoints, the second of them with a log too long for its record."""
        store = PartitionedCheckpointStore(MemoryBlobs())
        started = store.ledger.append(StartRecord(), author=Author(0, new_writer()))
        author = Author(started.n, started.writer)
        for epoch in (1, 2):
            writer = store.writer(epoch, author=author)
            writer.add("0", 0, b"state")
            writer.receipts = {"db": []}
            writer.batches = (epoch - 1, epoch - 1)
            writer.logs = {f"offsets/{epoch - 1}": "x" * (300_000 if epoch == 2 else 3)}
            writer.publish()
        statuses = {"db": SinkCommitStatus.COMMITTED}
        store.ledger.append(OutcomeRecord(epoch=2, statuses=statuses), author=author)
        return store

    def test_at_any_call_a_reader_sees_a_sound_past_and_the_next_copy_ends_it(
        self, source: PartitionedCheckpointStore
    ) -> None:
        whole = MemoryBlobs()
        counting = CrashingBlobs(whole)
        replicate(source, PartitionedCheckpointStore(counting))
        assert any(key.startswith("logs/") for key in held(whole))

        for k in range(1, counting.count + 1):
            for when in ("before", "after"):
                blobs = MemoryBlobs()
                crashing = CrashingBlobs(blobs, **{when: k})
                with pytest.raises(Crash):
                    replicate(source, PartitionedCheckpointStore(crashing))

                seen = PartitionedCheckpointStore(blobs)
                assert verify_store(seen, read_data=True).problems == (), (when, k)
                assert set(seen.list_ids()) <= set(source.list_ids())

                replicate(source, PartitionedCheckpointStore(blobs))
                assert held(blobs) == held(whole), (when, k)

    def test_somebody_elses_tree_without_a_ledger_never_shows_half_a_checkpoint(
        self, source: PartitionedCheckpointStore
    ) -> None:
        foreign = PartitionedCheckpointStore(MemoryBlobs())
        for id in source.list_ids():
            manifest = source.load_by_id(id)
            assert manifest is not None
            for name in manifest.objects:
                key = foreign.paths.resolve(id, name)
                foreign.blobs.create(key, source.blobs.get(key))
            theirs = manifest.replaced(writer=None, generation=0).sealed()
            foreign.blobs.create(foreign.paths.manifest(id), theirs.to_json())
        counting = CrashingBlobs(MemoryBlobs())
        replicate(foreign, PartitionedCheckpointStore(counting))

        for k in range(1, counting.count + 1):
            blobs = MemoryBlobs()
            with pytest.raises(Crash):
                replicate(foreign, PartitionedCheckpointStore(CrashingBlobs(blobs, after=k)))

            seen = PartitionedCheckpointStore(blobs)
            assert all(seen.validate_checkpoint(id).valid for id in seen.list_ids()), k
        assert held(counting.blobs) == held(foreign.blobs)

    def test_a_source_that_is_pruned_meanwhile_is_looked_at_again(
        self, source: PartitionedCheckpointStore
    ) -> None:
        class PrunedWhenSent(MemoryBlobs):
            def create(self, key: str, data: Any) -> None:
                super().create(key, data)
                if key.endswith("manifest.json") and len(source.list_ids()) == 2:
                    source.prune(1)

        target = PartitionedCheckpointStore(PrunedWhenSent())

        done = replicate(source, target)

        assert done.problems == []
        assert target.list_ids() == source.list_ids()
        assert len(target.list_ids()) == 1
        assert verify_store(target, read_data=True).problems == ()


class TestSome:
    def test_a_checkpoint_travels_with_what_it_stands_on(
        self, chain: Flow, there: Path, ask: Ask, document: Document
    ) -> None:
        told = document("copy", "epoch:2", "--store", chain.root, "--to", there)

        assert (told["ok"], told["checkpoints"]) == (True, 2)
        listed = document("list", "--store", there)
        assert [(one["checkpoint_id"], one["epoch"], one["status"]) for one in listed] == [
            (str(chain.ids[0]), 1, "committed"),
            (str(chain.ids[1]), 2, "committed"),
        ]
        copy, original = PartitionedCheckpointStore(FileBlobs(there)), chain.store
        assert copy.read_state(chain.ids[1], "0", 0) == original.read_state(chain.ids[1], "0", 0)
        assert ask("verify", "--store", there, "--read-data").exit_code == 0

    def test_what_is_there_already_stays_and_newer_ones_follow(
        self, chain: Flow, there: Path, document: Document
    ) -> None:
        document("copy", "epoch:1", "--store", chain.root, "--to", there)

        told = document("copy", "epoch:1", "latest", "--store", chain.root, "--to", there)

        assert (told["checkpoints"], told["present_objects"]) == (1, 1)
        assert [one["epoch"] for one in document("list", "--store", there)] == [1, 3]

    def test_a_damaged_one_is_refused(self, chain: Flow, there: Path, ask: Ask) -> None:
        key = chain.damage("batch-*.lz4", chain.ids[2])

        result = ask("copy", "latest", "--store", chain.root, "--to", there)

        assert result.exit_code == 20
        assert key in result.stderr
        assert ask("list", "--store", there).exit_code == 10

    def test_a_store_that_a_run_writes_to_takes_none(
        self, chain: Flow, flow_at: Callable[..., Flow], there: Path, ask: Ask
    ) -> None:
        other = flow_at(there)

        result = ask("copy", "latest", "--store", chain.root, "--to", there)

        assert result.exit_code == 11
        assert other.store.list_ids() == []
