"""Which checkpoint to resume from, and what else it takes. Reads, and changes nothing.

    newest first along the timeline: is this checkpoint sound to its last byte?

        yes, and nothing was decided after it           resume
        yes, and every decision after it left its logs  replay: run exactly those batches again, sinks closed
        otherwise                                       stuck: a person decides, with the command given here

It steps back only over proven corruption. A store that does not answer proves nothing: that is raised.
Sinks of the last decision may still be pending: a flow resolves them from the record, so they are no reason
to step back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from holdfast.errors import CorruptError, UnsupportedFormatError
from holdfast.ids import CheckpointId
from holdfast.ledger import (
    CheckpointRecord,
    Decision,
    EpochRecord,
    Gap,
    History,
    RestoreRecord,
    StopRecord,
)
from holdfast.manifest import CheckpointManifestV2
from holdfast.store import PartitionedCheckpointStore
from holdfast.store.naming import find_by_listing

Verdict: TypeAlias = Literal["fresh", "resume", "replay", "stuck"]

_MEND = "bring what is damaged back from a copy of the store, and start again"


@dataclass(frozen=True, slots=True)
class Skipped:
    """A checkpoint that was looked at and found corrupt."""

    id: CheckpointId
    reason: str


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """What a start would do, and why.

    ``fresh``: nothing was ever decided. ``resume``: from ``chosen``. ``replay``: from ``chosen`` (None:
    from the very beginning), then the batches of ``replay``, oldest first. ``stuck``: ``reason`` says why,
    ``command`` what to type next, ``advice`` what to know about it; ``chosen`` is then the newest sound
    checkpoint, if there is one.
    """

    verdict: Verdict
    chosen: CheckpointId | None = None
    #: The decision whose state ``chosen`` holds; None where no ledger names it.
    chosen_record: int | None = None
    chosen_epoch: int | None = None
    examined: int = 0
    skipped: tuple[Skipped, ...] = ()
    replay: tuple[Decision, ...] = ()
    reason: str | None = None
    command: str | None = None
    advice: str | None = None

    @property
    def hint(self) -> str | None:
        """Command and advice in one line."""
        return "; ".join(filter(None, (self.command, self.advice))) or None

    @property
    def stepped_back(self) -> bool:
        """Whether the newest checkpoint was not the one to resume from."""
        return bool(self.skipped)

    def to_json(self) -> dict[str, Any]:
        """The plan as ``--json`` prints it."""
        return {
            "verdict": self.verdict,
            "chosen": None if self.chosen is None else str(self.chosen),
            "chosen_record": self.chosen_record,
            "chosen_epoch": self.chosen_epoch,
            "examined": self.examined,
            "skipped": [{"id": str(skipped.id), "reason": skipped.reason} for skipped in self.skipped],
            "replay": [
                {
                    "record": decision.n,
                    "epoch": decision.epoch,
                    "checkpoint_id": str(decision.checkpoint_id),
                    "batches": None if decision.batches is None else list(decision.batches),
                }
                for decision in self.replay
            ],
            "reason": self.reason,
            "command": self.command,
            "advice": self.advice,
        }


@dataclass(slots=True)
class _Search:
    """What was met on the way back along the timeline."""

    chosen: CheckpointId | None = None
    at: Decision | None = None
    examined: int = 0
    skipped: list[Skipped] = field(default_factory=list)
    newer: list[Decision] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)

    def plan(
        self,
        verdict: Verdict,
        *,
        reason: str | None = None,
        command: str | None = None,
        advice: str | None = None,
    ) -> RecoveryPlan:
        return RecoveryPlan(
            verdict=verdict,
            chosen=self.chosen,
            chosen_record=None if self.at is None else self.at.n,
            chosen_epoch=None if self.at is None else self.at.epoch,
            examined=self.examined,
            skipped=tuple(self.skipped),
            replay=tuple(reversed(self.newer)) if verdict == "replay" else (),
            reason=reason,
            command=command,
            advice=advice,
        )


def plan_recovery(store: PartitionedCheckpointStore, history: History | None = None) -> RecoveryPlan:
    """How to resume from ``store`` as it is now, or as ``history`` says it is.

    Raises what keeps it from knowing: an I/O error, a newer format.
    """
    history = history or store.ledger.read()
    if history.head == 0:
        return _plan_without_ledger(store)
    search = _search(store, history)
    reason = _lost(history, search)
    if reason is None and search.newer:
        reason = _not_replayable(store, search)
        if reason is None and _must_replay(search):
            return search.plan("replay")
    if reason is None and search.chosen is None and search.examined:
        reason = "no checkpoint is sound, and starting afresh would be silent about it"
    if reason is not None:
        return search.plan("stuck", reason=reason, command=_way_out(search), advice=_advice(search))
    return search.plan("fresh" if search.chosen is None else "resume")


def plan_running_again(store: PartitionedCheckpointStore, history: History) -> RecoveryPlan:
    """How to run the newest decision once more, for a sink that lost what it had staged.

    ``replay`` from the newest sound checkpoint before it (its own holds the state after it), or ``stuck``.
    """
    search = _search(store, history, again=history.newest_decision)
    reason = str(search.gaps[0].error) if search.gaps else _not_replayable(store, search)
    if reason is None:
        return search.plan("replay")
    return search.plan("stuck", reason=reason, command="holdfast verify --read-data", advice=_MEND)


def _search(store: PartitionedCheckpointStore, history: History, *, again: Decision | None = None) -> _Search:
    """Back along the timeline to the newest sound checkpoint that is none of ``again``."""
    search = _Search()
    upper = history.head + 1
    for entry in history.walk():
        if isinstance(entry, Gap):
            search.gaps.append(entry)
            continue
        for id in _states_of(history, entry, upper) if entry != again else ():
            search.examined += 1
            reason = _find_fault(store, history, entry, id)
            if reason is None:
                search.chosen, search.at = id, entry
                return search
            search.skipped.append(Skipped(id, reason))
        search.newer.append(entry)
        upper = entry.n
    return search


def _states_of(history: History, decision: Decision, upper: int) -> Iterator[CheckpointId]:
    """Checkpoints that hold the state after ``decision``: taken along by a later stop, or its own.

    Not savepoints: those are copies for a person to choose.
    """
    for n in history.numbers(upper, above=decision.n):
        record = history.record(n)
        if not isinstance(record, StopRecord) or record.epoch != decision.epoch:
            continue
        if record.checkpoint_id is not None and record.checkpoint_id != decision.checkpoint_id:
            yield record.checkpoint_id
    if isinstance(decision, CheckpointRecord):
        yield decision.checkpoint_id


def _find_fault(
    store: PartitionedCheckpointStore, history: History, decision: Decision, id: CheckpointId
) -> str | None:
    """Why ``id`` cannot be resumed from, proven; None if it is sound. Raises what proves nothing."""
    if str(id) in history.pruned(since=decision.n):
        return "a prune record names it: it counts as deleted, whatever still lies there"
    try:
        # validate_checkpoint tells of a newer format too, but as a finding. Here that stops the start.
        store.chain(id)
    except CorruptError as error:
        return str(error)
    return store.validate_checkpoint(id).reason or None


def _lost(history: History, search: _Search) -> str | None:
    """Which decision may be lost: a record that cannot be read, newer than the newest sound checkpoint."""
    if search.gaps:
        return f"{search.gaps[0].error}; what it decided is not known, and sinks may show it"
    since = search.at.n if search.at is not None else 0
    for n in history.numbers(above=since):
        record = history.record(n)
        if isinstance(record, RestoreRecord):
            # Whoever went back knew what was lost by then; the timeline goes on from here.
            return None
        error = history.slot(n).error
        if error is not None:
            return f"{error}; it may have decided an epoch that sinks show"
    return None


def _must_replay(search: _Search) -> bool:
    return any(_shows(decision) for decision in search.newer)


def _not_replayable(store: PartitionedCheckpointStore, search: _Search) -> str | None:
    """Why the decisions after the chosen checkpoint cannot be run again; None if they can, or need not."""
    if not _must_replay(search):
        # Captured, or saved by a library's caller: no sink shows it.
        return None
    before = search.at
    for decision in reversed(search.newer):
        reason = _not_next(decision, before)
        if reason is not None:
            return reason
        try:
            logs = store.ledger.read_logs(decision)
        except CorruptError as error:
            return f"epoch {decision.epoch} cannot be replayed: {error}"
        if not logs:
            return f"ledger record {decision.n} (epoch {decision.epoch}) holds no logs to replay"
        before = decision
    return None


def _not_next(decision: Decision, before: Decision | None) -> str | None:
    """Why ``decision`` cannot be replayed right after ``before`` (None: right from the beginning)."""
    if decision.after != (before.n if before is not None else 0):
        return f"epoch {decision.epoch} continues ledger record {decision.after}, which is no more there"
    if decision.batches is None:
        return f"ledger record {decision.n} (epoch {decision.epoch}) does not say which batches it holds"
    expected = 0 if before is None else None if before.batches is None else before.batches[1] + 1
    if expected is not None and decision.batches[0] != expected:
        return f"epoch {decision.epoch} starts with batch {decision.batches[0]}, not {expected}"
    return None


def _shows(decision: Decision) -> bool:
    """Whether sinks may show this epoch, so that nobody may step back over it in silence."""
    return decision.generation > 0 or bool(decision.receipts) or isinstance(decision, EpochRecord)


def _way_out(search: _Search) -> str:
    """What can be typed today: nothing takes a flow itself back yet."""
    return (
        "holdfast verify --read-data"
        if search.chosen is None
        else f"holdfast restore {search.chosen} --to DIR"
    )


def _advice(search: _Search) -> str:
    if search.chosen is None:
        return f"{_MEND}; without one, only a new store can begin afresh, with sinks that are emptied by hand"
    named = f"{_MEND} (`holdfast verify --read-data` names it)"
    if not _sinks_may_show(search):
        return f"the query goes on from that directory; or {named}"
    return (
        f"taking a flow and its sinks back is not supported yet: {named}; or go on from that directory "
        "without Holdfast, knowing that sinks may show later epochs"
    )


def _sinks_may_show(search: _Search) -> bool:
    """Whether a sink may show more than the chosen checkpoint holds."""
    at = search.at is not None and bool(search.at.receipts)
    return at or bool(search.gaps) or any(decision.receipts for decision in search.newer)


def _plan_without_ledger(store: PartitionedCheckpointStore) -> RecoveryPlan:
    """A tree that somebody else wrote: the highest id that is sound. One of ours without its ledger is
    stuck.
    """
    search = _Search()
    for id in reversed(find_by_listing(store.blobs, store.paths)):
        generation = _generation(store, id)
        if generation:
            reason = f"checkpoint {id} was made by generation {generation} of a flow, whose ledger is gone"
            return search.plan("stuck", reason=reason, command="holdfast verify")
    for id in reversed(store.list_ids()):
        search.examined += 1
        reason = store.validate_checkpoint(id).reason
        if not reason:
            search.chosen = id
            return search.plan("resume")
        search.skipped.append(Skipped(id, reason))
    if search.examined:
        reason = "no checkpoint is sound, and starting afresh would be silent about it"
        return search.plan("stuck", reason=reason, command="holdfast verify")
    return search.plan("fresh")


def _generation(store: PartitionedCheckpointStore, id: CheckpointId) -> int:
    """The run that made checkpoint ``id``; 0 for somebody else's, and for one that cannot be read."""
    try:
        return CheckpointManifestV2.from_json(*store.manifest_bytes(id)).generation
    except (CorruptError, UnsupportedFormatError):
        return 0
