"""May this record be written now, by this author? Values in, a typed refusal out; nothing is written here.

Asked before every attempt to append, against the ledger as it was read last. That is enough: the attempt
takes the number after the head that was read, and if anything came since, it loses that number and is asked
again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from holdfast.errors import (
    CheckpointNotFoundError,
    ConflictError,
    CorruptError,
    EpochTakenError,
    FencedError,
    InvalidInputError,
)
from holdfast.ids import CheckpointId
from holdfast.ledger.history import History, is_decision, key_of
from holdfast.ledger.records import (
    Author,
    CheckpointRecord,
    EpochRecord,
    HoldRecord,
    PruneRecord,
    Record,
    RestoreRecord,
    SavepointRecord,
    StartRecord,
    StopRecord,
    references,
)

#: Which new records make a plan worthless that a draft of this kind was made from.
_OVERTURNS: Final[dict[type, tuple[type, ...]]] = {
    StartRecord: (StartRecord, RestoreRecord, PruneRecord, StopRecord),
    # A collector must see every new child, hold and restore before it names anything.
    PruneRecord: (
        StartRecord,
        CheckpointRecord,
        RestoreRecord,
        PruneRecord,
        StopRecord,
        SavepointRecord,
        HoldRecord,
    ),
}


class StalePlanError(ConflictError):
    """The ledger moved on since the plan that this record carries out was made: plan again."""

    def __init__(self, planned_at: int, record: int, kind: str) -> None:
        super().__init__(planned_at, record, kind)
        self.planned_at = planned_at
        self.record = record
        self.kind = kind

    def __str__(self) -> str:
        return (
            f"planned at ledger record {self.planned_at}, "
            f"but record {self.record} ({self.kind}) has come since"
        )


@dataclass(frozen=True, slots=True)
class Claim:
    """What a draft rests on beyond its own fields; see ``Ledger.append``."""

    parent: CheckpointId | None = None
    names: Collection[str] = ()
    since: int | None = None
    planned_at: int | None = None


def admit(history: History, draft: Record, author: Author, claim: Claim) -> None:
    """Return if ``draft`` may be the record after ``history.head``. Raises what ``Ledger.append`` says."""
    if claim.planned_at is not None:
        _check_plan(history, draft, claim.planned_at)
    if isinstance(draft, CheckpointRecord | EpochRecord | RestoreRecord | StopRecord):
        _check_author(history, author)
    elif isinstance(draft, PruneRecord) and author.generation:
        # Anyone may prune, but a fenced generation can take nothing away (I5).
        _check_author(history, author)
    if is_decision(draft) or isinstance(draft, StopRecord):
        _check_readable(history, author)
    if is_decision(draft):
        _check_epoch(history, draft.epoch)
    if isinstance(draft, RestoreRecord):
        _check_target(history, draft.to)
    if not isinstance(draft, PruneRecord):
        _check_not_pruned(history, draft, author, claim)


def _check_plan(history: History, draft: Record, planned_at: int) -> None:
    overturning = _OVERTURNS.get(type(draft), ())
    named = set(map(str, getattr(draft, "ids", ()))) | set(getattr(draft, "keys", ()))
    for n in history.numbers(above=planned_at):
        record = history.record(n)
        if record is None:
            raise StalePlanError(planned_at, n, "unreadable")
        if isinstance(record, overturning) or not named.isdisjoint(references(record)):
            raise StalePlanError(planned_at, n, record.kind)


def _check_author(history: History, author: Author) -> None:
    if author.generation == history.generation and (not author.generation or author.writer == history.writer):
        return
    if author.generation > history.generation:
        raise ConflictError(
            f"generation {author.generation} has no start record in this ledger, "
            f"whose newest is {history.generation}"
        ).with_hint("holdfast verify")
    if not author.generation:
        raise ConflictError(
            f"a runner decides here (generation {history.generation}); only it may append a checkpoint"
        ).with_hint("capture into a store of its own; `holdfast copy ID` takes a flow's checkpoint to one")
    raise FencedError(author.generation, history.generation, history.writer or "unknown")


def _check_readable(history: History, author: Author) -> None:
    """A record that cannot be read may be a newer start, or a decision. A restore says that a person looked
    at it.
    """
    restore = history.newest_restore
    known = max(author.generation, restore.n if restore is not None else 0)
    for n in history.unreadable_since:
        if n > known:
            error = history.slot(n).error
            reason = error.reason if error is not None else "it cannot be read"
            raise CorruptError(
                key_of(history, n), f"{reason}; it may hold a decision, so none is made after it"
            ).with_hint("holdfast recover --dry-run names the restore that leads out")


def _check_epoch(history: History, epoch: int) -> None:
    if epoch > history.highest_epoch:
        return
    taken = history.decision_of(epoch)
    if taken is not None:
        raise EpochTakenError(epoch, taken.n)
    raise ConflictError(f"epoch numbers only grow: {epoch} is not above {history.highest_epoch}")


def _check_target(history: History, to: int) -> None:
    if to and not is_decision(history.record(to)):
        raise InvalidInputError(
            f"ledger record {to} is no decision that can be read: a restore cannot lead there"
        )


def _check_not_pruned(history: History, draft: Record, author: Author, claim: Claim) -> None:
    """Refuse a reference to anything a prune record names. ``first`` is where those can start to matter."""
    referred = {*references(draft), *claim.names}
    first = claim.since or 0
    if isinstance(draft, RestoreRecord):
        target = history.record(draft.to) if draft.to else None
        if target is None:
            return
        referred.update(references(target))
        first = target.n
    elif isinstance(draft, StartRecord | HoldRecord) and referred:
        id = draft.from_id if isinstance(draft, StartRecord) else draft.checkpoint_id
        assert id is not None
        first = _named_at(history, id)
    elif is_decision(draft):
        if claim.since is None:
            first = author.generation  # what a runner refers to was made after its start
        if claim.parent is not None:
            referred.add(str(claim.parent))
            first = min(first, _parent_at(history, claim.parent))
        before_its_run = claim.since is not None and (
            not author.generation or claim.since < author.generation
        )
        if before_its_run and claim.since is not None and claim.since < history.boundary.n:
            # Prunes that a run has to know of are kept with its records. Those from before it may be trimmed.
            raise ConflictError(
                f"this checkpoint was begun at ledger record {claim.since}; the ledger has been trimmed "
                f"up to {history.boundary.n} since, and what was written may have been collected"
            ).with_hint("begin it again")
    if not referred:
        return
    gone = sorted(referred & history.pruned(first))
    if gone:
        raise ConflictError(
            f"{gone[0]} is pruned: a prune record names it, so nothing may refer to it any more"
        ).with_hint("holdfast list shows what is left; holdfast log shows who pruned it")


def _named_at(history: History, id: CheckpointId) -> int:
    record = history.naming(id)
    if record is None:
        raise CheckpointNotFoundError(id)
    return record.n


def _parent_at(history: History, parent: CheckpointId) -> int:
    """The record that made ``parent`` a checkpoint. Raises ConflictError if it is abandoned, or none."""
    record = history.naming(parent)
    if record is None:
        raise ConflictError(f"the parent {parent} is no checkpoint of this ledger")
    if not history.is_on_timeline(record):
        raise ConflictError(f"the parent {parent} was abandoned by a restore")
    return record.n
