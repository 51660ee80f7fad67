"""A store that asks again. The one place that retries."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from holdfast.blobs.base import BlobInfo, BlobStore, Data, RefusedError, check_prefix, chunks
from holdfast.blobs.settling import Settled, settle
from holdfast.errors import InvalidInputError, KeyExistsError, OutcomeUnknownError, StoreUnavailableError

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Pauses grow from ``first`` by ``factor`` up to ``longest``, each shortened at random by up to half.

    By default a call is tried 5 times within about 3 seconds of pauses.
    """

    attempts: int = 5
    first_pause_seconds: float = 0.1
    factor: float = 4.0
    longest_pause_seconds: float = 2.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise InvalidInputError("a call is tried at least once")

    def pauses(self, jitter: Callable[[], float]) -> Iterator[float]:
        """One pause before each attempt but the first."""
        pause = self.first_pause_seconds
        for _ in range(self.attempts - 1):
            yield pause * (1 - jitter() / 2)
            pause = min(pause * self.factor, self.longest_pause_seconds)


class RetryingBlobs(BlobStore):
    """``blobs``, asked again while it is unavailable. What the store refuses is not asked twice.

    Not for ``FileBlobs``: after a failed fsync nothing that this process reads back proves anything.
    """

    def __init__(
        self,
        blobs: BlobStore,
        policy: RetryPolicy | None = None,
        *,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._blobs = blobs
        self._policy = policy or RetryPolicy()
        self._sleep = sleep
        self._jitter = jitter

    def get(self, key: str) -> bytes:
        return self._retried(lambda: self._blobs.get(key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._retried(lambda: self._blobs.get_range(key, start, length))

    def head(self, key: str) -> BlobInfo | None:
        return self._retried(lambda: self._blobs.head(key))

    def create(self, key: str, data: Data) -> None:
        """Try until it is known who has the key.

        After an attempt without an answer, "taken" may mean by that very attempt: so it is read back.
        """
        pieces = chunks(data)
        pauses = self._policy.pauses(self._jitter)
        in_doubt: OutcomeUnknownError | None = None
        while True:
            try:
                return self._blobs.create(key, pieces)
            except RefusedError:
                if in_doubt is not None:
                    raise in_doubt from None
                raise
            except KeyExistsError:
                if in_doubt is None:
                    raise
                if self._settled(key, pieces, in_doubt) is Settled.OURS:
                    return None
                raise
            except OutcomeUnknownError as error:
                in_doubt = error
                outcome = self._settled(key, pieces, error)
                if outcome is Settled.OURS:
                    return None
                if outcome is Settled.TAKEN:
                    raise KeyExistsError(key) from error
                failed: OutcomeUnknownError | StoreUnavailableError = error
            except StoreUnavailableError as error:
                failed = in_doubt or error
            self._pause(pauses, failed)

    def put(self, key: str, data: Data) -> None:
        # An attempt without an answer may have written, and is repeated all the same: the bytes are the same.
        pieces = chunks(data)
        self._retried(lambda: self._blobs.put(key, pieces))

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[BlobInfo]:
        check_prefix(prefix)
        return self._listed(prefix, start_after)

    def delete(self, key: str) -> None:
        self._retried(lambda: self._blobs.delete(key))

    def sweep_leftovers(self, *, min_age_seconds: float) -> int:
        return self._retried(lambda: self._blobs.sweep_leftovers(min_age_seconds=min_age_seconds))

    def __repr__(self) -> str:
        return f"RetryingBlobs({self._blobs!r})"

    def __reduce__(self) -> tuple[type[RetryingBlobs], tuple[BlobStore, RetryPolicy]]:
        return RetryingBlobs, (self._blobs, self._policy)

    def _retried(self, call: Callable[[], _Result]) -> _Result:
        pauses = self._policy.pauses(self._jitter)
        while True:
            try:
                return call()
            except RefusedError:
                raise
            except (StoreUnavailableError, OutcomeUnknownError) as error:
                self._pause(pauses, error)

    def _listed(self, prefix: str, last: str | None) -> Iterator[BlobInfo]:
        """A listing that goes on after the last key that came through, with all its attempts again."""
        pauses = self._policy.pauses(self._jitter)
        listing: Iterator[BlobInfo] | None = None
        while True:
            try:
                listing = listing or self._blobs.list(prefix, last)
                info = next(listing, None)
            except RefusedError:
                raise
            except StoreUnavailableError as error:
                self._pause(pauses, error)
                listing = None
                continue
            if info is None:
                return
            yield info
            last = info.key
            pauses = self._policy.pauses(self._jitter)

    def _settled(self, key: str, pieces: Sequence[memoryview], unknown: OutcomeUnknownError) -> Settled:
        """Who has the key, asked as often as anything else; MISSING means that the create may be repeated."""
        pauses = self._policy.pauses(self._jitter)
        while True:
            outcome = settle(self._blobs, key, pieces)
            if outcome is not Settled.UNREADABLE:
                return outcome
            self._pause(pauses, unknown)

    def _pause(self, pauses: Iterator[float], error: Exception) -> None:
        """Wait before the next attempt, or raise ``error`` if there is none."""
        pause = next(pauses, None)
        if pause is None:
            raise error
        self._sleep(pause)
