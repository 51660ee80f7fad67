"""A store on a bad day: errors before or after the effect, lost replies, answers for another key."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeVar

from holdfast.blobs.base import BlobInfo, BlobStore, Data
from holdfast.errors import OutcomeUnknownError, StoreUnavailableError
from holdfast.testing.crashing import CALLS

_Result = TypeVar("_Result")


class When(Enum):
    BEFORE = "before it took effect"
    AFTER = "after it took effect"


@dataclass(slots=True)
class _Fault:
    method: str
    when: When
    error: Exception
    key: str | None
    times_left: int | None
    skip: int


class FaultyBlobs(BlobStore):
    """``blobs``, failing as told:

        faulty = FaultyBlobs(MemoryBlobs())
        faulty.fail("put", times=2)                        # the next two, before they take effect
        faulty.fail("delete", when=When.AFTER, times=None) # for good, after they took effect
        faulty.lose_reply("create", key="ledger/000000000007.json")
        faulty.misdirect("orders/a", to="orders/b")        # reads of one key get the bytes of another

    ``happened`` lists what was injected, so that a test can tell that its fault took place.
    """

    def __init__(self, blobs: BlobStore) -> None:
        self.blobs = blobs
        self.happened: list[str] = []
        self._faults: list[_Fault] = []
        self._elsewhere: dict[str, str] = {}
        self._lock = threading.Lock()

    def fail(
        self,
        method: str,
        error: Exception | None = None,
        *,
        when: When = When.BEFORE,
        key: str | None = None,
        times: int | None = 1,
        skip: int = 0,
    ) -> None:
        """Fail ``method`` with ``error``, ``times`` times (None: for good), but not the first ``skip``."""
        if method not in CALLS:
            raise ValueError(f"no store has {method!r}")
        injected = error or StoreUnavailableError(f"{method}: injected, {when.value}")
        self._faults.append(_Fault(method, when, injected, key, times, skip))

    def lose_reply(
        self, method: str, *, key: str | None = None, times: int | None = 1, skip: int = 0
    ) -> None:
        """The call takes effect, and the caller is told that nobody knows."""
        lost = OutcomeUnknownError(f"{method}: the reply was lost")
        self.fail(method, lost, when=When.AFTER, key=key, times=times, skip=skip)

    def misdirect(self, key: str, *, to: str) -> None:
        """Answer reads of ``key`` with what lies at ``to``, under the name that was asked for."""
        self._elsewhere[key] = to

    def heal(self) -> None:
        """No more faults."""
        with self._lock:
            self._faults.clear()
            self._elsewhere.clear()

    def get(self, key: str) -> bytes:
        return self._call("get", key, lambda: self.blobs.get(self._place(key)))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._call("get_range", key, lambda: self.blobs.get_range(self._place(key), start, length))

    def head(self, key: str) -> BlobInfo | None:
        return self._call("head", key, lambda: self._renamed(self.blobs.head(self._place(key)), key))

    def create(self, key: str, data: Data) -> None:
        self._call("create", key, lambda: self.blobs.create(key, data))

    def put(self, key: str, data: Data) -> None:
        self._call("put", key, lambda: self.blobs.put(key, data))

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[BlobInfo]:
        return self._call("list", prefix, lambda: self.blobs.list(prefix, start_after))

    def delete(self, key: str) -> None:
        self._call("delete", key, lambda: self.blobs.delete(key))

    def sweep_leftovers(self, *, min_age_seconds: float) -> int:
        return self._call(
            "sweep_leftovers", "", lambda: self.blobs.sweep_leftovers(min_age_seconds=min_age_seconds)
        )

    def _call(self, method: str, key: str, effect: Callable[[], _Result]) -> _Result:
        fault = self._next_fault(method, key)
        if fault is not None and fault.when is When.BEFORE:
            raise fault.error
        result = effect()
        if fault is not None:
            raise fault.error
        return result

    def _next_fault(self, method: str, key: str) -> _Fault | None:
        with self._lock:
            for fault in self._faults:
                if fault.method != method or fault.key not in (None, key) or fault.times_left == 0:
                    continue
                if fault.skip > 0:
                    fault.skip -= 1
                    continue
                if fault.times_left is not None:
                    fault.times_left -= 1
                self.happened.append(f"{method} {key!r} failed {fault.when.value}")
                return fault
        return None

    def _place(self, key: str) -> str:
        to = self._elsewhere.get(key)
        if to is None:
            return key
        self.happened.append(f"a read of {key!r} went to {to!r}")
        return to

    def _renamed(self, info: BlobInfo | None, key: str) -> BlobInfo | None:
        return replace(info, key=key) if info else None
