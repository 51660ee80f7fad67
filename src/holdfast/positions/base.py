"""What a store of source positions promises, and the values that cross its border.

Nothing here stores anything. A *checkpoint* of a source is the sequence of the last event whose
effects are committed, and an opaque position that only the source can read. A store holds the
checkpoints of one query and commits them together, in sessions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum, StrEnum
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeAlias, get_args

from holdfast.errors import InvalidInputError
from holdfast.positions.session import Session

#: Longer positions are refused; exactly this many bytes are not.
MAX_SOURCE_POSITION_BYTES = 65_536
MAX_U64 = 2**64 - 1


class _Keep(Enum):
    # A member of an enum is the same object after copy and pickle, which a bare object() is not.
    KEEP = "keep"

    def __repr__(self) -> str:
        return "KEEP"


#: As a position: leave the one that is stored (or staged) as it is.
KEEP: Final = _Keep.KEEP
Keep: TypeAlias = Literal[_Keep.KEEP]
PositionArgument: TypeAlias = bytes | bytearray | memoryview | Keep | None
Position: TypeAlias = bytes | Keep | None
Guard: TypeAlias = Literal["reject", "ignore", "allow"]


class Marker(StrEnum):
    """Facts about a query's life that must survive it."""

    BOOTSTRAPPED = "bootstrapped"
    RESETTING = "resetting"


@dataclass(frozen=True, slots=True, init=False)
class SourceCheckpoint:
    """How far a source's events are in the committed state. ``b""`` is a position, None is none."""

    sequence: int
    source_position: bytes | None = None

    # Written out because a frozen dataclass's own is four times slower, and a read may make 10,000.
    def __init__(self, sequence: int, source_position: bytes | None = None) -> None:
        _set_sequence(self, sequence)
        _set_position(self, source_position)


_set_sequence = vars(SourceCheckpoint)["sequence"].__set__
_set_position = vars(SourceCheckpoint)["source_position"].__set__


class SourceCheckpointStore(ABC):
    """The checkpoints of one query's sources, durable together. Thread-safe.

    *At once* below means durable on return, inside a session or not, and untouched by that
    session's rollback. A read shows one moment: never the sequence of one commit with the position
    of another. The owner of an open session reads what it staged, everybody else only what is
    committed, without waiting for the session. A stored value of the wrong shape is CorruptError.
    """

    @abstractmethod
    def is_persistent(self) -> bool:
        """Whether the content survives the process. If not, nothing stored may be used to resume."""

    @abstractmethod
    def session(self) -> Session:
        """A new handle on the store's one session. Entering it begins; leaving it does not commit."""

    @abstractmethod
    def stage_checkpoint(
        self,
        source_id: str,
        sequence: int,
        source_position: PositionArgument = KEEP,
        *,
        guard: Guard | None = None,
    ) -> None:
        """Set a source's sequence, and set, delete (None) or keep its position, with the session.

        Going back is refused with SequenceRegressionError, dropped, or done, as ``guard`` says.
        A refused call stages nothing and the session stays open. Raises NoActiveSessionError and
        ForeignSessionError where there are sessions; where there are none it takes effect at once.
        """

    @abstractmethod
    def stage_result_sequence(self, query_id: str, sequence: int) -> None:
        """Set the highest result sequence of ``query_id`` with the session. It has no guard."""

    @abstractmethod
    def read_checkpoint(self, source_id: str) -> SourceCheckpoint | None:
        """The source's checkpoint, or None if it has none."""

    @abstractmethod
    def read_all_checkpoints(self) -> dict[str, SourceCheckpoint]:
        """Every source's checkpoint, of one moment. The dict is the caller's own."""

    @abstractmethod
    def write_config_hash(self, value: int) -> None:
        """Set the hash of the configuration that the positions belong to, at once."""

    @abstractmethod
    def read_config_hash(self) -> int | None:
        """The stored hash, or None."""

    @abstractmethod
    def write_result_sequence(self, query_id: str, sequence: int) -> None:
        """Set the highest result sequence of ``query_id``, at once."""

    @abstractmethod
    def read_result_sequence(self, query_id: str) -> int | None:
        """The result sequence of ``query_id``, or None."""

    @abstractmethod
    def write_marker(self, marker: Marker) -> None:
        """Set ``marker``, at once."""

    @abstractmethod
    def delete_marker(self, marker: Marker) -> None:
        """Remove ``marker``, at once. A missing one is fine."""

    @abstractmethod
    def read_markers(self) -> frozenset[Marker]:
        """The markers that are set."""

    @abstractmethod
    def read_generation(self) -> int:
        """How often this store was cleared: 0 at first."""

    @abstractmethod
    def clear_checkpoints(self) -> None:
        """Remove every entry, the hash, the result sequences and BOOTSTRAPPED; add one to the generation.

        All or nothing, for readers and for crashes. RESETTING stays: a reset is over when its
        caller deletes the marker. While a session is open it raises SessionError and changes nothing.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of everything held. An open session is rolled back, with a warning in the log."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def checked_id(value: Any, what: str = "source id") -> str:
    """``value`` if every backend can hold it as an id. Raises InvalidInputError."""
    if not isinstance(value, str):
        raise InvalidInputError(f"a {what} must be text, not {type(value).__name__}")
    if not value:
        raise InvalidInputError(f"a {what} must not be empty")
    if "\0" in value:
        # PostgreSQL cannot store one, and a store must not accept what another refuses.
        raise InvalidInputError(f"a {what} must not hold NUL: {value!r}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"a {what} must encode as UTF-8: {value!r}") from error
    return value


def checked_u64(value: Any, what: str = "sequence") -> int:
    """``value`` if it is an int from 0 to 2^64-1. Raises InvalidInputError."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInputError(f"a {what} must be an int, not {type(value).__name__}")
    if not 0 <= value <= MAX_U64:
        raise InvalidInputError(f"a {what} must be between 0 and 2^64-1, not {value}")
    return int(value)


def checked_position(value: Any) -> Position:
    """``value`` as bytes of its own, None or KEEP. Raises InvalidInputError."""
    if value is KEEP or value is None:
        return value
    if type(value) is bytes and len(value) <= MAX_SOURCE_POSITION_BYTES:
        return value
    try:
        view = memoryview(value)
    except TypeError as error:
        raise InvalidInputError(f"a source position must be bytes, not {type(value).__name__}") from error
    if view.nbytes > MAX_SOURCE_POSITION_BYTES:
        raise InvalidInputError(
            f"a source position holds at most {MAX_SOURCE_POSITION_BYTES} bytes, not {view.nbytes}"
        )
    return view.tobytes()


def checked_guard(value: Any) -> Guard:
    """``value`` if it is one of the three guards. Raises InvalidInputError."""
    for guard in get_args(Guard):
        if isinstance(value, str) and value == guard:
            return guard  # type: ignore[no-any-return]
    raise InvalidInputError(f'a guard is "reject", "ignore" or "allow", not {value!r}')


def checked_marker(value: Any) -> Marker:
    """``value`` if it is a Marker. Raises InvalidInputError."""
    if not isinstance(value, Marker):
        raise InvalidInputError(f"a marker is one of {', '.join(map(repr, Marker))}, not {value!r}")
    return value
