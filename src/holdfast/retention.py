"""Which checkpoints to keep, by age and by name, and why. Deciding is pure; the store does the deleting.

A rule keeps, none deletes: what no rule keeps goes, unless something needs it (a chain, a hold, a savepoint,
pending sinks, the pointer, a run that has none of its own yet). The newest sound checkpoint always stays.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from holdfast.errors import InvalidInputError
from holdfast.ids import CheckpointId
from holdfast.store import PartitionedCheckpointStore
from holdfast.store.pruning import Choice, Reasons, Seen, Verdict, collect, judge

__all__ = ["RetentionPolicy", "Verdict", "apply_retention", "plan_retention"]

#: One checkpoint for each of these is kept: how a moment is named by the period it lies in, in UTC.
_PERIODS: Mapping[str, Callable[[datetime], str]] = {
    "hourly": lambda at: at.strftime("%Y-%m-%d %H:00"),
    "daily": lambda at: at.strftime("%Y-%m-%d"),
    "weekly": lambda at: "{}-W{:02}".format(*at.isocalendar()[:2]),
    "monthly": lambda at: at.strftime("%Y-%m"),
    "yearly": lambda at: at.strftime("%Y"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """How much to keep. Periods count those that have a checkpoint, so a quiet week uses none up."""

    keep_last: int = 0
    keep_within_seconds: float = 0
    hourly: int = 0
    daily: int = 0
    weekly: int = 0
    monthly: int = 0
    yearly: int = 0
    #: Patterns such as ``release-*``; a checkpoint with a tag that matches one is kept.
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        counts = [self.keep_last, self.keep_within_seconds, *(getattr(self, name) for name in _PERIODS)]
        if min(counts) < 0:
            raise InvalidInputError(f"a retention policy keeps 0 or more of each: {self}")
        if not any(counts) and not self.tags:
            raise InvalidInputError("a retention policy that keeps nothing").with_hint(
                "name at least one rule, such as keep_last=10"
            )


def plan_retention(store: PartitionedCheckpointStore, policy: RetentionPolicy) -> list[Verdict]:
    """What would become of every checkpoint, newest first. Writes nothing.

    Raises CorruptError while any ledger record cannot be read.
    """
    return judge(store, store.ledger.read(), partial(_choose, store, policy))


def apply_retention(store: PartitionedCheckpointStore, policy: RetentionPolicy) -> int:
    """Delete what ``plan_retention`` gives no reason for; how many checkpoints are gone.

    Planned again when a hold, a child or a restore comes in between. Raises the first failure after trying
    everything; the next one goes on where this one ended.
    """
    return collect(store, partial(_choose, store, policy))


def _choose(
    store: PartitionedCheckpointStore,
    policy: RetentionPolicy,
    timeline: Sequence[Seen],
    is_sound: Callable[[Seen], bool],
) -> Choice:
    now_ms = store.now_ms()
    sound = _Remembered(is_sound)
    reasons: Reasons = {}
    for seen, why in (
        *_newest(policy, timeline, sound),
        *_recent(policy, timeline, now_ms),
        *_periods(policy, timeline, sound),
        *_tagged(policy, timeline, _tags(store, now_ms)),
    ):
        reasons.setdefault(seen.id, []).append(why)
    recent = [seen for seen in timeline if seen.id in reasons and sound(seen)][: max(policy.keep_last, 1)]
    if len(recent) < max(policy.keep_last, 1):
        # Fewer sound ones than were asked for: a damaged one may be all that somebody has.
        horizon = 0
    else:
        horizon = min(seen.named.record for seen in recent)
    for seen in timeline:
        if seen.named.record >= horizon and seen.id not in reasons and not sound(seen):
            reasons[seen.id] = ["damaged, and newer than the oldest one kept"]
    return Choice(reasons, horizon)


def _newest(
    policy: RetentionPolicy, timeline: Sequence[Seen], sound: Callable[[Seen], bool]
) -> Iterator[tuple[Seen, str]]:
    count = 0
    for seen in timeline:
        if count and count >= policy.keep_last:
            return
        if sound(seen):
            count += 1
            yield seen, f"newest {count} of {policy.keep_last}" if policy.keep_last else "the newest"


def _recent(policy: RetentionPolicy, timeline: Sequence[Seen], now_ms: int) -> Iterator[tuple[Seen, str]]:
    since = now_ms - policy.keep_within_seconds * 1000
    if policy.keep_within_seconds:
        for seen in timeline:
            if seen.at_ms >= since:
                yield seen, f"not older than {policy.keep_within_seconds:g} s"


def _periods(
    policy: RetentionPolicy, timeline: Sequence[Seen], sound: Callable[[Seen], bool]
) -> Iterator[tuple[Seen, str]]:
    """The newest sound checkpoint of each of the last periods that have one."""
    for name, named in _PERIODS.items():
        left: int = getattr(policy, name)
        taken: set[str] = set()
        for seen in timeline:
            if not left:
                break
            period = named(datetime.fromtimestamp(seen.at_ms / 1000, UTC))
            if period not in taken and sound(seen):
                taken.add(period)
                left -= 1
                yield seen, f"{name}: {period}"


def _tagged(
    policy: RetentionPolicy, timeline: Sequence[Seen], tags: Mapping[CheckpointId, list[str]]
) -> Iterator[tuple[Seen, str]]:
    for seen in timeline:
        for tag in tags.get(seen.id, ()):
            if any(fnmatch.fnmatchcase(tag, pattern) for pattern in policy.tags):
                yield seen, f"tagged {tag!r}"


def _tags(store: PartitionedCheckpointStore, now_ms: int) -> dict[CheckpointId, list[str]]:
    tags: dict[CheckpointId, list[str]] = {}
    for hold in store.ledger.read().holds(now_ms).values():
        if not hold.protects:
            tags.setdefault(hold.checkpoint_id, []).append(hold.name)
    return tags


class _Remembered:
    """``is_sound`` opens a manifest: once for each checkpoint is enough."""

    def __init__(self, is_sound: Callable[[Seen], bool]) -> None:
        self._is_sound = is_sound
        self._known: dict[CheckpointId, bool] = {}

    def __call__(self, seen: Seen) -> bool:
        if seen.id not in self._known:
            self._known[seen.id] = self._is_sound(seen)
        return self._known[seen.id]
