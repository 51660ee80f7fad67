"""A person's answer where a sink could not give one. Nothing here asks a sink, or tells it anything.

The answer is an ``outcome`` record for a decided epoch; the next start goes by it. Whoever gives it has
looked at the sink's output, and made sure that no run of the flow is at work.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.errors import ConflictError, InvalidInputError, NotFoundError
from holdfast.ids import CheckpointId
from holdfast.ledger import Decision, History, OutcomeRecord
from holdfast.manifest import SinkCommitStatus
from holdfast.store import PartitionedCheckpointStore

#: What a status of ours says that no sink said.
NOT_SHOWN = "a person looked: the epoch is not shown"


@dataclass(frozen=True, slots=True)
class Answered:
    """What is on record now. ``open_sinks``: those of the epoch about which nobody has said anything yet."""

    record: int
    sink: str
    epoch: int
    checkpoint_id: CheckpointId
    is_newest: bool
    open_sinks: tuple[str, ...]


def answer(
    store: PartitionedCheckpointStore, sink: str, *, shown: bool, epoch: int | None = None
) -> Answered:
    """Put on record whether ``sink`` shows an epoch: the newest one decided, if none is named.

    Raises NotFoundError (nothing is decided), InvalidInputError (a sink the epoch has no output for),
    ConflictError (there is an answer already: a second one might come after a start acted on the first)
    and CorruptError while a newer decision may hide in a record that cannot be read.
    """
    history = store.ledger.read()
    decision = _decision(history, epoch)
    statuses = history.statuses(decision.epoch)
    if sink not in decision.receipts:
        known = ", ".join(sorted(decision.receipts)) or "none"
        raise InvalidInputError(f"epoch {decision.epoch} has no output for a sink {sink!r}").with_hint(
            f"its sinks: {known}"
        )
    known_status = statuses.get(sink)
    if known_status is not None and not known_status.is_pending:
        raise ConflictError(
            f"what became of epoch {decision.epoch} in sink {sink!r} is on record already: {known_status}"
        ).with_hint("holdfast log shows who said so, and when")
    status = SinkCommitStatus.COMMITTED if shown else SinkCommitStatus.failed(NOT_SHOWN)
    draft = OutcomeRecord(epoch=decision.epoch, statuses={sink: status})
    record = store.ledger.append(draft, author=store.author)
    newest = store.ledger.read().newest_decision
    return Answered(
        record=record.n,
        sink=sink,
        epoch=decision.epoch,
        checkpoint_id=decision.checkpoint_id,
        is_newest=newest is not None and newest.n == decision.n,
        open_sinks=tuple(
            name
            for name in sorted(set(decision.receipts) - {sink})
            if statuses.get(name, SinkCommitStatus.PENDING).is_pending
        ),
    )


def _decision(history: History, epoch: int | None) -> Decision:
    if epoch is not None:
        decision = history.decision_of(epoch)
        if decision is None:
            raise NotFoundError(f"the ledger holds no decision of epoch {epoch}").with_hint("holdfast log")
        return decision
    for n in history.unreadable_since:
        error = history.slot(n).error
        if error is not None:
            raise error.with_hint("it may be a newer decision; name the epoch you looked at with --epoch N")
    newest = history.newest_decision
    if newest is None:
        raise NotFoundError("nothing is decided yet, so no sink can be in doubt").with_hint("holdfast log")
    return newest
