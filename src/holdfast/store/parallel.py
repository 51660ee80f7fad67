"""Several store calls at once. Nothing here knows what they do."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

log = logging.getLogger("holdfast.store")

T = TypeVar("T")
R = TypeVar("R")

#: Round trips overlap up to here. More would only queue up in the store.
WORKERS = 16


def run_all(tasks: Sequence[Callable[[], R]]) -> list[R]:
    """The results of ``tasks``, in order. All of them end before the first failure, if any, is raised."""
    if len(tasks) <= 1:
        return [task() for task in tasks]
    with ThreadPoolExecutor(min(WORKERS, len(tasks)), thread_name_prefix="holdfast-store") as pool:
        futures = [pool.submit(task) for task in tasks]
        wait(futures)
    return [future.result() for future in futures]


def try_all(action: Callable[[T], None], items: Iterable[T]) -> list[tuple[T, BaseException]]:
    """Do ``action`` to every item, whatever becomes of the others; those that failed, and how."""
    items = list(items)
    with ThreadPoolExecutor(WORKERS, thread_name_prefix="holdfast-store") as pool:
        futures: list[Future[None]] = [pool.submit(action, item) for item in items]
        wait(futures)
    failures = [(item, future.exception()) for item, future in zip(items, futures, strict=True)]
    return [(item, error) for item, error in failures if error is not None]


def raise_first(failures: Sequence[tuple[object, BaseException]]) -> None:
    """Raise the first failure, the others being logged. What failed is tried again by the next one."""
    for item, error in failures:
        log.error("could not delete %s: %s", item, error)
    if failures:
        raise failures[0][1]
