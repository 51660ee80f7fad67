"""ObjectBlobs keeps the contract against every server, and the probe refuses the one that does not."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import ClassVar

import pytest
from object_servers import ObjectServer, ObjectServers

from holdfast.blobs import BlobStore, PrefixedBlobs, RetryingBlobs, open_blobs, probe
from holdfast.blobs.objects import ObjectBlobs
from holdfast.errors import InvalidInputError, StoreUnavailableError
from holdfast.testing import BlobSuite
from holdfast.testing.blob_suite import ORDERED_KEYS

pytestmark = pytest.mark.services

_numbers = itertools.count()


class ObjectSuite(BlobSuite):
    SERVER: ClassVar[str]
    #: Whether the first write to a bucket that is missing makes it.
    MAKES_BUCKETS: ClassVar[bool] = False

    @pytest.fixture
    def server(self, object_server: ObjectServers) -> ObjectServer:
        return object_server(self.SERVER)

    @pytest.fixture
    def bucket(self, server: ObjectServer) -> ObjectBlobs:
        return ObjectBlobs(server.url, **server.options)

    @pytest.fixture
    def blobs(self, bucket: ObjectBlobs) -> BlobStore:
        return PrefixedBlobs(bucket, f"test-{next(_numbers)}/")

    def test_the_probe_accepts_it_and_leaves_nothing(self, blobs: BlobStore) -> None:
        probe(blobs)

        assert list(blobs.list("")) == []

    def test_a_url_with_a_path_opens_that_part_of_the_bucket(
        self, server: ObjectServer, bucket: ObjectBlobs
    ) -> None:
        opened = open_blobs(f"{server.url}/team/orders", **server.options)

        opened.put("ledger/000000000001.json", b"{}")

        assert bucket.get("team/orders/ledger/000000000001.json") == b"{}"
        assert [info.key for info in opened.list("")] == ["ledger/000000000001.json"]
        bucket.delete("team/orders/ledger/000000000001.json")

    def test_a_bucket_that_is_missing_is_never_an_empty_store(self, server: ObjectServer) -> None:
        scheme = server.url.partition("://")[0]
        reads: list[Callable[[BlobStore], object]] = [
            lambda blobs: blobs.get("key"),
            lambda blobs: blobs.get_range("key", 0, 1),
            lambda blobs: blobs.head("key"),
            lambda blobs: list(blobs.list("")),
        ]
        writes: list[Callable[[BlobStore], object]] = [
            lambda blobs: blobs.create("key", b""),
            lambda blobs: blobs.put("key", b""),
            lambda blobs: blobs.delete("key"),
        ]
        for call in reads if self.MAKES_BUCKETS else reads + writes:
            with pytest.raises(StoreUnavailableError, match="no-such-bucket") as caught:
                call(ObjectBlobs(f"{scheme}://no-such-bucket", **server.options))
            assert caught.value.hint


class TestMoto(ObjectSuite):
    SERVER = "moto"
    ROUNDS = 5


class TestSeaweedFS(ObjectSuite):
    SERVER = "seaweedfs"
    ROUNDS = 5
    MAKES_BUCKETS = True
    # It keeps objects as files in directories.
    ORDERED: ClassVar[list[str]] = [
        key for key in ORDERED_KEYS if not any(other.startswith(key + "/") for other in ORDERED_KEYS)
    ]


class TestAzurite(ObjectSuite):
    SERVER = "azurite"
    ROUNDS = 5


class TestGcs(ObjectSuite):
    SERVER = "gcs"


class TestRetryingBlobs(BlobSuite):
    """The wrapper that everyone gets changes nothing on a good day."""

    @pytest.fixture
    def blobs(self, object_server: ObjectServers) -> BlobStore:
        server = object_server("gcs")
        bucket = RetryingBlobs(ObjectBlobs(server.url, **server.options))
        return PrefixedBlobs(bucket, f"test-{next(_numbers)}/")


def test_a_store_that_ignores_conditions_is_refused_by_the_probe(object_server: ObjectServers) -> None:
    server = object_server("rclone")
    blobs = ObjectBlobs(server.url, **server.options)
    blobs.create("taken", b"first")
    blobs.create("taken", b"second")  # if this fails, the server has learned it: find a worse one

    with pytest.raises(InvalidInputError, match="ignores conditional writes"):
        probe(blobs)
