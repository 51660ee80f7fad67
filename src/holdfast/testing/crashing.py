"""A store under which the process dies, at a call of your choice. What was written stays written."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TypeVar

from holdfast.blobs.base import BlobInfo, BlobStore, Data

#: The calls that change a store.
WRITES = frozenset({"create", "put", "delete", "sweep_leftovers"})
#: All calls.
CALLS = WRITES | {"get", "get_range", "head", "list"}

_Result = TypeVar("_Result")


class Crash(BaseException):
    """The end of the process, as far as the code under test can tell.

    Not an ``Exception``: nothing that merely handles errors may catch it, as nothing catches SIGKILL.
    """


@dataclass(frozen=True, slots=True)
class Call:
    method: str
    key: str


class CrashingBlobs(BlobStore):
    """``blobs``, dying before or after its k-th call (the first is 1); every later call dies at once.

    Without ``before`` and ``after`` it only counts, which tells how many crash points there are:

        counted = CrashingBlobs(MemoryBlobs())
        work(counted)
        for k in range(1, counted.count + 1):
            for crashing in (CrashingBlobs(fresh(), before=k), CrashingBlobs(fresh(), after=k)):
                with pytest.raises(Crash):
                    work(crashing)
                restart_and_check(crashing.blobs)

    ``counting`` narrows what is a call; what isn't counted still dies once the process is dead.
    """

    def __init__(
        self,
        blobs: BlobStore,
        *,
        before: int | None = None,
        after: int | None = None,
        counting: Collection[str] = CALLS,
    ) -> None:
        unknown = set(counting) - CALLS
        if unknown:
            raise ValueError(f"no store has {', '.join(sorted(unknown))}")
        self.blobs = blobs
        self.calls: list[Call] = []
        self.dead = False
        self._before = before
        self._after = after
        self._counting = frozenset(counting)
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        return len(self.calls)

    def get(self, key: str) -> bytes:
        return self._call("get", key, lambda: self.blobs.get(key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._call("get_range", key, lambda: self.blobs.get_range(key, start, length))

    def head(self, key: str) -> BlobInfo | None:
        return self._call("head", key, lambda: self.blobs.head(key))

    def create(self, key: str, data: Data) -> None:
        self._call("create", key, lambda: self.blobs.create(key, data))

    def put(self, key: str, data: Data) -> None:
        self._call("put", key, lambda: self.blobs.put(key, data))

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[BlobInfo]:
        return self._call("list", prefix, lambda: self._alive(self.blobs.list(prefix, start_after)))

    def delete(self, key: str) -> None:
        self._call("delete", key, lambda: self.blobs.delete(key))

    def sweep_leftovers(self, *, min_age_seconds: float) -> int:
        return self._call(
            "sweep_leftovers", "", lambda: self.blobs.sweep_leftovers(min_age_seconds=min_age_seconds)
        )

    def _call(self, method: str, key: str, effect: Callable[[], _Result]) -> _Result:
        number = self._arrive(method, key)
        result = effect()
        if number is not None and number == self._after:
            self._die(number, "after", method, key)
        # A rival thread may have died meanwhile: this one belongs to the same process, and gets no answer.
        if self.dead:
            raise Crash(f"{method} {key!r}: the process is dead")
        return result

    def _arrive(self, method: str, key: str) -> int | None:
        with self._lock:
            if self.dead:
                raise Crash(f"{method} {key!r}: the process is dead")
            if method not in self._counting:
                return None
            self.calls.append(Call(method, key))
            number = len(self.calls)
            if number == self._before:
                self._die(number, "before", method, key)
            return number

    def _die(self, number: int, when: str, method: str, key: str) -> None:
        self.dead = True
        raise Crash(f"died {when} call {number}: {method} {key!r}")

    def _alive(self, listed: Iterator[BlobInfo]) -> Iterator[BlobInfo]:
        for info in listed:
            if self.dead:
                raise Crash("list: the process is dead")
            yield info
