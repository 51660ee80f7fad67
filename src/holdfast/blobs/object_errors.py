"""From what an object store's client says to what the caller does next, without repeating its secrets.

The client's own text holds whole URLs, which may be signed, and bodies, which may hold anything. Only the
status, the store's error code and the kind of failure get through.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from holdfast.blobs.base import RefusedError
from holdfast.errors import HoldfastError, KeyExistsError, OutcomeUnknownError, StoreUnavailableError

# The second form is how one part of a bulk request fails.
_STATUS = re.compile(r"status code: ([1-5][0-9][0-9])\b|\(code: ([1-5][0-9][0-9])\)")
# Where the client does not repeat the status it was answered.
_SAID = {"redirect without LOCATION": 301, "StartTooLarge": 416}
_CODE = re.compile(r"<Code>([A-Za-z0-9]{1,60})</Code>")
_KIND = re.compile(r"kind: (Connect|Timeout)\b")

# The container of all keys is missing: nothing is known about the key, and least of all that it is free.
_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted", "AccountNotFound"}

# A definite "taken" that comes as 409, which otherwise means that two writers were in each other's way.
_TAKEN = {"BlobAlreadyExists"}

_HINTS = {
    301: "is the region right? (aws_region)",
    401: "are the credentials right, and still valid?",
    403: "may these credentials read, write, list and delete there?",
    404: "does the bucket exist, and is its name right?",
    501: "this store can't do conditional writes, and exactly-once rests on them: use another one",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a failed request came to: a status and a code, or how far it got."""

    status: int | None
    code: str | None
    kind: str | None

    @classmethod
    def of(cls, error: BaseException) -> Answer:
        text = str(error)
        status, code, kind = _STATUS.search(text), _CODE.search(text), _KIND.search(text)
        number: int | None
        if status is not None:
            number = int(status[1] or status[2])
        else:
            number = next((each for said, each in _SAID.items() if said in text), None)
        return cls(number, code[1] if code else None, kind[1] if kind else None)

    @property
    def no_bucket(self) -> bool:
        return self.code in _NO_BUCKET

    @property
    def taken(self) -> bool:
        """Whether a conditional write was refused because the key is taken, for certain."""
        return self.status in (304, 412) or self.code in _TAKEN

    @property
    def not_done(self) -> bool:
        """Whether the store certainly did not do what it was asked to."""
        if self.status is None:
            return self.kind == "Connect"
        return 300 <= self.status < 500 and self.status not in (408, 409) and self.code != "RequestTimeout"

    @property
    def for_good(self) -> bool:
        """Whether the same request would get the same answer again."""
        return self.not_done and self.status is not None and self.status not in (425, 429)

    def __str__(self) -> str:
        if self.status is not None:
            return f"HTTP {self.status}{f' {self.code}' if self.code else ''}"
        if self.kind == "Connect":
            return "no connection"
        return "no answer in time" if self.kind == "Timeout" else "the answer was cut short or made no sense"


def read_error(answer: Answer, what: str) -> HoldfastError:
    """For requests that change nothing."""
    if answer.for_good:
        return _refused(answer, what)
    return StoreUnavailableError(f"{what}: {answer}")


def write_error(answer: Answer, what: str) -> HoldfastError:
    """For requests that may have changed something although they failed."""
    if answer.for_good:
        return _refused(answer, what)
    if answer.not_done:
        return StoreUnavailableError(f"{what}: {answer}; nothing was written")
    return OutcomeUnknownError(f"{what}: {answer}").with_hint("read the key back before doing anything else")


def create_error(answer: Answer, what: str, key: str) -> HoldfastError:
    return KeyExistsError(key) if answer.taken else write_error(answer, what)


def _refused(answer: Answer, what: str) -> RefusedError:
    hint = _HINTS.get(answer.status or 0, "look at the options of the store: region, endpoint, credentials")
    return RefusedError(f"{what}: {answer}").with_hint(hint)
