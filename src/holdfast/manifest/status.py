"""How far a sink got with an epoch, as it is stored. What a sink answers when asked is an outcome."""

from __future__ import annotations

from typing import Any, ClassVar


class SinkCommitStatus:
    """``PENDING``, ``COMMITTED`` or ``failed(message)``. A value: immutable, compared by content.

    Stored as ``"Pending"``, ``"Committed"``, ``{"Failed": "text"}``; a foreign writer may also say
    ``{"Pending": null}``. No dataclass: msgspec would store its fields instead.
    """

    __slots__ = ("_message", "_name")

    PENDING: ClassVar[SinkCommitStatus]
    COMMITTED: ClassVar[SinkCommitStatus]

    def __init__(self, name: str, message: str | None = None) -> None:
        if name not in ("Pending", "Committed", "Failed") or (name == "Failed") == (message is None):
            raise ValueError(f"no sink commit status: {name!r} with message {message!r}")
        self._name = name
        self._message = message

    @classmethod
    def failed(cls, message: str) -> SinkCommitStatus:
        return cls("Failed", message)

    @classmethod
    def from_wire(cls, value: Any) -> SinkCommitStatus:
        """Raises ValueError for anything but the stored forms; names are case-sensitive."""
        if isinstance(value, dict) and len(value) == 1:
            name, payload = next(iter(value.items()))
            if name == "Failed" and isinstance(payload, str):
                return cls.failed(payload)
            if name in ("Pending", "Committed") and payload is None:
                return cls(name)
        elif isinstance(value, str) and value in ("Pending", "Committed"):
            return cls(value)
        raise ValueError("Expected a sink commit status: Pending, Committed or {Failed: text}")

    def to_wire(self) -> str | dict[str, str]:
        return self._name if self._message is None else {self._name: self._message}

    @property
    def is_pending(self) -> bool:
        return self._name == "Pending"

    @property
    def is_committed(self) -> bool:
        return self._name == "Committed"

    @property
    def is_failed(self) -> bool:
        return self._name == "Failed"

    @property
    def message(self) -> str | None:
        """Why it failed; None otherwise."""
        return self._message

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SinkCommitStatus):
            return NotImplemented
        return (self._name, self._message) == (other._name, other._message)

    def __hash__(self) -> int:
        return hash((self._name, self._message))

    def __reduce__(self) -> tuple[Any, ...]:
        return SinkCommitStatus, (self._name, self._message)

    def __repr__(self) -> str:
        return f"SinkCommitStatus.{self}"

    def __str__(self) -> str:
        return self._name.upper() if self._message is None else f"failed({self._message!r})"


SinkCommitStatus.PENDING = SinkCommitStatus("Pending")
SinkCommitStatus.COMMITTED = SinkCommitStatus("Committed")
