"""A ledger as the first version wrote it, one record of every kind. Never regenerated: later versions must
read it.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from holdfast.blobs.files import FileBlobs
from holdfast.ids import CheckpointId
from holdfast.layout import ledger_key
from holdfast.ledger import History, Ledger, LogObject, OutcomeRecord, StartRecord
from holdfast.ledger.records import encode_record
from holdfast.manifest import SinkCommitStatus

GOLDEN = Path(__file__).parent / "golden" / "ledger" / "version-1"
IDS = [CheckpointId.parse(f"0195c0de-7000-7abc-8def-00000000000{digit}") for digit in range(10)]


@pytest.fixture
def history() -> History:
    return Ledger(FileBlobs(GOLDEN)).read()


def test_every_kind_is_there_and_sound(history) -> None:
    assert [record.kind for record in history.records.values()] == [
        "start",
        "checkpoint",
        "epoch",
        "outcome",
        "stop",
        "start",
        "restore",
        "outcome",
        "savepoint",
        "hold",
        "hold",
        "hold",
        "prune",
        "checkpoint",
    ]
    assert not history.problems


def test_what_the_records_say_has_not_changed(history) -> None:
    start, checkpoint, light, outcome, stop, second, restore, done = list(history.records.values())[:8]

    assert (start.generation, start.pipeline_hash) == (1, 14695981039346656037)
    assert start.topology == {"sources": {"trades": {"hash": "1f", "inputs": []}}}
    assert (checkpoint.epoch, checkpoint.checkpoint_id, checkpoint.seal) == (1, IDS[1], "5e" * 32)
    assert (checkpoint.after, checkpoint.batches) == (0, (0, 2))
    assert checkpoint.receipts == {"db": [{"rows": 3, "table": "größe"}], "lake": []}
    assert checkpoint.logs == {
        "offsets/2": 'v1\n{"batchWatermarkMs":0}\n{"logOffset":2}',
        "sources/0/2": LogObject(
            key=f"logs/000000000001-{IDS[1]}-" + "0c" * 32, size_bytes=300_000, sha256="0c" * 32
        ),
    }
    assert (light.after, light.epoch, light.receipts) == (2, 2, {"db": [None]})
    assert outcome == OutcomeRecord(
        n=4,
        generation=1,
        writer="a1" * 16,
        at_ms=1_763_510_403_000,
        prev=hashlib.sha256((GOLDEN / ledger_key(3)).read_bytes()).hexdigest(),
        epoch=2,
        statuses={
            "db": SinkCommitStatus.failed("sink 'db' commit failed: gone"),
            "lake": SinkCommitStatus.COMMITTED,
            "old": SinkCommitStatus.PENDING,
        },
        receipts={"db": [["fed", 2]]},
    )
    assert (stop.epoch, stop.checkpoint_id, stop.seal) == (2, IDS[3], "7a" * 32)
    assert isinstance(second, StartRecord)
    assert (second.from_id, second.corrupt) == (IDS[1], [IDS[3]])
    assert (restore.to, restore.sinks, restore.rewound, restore.reason) == (
        2,
        "rewind",
        (2, 2),
        "wrong prices",
    )
    assert (done.epoch, done.restore, done.statuses) == (None, 7, {})


def test_what_the_ledger_means_has_not_changed(history) -> None:
    assert (history.head, history.generation, history.writer, history.highest_epoch) == (14, 6, "b2" * 16, 3)
    assert [decision.epoch for decision in history.timeline] == [1, 3]
    assert [decision.epoch for decision in history.abandoned] == [2]
    assert history.pruned() == {str(IDS[3]), "checkpoints/leftover/batch-000003.lz4"}
    assert list(history.holds(now_ms=1_763_510_500_000)) == [(IDS[1], "audit")]
    assert history.receipts(history.decision_of(2)) == {"db": [["fed", 2]]}


def test_the_same_records_are_written_as_the_same_bytes(history) -> None:
    for n, record in history.records.items():
        assert encode_record(record) == (GOLDEN / ledger_key(n)).read_bytes()


def test_the_format_is_what_the_documentation_says() -> None:
    prev = None
    for n in range(1, 15):
        data = (GOLDEN / f"ledger/{n:012}.json").read_bytes()
        document = json.loads(data)

        assert data[-77:] == b',"sha256":"%s"}' % hashlib.sha256(data[:-77] + b"}").hexdigest().encode()
        assert list(document)[:6] == ["n", "kind", "generation", "writer", "at_ms", "prev"]
        assert (document["n"], document["prev"]) == (n, prev)
        prev = hashlib.sha256(data).hexdigest()


def test_a_trimmed_ledger_means_what_it_meant_before(history) -> None:
    trimmed = Ledger(FileBlobs(GOLDEN.with_name("version-1-trimmed"))).read()

    assert (trimmed.boundary.n, trimmed.boundary.epoch) == (13, 2)
    assert list(trimmed.records) == [*sorted(trimmed.boundary.kept), 14]
    assert trimmed.timeline == history.timeline
    assert (trimmed.generation, trimmed.writer, trimmed.highest_epoch) == (6, "b2" * 16, 3)
    assert trimmed.holds(now_ms=1_763_510_500_000) == history.holds(now_ms=1_763_510_500_000)
    assert not trimmed.problems


def test_a_boundary_is_what_the_documentation_says() -> None:
    data = (GOLDEN.with_name("version-1-trimmed") / "ledger/boundary-000000000013.json").read_bytes()
    document = json.loads(data)

    assert data[-77:] == b',"sha256":"%s"}' % hashlib.sha256(data[:-77] + b"}").hexdigest().encode()
    assert list(document) == ["n", "epoch", "kept", "sha256"]
