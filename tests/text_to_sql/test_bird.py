"""BIRD's layout, and databases named by a column of any file, up to what a run starts from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rlctl import config
from rlctl.data import load_problems
from rlctl.errors import DataError
from rlctl.prepare import prepare
from rlctl.rewards import load_rewards
from rlctl.settings.data import DataSettings
from rlctl.settings.sql import SqlRewardSettings
from tests.text_to_sql.helpers import ROWS, bird

REWARDS = load_rewards(["sql"], options={"sql": SqlRewardSettings().model_dump()})


def problems(split: Any = "train", **settings: Any) -> Any:
    return load_problems(DataSettings(**settings), split=split, seed=0, check=REWARDS.gold_complaint)


def complaint(**settings: Any) -> str:
    with pytest.raises(DataError) as caught:
        problems(**settings)
    return f"{caught.value.message} {caught.value.hint}"


def test_both_splits_are_read_with_database_and_evidence(tmp_path: Path) -> None:
    root = bird(tmp_path)
    train, held_out = problems(source=f"bird:{root}"), problems("eval", source=f"bird:{root}")
    assert [one.question for one in train] == ["How many?", "Which?"]
    assert train[0].answer == ROWS[0]["SQL"]
    assert (train[0].source, train[0].extra["evidence"]) == ("bird", "all of them")
    assert train[0].extra["database"] == str(root / "train/train_databases/shop/shop.sqlite")
    assert held_out[0].extra["database"] == str(root / "dev/dev_databases/shop/shop.sqlite")
    assert len(problems("eval", source=f"bird:{root}", eval_size=1)) == 1


def test_a_missing_database_is_an_error_with_its_row(tmp_path: Path) -> None:
    root = bird(
        tmp_path, rows=[ROWS[0], {**ROWS[1], "db_id": "gone"}, *[{**ROWS[1], "db_id": f"g{n}"} for n in range(9)]]
    )
    told = complaint(source=f"bird:{root}")
    assert "train.json:2" in told
    assert "gone/gone.sqlite: No such file" in told
    assert "and 5 more lines like these" in told


def test_missing_parts_of_the_layout_are_named(tmp_path: Path) -> None:
    assert "has none of train.json, train/train.json" in complaint(source=f"bird:{tmp_path}")
    assert "no such folder" in complaint(source=f"bird:{tmp_path / 'nowhere'}")
    root = bird(tmp_path)
    shutil.rmtree(root / "train/train_databases")
    assert "train_databases is missing" in complaint(source=f"bird:{root}")


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"question": "q", "SQL": "SELECT 1"}, "no column 'db_id'"),
        ({"question": "q", "SQL": "SELECT 1", "db_id": None}, "db_id is null"),
        ({"question": "q", "SQL": "", "db_id": "shop"}, "SQL is empty"),
        ({"question": "q", "db_id": "shop"}, "no column 'SQL'"),
    ],
)
def test_a_row_without_what_it_needs_is_named(tmp_path: Path, row: dict[str, Any], told: str) -> None:
    assert told in complaint(source=f"bird:{bird(tmp_path, rows=[ROWS[0], row])}")


@pytest.mark.parametrize("named", ["path", "name", "absolute"])
def test_any_file_may_name_databases_in_a_column(tmp_path: Path, named: str) -> None:
    databases = bird(tmp_path) / "train/train_databases"
    path = {"path": "shop/shop.sqlite", "name": "shop", "absolute": str(databases / "shop/shop.sqlite")}[named]
    file = tmp_path / "mine.jsonl"
    file.write_text(json.dumps({"ask": "How many?", "gold": "SELECT 1", "base": path, "know": "all"}) + "\n")
    (one,) = problems(
        path=str(file), question_key="ask", answer_key="gold",
        database_key="base", database_root=str(databases), evidence_key="know",
    )  # fmt: skip
    assert one.extra == {"database": str(databases / "shop/shop.sqlite"), "evidence": "all"}
    assert "names no database" in complaint(path=str(file), question_key="ask", answer_key="gold")


def prepared(*settings: str) -> Any:
    return prepare(
        config.load(preset="bird-grpo", variant="embedded", config=None, assignments=list(settings)).settings
    )


def test_a_run_starts_from_prompts_and_tells_how_it_compares_and_what_golds_cost(tmp_path: Path) -> None:
    bad = {"question": "Bad?", "evidence": "", "SQL": "SELECT missing", "db_id": "shop"}
    root = bird(tmp_path, rows=[*ROWS, bad, {**ROWS[0], "question": "And how many?"}])
    common = (f"data.source=bird:{root}", "trainer.train_batch_size=2", "data.max_prompt_length=400")
    kept = prepared(*common, "reward.sql.comparison=strict")
    assert len(kept.problems) == 4
    assert kept.problems[0].question.startswith("town (id INTEGER, name TEXT)\n")
    notes = "\n".join(kept.notes)
    assert "reward.sql.comparison = strict" in notes
    assert "2 fail; score ceiling 6/8" in notes
    assert "bird/train:3: gold query fails (invalid): no such column: missing" in notes
    left = prepared(*common, "reward.sql.leave_out_bad_golds=true")
    assert (len(left.problems), len(left.eval_problems)) == (3, 3)


def test_golds_that_all_fail_stop_the_run(tmp_path: Path) -> None:
    root = bird(tmp_path, rows=[{**ROWS[0], "SQL": "SELECT missing"}])
    with pytest.raises(DataError, match="none of 1 gold queries gives a result"):
        prepared(f"data.source=bird:{root}", "data.max_prompt_length=400")


def test_the_preset_has_the_numbers_of_the_recipe() -> None:
    gpu = config.load(preset="bird-grpo", variant="gpu", config=None, assignments=[]).settings
    assert gpu.model.path == "Qwen/Qwen3-0.6B"
    assert (gpu.trainer.train_batch_size, gpu.rollout.n, gpu.trainer.steps) == (8, 16, 20)
    assert (gpu.data.max_prompt_length, gpu.rollout.max_response_length) == (4096, 2048)
    assert (gpu.trainer.lr, gpu.eval.temperature, gpu.eval.n) == (1e-6, 0.0, 1)
    assert (gpu.reward.functions, gpu.reward.sql.comparison, gpu.reward.sql.timeout_s) == (["sql"], "bird", 30)
    cpu = config.load(preset="bird-grpo", variant="cpu", config=None, assignments=[]).settings
    assert "SmolLM2" in cpu.model.path
