"""Every error Holdfast raises on purpose, in one tree, grouped by what the caller does next.

    HoldfastError
    ├── InvalidInputError (ValueError)        fix the call
    ├── NotFoundError (LookupError)           look elsewhere
    │   ├── KeyNotFoundError
    │   └── CheckpointNotFoundError
    ├── ConflictError                         yield, or find out who was first
    │   ├── KeyExistsError
    │   ├── EpochTakenError
    │   ├── FencedError
    │   └── SequenceRegressionError
    ├── OutcomeUnknownError                   read back before acting
    ├── CorruptError                          bytes are there and wrong: stop
    ├── UnsupportedFormatError                written by a newer version: upgrade
    ├── SessionError                          open, or leave, the session properly
    │   ├── NoActiveSessionError
    │   └── ForeignSessionError
    ├── ChangedPipelineError                  the declaration and the checkpoint disagree
    ├── StoreUnavailableError                 try later
    └── MissingExtraError (ImportError)       pip install "holdfast[…]"

Errors cross process borders (Spark workers pickle them), so fields go to ``super().__init__`` in
order and the sentence is made in ``__str__``. A ``hint`` is the next thing to do, best a command.
"""

from __future__ import annotations

from typing import Any, Self


class HoldfastError(Exception):
    """Base of everything Holdfast raises on purpose. ``hint`` says what to do next, if anything."""

    hint: str | None = None

    def with_hint(self, hint: str) -> Self:
        """This error with the next step attached: ``raise CorruptError(…).with_hint("…")``."""
        self.hint = hint
        return self


class InvalidInputError(HoldfastError, ValueError):
    """The call itself is wrong; nothing was read or written."""


class NotFoundError(HoldfastError, LookupError):
    """What was asked for is not there."""


class KeyNotFoundError(NotFoundError):
    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key

    def __str__(self) -> str:
        return f"no object at {self.key!r}"


class CheckpointNotFoundError(NotFoundError):
    def __init__(self, checkpoint: Any) -> None:
        super().__init__(checkpoint)
        self.checkpoint = checkpoint

    def __str__(self) -> str:
        return f"no checkpoint {self.checkpoint}"


class ConflictError(HoldfastError):
    """Somebody or something else was first, or holds what contradicts us. Nothing was overwritten."""


class KeyExistsError(ConflictError):
    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key

    def __str__(self) -> str:
        return f"{self.key!r} is already taken"


class EpochTakenError(ConflictError):
    def __init__(self, epoch: int, record: int) -> None:
        super().__init__(epoch, record)
        self.epoch = epoch
        self.record = record

    def __str__(self) -> str:
        return f"epoch {self.epoch} was decided by another attempt, in ledger record {self.record}"


class FencedError(ConflictError):
    """A newer generation runs this flow. Ours may write nothing more."""

    hint = "the newer run goes on; stop this one, or stop that one and start again"

    def __init__(self, generation: int, newer: int, writer: str) -> None:
        super().__init__(generation, newer, writer)
        self.generation = generation
        self.newer = newer
        self.writer = writer

    def __str__(self) -> str:
        return (
            f"generation {self.generation} is fenced: generation {self.newer} "
            f"(writer {self.writer}) has started on this flow"
        )


class SequenceRegressionError(ConflictError):
    def __init__(self, source_id: str, stored_sequence: int, sequence: int) -> None:
        super().__init__(source_id, stored_sequence, sequence)
        self.source_id = source_id
        self.stored_sequence = stored_sequence
        self.sequence = sequence

    def __str__(self) -> str:
        return (
            f"source {self.source_id!r} stands at sequence {self.stored_sequence}; "
            f"{self.sequence} would go back"
        )


class OutcomeUnknownError(HoldfastError):
    """It may have happened and it may not. Read back before acting; never assume failure."""

    #: Whether reading our bytes back proves that they stay. After a failed fsync it does not: what is read
    #: may be in this machine's memory only.
    proven_by_reading: bool = True


class CorruptError(HoldfastError):
    """The bytes of ``key`` are there and wrong: truncated, flipped, foreign, or not what was recorded."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(key, reason)
        self.key = key
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.key} is corrupt: {self.reason}"


class UnsupportedFormatError(HoldfastError):
    """Sound bytes in a format this version does not know: most often written by a newer one."""

    hint = "upgrade holdfast to the version that wrote it"

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(key, reason)
        self.key = key
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.key} is in a format this version does not know: {self.reason}"


class SessionError(HoldfastError):
    """A positions session was used in a way its state does not allow."""


class NoActiveSessionError(SessionError):
    """This needs an open session, and there is none (or it was already given up)."""


class ForeignSessionError(SessionError):
    """The session belongs to another thread or task."""


class ChangedPipelineError(HoldfastError):
    """The declared pipeline is not the one the checkpoint was taken from."""


class StoreUnavailableError(HoldfastError):
    """The store did not answer, or refused for now. Nothing is known to be wrong with the data."""

    hint = "try again; if it lasts, check the network, the credentials and the disk"


class MissingExtraError(HoldfastError, ImportError):
    """An optional part is not installed."""

    def __init__(self, extra: str, what: str) -> None:
        super().__init__(extra, what)
        self.extra = extra
        self.what = what
        self.hint = f"pip install 'holdfast[{extra}]'"

    def __str__(self) -> str:
        return f"{self.what} needs the extra {self.extra!r}"
