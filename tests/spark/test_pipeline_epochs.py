"""Epochs that are not one micro-batch with all its state: several batches in one, and light ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from runs import (
    FIRST,
    SECOND,
    THIRD,
    YAML,
    add_file,
    add_files,
    lake_rows,
    store_of,
    sums,
    table_rows,
    updates,
    write_yaml,
)

from holdfast.blobs import FileBlobs
from holdfast.coordinator import Observer, Step, ignore
from holdfast.ledger import CheckpointRecord, EpochRecord
from holdfast.pipeline import load_yaml
from holdfast.spark.running import run_pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

GROUPED = YAML + "every: 1h\n"
LIGHT = YAML + "state_every: 1h\n"


def run(spark: SparkSession, yaml: Path, observe: Observer = ignore) -> None:
    run_pipeline(load_yaml(yaml), session=spark, observe=observe)


def assert_complete(home: Path) -> None:
    assert lake_rows(home / "out") == updates(FIRST, SECOND, THIRD)
    assert table_rows(home / "out.db") == sums(FIRST, SECOND, THIRD)


class Gone(Exception):
    """Stands for a process that ends at this step, as far as one process can show it."""


def ending_at(name: str, when: str, epoch: int) -> Observer:
    def observe(step: Step) -> None:
        if (step.name, step.when, step.epoch) == (name, when, epoch):
            raise Gone

    return observe


def test_batches_of_one_interval_are_decided_together_when_the_query_ends(
    spark: SparkSession, tmp_path: Path
) -> None:
    yaml = write_yaml(tmp_path, GROUPED)
    add_files(tmp_path / "in", FIRST, SECOND, THIRD)

    run(spark, yaml)

    (decision,) = store_of(tmp_path).ledger.read().timeline
    assert decision.epoch == 1
    assert decision.batches is not None
    assert decision.batches[0] == 0
    assert decision.batches[1] >= 2
    assert {len(receipts) for receipts in decision.receipts.values()} == {decision.batches[1] + 1}
    assert_complete(tmp_path)


def test_a_group_whose_checkpoint_is_corrupt_is_replayed_batch_by_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    yaml = write_yaml(tmp_path, GROUPED)
    add_files(tmp_path / "in", FIRST, SECOND)
    run(spark, yaml)
    store = store_of(tmp_path)
    (decision,) = store.ledger.read().timeline
    flip(store.blobs, store.paths.manifest(decision.checkpoint_id))
    add_file(tmp_path / "in", 2, THIRD)
    replayed: list[int] = []

    run(spark, yaml, lambda step: note_replay(step, replayed))

    assert decision.batches is not None
    assert replayed == list(range(decision.batches[1] + 1))
    assert_complete(tmp_path)


def test_an_open_group_is_given_up_with_its_run_and_read_again_by_the_next(
    spark: SparkSession, tmp_path: Path
) -> None:
    yaml = write_yaml(tmp_path, GROUPED)
    add_files(tmp_path / "in", FIRST, SECOND, THIRD)

    with pytest.raises(Gone):
        run(spark, yaml, ending_at("manifest", "before", 1))
    assert lake_rows(tmp_path / "out") == {}
    run(spark, yaml)

    assert_complete(tmp_path)


def test_a_light_epoch_is_one_record_and_its_state_is_rebuilt_by_replay(
    spark: SparkSession, tmp_path: Path
) -> None:
    yaml = write_yaml(tmp_path, LIGHT)
    add_files(tmp_path / "in", FIRST, SECOND)
    run(spark, yaml)
    decisions = store_of(tmp_path).ledger.read().timeline
    assert [type(decision) for decision in decisions[:2]] == [CheckpointRecord, EpochRecord]
    assert len(store_of(tmp_path).list_ids()) == 1
    add_file(tmp_path / "in", 2, THIRD)
    replayed: list[int] = []

    run(spark, yaml, lambda step: note_replay(step, replayed))

    assert replayed == [decision.batches[0] for decision in decisions[1:] if decision.batches]
    assert_complete(tmp_path)


def test_a_light_epoch_that_was_decided_is_shown_by_the_next_run(spark: SparkSession, tmp_path: Path) -> None:
    yaml = write_yaml(tmp_path, LIGHT)
    add_files(tmp_path / "in", FIRST, SECOND, THIRD)

    with pytest.raises(Gone):
        run(spark, yaml, ending_at("publish", "after", 2))
    assert lake_rows(tmp_path / "out") == updates(FIRST)
    run(spark, yaml)

    assert_complete(tmp_path)


def test_a_light_epoch_writes_one_object(spark: SparkSession, tmp_path: Path) -> None:
    yaml = write_yaml(tmp_path, LIGHT)
    add_files(tmp_path / "in", FIRST)
    run(spark, yaml)
    store = store_of(tmp_path)
    before = objects(store.blobs)
    add_file(tmp_path / "in", 1, SECOND)

    # The first epoch of a run carries state; from the second on they are light.
    add_file(tmp_path / "in", 2, THIRD)
    run(spark, yaml)

    new = objects(store.blobs) - before
    light = [d for d in store.ledger.read().timeline if isinstance(d, EpochRecord)]
    assert light
    assert not [key for key in new for one in light if str(one.checkpoint_id) in key]


def objects(blobs: object) -> set[str]:
    assert isinstance(blobs, FileBlobs)
    return {info.key for info in blobs.list("")}


def flip(blobs: object, key: str) -> None:
    assert isinstance(blobs, FileBlobs)
    data = bytearray(blobs.get(key))
    data[len(data) // 2] ^= 1
    blobs.put(key, bytes(data))


def note_replay(step: Step, replayed: list[int]) -> None:
    if (step.name, step.when) == ("replay", "after"):
        replayed.append(step.facts["batch"])
