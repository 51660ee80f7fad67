"""What a query reads, and when two texts are one query."""

from __future__ import annotations

import pytest

from holdfast.pipeline.sql_text import fold_space, relations


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("SELECT * FROM trades", ["trades"]),
        ("select window.start, sum(qty) from trades group by window(ts, '1 minute')", ["trades"]),
        ("SELECT * FROM a, b AS x JOIN c ON a.i = c.i LEFT JOIN `d` USING (i), e", ["a", "b", "c", "d", "e"]),
        ("SELECT * FROM (SELECT x FROM inner_one) t, (other JOIN third)", ["inner_one", "other", "third"]),
        ("WITH recent AS (SELECT * FROM trades), two AS (SELECT 1) SELECT * FROM recent, two", ["trades"]),
        ("SELECT extract(day FROM ts), trim(BOTH ' ' FROM name) FROM trades", ["trades"]),
        ("SELECT a IS NOT DISTINCT FROM b FROM trades", ["trades"]),
        ("SELECT DISTINCT symbol FROM trades WHERE s = 'FROM nowhere' -- FROM comment\n", ["trades"]),
        ("SELECT * FROM STREAM(trades), LATERAL explode(xs) AS x", ["trades"]),
        ("SELECT * FROM range(10) JOIN catalog.table JOIN json.`/tmp/x`", []),
        ("SELECT * FROM VALUES (1, 2), (3, 4) AS t(a, b)", []),
        ("SELECT a FROM x UNION ALL SELECT b FROM y", ["x", "y"]),
        (
            "SELECT (SELECT max(v) FROM limits), v FROM x WHERE v IN (SELECT v FROM allowed)",
            ["limits", "x", "allowed"],
        ),
        ("FROM trades SELECT *", ["trades"]),
        ("SELECT * FROM Trades JOIN trades", ["Trades"]),
    ],
)
def test_relations_are_the_names_after_from_and_join(sql: str, names: list[str]) -> None:
    assert relations(sql) == names


def test_white_space_between_words_does_not_make_another_query() -> None:
    assert fold_space(" SELECT\n\t a,\n b  FROM t\n") == fold_space("SELECT a, b FROM t")


@pytest.mark.parametrize("quote", ["'", '"', "`"])
def test_white_space_inside_quotes_is_data(quote: str) -> None:
    assert fold_space(f"SELECT {quote}a  b{quote}") != fold_space(f"SELECT {quote}a b{quote}")


def test_a_line_comment_still_ends_where_its_line_ends() -> None:
    two_columns = "SELECT a -- first\n, b FROM t"
    one_column = "SELECT a -- first , b FROM t"

    assert fold_space(two_columns) != fold_space(one_column)
