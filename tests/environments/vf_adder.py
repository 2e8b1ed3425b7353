"""An environment package of verifiers, as its users write them: one question and answer, a guessing game, a tool."""

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

    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    class Guessing(vf.MultiTurnEnv):
        """Says whether a guess is too low or too high, until it is right."""

        async def setup_state(self, state: Any) -> None:
            state["guesses"] = 0

        @vf.stop
        async def is_right(self, state: Any) -> bool:
            turns = state["trajectory"]
            return bool(turns) and turns[-1]["completion"][-1].content.strip() == state["answer"]

        async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
            state["guesses"] += 1
            guess = int(messages[-1].content)
            return [vf.UserMessage(content="higher" if guess < int(state["answer"]) else "lower")]

    rubric = vf.Rubric(funcs=[exact, short], weights=[1.0, 0.25])
    about: dict[str, Any] = {"dataset": Dataset.from_list(rows), "system_prompt": "Add.", "rubric": rubric}
    if kind == "tools":
        return vf.ToolEnv(tools=[add], max_turns=4, **about)
    if kind == "group":
        return vf.EnvGroup([vf.SingleTurnEnv(**about)])
    return {"single": vf.SingleTurnEnv, "guessing": Guessing}[kind](**about)
