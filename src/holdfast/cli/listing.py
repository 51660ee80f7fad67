"""``list`` and ``show``: what checkpoints there are, and what one of them holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.options import json_option, store_option
from holdfast.cli.output import Output, short_id, size_text, time_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.cli.entries import Entry
    from holdfast.errors import HoldfastError
    from holdfast.manifest import CheckpointManifestV2, Engine
    from holdfast.store import NumberedCheckpointStore


@click.command("list")
@store_option
@json_option
def list_command(store_url: str, as_json: bool) -> None:
    """List the checkpoints of a store.

    Oldest first. The status is committed, pending (a sink has not confirmed its output), failed (a sink
    refused it), abandoned (a restore went back behind it) or corrupt. Exits 10 where there is no store.

    \b
    Examples:
      holdfast list --store ./checkpoints/orders/per_minute
      holdfast list --store s3://lake/holdfast/orders/per_minute --json
    """
    from holdfast.cli.entries import Catalog
    from holdfast.cli.opening import EmptyStoreError, open_any
    from holdfast.store import NumberedCheckpointStore

    output = Output(as_json=as_json)
    try:
        store = open_any(store_url)
    except EmptyStoreError:
        output.document([])
        raise
    if isinstance(store, NumberedCheckpointStore):
        from holdfast.cli.numbered import NumberedCatalog

        entries, problems = list(NumberedCatalog(store).entries()), {}
    else:
        catalog = Catalog(store)
        entries, problems = list(catalog.entries()), dict(catalog.history.problems)
    output.document([entry.document() for entry in entries])
    _print_table(output, entries)
    _warn_of_damage(output, problems, entries)


@click.command("show")
@click.argument("checkpoint", metavar="[ID]", default="latest")
@store_option
@click.option("--manifest", "whole", is_flag=True, help="Print the whole manifest, as JSON.")
@json_option
def show_command(checkpoint: str, store_url: str, whole: bool, as_json: bool) -> None:
    """Show one checkpoint: positions, state, sinks, sizes.

    ID is latest (the default), an id or at least 4 digits from either end of one, epoch:41 or batch:40.

    \b
    Examples:
      holdfast show --store ./checkpoints/orders/per_minute
      holdfast show epoch:41 --store ./checkpoints/orders/per_minute --json
    """
    from holdfast.cli.entries import Catalog
    from holdfast.cli.opening import open_any
    from holdfast.errors import CheckpointNotFoundError
    from holdfast.store import NumberedCheckpointStore

    output = Output(as_json=as_json)
    store = open_any(store_url)
    if isinstance(store, NumberedCheckpointStore):
        _show_numbered(output, store, checkpoint, whole=whole)
        return
    catalog = Catalog(store)
    id = catalog.find(checkpoint)
    manifest = store.load_by_id(id)  # raises CorruptError: showing half of it would pass for all of it
    if manifest is None:
        raise CheckpointNotFoundError(id).with_hint("holdfast verify")
    if whole:
        click.echo(manifest.to_json().decode())
        return
    entry = catalog.entry(id)
    output.document(entry.document())
    _print_details(output, entry, manifest)


def _show_numbered(output: Output, store: NumberedCheckpointStore, checkpoint: str, *, whole: bool) -> None:
    from holdfast.cli.numbered import NumberedCatalog, print_numbered
    from holdfast.errors import CheckpointNotFoundError

    catalog = NumberedCatalog(store)
    number = catalog.find(checkpoint)
    manifest = store.load_by_id(number)
    if manifest is None:
        raise CheckpointNotFoundError(number).with_hint("holdfast list")
    if whole:
        click.echo(manifest.to_json().decode())
        return
    entry = catalog.entry(number)
    output.document(entry.document())
    print_numbered(output, entry, manifest)


def _print_table(output: Output, entries: list[Entry]) -> None:
    output.table(
        {
            "ID": "left",
            "EPOCH": "right",
            "BATCH": "right",
            "TIME": "left",
            "KIND": "left",
            "SIZE": "right",
            "STATUS": "left",
            "TAGS": "left",
        },
        [
            (
                short_id(entry.checkpoint_id),
                _or_dash(entry.epoch),
                _or_dash(entry.batch_id),
                "-" if entry.timestamp_ms is None else time_text(entry.timestamp_ms),
                entry.kind,
                "-" if entry.total_size_bytes is None else size_text(entry.total_size_bytes),
                entry.status,
                " ".join(entry.tags),
            )
            for entry in entries
        ],
    )


def _warn_of_damage(output: Output, problems: Mapping[int, HoldfastError], entries: list[Entry]) -> None:
    for n, error in problems.items():
        output.warn(f"ledger record {n} cannot be read: {error}", "holdfast verify")
    corrupt = [entry for entry in entries if entry.status == "corrupt"]
    if corrupt:
        output.warn(f"{len(corrupt)} of {len(entries)} checkpoints are corrupt", "holdfast verify")


def _print_details(output: Output, entry: Entry, manifest: CheckpointManifestV2) -> None:
    engine = manifest.engine
    output.fields(
        {
            "checkpoint": entry.checkpoint_id,
            "epoch": entry.epoch,
            "batch": entry.batch_id,
            "time": time_text(manifest.timestamp_ms),
            "kind": entry.kind,
            "status": entry.status,
            "tags": " ".join(entry.tags),
            "parent": manifest.parent_id or "none: it stands alone",
            "size": size_text(manifest.total_size_bytes),
            "watermark": None if manifest.watermark is None else time_text(manifest.watermark),
            "generation": manifest.generation or None,
            "query": engine and engine.query_id,
            "engine": engine and f"{engine.name} {engine.version or ''}".strip(),
            "state": _state(engine),
            "shuffle partitions": engine and engine.shuffle_partitions,
            "pipeline hash": manifest.pipeline_hash and f"{manifest.pipeline_hash:016x}",
            "seal": manifest.seal,
        }
    )
    for name, source in manifest.source_offsets.items():
        output.line(f"\nsource {name} ({source.source_type}) reads next from")
        output.fields({f"  {key}": value for key, value in source.offsets.items()})
    for operator, held in manifest.operators.items():
        known = engine.operators.get(operator) if engine else None
        deltas = sum(partition.is_delta for partition in held.partitions)
        output.line(
            f"\noperator {operator}{f' ({known})' if known else ''}: {len(held.partitions)} partitions, "
            f"{deltas} of them deltas, {size_text(sum(one.size_bytes for one in held.partitions))}"
        )
    if manifest.sink_commit_statuses:
        output.line()
    for name, status in manifest.sink_commit_statuses.items():
        output.line(f"sink {name}: {status if status.is_failed else str(status).lower()}")


def _state(engine: Engine | None) -> str | None:
    if engine is None or engine.state_provider is None:
        return None
    return f"{engine.state_provider.rpartition('.')[2]}, format {engine.state_format}"


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)
