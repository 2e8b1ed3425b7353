"""How fast and how rightly `gsm8k` grades: answers made by rule, whose right verdict is therefore known.

Half of the answers have the gold value in some form (separators, currency, units, decimals, LaTeX, fractions), half a
value next to it. Without `--data` the solutions are those of `generated:word-problems`.

    python benchmarks/grading.py [--answers 100000] [--data gsm8k/train.jsonl] [--processes 2]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from rlctl.problems import word_problem
from rlctl.rewards.math import grade_gsm8k

SHARE = 1000
"""Answers handed to a process at once."""


@dataclass(frozen=True, slots=True)
class Case:
    completion: str
    gold: str
    right: bool


def golds(path: Path | None) -> list[str]:
    if path is None:
        return [word_problem(0, i, split="train").answer for i in range(2000)]
    return [json.loads(line)["answer"] for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def cases(count: int, path: Path | None) -> Iterator[Case]:
    rng, all_golds = random.Random(0), golds(path)
    for i in range(count):
        gold = all_golds[i % len(all_golds)]
        worked, _, last = gold.rpartition("####")
        value = Fraction(last.strip().replace(",", ""))
        right = rng.random() < 0.5
        written = spelled(value if right else value + rng.choice((1, -1, 10, Fraction(1, 2), Fraction(1, 100))), rng)
        yield Case(worked + rng.choice(PLACES).format(written), gold, right)


PLACES = (
    "#### {}",
    "#### {}\n",
    r"So the answer is \boxed{{{}}}.",
    "#### **{}**",
    "<think>\n#### 1\n</think>\n#### {}",
)


def spelled(value: Fraction, rng: random.Random) -> str:
    sign = rng.choice(("-", "\u2212")) if value < 0 else ""
    size = abs(value)
    if size.denominator > 1:
        decimal = f"{float(size):.2f}"
        over = rf"\frac{{{size.numerator}}}{{{size.denominator}}}"
        body = rng.choice((decimal, f"{decimal}0", over, f"{size.numerator}/{size.denominator}"))
    else:
        grouped = f"{size.numerator:,}"
        body = rng.choice((str(size), grouped, f"{size}.00", f"{size}.", grouped.replace(",", "{,}"), f"0{size}"))
    return sign + rng.choice(("", "", "$", r"\$")) + body + rng.choice(("", "", " dollars", "%", r" \text{ cm}"))


def wrong_verdicts(some: list[Case]) -> int:
    return sum((grade_gsm8k(case.completion, case.gold).score == 1.0) != case.right for case in some)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", type=int, default=100_000)
    parser.add_argument("--data", type=Path, help="a .jsonl file with GSM8K's answer column")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    made = list(cases(given.answers, given.data))
    shares = [made[i : i + SHARE] for i in range(0, len(made), SHARE)]
    with multiprocessing.get_context("fork").Pool(given.processes) as pool:
        pool.map(wrong_verdicts, [[]] * given.processes)
        start = time.perf_counter()
        wrong = sum(pool.imap_unordered(wrong_verdicts, shares))
        seconds = time.perf_counter() - start
    start = time.perf_counter()
    wrong_verdicts(made)
    alone = time.perf_counter() - start
    print(f"{len(made):,} answers, {sum(case.right for case in made):,} of them right: {wrong} wrong verdicts")
    print(f"{seconds:.2f} s on {given.processes} processes, {alone:.2f} s on one")
    print(
        json.dumps(
            {
                "answers": len(made),
                "wrong_verdicts": wrong,
                "seconds": round(seconds, 3),
                "seconds_one_process": round(alone, 3),
                "processes": given.processes,
                "answers_per_s": round(len(made) / seconds),
                "machine": platform.processor() or platform.machine(),
            }
        )
    )


if __name__ == "__main__":
    main()
