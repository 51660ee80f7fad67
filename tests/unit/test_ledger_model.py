"""Several writers, restarts, restores and a store on a bad day, against a model one can read in a minute.

The model is the raw objects, folded once from the first to the last. It knows nothing of heads, tails or
boundaries.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from holdfast.blobs.memory import MemoryBlobs
from holdfast.errors import ConflictError, InvalidInputError, OutcomeUnknownError, StoreUnavailableError
from holdfast.ids import CheckpointId
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
    acknowledged: list[Record] = field(default_factory=list)


class Ledgers(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.blobs = MemoryBlobs()
        self.writers = [self.new_process() for _ in range(4)]
        self.acknowledged: list[Record] = []
        self.refused: set[str] = set()

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
        except (ConflictError, StoreUnavailableError, InvalidInputError):
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
        id = CheckpointId.now()
        try:
            epoch = writer.seen.highest_epoch + 1 + skip
            parent = writer.seen.newest_decision
        except StoreUnavailableError:
            return
        if light:
            draft: Record = EpochRecord(epoch=epoch, checkpoint_id=id, receipts={"db": [epoch]})
        else:
            draft = CheckpointRecord(epoch=epoch, checkpoint_id=id, seal="5" * 64)
        self.append(writer, draft, parent=None if parent is None else parent.checkpoint_id)

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

    def raw(self) -> list[dict[str, Any]]:
        return [json.loads(self.blobs.get(info.key)) for info in self.blobs.list("ledger/")]

    @invariant()
    def one_record_per_number_and_no_gap(self) -> None:
        assert [record["n"] for record in self.raw()] == list(range(1, len(self.raw()) + 1))

    @invariant()
    def i1_and_i6_an_epoch_and_an_id_are_decided_once_and_epochs_grow(self) -> None:
        decisions = [record for record in self.raw() if record["kind"] in DECISIONS]
        epochs = [record["epoch"] for record in decisions]
        ids = [record["checkpoint_id"] for record in decisions]

        assert epochs == sorted(set(epochs))
        assert len(ids) == len(set(ids))
        assert self.refused.isdisjoint(ids), "an attempt that was told no is in the ledger"

    @invariant()
    def i5_only_the_newest_generation_decides_restores_and_stops(self) -> None:
        generation, runner = 0, None
        for record in self.raw():
            if record["kind"] == "start":
                generation, runner = record["n"], record["writer"]
                assert record["generation"] == generation
            elif record["kind"] in RUNNERS:
                assert record["generation"] == generation
                assert runner is None or record["writer"] == runner

    @invariant()
    def what_was_acknowledged_is_there(self) -> None:
        history = Ledger(self.blobs).read()
        for record in self.acknowledged:
            assert history.records[record.n] == record

    @invariant()
    def nothing_refers_to_what_was_pruned_before(self) -> None:
        pruned: set[str] = set()
        ids: dict[int, str] = {}
        for record in self.raw():
            if record["kind"] == "prune":
                pruned.update(record["ids"])
            elif record["kind"] == "restore":
                assert ids.get(record["to"]) not in pruned
            elif record["kind"] in (*DECISIONS, "hold"):
                assert record["checkpoint_id"] not in pruned
                ids[record["n"]] = record["checkpoint_id"]

    @invariant()
    def the_history_says_what_the_model_says(self) -> None:
        tip, after, finished = 0, {}, set()
        restore = None
        for record in self.raw():
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

        history = Ledger(self.blobs).read()

        assert [decision.n for decision in history.timeline] == chain[::-1]
        assert {decision.n for decision in history.abandoned} == set(after) - set(chain)
        assert (history.open_restore.n if history.open_restore else None) == restore
        assert history.highest_epoch == max((r["epoch"] for r in self.raw() if r["n"] in after), default=0)
        assert not history.problems


Ledgers.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
TestLedgers = Ledgers.TestCase
