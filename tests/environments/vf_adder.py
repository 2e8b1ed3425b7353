"""An environment package of verifiers, as its users write them: one question, one answer, a rubric of two rewards."""

from __future__ import annotations

from typing import Any


def load_environment(size: int = 6, kind: str = "single") -> Any:
    import verifiers as vf
    from datasets import Dataset

    rows = [{"question": f"{i} + 1?", "answer": str(i + 1), "info": {"left": i}} for i in range(size)]

    def exact(completion: Any, answer: str) -> float:
        return float(completion[-1]["content"].strip() == answer)

    def short(completion: Any, info: dict[str, Any]) -> float:
        return float(len(completion[-1]["content"]) < 5 and info["left"] >= 0)

    rubric = vf.Rubric(funcs=[exact, short], weights=[1.0, 0.25])
    made = {"single": vf.SingleTurnEnv, "tools": vf.ToolEnv}[kind]
    return made(dataset=Dataset.from_list(rows), system_prompt="Add.", rubric=rubric)
