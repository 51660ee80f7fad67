"""The async façade: sessions belong to tasks, the loop is never blocked, a cancellation rolls back first."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import ForeignSessionError, InvalidInputError, NoActiveSessionError
from holdfast.positions import Marker, SourceCheckpoint, SourceCheckpointStore, aio, open_positions


class Gate:
    """Holds a store's method, in its thread, until it is opened."""

    def __init__(self, store: SourceCheckpointStore, method: str, *, after: bool = False) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()
        self.done = threading.Event()
        real: Callable[..., Any] = getattr(store, method)

        def held(*args: Any) -> Any:
            result = real(*args) if after else None
            self.entered.set()
            assert self.opened.wait(10), "the gate was never opened"
            result = result if after else real(*args)
            self.done.set()
            return result

        setattr(store, method, held)

    async def reached(self) -> None:
        await asyncio.to_thread(self.entered.wait, 10)
        assert self.entered.is_set()


@asynccontextmanager
async def opened(place: Path) -> AsyncIterator[tuple[aio.SourceCheckpointStore, SourceCheckpointStore]]:
    with open_positions(place, "q", sync=False) as plain:
        yield aio.SourceCheckpointStore(plain), plain


async def cancelled(task: asyncio.Task[Any]) -> None:
    with pytest.raises(asyncio.CancelledError):
        await task


def test_every_method_is_there_and_awaited(tmp_path: Path) -> None:
    async def use() -> None:
        async with await aio.open_positions(str(tmp_path), "q") as store:
            assert store.is_persistent() is True
            async with store.session() as session:
                await store.stage_checkpoint("s", 1, b"p", guard="allow")
                await store.stage_result_sequence("q", 2)
                await session.commit()
            await store.write_config_hash(3)
            await store.write_marker(Marker.BOOTSTRAPPED)
            await store.write_marker(Marker.RESETTING)
            await store.delete_marker(Marker.RESETTING)
            await store.write_result_sequence("other", 4)

            assert await store.read_checkpoint("s") == SourceCheckpoint(1, b"p")
            assert await store.read_all_checkpoints() == {"s": SourceCheckpoint(1, b"p")}
            assert await store.read_config_hash() == 3
            assert await store.read_result_sequence("q") == 2
            assert await store.read_result_sequence("other") == 4
            assert await store.read_markers() == {Marker.BOOTSTRAPPED}
            await store.clear_checkpoints()
            assert await store.read_generation() == 1
        with pytest.raises(InvalidInputError):
            await store.read_config_hash()

    asyncio.run(use())


def test_leaving_does_not_commit_and_errors_pass(tmp_path: Path) -> None:
    async def use() -> None:
        async with opened(tmp_path) as (store, plain):

            async def fail() -> None:
                async with store.session():
                    await store.stage_checkpoint("s", 1)
                    raise KeyError

            with pytest.raises(KeyError):
                await fail()
            session = store.session()
            with pytest.raises(NoActiveSessionError):
                await session.commit()
            await session.rollback()
            async with store.session() as session:
                await store.stage_checkpoint("s", 1)
                await session.rollback()

            assert plain.read_all_checkpoints() == {}

    asyncio.run(use())


def test_another_task_is_a_stranger_and_so_is_a_child(tmp_path: Path) -> None:
    async def use() -> None:
        async with opened(tmp_path) as (store, _):
            async with store.session() as session:
                await store.stage_checkpoint("s", 1)

                async def child() -> Any:
                    for call in (
                        lambda: store.session().begin(),
                        session.commit,
                        session.rollback,
                        lambda: store.stage_checkpoint("s", 2),
                    ):
                        with pytest.raises(ForeignSessionError):
                            await call()
                    return await store.read_checkpoint("s")

                assert await asyncio.create_task(child()) is None
                assert await store.read_checkpoint("s") == SourceCheckpoint(1, None)
                await session.commit()

            assert await asyncio.create_task(store.read_checkpoint("s")) == SourceCheckpoint(1, None)

    asyncio.run(use())


def test_a_thread_is_a_stranger_to_a_task_and_a_task_to_a_thread(tmp_path: Path) -> None:
    async def use() -> None:
        async with opened(tmp_path) as (store, plain):
            async with store.session():
                with pytest.raises(ForeignSessionError):
                    plain.stage_checkpoint("s", 1)
            with plain.session(), pytest.raises(ForeignSessionError):
                await store.stage_checkpoint("s", 1)

    asyncio.run(use())


def test_sessions_of_many_tasks_come_one_after_the_other(tmp_path: Path) -> None:
    async def work(store: aio.SourceCheckpointStore, name: str) -> int:
        refused = 0
        while True:
            try:
                async with store.session() as session:
                    await store.stage_checkpoint(name, 1)
                    await session.commit()
                    return refused
            except ForeignSessionError:
                refused += 1
                await asyncio.sleep(0)

    async def use() -> None:
        async with opened(tmp_path) as (store, plain):
            await asyncio.gather(*(work(store, f"s{n}") for n in range(8)))

            assert set(plain.read_all_checkpoints()) == {f"s{n}" for n in range(8)}

    asyncio.run(use())


def test_the_loop_runs_on_while_a_commit_waits(tmp_path: Path) -> None:
    async def use() -> None:
        async with opened(tmp_path) as (store, plain):
            gate = Gate(plain, "_write_session")
            async with store.session() as session:
                await store.stage_checkpoint("s", 1)
                committing = session.commit()
                # In this very task: the commit is awaited, and the timer must still tick.
                asyncio.get_running_loop().call_later(0.01, gate.opened.set)
                await committing

            assert plain.read_checkpoint("s") == SourceCheckpoint(1, None)

    asyncio.run(use())


@pytest.mark.parametrize("after", [False, True], ids=["before it began", "after it began"])
def test_cancelled_while_entering(tmp_path: Path, after: bool) -> None:
    async def block(store: aio.SourceCheckpointStore) -> None:
        async with store.session():
            raise AssertionError("never entered")

    async def use() -> None:
        async with opened(tmp_path) as (store, plain):
            gate = Gate(plain, "_begin", after=after)
            task = asyncio.create_task(block(store))
            await gate.reached()
            task.cancel()
            await asyncio.sleep(0.01)
            assert not task.done(), "it must not leave its thread behind"
            gate.opened.set()
            await cancelled(task)

            plain.clear_checkpoints()  # refused while a session is open

    asyncio.run(use())


def test_cancelled_inside(tmp_path: Path) -> None:
    async def block(store: aio.SourceCheckpointStore, inside: asyncio.Event) -> None:
        async with store.session():
            await store.stage_checkpoint("s", 1)
            inside.set()
            await asyncio.sleep(60)

    async def use() -> None:
        async with opened(tmp_path) as (store, plain):
            inside = asyncio.Event()
            task = asyncio.create_task(block(store, inside))
            await inside.wait()
            task.cancel()
            await cancelled(task)

            assert plain.read_all_checkpoints() == {}
            plain.clear_checkpoints()

    asyncio.run(use())


def test_cancelled_while_staging(tmp_path: Path) -> None:
    async def block(store: aio.SourceCheckpointStore) -> None:
        async with store.session() as session:
            await store.stage_checkpoint("s", 1)
            await session.commit()

    async def use() -> None:
        async with opened(tmp_path) as (store, plain):
            gate = Gate(plain, "_committed_sequence")
            task = asyncio.create_task(block(store))
            await gate.reached()
            task.cancel()
            task.cancel()
            gate.opened.set()
            await cancelled(task)

            assert plain.read_all_checkpoints() == {}
            plain.clear_checkpoints()

    asyncio.run(use())


@pytest.mark.parametrize("after", [False, True], ids=["before it wrote", "after it wrote"])
def test_cancelled_while_committing_the_commit_is_seen_to_its_end(tmp_path: Path, after: bool) -> None:
    async def block(store: aio.SourceCheckpointStore) -> None:
        async with store.session() as session:
            await store.stage_checkpoint("s", 1)
            await session.commit()

    async def use() -> None:
        async with opened(tmp_path) as (store, plain):
            gate = Gate(plain, "_write_session", after=after)
            task = asyncio.create_task(block(store))
            await gate.reached()
            task.cancel()
            await asyncio.sleep(0.01)
            assert not task.done()
            gate.opened.set()
            await cancelled(task)

            assert gate.done.is_set()
            assert plain.read_checkpoint("s") == SourceCheckpoint(1, None)
            plain.clear_checkpoints()

    asyncio.run(use())


def test_cancelled_while_leaving_the_rollback_is_seen_to_its_end(tmp_path: Path) -> None:
    async def block(store: aio.SourceCheckpointStore) -> None:
        async with store.session():
            await store.stage_checkpoint("s", 1)

    async def use() -> None:
        async with opened(tmp_path) as (store, plain):
            gate = Gate(plain, "_rollback")
            task = asyncio.create_task(block(store))
            await gate.reached()
            task.cancel()
            await asyncio.sleep(0.01)
            task.cancel()
            assert not task.done()
            gate.opened.set()
            await cancelled(task)

            assert gate.done.is_set()
            assert plain.read_all_checkpoints() == {}
            plain.clear_checkpoints()

    asyncio.run(use())


def test_a_time_limit_around_a_block_rolls_back(tmp_path: Path) -> None:
    async def use() -> None:
        async with opened(tmp_path) as (store, plain):

            async def dawdle() -> None:
                async with store.session():
                    await store.stage_checkpoint("s", 1)
                    await asyncio.sleep(60)

            with pytest.raises(TimeoutError):
                await asyncio.wait_for(dawdle(), timeout=0.2)

            assert plain.read_all_checkpoints() == {}
            plain.clear_checkpoints()

    asyncio.run(use())


def test_cancelled_while_opening_leaves_nothing_open(tmp_path: Path) -> None:
    pytest.importorskip("rocksdict")

    async def use() -> None:
        task = asyncio.create_task(aio.open_positions(f"rocksdb://{tmp_path}", "q"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        await cancelled(task)

    asyncio.run(use())

    # RocksDB locks its directory, so this would fail if the cancelled one were still open.
    open_positions(f"rocksdb://{tmp_path}", "q").close()
