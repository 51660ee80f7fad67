"""Starting a flow: look, announce, finish what the last run left, and only then go on.

    plan ─► start ─► resolve ─► sweep ─► (materialise, replay, run: the engine's part)
    reads    the ledger record that fences every older generation

A refusal belongs into ``plan``: it ends there, and nobody is fenced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.coordinator.epochs import Identity, Limits, Run, commit_all, sweep_all
from holdfast.coordinator.sink import (
    Epoch,
    Outcome,
    Sink,
    SinkFlow,
    SinkOutcomeUnknownError,
    StagedOutputGoneError,
)
from holdfast.coordinator.steps import Observer, ignore, observed
from holdfast.errors import ConflictError, CorruptError, FencedError
from holdfast.ids import CheckpointId
from holdfast.ledger import (
    Author,
    Decision,
    History,
    OutcomeRecord,
    StartRecord,
    new_writer,
)
from holdfast.manifest import SinkCommitStatus
from holdfast.recovery import RecoveryPlan, plan_recovery, plan_running_again
from holdfast.store import PartitionedCheckpointStore


@dataclass(frozen=True, slots=True)
class StartPlan:
    """What a start will do, as of one moment of the ledger."""

    history: History
    recovery: RecoveryPlan

    @property
    def last(self) -> Decision | None:
        """The newest decision on the timeline: what the sinks show, or are about to."""
        return self.history.newest_decision

    @property
    def declared(self) -> StartRecord | None:
        """What the run that took the last decision had declared."""
        if self.last is None:
            return None
        record = self.history.record(self.last.generation)
        return record if isinstance(record, StartRecord) else None

    def to_run_last_again(
        self, store: PartitionedCheckpointStore, sinks: tuple[str, ...]
    ) -> tuple[CheckpointId | None, tuple[Decision, ...]]:
        """The newest sound checkpoint before the last decision (None: the beginning), and what to replay.

        The last decision comes last; those before it are light, or their state is damaged. Raises
        CorruptError where it cannot be done.
        """
        again = plan_running_again(store, self.history)
        if again.verdict == "stuck":
            epoch = self.last.epoch if self.last is not None else 0
            lost = " and ".join(map(repr, sinks))
            raise CorruptError(
                f"the state before epoch {epoch}",
                f"{lost} lost what was staged, and the epoch cannot be run again: {again.reason}",
            ).with_hint(
                f"{again.hint}; or, where its output may stay missing, say that it is committed: "
                f"holdfast recover --sink {sinks[0]} --outcome committed"
            )
        return again.chosen, again.replay


@dataclass(frozen=True, slots=True)
class Started:
    """A generation that may write. ``plan`` is what holds now: nobody else decides any more.

    The output of ``to_feed_again`` has to be made once more before the run goes on.
    """

    run: Run
    plan: StartPlan
    to_feed_again: tuple[str, ...]


class Coordinator:
    """The protocol of one flow. Sinks and store are its only hands; Spark is somebody else's."""

    def __init__(
        self,
        store: PartitionedCheckpointStore,
        flow: str,
        sinks: Mapping[str, Sink],
        *,
        identity: Identity,
        limits: Limits | None = None,
        observe: Observer = ignore,
    ) -> None:
        self._store = store
        self._flow = flow
        self._sinks = dict(sinks)
        self._identity = identity
        self._limits = limits or Limits()
        self._observe = observe

    # --- plan: read-only -----------------------------------------------------------------------

    def plan(self) -> StartPlan:
        """Everything that could refuse this start, refused now, with nobody fenced.

        Sinks are read before the ledger: an epoch committed between the two reads is then in the
        ledger for certain, and what a sink shows above it was decided by nobody.
        """
        with observed(self._observe, "plan") as facts:
            shown = {name: sink.open(SinkFlow(self._flow, name)) for name, sink in self._sinks.items()}
            history = self._store.ledger.read()
            for name, epoch in shown.items():
                _check_shown(name, epoch, history)
            self._check_dropped_sinks(history)
            recovery = _sound(plan_recovery(self._store, history), self._flow)
            facts.update(verdict=recovery.verdict, skipped=len(recovery.skipped), replay=len(recovery.replay))
        return StartPlan(history, recovery)

    def _check_dropped_sinks(self, history: History) -> None:
        last = history.newest_decision
        if last is None:
            return
        # A person's answer, whichever it is, settles a sink that is not declared any more.
        for name in sorted(set(last.receipts) - set(self._sinks) - set(history.statuses(last.epoch))):
            error = SinkOutcomeUnknownError(name, last.epoch)
            error.add_note(
                f"sink {name!r} is not declared any more, so a start cannot ask it or commit to it"
            )
            raise error

    # --- start: from here on older generations are fenced ---------------------------------------

    def start(self, plan: StartPlan) -> Started:
        """Become the newest generation, then bring the sinks to where the ledger says they are."""
        record = self._announce(plan)
        author = Author(record.n, record.writer)
        plan = self._caught_up(plan, author)
        last = plan.last
        to_feed_again = self._resolve(last, plan.history, author) if last is not None else ()
        sweep_all(self._sinks, author, plan.history, self._observe)
        # Whatever this store object appends from now on, retention above all, is this generation's.
        self._store.author = author
        run = Run(
            self._store,
            self._sinks,
            author=author,
            last=last,
            highest_epoch=plan.history.highest_epoch,
            parent=plan.recovery.chosen,
            identity=self._identity,
            limits=self._limits,
            observe=self._observe,
        )
        return Started(run, plan, to_feed_again)

    def _announce(self, plan: StartPlan) -> StartRecord:
        with observed(self._observe, "start") as facts:
            # The run before may have died between seeing its record and knowing that it was durable.
            self._store.ledger.reassert_head()
            record = self._store.ledger.append(
                StartRecord(
                    pipeline_hash=self._identity.pipeline_hash,
                    topology=dict(self._identity.topology),
                    from_id=plan.recovery.chosen,
                    corrupt=[skipped.id for skipped in plan.recovery.skipped],
                ),
                author=Author(0, new_writer()),
                planned_at=plan.history.head,
            )
            facts.update(generation=record.n, writer=record.writer)
        return record

    def _caught_up(self, plan: StartPlan, author: Author) -> StartPlan:
        """The plan again, if the run before decided an epoch while we planned: from here on it cannot."""
        history = self._store.ledger.read()
        if history.generation != author.generation:
            raise FencedError(author.generation, history.generation, history.writer or "unknown")
        if history.head == plan.history.head + 1:
            return StartPlan(history, plan.recovery)
        # What it decided may name a sink that we do not declare: nobody else would ever ask for it (I3).
        self._check_dropped_sinks(history)
        return StartPlan(history, _sound(plan_recovery(self._store, history), self._flow))

    def _resolve(self, last: Decision, history: History, author: Author) -> tuple[str, ...]:
        """Ask, then tell, every sink whose commit of the last decision is not on record (I3)."""
        undone = [name for name in _undone(last, history) if name in self._sinks]
        if not undone:
            return ()
        epoch = Epoch(last.epoch, last.checkpoint_id, last.generation)
        found: dict[str, list[str]] = {"shown": [], "committed": [], "feed_again": []}
        with observed(self._observe, "resolve", epoch=last.epoch) as facts:
            for name in undone:
                found[self._resolve_one(name, last, epoch, history)].append(name)
            done = dict.fromkeys(found["shown"] + found["committed"], SinkCommitStatus.COMMITTED)
            if done:
                self._store.ledger.append(OutcomeRecord(epoch=last.epoch, statuses=done), author=author)
            facts.update(found)
        return tuple(found["feed_again"])

    def _resolve_one(self, name: str, last: Decision, epoch: Epoch, history: History) -> str:
        """``shown`` already, ``committed`` now, or to ``feed_again`` because what was staged is gone."""
        sink = self._sinks[name]
        receipts = history.receipts(last)
        if name not in history.statuses(last.epoch):  # nobody has said how it went: ask the sink first
            outcome = sink.outcome(epoch, receipts[name])
            if outcome is Outcome.COMMITTED:
                return "shown"
            if outcome is Outcome.UNKNOWN:
                raise SinkOutcomeUnknownError(name, last.epoch)
        try:
            commit_all(
                {name: sink}, receipts, epoch, seconds=self._limits.commit_seconds, observe=self._observe
            )
        except StagedOutputGoneError:
            return "feed_again"
        return "committed"


def _sound(recovery: RecoveryPlan, flow: str) -> RecoveryPlan:
    if recovery.verdict == "stuck":
        raise CorruptError(flow, recovery.reason or "no way to resume was found").with_hint(
            recovery.hint or "holdfast recover --dry-run"
        )
    return recovery


def _undone(last: Decision, history: History) -> list[str]:
    """Sinks of a decision that nobody has recorded as committed, in name order."""
    statuses = history.statuses(last.epoch)
    return sorted(name for name in last.receipts if statuses.get(name) != SinkCommitStatus.COMMITTED)


def _check_shown(name: str, shown: Epoch | None, history: History) -> None:
    if shown is None:
        return
    if shown.number > history.highest_epoch:
        raise ConflictError(
            f"sink {name!r} shows epoch {shown.number} of this flow, "
            f"but the ledger has decided none above {history.highest_epoch}"
        ).with_hint("is the store the flow's own? if it was restored from a copy, point it at the original")
    decision = history.decision_of(shown.number)
    if decision is not None and decision.checkpoint_id != shown.id:
        raise ConflictError(
            f"sink {name!r} shows epoch {shown.number} of checkpoint {shown.id}, "
            f"but the ledger decided {decision.checkpoint_id} for it"
        ).with_hint("the sink was written by another store under the same flow name; give one a new name")
