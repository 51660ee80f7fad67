"""Several writers and collectors on one store, dying and losing replies, against a model of one page."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from holdfast.blobs.memory import MemoryBlobs
from holdfast.errors import CheckpointNotFoundError, ConflictError, HoldfastError, OutcomeUnknownError
from holdfast.ids import CheckpointId
from holdfast.ledger import HoldRecord
from holdfast.store import CheckpointWriter, PartitionedCheckpointStore
from holdfast.store.verifying import verify_store
from holdfast.testing import WRITES, Crash, CrashingBlobs, FaultyBlobs

WRITERS = st.integers(0, 2)
#: After how many writes the process dies. Most operations have fewer, and survive.
DEATHS = st.none() | st.tuples(st.integers(1, 6), st.booleans())


class Stores(RuleBasedStateMachine):
    """The model: what each acknowledged checkpoint reads as, and which ones are held."""

    @initialize()
    def begin(self) -> None:
        self.blobs = MemoryBlobs()
        self.stores = [PartitionedCheckpointStore(self.blobs) for _ in range(3)]
        self.open: list[tuple[CheckpointWriter, list[bytes]] | None] = [None] * 3
        #: Reads of every checkpoint that anybody was told is published, or that may be.
        self.expected: dict[CheckpointId, list[bytes]] = {}
        self.held: set[CheckpointId] = set()
        self.newest: CheckpointId | None = None
        self.counter = 0

    @rule(index=WRITERS, delta=st.booleans())
    def starts_a_checkpoint(self, index: int, delta: bool) -> None:
        store = self.stores[index]
        ids = store.list_ids()
        parent = ids[-1] if delta and ids else None
        self.counter += 1
        state = b"state %d" % self.counter
        with suppress(CheckpointNotFoundError):
            writer = store.writer(store.ledger.read().highest_epoch + 1, parent)
            writer.add("0", 0, state, delta=parent is not None)
            before = store.read_state(parent, "0", 0) if parent is not None else []
            self.open[index] = (writer, [*before, state])

    @rule(index=WRITERS, death=DEATHS)
    def makes_it_durable(self, index: int, death: tuple[int, bool] | None) -> None:
        self.act(index, death, lambda writer: writer.write())

    @rule(index=WRITERS, death=DEATHS)
    def publishes(self, index: int, death: tuple[int, bool] | None) -> None:
        self.act(index, death, lambda writer: writer.publish())
        self.open[index] = None

    @rule(index=WRITERS)
    def gives_up(self, index: int) -> None:
        found = self.open[index]
        if found is not None:
            found[0].abandon()
            self.open[index] = None

    @rule(index=WRITERS)
    def publishes_and_loses_the_reply(self, index: int) -> None:
        found = self.open[index]
        if found is None:
            return
        writer, state = found
        self.open[index] = None
        with suppress(ConflictError):
            writer.write()
            faulty = FaultyBlobs(self.blobs)
            faulty.lose_reply("create")
            store = PartitionedCheckpointStore(faulty)
            writer._store = store
            try:
                writer.publish()
            except OutcomeUnknownError:
                writer.abandon()
            else:
                self.remember(writer.id, state)

    @rule(index=WRITERS, keep=st.integers(1, 4), death=DEATHS)
    def prunes(self, index: int, keep: int, death: tuple[int, bool] | None) -> None:
        self.with_store(index, death, lambda store: store.prune(keep))

    @rule(index=WRITERS, death=DEATHS)
    def cleans_up(self, index: int, death: tuple[int, bool] | None) -> None:
        self.with_store(index, death, lambda store: store.cleanup_orphans(0))

    @rule(index=WRITERS, back=st.integers(1, 4))
    def holds(self, index: int, back: int) -> None:
        store = self.stores[index]
        ids = store.list_ids()
        if len(ids) >= back:
            record = HoldRecord(checkpoint_id=ids[-back], name="audit")
            store.ledger.append(record, author=store.author)
            self.held.add(ids[-back])

    @rule(index=WRITERS)
    def restarts(self, index: int) -> None:
        self.stores[index] = PartitionedCheckpointStore(self.blobs)
        self.open[index] = None

    def act(self, index: int, death: tuple[int, bool] | None, how: Any) -> None:
        found = self.open[index]
        if found is None:
            return
        writer, state = found
        crashing = self.dying(death)
        writer._store = PartitionedCheckpointStore(crashing)
        try:
            how(writer)
        except Crash:
            self.restarts(index)
        except ConflictError:
            self.open[index] = None
        else:
            writer._store = self.stores[index]
        if writer.record is not None:
            self.remember(writer.id, state)
        elif self.named(writer.id):
            # It died between the decision and hearing of it.
            self.remember(writer.id, state)

    def with_store(self, index: int, death: tuple[int, bool] | None, how: Any) -> None:
        try:
            how(PartitionedCheckpointStore(self.dying(death)))
        except Crash:
            self.restarts(index)

    def dying(self, death: tuple[int, bool] | None) -> CrashingBlobs:
        if death is None:
            return CrashingBlobs(self.blobs)
        number, before = death
        which = {"before": number} if before else {"after": number}
        return CrashingBlobs(self.blobs, counting=WRITES, **which)  # type: ignore[arg-type]

    def named(self, id: CheckpointId) -> bool:
        return id in PartitionedCheckpointStore(self.blobs).list_ids()

    def remember(self, id: CheckpointId, state: list[bytes]) -> None:
        self.expected[id] = state
        self.newest = id

    @invariant()
    def everything_published_reads_as_it_was_written(self) -> None:
        store = PartitionedCheckpointStore(self.blobs)
        listed = store.list_ids()

        assert set(listed) <= set(self.expected), "something is published that nobody published"
        assert listed == sorted(listed)
        assert self.held <= set(listed), "a held checkpoint is gone"
        if self.newest is not None:
            assert listed[-1] == self.newest, "the newest is gone"
        for id in listed:
            assert store.read_state(id, "0", 0) == self.expected[id]
        assert verify_store(store, read_data=True).problems == ()

    def teardown(self) -> None:
        """Whatever happened: the next run works, and after a clean-up all that lies there is named."""
        store = PartitionedCheckpointStore(self.blobs)
        writer = store.writer(store.ledger.read().highest_epoch + 1)
        writer.add("0", 0, b"last")
        writer.publish()
        store.prune(1)
        store.cleanup_orphans(0)
        report = verify_store(store, read_data=True)
        assert (report.problems, report.warnings) == ((), ())


class TestStores(Stores.TestCase):  # type: ignore[misc,name-defined]
    settings = settings(max_examples=300, stateful_step_count=35, deadline=None, print_blob=True)


def test_the_model_would_notice() -> None:
    """A model that cannot fail proves nothing: it does notice a deleted object."""
    machine = Stores()
    machine.begin()
    machine.starts_a_checkpoint(0, False)
    machine.publishes(0, None)
    machine.everything_published_reads_as_it_was_written()
    for info in list(machine.blobs.list("checkpoints/")):
        machine.blobs.delete(info.key)

    try:
        machine.everything_published_reads_as_it_was_written()
    except HoldfastError:
        return
    raise AssertionError("it did not notice")
