"""For people who already have a query: hand over a streaming DataFrame and its sinks, get a running flow."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from holdfast.blobs import open_blobs
from holdfast.coordinator import Observer, Sink, ignore
from holdfast.errors import InvalidInputError
from holdfast.pipeline import Trigger, flows, parse_trigger
from holdfast.pipeline.spec import OnChange, OutputMode
from holdfast.spark.frames import build_flow
from holdfast.spark.pipeline import Pipeline
from holdfast.spark.runner import FlowRunner
from holdfast.spark.scratch import scratch_root
from holdfast.spark.session import session_for
from holdfast.store import PartitionedCheckpointStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class FlowQuery:
    """A flow that runs in the background. What ended it is raised by ``await_termination`` and ``stop``."""

    def __init__(self, name: str, runner: FlowRunner, trigger: Trigger) -> None:
        self.name = name
        self._runner = runner
        self._error: BaseException | None = None
        self._thread = threading.Thread(
            target=self._run, args=(trigger,), name=f"holdfast-{name}", daemon=True
        )
        self._thread.start()

    @property
    def is_active(self) -> bool:
        return self._thread.is_alive()

    def exception(self) -> BaseException | None:
        """What ended the flow, if it was an error."""
        return self._error

    def await_termination(self, timeout_seconds: float | None = None) -> bool:
        """Wait for the end; False if it did not come in time. Raises what ended the flow."""
        self._thread.join(timeout_seconds)
        if self._thread.is_alive():
            return False
        if self._error is not None:
            raise self._error
        return True

    def stop(self) -> None:
        """Finish the epoch at work, begin no other, and return when the flow has stopped."""
        self._runner.ask_to_stop()
        self.await_termination()

    def _run(self, trigger: Trigger) -> None:
        try:
            self._runner.run(trigger)
        except BaseException as error:  # noqa: BLE001 - raised to whoever waits
            self._error = error


def start(
    frame: DataFrame,
    *,
    flow: str,
    store: str,
    sinks: Mapping[str, Sink],
    output_mode: OutputMode = "append",
    trigger: str = "0 seconds",
    scratch: str | None = None,
    on_change: OnChange = "fail",
    version: str | None = None,
    observe: Observer = ignore,
) -> FlowQuery:
    """Run ``frame`` into ``sinks``, each epoch decided once and shown in all of them.

    Its checkpoints live under ``{store}/{flow}/{flow}``. Plans do not show what is inside a Python
    UDF: raise ``version`` when one changes what it computes.
    """
    if not frame.isStreaming:
        raise InvalidInputError("start() takes a streaming DataFrame; this one is static")
    pipeline = Pipeline(flow, store=store, output_mode=output_mode, on_change=on_change, scratch=scratch)
    pipeline.source("input")(lambda _: frame)
    pipeline.operator(flow, inputs=["input"], version=version)(lambda input: input)
    for name, sink in sinks.items():
        pipeline.sink(name, source=flow, to=sink)
    spec = pipeline.spec()
    (only,) = flows(spec)
    session = session_for(flow, {})
    runner = FlowRunner(
        build_flow(only, session, pipeline.functions),
        dict(sinks),
        PartitionedCheckpointStore(open_blobs(only.store_url)),
        session,
        scratch_root=scratch_root(scratch, spec.store, only.full_name),
        observe=observe,
    )
    return FlowQuery(flow, runner, parse_trigger(trigger))
