"""The protocol under a scheduler that hates it: seeded, deterministic, no threads, no Spark.

Several runners of one flow, collectors, and a person work on one store and two sinks. Every call to
the store or a sink is a place where the scheduler may let somebody else go first, kill the caller, put
it to sleep for long (a zombie), fail the call before or after its effect, lose the reply, or land a
write later. Then the faults stop, one last runner finishes, and history is checked against I1 to I7.

    python tests/sim/test_protocol.py --seeds 200000          many; --jobs 2
    python tests/sim/test_protocol.py --seed 4711 --story     one, told step by step
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import multiprocessing
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
from greenlet import GreenletExit, getcurrent, greenlet

from holdfast.blobs import BlobInfo, BlobStore, MemoryBlobs
from holdfast.coordinator import (
    Coordinator,
    Decided,
    Epoch,
    Identity,
    Limits,
    Outcome,
    Run,
    SinkFlow,
    SinkOutcomeUnknownError,
    StagedOutputGoneError,
    epochs,
)
from holdfast.coordinator.parallel import Results
from holdfast.errors import (
    HoldfastError,
    KeyExistsError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from holdfast.ids import CheckpointId
from holdfast.ledger import Author, Decision, OutcomeRecord, new_writer
from holdfast.manifest import Receipt, SinkCommitStatus
from holdfast.store import CheckpointWriter, PartitionedCheckpointStore, parallel, writing
from holdfast.store.verifying import verify_store

BATCHES = 5
FLOW = "orders/per_minute"
SEEDS_IN_CI = 10_000
CHAIN_LIMIT = 3
#: Switches between actors before the faults stop.
TROUBLE = 400


class Violation(AssertionError):
    """An invariant did not hold."""


# --- what stands still while everything else moves ----------------------------------------------------


def rows_of(batch: int, state: str) -> list[tuple[int, int, str]]:
    """The output of a batch: it shows the state it was computed with, so wrong state shows (I4)."""
    return [(batch, number, state) for number in range(2)]


def next_state(state: str, batch: int) -> str:
    return hashlib.sha256(f"{state}/{batch}".encode()).hexdigest()[:12]


def reference() -> list[tuple[int, int, str]]:
    rows, state = [], ""
    for batch in range(BATCHES):
        state = next_state(state, batch)
        rows += rows_of(batch, state)
    return rows


# --- the scheduler -------------------------------------------------------------------------------------


class Actor:
    """One process. Dead, it does nothing more; asleep, it does it later."""

    def __init__(self, name: str, body: Callable[[Actor], None]) -> None:
        self.name = name
        self.dead = False
        self.wakes_at = 0
        self.greenlet = greenlet(lambda: body(self))


class World:
    """The store and the sinks, which outlive every actor, and the scheduler's dice."""

    def __init__(self, seed: int, story: bool = False) -> None:
        self.dice = random.Random(seed)
        self.story = story
        self.blobs = MemoryBlobs()
        self.sinks = {name: SinkState(name) for name in ("a", "b")}
        self.faults = True
        self.tick = 0
        self.clock_ms = 1_800_000_000_000
        self.landing: list[tuple[int, str, bytes]] = []
        self.actors: list[Actor] = []
        self.born = 0

    def tell(self, who: str, what: str) -> None:
        if self.story:
            print(f"{self.tick:5} {who:<12} {what}")

    def chance(self, probability: float) -> bool:
        return self.faults and self.dice.random() < probability

    def now_ms(self) -> int:
        # Clocks jump, an hour either way; nothing may depend on one (I5).
        self.clock_ms += self.dice.choice((1, 5, 3_600_000, -3_600_000))
        return self.clock_ms

    def spawn(self, kind: str, body: Callable[[Actor], None]) -> Actor:
        self.born += 1
        actor = Actor(f"{kind}-{self.born}", body)
        self.actors.append(actor)
        return actor

    def pause(self, actor: Actor) -> None:
        """Let the scheduler decide who goes on. In a dead actor nothing goes on."""
        if actor.dead:
            raise GreenletExit
        parent = getcurrent().parent
        if parent is not None:
            parent.switch()
        if actor.dead:
            raise GreenletExit

    def step(self) -> bool:
        """Run one actor to its next pause. False when nobody is left."""
        self.tick += 1
        self._land()
        alive = [actor for actor in self.actors if not actor.greenlet.dead and not actor.dead]
        if not alive:
            return False
        awake = [actor for actor in alive if actor.wakes_at <= self.tick] or alive
        actor = self.dice.choice(awake)
        if self.chance(0.01):
            self.tell(actor.name, "is killed")
            actor.dead = True
            return True
        if self.chance(0.02):
            actor.wakes_at = self.tick + self.dice.randrange(20, 200)
            self.tell(actor.name, f"falls asleep until {actor.wakes_at}")
            return True
        actor.greenlet.switch()
        return True

    def _land(self) -> None:
        """Writes whose reply was lost on the way there, arriving now."""
        for late in [late for late in self.landing if late[0] <= self.tick or not self.faults]:
            self.landing.remove(late)
            try:
                self.blobs.create(late[1], late[2])
                self.tell("network", f"lands {late[1]} late")
            except KeyExistsError:
                pass

    def bury(self) -> None:
        """Everybody who is left dies at once."""
        for actor in self.actors:
            actor.dead = True
        self.actors.clear()


class SimBlobs(BlobStore):
    """The store as one actor reaches it: over a network that may do anything but lie."""

    def __init__(self, world: World, actor: Actor) -> None:
        self._world = world
        self._actor = actor

    def get(self, key: str) -> bytes:
        with self._call(f"get {key}"):
            return self._world.blobs.get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        with self._call(f"get_range {key}"):
            return self._world.blobs.get_range(key, start, length)

    def head(self, key: str) -> BlobInfo | None:
        with self._call(f"head {key}"):
            return self._world.blobs.head(key)

    def create(self, key: str, data: Any) -> None:
        with self._call(f"create {key}"):
            if self._world.chance(0.01):
                self._world.landing.append(
                    (self._world.tick + self._world.dice.randrange(60), key, bytes(data))
                )
                raise OutcomeUnknownError(f"the reply to create {key} was lost")
            self._world.blobs.create(key, data)
            if self._world.chance(0.02):
                raise OutcomeUnknownError(f"the reply to create {key} was lost")

    def put(self, key: str, data: Any) -> None:
        with self._call(f"put {key}"):
            self._world.blobs.put(key, data)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[BlobInfo]:
        with self._call(f"list {prefix}"):
            found = list(self._world.blobs.list(prefix, start_after))
        yield from found

    def delete(self, key: str) -> None:
        with self._call(f"delete {key}"):
            self._world.blobs.delete(key)

    @contextmanager
    def _call(self, what: str) -> Iterator[None]:
        self._world.pause(self._actor)
        self._world.tell(self._actor.name, what)
        if self._world.chance(0.004):
            raise StoreUnavailableError(f"{what}: no answer")
        yield
        if not what.startswith(("create", "put")) and self._world.chance(0.002):
            raise StoreUnavailableError(f"{what}: no answer")
        self._world.pause(self._actor)


# --- sinks -----------------------------------------------------------------------------------------------


class SinkState:
    """What a sink has on its disk."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.staged: dict[tuple[int, int, str], list[Any]] = {}
        self.shown: dict[int, tuple[str, list[Any]]] = {}

    def rows(self) -> list[Any]:
        return [row for number in sorted(self.shown) for row in self.shown[number][1]]


class SimSink:
    """A sink as one actor reaches it."""

    def __init__(self, world: World, actor: Actor, state: SinkState) -> None:
        self._world = world
        self._actor = actor
        self._state = state

    def open(self, flow: SinkFlow) -> Epoch | None:
        self._call("open")
        if not self._state.shown:
            return None
        number = max(self._state.shown)
        return Epoch(number, CheckpointId.parse(self._state.shown[number][0]), 0)

    def begin(self, epoch: Epoch) -> None:
        self._call(f"begin {epoch.number}")

    def prepare(self, batch: Any, epoch: Epoch, part: int) -> Receipt:
        self._call(f"prepare {epoch.number}")
        # A second part is added to what is there; the first begins anew.
        staged = self._state.staged.get(_key(epoch), []) if part else []
        self._state.staged[_key(epoch)] = [*staged, *batch]
        self._call(f"prepared {epoch.number}")
        return {"generation": epoch.generation, "rows": len(batch)}

    def commit(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        self._call(f"commit {epoch.number}")
        self._check_decided(epoch)
        shown = self._state.shown.get(epoch.number)
        if shown is not None:
            if shown[0] != str(epoch.id):
                raise Violation(
                    f"I6: sink {self._state.name} shows {shown[0]} as epoch {epoch.number}, not {epoch.id}"
                )
            return
        generation = receipts[-1]["generation"]  # type: ignore[index,call-overload]
        staged = (int(str(generation)), epoch.number, str(epoch.id))
        if self._world.chance(0.01):
            self._world.tell(self._actor.name, f"finds {self._state.name} forgot what it staged")
            self._state.staged.pop(staged, None)
        rows = self._state.staged.get(staged)
        if rows is None:
            raise StagedOutputGoneError(self._state.name, epoch.number, "it was forgotten")
        self._state.shown[epoch.number] = (str(epoch.id), rows)
        self._call(f"committed {epoch.number}")

    def abort(self, epoch: Epoch, receipts: Sequence[Receipt]) -> None:
        self._call(f"abort {epoch.number}")
        self._state.staged.pop(_key(epoch), None)

    def outcome(self, epoch: Epoch, receipts: Sequence[Receipt]) -> Outcome:
        self._call(f"outcome {epoch.number}")
        if self._world.chance(0.02):
            return Outcome.UNKNOWN
        return Outcome.COMMITTED if epoch.number in self._state.shown else Outcome.NOT_COMMITTED

    def sweep(self, generation: int, decided: Decided) -> None:
        self._call("sweep")
        for key in list(self._state.staged):
            if key[0] < generation and not decided(key[1], CheckpointId.parse(key[2])):
                self._state.staged.pop(key, None)

    def _check_decided(self, epoch: Epoch) -> None:
        history = PartitionedCheckpointStore(self._world.blobs).ledger.read()
        decision = history.decision_of(epoch.number)
        if decision is None or decision.checkpoint_id != epoch.id:
            raise Violation(
                f"I3: sink {self._state.name} is told to show epoch {epoch.number}, which is not decided"
            )

    def _call(self, what: str) -> None:
        self._world.pause(self._actor)
        self._world.tell(self._actor.name, f"{self._state.name}: {what}")
        if self._world.chance(0.008):
            raise OSError(f"sink {self._state.name} has a bad moment")


def _key(epoch: Epoch) -> tuple[int, int, str]:
    return (epoch.generation, epoch.number, str(epoch.id))


# --- actors ------------------------------------------------------------------------------------------------


class Engine:
    """Stands for Spark: keeps state across batches, restores it from a checkpoint, runs batches again."""

    def __init__(self, store: PartitionedCheckpointStore) -> None:
        self._store = store
        self.state = ""
        self.states: dict[int, str] = {}
        self.batch = 0
        self.chain = 0

    def restore(self, base: CheckpointId | None) -> None:
        if base is None:
            return
        saved = json.loads(self._store.read_state(base, "0", 0)[-1])
        self.state, self.batch = saved["state"], saved["batch"] + 1
        self.chain = len(self._store.chain(base))

    def replay(self, decision: Decision, batch: int, logs: dict[str, str]) -> list[Any]:
        if batch != self.batch or logs.get(f"offsets/{batch}") != f"batch {batch}":
            raise Violation(f"I4: replaying batch {batch} at {self.batch} with the logs {sorted(logs)}")
        rows = self.compute()
        if logs[f"commits/{self.batch - 1}"] != self.state:
            raise Violation(f"I4: the replay of epoch {decision.epoch} left another state")
        return rows

    def compute(self) -> list[Any]:
        self.state = next_state(self.state, self.batch)
        self.states[self.batch] = self.state
        self.batch += 1
        return rows_of(self.batch - 1, self.state)

    def logs(self, first: int) -> dict[str, str]:
        """What the epoch that began with batch ``first`` read, and the state that each batch left."""
        logs = {f"offsets/{batch}": f"batch {batch}" for batch in range(first, self.batch)}
        return logs | {f"commits/{batch}": self.states[batch] for batch in range(first, self.batch)}

    def capture(self, writer: CheckpointWriter, first: int, has_parent: bool) -> None:
        delta = has_parent and self.chain < CHAIN_LIMIT
        batch = self.batch - 1
        writer.add("0", 0, json.dumps({"state": self.state, "batch": batch}).encode(), delta=delta)
        writer.logs = self.logs(first)
        self.chain = self.chain + 1 if delta else 1


def store_of(world: World, actor: Actor) -> PartitionedCheckpointStore:
    return PartitionedCheckpointStore(SimBlobs(world, actor), now_ms=world.now_ms)


def runner(world: World) -> Callable[[Actor], None]:
    """A process that runs the flow to its end. What ends it earlier is its own, unless it is a Violation."""

    def body(actor: Actor) -> None:
        try:
            run_flow(world, actor)
        except SinkOutcomeUnknownError as error:
            world.tell(actor.name, f"asks: {error}")
            answer(world, actor, error)
        except (HoldfastError, OSError) as error:
            world.tell(actor.name, f"ends: {type(error).__name__}: {error}")

    return body


def run_flow(world: World, actor: Actor) -> None:
    store = store_of(world, actor)
    sinks = {name: SimSink(world, actor, state) for name, state in world.sinks.items()}
    coordinator = Coordinator(
        store,
        FLOW,
        sinks,
        identity=Identity(7, {}),
        limits=Limits(None, None, keep_checkpoints=None),
        observe=lambda step: None,
    )
    plan = coordinator.plan()
    started = coordinator.start(plan)
    run, engine, plan = started.run, Engine(store), started.plan
    base, replays = plan.recovery.chosen, plan.recovery.replay
    if started.to_feed_again and not replays:
        base, replays = plan.to_run_last_again(store, started.to_feed_again)
    run.parent = base
    engine.restore(base)
    for decision in replays:
        replay(run, engine, decision, store, started.to_feed_again if decision == plan.last else ())
    while run.next_batch < BATCHES:
        one_epoch(run, engine, world.dice)
    run.stop()
    world.tell(actor.name, "is done")


def replay(
    run: Run, engine: Engine, decision: Decision, store: PartitionedCheckpointStore, hungry: tuple[str, ...]
) -> None:
    logs = store.ledger.read_logs(decision)
    feeding = run.feed(hungry, decision) if hungry else None
    assert decision.batches is not None
    for batch in range(decision.batches[0], decision.batches[1] + 1):
        rows = engine.replay(decision, batch, logs)
        if feeding is not None:
            feeding.take(rows)
    if feeding is not None:
        run.end_feeding(feeding)


def one_epoch(run: Run, engine: Engine, dice: random.Random) -> None:
    """One or two batches, with state or without."""
    first, has_parent = run.next_batch, run.parent is not None
    for _ in range(min(dice.choice((1, 1, 2)), BATCHES - first)):
        if engine.batch != run.next_batch:
            raise Violation(f"I4: the state is that before batch {engine.batch}, not {run.next_batch}")
        run.take(run.next_batch, nullcontext(engine.compute()))
    if dice.random() < 0.3:
        run.decide_light(engine.logs(first))
    else:
        run.decide(lambda writer: engine.capture(writer, first, has_parent))


def answer(world: World, actor: Actor, question: SinkOutcomeUnknownError) -> None:
    """The person who was asked looks into the sink, and says the truth."""
    shown = question.epoch in world.sinks[question.sink].shown
    status = SinkCommitStatus.COMMITTED if shown else SinkCommitStatus.failed("a person looked: not there")
    try:
        store_of(world, actor).ledger.append(
            OutcomeRecord(epoch=question.epoch, statuses={question.sink: status}),
            author=Author(0, new_writer()),
        )
    except HoldfastError as error:
        world.tell(actor.name, f"the answer is lost: {error}")


def collector(world: World) -> Callable[[Actor], None]:
    def body(actor: Actor) -> None:
        store = store_of(world, actor)
        try:
            store.prune(world.dice.choice((1, 2)))
            store.cleanup_orphans(0)
        except (HoldfastError, OSError) as error:
            world.tell(actor.name, f"ends: {type(error).__name__}: {error}")

    return body


# --- one seed ---------------------------------------------------------------------------------------


class _Serial:
    """A thread pool that runs everything at once and in order: the scheduler owns all concurrency."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> _Serial:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, call: Callable[..., Any], *arguments: Any) -> Any:
        from concurrent.futures import Future

        future: Future[Any] = Future()
        try:
            future.set_result(call(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future

    def shutdown(self, wait: bool = True) -> None:
        pass


def _one_after_the_other(calls: Any, **_: Any) -> Any:
    values, errors = {}, {}
    for name, call in calls.items():
        try:
            values[name] = call()
        except Exception as error:
            errors[name] = error
    return Results(values, errors)


@contextmanager
def no_threads() -> Iterator[None]:
    pools, side_by_side = (parallel.ThreadPoolExecutor, writing.ThreadPoolExecutor), epochs.side_by_side
    parallel.ThreadPoolExecutor = writing.ThreadPoolExecutor = _Serial  # type: ignore[misc,assignment]
    epochs.side_by_side = _one_after_the_other  # type: ignore[assignment]
    try:
        yield
    finally:
        parallel.ThreadPoolExecutor, writing.ThreadPoolExecutor = pools  # type: ignore[misc]
        epochs.side_by_side = side_by_side


def simulate(seed: int, story: bool = False) -> Counter[str]:
    """One history. Raises Violation; returns what happened in it, to see that it was worth it."""
    world = World(seed, story)
    with no_threads():
        _trouble(world)
        world.bury()
        world.faults = False
        _finish(world)
    return _check(world)


def _trouble(world: World) -> None:
    world.spawn("runner", runner(world))
    while world.tick < TROUBLE:
        busy = [actor for actor in world.actors if not actor.dead and not actor.greenlet.dead]
        if not any(actor.name.startswith("runner") for actor in busy) or world.chance(0.01):
            world.spawn("runner", runner(world))
        if world.chance(0.005):
            world.spawn("collector", collector(world))
        world.step()


def _finish(world: World) -> None:
    """Faults have stopped: a runner finishes, after at most a few that had to be helped."""
    for _ in range(3):
        world.spawn("last", runner(world))
        while world.step():
            if world.tick > 20_000:
                raise Violation("liveness: the last runner does not come to an end")
        if all(len(state.rows()) == len(reference()) for state in world.sinks.values()):
            return
    raise Violation(f"liveness: the sinks show {[sorted(state.shown) for state in world.sinks.values()]}")


def _check(world: World) -> Counter[str]:
    store = PartitionedCheckpointStore(world.blobs)
    history = store.ledger.read()
    decisions = list(history.timeline)
    epochs_decided = [decision.epoch for decision in decisions]
    if epochs_decided != sorted(set(epochs_decided)):
        raise Violation(f"I1, I6: epochs were decided as {epochs_decided}")
    if len({decision.checkpoint_id for decision in decisions}) != len(decisions):
        raise Violation("I6: a checkpoint id was decided twice")
    if history.abandoned:
        raise Violation(f"I1: decisions off the timeline, and nobody restored: {history.abandoned}")
    batches = [batch for first, last in _batches(decisions) for batch in range(first, last + 1)]
    if batches != list(range(BATCHES)):
        raise Violation(f"I4: batches were decided as {_batches(decisions)}")
    for name, state in world.sinks.items():
        if state.rows() != reference():
            raise Violation(f"I3, I4: sink {name} shows {state.rows()}")
        if {number: shown[0] for number, shown in state.shown.items()} != {
            decision.epoch: str(decision.checkpoint_id) for decision in decisions
        }:
            raise Violation(f"I1: sink {name} shows epochs that are not those decided")
    report = verify_store(store, read_data=True)
    if not report.ok:
        raise Violation(f"I2, I7: {[str(problem) for problem in report.problems]}")
    return Counter(record.kind for record in history.records.values())


def _batches(decisions: Sequence[Decision]) -> list[tuple[int, int]]:
    return [decision.batches for decision in decisions if decision.batches is not None]


# --- in CI, and by hand -------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.timeout(1800)
def test_no_seed_breaks_an_invariant() -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        results = pool.imap_unordered(_seed, range(SEEDS_IN_CI), chunksize=50)
        told = "python tests/sim/test_protocol.py --story --seed"
        failures = [f"{told} {seed}: {error}" for seed, error, _ in results if error is not None]

    assert failures == []


def _seed(seed: int) -> tuple[int, str | None, Counter[str]]:
    logging.disable(logging.WARNING)
    try:
        return seed, None, simulate(seed)
    except Exception as error:
        return seed, f"{type(error).__name__}: {error}", Counter()


def main() -> int:
    arguments = argparse.ArgumentParser(description="Simulate the protocol, seed by seed.")
    arguments.add_argument("--seeds", type=int, default=200_000)
    arguments.add_argument("--from", type=int, default=0, dest="first")
    arguments.add_argument("--jobs", type=int, default=2)
    arguments.add_argument("--seed", type=int)
    arguments.add_argument("--story", action="store_true")
    options = arguments.parse_args()
    if options.seed is not None:
        print(dict(simulate(options.seed, options.story)))
        return 0
    started, failed, kinds = time.monotonic(), 0, Counter[str]()
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        seeds = range(options.first, options.first + options.seeds)
        for done, (seed, error, found) in enumerate(pool.imap_unordered(_seed, seeds, chunksize=50), 1):
            kinds += found
            if error is not None:
                failed += 1
                print(f"seed {seed}: {error}", flush=True)
            if done % 10_000 == 0:
                print(f"{done} seeds, {failed} failed, {time.monotonic() - started:.0f} s", flush=True)
    print(
        f"{options.seeds} seeds, {failed} failed, {time.monotonic() - started:.0f} s; records: {dict(kinds)}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
