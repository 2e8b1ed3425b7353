"""`reasoning-gym:NAME`: endless procedural problems, with the grader of the package.

A problem is known by its data set, options, seed and number, and made again where it is graded. Training and evaluation
draw from seeds that never meet: the package seeds item i with seed + i, and the two begin 2^31 apart.

The answer a completion gives is the last of `<answer>...</answer>`, which is what the package's own prompts ask for,
`\\boxed{...}`, and the line behind `####`; a completion with none of them scores 0.

Package: https://github.com/open-thought/reasoning-gym (Apache-2.0).
"""

from __future__ import annotations

import functools
import json
import re
from typing import TYPE_CHECKING, Any

from rlctl.errors import DataError
from rlctl.presets import did_you_mean
from rlctl.rewards.base import RewardResult
from rlctl.seeds import fraction
from rlctl.types import Problem

if TYPE_CHECKING:  # sources imports this module
    from rlctl.sources import LazyProblems, Request

PREFIX = "reasoning-gym:"
INSTALL = "pip install 'rlctl[reasoning-gym]'"

SPLIT_DISTANCE = 2**31
"""Between the first seeds of training and of evaluation; more than any number of problems."""


def load(request: Request) -> LazyProblems:
    """The problems of one data set, made when asked for. Raises DataError that names what there is instead."""
    from rlctl.sources import LazyProblems

    _require_package()
    first_seed = int(fraction(f"{PREFIX}{request.seed}") * (SPLIT_DISTANCE - 2**30))
    seed = first_seed + (SPLIT_DISTANCE if request.split == "eval" else 0)
    # Keys in one order: the options are part of what a problem is known by.
    options = json.dumps(dict(request.spec.options), sort_keys=True)
    whole = (request.name, options, seed, request.size)
    _dataset(*whole)

    def problem(index: int) -> Problem:
        entry = _entry(*whole, index)
        return Problem(
            id=f"{PREFIX}{request.name}/{request.split}/{request.seed}/{index}",
            question=str(entry["question"]),
            # Some problems have many right answers and none that is the one; their grader needs none.
            answer="" if entry["answer"] is None else str(entry["answer"]),
            source=request.spec.source,
            extra={"grader": PREFIX, "dataset": whole, "index": index},
        )

    return LazyProblems(problem, size=request.size)


def grade(problem: Problem, completion: str) -> RewardResult:
    """What the package's grader gives for the answer in the completion."""
    answer = find_answer(completion)
    if answer is None:
        return RewardResult(0.0, note="no <answer>, box or ####")
    dataset = _dataset(*problem.extra["dataset"])
    entry = _entry(*problem.extra["dataset"], problem.extra["index"])
    try:
        return RewardResult(float(dataset.score_answer(answer, entry)), note=answer[:80])
    # Some graders parse an answer without looking, and raise whatever that raises.
    except Exception as error:
        # If the right answer passes, the fault is the completion's; otherwise it is the grader's.
        dataset.score_answer(entry["answer"], entry)
        return RewardResult(0.0, note=f"unreadable answer: {type(error).__name__}: {str(error)[:80]}")


_ANSWER = re.compile(
    r"<answer>((?:(?!<answer>).)*?)</answer>|####[ \t]*([^\n]*)|\\boxed\{((?:[^{}\n]|\{[^{}\n]*\})*)\}", re.DOTALL
)


def find_answer(completion: str) -> str | None:
    """The last answer that is marked as one, without the space around it."""
    found = list(_ANSWER.finditer(completion))
    return next(part for part in found[-1].groups() if part is not None).strip() if found else None


@functools.lru_cache(maxsize=32)
def _dataset(name: str, options: str, seed: int, size: int) -> Any:
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    if name not in DATASETS:
        near = did_you_mean(name, list(DATASETS)) or f" There are {len(DATASETS)}: {', '.join(sorted(DATASETS)[:8])}..."
        raise DataError(f"reasoning-gym has no data set {name!r}.{near}")
    try:
        return reasoning_gym.create_dataset(name, **json.loads(options), seed=seed, size=size)
    except (TypeError, ValueError, AssertionError, KeyError) as error:
        known = ", ".join(field for field in DATASETS[name][1].__dataclass_fields__ if field not in ("seed", "size"))
        raise DataError(
            f"reasoning-gym:{name} refuses data.options = {options}: {str(error) or type(error).__name__}.",
            hint=f"its options: {known}.",
        ) from error


@functools.lru_cache(maxsize=4096)  # All completions of a group share their entry.
def _entry(name: str, options: str, seed: int, size: int, index: int) -> dict[str, Any]:
    entry: dict[str, Any] = _dataset(name, options, seed, size)[index]
    return entry


def _require_package() -> None:
    try:
        import reasoning_gym  # noqa: F401
    except ModuleNotFoundError as error:
        raise DataError(
            f"reasoning-gym needs the package {error.name!r}, which is not installed.", hint=INSTALL
        ) from error
