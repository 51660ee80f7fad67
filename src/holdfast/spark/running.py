"""Run a declared pipeline: a session, the flows side by side, and an orderly end for all of them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.blobs import open_blobs
from holdfast.coordinator import Observer, Sink, ignore, of_flow
from holdfast.coordinator.parallel import side_by_side
from holdfast.errors import HoldfastError
from holdfast.pipeline import FlowSpec, PipelineSpec, Trigger, flows
from holdfast.spark.frames import Functions, build_flow
from holdfast.spark.runner import FlowRunner
from holdfast.spark.scratch import scratch_root
from holdfast.spark.session import is_session_active, session_for
from holdfast.spark.sinks import Database, Files
from holdfast.store import PartitionedCheckpointStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_pipeline(
    spec: PipelineSpec,
    *,
    trigger: Trigger | None = None,
    functions: Functions | None = None,
    sinks: Mapping[str, Sink] | None = None,
    session: SparkSession | None = None,
    observe: Observer = ignore,
) -> None:
    """Run every flow of ``spec``; return when all are through, or SIGTERM or SIGINT asked them to stop.

    A flow that fails asks the others to stop after the epoch they are in, and its error is raised.
    """
    own = session is None and not is_session_active()
    session = session_for(spec.name, spec.spark, session)
    try:
        runners = {
            flow.name: _runner(flow, session, functions or Functions(), sinks or {}, observe)
            for flow in flows(spec)
        }
        with _stopping_on_signals(runners):
            _run_all(runners, trigger or spec.trigger)
    finally:
        if own:
            session.stop()


def _runner(
    flow: FlowSpec,
    session: SparkSession,
    functions: Functions,
    sinks: Mapping[str, Sink],
    observe: Observer,
) -> FlowRunner:
    return FlowRunner(
        build_flow(flow, session, functions),
        {**_declared_sinks(flow), **{name: sinks[name] for name in flow.sinks if name in sinks}},
        PartitionedCheckpointStore(open_blobs(flow.store_url)),
        session,
        scratch_root=scratch_root(flow.pipeline.scratch, flow.pipeline.store, flow.full_name),
        observe=of_flow(flow.full_name, observe),
    )


def _declared_sinks(flow: FlowSpec) -> dict[str, Sink]:
    made: dict[str, Sink] = {}
    for name, sink in flow.sinks.items():
        if sink.files is not None:
            made[name] = Files(
                sink.files.path, format=sink.files.format, partition_by=sink.files.partition_by
            )
        elif sink.database is not None:
            made[name] = Database(
                sink.database.url,
                table=sink.database.table,
                key=sink.database.key,
                epoch_column=sink.database.epoch_column,
            )
    return made


def _run_all(runners: Mapping[str, FlowRunner], trigger: Trigger) -> None:
    if len(runners) == 1:
        _run_one(next(iter(runners.values())), trigger)
        return

    def run(runner: FlowRunner) -> None:
        try:
            _run_one(runner, trigger)
        except BaseException:
            for other in runners.values():
                other.ask_to_stop()
            raise

    results = side_by_side({name: partial(run, runner) for name, runner in runners.items()})
    for name, error in results.errors.items():
        error.add_note(f"in flow {name!r}")
        results.note_others(error, "flow")
        raise error


def _run_one(runner: FlowRunner, trigger: Trigger) -> None:
    try:
        runner.run(trigger)
    except HoldfastError as error:
        if "holdfast " in (error.hint or ""):
            # What the hint tells to type asks for a store, which is not what the declaration calls one.
            error.add_note(f"the flow's store is --store {runner.store_url}")
        raise


@contextmanager
def _stopping_on_signals(runners: Mapping[str, FlowRunner]) -> Iterator[None]:
    """SIGTERM and SIGINT let the epoch at work finish. Only a main thread can listen to signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(*_: Any) -> None:
        for runner in runners.values():
            runner.ask_to_stop()

    before = {one: signal.signal(one, ask) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
