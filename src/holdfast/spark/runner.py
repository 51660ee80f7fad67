"""One flow at work on Spark: a generation from its plan to its stop.

    plan ─► start ─► materialise scratch ─► replay what has to be ─► run the query
                                                                       └─ foreachBatch(n): one epoch

The protocol is the coordinator's; this file gives it rows, and the state that goes with them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.capture import capture_batch
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
from holdfast.errors import ChangedPipelineError
from holdfast.ledger import Decision, StalePlanError
from holdfast.manifest import Engine
from holdfast.pipeline import Trigger, compare_topology, pipeline_hash, topology
from holdfast.pipeline.identity import EngineFacts
from holdfast.spark.commits import check_supported, commit_text
from holdfast.spark.frames import BuiltFlow
from holdfast.spark.replaying import drive, replay_batch
from holdfast.spark.scratch import directory_of, remove_older
from holdfast.sparkdir import FileEntry, SparkCheckpoint
from holdfast.sparkdir.materialise import materialise
from holdfast.store import CheckpointWriter, PartitionedCheckpointStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

CHAIN_LIMIT = 20
#: How often a start is planned again because the ledger moved on meanwhile.
STARTS = 5
STATE_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"


class StopAsked(Exception):
    """Raised inside a batch that came after the flow was asked to stop; nothing of it has begun."""


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
        self._index: dict[str, FileEntry] = {}
        self._chain_length = 0
        self._query: StreamingQuery | None = None
        self._query_known = threading.Event()
        self._stop_asked = threading.Event()
        self._at_work = threading.Lock()
        self._error: BaseException | None = None

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
        if started.to_feed_again and plan.last is not None and not replays:
            # The rows are wanted once more, so the state from before them is.
            base, replays = plan.checkpoint_before(plan.last), (plan.last,)
        run.parent = base
        self._materialise(base, scratch)
        for decision in replays:
            self._replay(decision, scratch, run, started.to_feed_again if decision == plan.last else ())
        self._run_query(run, scratch, trigger)
        run.stop()

    def ask_to_stop(self) -> None:
        """Let the epoch at work finish, begin no other, and return from ``run``."""
        self._stop_asked.set()

    # --- plan and start: is it still the same pipeline? ----------------------------------------

    def _start(self, coordinator: Coordinator) -> Started:
        """Plan until a plan still holds when it is carried out. Somebody else may be starting too."""
        for _ in range(STARTS):
            plan = coordinator.plan()
            self._check_unchanged(plan)
            try:
                return coordinator.start(plan)
            except StalePlanError as error:
                stale = error
        raise stale.with_hint("another run of this flow keeps starting and stopping; see holdfast log")

    def _declared_identity(self) -> Identity:
        conf = {name: self._session.conf.get(name, None) for name in (STATE_FORMAT, *_BAKED_IN)}
        engine = EngineFacts.of({name: value for name, value in conf.items() if value is not None})
        return Identity(pipeline_hash(self._built.spec, engine), topology(self._built.spec))

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

    def _materialise(self, base: Any, scratch: Path) -> None:
        with observed(self._observe, "materialise") as facts:
            scratch.parent.mkdir(parents=True, exist_ok=True)
            if base is None:
                scratch.mkdir()
            else:
                manifest = self._store.load_by_id(base)
                assert manifest is not None  # the plan has just read it
                made = materialise(manifest, self._store, scratch)
                self._index = dict(made.files)
                self._chain_length = len(self._store.chain(base))
            facts.update(files=len(self._index), checkpoint=str(base) if base else None)

    def _replay(self, decision: Decision, scratch: Path, run: Run, hungry: tuple[str, ...]) -> None:
        logs = self._store.ledger.read_logs(decision)
        assert decision.batches is not None  # the plan replays no others
        first, last = decision.batches

        def take(frame: DataFrame) -> None:
            if hungry:
                with self._computed_once(frame, decision.epoch) as rows:
                    run.feed_again(hungry, decision, rows)
            else:
                drive(frame)

        for batch in range(first, last + 1):
            with observed(self._observe, "replay", epoch=decision.epoch) as facts:
                replay_batch(
                    batch,
                    scratch,
                    logs,
                    run_once=lambda on_batch: self._run_once(on_batch, scratch),
                    take=take,
                )
                facts.update(batch=batch)

    def _run_once(self, on_batch: Callable[[DataFrame, int], None], scratch: Path) -> None:
        self._start_query(on_batch, scratch, {"once": True})
        self._wait()

    # --- the query -----------------------------------------------------------------------------

    def _run_query(self, run: Run, scratch: Path, trigger: Trigger) -> None:
        def on_batch(frame: DataFrame, batch: int) -> None:
            if self._stop_asked.is_set():
                raise StopAsked
            if run.is_decided(batch):
                drive(frame)  # its rows are out already; only the state has to follow
                return
            self._one_epoch(run, frame, batch, scratch)

        when: dict[str, Any] = {"availableNow": True}
        if not trigger.is_available_now:
            when = {"processingTime": str(trigger)}
        self._start_query(on_batch, scratch, when)
        remove_older(self._scratch_root, scratch)
        self._wait()

    def _start_query(
        self, on_batch: Callable[[DataFrame, int], None], scratch: Path, when: Mapping[str, Any]
    ) -> None:
        def guarded(frame: DataFrame, batch: int) -> None:
            self._query_known.wait()
            try:
                with self._at_work:
                    on_batch(frame, batch)
            except BaseException as error:  # noqa: BLE001 - raised by _wait, in the thread that runs the flow
                # What crosses into the JVM is kept short: Spark runs a regex over all of it.
                self._error = error
                raise RuntimeError(f"holdfast stopped batch {batch}") from None

        self._error = None
        self._query_known.clear()
        self._query = (
            self._built.frame.writeStream.outputMode(self._built.spec.pipeline.output_mode)
            .option("checkpointLocation", str(scratch))
            .foreachBatch(guarded)
            .trigger(**when)
            .start()
        )
        self._query_known.set()

    def _wait(self) -> None:
        """Until the query ended, by itself or because a stop was asked for. Raises what ended it."""
        assert self._query is not None
        while self._query.isActive:
            if self._stop_asked.wait(0.05):
                with self._at_work:  # never in the middle of an epoch: a stop cancels its Spark jobs
                    self._query.stop()
                break
        try:
            self._query.awaitTermination()
        except Exception:
            if self._error is None:
                raise
        if self._error is not None and not isinstance(self._error, StopAsked):
            raise self._error

    # --- one epoch -----------------------------------------------------------------------------

    def _one_epoch(self, run: Run, frame: DataFrame, batch: int, scratch: Path) -> None:
        def capture(writer: CheckpointWriter) -> None:
            self._capture(writer, run, batch, scratch)

        if len(self._sinks) == 1 and all(
            getattr(sink, "computes_once", False) for sink in self._sinks.values()
        ):
            # Its prepare is the one action that drives the state: nothing has to be cached for another.
            run.run_epoch(batch, nullcontext(frame), capture)
        else:
            run.run_epoch(batch, self._computed_once(frame, run.next_epoch), capture)

    @contextmanager
    def _computed_once(self, frame: DataFrame, epoch: int) -> Iterator[DataFrame]:
        """The rows of a batch, computed by one full action and then read from the cache as often as needed.

        A second action over the batch itself would commit its state a second time.
        """
        rows = frame.persist()
        try:
            with observed(self._observe, "compute", epoch=epoch) as facts:
                facts.update(rows=rows.count())
            yield rows
        finally:
            rows.unpersist()

    def _capture(self, writer: CheckpointWriter, run: Run, batch: int, scratch: Path) -> None:
        assert self._query is not None
        delta = run.parent is not None and self._chain_length < CHAIN_LIMIT
        writer.manifest.engine = Engine(
            version=self._session.version, plan_fingerprint=self._built.fingerprint
        )
        writer.manifest.source_names = sorted(self._built.source_order)
        captured = capture_batch(
            writer,
            SparkCheckpoint(str(scratch)),
            batch,
            commit_text=commit_text(self._query, state_format=self._state_format),
            known=self._index,
            delta=delta,
            source_names=self._built.source_order,
        )
        writer.logs = captured.logs
        self._index = dict(captured.index)
        self._chain_length = self._chain_length + 1 if delta else 1


_BAKED_IN = ("spark.sql.streaming.stateStore.providerClass", "spark.sql.shuffle.partitions")
