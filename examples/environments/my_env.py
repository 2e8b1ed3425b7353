# my_env.py
from rlctl.environments.base import Action, Step
from rlctl.types import Problem


class SecondChance:
    def __init__(self, tries: int = 2) -> None:  # the table [environment.options]
        self.tries = tries

    def reset(self, problem: Problem) -> dict:  # problem.question, problem.answer, problem.extra
        return {"gold": problem.answer.rpartition("####")[2].strip(), "left": self.tries}

    def step(self, state: dict, action: Action) -> Step:  # action.text is the turn that the policy wrote
        state["left"] -= 1
        if action.text.rpartition("####")[2].strip() == state["gold"]:
            return Step(reward=(state["left"] + 1) / self.tries, done=True)
        if state["left"] == 0:
            return Step(reward=0.0, done=True)
        return Step(messages=[("user", "That is not right. Try again.")])

    def finish(self, state: dict, ending: str) -> float:  # when it is over, whoever ended it: here, cut too early
        return 0.0
