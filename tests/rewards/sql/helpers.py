"""Databases, pools and rewards for the SQL tests."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rlctl.rewards.sql.reward import Sql, sql
from rlctl.types import Problem


def database(path: Path, *statements: str) -> Path:
    """A database file made by these statements."""
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()
    return path


def reward(**settings: Any) -> Sql:
    return sql(**settings)


def problem(path: Path, gold: str, name: str = "p") -> Problem:
    return Problem(id=name, question="?", answer=gold, extra={"database": str(path)})


def fenced(sql: str) -> str:
    """An answer without thinking, so that nothing but the query can earn a score."""
    return f"```sql\n{sql}\n```"


def score(rule: Sql, path: Path, *, gold: str, found: str) -> float:
    return rule(problem(path, gold), fenced(found)).score


def fingerprint(folder: Path) -> dict[str, str]:
    """Every file below a folder with the hash of its bytes."""
    files: Iterable[Path] = sorted(one for one in folder.rglob("*") if one.is_file())
    return {str(one.relative_to(folder)): hashlib.sha256(one.read_bytes()).hexdigest() for one in files}
