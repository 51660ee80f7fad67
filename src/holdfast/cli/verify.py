"""``verify``: is everything there, and is it what was written?"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.exit_codes import ExitCode
from holdfast.cli.options import json_option, store_option
from holdfast.cli.output import Output
from holdfast.cli.subsets import Subset, subset, taken

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.manifest import ValidationIssue
    from holdfast.store import NumberedCheckpointStore, PartitionedCheckpointStore
    from holdfast.store.verifying import Problem


@click.command("verify")
@click.argument("checkpoints", metavar="[ID]...", nargs=-1)
@store_option
@click.option("--read-data", is_flag=True, help="Also read and hash every byte, not only names and sizes.")
@click.option(
    "--read-data-subset",
    "chosen",
    callback=subset,
    metavar="SHARE",
    help='Read so much, such as "5%": the next run reads the next part. Or a part itself: "3/20".',
)
@json_option
def verify_command(
    checkpoints: tuple[str, ...], store_url: str, read_data: bool, chosen: Subset | None, as_json: bool
) -> int:
    """Check every record, manifest and object of a store.

    Without an ID: every ledger record, every manifest, and that each object one of them names is there
    with its size; --read-data also reads and hashes every byte. With IDs, those checkpoints are read to
    their last byte, the chains they stand on included. Exits 20 if anything is corrupt or missing.

    --read-data-subset 5% reads a twentieth of the objects, and twenty runs have read each of them once.
    Which part is next is kept in $XDG_STATE_HOME (~/.local/state) on this machine, never in the store.

    \b
    Examples:
      holdfast verify --store ./checkpoints/orders/per_minute --read-data
      holdfast verify --store ./checkpoints/orders/per_minute --read-data-subset 5%
      holdfast verify latest epoch:41 --store ./checkpoints/orders/per_minute
    """
    from holdfast.cli.opening import open_any

    if chosen is not None and (read_data or checkpoints):
        raise click.UsageError("--read-data-subset reads a part of the store: not all of it, nor one ID")
    output = Output(as_json=as_json)
    store = open_any(store_url)
    if checkpoints:
        return _verify_some(output, store, checkpoints)
    with taken(chosen, store_url) if chosen is not None else nullcontext() as part:
        parts = None if part is None or chosen is None else (part, chosen.parts)
        return _verify_all(output, store, read_data=read_data, part=parts)


def _verify_all(
    output: Output,
    store: PartitionedCheckpointStore | NumberedCheckpointStore,
    *,
    read_data: bool,
    part: tuple[int, int] | None,
) -> int:
    from holdfast.cli.progress import telling
    from holdfast.store.sampling import one_part
    from holdfast.store.verifying import verify_store

    with telling("verifying") as progress:
        report = verify_store(
            store,
            read_data=read_data or part is not None,
            only=None if part is None else one_part(*part),
            progress=progress,
        )
    problems = [_document(problem) for problem in report.problems]
    warnings = [_document(warning) for warning in report.warnings]
    subset_read = {} if part is None else {"part": part[0], "parts": part[1]}
    output.document(
        {
            "ok": report.ok,
            "examined": report.examined,
            "problems": problems,
            "warnings": warnings,
            **subset_read,
        }
    )
    for warning in warnings:
        output.warn(f"{warning['code']}: {warning['message']}", warning["hint"])
    how = "read to the last byte" if read_data else "names and sizes; --read-data reads every byte"
    if part is not None:
        how = f"names and sizes; part {part[0]} of {part[1]} read to the last byte"
    return _conclude(output, problems, f"{report.examined} objects ({how})")


def _verify_some(
    output: Output, store: PartitionedCheckpointStore | NumberedCheckpointStore, selectors: tuple[str, ...]
) -> int:
    problems: list[dict[str, Any]] = []
    warnings: list[dict[str, Any]] = []
    for id, key, issues in _validated(store, selectors):
        for issue in issues:
            found = {
                "code": issue.code,
                "message": f"checkpoint {id}: {issue.message}",
                "key": key,
                "hint": None,
            }
            (problems if issue.severity == "error" else warnings).append(found)
    output.document(
        {"ok": not problems, "examined": len(selectors), "problems": problems, "warnings": warnings}
    )
    for warning in warnings:
        output.warn(f"{warning['code']}: {warning['message']}")
    return _conclude(output, problems, f"{len(selectors)} checkpoints, read to the last byte")


def _validated(
    store: PartitionedCheckpointStore | NumberedCheckpointStore, selectors: tuple[str, ...]
) -> Iterator[tuple[str, str, tuple[ValidationIssue, ...]]]:
    """Each checkpoint that was asked for: its id, where its manifest lies, and what is wrong with it."""
    from holdfast.cli.entries import Catalog
    from holdfast.cli.numbered import NumberedCatalog
    from holdfast.store import NumberedCheckpointStore

    if isinstance(store, NumberedCheckpointStore):
        numbered = NumberedCatalog(store)
        for number in [numbered.find(selector) for selector in selectors]:
            key = store.find_manifest_key(number) or store.layout.manifest_keys(number)[0]
            yield str(number), key, store.validate_checkpoint(number).issues
        return
    catalog = Catalog(store)
    for id in [catalog.find(selector) for selector in selectors]:
        yield str(id), store.paths.manifest(id), store.validate_checkpoint(id).issues


def _document(problem: Problem) -> dict[str, Any]:
    return {"code": problem.code, "message": problem.message, "key": problem.key, "hint": problem.hint}


def _conclude(output: Output, problems: list[dict[str, Any]], examined: str) -> int:
    for problem in problems:
        output.line(f"{problem['code']}: {problem['key']}: {problem['message']}")
        if problem["hint"]:
            output.line(f"  hint: {problem['hint']}")
    if problems:
        output.line(f"{len(problems)} problems in {examined}")
        output.note("hint: holdfast recover --dry-run says what a start would do about it")
        return ExitCode.CORRUPT
    output.line(f"ok: {examined}")
    return ExitCode.OK
