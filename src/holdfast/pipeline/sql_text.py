"""A query's text, read as far as identity and wiring need it. Not a parser: Spark is the one that knows SQL.

Two questions only: are two texts the same but for white space, and which relations does a text read?
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# Quoted text and comments are single tokens: inside a string, white space is data.
_TOKEN = re.compile(
    r"""
    (?P<space>\s+)
  | (?P<comment>--[^\n]*|/\*.*?\*/)
  | (?P<string>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
  | (?P<quoted>`(?:[^`]|``)+`)
  | (?P<word>\w+)
  | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
# After one of these the names that follow are columns again.
_ENDS_FROM = frozenset(
    {"WHERE", "GROUP", "HAVING", "ORDER", "SORT", "CLUSTER", "DISTRIBUTE", "LIMIT", "OFFSET", "WINDOW"}
    | {"QUALIFY", "UNION", "INTERSECT", "EXCEPT", "MINUS", "VALUES"}
)
# Words that may stand between FROM or JOIN and the relation's name.
_BEFORE_NAME = frozenset({"LATERAL", "STREAM", "TABLE"})


def fold_space(sql: str) -> str:
    """``sql`` with each run of white space as one space, strings and quoted names as they are."""
    folded: list[str] = []
    for kind, text in _tokens(sql):
        if kind == "space":
            # A line comment is over where its line is; on one line it would swallow what follows.
            after_comment = bool(folded) and folded[-1].startswith("--") and "\n" in text
            folded.append("\n" if after_comment else " ")
        else:
            folded.append(text)
    return "".join(folded).strip()


def relations(sql: str) -> list[str]:
    """The plain names that ``sql`` reads after FROM and JOIN, in order, once each.

    Left out: what the text itself defines (WITH), functions, and names with a dot.
    """
    tokens = [(kind, text) for kind, text in _tokens(sql) if kind not in ("space", "comment")]
    local = _names_defined(tokens)
    found: dict[str, str] = {}
    for name in _names_read(tokens):
        if name.lower() not in local:
            found.setdefault(name.lower(), name)
    return list(found.values())


def _tokens(sql: str) -> Iterator[tuple[str, str]]:
    for match in _TOKEN.finditer(sql):
        yield str(match.lastgroup), match.group()


def _names_defined(tokens: list[tuple[str, str]]) -> set[str]:
    """``x`` of ``WITH x AS (`` and ``, x AS (``."""
    words = [text.upper() for _, text in tokens]
    defined = set()
    for i in range(1, len(tokens) - 2):
        if words[i - 1] in ("WITH", ",", "RECURSIVE") and words[i + 1] == "AS" and words[i + 2] == "(":
            defined.add(_plain(tokens[i]).lower())
    return defined


def _names_read(tokens: list[tuple[str, str]]) -> Iterator[str]:
    # One frame for each open parenthesis: (a SELECT was seen in it, its FROM clause is open).
    frames = [(False, False)]
    expects = False
    before = ""
    for i, token in enumerate(tokens):
        kind, word = token[0], token[1].upper()
        following = tokens[i + 1][1] if i + 1 < len(tokens) else ""
        queries, reading = frames[-1]
        if word == "(" and kind == "other":
            # FROM (a JOIN b): a relation may follow. Anything else opens a frame that knows of no SELECT,
            # so that extract(day FROM ts) and trim(' ' FROM name) name no relation.
            frames.append((expects, expects))
            before = word
            continue
        if word == ")" and kind == "other":
            frames = frames[:-1] or [(False, False)]
            expects = False
        elif kind == "word" and word in ("SELECT", "WITH"):
            frames[-1] = (True, False)
            expects = False
        elif kind == "word" and word == "FROM":
            starts_text = before in ("", "(")
            expects = (queries or starts_text) and before != "DISTINCT"  # IS DISTINCT FROM compares
            if expects:
                frames[-1] = (True, True)
        elif kind == "word" and word == "JOIN":
            expects = True
        elif kind == "word" and word in _ENDS_FROM:
            frames[-1] = (queries, False)
            expects = False
        elif word == ",":
            expects = reading
        elif expects and not (kind == "word" and word in _BEFORE_NAME and following != ","):
            expects = False
            if kind in ("word", "quoted") and following not in (".", "("):
                yield _plain(token)
        before = word


def _plain(token: tuple[str, str]) -> str:
    kind, text = token
    return text[1:-1].replace("``", "`") if kind == "quoted" else text
