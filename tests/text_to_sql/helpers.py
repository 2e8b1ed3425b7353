"""A data set in BIRD's layout, small and with names that want quotes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tests.rewards.sql.helpers import database

HOSTILE = 'we"ird; DROP TABLE x --\n*/ name'

ROWS = (
    {"question": "How many?", "evidence": "all of them", "SQL": "SELECT COUNT(*) FROM \"order\"", "db_id": "shop"},
    {"question": "Which?", "evidence": "", "SQL": "SELECT `full name` FROM \"order\" ORDER BY id", "db_id": "shop"},
)  # fmt: skip


def bird(root: Path, *, rows: Sequence[dict[str, str]] = ROWS, splits: Sequence[str] = ("train", "dev")) -> Path:
    """`root/{split}/{split}.json` with its databases and descriptions."""
    for split in splits:
        folder = root / split / f"{split}_databases" / "shop"
        (folder / "database_description").mkdir(parents=True)
        database(
            folder / "shop.sqlite",
            "CREATE TABLE town(id INTEGER PRIMARY KEY, name TEXT NOT NULL)",
            'CREATE TABLE "order"'
            '(id INTEGER PRIMARY KEY, "full name" TEXT, town_id INTEGER REFERENCES town(id), price)',
            "INSERT INTO town VALUES (1, 'Rome'), (2, 'Oslo')",
            "INSERT INTO \"order\" VALUES (1, 'Ann', 1, 2.5), (2, NULL, 2, 7), (3, 'Bo', 1, NULL)",
        )
        (folder / "database_description" / "Order.csv").write_bytes(
            b"\xef\xbb\xbforiginal_column_name,column_name,column_description,data_format,value_description\n"
            b"full name,full name,who ordered,text,\n"
            b'price,unit price,price in \x80,real,"net,\nno tax"\n'
        )
        (root / split / f"{split}.json").write_text(json.dumps(list(rows)))
    return root
