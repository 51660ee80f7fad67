"""Spark's streaming query in our hands: started over a scratch directory, watched, stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

#: Gets the rows and the number of a batch, and the query that runs it.
OnBatch: TypeAlias = Callable[["DataFrame", int, "StreamingQuery"], None]

#: How often a waiting thread looks up.
LOOK_SECONDS = 0.05


class StopAsked(Exception):
    """The flow was asked to stop. A batch that comes after that gets this, before anything of it begins."""


class DrivenQuery:
    """One streaming query. Its callback and ``between`` never run at the same time."""

    def __init__(
        self,
        frame: DataFrame,
        on_batch: OnBatch,
        *,
        scratch: Path,
        output_mode: str,
        trigger: Mapping[str, Any],
        stop_asked: threading.Event,
    ) -> None:
        self._on_batch = on_batch
        self._stop_asked = stop_asked
        self._at_work = threading.Lock()
        self._known = threading.Event()
        self._stopping = False
        self._error: BaseException | None = None
        self.spark: StreamingQuery = (
            frame.writeStream.outputMode(output_mode)
            .option("checkpointLocation", str(scratch))
            .foreachBatch(self._guarded)
            .trigger(**trigger)
            .start()
        )
        self._known.set()

    def wait(self, between: Callable[[], None] | None = None) -> None:
        """Until the query ended, by itself or because a stop was asked for. Raises what ended it.

        ``between`` is called again and again, and never in the middle of a batch. If it raises, the query
        is stopped: nobody would take its batches.
        """
        while self.spark.isActive:
            if self._stop_asked.wait(LOOK_SECONDS):
                with self._at_work:  # a stop in the middle of a batch would cancel its Spark jobs
                    self._stop()
                break
            if between is not None:
                with self._at_work:
                    self._take_turn(between)
        try:
            self.spark.awaitTermination()
        except Exception:
            if self._error is None:
                raise
        if self._error is not None and not isinstance(self._error, StopAsked):
            raise self._error

    def wait_for_its_own_end(self) -> None:
        """``wait``, where half is nothing: raises StopAsked if a stop was asked for meanwhile."""
        self.wait()
        if self._stop_asked.is_set():
            raise StopAsked

    def _take_turn(self, between: Callable[[], None]) -> None:
        try:
            between()
        except BaseException as error:
            try:
                self._stop()
            except Exception as second:  # noqa: BLE001 - told with the error that matters
                error.add_note(f"the query could not be stopped: {second}")
            raise

    def _stop(self) -> None:
        self._stopping = True
        self.spark.stop()

    def _guarded(self, frame: DataFrame, batch: int) -> None:
        self._known.wait()  # the first batch may come before start() has returned
        try:
            # Whoever stops the query holds the lock, and Spark's stop returns when this callback has.
            while not self._at_work.acquire(timeout=LOOK_SECONDS):
                if self._stopping:
                    raise StopAsked
            try:
                if self._stop_asked.is_set() or self._stopping:
                    raise StopAsked
                self._on_batch(frame, batch, self.spark)
            finally:
                self._at_work.release()
        except BaseException as error:  # noqa: BLE001 - raised by wait, in the thread that runs the flow
            # What crosses into the JVM is kept short: Spark runs a regex over all of it.
            self._error = error
            raise RuntimeError(f"holdfast stopped batch {batch}") from None
