"""YAML as a tree of plain values, with the line of every key.

Built from the nodes and not by PyYAML's constructors: keys given twice are refused instead of the last one winning,
`no`, `010` and `12:30` are not turned into other values, and no tag creates an object.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from rlctl.errors import ConfigError
from rlctl.peers.entries import MAX_ENTRIES, scalar

PLAIN_TAGS = "tag:yaml.org,2002:"


@dataclass
class _Builder:
    """Builds one document; counts nodes, so that anchors which multiply come to an end."""

    path: str
    lines: dict[str, int] = field(default_factory=dict)
    count: int = 0

    def value(self, node: Node, key: str, above: tuple[int, ...]) -> Any:
        self.count += 1
        if self.count > MAX_ENTRIES:
            raise ConfigError(f"{self.path}: more than {MAX_ENTRIES} values; its anchors multiply, or it is no config.")
        if id(node) in above:
            raise self.error(node, "an anchor that holds itself")
        if not node.tag.startswith(PLAIN_TAGS) or node.tag.startswith(PLAIN_TAGS + "python"):
            raise self.error(node, f"the tag {node.tag}, which would make an object")
        if isinstance(node, ScalarNode):
            return scalar(node.value) if node.style is None else node.value
        above = (*above, id(node))
        if isinstance(node, SequenceNode):
            return [self.value(item, key, above) for item in node.value]
        assert isinstance(node, MappingNode)
        return self.mapping(node, key, above)

    def mapping(self, node: MappingNode, key: str, above: tuple[int, ...]) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        own: dict[str, Any] = {}
        for name_node, value_node in node.value:
            if not isinstance(name_node, ScalarNode):
                raise self.error(name_node, "a key that is no text")
            name = name_node.value
            dotted = f"{key}.{name}" if key else name
            if name == "<<" and name_node.style is None:
                for table in self.merged_tables(value_node):
                    merged = {**self.mapping(table, key, above), **merged}
                continue
            if name in own:
                first = self.lines.get(dotted, "?")
                raise self.error(name_node, f"the key {dotted} for a second time (first in line {first})")
            self.lines[dotted] = name_node.start_mark.line + 1
            own[name] = self.value(value_node, dotted, above)
        return {**merged, **own}

    def merged_tables(self, node: Node) -> Iterator[MappingNode]:
        tables = node.value if isinstance(node, SequenceNode) else [node]
        for table in tables:
            if not isinstance(table, MappingNode):
                raise self.error(node, "`<<` with something that is no table")
            yield table

    def error(self, node: Node, what: str) -> ConfigError:
        return ConfigError(f"{self.path}:{node.start_mark.line + 1}: YAML with {what}.")


def read_yaml(text: str, path: str) -> tuple[Any, dict[str, int]]:
    """The one document of a YAML text, and the line of each dotted key. Raises ConfigError with path and line."""
    try:
        nodes = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{path}{line}: not YAML: {error.problem or error.context}.") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}.") from None
    except RecursionError:
        raise ConfigError(f"{path}: nested too deeply to be settings.") from None
    if len(nodes) > 1:
        raise ConfigError(f"{path}: {len(nodes)} YAML documents; a config is one.")
    builder = _Builder(path)
    return (builder.value(nodes[0], "", ()) if nodes else None), builder.lines
