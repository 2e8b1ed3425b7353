"""One sampled rollout of the last step: what was asked, what the model wrote, and what it was worth."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from rlctl.live.glyphs import Glyphs
from rlctl.live.lines import DIM, cut, line, wrapped
from rlctl.printable import one_line, printable
from rlctl.types import Rollout


def sample_lines(rollout: Rollout | None, width: int, height: int, *, glyphs: Glyphs, step: int) -> list[Text]:
    """A heading with the reward, the question, and the completion: its beginning and its end where it is long."""
    if rollout is None:
        return [line(("a sampled completion: after the next step", DIM))]
    heading = line((f"completion of step {step}", "bold"), f": {_worth(rollout, glyphs)}")
    room = height - 1
    asked = one_line(_bounded(rollout.problem.question, width, room), encoding=glyphs.encoding)
    question = wrapped(f"> {asked}", width, style=DIM)
    num_question = max(1, min(len(question), room // 3)) if room > 1 else 0
    completion = _completion(rollout, width, room, glyphs)
    rows = [
        heading,
        *_first(question, num_question, glyphs),
        *_both_ends(completion, room - num_question, glyphs),
    ]
    return [cut(row, width, ellipsis=glyphs.cut) for row in rows[:height]]


def _completion(rollout: Rollout, width: int, room: int, glyphs: Glyphs) -> list[Text]:
    """What was written after the prompt; what an environment answered is dim, behind an arrow."""

    def shown(text: str, **style: Any) -> list[Text]:
        harmless = printable(_bounded(text, width, room), encoding=glyphs.encoding).strip("\n")
        return wrapped(f"<- {harmless}" if style else harmless, width, **style)

    if rollout.episode is None:
        return shown(rollout.text)
    styles: dict[str, dict[str, Any]] = {"policy": {}, "environment": {"style": DIM}}
    parts = rollout.episode.parts
    some = parts if len(parts) <= 2 * room else (*parts[:room], *parts[-room:])
    return [row for writer, text in some if text for row in shown(text, **styles[writer])]


def _worth(rollout: Rollout, glyphs: Glyphs) -> str:
    reward = "reward failed" if rollout.reward is None else f"reward {rollout.reward:.3g}"
    named = ((one_line(name, encoding=glyphs.encoding), value) for name, value in rollout.scores.items())
    scores = ", ".join(f"{name} {value:.3g}" for name, value in named)
    end = "cut at the limit" if rollout.completion.truncated else "ended"
    parts = [reward, scores, f"{len(rollout.completion.token_ids):,} tokens, {end}"]
    return ", ".join(part for part in parts if part)


def _bounded(text: str, width: int, height: int) -> str:
    """No more of a text than could be shown: its beginning and its end."""
    most = 2 * max(1, width) * max(1, height)
    return text if len(text) <= 2 * most else f"{text[:most]}\n{text[-most:]}"


def _first(rows: list[Text], count: int, glyphs: Glyphs) -> list[Text]:
    if len(rows) <= count or not count:
        return rows[:count]
    return [*rows[: count - 1], line(*[(rows[count - 1].plain + glyphs.cut, DIM)])]


def _both_ends(rows: list[Text], count: int, glyphs: Glyphs) -> list[Text]:
    """All rows, or the first and, as the answer mostly stands there, the last ones."""
    if len(rows) <= count:
        return rows
    if count <= 0:
        return []
    if count < 3:
        return [
            Text.assemble((f"{glyphs.cut} ", DIM), rows[-count], end="", no_wrap=True),
            *rows[len(rows) - count + 1 :],
        ]
    head = (count - 1) // 2
    return [*rows[:head], line((glyphs.cut, DIM)), *rows[-(count - 1 - head) :]]
