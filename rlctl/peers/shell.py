"""The commands of a shell script, read and never run: assignments are followed, everything else is only looked at.

A parser of the whole grammar (tree-sitter) finds words, quotes, arrays and here-documents. What only running could
tell stays as it is written, `$X` or `$(...)`: variables the script does not set or sets under a condition, arguments,
output of commands.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlctl.errors import ConfigError

MOST_EXPANDED = 2**22
"""Characters that the variables of a script may stand for, all expansions together: real ones need some thousands."""

Node = Any
"""A node of tree-sitter, which is imported only when a script is read."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a script: its words, the variables set before it, and its first and last line."""

    words: tuple[str, ...]
    line: int
    last: int
    prefix: dict[str, str] = field(default_factory=dict)


@dataclass
class Script:
    """Follows a script from top to bottom; `variables` holds what is known of each so far.

    `fixed` are those that the user gives: no assignment of the script changes them.
    """

    source: bytes
    variables: dict[str, str | list[str]]
    fixed: frozenset[str] = frozenset()
    faults: list[tuple[int, str]] = field(default_factory=list)
    """Line and text of what does not parse; what stands around it is still read."""
    commands: list[Command] = field(default_factory=list)
    conditional: set[str] = field(default_factory=set)
    defaulted: dict[str, str] = field(default_factory=dict)
    expanded: int = 0
    """Characters that variables have stood for so far."""

    def walk(self, node: Node, *, sure: bool = True) -> None:
        for child in node.children:
            self.statement(child, sure=sure)

    def statement(self, node: Node, *, sure: bool) -> None:
        if node.type == "variable_assignment":
            self.assign(node, sure=sure)
        elif node.type == "command":
            self.command(node)
        elif node.type == "redirected_statement" and self.is_read_of_text(node):
            return
        elif node.type == "for_statement":
            self.conditional.add(_text(node.children[1]))
            self.variables.pop(_text(node.children[1]), None)
            self.walk(node, sure=False)
        elif node.type in _BRANCHES:
            self.walk(node, sure=False)
        elif node.type == "list":
            # `a && b`: b is as sure as the script's success; `a || b` runs b only when something failed.
            self.walk(node, sure=sure and not any(child.type == "||" for child in node.children))
        elif node.type not in _LEAVES:
            self.walk(node, sure=sure)

    def assign(self, node: Node, *, sure: bool) -> None:
        target, value = node.children[0], node.children[2] if len(node.children) > 2 else None
        name = _text(target)
        if name in self.fixed:
            return
        if target.type != "variable_name" or not sure:
            self.variables.pop(name, None)
            self.conditional.add(name)
            return
        before = self.variables.get(name, []) if node.children[1].type == "+=" else None
        self.spend(name, before or "")
        after = self.array(value) if value is not None and value.type == "array" else self.one(value)
        if isinstance(after, list):
            after = [*(before if isinstance(before, list) else []), *after]
        elif isinstance(before, str):
            after = before + after
        self.variables[name] = after
        self.conditional.discard(name)

    def array(self, node: Node) -> list[str]:
        return [
            word for child in node.children if child.type not in ("(", ")", "comment") for word in self.words(child)
        ]

    def command(self, node: Node) -> None:
        prefix: dict[str, str] = {}
        words: list[str] = []
        name = next((child for child in node.children if child.type == "command_name"), node)
        line, last = name.start_point[0] + 1, node.end_point[0] + 1
        for child in node.children:
            if child.type == "variable_assignment" and child.start_point[0] + 1 < line:
                self.assign(child, sure=True)  # the parser takes lines above for a prefix where one does not parse
            elif child.type == "variable_assignment":
                prefix[_text(child.children[0])] = self.one(child.children[2] if len(child.children) > 2 else None)
            elif child.type == "command_name":
                words += self.words(child.children[0])
            elif not child.type.endswith("_redirect"):
                words += self.words(child)
        if words:
            self.commands.append(Command(tuple(words), line, last, prefix))
        for shell, option, text in zip(words, words[1:], words[2:], strict=False):
            if shell.rsplit("/", 1)[-1] in ("bash", "sh") and option in ("-c", "-lc", "-ec"):
                self.inner(text, line, last)

    def inner(self, text: str, line: int, last: int) -> None:
        """`bash -c "..."`: the commands in the text, placed where it stands."""
        found = Script(text.encode("utf-8"), dict(self.variables), self.fixed, expanded=self.expanded)
        found.walk(_parse(found.source))
        self.expanded = found.expanded
        self.commands += [Command(one.words, line, last, one.prefix) for one in found.commands]

    def is_read_of_text(self, node: Node) -> bool:
        """`read -r -d '' NAME <<EOF`: the usual way to keep a long command in a variable."""
        body = node.children[0]
        here = next((child for child in node.children if child.type == "heredoc_redirect"), None)
        if body.type != "command" or here is None or _text(body.children[0]) != "read":
            return False
        text = next((_text(child) for child in here.children if child.type == "heredoc_body"), "")
        self.variables[_text(body.children[-1])] = text.replace("\\\n", " ")
        return True

    def one(self, node: Node | None) -> str:
        """The value of an assignment: no splitting into words."""
        return "" if node is None else self.text(node)

    def words(self, node: Node) -> list[str]:
        """The words that one argument becomes: several for `"${ARRAY[@]}"` and for text without quotes."""
        inner = node.children[1] if node.type == "string" and len(node.children) == 3 else node
        array = _array_name(inner)
        if array is not None and isinstance(self.variables.get(array), list):
            return list(self.spend(array, self.variables[array]))
        if node.type in ("simple_expansion", "expansion"):
            text = self.text(node)
            return [text] if "$" in text else text.split()
        return [self.text(node)]

    def text(self, node: Node) -> str:
        if node.type in _EXPANDERS:
            return _EXPANDERS[node.type](self, node)
        if node.type == "concatenation":
            return "".join(self.text(child) for child in node.children)
        return _text(node).replace("\\\n", "").replace("\\", "")

    def string(self, node: Node) -> str:
        """Between double quotes: the source between the expansions as it stands, blanks included."""
        inside = [child for child in node.children if child.type in _EXPANDERS]
        parts, at, end = [], node.start_byte + 1, node.end_byte - 1
        for child in inside:
            parts += [self.source[at : child.start_byte].decode(), self.text(child)]
            at = child.end_byte
        text = "".join([*parts, self.source[at:end].decode()])
        return text.replace("\\\n", "").replace('\\"', '"').replace("\\\\", "\\")

    def simple(self, node: Node) -> str:
        return self.variable(_text(node.children[1]), written=_text(node))

    def variable(self, name: str, *, written: str) -> str:
        value = self.spend(name, self.variables.get(name, ""))
        return written if name not in self.variables else value if isinstance(value, str) else " ".join(value)

    def spend(self, name: str, value: str | list[str]) -> str | list[str]:
        """The value, unless those before it were too long together. Raises ConfigError."""
        self.expanded += len(value) if isinstance(value, str) else sum(map(len, value)) + len(value)
        if self.expanded > MOST_EXPANDED:
            raise ConfigError(
                f"the script's variables multiply: with {name} they stand for more than {MOST_EXPANDED:,} characters.",
                hint="a variable holds itself several times; give the command with its values put in.",
            )
        return value

    def expansion(self, node: Node) -> str:
        """`${X}`, and `${X:-default}` of a variable that the script has not set."""
        parts = [child for child in node.children if child.type not in ("${", "}")]
        if not parts or parts[0].type not in ("variable_name", "special_variable_name"):
            array = _array_name(node)
            return self.variable(array, written=_text(node)) if array else _text(node)
        name = _text(parts[0])
        if len(parts) == 1:
            return self.variable(name, written=_text(node))
        known = self.variables.get(name)
        if parts[1].type not in (":-", "-", ":=", "=", ":?", "?"):
            return _text(node)
        if isinstance(known, str) and "$" + "{" + name not in known and (known or parts[1].type in ("-", "=", "?")):
            return known
        if parts[1].type in (":?", "?"):
            return "${" + name + "}"
        value = "".join(self.text(part) for part in parts[2:])
        if "$" not in value:
            self.defaulted[name] = value
        return value

    def arithmetic(self, node: Node) -> str:
        """`$((1024 * 2))` of whole numbers, as the shell computes it; anything else stays as written."""
        text = _text(node)[3:-2] if _text(node).startswith("$((") else _text(node)[2:-1]
        for _ in range(20):
            names = [n.id for n in ast.walk(_parsed(text)) if isinstance(n, ast.Name)]
            if not names:
                break
            value = self.variables.get(names[0])
            if not isinstance(value, str):
                return _text(node)
            text = _replaced(text, names[0], value)
        result = _computed(_parsed(text))
        return _text(node) if result is None else str(result)


def read_script(text: str, variables: Mapping[str, str]) -> Script:
    """Every command of a script, in order, and what in it does not parse. `variables` win over the script's own."""
    source = text.encode("utf-8")
    script = Script(source, dict(variables), frozenset(variables))
    root = _parse(source)
    script.faults = [(node.start_point[0] + 1, " ".join(_text(node).split())[:60]) for node in _faults(root)]
    script.walk(root)
    return script


def _parse(source: bytes) -> Node:
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language())).parse(source).root_node


def _faults(node: Node) -> Iterator[Node]:
    if node.type == "ERROR" or node.is_missing:
        yield node
    for child in node.children:
        if child.has_error or child.is_missing:
            yield from _faults(child)


def _text(node: Node) -> str:
    return str(node.text.decode("utf-8"))


def _array_name(node: Node) -> str | None:
    """X of `${X[@]}` or `${X[*]}`."""
    if node.type != "expansion":
        return None
    subscript = next((child for child in node.children if child.type == "subscript"), None)
    if subscript is None or len(node.children) != 3 or _text(subscript.children[-2]) not in ("@", "*"):
        return None
    return _text(subscript.children[0])


_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}
_LARGEST = 2**62


def _parsed(text: str) -> ast.AST:
    try:
        return ast.parse(text.replace("$", "").replace("{", "(").replace("}", ")").strip() or "None", mode="eval").body
    except SyntaxError:
        return ast.Constant(None)


def _replaced(text: str, name: str, value: str) -> str:
    import re

    return re.sub(rf"\$?\{{?\b{name}\b\}}?", lambda _: f"({value})", text)


def _computed(node: ast.AST) -> int | None:
    """A sum, product, quotient or remainder of whole numbers; None for anything else. Division rounds towards 0."""
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int else None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _computed(node.operand)
        return None if inner is None else -inner
    if not isinstance(node, ast.BinOp):
        return None
    left, right = _computed(node.left), _computed(node.right)
    if left is None or right is None:
        return None
    if isinstance(node.op, ast.Div | ast.Mod):
        quotient = abs(left) // abs(right) * (1 if left * right >= 0 else -1) if right else None
        return quotient if quotient is None or isinstance(node.op, ast.Div) else left - quotient * right
    compute = _OPERATORS.get(type(node.op))
    result = compute(left, right) if compute else None
    return result if result is not None and abs(result) < _LARGEST else None


_BRANCHES = {
    "if_statement", "while_statement", "case_statement", "function_definition", "c_style_for_statement", "elif_clause",
    "else_clause", "case_item",
}  # fmt: skip
_LEAVES = {"comment", "test_command", "heredoc_redirect", "file_redirect", "word", "string", "raw_string", "number"}
_EXPANDERS: dict[str, Callable[[Script, Node], str]] = {
    "simple_expansion": Script.simple,
    "expansion": Script.expansion,
    "arithmetic_expansion": Script.arithmetic,
    "string": Script.string,
    "translated_string": lambda self, node: self.string(node.children[-1]),
    "raw_string": lambda self, node: _text(node)[1:-1],
    "ansi_c_string": lambda self, node: _text(node)[2:-1],
    "command_substitution": lambda self, node: " ".join(_text(node).split()),
    "process_substitution": lambda self, node: _text(node),
}
