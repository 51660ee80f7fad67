"""Several writers, restarts, restores and a store on a bad day, against a model one can read in a minute.

The model is the raw objects as they were written (trimming deletes them in the store, never in the model),
folded once from the first to the last. It knows nothing of heads, tails or boundaries.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, event, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from holdfast.blobs.base import Data
from holdfast.blobs.memory import MemoryBlobs
from holdfast.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from holdfast.ids import CheckpointId
from holdfast.layout import ledger_number
from holdfast.ledger import (
    Author,
    CheckpointRecord,
    EpochRecord,
    History,
    HoldRecord,
    Ledger,
    OutcomeRecord,
    PruneRecord,
    Record,
    RestoreRecord,
    StartRecord,
    StopRecord,
    new_writer,
)
from holdfast.testing import FaultyBlobs


class Store(MemoryBlobs):
    """Keeps, beside the store, every record as it was first written under its number: that one was real."""

    def __init__(self) -> None:
        super().__init__()
        self.ever = MemoryBlobs()
        self.changes = 0

    def delete(self, key: str) -> None:
        self.changes += 1
        super().delete(key)

    def create(self, key: str, data: Data) -> None:
        super().create(key, data)
        self.changes += 1
        if ledger_number(key) and self.ever.head(key) is None:
            self.ever.create(key, data)


WRITERS = st.integers(0, 3)
DECISIONS = ("checkpoint", "epoch")
RUNNERS = (*DECISIONS, "restore", "stop")


@dataclass
class Writer:
    blobs: FaultyBlobs
    ledger: Ledger
    author: Author
    #: What this writer last saw. It may be long out of date.
    seen: History
    #: A checkpoint whose artifacts are written, and the ledger's head when that began.
    prepared: tuple[CheckpointId, int] | None = None


class Ledgers(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.blobs = Store()
        self.writers = [self.new_process() for _ in range(4)]
        self.acknowledged: list[Record] = []
        self.refused: set[str] = set()
        self.checked = -1

    def new_process(self) -> Writer:
        blobs = FaultyBlobs(self.blobs)
        ledger = Ledger(blobs, now_ms=lambda: 1_700_000_000_000)
        return Writer(blobs, ledger, Author(0, new_writer()), ledger.read())

    def append(self, writer: Writer, draft: Record, **how: Any) -> Record | None:
        id = str(getattr(draft, "checkpoint_id", None))
        decides = isinstance(draft, CheckpointRecord | EpochRecord)
        try:
            record = writer.ledger.append(draft, author=writer.author, **how)
        except OutcomeUnknownError:
            # The process ends, and the next one makes sure before it believes anything.
            self.restart(writer)
            return None
        except (ConflictError, StoreUnavailableError, InvalidInputError, NotFoundError):
            if decides:
                self.refused.add(id)
            return None
        self.acknowledged.append(record)
        return record

    def restart(self, writer: Writer) -> None:
        fresh = self.new_process()  # on a good day
        fresh.ledger.reassert_head()
        self.writers[self.writers.index(writer)] = fresh

    def decisions_seen(self, writer: Writer) -> list[Any]:
        try:
            return [record for record in writer.seen.records.values() if record.kind in DECISIONS]
        except StoreUnavailableError:
            return []

    @rule(index=WRITERS)
    def reads(self, index: int) -> None:
        with suppress(StoreUnavailableError):
            self.writers[index].seen = self.writers[index].ledger.read()

    @rule(index=WRITERS)
    def starts(self, index: int) -> None:
        writer = self.writers[index]
        record = self.append(writer, StartRecord(), planned_at=writer.seen.head)
        if record is not None:
            writer.author = Author(record.n, record.writer)

    @rule(index=WRITERS, light=st.booleans(), skip=st.integers(0, 1))
    def decides(self, index: int, light: bool, skip: int) -> None:
        writer = self.writers[index]
        id, since = writer.prepared or (CheckpointId.now(), writer.seen.head)
        writer.prepared = None
        try:
            epoch = writer.seen.highest_epoch + 1 + skip
            parent = writer.seen.newest_decision
        except StoreUnavailableError:
            return
        if light:
            draft: Record = EpochRecord(epoch=epoch, checkpoint_id=id, receipts={"db": [epoch]})
        else:
            draft = CheckpointRecord(epoch=epoch, checkpoint_id=id, seal="5" * 64)
        self.append(writer, draft, parent=None if parent is None else parent.checkpoint_id, since=since)

    @rule(index=WRITERS, back=st.integers(0, 5))
    def restores(self, index: int, back: int) -> None:
        writer = self.writers[index]
        decisions = [record.n for record in self.decisions_seen(writer)]
        self.append(writer, RestoreRecord(to=decisions[-back] if 0 < back <= len(decisions) else 0))

    @rule(index=WRITERS)
    def says_how_it_went(self, index: int) -> None:
        writer = self.writers[index]
        for decision in self.decisions_seen(writer)[-1:]:
            self.append(writer, OutcomeRecord(epoch=decision.epoch))

    @rule(index=WRITERS)
    def stops(self, index: int) -> None:
        self.append(self.writers[index], StopRecord())

    @rule(index=WRITERS, back=st.integers(1, 4))
    def holds(self, index: int, back: int) -> None:
        ids = [record.checkpoint_id for record in self.decisions_seen(self.writers[index])]
        if len(ids) >= back:
            self.append(self.writers[index], HoldRecord(checkpoint_id=ids[-back], name="audit"))

    @rule(index=WRITERS, back=st.integers(1, 4))
    def prunes(self, index: int, back: int) -> None:
        writer = self.writers[index]
        ids = [record.checkpoint_id for record in self.decisions_seen(writer)]
        if len(ids) >= back:
            self.append(writer, PruneRecord(ids=[ids[-back]]), planned_at=writer.seen.head)

    @rule(index=WRITERS)
    def prepares(self, index: int) -> None:
        writer = self.writers[index]
        writer.prepared = (CheckpointId.now(), writer.seen.head)

    @rule(index=WRITERS, other=WRITERS)
    def collects(self, index: int, other: int) -> None:
        prepared = self.writers[other].prepared
        if prepared is not None:
            self.append(
                self.writers[index], PruneRecord(ids=[prepared[0]]), planned_at=self.writers[index].seen.head
            )

    @rule(index=WRITERS, epochs=st.integers(1, 4), light=st.booleans(), stop=st.booleans())
    def runs_for_a_while(self, index: int, epochs: int, light: bool, stop: bool) -> None:
        self.reads(index)
        self.starts(index)
        for _ in range(epochs):
            self.reads(index)
            self.decides(index, light, 0)
        if stop:
            self.stops(index)

    @rule(index=WRITERS, back=st.integers(0, 3))
    def trims(self, index: int, back: int) -> None:
        writer = self.writers[index]
        with suppress(StoreUnavailableError, OutcomeUnknownError):
            timeline = writer.ledger.read().timeline
            keep_from = timeline[-1 - back % len(timeline)].n if timeline else 1
            event(f"trimming deletes: {writer.ledger.trim(keep_from, is_gone=bool) > 0}")

    @rule(index=WRITERS)
    def crashes(self, index: int) -> None:
        self.restart(self.writers[index])

    @rule(index=WRITERS, landed=st.booleans())
    def loses_the_next_reply(self, index: int, landed: bool) -> None:
        blobs = self.writers[index].blobs
        if landed:
            blobs.lose_reply("create")
        else:
            blobs.fail("create", OutcomeUnknownError("create: no answer"))

    @rule(index=WRITERS, method=st.sampled_from(["create", "get", "list"]))
    def has_a_bad_moment(self, index: int, method: str) -> None:
        self.writers[index].blobs.fail(method)

    @rule(index=WRITERS)
    def recovers(self, index: int) -> None:
        self.writers[index].blobs.heal()

    # What must hold, whatever happened

    @invariant()
    def everything_holds(self) -> None:
        if self.blobs.changes == self.checked:
            return
        self.checked = self.blobs.changes
        ever = self.blobs.ever
        raw = [json.loads(ever.get(info.key)) for info in ever.list("ledger/")]
        before, now = Ledger(ever).read(), Ledger(self.blobs).read()
        self.one_record_per_number_and_no_gap(raw)
        self.i1_and_i6_an_epoch_and_an_id_are_decided_once_and_epochs_grow(raw)
        self.i5_only_the_newest_generation_decides_restores_and_stops(raw)
        self.what_was_acknowledged_is_there(before, now)
        self.nothing_refers_to_what_was_pruned_before(raw)
        self.trimming_keeps_every_checkpoint_and_what_is_known_of_its_sinks(before, now)
        self.the_history_says_what_the_model_says(raw, now)

    def one_record_per_number_and_no_gap(self, raw: list[dict[str, Any]]) -> None:
        assert [record["n"] for record in raw] == list(range(1, len(raw) + 1))

    def i1_and_i6_an_epoch_and_an_id_are_decided_once_and_epochs_grow(
        self, raw: list[dict[str, Any]]
    ) -> None:
        decisions = [record for record in raw if record["kind"] in DECISIONS]
        epochs = [record["epoch"] for record in decisions]
        ids = [record["checkpoint_id"] for record in decisions]

        assert epochs == sorted(set(epochs))
        assert len(ids) == len(set(ids))
        assert self.refused.isdisjoint(ids), "an attempt that was told no is in the ledger"

    def i5_only_the_newest_generation_decides_restores_and_stops(self, raw: list[dict[str, Any]]) -> None:
        generation, runner = 0, None
        for record in raw:
            if record["kind"] == "start":
                generation, runner = record["n"], record["writer"]
                assert record["generation"] == generation
            elif record["kind"] in RUNNERS:
                assert record["generation"] == generation
                assert runner is None or record["writer"] == runner

    def what_was_acknowledged_is_there(self, before: History, now: History) -> None:
        for record in self.acknowledged:
            assert before.record(record.n) == record
            assert not now.boundary.has(record.n) or now.record(record.n) == record

    def nothing_refers_to_what_was_pruned_before(self, raw: list[dict[str, Any]]) -> None:
        pruned: set[str] = set()
        ids: dict[int, str] = {}
        for record in raw:
            if record["kind"] == "prune":
                pruned.update(record["ids"])
            elif record["kind"] == "restore":
                assert ids.get(record["to"]) not in pruned
            elif record["kind"] in (*DECISIONS, "hold"):
                assert record["checkpoint_id"] not in pruned
                ids[record["n"]] = record["checkpoint_id"]

    def trimming_keeps_every_checkpoint_and_what_is_known_of_its_sinks(
        self, before: History, now: History
    ) -> None:
        pruned = before.pruned()
        for record in before.records.values():
            if record.kind == "checkpoint" and str(record.checkpoint_id) not in pruned:
                assert now.naming(record.checkpoint_id) == record
                assert now.statuses(record.epoch) == before.statuses(record.epoch)
        assert now.holds(now_ms=0) == before.holds(now_ms=0)
        assert (now.generation, now.writer) == (before.generation, before.writer)
        assert now.newest_start == before.newest_start

    def the_history_says_what_the_model_says(self, raw: list[dict[str, Any]], now: History) -> None:
        tip, after, finished = 0, {}, set()
        restore = None
        for record in raw:
            if record["kind"] in DECISIONS:
                assert record["after"] == tip
                after[record["n"]] = tip
                tip, restore = record["n"], None
            elif record["kind"] == "restore":
                tip, restore = record["to"], record["n"]
            elif record["kind"] == "outcome" and "restore" in record:
                finished.add(record["restore"])
        chain = []
        while tip:
            chain.append(tip)
            tip = after[tip]

        def left(numbers):
            return sorted(filter(now.boundary.has, numbers))

        assert [decision.n for decision in now.timeline] == left(chain)
        assert [decision.n for decision in now.abandoned] == left(set(after) - set(chain))
        assert now.tip == (chain[0] if chain else 0)
        assert (now.open_restore.n if now.open_restore else None) == restore
        assert now.highest_epoch == max((r["epoch"] for r in raw if r["n"] in after), default=0)
        assert not now.problems


Ledgers.TestCase.settings = settings(
    max_examples=250,
    stateful_step_count=40,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
TestLedgers = Ledgers.TestCase
