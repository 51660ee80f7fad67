"""A v1 store, looked at from end to end. Nothing says what should be there but the manifests themselves.

So a manifest that was deleted leaves no trace, and a sidecar without a checksum can only be measured. Both
are limits of the format; a store with a ledger has neither.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.errors import CorruptError, KeyNotFoundError, UnsupportedFormatError
from holdfast.manifest import CheckpointManifest
from holdfast.manifest.checks import check_v1
from holdfast.manifest.v1 import find_restyled_v1
from holdfast.store.findings import Problem, VerifyReport
from holdfast.store.numbered import NumberedCheckpointStore
from holdfast.store.objects import measured

_WAY_BACK = "holdfast recover --dry-run shows from where recovery would go on"


def verify_numbered(
    store: NumberedCheckpointStore, *, reads: Callable[[str], bool], progress: Callable[[str], None]
) -> VerifyReport:
    """Every manifest, and the sidecar it needs; where ``reads`` denies its key, its length alone."""
    problems: list[Problem] = []
    warnings: list[Problem] = []
    known: set[str] = {store.layout.pointer}
    for number in store.list_ids():
        key = store.find_manifest_key(number) or store.layout.manifest_keys(number)[0]
        progress(key)
        known.add(key)
        state_key = store.find_state_key(number)
        if state_key is not None:
            known.add(state_key)
        try:
            manifest = store.load_by_id(number)
            restyled = find_restyled_v1(store.blobs.get(key), key)
        except (CorruptError, UnsupportedFormatError) as fault:
            problems.append(Problem("manifest", fault.reason, key, _WAY_BACK))
            continue
        except KeyNotFoundError:
            continue  # pruned since it was listed
        if restyled is not None:
            problems.append(Problem("manifest-form", restyled, key, _WAY_BACK))
        if manifest is None:
            continue
        if state_key is not None:
            progress(state_key)
        faults = _sidecar_faults(store, manifest, state_key, reads)
        place = state_key or store.layout.state_keys(number)[0]
        hint = f"checkpoint {number} depends on it; {_WAY_BACK}"
        problems += [Problem("sidecar", fault, place, hint) for fault in faults]
        problems += [
            Problem(issue.code, issue.message, key, _WAY_BACK)
            for issue in (*check_v1(manifest), *store.chain_issues(manifest))
            if issue.severity == "error"
        ]
    looked_at = len(known) - 1
    for prefix in store.layout.prefixes:
        for info in store.blobs.list(prefix):
            if info.key not in known:
                hint = "holdfast gc deletes it once it is a day old"
                warnings.append(Problem("orphan", "no manifest names it", info.key, hint))
    return VerifyReport(looked_at, tuple(dict.fromkeys(problems)), tuple(dict.fromkeys(warnings)))


def _sidecar_faults(
    store: NumberedCheckpointStore,
    manifest: CheckpointManifest,
    key: str | None,
    reads: Callable[[str], bool],
) -> list[str]:
    if not manifest.needs_sidecar():
        return []
    if key is None:
        return ["a manifest needs it, and it is missing"]
    size, sha256 = measured(store.blobs, key, read_data=reads(key))
    faults = []
    if sha256 is not None and manifest.state_checksum not in (None, sha256):
        faults.append(f"its SHA-256 is {sha256}, and {manifest.state_checksum} was recorded")
    if size < manifest.external_bytes():
        faults.append(f"it has {size} bytes, and operator state runs to byte {manifest.external_bytes()}")
    return faults
