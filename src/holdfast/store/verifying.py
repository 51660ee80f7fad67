"""Everything in a store, looked at: every record, every manifest, each object named. Changes nothing,
repairs nothing.

``problems`` are damage: something is named and missing, or its bytes are not the ones that were written.
``warnings`` are leftovers of attempts that died: nobody reads them, and a clean-up removes them. With
``read_data`` no bit of a store is out of reach, except in the hint ``_latest``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from holdfast.errors import CorruptError, HoldfastError, KeyNotFoundError, UnsupportedFormatError
from holdfast.ids import CheckpointId
from holdfast.layout import boundary_key, boundary_number, ledger_key, ledger_number
from holdfast.ledger import History, Ledger, LogObject, SavepointRecord, is_decision
from holdfast.manifest import CheckpointManifestV2
from holdfast.manifest.checks import check_v2
from holdfast.manifest.v2 import find_restyled, read_sealed
from holdfast.store.findings import Problem, VerifyReport
from holdfast.store.naming import Named, named_by
from holdfast.store.numbered import NumberedCheckpointStore
from holdfast.store.objects import ObjectReader, measured, mismatch
from holdfast.store.orphans import keys_of
from holdfast.store.validating import find_chain_faults, object_faults
from holdfast.store.verifying_numbered import verify_numbered

__all__ = ["Problem", "VerifyReport", "verify_store"]

if TYPE_CHECKING:
    from holdfast.store.partitioned import PartitionedCheckpointStore


@dataclass(slots=True)
class _Verifier:
    store: PartitionedCheckpointStore
    history: History
    objects: ObjectReader
    reads: Callable[[str], bool]
    progress: Callable[[str], None]
    examined: int = 0
    known: set[str] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)


def verify_store(
    store: PartitionedCheckpointStore | NumberedCheckpointStore,
    *,
    read_data: bool,
    only: Callable[[str], bool] | None = None,
    progress: Callable[[str], None] | None = None,
) -> VerifyReport:
    """Check the whole store. ``progress`` is told each object's key before it is looked at.

    Raises only where the store does not answer. Without ``read_data`` objects are seen by name and size,
    and with it so are those that ``only`` denies. Records and manifests are always read.
    """
    reads = (only or _all) if read_data else _none
    if isinstance(store, NumberedCheckpointStore):
        return verify_numbered(store, reads=reads, progress=progress or _ignore)
    # A ledger and a reader of its own: what somebody remembers of the bytes proves nothing about them.
    verifier = _Verifier(
        store,
        Ledger(store.blobs).read(),
        ObjectReader(store.blobs, store.paths),
        reads,
        progress or _ignore,
    )
    _verify_ledger(verifier)
    for named in _all_checkpoints(verifier):
        _verify_checkpoint(verifier, named)
    _verify_kept_logs(verifier)
    _find_strays(verifier)
    return VerifyReport(verifier.examined, tuple(verifier.problems), tuple(verifier.warnings))


def _verify_ledger(verifier: _Verifier) -> None:
    history = verifier.history
    for number in sorted(history.numbers()):
        key = ledger_key(number)
        _look_at(verifier, key)
        error = history.slot(number).error
        if error is not None:
            code = "ledger-hole" if number in history.holes else "ledger-record"
            hint = (
                "holdfast recover --dry-run says what can be done; holdfast log shows the records around it"
            )
            _report(verifier, code, error, hint)
    boundary = history.boundary
    if boundary.n:
        _look_at(verifier, boundary_key(boundary.n))


def _all_checkpoints(verifier: _Verifier) -> Iterator[Named]:
    """Everything that any record makes a checkpoint, abandoned ones included, and not what is pruned."""
    history = verifier.history
    if history.head == 0:
        yield from (found for found in verifier.store.named() if isinstance(found, Named))
        return
    pruned = history.pruned()
    for record in history.records.values():
        named = named_by(record)
        if named is not None and str(named.id) not in pruned:
            yield named
        if isinstance(record, SavepointRecord):
            _verify_presence(verifier, record.key, "a savepoint's record names it, and it is missing")


def _verify_checkpoint(verifier: _Verifier, named: Named) -> None:
    store = verifier.store
    key = store.paths.manifest(named.id)
    if key in verifier.known:
        return
    try:
        data, key = store.manifest_bytes(named.id)
        _look_at(verifier, key)
        manifest = read_sealed(data, key, expected_seal=named.seal)
        restyled = find_restyled(data, key)
    except (CorruptError, UnsupportedFormatError) as error:
        _look_at(verifier, key)
        # What this manifest named is not known any more, so nothing of it is called a stray.
        verifier.known.update(info.key for info in store.blobs.list(f"{store.paths.base_prefix}{named.id}"))
        _report(verifier, "manifest", error, _way_back(named.id))
        return
    if restyled is not None:
        verifier.problems.append(Problem("manifest-form", restyled, key, _way_back(named.id)))
    if manifest.checkpoint_id != named.id:
        message = f"it holds the manifest of checkpoint {manifest.checkpoint_id}"
        verifier.problems.append(Problem("manifest", message, key, _way_back(named.id)))
    for issue in check_v2(manifest):
        # That a sink is still pending is a state, not damage; and a foreign manifest has no seal to lose.
        if issue.severity == "error":
            verifier.problems.append(Problem(issue.code, issue.message, key, _way_back(named.id)))
    links, broken = find_chain_faults(store, manifest)
    verifier.problems += [Problem(issue.code, issue.message, key, _way_back(named.id)) for issue in broken]
    _verify_objects(verifier, manifest)
    for child, link in pairwise(links):
        # Every other parent is named by a record of its own. These are from before there was a ledger.
        if verifier.history.head and verifier.history.naming(link.checkpoint_id) is None:
            _verify_checkpoint(verifier, Named(link.checkpoint_id, link.epoch, child.parent_seal, 0))


def _verify_objects(verifier: _Verifier, manifest: CheckpointManifestV2) -> None:
    for key in sorted(keys_of(verifier.store, manifest)):
        _look_at(verifier, key)
    for fault in object_faults(verifier.objects, manifest, reads=verifier.reads):
        hint = f"checkpoint {manifest.checkpoint_id} and its children depend on it; {_way_back(None)}"
        _report(verifier, "object", fault, hint)


def _verify_kept_logs(verifier: _Verifier) -> None:
    """The long log files that records name: what an epoch read is read again from these."""
    for record in verifier.history.records.values():
        if not is_decision(record):
            continue
        for log in record.logs.values():
            if not isinstance(log, LogObject):
                continue
            _look_at(verifier, log.key)
            try:
                size, sha256 = measured(verifier.store.blobs, log.key, read_data=verifier.reads(log.key))
                reason = mismatch(size, sha256, log.size_bytes, log.sha256)
            except KeyNotFoundError:
                reason = "a ledger record names it, and it is missing"
            if reason is not None:
                hint = (
                    f"epoch {record.epoch} cannot be replayed without it; its own checkpoint is not affected"
                )
                verifier.problems.append(Problem("log", reason, log.key, hint))


def _verify_presence(verifier: _Verifier, key: str, missing: str) -> None:
    _look_at(verifier, key)
    if verifier.store.blobs.head(key) is None:
        verifier.problems.append(Problem("savepoint", missing, key, "take a new savepoint"))


def _find_strays(verifier: _Verifier) -> None:
    """What lies there and is named by nobody. Not damage; but nobody vouches for its bytes either."""
    pruned = verifier.history.pruned()
    for info in verifier.store.blobs.list(""):
        if info.key in verifier.known or info.key == verifier.store.paths.latest_pointer():
            continue
        owner = verifier.store.paths.owner(info.key)
        if info.key in pruned or (owner is not None and str(owner) in pruned):
            message, hint = "it is pruned, and still lies there", "holdfast prune deletes it"
        elif ledger_number(info.key) or boundary_number(info.key):
            message, hint = "it was trimmed from the ledger, and still lies there", "holdfast gc deletes it"
        else:
            message, hint = (
                "no record and no manifest names it",
                "holdfast gc deletes it once it is a day old",
            )
        verifier.warnings.append(Problem("orphan", message, info.key, hint))


def _look_at(verifier: _Verifier, key: str) -> None:
    if key not in verifier.known:
        verifier.known.add(key)
        verifier.examined += 1
        verifier.progress(key)


def _ignore(key: str) -> None:
    del key


def _all(key: str) -> bool:
    del key
    return True


def _none(key: str) -> bool:
    del key
    return False


def _report(verifier: _Verifier, code: str, error: HoldfastError, hint: str) -> None:
    key = getattr(error, "key", "")
    reason = getattr(error, "reason", str(error))
    problem = Problem(code, reason, key, hint)
    if problem not in verifier.problems:
        verifier.problems.append(problem)


def _way_back(checkpoint_id: CheckpointId | None) -> str:
    steps = "holdfast recover --dry-run shows from where recovery would go on"
    return (
        steps
        if checkpoint_id is None
        else f"{steps}; holdfast copy can bring {checkpoint_id} back from elsewhere"
    )
