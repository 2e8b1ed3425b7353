"""OpenRLHF: what of its options only makes sense together.

Formulas are those of 0.11.2: openrlhf/models/loss.py, openrlhf/trainer/ppo_utils/experience_maker.py.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from rlctl.peers import common
from rlctl.peers.book import Book, as_number
from rlctl.peers.entries import shown
from rlctl.peers.findings import Effect, Group

FILES = (".json", ".jsonl", ".parquet", ".csv", ".tsv")
ESTIMATOR = "algo.advantage.estimator"
WHITENED = {"reinforce": "reinforce_plus_plus", "reinforce_baseline": "reinforce_plus_plus_baseline"}


def rules(book: Book) -> None:
    estimator(book)
    geometry(book)
    lengths(book)
    kl_term(book)
    clipping(book)
    schedule(book)
    key = "rollout.top_p"
    common.sampling(book, {"rollout.top_p": (key, book.value(key))})
    micro_batches(book)
    lora(book)
    data(book)
    correction(book)
    filtering(book)


def estimator(book: Book) -> None:
    value = book.value(ESTIMATOR)
    if book.waits([ESTIMATOR]):
        return
    if value == "group_norm":
        text = "OpenRLHF adds 1e-9 to the standard deviation, rlctl 1e-6"
        book.meaning([ESTIMATOR], text, {"algorithm.norm_adv_by_std": True})
    elif value == "dr_grpo":
        text = "advantages are centred only; unlike Dr. GRPO's paper, OpenRLHF still takes the mean over tokens"
        book.meaning([ESTIMATOR], text, {"algorithm.norm_adv_by_std": False})
    elif value == "rloo":
        book.exact([ESTIMATOR], "", {"algorithm.adv_estimator": "rloo"})
    elif value in WHITENED:
        whitened(book, str(value))
    else:
        more = ", without a critic" if value == "gae" else ""
        named = "" if book.has(ESTIMATOR) else " (OpenRLHF's default: the command does not set it)"
        known = ", ".join(("group_norm", "dr_grpo", "rloo", *WHITENED))
        book.missing([ESTIMATOR], f"advantages by {shown(value)}{named}; rlctl has {known}{more}")
    book.unused(["algo.advantage.no_std_norm"], "only whitening over the batch reads it") if value in (
        "group_norm",
        "dr_grpo",
        "rloo",
    ) else None


def whitened(book: Book, value: str) -> None:
    no_std, gamma = "algo.advantage.no_std_norm", "algo.advantage.gamma"
    if book.flag(no_std) or book.number(gamma) not in (None, 1.0):
        text = (
            f"{value} only centred (no_std_norm), or with discounted returns (gamma); rlctl's is whitened, undiscounted"
        )
        book.missing([ESTIMATOR, no_std, gamma], text)
        return
    text = "whitened over the tokens of the batch; rlctl's variance is over N - 1"
    book.meaning([ESTIMATOR], text, {"algorithm.adv_estimator": WHITENED[value]})


def geometry(book: Book) -> None:
    keys = ["rollout.batch_size", "train.batch_size"]
    size = common.group_size(book, ["rollout.n_samples_per_prompt"], size=book.whole("rollout.n_samples_per_prompt"))
    if book.waits(keys, "batch sizes are left out"):
        return
    prompts, samples = book.whole(keys[0]), book.whole(keys[1])
    if prompts is None or samples is None:
        book.invalid(keys, "batch sizes must be whole numbers of at least 1")
    elif size is None:
        text = "train.batch_size counts samples; of how many a prompt has is not known"
        book.put(Group.UNRESOLVED, keys, text, effect=Effect.RESULT)
    elif samples > prompts * size:
        text = f"an update of {samples} samples is more than the {prompts} x {size} sampled; OpenRLHF never fills one"
        book.invalid(keys, text)
    else:
        how = f"{prompts} prompts a step; {samples} samples an update / {size} a prompt"
        common.batches(book, keys, sizes=common.Batches(Fraction(prompts), Fraction(samples, size), how))


def lengths(book: Book) -> None:
    """Older versions limit prompt and answer (flat names); newer ones the sum, and the answer if asked."""
    total, answer, prompt = "data.max_len", "rollout.max_new_tokens", "data.prompt_max_len"
    if book.waits([total, answer, prompt]):
        return
    if book.value(prompt) is not None and book.value(answer) is not None:
        book.exact([answer], "", {"rollout.max_response_length": book.value(answer)})
        text = "OpenRLHF cuts longer prompts; rlctl leaves them out and counts them"
        book.meaning([prompt], text, {"data.max_prompt_length": book.value(prompt)})
        book.unused([total], "prompt and answer have limits of their own")
        return
    longest, most = book.whole(total), book.whole(answer)
    if most and longest and longest > most:
        book.exact([answer], "", {"rollout.max_response_length": most})
        text = f"prompt and answer together; {longest} - {most} is left for a prompt"
        book.meaning([total], text, {"data.max_prompt_length": longest - most})
    elif most and longest:
        book.invalid([total, answer], f"no room for a prompt: {total} = {longest} is not above {answer} = {most}")
    else:
        text = (
            f"prompt and answer together have {shown(longest)} tokens, however they share them; rlctl limits each: set "
        )
        book.missing([total, answer], text + "data.max_prompt_length and rollout.max_response_length")


def kl_term(book: Book) -> None:
    weight, in_loss, kind = "algo.kl.init_coef", "algo.kl.use_loss", "algo.kl.estimator"
    adaptive = ["algo.kl.target", "algo.kl.horizon"]
    if book.waits([weight, in_loss, kind]):
        return
    if not book.number(weight):
        book.exact([weight], "no KL term", {"algorithm.kl_coef": 0.0})
        book.unused([in_loss, kind, *adaptive], "algo.kl.init_coef is 0")
        return
    if book.flag(in_loss):
        settings = {"algorithm.kl_coef": book.value(weight), "algorithm.kl_estimator": book.value(kind)}
        book.exact([in_loss, weight, kind], "in the loss", settings)
    else:
        size = shown(book.value(weight))
        text = f"KL is taken off each token's reward, with weight {size}"
        outcome = str(book.value(ESTIMATOR)) not in WHITENED
        if outcome:
            text += "; OpenRLHF takes it off after the comparison with the group, rlctl before"
        settings = {"algorithm.use_kl_in_reward": True, "algorithm.kl_coef": book.value(weight)}
        effect = Effect.RESULT if outcome else Effect.NONE
        own = {**settings, "algorithm.kl_penalty": book.value(kind)}
        book.put(Group.MEANING, [weight, in_loss, kind], text, own, effect=effect)
    steering(book, adaptive, in_loss=book.flag(in_loss))


def steering(book: Book, keys: list[str], *, in_loss: bool) -> None:
    if book.waits(keys):
        return
    target, horizon = keys
    if not book.number(target):
        book.unused(keys, "algo.kl.target is not set")
    elif in_loss:
        book.missing(
            keys, "the weight of KL in the loss is steered to a target; rlctl steers that off the reward alone"
        )
    else:
        text = "OpenRLHF measures KL over the tokens of all samples, rlctl over each completion that is compared"
        settings = {"algorithm.kl_target": book.value(target), "algorithm.kl_horizon": book.value(horizon)}
        book.meaning(keys, text, settings)


def clipping(book: Book) -> None:
    both, two, dual = "actor.eps_clip", "actor.eps_clip_low_high", "actor.dual_clip"
    if book.waits([both, two, dual]):
        return
    bounds = book.value(two)
    if isinstance(bounds, list) and len(bounds) == 2:
        book.exact([two], "", {"algorithm.clip_ratio_low": bounds[0], "algorithm.clip_ratio_high": bounds[1]})
        book.unused([both], "eps_clip_low_high is set")
    elif bounds is not None:
        book.invalid([two], "two numbers are wanted, low and high")
    else:
        value = book.value(both)
        book.exact([both], "", {"algorithm.clip_ratio_low": value, "algorithm.clip_ratio_high": value})
        book.unused([two], "null takes eps_clip")
    book.exact([dual], "dual clip", {"algorithm.clip_ratio_c": book.value(dual)})


def schedule(book: Book) -> None:
    kind, floor, ratio = "actor.lr_scheduler", "actor.min_lr_ratio", "actor.lr_warmup_ratio"
    if book.waits([kind, floor, ratio]):
        return
    value, least = str(book.value(kind)), book.number(floor)
    least = 0.1 if least is None else least  # written into the program before it became an option
    if value == "cosine_with_min_lr" and least:
        text = f"the cosine ends at {least:g} of the peak; rlctl's ends at 0"
        book.put(Group.MEANING, [kind, floor], text, {"trainer.lr_schedule": "cosine"}, effect=Effect.RESULT)
    elif value in ("constant", "constant_with_warmup", "cosine", "cosine_with_min_lr", "linear"):
        book.exact([kind], "", {"trainer.lr_schedule": value.split("_")[0]})
        book.unused([floor], f"the schedule is {value}")
    else:
        book.missing([kind, floor], f"a schedule of {shown(value)}; rlctl has constant, cosine and linear")
    if value == "constant":
        book.unused([ratio], "transformers' `constant` has no warm-up")
    else:
        common.warmup(book, [ratio], ratio=book.number(ratio), steps=None, total=None)


def micro_batches(book: Book) -> None:
    dynamic, tokens = "train.dynamic_batch_enable", "train.max_tokens_per_gpu"
    if book.flag(dynamic) and not book.waits([tokens]):
        text = "tokens of a micro-batch; rlctl counts a prompt once for all of its completions"
        book.meaning([dynamic, tokens], text, {"trainer.max_tokens_per_device": book.value(tokens)})
        book.unused(["train.micro_batch_size"], "micro-batches hold tokens")
    else:
        book.unused([tokens], "train.dynamic_batch_enable is not set")


def lora(book: Book) -> None:
    rank, alpha, modules, dropout = (f"ds.lora.{key}" for key in ("rank", "alpha", "target_modules", "dropout"))
    if book.waits([rank]):
        return
    if not book.number(rank):
        book.exact([rank], "all weights are trained", {"model.lora.rank": 0})
        book.unused([alpha, modules, dropout], "ds.lora.rank is 0")
        return
    book.exact([rank, alpha], "", {"model.lora.rank": book.value(rank), "model.lora.alpha": book.value(alpha)})
    names = book.value(modules)
    book.exact([modules], "", {"model.lora.target_modules": names if isinstance(names, list) else [names]})
    if book.number(dropout):
        book.missing([dropout], "dropout on LoRA's factors; rlctl has none")


def data(book: Book) -> None:
    name = "data.prompt_dataset"
    if not book.has(name) or book.waits([name]):
        return
    value = str(book.value(name))
    if "," in value:
        book.missing([name], "several data sets: [[data.sources]] of rlctl")
    elif value.endswith(FILES):
        book.exact([name], "", {"data.path": value})
        book.unused(["data.prompt_split"], "the data is a file")
    else:
        book.exact([name], "", {"data.source": value})
        book.put(Group.DEFAULT, ["(data)"], "OpenRLHF names no configuration of a data set", {"data.subset": None})
        book.exact(["data.prompt_split"], "", {"data.train_split": book.value("data.prompt_split")})
    book.exact(["data.input_key"], "", {"data.question_key": book.value("data.input_key")})
    if book.value("data.label_key") is None:
        text = "no data.label_key: OpenRLHF's reward sees no gold answer; rlctl wants data.answer_key"
        book.remark(Group.MISSING, "data.label_key", text, effect=Effect.RESULT)
    else:
        book.exact(["data.label_key"], "", {"data.answer_key": book.value("data.label_key")})
    template = "data.apply_chat_template"
    how = "chat" if book.flag(template) else "text"
    book.exact([template], "", {"data.prompt_format": how})


IS = "algo.advantage.is_correction_"


def correction(book: Book) -> None:
    keys = [key for key in book.table.defaults if key.startswith(IS)]
    if book.waits(keys):
        return
    if not (book.flag(f"{IS}enable") or str(book.value(f"{IS}level") or "off") != "off"):
        book.unused(keys, "the correction is off")
        return
    given = [key for key in keys if book.has(key)] or keys
    mode, bounds = _weights_of_tokens(book), _bounds(book.value(f"{IS}threshold"))
    if mode is None:
        text = "OpenRLHF gates weights by the completion or by a divergence; set algorithm.rollout_is yourself"
        book.missing(given, text)
    elif bounds is None:
        book.invalid(given, f"{shown(book.value(f'{IS}threshold'))} is neither a bound nor two of them")
    elif mode == "truncate" and bounds[0] > 0:
        text = f"OpenRLHF also raises weights to {bounds[0]:g}; rlctl bounds them from above only"
        settings = {"algorithm.rollout_is": "token", "algorithm.rollout_is_threshold": bounds[1]}
        book.put(Group.MEANING, given, text, settings, effect=Effect.RESULT)
    else:
        lower = {"algorithm.rollout_is_lower": bounds[0]} if mode == "mask" else {}
        settings = {"algorithm.rollout_is": "token", "algorithm.rollout_is_mode": mode}
        book.exact(given, "", settings | {"algorithm.rollout_is_threshold": bounds[1]} | lower)


def _weights_of_tokens(book: Book) -> str | None:
    """What becomes of a token's weight beyond the bounds, as rlctl calls it; None where a completion's decides.

    0.11.2 has a level, a mode and what is compared with the bounds, 0.11.0 one name for all, and versions before only
    one bound, from above.
    """
    if f"{IS}level" in book.table.defaults:
        by_token = book.value(f"{IS}level") == "token" and book.value(f"{IS}gating") == "ratio"
        return {"mask": "mask", "clip": "truncate"}.get(str(book.value(f"{IS}mode"))) if by_token else None
    if f"{IS}type" in book.table.defaults:
        return {"icepop": "mask", "tis": "truncate"}.get(str(book.value(f"{IS}type")))
    return "truncate"


def _bounds(value: Any) -> tuple[float, float] | None:
    """Of weights, from below and from above; one number is the latter."""
    parts = value if isinstance(value, list) else [value]
    numbers = [number for part in parts if (number := as_number(part)) is not None]
    if len(numbers) != len(parts) or not 1 <= len(numbers) <= 2:
        return None
    low, high = (0.0, *numbers)[-2:]
    return low, high


def filtering(book: Book) -> None:
    switch, bounds = "algo.dynamic_filtering_enable", "algo.dynamic_filtering_range"
    if not book.flag(switch):
        book.exact([switch], "no groups are replaced", {"algorithm.filter_groups": False})
        book.unused([bounds], "algo.dynamic_filtering_enable is not set")
        return
    text = "groups of equal rewards are replaced; OpenRLHF replaces those whose mean score is not within its range"
    same = book.value(bounds) in ([0, 1], [0.0, 1.0])
    book.put(
        Group.MEANING,
        [switch, bounds],
        text + (", which for scores of 0 or 1 is the same" if same else ""),
        {"algorithm.filter_groups": True},
        effect=Effect.NONE if same else Effect.RESULT,
    )
