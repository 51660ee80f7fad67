"""A ledger of 100,000 records: a start, an epoch and a question each cost a handful of requests."""

from __future__ import annotations

import hashlib
from collections import Counter

import pytest

from holdfast.blobs.memory import MemoryBlobs
from holdfast.ids import CheckpointId
from holdfast.layout import ledger_key
from holdfast.ledger import Author, EpochRecord, Ledger, StartRecord, new_writer
from holdfast.ledger.records import seal_bytes

RECORDS = 100_000
WRITER = "a1" * 16


def id_of(epoch: int) -> CheckpointId:
    return CheckpointId.parse(f"0195c0de-7000-7abc-8def-{epoch:012x}")


def written(records: int) -> dict[str, bytes]:
    """One run of light epochs: a start, and then decisions only."""
    start = {"pipeline_hash": 7, "topology": {}, "from": None, "corrupt": []}
    objects: dict[str, bytes] = {}
    prev = None
    for n in range(1, records + 1):
        facts = {"n": n, "kind": "start" if n == 1 else "epoch", "generation": 1, "writer": WRITER}
        facts |= {"at_ms": 1_700_000_000_000, "prev": prev}
        if n == 1:
            facts |= start
        else:
            decided = {"after": n - 1 if n > 2 else 0, "epoch": n - 1, "checkpoint_id": str(id_of(n - 1))}
            facts |= decided | {"batches": [n - 2, n - 2], "receipts": {"db": [1]}, "logs": {}}
        data = seal_bytes(facts)
        prev = hashlib.sha256(data).hexdigest()
        objects[ledger_key(n)] = data
    return objects


@pytest.fixture(scope="module")
def objects() -> dict[str, bytes]:
    return written(RECORDS)


class Counting(MemoryBlobs):
    """Counts requests. A listing is one for each thousand names, as on S3."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        super().__init__()
        self.requests: Counter[str] = Counter()
        for key, data in objects.items():
            self._store(key, data)

    def get(self, key):
        self.requests["get"] += 1
        return super().get(key)

    def head(self, key):
        self.requests["head"] += 1
        return super().head(key)

    def create(self, key, data):
        self.requests["create"] += 1
        return super().create(key, data)

    def list(self, prefix, start_after=None):
        self.requests["list"] += 1
        for count, info in enumerate(super().list(prefix, start_after), 1):
            if count % 1000 == 0:
                self.requests["list"] += 1
            yield info


@pytest.fixture
def blobs(objects) -> Counting:
    return Counting(objects)


def test_a_start_reads_a_handful_of_records_however_long_the_ledger_is(blobs) -> None:
    history = Ledger(blobs).read()

    assert (history.head, history.generation, history.writer) == (RECORDS, 1, WRITER)
    assert (history.highest_epoch, history.newest_decision.epoch) == (RECORDS - 1, RECORDS - 1)
    assert history.open_restore is None
    assert history.statuses(RECORDS - 1) == {}
    assert blobs.requests["get"] <= 4
    assert blobs.requests["list"] <= 5
    assert blobs.requests["head"] <= 30


def test_an_epoch_costs_one_request(blobs) -> None:
    ledger = Ledger(blobs)
    record = ledger.append_start(StartRecord(), writer=new_writer(), after_head=ledger.read().head)
    author = Author(record.n, record.writer)
    ledger.append(EpochRecord(epoch=RECORDS, checkpoint_id=CheckpointId.now()), author=author)
    blobs.requests.clear()

    ledger.append(EpochRecord(epoch=RECORDS + 1, checkpoint_id=CheckpointId.now()), author=author)
    assert blobs.requests == {"create": 1}

    assert ledger.read().highest_epoch == RECORDS + 1
    assert blobs.requests == {"create": 1, "head": 1}


def test_an_old_decision_is_found_by_its_epoch_or_its_id_without_reading_the_rest(blobs) -> None:
    history = Ledger(blobs).read()

    assert history.decision_of(4321).n == 4322
    assert history.decision_for(id_of(77_777)).n == 77_778
    assert history.statuses(4321) == {"db": history.statuses(4321)["db"]}
    assert history.statuses(4321)["db"].is_committed
    assert history.is_decided(50_000, id_of(50_000))
    assert blobs.requests["get"] <= 64 + 6 * 2 * 17 + 10


def test_a_hole_where_the_search_for_the_end_looks_hides_nothing(objects) -> None:
    for hole in (RECORDS - 5, 2001, 4001, 64_001, RECORDS - 1):
        blobs = Counting(objects)
        blobs.delete(ledger_key(hole))

        assert Ledger(blobs).read().head == RECORDS
