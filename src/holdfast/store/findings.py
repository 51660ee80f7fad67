"""What verifying a store comes to. Values only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding: which object, what kind, in words, and what to do about it."""

    code: str
    message: str
    key: str
    hint: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """``ok``: no problems. Warnings alone do not make a store bad."""

    examined: int
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.problems
