"""Which checkpoints stay, and the reason given for each."""

from __future__ import annotations

import pytest

from holdfast.blobs.memory import MemoryBlobs
from holdfast.errors import ConflictError, InvalidInputError
from holdfast.ids import CheckpointId
from holdfast.ledger import HoldRecord, PruneRecord, RestoreRecord
from holdfast.manifest import SinkCommitStatus
from holdfast.retention import RetentionPolicy, apply_retention, plan_retention
from holdfast.store import PartitionedCheckpointStore
from holdfast.store.verifying import verify_store
from holdfast.testing import FakeClock

HOUR, DAY = 3600, 86_400
#: 2026-01-01 00:00 UTC, a Thursday.
NEW_YEAR_MS = 1_767_225_600_000


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NEW_YEAR_MS)


@pytest.fixture
def store(clock: FakeClock) -> PartitionedCheckpointStore:
    return PartitionedCheckpointStore(MemoryBlobs(now_ms=clock), now_ms=clock)


def publish(
    store: PartitionedCheckpointStore, epoch: int, parent: CheckpointId | None = None
) -> CheckpointId:
    writer = store.writer(epoch, parent)
    writer.add("0", 0, b"x", delta=parent is not None)
    return writer.publish().checkpoint_id


def every(store: PartitionedCheckpointStore, clock: FakeClock, seconds: float, count: int) -> None:
    for epoch in range(1, count + 1):
        publish(store, epoch)
        clock.advance(seconds)


def kept(store: PartitionedCheckpointStore, **policy: object) -> dict[int, tuple[str, ...]]:
    verdicts = plan_retention(store, RetentionPolicy(**policy))  # type: ignore[arg-type]
    return {verdict.epoch: verdict.reasons for verdict in reversed(verdicts) if verdict.kept}


def test_the_newest_are_kept_and_each_says_why(store: PartitionedCheckpointStore, clock: FakeClock) -> None:
    every(store, clock, 1, 5)

    assert kept(store, keep_last=2) == {4: ("newest 2 of 2",), 5: ("newest 1 of 2",)}


def test_months_and_years_end_in_utc(store: PartitionedCheckpointStore, clock: FakeClock) -> None:
    clock.set_back(1)
    publish(store, 1)
    clock.advance(1)
    publish(store, 2)
    publish(store, 3)

    assert list(kept(store, monthly=9)) == list(kept(store, yearly=9)) == [1, 3]


def test_what_is_young_is_kept(store: PartitionedCheckpointStore, clock: FakeClock) -> None:
    every(store, clock, 60, 10)

    assert list(kept(store, keep_within_seconds=180)) == [8, 9, 10]


def test_one_an_hour_a_day_a_week_a_month_a_year(store: PartitionedCheckpointStore, clock: FakeClock) -> None:
    every(store, clock, HOUR / 2, 12 * 48)  # twelve days, every half hour

    assert kept(store, hourly=3) == {
        572: ("hourly: 2026-01-12 21:00",),
        574: ("hourly: 2026-01-12 22:00",),
        576: ("the newest", "hourly: 2026-01-12 23:00"),
    }
    assert list(kept(store, daily=3)) == [480, 528, 576]
    assert {epoch: why[-1] for epoch, why in kept(store, weekly=5).items()} == {
        192: "weekly: 2026-W01",
        528: "weekly: 2026-W02",
        576: "weekly: 2026-W03",
    }
    assert list(kept(store, monthly=5)) == list(kept(store, yearly=5)) == [576]
    # 5 newest; 24 hours, 3 of them among those; 7 days, one of them today; 3 weeks, one that no day names.
    assert len(kept(store, keep_last=5, hourly=24, daily=7, weekly=4)) == 5 + (24 - 3) + (7 - 1) + 1


def test_a_quiet_time_uses_no_period_up(store: PartitionedCheckpointStore, clock: FakeClock) -> None:
    publish(store, 1)
    clock.advance(30 * DAY)
    publish(store, 2)

    assert list(kept(store, daily=2)) == [1, 2]


def test_tags_keep_where_the_policy_says_so_and_holds_always(
    store: PartitionedCheckpointStore, clock: FakeClock
) -> None:
    ids = [publish(store, epoch) for epoch in range(1, 6)]
    for id, name, protects in ((ids[0], "release-1", False), (ids[1], "try", False), (ids[2], "audit", True)):
        store.ledger.append(HoldRecord(checkpoint_id=id, name=name, protects=protects), author=store.author)

    assert kept(store, keep_last=1, tags=("release-*",)) == {
        1: ("tagged 'release-1'",),
        3: ("held as 'audit'",),
        5: ("newest 1 of 1",),
    }
    assert list(kept(store, tags=("nothing",))) == [3, 5], "the newest stays whatever the policy says"


def test_chains_pending_sinks_and_the_pointer_are_safe(store: PartitionedCheckpointStore) -> None:
    first = publish(store, 1)
    second = publish(store, 2, first)
    pending = store.writer(3)
    pending.manifest.sink_commit_statuses = {"lake": SinkCommitStatus.PENDING}
    pending.publish()
    publish(store, 4)
    publish(store, 5)
    store.blobs.put(store.paths.latest_pointer(), str(second).encode())

    reasons = kept(store, keep_last=1)

    assert reasons == {
        1: ("epoch 2 continues it",),
        2: ("the pointer names it", "epoch 3, whose sinks are pending, would be run again from it"),
        3: ("its sinks are pending: lake",),
        5: ("newest 1 of 1",),
    }


def test_damaged_ones_count_for_nothing_and_go_only_when_old(store: PartitionedCheckpointStore) -> None:
    ids = [publish(store, epoch) for epoch in range(1, 6)]
    for id in (ids[0], ids[3]):
        store.blobs.put(store.paths.manifest(id), b"{")

    assert kept(store, keep_last=2) == {
        3: ("newest 2 of 2",),
        4: ("damaged, and newer than the oldest one kept",),
        5: ("newest 1 of 2",),
    }
    assert list(kept(store, keep_last=9)) == [1, 2, 3, 4, 5]


def test_what_a_restore_abandoned_goes_once_it_is_old(store: PartitionedCheckpointStore) -> None:
    publish(store, 1)
    publish(store, 2)
    store.ledger.append(RestoreRecord(to=1), author=store.author)
    publish(store, 3)

    assert list(kept(store, keep_last=2)) == [1, 2, 3]
    publish(store, 4)
    assert list(kept(store, keep_last=2)) == [3, 4]


def test_applying_deletes_exactly_what_was_planned(
    store: PartitionedCheckpointStore, clock: FakeClock
) -> None:
    every(store, clock, HOUR, 60)
    policy = RetentionPolicy(keep_last=2, daily=2)
    staying = [verdict.id for verdict in plan_retention(store, policy) if verdict.kept]

    assert apply_retention(store, policy) == 60 - len(staying)

    assert store.list_ids() == staying[::-1]
    assert verify_store(store, read_data=True).warnings == ()
    assert apply_retention(store, policy) == 0


def test_the_ledger_is_trimmed_with_what_it_told_of(store: PartitionedCheckpointStore) -> None:
    last = None
    for epoch in range(1, 301):
        writer = store.writer(epoch)
        writer.logs = {"offsets/1": "v1"}
        last = writer.publish()
        if epoch % 50 == 0:
            store.prune(2)

    records = [info.key for info in store.blobs.list("ledger/")]
    assert len(records) < 150
    again = PartitionedCheckpointStore(store.blobs)
    assert again.load_latest() == last
    assert [epoch for _, epoch in again.list()] == [299, 300]
    report = verify_store(again, read_data=True)
    assert (report.problems, report.warnings) == ((), ())
    publish(again, 301)


def test_a_writer_asleep_through_a_clean_up_and_a_trimming_publishes_nothing(
    store: PartitionedCheckpointStore,
) -> None:
    asleep = store.writer(999)
    asleep.add("0", 0, b"x")
    asleep.write()
    rival = PartitionedCheckpointStore(store.blobs, now_ms=store.now_ms)
    assert rival.cleanup_orphans(0) == 2
    for epoch in range(1, 301):
        publish(rival, epoch)
    rival.prune(1)
    assert not any(
        isinstance(record, PruneRecord) and asleep.id in record.ids
        for record in rival.ledger.read().records.values()
    ), "the record that named it is trimmed"

    with pytest.raises(ConflictError, match="trimmed"):
        asleep.publish()


@pytest.mark.parametrize("policy", [{}, {"keep_last": -1, "daily": 3}, {"keep_within_seconds": -1.0}])
def test_a_policy_that_keeps_nothing_is_a_mistake(policy: dict[str, int]) -> None:
    with pytest.raises(InvalidInputError):
        RetentionPolicy(**policy)  # type: ignore[arg-type]
