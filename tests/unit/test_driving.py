"""A query as Spark runs one: batches come in a thread of their own, and a stop waits for the one at work."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.spark.driving import DrivenQuery, StopAsked

LONG = 10.0


class Query:
    """What Spark's frame, writer and query do here. ``stop`` returns when the callback has, and no sooner."""

    def __init__(self) -> None:
        self.isActive = True
        self.raised: BaseException | None = None
        self._callback: Callable[[Any, int], None] = lambda _frame, _batch: None
        self._thread: threading.Thread | None = None

    @property
    def writeStream(self) -> Query:
        return self

    def _same(self, *_: Any, **__: Any) -> Query:
        return self

    outputMode = option = trigger = start = _same

    def foreachBatch(self, callback: Callable[[Any, int], None]) -> Query:
        self._callback = callback
        return self

    def bring(self, batch: int) -> None:
        def run() -> None:
            try:
                self._callback(None, batch)
            except RuntimeError as error:
                self.raised = error

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        if self._thread is not None:
            self._thread.join(LONG)
            assert not self._thread.is_alive(), "the batch and the stop wait for each other"
        self.isActive = False

    def awaitTermination(self) -> None:
        if self.raised is not None:
            raise self.raised


def driven(query: Any, taken: list[int], stop_asked: threading.Event) -> DrivenQuery:
    return DrivenQuery(
        query,
        lambda _frame, batch, _query: taken.append(batch),
        scratch=Path("scratch"),
        output_mode="append",
        trigger={},
        stop_asked=stop_asked,
    )


def test_a_batch_that_comes_while_its_query_is_stopped_is_refused_and_holds_up_nobody() -> None:
    query, stop_asked = Query(), threading.Event()
    taken: list[int] = []
    stop = query.stop

    def stop_while_a_batch_comes() -> None:
        query.bring(0)
        stop()

    query.stop = stop_while_a_batch_comes  # type: ignore[method-assign]
    flow = driven(query, taken, stop_asked)

    stop_asked.set()
    flow.wait()

    assert taken == []
    assert not query.isActive


def test_what_fails_between_two_batches_stops_the_query_too() -> None:
    query = Query()
    taken: list[int] = []
    flow = driven(query, taken, threading.Event())

    def between() -> None:
        query.bring(0)
        raise OSError("the store is away")

    with pytest.raises(OSError, match="the store is away"):
        flow.wait(between)

    assert not query.isActive
    assert taken == []


def test_a_replay_that_is_told_to_stop_says_so_and_not_that_its_batch_is_missing() -> None:
    query, stop_asked = Query(), threading.Event()
    taken: list[int] = []
    flow = driven(query, taken, stop_asked)

    stop_asked.set()
    with pytest.raises(StopAsked):
        flow.wait_for_its_own_end()

    assert not query.isActive
