"""What a ledger says, sound and damaged."""

from __future__ import annotations

import hashlib

import pytest

from holdfast.blobs.memory import MemoryBlobs
from holdfast.errors import CorruptError, StoreUnavailableError, UnsupportedFormatError
from holdfast.ids import CheckpointId
from holdfast.layout import ledger_key
from holdfast.ledger import (
    Author,
    CheckpointRecord,
    EpochRecord,
    Gap,
    HoldRecord,
    Ledger,
    OutcomeRecord,
    PruneRecord,
    RestoreRecord,
    StartRecord,
    StopRecord,
    new_writer,
)
from holdfast.ledger.records import decode_record, open_bytes, seal_bytes
from holdfast.manifest import SinkCommitStatus

LIBRARY = Author(0, new_writer())
COMMITTED = SinkCommitStatus.COMMITTED


def checkpoint(epoch: int, **fields) -> CheckpointRecord:
    return CheckpointRecord(epoch=epoch, checkpoint_id=CheckpointId.now(), seal="5" * 64, **fields)


def light(epoch: int, **fields) -> EpochRecord:
    return EpochRecord(epoch=epoch, checkpoint_id=CheckpointId.now(), **fields)


def start(ledger: Ledger) -> Author:
    record = ledger.append(StartRecord(), author=Author(0, new_writer()))
    return Author(record.n, record.writer)


def flip(blobs: MemoryBlobs, n: int) -> None:
    data = bytearray(blobs.get(ledger_key(n)))
    data[len(data) // 2] ^= 1
    blobs.put(ledger_key(n), bytes(data))


@pytest.fixture
def blobs() -> MemoryBlobs:
    return MemoryBlobs()


@pytest.fixture
def ledger(blobs: MemoryBlobs) -> Ledger:
    return Ledger(blobs)


def test_an_empty_ledger_has_no_head_no_generation_and_no_epoch(ledger) -> None:
    history = ledger.read()

    assert (history.head, history.generation, history.writer, history.highest_epoch) == (0, 0, None, 0)
    assert history.newest_decision is None
    assert history.timeline == ()
    assert not history.problems


def test_a_record_reads_back_as_it_was_appended(blobs, ledger) -> None:
    author = start(ledger)
    drafts = [
        checkpoint(1, batches=(0, 3), receipts={"db": [{"rows": 3}]}, logs={"offsets/3": "v1\n{}"}),
        light(2, batches=(4, 4)),
        OutcomeRecord(epoch=2, statuses={"db": SinkCommitStatus.failed("no"), "lake": COMMITTED}),
        RestoreRecord(to=2, sinks="rewind", rewound=(2, 2), reason="operator error"),
        OutcomeRecord(restore=5),
        StopRecord(epoch=2),
        PruneRecord(keys=["checkpoints/a"]),
    ]

    written = [ledger.append(draft, author=author) for draft in drafts]

    history = Ledger(blobs).read()
    assert [history.records[record.n] for record in written] == written
    assert list(history.records) == list(range(1, 9))


def test_the_timeline_follows_after_and_a_restore_abandons_what_came_later(ledger) -> None:
    author = start(ledger)
    one, two, three = (ledger.append(checkpoint(epoch), author=author) for epoch in (1, 2, 3))

    restore = ledger.append(RestoreRecord(to=one.n), author=author)
    history = ledger.read()
    assert history.newest_decision == one
    assert history.timeline == (one,)
    assert history.abandoned == (two, three)
    assert history.open_restore == restore
    assert history.highest_epoch == 3

    four = ledger.append(checkpoint(4), author=author)
    history = ledger.read()
    assert history.timeline == (one, four)
    assert history.abandoned == (two, three)
    assert history.open_restore is None


def test_a_restore_to_the_beginning_leaves_no_decision(ledger) -> None:
    author = start(ledger)
    ledger.append(checkpoint(1), author=author)
    ledger.append(RestoreRecord(to=0), author=author)

    history = ledger.read()

    assert history.newest_decision is None
    assert history.timeline == ()
    assert history.highest_epoch == 1


def test_a_restore_is_open_until_an_outcome_names_it(ledger) -> None:
    author = start(ledger)
    restore = ledger.append(RestoreRecord(to=0), author=author)
    start(ledger)
    assert ledger.read().open_restore == restore

    ledger.append(OutcomeRecord(restore=restore.n), author=author)

    assert ledger.read().open_restore is None
    assert ledger.read().newest_restore == restore


def test_a_restored_decision_can_be_abandoned_and_restored_again(ledger) -> None:
    author = start(ledger)
    one, two = (ledger.append(checkpoint(epoch), author=author) for epoch in (1, 2))
    ledger.append(RestoreRecord(to=one.n), author=author)
    three = ledger.append(checkpoint(3), author=author)

    ledger.append(RestoreRecord(to=two.n), author=author)

    history = ledger.read()
    assert history.timeline == (one, two)
    assert history.abandoned == (three,)


def test_the_next_decision_of_a_flow_says_that_all_sinks_have_committed(ledger) -> None:
    author = start(ledger)
    ledger.append(checkpoint(1, receipts={"db": [1], "lake": [2]}), author=author)
    assert ledger.read().statuses(1) == {}

    ledger.append(OutcomeRecord(epoch=1, statuses={"db": SinkCommitStatus.failed("asked")}), author=author)
    assert ledger.read().statuses(1) == {"db": SinkCommitStatus.failed("asked")}

    ledger.append(light(2), author=author)
    assert ledger.read().statuses(1) == {"db": COMMITTED, "lake": COMMITTED}


def test_the_next_checkpoint_of_a_library_writer_says_nothing_about_sinks(ledger) -> None:
    ledger.append(checkpoint(1, receipts={"db": [1]}), author=LIBRARY)
    ledger.append(checkpoint(2), author=LIBRARY)
    assert ledger.read().statuses(1) == {}

    ledger.append(OutcomeRecord(epoch=1, statuses={"db": COMMITTED}), author=LIBRARY)

    assert ledger.read().statuses(1) == {"db": COMMITTED}
    assert ledger.read().statuses(2) == {}
    assert ledger.read().statuses(77) == {}


def test_receipts_of_a_sink_that_was_fed_again_replace_the_decisions(ledger) -> None:
    author = start(ledger)
    decision = ledger.append(checkpoint(1, receipts={"db": [1], "lake": [2]}), author=author)
    ledger.append(OutcomeRecord(epoch=1, receipts={"db": [9]}, statuses={"db": COMMITTED}), author=author)

    assert ledger.read().receipts(decision) == {"db": [9], "lake": [2]}


def test_an_attempt_is_decided_only_under_its_own_id(ledger) -> None:
    record = ledger.append(checkpoint(1), author=LIBRARY)

    history = ledger.read()

    assert history.is_decided(1, record.checkpoint_id)
    assert not history.is_decided(1, CheckpointId.now())
    assert not history.is_decided(2, record.checkpoint_id)
    assert history.decision_for(record.checkpoint_id) == record
    assert history.decision_for(CheckpointId.now()) is None


def test_holds_are_in_force_until_released_or_past_their_time(ledger) -> None:
    id = ledger.append(checkpoint(1), author=LIBRARY).checkpoint_id
    audit = ledger.append(HoldRecord(checkpoint_id=id, name="audit", until_ms=1000), author=LIBRARY)
    ledger.append(HoldRecord(checkpoint_id=id, name="old"), author=LIBRARY)
    ledger.append(HoldRecord(checkpoint_id=id, name="old", released=True), author=LIBRARY)

    assert ledger.read().holds(now_ms=999) == {(id, "audit"): audit}
    assert ledger.read().holds(now_ms=1000) == {}


def test_a_corrupt_record_keeps_its_number_and_counts_as_one_decided_epoch(blobs, ledger) -> None:
    for epoch in (1, 2, 3):
        ledger.append(checkpoint(epoch), author=LIBRARY)
    flip(blobs, 3)

    history = Ledger(blobs).read()

    assert history.head == 3
    assert history.highest_epoch == 3
    assert list(history.corrupt) == [3]
    assert "digest" in history.corrupt[3]
    assert history.unreadable_since == (3,)


def test_a_corrupt_decision_inside_the_timeline_is_a_gap_and_not_its_end(blobs, ledger) -> None:
    one, two, three = (ledger.append(checkpoint(epoch), author=LIBRARY) for epoch in (1, 2, 3))
    flip(blobs, two.n)

    history = Ledger(blobs).read()

    entries = list(history.walk())
    assert entries[0] == three
    assert isinstance(entries[1], Gap)
    assert entries[1].n == two.n
    assert entries[2] == one
    assert history.timeline == (one, three)
    assert history.highest_epoch == 3


def test_behind_a_corrupt_decision_the_timeline_follows_a_restore_before_it(blobs, ledger) -> None:
    author = start(ledger)
    one, _two = (ledger.append(checkpoint(epoch), author=author) for epoch in (1, 2))
    ledger.append(RestoreRecord(to=one.n), author=author)
    three = ledger.append(checkpoint(3), author=author)
    four = ledger.append(checkpoint(4), author=author)
    flip(blobs, three.n)

    assert Ledger(blobs).read().timeline == (one, four)


def test_a_hole_is_named_and_is_not_the_end(blobs, ledger) -> None:
    for epoch in (1, 2, 3):
        ledger.append(checkpoint(epoch), author=LIBRARY)
    blobs.delete(ledger_key(2))

    history = Ledger(blobs).read()

    assert history.head == 3
    assert history.holes == (2,)
    assert history.corrupt == {}
    assert "hole" in history.problems[2].reason


def test_a_hole_below_the_head_counts_as_a_decided_epoch_and_stops_decisions(blobs, ledger) -> None:
    ledger.append(checkpoint(1), author=LIBRARY)
    ledger.append(checkpoint(2), author=LIBRARY)
    ledger.append(OutcomeRecord(epoch=2), author=LIBRARY)
    blobs.delete(ledger_key(2))
    reopened = Ledger(blobs)

    assert reopened.read().highest_epoch == 2
    with pytest.raises(CorruptError):
        reopened.append(checkpoint(3), author=LIBRARY)


def test_a_record_of_another_ledger_is_a_fork(blobs, ledger) -> None:
    other_blobs = MemoryBlobs()
    other = Ledger(other_blobs)
    for epoch in (1, 2, 3):
        ledger.append(checkpoint(epoch), author=LIBRARY)
        other.append(checkpoint(epoch), author=LIBRARY)
    blobs.put(ledger_key(2), other_blobs.get(ledger_key(2)))

    history = Ledger(blobs).read()

    assert list(history.corrupt) == [2, 3]
    assert all("fork" in reason for reason in history.corrupt.values())


def test_a_record_under_another_number_is_corrupt(blobs, ledger) -> None:
    ledger.append(checkpoint(1), author=LIBRARY)
    blobs.create(ledger_key(2), blobs.get(ledger_key(1)))

    history = Ledger(blobs).read()

    assert history.corrupt == {2: "it holds record 1, not 2"}


def test_a_corrupt_predecessor_is_named_once_and_its_successor_is_believed(blobs, ledger) -> None:
    ledger.append(checkpoint(1), author=LIBRARY)
    ledger.append(checkpoint(2), author=LIBRARY)
    flip(blobs, 1)

    assert list(Ledger(blobs).read().corrupt) == [1]


def test_a_sound_record_of_an_unknown_kind_means_upgrade_and_a_flipped_one_means_corrupt(
    blobs, ledger
) -> None:
    record = ledger.append(checkpoint(1), author=LIBRARY)
    document = open_bytes(blobs.get(ledger_key(1)), "k") | {"kind": "merge"}
    newer = seal_bytes(document)

    with pytest.raises(UnsupportedFormatError):
        decode_record(newer, 1, "k")
    with pytest.raises(CorruptError):
        decode_record(newer.replace(b'"merge"', b'"mergf"'), 1, "k")
    blobs.put(ledger_key(1), newer)
    with pytest.raises(UnsupportedFormatError):
        _ = Ledger(blobs).read().generation
    assert record.n == 1


def test_unknown_keys_of_a_known_kind_are_read_over(blobs, ledger) -> None:
    record = ledger.append(checkpoint(1), author=LIBRARY)

    data = seal_bytes(open_bytes(blobs.get(ledger_key(1)), "k") | {"later": [1]})

    assert decode_record(data, 1, "k") == record


@pytest.mark.parametrize(
    "change",
    [
        {"after": 5},
        {"generation": "0"},
        {"seal": None},
        {"epoch": -1},
        {"checkpoint_id": "no id"},
        {"receipts": {"db": 3}},
        {"logs": {"a": 3}},
        {"n": 2},
        {"kind": 3},
    ],
)
def test_sealed_nonsense_is_corrupt(blobs, ledger, change) -> None:
    ledger.append(checkpoint(1), author=LIBRARY)

    data = seal_bytes(open_bytes(blobs.get(ledger_key(1)), "k") | change)

    with pytest.raises(CorruptError):
        decode_record(data, 1, "k")


@pytest.mark.parametrize("name", ["n", "generation", "writer", "at_ms", "prev", "epoch", "seal"])
def test_a_record_without_a_field_it_needs_is_corrupt(blobs, ledger, name) -> None:
    ledger.append(checkpoint(1), author=LIBRARY)
    document = open_bytes(blobs.get(ledger_key(1)), "k")
    del document[name]

    with pytest.raises(CorruptError):
        decode_record(seal_bytes(document), 1, "k")


@pytest.mark.parametrize("data", [b"", b"{}", b"x" * 76, b"x" * 77, b"\xff" * 200, b"[" * 5000])
def test_garbage_is_corrupt(data) -> None:
    with pytest.raises(CorruptError):
        decode_record(data, 1, "k")


def test_sealed_bytes_are_read_as_strictly_as_a_manifest(blobs, ledger) -> None:
    ledger.append(checkpoint(1, receipts={"db": [1]}), author=LIBRARY)
    body = blobs.get(ledger_key(1))[:-77] + b"}"

    for hostile in (
        body[:-1] + b',"n":1}',
        body[:-1] + b',"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        body.replace(b"[1]", b"[NaN]"),
        body.replace(b"[1]", b'["\\ud800"]'),
        b"\xef\xbb\xbf" + body,
        body[:-1] + b"}}",
    ):
        sealed = hostile[:-1] + b',"sha256":"' + hashlib.sha256(hostile).hexdigest().encode() + b'"}'
        with pytest.raises(CorruptError):
            decode_record(sealed, 1, "k")


def test_every_flipped_bit_and_every_truncation_of_a_small_ledger_is_named(blobs, ledger) -> None:
    author = start(ledger)
    ledger.append(checkpoint(1, receipts={"db": [{"é": 1}]}), author=author)
    ledger.append(OutcomeRecord(epoch=1, statuses={"db": COMMITTED}), author=author)
    ledger.append(StopRecord(), author=author)
    flips = 0

    for n in range(1, 5):
        sound = blobs.get(ledger_key(n))
        damaged = [sound[:length] for length in range(len(sound))] + [sound + b"\n"]
        for bit in range(len(sound) * 8):
            data = bytearray(sound)
            data[bit // 8] ^= 1 << bit % 8
            damaged.append(bytes(data))
        for count, data in enumerate(damaged):
            with pytest.raises(CorruptError) as raised:
                decode_record(data, n, ledger_key(n))
            assert raised.value.key == ledger_key(n)
            if count % 41 == 0:
                blobs.put(ledger_key(n), data)
                assert list(Ledger(blobs).read().corrupt) == [n]
            flips += 1
        blobs.put(ledger_key(n), sound)

    assert flips > 8_000
    assert not Ledger(blobs).read().problems


def test_a_store_that_does_not_answer_is_never_taken_for_corruption(blobs, ledger) -> None:
    class Down(MemoryBlobs):
        def get(self, key):
            raise StoreUnavailableError("503")

    down = Down()
    ledger.append(checkpoint(1), author=LIBRARY)
    down._objects = blobs._objects

    with pytest.raises(StoreUnavailableError):
        _ = Ledger(down).read().newest_decision


def test_reading_again_fetches_only_what_is_new() -> None:
    class Counting(MemoryBlobs):
        reads = 0

        def get(self, key):
            self.reads += 1
            return super().get(key)

    blobs = Counting()
    writer, reader = Ledger(blobs), Ledger(blobs)
    for epoch in range(1, 21):
        writer.append(checkpoint(epoch), author=LIBRARY)
    _ = reader.read().newest_decision
    first = blobs.reads
    writer.append(checkpoint(21), author=LIBRARY)

    assert reader.read().newest_decision.epoch == 21
    assert first <= 2, "the present cost the past"
    assert blobs.reads - first <= 1


def test_a_history_is_a_value_that_later_appends_do_not_change(blobs, ledger) -> None:
    ledger.append(checkpoint(1), author=LIBRARY)
    history = ledger.read()
    ledger.append(checkpoint(2), author=LIBRARY)

    assert history.head == 1
    assert history.newest_decision.epoch == 1
    assert [record.epoch for record in history.timeline] == [1]
