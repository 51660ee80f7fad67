"""What a start must do with the positions it finds: a pure decision, and the filter of repeats.

Nothing here reads or writes a store. All or nothing: a query never resumes some of its sources
and starts others anew, since its state holds the effects of all of them together.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, TypeAlias

from holdfast.errors import InvalidInputError
from holdfast.positions.base import Marker, SourceCheckpoint, checked_id, checked_u64

Policy: TypeAlias = Literal["strict", "auto_reset", "skip_gap"]
OnChange: TypeAlias = Literal["fail", "reset", "warn"]


class ResumeDecision(StrEnum):
    RESUME = "resume"
    FRESH = "fresh"
    RESET = "reset"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class SourceAbility:
    """What a source said of itself. ``position_available``: False, it cannot serve it; None, not asked."""

    can_replay: bool = False
    position_available: bool | None = None


@dataclass(frozen=True, slots=True)
class ResumePlan:
    """What to do, and why. ``resume_from`` and ``sequences`` are filled for RESUME alone."""

    decision: ResumeDecision
    resume_from: Mapping[str, bytes] = field(default_factory=dict)
    sequences: Mapping[str, int] = field(default_factory=dict)
    skipped: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def plan_resume(
    *,
    current_hash: int,
    stored_hash: int | None,
    markers: Collection[Marker],
    positions: Mapping[str, SourceCheckpoint],
    sources: Mapping[str, SourceAbility],
    policy: Policy = "strict",
    on_change: OnChange = "fail",
    persistent: bool = True,
) -> ResumePlan:
    """Decide how a query starts. The first rule that fits wins; the numbers below are the rules'."""
    if policy not in ("strict", "auto_reset", "skip_gap"):
        raise InvalidInputError(f'policy is "strict", "auto_reset" or "skip_gap", not {policy!r}')
    if on_change not in ("fail", "reset", "warn"):
        raise InvalidInputError(f'on_change is "fail", "reset" or "warn", not {on_change!r}')

    # 1. What does not survive the process is not resumed from.
    if not persistent:
        return ResumePlan(ResumeDecision.FRESH)

    # 2. Without replay there is no exactly-once at any start, whatever the policy.
    deaf = sorted(name for name, ability in sources.items() if not ability.can_replay)
    if deaf:
        return _fail(f"{_named(deaf)} cannot replay, so what was read before a crash would be lost")

    # 3. A reset that was begun is finished first.
    if Marker.RESETTING in markers:
        return _reset("a reset was begun and did not finish")

    gone = sorted(name for name, ability in sources.items() if ability.position_available is False)
    bootstrapped = Marker.BOOTSTRAPPED in markers

    # 4. No hash: nothing was ever stored, or what was stored cannot be told from another query's.
    if stored_hash is None:
        if positions or bootstrapped:
            stored = (
                f"positions of {_named(sorted(positions))} are" if positions else "the marker bootstrapped is"
            )
            return _lost(policy, f"{stored} stored without a configuration hash")
        if gone:
            return _fail(
                f"{_named(gone)} cannot serve a start from the beginning, and a reset cannot help it"
            )
        return ResumePlan(ResumeDecision.FRESH)

    # 5. The query was changed.
    warnings: list[str] = []
    if stored_hash != current_hash:
        changed = f"the configuration changed: its hash is {current_hash}, the stored one {stored_hash}"
        if on_change == "fail":
            return _fail(changed)
        if on_change == "reset":
            return _reset(changed)
        warnings.append(changed)

    # 6. The first load never finished, or somebody lost the marker that says it did.
    if not bootstrapped:
        if not positions:
            return _reset("the first load did not finish", warnings)
        reason = f"positions of {_named(sorted(positions))} are stored, but no first load finished"
        return _lost(policy, reason, warnings=warnings)

    # 7. One source without a position is one too many.
    strangers = sorted(set(positions) - set(sources))
    if strangers:
        warnings.append(f"{_named(strangers)} has a stored position and is no longer configured")
    missing = sorted(name for name in sources if name not in positions)
    blank = sorted(name for name in sources if name in positions and positions[name].source_position is None)
    if missing or blank:
        reasons = [f"{_named(missing)} has no stored entry"] if missing else []
        reasons += [f"{_named(blank)} has a stored entry without a position"] if blank else []
        return _lost(policy, *reasons, warnings=warnings)

    # 8. A source lost what lies after its position.
    if gone and policy != "skip_gap":
        return _lost(policy, f"{_named(gone)} cannot serve the stored position", warnings=warnings)

    # 9. Resume all (with skip_gap: those that can; the others go on from where they are).
    if gone:
        warnings.append(f"{_named(gone)} cannot serve the stored position: the gap is skipped")
    return ResumePlan(
        ResumeDecision.RESUME,
        resume_from={name: _position(positions[name]) for name in sorted(sources) if name not in gone},
        sequences={name: positions[name].sequence for name in sorted(sources)},
        skipped=tuple(gone),
        warnings=tuple(warnings),
    )


def _lost(policy: Policy, *reasons: str, warnings: list[str] | None = None) -> ResumePlan:
    decision = ResumeDecision.RESET if policy == "auto_reset" else ResumeDecision.FAIL
    return ResumePlan(decision, reasons=reasons, warnings=tuple(warnings or ()))


def _reset(reason: str, warnings: list[str] | None = None) -> ResumePlan:
    return ResumePlan(ResumeDecision.RESET, reasons=(reason,), warnings=tuple(warnings or ()))


def _fail(reason: str) -> ResumePlan:
    return ResumePlan(ResumeDecision.FAIL, reasons=(reason,))


def _named(names: list[str]) -> str:
    return ("source " if len(names) == 1 else "sources ") + ", ".join(map(repr, names))


def _position(entry: SourceCheckpoint) -> bytes:
    assert entry.source_position is not None  # rule 7 has seen to it
    return entry.source_position


class SequenceDedup:
    """Which events the committed state already holds. Advance it only after the commit."""

    def __init__(self, checkpoints: Mapping[str, int] | None = None) -> None:
        self._checkpoints: dict[str, int] = {}
        for source_id, sequence in (checkpoints or {}).items():
            self._checkpoints[checked_id(source_id)] = checked_u64(sequence)

    def should_skip(self, source_id: str, sequence: int | None) -> bool:
        """True for a sequence at or below the source's. None, and an unknown source, always pass."""
        stands_at = self._checkpoints.get(source_id)
        return sequence is not None and stands_at is not None and sequence <= stands_at

    def advance(self, source_id: str, sequence: int) -> None:
        """Raise the source's sequence; never lowers it."""
        source_id, sequence = checked_id(source_id), checked_u64(sequence)
        self._checkpoints[source_id] = max(sequence, self._checkpoints.get(source_id, 0))

    def checkpoint_for(self, source_id: str) -> int | None:
        return self._checkpoints.get(source_id)

    def all_checkpoints(self) -> dict[str, int]:
        return dict(self._checkpoints)
