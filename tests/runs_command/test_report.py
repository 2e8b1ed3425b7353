"""The HTML report, read by an HTML parser: whole, alone, and proof against what models and files put into it.

A browser has looked at it for docs/runs.md (scripts/report_pictures.py); Debian's Chromium is not on the machines that
the tests must pass on, so that here the rules of HTML stand for it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from rlctl.runs import charts, figures, report
from rlctl.runs.reading import read_run
from rlctl.runs.series import series, thinned, unbroken
from tests.runs_command.folders import sample, step, write_lines, write_run

HOSTILE = (
    "</script></textarea></pre><script>alert(1)</script><img src=http://x.y/z onerror='a()'>"
    "\"'&lt;\x00\x1b[2J\ud800\u202e{{7*7}}"
)

VOID = {"meta", "input", "br", "img", "link"}


class Page(HTMLParser):
    """Every element with its attributes, the text outside scripts and styles, and whether all that opens closes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        assert len(dict(attrs)) == len(attrs), (tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        (self.scripts if self.open and self.open[-1] == "script" else self.texts).append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)


def page_of(folder: Path) -> Page:
    text = report.page(read_run(folder))
    found = Page(text)
    stands_alone(text, found)
    return found


def stands_alone(text: str, found: Page) -> None:
    """Nothing is loaded, nothing of a run is executed, and no id stands twice."""
    assert not {"img", "link", "iframe", "object", "embed", "base", "form", "audio", "video", "source", "image"} & {
        tag for tag, _ in found.elements
    }
    ids = [attributes["id"] for _, attributes in found.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes in found.elements:
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name.endswith(("href", "src", "action", "data")) and name != "data":
                assert value is not None
                assert value.startswith("#"), (tag, name, value)
                assert value[1:] in ids, value
            assert not re.search(r"url\((?!#)|@import", value or ""), value
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert "url(" not in style
    assert "@import" not in style
    (script,) = found.scripts
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = [a["content"] for tag, a in found.elements if tag == "meta" and "http-equiv" in a]
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    assert f"script-src 'sha256-{digest}'" in policy
    text.encode()


def metrics(number: int) -> dict[str, object]:
    return step(
        number, score__mean=number / 10, reward__mean=number / 10, reward__gsm8k__mean=0.1, reward__solved_none=0.25,
        reward__solved_some=0.5, reward__solved_all=0.25, response_length__mean=40.0, actor__entropy=0.5,
        actor__grad_norm=0.1, training__rollout_probs_diff_mean=1e-7, perf__mfu__step=0.3, perf__mfu__actor=None,
        perf__tokens_per_s=100.0, timing_s__gen=2.0, timing_s__update_actor=3.0, timing_s__step=6.0,
        timing_s__testing=4.0, custom__thing=1.0,
        **{"val-core__math__acc__mean@1": 0.5, "val-aux__math__num_problems": 50},
    )  # fmt: skip


def test_a_run_is_on_one_page(tmp_path: Path) -> None:
    folder = write_run(
        tmp_path / "run-1", [metrics(n) for n in (1, 2, 3)], total=3, ended={"exit_code": 0},
        samples=[sample(n, f"p/{n}", reward=n / 3, completion=f"answer {n}") for n in (1, 2, 3)],
        settings={"trainer": {"lr": 1e-6}, "seed": 3}, origins={"trainer.lr": "--set trainer.lr", "seed": "default"},
        machine={"device": "cpu", "num_devices": 1, "dtype": "float32", "peak_flops": None, "peak_source": "unknown"},
    )  # fmt: skip
    page = page_of(folder)
    titles = ["Score and reward", "Learning signal", "Lengths", "Policy", "Speed", "Other metrics", "Evaluations"]
    for part in (
        *titles, "run-1", "finished", "score/mean", "custom/thing", "phases over time", "math/acc/mean@1", "answer 3",
        "--set trainer.lr", "trainer.lr", "1e-06", "float32", "p/1",
    ):  # fmt: skip
        assert part in page.text, part
    assert "perf/mfu/actor" not in page.text  # it never was a number
    assert sum(tag == "svg" for tag, _ in page.elements) == sum(tag == "figure" for tag, _ in page.elements) > 12


def test_what_models_and_files_put_in_is_text_and_nothing_else(tmp_path: Path) -> None:
    name = "a<b>&\"'"
    record = {**metrics(1), f"reward/{HOSTILE}/mean": 1.0, f"{HOSTILE}": 2.0, f"val-core/{HOSTILE}/acc/mean@1": 0.5}
    hostile = sample(1, HOSTILE, reward=1.0, completion=HOSTILE, question=HOSTILE, answer=HOSTILE, note=HOSTILE)
    folder = write_run(
        tmp_path / name, [record], samples=[{**hostile, "scores": {HOSTILE: 1.0}, "failures": [HOSTILE]}],
        settings={"model": {HOSTILE: HOSTILE}}, origins={f"model.{HOSTILE}": HOSTILE}, machine={HOSTILE: HOSTILE},
        ended={"exit_code": 1, "why": HOSTILE},
    )  # fmt: skip
    write_lines(folder / "resumes.jsonl", [{"from_step": 0, "changes": [HOSTILE]}])
    page = page_of(folder)
    assert "<script>alert(1)</script>" in page.text
    assert "\\x00\\x1b[2J\\ud800\\u202e{{7*7}}" in page.text
    assert name in page.text
    assert not set("\x00\x1b\ud800\u202e") & set(page.text)
    data = [attributes["data-points"] for _, attributes in page.elements if "data-points" in attributes]
    assert all(json.loads(each or "")["curves"] for each in data)


@pytest.mark.parametrize("records", [[], [{"training/global_step": 0, "val-core/m/acc/mean@1": 0.5}], [metrics(1)]])
def test_runs_of_one_step_or_none_have_a_page(tmp_path: Path, records: list[dict[str, object]]) -> None:
    page = page_of(write_run(tmp_path / "a", records))
    assert ("No step is done yet" in page.text) == (records == [])
    assert "has kept no completions" in page.text
    assert "Nothing in the metrics" not in page.text
    assert ("What looks wrong is told after 3 steps" in page.text) == (records == [metrics(1)])
    axes = [json.loads(a["data-points"] or "")["axes"] for _, a in page.elements if "data-points" in a]
    assert all(last - first >= 1 for _, _, first, last in axes)


def test_a_damaged_folder_has_a_page_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(
        'nonsense\n{"training/global_step": 1, "score/mean": "x", "actor/loss": 1e999}\n'
    )
    (tmp_path / "samples.jsonl").write_text("[]\n")
    (tmp_path / "config.resolved.json").write_text("{")
    page = page_of(tmp_path)
    for part in ("metrics.jsonl:1 is not", "samples.jsonl:1 is not", "config.resolved.json is not a JSON object"):
        assert part in page.text


@pytest.mark.parametrize("value", [1e308, 1e100, 1e-320, 2**70])
def test_values_of_any_size_are_drawn_or_left_out(tmp_path: Path, value: float) -> None:
    """What no metric can be would overflow sums, percents and axes."""
    names = [name for name in metrics(1) if name != "training/global_step"]
    records = [{"training/global_step": n, **dict.fromkeys(names, value * (-1) ** n)} for n in (1, 2, 3)]
    page = page_of(write_run(tmp_path / "a", [*records, {"training/global_step": 10**30}]))
    assert "1 lines name no step" in page.text


def test_five_thousand_steps_make_a_page_of_a_sensible_size(tmp_path: Path) -> None:
    records = [
        {**metrics(n), "score/mean": math.sin(n / 100), "actor/grad_norm": (n * 7919 % 1000) / 1000}
        for n in range(1, 5001)
    ]
    samples = [sample(n, "p", reward=0.0, completion='"<&' * 5_000) for n in range(1, 5001, 10)]
    folder = write_run(tmp_path / "a", records, samples=samples)
    text = report.page(read_run(folder))
    assert 300_000 < len(text.encode()) < 5_000_000
    page = Page(text)
    assert "a point is the mean of neighbouring steps" in page.text
    assert "phases are those of the last 40 steps" in page.text
    assert "200 of 5,000 evaluations" in page.text
    shown = int(re.findall(r"(\d+) of the 500 completions", page.text)[0])
    assert 20 <= shown < 500


def test_a_thousand_metrics_of_its_own_still_make_a_page_that_opens(tmp_path: Path) -> None:
    records = [{**metrics(n), **{f"own/{i}": float(i) for i in range(300)}} for n in (1, 2)]
    page = page_of(write_run(tmp_path / "a", records))
    assert "more charts are left out" in page.text
    assert sum(tag == "figure" for tag, _ in page.elements) <= report.MOST_CHARTS + 3


def test_every_metric_with_a_number_is_drawn_once(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "a", [metrics(1), metrics(2)]))
    drawn = [curve.name for _, subject in charts.drawn(run) for one in subject for curve in one.curves]
    assert len(drawn) == len(set(drawn))
    elsewhere = {"timing_s/gen", "timing_s/update_actor", "val-core/math/acc/mean@1", "val-aux/math/num_problems"}
    assert set(drawn) == set(metrics(1)) - {"training/global_step", "perf/mfu/actor"} - elsewhere


def test_turns_and_overlap_have_charts_of_their_own(tmp_path: Path) -> None:
    own = {"num_turns__mean": 2.5, "num_turns__max": 3.0, "environment__ended_by__done": 0.75}
    overlapped = {"training__staleness_mean": 1.0, "perf__overlap": 0.5, "timing_s__wait_for_samples": 2.0}
    run = read_run(write_run(tmp_path / "a", [step(n, **own, **overlapped) for n in (1, 2)]))
    titles = {title: [each.chart.title for each in some] for title, some in charts.drawn(run)}
    assert titles == {
        "Turns": ["turns of the policy", "how rollouts ended"],
        "Policy": ["age of the samples"],
        "Speed": ["standing still", "sampling beside training"],
    }


def test_phases_fill_the_time_of_the_run(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "a", [metrics(1), {**metrics(2), "timing_s/save_checkpoint": 1.5}]))
    bars = charts.gantt(run)
    told = [(bar.phase, bar.step, bar.start, bar.seconds) for bar in bars]
    assert told == [
        ("sample", 1, 0.0, 2.0), ("update", 1, 2.0, 3.0), ("other", 1, 5.0, 1.0), ("evaluate", 1, 6.0, 4.0),
        ("save", 2, 10.0, 1.5), ("sample", 2, 11.5, 2.0), ("update", 2, 13.5, 3.0), ("other", 2, 16.5, 1.0),
        ("evaluate", 2, 17.5, 4.0),
    ]  # fmt: skip
    assert run.seconds == 21.5
    shares = charts.shares(bars, ["sample", "update", "other", "evaluate", "save"])
    assert [one.values[0] for one in shares] == [20.0, 30.0, 10.0, 40.0, 0.0]


def test_phases_of_an_overlapped_step_fill_its_time(tmp_path: Path) -> None:
    # 6 s: 3 of update, beside which the samples were drawn but for a second, and 2 that nothing accounts for.
    run = read_run(write_run(tmp_path / "a", [{**metrics(1), "timing_s/gen": 4.0, "timing_s/wait_for_samples": 1.0}]))
    told = [(bar.phase, bar.seconds) for bar in charts.gantt(run)]
    assert told == [("sample", 1.0), ("update", 3.0), ("other", 2.0), ("evaluate", 4.0)]


def test_evaluations_have_wilsons_interval_over_their_problems(tmp_path: Path) -> None:
    """Of 50 problems half solved: (0.5 + 1.92 / 50 +- 1.96 * sqrt(0.25 / 50 + 0.96 / 2500)) / (1 + 3.84 / 50)."""
    (point,) = charts.points(read_run(write_run(tmp_path / "a", [metrics(1)])), "val-core/math/acc/mean@1")
    assert (point.low, point.high) == (pytest.approx(0.3664, abs=1e-4), pytest.approx(0.6336, abs=1e-4))
    for name in ("val-core/a/b/pass@4", "val-core/a/b/reward/mean@4"):
        record = {"training/global_step": 0, name: 0.5, "val-aux/a/b/num_problems": 50}
        (point,) = charts.points(read_run(write_run(tmp_path / "b", [record])), name)
        assert point.low == pytest.approx(0.3664, abs=1e-4)
    record = {"training/global_step": 0, "val-core/m/reward/mean@1": -3.0, "val-aux/m/num_problems": 50}
    (point,) = charts.points(read_run(write_run(tmp_path / "c", [record])), "val-core/m/reward/mean@1")
    assert (point.low, point.high) == (None, None)


def test_thinning_keeps_the_mean_the_extremes_and_the_last_step() -> None:
    records = [step(n, a=float(n == 500)) for n in range(1, 1001)]
    few = thinned(series(records, "a"), most=100)
    assert (len(few.steps), few.steps[-1], max(few.high), sum(few.values)) == (100, 1000, 1.0, pytest.approx(0.1))
    assert thinned(series(records[:100], "a"), most=100) == series(records[:100], "a")


@pytest.mark.parametrize(
    ("steps", "parts"),
    [
        ([1, 2, 3, 5, 6, 9], [range(3), range(3, 5), range(5, 6)]),
        ([10, 20, 30, 37], [range(4)]),  # an evaluation each ten steps, and at the end
        ([10, 20, 40, 50], [range(2), range(2, 4)]),
        ([7], [range(1)]),
        ([], [range(0)]),
    ],
)
def test_a_curve_breaks_where_steps_have_no_value(steps: list[int], parts: list[range]) -> None:
    assert unbroken(steps) == parts


@pytest.mark.parametrize("gone", [(), (3,), (3, 5), tuple(range(3, 60))])
def test_a_step_without_a_value_is_not_drawn_over(tmp_path: Path, gone: tuple[int, ...]) -> None:
    """A line of an SVG begins anew (M) behind each break."""
    records = [step(n, a=None if n in gone else float(n)) for n in range(1, 61)]
    drawn = charts.Drawn(charts.Chart("a", ("a",)), (series(records, "a"),))
    svg = figures.chart_plot(drawn, key="k").svg
    (line,) = re.findall(r'<path d="(M[^"]*)" clip-path="[^"]*" style="fill: none; stroke: var\(--c0\)', svg)
    assert line.count("M") == 1 + {0: 0, 1: 1, 2: 2}.get(len(gone), 1)
    assert ("<use " in svg.partition(line)[2].partition("patch_")[0]) == (len(gone) > 1)
