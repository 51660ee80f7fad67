"""No bit of a store that a real pipeline made can turn over unseen, except in the hint ``_latest``."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import flip_table
import pytest

from holdfast.blobs import FileBlobs
from holdfast.store import PartitionedCheckpointStore
from holdfast.store.verifying import verify_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def root(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with three checkpoints of a windowed aggregation."""
    return flip_table.make_store(tmp_path_factory.mktemp("flips"), spark)


def test_each_of_300_flipped_bits_is_found_and_named(root: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    store = PartitionedCheckpointStore(FileBlobs(root))

    kinds = flip_table.look(root, flip_table.some_flips(root, 300, seed))

    assert len(store.list_ids()) == 3
    assert [str(flip) for kind in kinds.values() for flip in kind.missed] == []
    assert sum(kind.found for kind in kinds.values()) == 300
    assert set(kinds) == {"batch object", "ledger record", "manifest"}
    # Every flip was mended again, so what was found was each flip itself.
    assert verify_store(store, read_data=True).problems == ()


@pytest.mark.parametrize("kind", ["batch object", "ledger record", "manifest"])
def test_the_program_names_a_flipped_bit_and_ends_with_20(root: Path, kind: str) -> None:
    key = next(key for key in flip_table.keys_of(root) if flip_table.kind_of(key) == kind)
    flip = flip_table.Flip(key, (root / key).stat().st_size // 2, 5)

    complaints = flip_table.ask_the_program(root, flip)

    assert complaints == []
