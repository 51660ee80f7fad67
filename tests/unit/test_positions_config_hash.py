"""The identity hash: its vectors, what it is blind to, and what it refuses."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidInputError
from holdfast.positions import config_hash
from holdfast.positions.config_hash import NOT_HASHED, canonical_projection, fnv1a_64, hash_text

VECTOR: dict[str, Any] = {
    "query": "MATCH (n) RETURN n",
    "query_language": "Cypher",
    "sources": [{"source_id": "s1", "nodes": ["A"]}],
}
FULL: dict[str, Any] = {
    "query": "MATCH (n)-[r]->(m) RETURN n, 'ü'",
    "query_language": "Cypher",
    "middleware": [
        {"kind": "map", "name": "first", "config": {"b": 1, "a": {"y": [1, 2.5, None], "x": True}}},
        {"kind": "jq", "name": "second", "config": {}},
    ],
    "sources": [
        {"source_id": "s2", "nodes": ["B", "A"], "relations": ["R2", "R1"], "pipeline": ["p2", "p1"]},
        {"source_id": "s1", "nodes": ["A"], "relations": [], "pipeline": []},
    ],
    "joins": [
        {"id": "j2", "keys": [{"label": "B", "property": "x"}, {"label": "A", "property": "y"}]},
        {"id": "j1", "keys": []},
    ],
}


def changed(path: list[Any], value: Any) -> dict[str, Any]:
    """FULL with one place changed."""
    projection = copy.deepcopy(FULL)
    place: Any = projection
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return projection


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"", 0xCBF29CE484222325),
        (b"a", 0xAF63DC4C8601EC8C),
        (b"foobar", 0x85944171F73967E8),
        (b"\xff", 12638352127299873646),
    ],
)
def test_fnv_1a_of_known_inputs(data: bytes, value: int) -> None:
    assert fnv1a_64(data) == value


def test_a_text_is_hashed_as_utf8_with_one_byte_0xff_after_it() -> None:
    assert hash_text("") == 12638352127299873646
    assert hash_text("ü") == fnv1a_64("ü".encode() + b"\xff")
    with pytest.raises(InvalidInputError):
        hash_text("\ud800")


def test_the_vector_of_the_algorithm() -> None:
    text = (
        '{"query":"MATCH (n) RETURN n","query_language":"Cypher","middleware":[],'
        '"sources":[{"source_id":"s1","nodes":["A"],"relations":[],"pipeline":[]}],"joins":null}'
    )

    assert canonical_projection(VECTOR) == text
    assert config_hash(VECTOR) == 15788932903817395036 == 0xDB1D8ED29A833B5C


def test_the_canonical_form_of_everything_at_once() -> None:
    assert canonical_projection(FULL) == (
        '{"query":"MATCH (n)-[r]->(m) RETURN n, \'ü\'","query_language":"Cypher","middleware":['
        '{"kind":"map","name":"first","config":{"a":{"x":true,"y":[1,2.5,null]},"b":1}},'
        '{"kind":"jq","name":"second","config":{}}],"sources":['
        '{"source_id":"s1","nodes":["A"],"relations":[],"pipeline":[]},'
        '{"source_id":"s2","nodes":["A","B"],"relations":["R1","R2"],"pipeline":["p2","p1"]}],"joins":['
        '{"id":"j1","keys":[]},'
        '{"id":"j2","keys":[{"label":"A","property":"y"},{"label":"B","property":"x"}]}]}'
    )


SAME = {
    "sources in another order": changed(["sources"], FULL["sources"][::-1]),
    "nodes in another order": changed(["sources", 0, "nodes"], ["A", "B"]),
    "nodes twice": changed(["sources", 0, "nodes"], ["B", "A", "B"]),
    "relations in another order": changed(["sources", 0, "relations"], ["R1", "R2"]),
    "relations twice": changed(["sources", 0, "relations"], ["R1", "R2", "R1"]),
    "joins in another order": changed(["joins"], FULL["joins"][::-1]),
    "join keys in another order": changed(["joins", 0, "keys"], FULL["joins"][0]["keys"][::-1]),
    "config keys in another order": changed(
        ["middleware", 0, "config"], {"a": {"x": True, "y": [1, 2.5, None]}, "b": 1}
    ),
    "missing lists are empty": changed(["sources", 1], {"source_id": "s1", "nodes": ["A"]}),
    **{name: {**FULL, name: "anything"} for name in NOT_HASHED},
}
DIFFERENT = {
    "query": changed(["query"], "MATCH (m) RETURN m"),
    "language": changed(["query_language"], "GQL"),
    "source id": changed(["sources", 1, "source_id"], "s3"),
    "a node": changed(["sources", 1, "nodes"], ["C"]),
    "a relation": changed(["sources", 1, "relations"], ["R"]),
    "pipeline order": changed(["sources", 0, "pipeline"], ["p1", "p2"]),
    "middleware order": changed(["middleware"], FULL["middleware"][::-1]),
    "middleware name": changed(["middleware", 0, "name"], "other"),
    "middleware kind": changed(["middleware", 0, "kind"], "other"),
    "middleware config": changed(["middleware", 0, "config", "b"], 2),
    "join id": changed(["joins", 0, "id"], "j3"),
    "join property": changed(["joins", 0, "keys", 0, "property"], "z"),
    "no joins": changed(["joins"], None),
    "empty joins": changed(["joins"], []),
}


@pytest.mark.parametrize("projection", SAME.values(), ids=SAME.keys())
def test_what_changes_nothing_changes_not_the_hash(projection: dict[str, Any]) -> None:
    assert config_hash(projection) == config_hash(FULL)


def test_every_real_change_gives_another_hash() -> None:
    hashes = [config_hash(FULL), *(config_hash(projection) for projection in DIFFERENT.values())]

    assert len(set(hashes)) == len(DIFFERENT) + 1


def test_the_callers_projection_is_left_alone() -> None:
    before = copy.deepcopy(FULL)

    config_hash(FULL)

    assert before == FULL


LOOP: list[Any] = []
LOOP.append(LOOP)

BAD: dict[str, Any] = {
    "no query": {"query_language": "Cypher"},
    "no language": {"query": "q"},
    "unknown field": {**FULL, "colour": "red"},
    "unknown field of a source": changed(["sources", 0, "colour"], "red"),
    "unknown field of a middleware": changed(["middleware", 0, "colour"], "red"),
    "unknown field of a join": changed(["joins", 0, "colour"], "red"),
    "unknown field of a join key": changed(["joins", 0, "keys", 0, "colour"], "red"),
    "NaN": changed(["middleware", 0, "config", "b"], float("nan")),
    "infinity": changed(["middleware", 0, "config", "b"], [float("-inf")]),
    "bytes": changed(["middleware", 0, "config", "b"], b"x"),
    "a key that is no text": changed(["middleware", 0, "config", 7], 1),
    "a set has no order": changed(["sources", 0, "pipeline"], {"p1", "p2"}),
    "text for a list": changed(["sources", 0, "nodes"], "AB"),
    "a node that is no text": changed(["sources", 0, "nodes"], [1]),
    "a source that is no mapping": changed(["sources", 0], "s1"),
    "a query that is no text": changed(["query"], 7),
    "a lone surrogate": changed(["query"], "\ud800"),
    "something that contains itself": changed(["middleware", 0, "config", "b"], LOOP),
    "not a mapping": ["query"],
}


@pytest.mark.parametrize("projection", BAD.values(), ids=BAD.keys())
def test_what_has_no_canonical_form_is_refused(projection: Any) -> None:
    with pytest.raises(InvalidInputError):
        config_hash(projection)


@given(st.lists(st.text(alphabet="abcü🐚", min_size=1), unique=True), st.randoms())
def test_no_order_of_sources_or_labels_matters(names: list[str], random: Any) -> None:
    def projection() -> dict[str, Any]:
        random.shuffle(names)
        sources = [{"source_id": name, "nodes": list(names), "relations": list(names)} for name in names]
        return {"query": "q", "query_language": "GQL", "sources": sources}

    assert config_hash(projection()) == config_hash(projection())
