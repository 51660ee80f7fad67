"""A YAML file as nodes that know where they stand: file, line and the keys that lead there.

What is allowed in a pipeline is not decided here. Values are text, with ``${NAME}`` and
``${NAME:-default}`` filled in from the environment (``$${`` is a literal ``${``). No message shows what a
variable held: it may be a password.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from holdfast.errors import InvalidInputError, MissingExtraError
from holdfast.pipeline.spec import DeclarationError, allowed_names

KeyPath: TypeAlias = tuple[str, ...]

_VARIABLE = re.compile(r"\$\$\{|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}|\$\{")
_TRUE = frozenset({"true", "yes", "on"})


@dataclass(slots=True)
class Document:
    """One file being read: what its errors need to know."""

    name: str
    environ: Mapping[str, str]
    lines: dict[KeyPath, int] = field(default_factory=dict)
    # Filled-in text -> as it was written; so that messages show the latter.
    filled_in: dict[str, str] = field(default_factory=dict)

    def error(self, path: KeyPath, reason: str) -> InvalidInputError:
        """``pipeline.yaml:12: sinks.db.database.url: reason``; the line of the nearest key that is there."""
        nearest = path
        while nearest and nearest not in self.lines:
            nearest = nearest[:-1]
        for value, written in self.filled_in.items():
            reason = reason.replace(repr(value), repr(written))
        keys = f"{'.'.join(path)}: " if path else ""
        return InvalidInputError(f"{self.name}:{self.lines.get(nearest, 1)}: {keys}{reason}")


def read_document(path: Path, name: str, environ: Mapping[str, str]) -> Node:
    """The root of the file at ``path``. Raises InvalidInputError where it is no YAML mapping."""
    try:
        import yaml
    except ImportError as error:
        raise MissingExtraError("spark", "reading a pipeline's YAML") from error
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InvalidInputError(f"{name}: cannot be read: {reason}") from error
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"{name}: is not UTF-8 text (byte {error.start})") from error
    document = Document(name, environ)
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        reason = f"{name}:{line}: not YAML: {error.problem or error.context}"
        if "${" in "".join(text.splitlines()[line - 1 : line]):
            reason += '; inside { } and [ ] a value with ${NAME} needs quotes: "${NAME}"'
        raise InvalidInputError(reason) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise InvalidInputError(f"{name}:{line}: not YAML: {error.reason}") from error
    except RecursionError as error:
        raise InvalidInputError(f"{name}:1: nested too deeply") from error
    if root is None:
        raise InvalidInputError(
            f"{name}:1: the file is empty; a pipeline needs at least a line `pipeline: name`"
        )
    return Node(document, (), root)


@dataclass(frozen=True, slots=True)
class Node:
    """One value of a document."""

    document: Document
    path: KeyPath
    # A yaml.Node: pyyaml is an extra, so its types are not named here.
    yaml_node: Any

    def error(self, reason: str, *, below: KeyPath = ()) -> InvalidInputError:
        return self.document.error((*self.path, *below), reason)

    def entries(self) -> dict[str, Node]:
        """This mapping's values by key. Refuses what is no mapping, and a key given twice."""
        node = self.yaml_node
        if node.id != "mapping":
            raise self.error(f"expected keys with values here, found {_kind(self)}")
        found: dict[str, Node] = {}
        for key_node, value_node in node.value:
            if key_node.id != "scalar":
                raise self.error("a key here is not plain text")
            key = str(key_node.value)
            path = (*self.path, key)
            first = self.document.lines.get(path)
            self.document.lines[path] = key_node.start_mark.line + 1
            if key in found:
                raise self.document.error(path, f"given twice (first on line {first})")
            found[key] = Node(self.document, path, value_node)
        return found

    def fields(self, allowed: Collection[str], required: Collection[str] = ()) -> dict[str, Node]:
        """The entries, none of them outside ``allowed``, none of ``required`` missing."""
        found = self.entries()
        for key, node in found.items():
            if key not in allowed:
                raise node.error(f"unknown key; {allowed_names(key, allowed)}")
        for key in required:
            if key not in found:
                raise self.error(f"missing; it must be given here ({', '.join(required)})", below=(key,))
        return found

    def text(self) -> str:
        """This scalar as text, variables filled in. Refuses nothing-at-all, and lists and mappings."""
        if self.yaml_node.id != "scalar":
            raise self.error(f"expected one value, found {_kind(self)}")
        if _kind(self) == "nothing":
            raise self.error("empty; give a value, or leave the key out")
        written = str(self.yaml_node.value)
        value = self._filled_in(written)
        if value != written:
            self.document.filled_in[value] = written
        return value

    def setting(self) -> str:
        """Text as Spark's options and settings take it: YAML's yes and no are true and false."""
        if self.yaml_node.id == "scalar" and self.yaml_node.tag.endswith(":bool"):
            return "true" if str(self.yaml_node.value).lower() in _TRUE else "false"
        return self.text()

    def texts(self) -> tuple[str, ...]:
        """A list of values; a single value is a list of one."""
        if self.yaml_node.id != "sequence":
            return (self.text(),)
        return tuple(self._items())

    def _items(self) -> Iterator[str]:
        for i, item in enumerate(self.yaml_node.value):
            path = (*self.path, str(i))
            self.document.lines[path] = item.start_mark.line + 1
            yield Node(self.document, path, item).text()

    def _filled_in(self, written: str) -> str:
        def value_of(match: re.Match[str]) -> str:
            if match.group() == "$${":
                return "${"
            name, default = match.group("name"), match.group("default")
            if name is None:
                raise self.error("'${' starts no ${NAME} or ${NAME:-default}; write '$${' for the characters")
            value = self.document.environ.get(name, "")
            if value:
                return value
            if default is not None:
                return str(default)
            if name in self.document.environ:
                return ""
            raise self.error(
                f"the environment variable {name} is not set; set it, or give a default: ${{{name}:-default}}"
            )

        return _VARIABLE.sub(value_of, written)


def _kind(node: Node) -> str:
    if node.yaml_node.id == "mapping":
        return "keys with values"
    if node.yaml_node.id == "sequence":
        return "a list"
    return "nothing" if node.yaml_node.tag.endswith(":null") else "a single value"


def located(document: Document, error: DeclarationError) -> InvalidInputError:
    """The model's complaint with file and line in front."""
    return document.error(error.path, error.reason)
