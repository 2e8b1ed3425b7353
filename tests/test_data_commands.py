"""rlctl data lint and stats: every kind of finding with its line, exit codes, lengths after the template, plots."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rlctl import config, data_report
from rlctl.data_lint import Finding, Split, lint_problems
from rlctl.data_stats import Lengths, plot, stats_of
from rlctl.errors import ConfigError, DataError
from rlctl.rewards import load_rewards
from rlctl.rewards.base import NamedReward, RewardSet
from rlctl.settings import Settings
from rlctl.types import Problem
from tests.command_line import rlctl
from tests.fakes import ByteTokenizer
from tests.test_cli import fake, refused_on_stderr

ASKS = "data.prompt_suffix=Finish with ####"


def write(path: Path, *rows: Any) -> str:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


def row(question: Any, answer: Any = "#### 1", **more: Any) -> dict[str, Any]:
    return {"question": question, "answer": answer, **more}


def settings(*assignments: str) -> Settings:
    return config.load(assignments=[ASKS, *assignments], environ={}).settings


def findings(*assignments: str) -> list[Finding]:
    return data_report.find(settings(*assignments), at_most=200)[0]


def told(found: list[Finding]) -> list[tuple[str, str, str]]:
    """(level, kind, line of the file)."""
    return [(one.level, one.kind, one.where.rpartition(":")[2]) for one in found]


@pytest.mark.parametrize(
    ("line", "level", "kind", "says"),
    [
        (row(""), "error", "empty question", "question is empty"),
        (row("   "), "error", "empty question", "question is empty"),
        (row(None), "error", "empty question", "question is null"),
        (row("q", ""), "error", "empty answer", "answer is empty"),
        ({"query": "q", "answer": "1"}, "error", "missing column", "no column 'question'"),
        ("{", "error", "unreadable row", "not JSON"),
        ("[1]", "error", "unreadable row", "a list, not an object"),
        (row(5), "error", "unreadable row", "question is a int, not text"),
        (row("q", "#### none"), "error", "unusable gold", "gsm8k: gold answer 'none' is not a number"),
        (row("first"), "warning", "duplicate", "the question of"),
        (row(" FIRST "), "warning", "near duplicate", "again, but for letter case and spacing"),
        (row("first", "1+0\n#### 1.0"), "warning", "duplicate", "the question of"),
        (row("first", "#### 2"), "error", "contradiction", "with another answer"),
        (row("Show that it is #### 31", "#### 31"), "warning", "gold in question", "holds its marked answer"),
        (row("q: a dozen of eggs and 12 jars", "#### 12"), None, None, None),
    ],
)
def test_each_fault_is_found_with_its_line(tmp_path: Path, line: Any, level: str, kind: str, says: str) -> None:
    path = write(tmp_path / "x.jsonl", row("first"), line, row("last", "#### 3"))
    found = findings(f"data.path={path}")
    assert told(found) == ([(level, kind, "2")] if kind else [])
    if says:
        assert says in found[0].message


def test_all_faulty_rows_are_reported_and_the_rest_still_checked(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", *[row("")] * 30, "{", row("q", "none"), row("q", "none"))
    assert [kind for _, kind, _ in told(findings(f"data.path={path}"))] == [
        *["empty question"] * 30, "unreadable row", *["unusable gold"] * 2, "duplicate",
    ]  # fmt: skip


def test_evaluation_questions_that_are_trained_on_are_an_error(tmp_path: Path) -> None:
    train = write(tmp_path / "train.jsonl", row("one"), row("two"))
    evaluation = write(tmp_path / "test.jsonl", row("three"), row("TWO"))
    (found,) = findings(f"data.path={train}", f"data.eval_path={evaluation}")
    assert (found.kind, found.where) == ("overlap", f"{evaluation}:2")
    assert found.message.endswith(f"trained on too: {train}:2")


def test_048_a_repeated_id_names_both_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", row("a", id="q1"), row("b", id="q1"))
    (found,) = findings(f"data.path={path}", "data.id_key=id")
    assert (found.kind, found.where, found.message) == ("repeated id", f"{path}:2", "id q1 is also on line 1")


def test_no_problem_at_all_is_no_clean_data(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl")
    with pytest.raises(DataError, match=r"x\.jsonl has no rows"):
        findings(f"data.path={path}")
    path = write(tmp_path / "x.jsonl", row("a", level=1))
    with pytest.raises(DataError, match="not one problem to look at"):
        findings(f"data.path={path}", 'data.where={"level": 2}')


def test_rows_that_a_filter_leaves_out_are_not_looked_at(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", row("a", level=1), row("", level=2))
    assert findings(f"data.path={path}", 'data.where={"level": 1}') == []


def test_a_prompt_that_asks_for_what_the_reward_does_not_read_is_an_error() -> None:
    source = "data.source=generated:word-problems"
    (found,) = findings(source, "data.prompt_suffix=Put it in <answer> tags.")
    assert (found.level, found.kind) == ("error", "prompt against reward")
    assert "asks for <answer>, which reward gsm8k does not read" in found.message
    (warned,) = findings(source, "data.prompt_suffix=Think.")
    assert warned.level == "warning"
    assert "asks for no form of answer, and reward gsm8k reads only \\boxed or ####" in warned.message
    assert findings(source, "data.prompt_suffix=Think.", "reward.gsm8k.allow_last_number=true") == []
    assert findings(source, r"data.prompt_suffix=Put it in \boxed{}.") == []


@dataclass(frozen=True)
class QueryFinding:
    problem_id: str
    kind: str
    message: str
    blocks: bool


class QueryReward:
    """A reward that finds out about golds by itself, as one that executes them does."""

    def __call__(self, problem: Problem, completion: str) -> float:
        return 0.0

    def gold_findings(self, problems: list[Problem]) -> list[QueryFinding]:
        return [
            QueryFinding(problems[0].id, "fails", "no such table: t", True),
            QueryFinding(problems[1].id, "no rows", "gives no rows", False),
        ]


def test_a_rewards_own_findings_are_taken_in() -> None:
    rewards = RewardSet((NamedReward("query", QueryReward()),), 1.0)
    problems = [Problem("p1", "a", "1"), Problem("p2", "b", "1")]
    found = lint_problems([Split("train", problems, lambda p: f"x.jsonl:{p.id[1:]}")], rewards, prompt="")
    assert found == [
        Finding("error", "fails", "x.jsonl:1", "query: no such table: t"),
        Finding("warning", "no rows", "x.jsonl:2", "query: gives no rows"),
    ]


def test_a_database_that_is_not_there_is_told_once(tmp_path: Path) -> None:
    """Not again by the reward that would execute the gold query in it."""
    missing = tmp_path / "none.sqlite"
    problem = Problem("p1", "how many?", "SELECT 1", extra={"database": str(missing)})
    with closing(load_rewards(["sql"])) as rewards:
        found = lint_problems([Split("train", [problem], lambda p: "x.jsonl:1")], rewards, prompt="")
    assert [(one.level, one.kind) for one in found] == [("error", "unusable gold")]
    assert str(missing) in found[0].message


def test_gsm8k_is_clean(shared: Path) -> None:
    folder = shared / "data/gsm8k"
    found, count = data_report.find(
        settings(f"data.path={folder / 'train.jsonl'}", f"data.eval_path={folder / 'test.jsonl'}"), at_most=1
    )
    assert count == 7473 + 1319
    assert [one for one in found if one.level == "error"] == []


# Statistics


def test_percentiles_by_hand() -> None:
    lengths = Lengths([10, 20, 30, 40, 50], limit=40)
    # Linear between the nearest two: the 90th of five lies 0.6 of the way from the 4th to the 5th.
    assert [lengths.percentile(p) for p in (50, 90, 99)] == pytest.approx([30, 46, 49.6])
    assert lengths.over == 0.2
    assert Lengths([7], limit=1).percentile(95) == 7


def test_040_prompts_over_the_limit_are_named_and_the_boundary_is_not() -> None:
    problems = [Problem(f"p{n}", "x" * n, "1", "s") for n in (16, 17, 3, 20)]
    found = stats_of("train", problems, num_problems=4, tokenizer=ByteTokenizer(), limit=16)
    assert found.too_long == [("p20", 20), ("p17", 17)]
    assert found.lines()[2].endswith("= 16: 50.00 %: p20 (20), p17 (17)")


def test_the_tools_of_an_environment_are_part_of_the_prompt(tmp_path: Path) -> None:
    template = tmp_path / "lists_tools.jinja"
    template.write_text(
        "{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}"
        "{% for m in messages %}{{ m['content'] }}<|eos|>{% endfor %}"
    )
    base = [
        "model.path=embedded:tiny",
        "data.source=generated:word-problems",
        f"model.chat_template={template}",
        "data.max_prompt_length=96",
        "rollout.max_response_length=64",
    ]
    shortest = []
    for name in ("Slow", "Tooled"):
        named = f"environment.name=tests.environments.games:{name}"
        settings = config.load(assignments=[*base, named], environ={}).settings
        shortest.append(min(data_report.measure(settings, at_most=20)[0].lengths.lengths))
    assert shortest[1] >= shortest[0] + len("a_tool_with_a_long_name") / 4


def test_lengths_are_those_after_the_template(tiny_llama: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", row("12345"), row("123"))
    found = data_report.measure(
        settings(f"model.path={tiny_llama}", f"data.path={path}", "data.prompt_suffix=", "data.max_prompt_length=30",
                 "rollout.max_response_length=10"),
        at_most=10,
    )  # fmt: skip
    # <|start|> "user: " 12345 "\n" <|start|> "assistant: ": 1 + 6 + 5 + 1 + 1 + 11, one token a byte.
    assert (found[0].lengths.lengths, found[0].lengths.over) == ([25, 23], 0.0)


def test_a_plot_is_a_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs rlctl[plots]")
    problems = [Problem(f"p{n}", "x" * n, "1", "s") for n in range(1, 50)]
    found = stats_of("train", problems, num_problems=49, tokenizer=ByteTokenizer(), limit=16)
    plot([found, found], tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG\r\n")
    with pytest.raises(ConfigError, match="cannot be written"):
        plot([found], tmp_path / "no" / "x.png")


def test_without_matplotlib_the_install_line_is_told() -> None:
    code = """
import sys
sys.modules["matplotlib"] = None
from pathlib import Path
from rlctl.data_stats import plot
from rlctl.errors import RlctlError
try:
    plot([], Path("x.png"))
except RlctlError as error:
    print(error.message, error.hint, error.exit_code)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "--plot needs matplotlib, which is not installed. pip install 'rlctl[plots]' 3"


# The commands


def test_exit_codes_tell_a_ci_what_was_found(tiny_llama: Path, tmp_path: Path) -> None:
    arguments = [*fake(tiny_llama, tmp_path), "--preset", "smoke", "--set", "reward.functions=gsm8k", "--set", ASKS]
    write(tmp_path / "problems.jsonl", row("a"), row("b"), row("A"))
    plugin = {"RLCTL_PLUGINS": "tests.fake_plugin"}
    warned = rlctl("data", "lint", *arguments, **plugin)
    assert (warned.returncode, warned.stdout.splitlines()[-1]) == (0, "3 problems: 0 errors, 1 warnings")
    assert rlctl("data", "lint", "--strict", *arguments, **plugin).returncode == 1
    write(tmp_path / "problems.jsonl", row("a"), row("b", "none"))
    found = rlctl("data", "lint", "-f", "json", *arguments, **plugin)
    assert found.returncode == 1
    assert json.loads(found.stdout)["kinds"] == {"unusable gold": 1}
    refused_on_stderr(rlctl("data", "lint", *arguments, "--set", "data.path=no.jsonl", **plugin), 2, "no such file")
    write(tmp_path / "problems.jsonl", row("a"), row("b" * 200))
    over = rlctl("data", "stats", "--max-over", "0.1", "-f", "json", *arguments, **plugin)
    assert over.returncode == 1, over.stderr
    assert json.loads(over.stdout)[0]["prompt_tokens"]["share_over_limit"] == 0.5
