"""One flow at work on Spark: a generation from its plan to its stop.

    plan ─► start ─► materialise scratch ─► replay what has to be ─► run the query
                                                                       └─ foreachBatch(n): one epoch

The protocol is the coordinator's; this file gives it rows, and the state that goes with them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.coordinator import (
    Coordinator,
    Identity,
    Limits,
    Observer,
    Run,
    Sink,
    Started,
    StartPlan,
    ignore,
    observed,
)
from holdfast.errors import ChangedPipelineError, FencedError, HoldfastError
from holdfast.ids import CheckpointId
from holdfast.ledger import Decision, StalePlanError
from holdfast.pipeline import Trigger, compare_topology, pipeline_hash, topology
from holdfast.pipeline.identity import SETTINGS, EngineFacts, settings
from holdfast.spark.commits import check_supported
from holdfast.spark.driving import DrivenQuery, OnBatch, StopAsked
from holdfast.spark.epochs import EpochMaker, Held, Pace, computed_once
from holdfast.spark.frames import BuiltFlow
from holdfast.spark.replaying import drive, replay_batch
from holdfast.spark.scratch import directory_of, remove_older
from holdfast.sparkdir.materialise import materialise
from holdfast.store import PartitionedCheckpointStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

#: How often a start is planned again because the ledger moved on meanwhile.
STARTS = 5
STATE_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"


class FlowRunner:
    """Runs one flow once. ``run`` blocks; ``ask_to_stop`` may be called from any thread or signal handler."""

    def __init__(
        self,
        built: BuiltFlow,
        sinks: Mapping[str, Sink],
        store: PartitionedCheckpointStore,
        session: SparkSession,
        *,
        scratch_root: Path,
        limits: Limits | None = None,
        observe: Observer = ignore,
    ) -> None:
        self._built = built
        self._sinks = dict(sinks)
        self._store = store
        self._session = session
        self._scratch_root = scratch_root
        self._observe = observe
        self._limits = limits
        self._state_format = int(session.conf.get(STATE_FORMAT, "1") or "1")
        self._identity = self._declared_identity()
        self._stop_asked = threading.Event()

    @property
    def store_url(self) -> str:
        """Where this flow's checkpoints live: what ``--store`` takes."""
        return self._built.spec.store_url

    def run(self, trigger: Trigger) -> None:
        """Start, run until the trigger is through or a stop is asked for, and stop in good order."""
        check_supported(self._session)
        coordinator = Coordinator(
            self._store,
            self._built.spec.full_name,
            self._sinks,
            identity=self._identity,
            limits=self._limits,
            observe=self._observe,
        )
        started = self._start(coordinator)
        run, plan = started.run, started.plan
        scratch = directory_of(self._scratch_root, run.author)
        base, replays = plan.recovery.chosen, plan.recovery.replay
        if started.to_feed_again and not replays:
            # The rows are wanted once more, so the state from before them is.
            base, replays = plan.to_run_last_again(self._store, started.to_feed_again)
        run.parent = base
        with self._fenced_above_all(run):
            held = self._materialise(base, scratch)
            try:
                for decision in replays:
                    hungry = started.to_feed_again if decision == plan.last else ()
                    self._replay(decision, scratch, run, hungry)
            except StopAsked:
                log.warning(
                    "%s was told to stop while it replayed; the next start replays again",
                    self._built.spec.full_name,
                )
            else:
                self._run_query(run, held, scratch, trigger)
            run.stop()

    def ask_to_stop(self) -> None:
        """Let the epoch at work finish, begin no other, and return from ``run``."""
        self._stop_asked.set()

    @contextmanager
    def _fenced_above_all(self, run: Run) -> Iterator[None]:
        """A newer run removes this one's scratch. Anything may break of that, and the fence is the reason."""
        try:
            yield
        except Exception as error:
            fence = self._fence(run, error)
            if fence is None or isinstance(error, FencedError):
                raise
            raise fence from error

    def _fence(self, run: Run, error: Exception) -> FencedError | None:
        """The fence, if there is one. Where that cannot be seen, ``error`` is all there is to say."""
        try:
            history = self._store.ledger.read()
        except HoldfastError as unseen:
            error.add_note(f"whether a newer run has started could not be looked up: {unseen}")
            return None
        if history.generation <= run.author.generation:
            return None
        return FencedError(run.author.generation, history.generation, history.writer or "unknown")

    # --- plan and start: is it still the same pipeline? ----------------------------------------

    def _start(self, coordinator: Coordinator) -> Started:
        """Plan until a plan still holds when it is carried out. Somebody else may be starting too."""
        for _ in range(STARTS):
            plan = coordinator.plan()
            self._check_unchanged(plan)
            try:
                started = coordinator.start(plan)
            except StalePlanError as error:
                stale = error
                continue
            # The run before may have decided its first epoch after we looked, and may be another pipeline.
            if started.plan.declared != plan.declared:
                self._check_unchanged(started.plan)
            return started
        raise stale.with_hint("another run of this flow keeps starting and stopping; see holdfast log")

    def _declared_identity(self) -> Identity:
        conf = {name: self._session.conf.get(name, None) for name in (STATE_FORMAT, *_BAKED_IN)}
        engine = EngineFacts.of({name: value for name, value in conf.items() if value is not None})
        members = {**topology(self._built.spec), SETTINGS: settings(self._built.spec, engine)}
        return Identity(pipeline_hash(self._built.spec, engine), members)

    def _check_unchanged(self, plan: StartPlan) -> None:
        declared = plan.declared
        if declared is None or declared.pipeline_hash == self._identity.pipeline_hash:
            return
        changes = compare_topology(declared.topology or {}, self._identity.topology)
        grave = [change for change in changes if change.section != "sinks"]
        if not changes:
            told = "output mode, state provider or format, or shuffle partitions are others"
        else:
            told = "; ".join(str(change) for change in (grave or changes))
        if self._built.spec.pipeline.on_change == "fail" and (grave or not changes):
            raise ChangedPipelineError(
                f"{self._built.spec.full_name} is not the pipeline its checkpoints were taken from: {told}"
            ).with_hint(
                "nothing was touched. Undo the change, or give the changed pipeline another name or store; "
                "where old state is known to fit, set on_change: warn"
            )
        log.warning("%s changed since its last checkpoint: %s", self._built.spec.full_name, told)

    # --- materialise and replay ----------------------------------------------------------------

    def _materialise(self, base: CheckpointId | None, scratch: Path) -> Held:
        with observed(self._observe, "materialise") as facts:
            scratch.parent.mkdir(parents=True, exist_ok=True)
            if base is None:
                scratch.mkdir()
                return Held({})
            manifest = self._store.load_by_id(base)
            assert manifest is not None  # the plan has just read it
            made = materialise(manifest, self._store, scratch)
            facts.update(files=len(made.files), checkpoint=str(base))
            return Held(dict(made.files), links=len(self._store.chain(base)))

    def _replay(self, decision: Decision, scratch: Path, run: Run, hungry: tuple[str, ...]) -> None:
        """Run the batches of ``decision`` again, into the sinks that lost it or into none."""
        logs = self._store.ledger.read_logs(decision)
        feeding = run.feed(hungry, decision) if hungry else None

        def take(frame: DataFrame) -> None:
            if feeding is None:
                drive(frame)
                return
            with computed_once(frame, decision.epoch, self._observe) as rows:
                feeding.take(rows)

        assert decision.batches is not None  # the plan replays no others
        first, last = decision.batches
        for batch in range(first, last + 1):
            with observed(self._observe, "replay", epoch=decision.epoch) as facts:
                facts.update(batch=batch)
                replay_batch(batch, scratch, logs, run_once=partial(self._run_once, scratch), take=take)
        if feeding is not None:
            run.end_feeding(feeding)

    def _run_once(self, scratch: Path, on_batch: OnBatch) -> None:
        # What a stopped query left is not what was recorded, and that says nothing about its sources.
        self._query(on_batch, scratch, {"once": True}).wait_for_its_own_end()

    # --- the query -----------------------------------------------------------------------------

    def _run_query(self, run: Run, held: Held, scratch: Path, trigger: Trigger) -> None:
        maker = EpochMaker(
            run,
            self._built,
            self._sinks,
            scratch=scratch,
            held=held,
            pace=Pace(self._built.spec.pipeline.every_seconds, self._built.spec.pipeline.state_every_seconds),
            state_format=self._state_format,
            spark_version=self._session.version,
            observe=self._observe,
        )

        when = {"availableNow": True} if trigger.is_available_now else {"processingTime": str(trigger)}
        query = self._query(maker.on_batch, scratch, when)
        remove_older(self._scratch_root, scratch)
        query.wait(maker.between_batches)
        maker.at_the_end()

    def _query(self, on_batch: OnBatch, scratch: Path, when: Mapping[str, Any]) -> DrivenQuery:
        return DrivenQuery(
            self._built.frame,
            on_batch,
            scratch=scratch,
            output_mode=self._built.spec.pipeline.output_mode,
            trigger=when,
            stop_asked=self._stop_asked,
        )


_BAKED_IN = ("spark.sql.streaming.stateStore.providerClass", "spark.sql.shuffle.partitions")
