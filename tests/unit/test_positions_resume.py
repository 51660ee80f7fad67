"""How a query starts: every rule, the order of the rules, and the filter of repeats."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest

from holdfast.errors import InvalidInputError
from holdfast.positions import (
    Marker,
    ResumeDecision,
    ResumePlan,
    SequenceDedup,
    SourceAbility,
    SourceCheckpoint,
    plan_resume,
)

RESUME, FRESH, RESET, FAIL = (
    ResumeDecision.RESUME,
    ResumeDecision.FRESH,
    ResumeDecision.RESET,
    ResumeDecision.FAIL,
)
DONE = frozenset({Marker.BOOTSTRAPPED})
ABLE = SourceAbility(can_replay=True, position_available=True)
UNASKED = SourceAbility(can_replay=True)
GONE = SourceAbility(can_replay=True, position_available=False)
DEAF = SourceAbility()
AT = {"a": SourceCheckpoint(5, b"pa"), "b": SourceCheckpoint(7, b"")}


def plan(**changes: Any) -> ResumePlan:
    """The plan of a start where all is well, but for ``changes``."""
    good: dict[str, Any] = {
        "current_hash": 1,
        "stored_hash": 1,
        "markers": DONE,
        "positions": AT,
        "sources": {"a": ABLE, "b": UNASKED},
    }
    return plan_resume(**{**good, **changes})


# -- rule by rule


def test_rule_9_all_is_well_and_every_source_goes_on_from_its_position() -> None:
    assert plan() == ResumePlan(RESUME, resume_from={"a": b"pa", "b": b""}, sequences={"a": 5, "b": 7})


def test_rule_1_what_does_not_survive_is_not_used() -> None:
    assert plan(persistent=False, sources={"a": DEAF}, markers={Marker.RESETTING}) == ResumePlan(FRESH)


@pytest.mark.parametrize("policy", ["strict", "auto_reset", "skip_gap"])
@pytest.mark.parametrize("stored", [None, 1, 2])
def test_rule_2_a_source_that_cannot_replay_fails_every_start_under_every_policy(
    policy: str, stored: int | None
) -> None:
    found = plan(
        policy=policy,
        stored_hash=stored,
        sources={"a": ABLE, "z": DEAF, "y": DEAF},
        markers={Marker.RESETTING},
    )

    assert found.decision is FAIL
    assert "'y'" in found.reasons[0]
    assert "'z'" in found.reasons[0]
    assert "'a'" not in found.reasons[0]


@pytest.mark.parametrize("stored", [None, 1, 2])
def test_rule_3_a_reset_that_was_begun_is_finished(stored: int | None) -> None:
    found = plan(markers={*DONE, Marker.RESETTING}, stored_hash=stored, sources={"a": GONE})

    assert found.decision is RESET
    assert found.reasons


def test_rule_4_an_empty_store_starts_fresh() -> None:
    assert plan(stored_hash=None, markers=(), positions={}) == ResumePlan(FRESH)


def test_rule_4_a_fresh_start_that_a_source_cannot_serve_fails_whatever_the_policy() -> None:
    found = plan(
        stored_hash=None, markers=(), positions={}, sources={"a": GONE, "b": ABLE}, policy="auto_reset"
    )

    assert found.decision is FAIL
    assert "'a'" in found.reasons[0]


@pytest.mark.parametrize(("markers", "positions"), [(DONE, {}), (DONE, AT), ((), AT)])
@pytest.mark.parametrize(
    ("policy", "expected"), [("strict", FAIL), ("skip_gap", FAIL), ("auto_reset", RESET)]
)
def test_rule_4_anything_stored_without_a_hash_is_lost(
    markers: Any, positions: Any, policy: str, expected: ResumeDecision
) -> None:
    found = plan(stored_hash=None, markers=markers, positions=positions, policy=policy)

    assert found.decision is expected
    assert found.reasons
    assert found.resume_from == found.sequences == {}


@pytest.mark.parametrize(("on_change", "expected"), [("fail", FAIL), ("reset", RESET), ("warn", RESUME)])
def test_rule_5_a_changed_configuration_does_what_was_asked_for(
    on_change: str, expected: ResumeDecision
) -> None:
    found = plan(stored_hash=2, on_change=on_change)

    assert found.decision is expected
    assert bool(found.reasons) == (expected is not RESUME)
    assert bool(found.warnings) == (expected is RESUME)


def test_rule_6_a_first_load_that_never_finished_is_begun_again() -> None:
    assert plan(markers=(), positions={}).decision is RESET


@pytest.mark.parametrize(
    ("policy", "expected"), [("strict", FAIL), ("skip_gap", FAIL), ("auto_reset", RESET)]
)
def test_rule_6_positions_without_a_finished_load_are_lost(policy: str, expected: ResumeDecision) -> None:
    assert plan(markers=(), policy=policy).decision is expected


@pytest.mark.parametrize(
    ("policy", "expected"), [("strict", FAIL), ("skip_gap", FAIL), ("auto_reset", RESET)]
)
@pytest.mark.parametrize(
    "positions",
    [{"a": AT["a"]}, {**AT, "b": SourceCheckpoint(7, None)}, {}],
    ids=["no entry", "no position", "nothing"],
)
def test_rule_7_one_source_without_a_position_is_one_too_many(
    positions: Any, policy: str, expected: ResumeDecision
) -> None:
    found = plan(positions=positions, policy=policy)

    assert found.decision is expected
    assert any("'b'" in reason for reason in found.reasons)


def test_rule_7_entries_of_sources_no_longer_configured_are_left_out_with_a_warning() -> None:
    found = plan(sources={"a": ABLE})

    assert found.decision is RESUME
    assert (found.resume_from, found.sequences) == ({"a": b"pa"}, {"a": 5})
    assert any("'b'" in warning for warning in found.warnings)


@pytest.mark.parametrize(("policy", "expected"), [("strict", FAIL), ("auto_reset", RESET)])
def test_rule_8_a_position_that_a_source_cannot_serve_is_lost(policy: str, expected: ResumeDecision) -> None:
    found = plan(sources={"a": ABLE, "b": GONE}, policy=policy)

    assert found.decision is expected
    assert "'b'" in found.reasons[0]


def test_rule_8_skip_gap_goes_on_without_it_and_keeps_its_sequence() -> None:
    found = plan(sources={"b": GONE, "a": GONE}, policy="skip_gap")

    assert found.decision is RESUME
    assert found.resume_from == {}
    assert found.sequences == {"a": 5, "b": 7}
    assert found.skipped == ("a", "b")
    assert found.warnings


# -- their order: each rule wins over all that come after it

#: For each rule: inputs for which it fits, what it decides under policy auto_reset, and what it says.
FITS: list[tuple[dict[str, Any], ResumeDecision, str]] = [
    ({"persistent": False}, FRESH, ""),
    ({"sources": {"a": DEAF, "b": GONE}}, FAIL, "cannot replay"),
    ({"markers": {Marker.RESETTING}}, RESET, "a reset was begun"),
    ({"stored_hash": None}, RESET, "without a configuration hash"),
    ({"stored_hash": 2}, FAIL, "the configuration changed"),
    ({"markers": ()}, RESET, "no first load finished"),
    ({"positions": {"a": AT["a"]}}, RESET, "has no stored entry"),
    ({"sources": {"a": ABLE, "b": GONE}}, RESET, "cannot serve the stored position"),
]


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations(range(len(FITS)), 2)))
def test_of_two_rules_that_fit_the_first_one_wins(first: int, second: int) -> None:
    winner, decision, words = FITS[first]
    loser, _, _ = FITS[second]

    # Where both set the same input, the winner's fits both: only RESETTING is set; one is deaf, one gone.
    both = plan(policy="auto_reset", **{**loser, **winner})

    assert both.decision is decision
    assert words in "".join(both.reasons)


@pytest.mark.parametrize("stored", [None, 1, 2])
@pytest.mark.parametrize("markers", [(), DONE, {Marker.RESETTING}, {*DONE, Marker.RESETTING}])
@pytest.mark.parametrize("positions", [{}, {"a": AT["a"]}, AT, {**AT, "b": SourceCheckpoint(7, None)}])
@pytest.mark.parametrize("ability", [ABLE, UNASKED, GONE, DEAF])
def test_the_promises_that_hold_for_every_start(
    stored: int | None, markers: Any, positions: Any, ability: SourceAbility
) -> None:
    for policy, on_change, persistent in itertools.product(
        ["strict", "auto_reset", "skip_gap"], ["fail", "reset", "warn"], [True, False]
    ):
        sources = {"a": ABLE, "b": ability}
        found = plan(
            stored_hash=stored,
            markers=markers,
            positions=positions,
            sources=sources,
            policy=policy,
            on_change=on_change,
            persistent=persistent,
        )

        assert bool(found.reasons) == (found.decision in (RESET, FAIL))
        if found.decision is RESUME:
            # All or nothing, and never across a doubt.
            assert set(found.sequences) == set(sources)
            assert set(found.resume_from) | set(found.skipped) == set(sources)
            assert Marker.BOOTSTRAPPED in markers
            assert Marker.RESETTING not in markers
            assert stored is not None
        else:
            assert (found.resume_from, found.sequences, found.skipped) == ({}, {}, ())
        if found.decision is FRESH and persistent:
            assert (stored, positions) == (None, {})


@pytest.mark.parametrize("words", [{"policy": "hope"}, {"on_change": "shrug"}, {"policy": None}])
def test_unknown_words_are_refused_even_where_they_would_not_matter(words: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        plan(persistent=False, **words)


def test_plans_and_abilities_are_frozen_and_decisions_are_their_words() -> None:
    for value in (plan(), ABLE):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, dataclasses.fields(value)[0].name, None)

    assert [str(each) for each in ResumeDecision] == ["resume", "fresh", "reset", "fail"]
    assert SourceAbility() == SourceAbility(can_replay=False, position_available=None)


# -- the filter of repeats


def test_events_at_or_below_the_checkpoint_are_skipped() -> None:
    dedup = SequenceDedup({"s": 5})

    assert [dedup.should_skip("s", number) for number in (4, 5, 6)] == [True, True, False]


def test_no_sequence_and_unknown_sources_always_pass() -> None:
    dedup = SequenceDedup({"s": 5})

    assert dedup.should_skip("s", None) is False
    assert dedup.should_skip("t", 0) is False
    assert SequenceDedup().should_skip("s", 0) is False


def test_advance_goes_up_only_and_knows_new_sources() -> None:
    seed = {"s": 5}
    dedup = SequenceDedup(seed)

    dedup.advance("s", 4)
    dedup.advance("t", 0)
    assert dedup.all_checkpoints() == {"s": 5, "t": 0}
    dedup.advance("s", 9)

    assert dedup.checkpoint_for("s") == 9
    assert dedup.checkpoint_for("u") is None
    assert dedup.should_skip("t", 0) is True
    assert seed == {"s": 5}
    dedup.all_checkpoints().clear()
    assert dedup.checkpoint_for("s") == 9
