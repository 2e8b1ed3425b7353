"""verl's algorithm: estimator, policy loss, KL, and the correction of the sampler's probabilities.

Formulas are those of verl 0.9.1: verl/trainer/ppo/core_algos.py, verl/trainer/ppo/rollout_corr_helper.py.
"""

from __future__ import annotations

from rlctl.peers.book import Book, as_number
from rlctl.peers.entries import Unresolved, shown
from rlctl.peers.findings import Effect, Group

ACTOR = "actor_rollout_ref.actor."
KL = {
    **dict.fromkeys(("kl", "k1"), "k1"),
    **dict.fromkeys(("mse", "k2", "mse+", "k2+"), "k2"),
    **dict.fromkeys(("low_var_kl", "k3"), "k3"),
    **dict.fromkeys(("kl+", "k1+"), "k1+"),
    **dict.fromkeys(("low_var_kl+", "k3+"), "k3+"),
    "abs": "abs",
}
ESTIMATORS = {
    "grpo": "grpo", "grpo_vectorized": "grpo", "rloo": "rloo", "rloo_vectorized": "rloo", "remax": "remax",
    "opo": "opo", "grpo_passk": "grpo_passk", "gpg": "gpg", "gdpo": "gdpo",
    "reinforce_plus_plus": "reinforce_plus_plus", "reinforce_plus_plus_baseline": "reinforce_plus_plus_baseline",
}  # fmt: skip
DIFFERENT = {
    "gpg": "verl's factor divides by the rewards that are not 0, rlctl's by the groups that have a gradient",
    "gdpo": "verl normalises the values that gdpo_reward_keys names, rlctl each of reward.functions",
}
LOSSES = {
    **{name: name for name in ("vanilla", "gspo", "cispo", "sapo", "gpg", "clip_cov", "kl_cov")},
    "geo_mean": "gmpo",
}
PARAMETERS = {
    "sapo": {"tau_pos": "tau_pos", "tau_neg": "tau_neg"},
    "clip_cov": {f"policy_loss.{name}": name for name in ("clip_cov_ratio", "clip_cov_lb", "clip_cov_ub")},
    "kl_cov": {f"policy_loss.{name}": name for name in ("kl_cov_ratio", "ppo_kl_coef")},
}
IN_LOSS = [f"{ACTOR}use_kl_loss", f"{ACTOR}kl_loss_coef", f"{ACTOR}kl_loss_type"]
IN_REWARD = [f"algorithm.{name}" for name in ("use_kl_in_reward", "kl_ctrl.kl_coef", "kl_penalty")]
STEERING = [f"algorithm.kl_ctrl.{name}" for name in ("type", "target_kl", "horizon")]


def rules(book: Book) -> None:
    estimator(book)
    policy_loss(book)
    kl_term(book)
    correction(book)
    overlong(book)


def estimator(book: Book) -> None:
    key, gamma = "algorithm.adv_estimator", "algorithm.gamma"
    value = str(book.value(key))
    ours = ESTIMATORS.get(value)
    if isinstance(book.value(key), Unresolved):
        book.waits([key])
    elif ours is None:
        hint = ", without a critic" if value == "gae" else ""
        named = "" if book.has(key) else f" (verl's default: the file does not set {key})"
        known = ", ".join(dict.fromkeys(ESTIMATORS.values()))
        book.missing([key], f"the run estimates advantages by {shown(value)}{named}; rlctl has {known}{hint}")
    elif value == "reinforce_plus_plus" and book.number(gamma) not in (None, 1.0):
        book.missing([key, gamma], f"returns discounted by {shown(book.value(gamma))}; rlctl's are not discounted")
    elif value in DIFFERENT:
        book.put(Group.MEANING, [key], DIFFERENT[value], {"algorithm.adv_estimator": ours}, effect=Effect.RESULT)
    else:
        book.exact([key], "", {"algorithm.adv_estimator": ours})


def policy_loss(book: Book) -> None:
    key = f"{ACTOR}policy_loss.loss_mode"
    value = book.value(key)
    if book.waits([key]):
        return
    ours = LOSSES.get("vanilla" if value is None else str(value).replace("-", "_"))
    if ours is None:
        book.missing([key], f"which policy loss; rlctl has {', '.join(LOSSES)}")
        return
    text = "chosen over the whole minibatch; verl chooses in each micro-batch" if ours.endswith("_cov") else ""
    settings = {"algorithm.policy_loss": ours}
    book.meaning([key], text, settings) if text else book.exact([key], "", settings)
    for theirs, setting in PARAMETERS.get(ours, {}).items():
        if book.value(f"{ACTOR}{theirs}") is not None and not book.waits([f"{ACTOR}{theirs}"]):
            book.exact([f"{ACTOR}{theirs}"], "", {f"algorithm.{setting}": book.value(f"{ACTOR}{theirs}")})


def kl_term(book: Book) -> None:
    """verl has two, each with a weight of its own: off the reward, where it may be steered, and in the loss."""
    kl_in_loss(book, weight="kl_loss_coef" if kl_in_reward(book) else "kl_coef")


def kl_in_reward(book: Book) -> bool:
    """Whether KL is taken off the reward in rlctl too."""
    switch, weight, kind = IN_REWARD
    if book.waits([*IN_REWARD, *STEERING]):
        return False
    if not book.flag(switch):
        no_kl_in_reward(book)
        return False
    ours = KL.get(str(book.value(kind)).rstrip("+"))
    if ours is None:
        text = f"KL by {shown(book.value(kind))}; rlctl has k1, k2, k3 and abs"
        book.missing([*IN_REWARD, *STEERING], text)
        return False
    if not book.number(weight):
        book.exact([switch, weight], "no KL: its weight is 0")
        book.unused([kind, *STEERING], "the weight of KL in the reward is 0")
        return False
    settings = {"algorithm.use_kl_in_reward": True, "algorithm.kl_coef": book.value(weight)}
    text = f"{shown(book.value(kind))} is {ours}, off the reward of each token"
    book.exact(IN_REWARD, text, {**settings, "algorithm.kl_penalty": ours})
    steering(book)
    return True


def steering(book: Book) -> None:
    how, target, horizon = STEERING
    if str(book.value(how)) in ("fixed", "None"):
        book.unused(STEERING, "the weight is fixed")
    elif str(book.value(how)) == "adaptive":
        text = "verl counts the completions of groups without signal too; rlctl where it does not leave them out"
        settings = {"algorithm.kl_target": book.value(target), "algorithm.kl_horizon": book.value(horizon)}
        book.meaning(STEERING, text, settings)
    else:
        book.missing(STEERING, f"the weight of KL is steered by {shown(book.value(how))}; rlctl has fixed and adaptive")


def no_kl_in_reward(book: Book) -> None:
    switch, weight, kind = IN_REWARD
    if book.has(weight) and not book.has(switch) and not book.flag(IN_LOSS[0]):
        text = "without effect in the versions known here, as use_kl_in_reward is false; before 0.3, verl took it off "
        text += "the reward unless use_kl_loss was set"
        book.put(Group.MEANING, [weight, kind, *STEERING], text, effect=Effect.RESULT)
        book.exact([switch], "no KL in the reward")
    else:
        book.exact([switch], "no KL in the reward")
        book.unused([weight, kind, *STEERING], "use_kl_in_reward is false")


def kl_in_loss(book: Book, *, weight: str) -> None:
    """`weight` is the setting of rlctl that weighs it."""
    if book.waits(IN_LOSS):
        return
    if not book.flag(IN_LOSS[0]):
        book.exact(IN_LOSS[:1], "no KL in the loss", {"algorithm.kl_coef": 0.0} if weight == "kl_coef" else {})
        book.unused(IN_LOSS[1:], "use_kl_loss is false, so no KL is in the loss")
        return
    kind = KL.get(str(book.value(IN_LOSS[2])))
    if kind is None:
        known = ", ".join(dict.fromkeys(KL.values()))
        book.missing(IN_LOSS, f"KL by {shown(book.value(IN_LOSS[2]))}; rlctl has {known}")
        return
    settings = {f"algorithm.{weight}": book.value(IN_LOSS[1]), "algorithm.kl_estimator": kind}
    book.exact(IN_LOSS, f"{shown(book.value(IN_LOSS[2]))} is {kind}, in the loss", settings)


def correction(book: Book) -> None:
    table = "algorithm.rollout_correction."
    level, bound = f"{table}rollout_is", f"{table}rollout_is_threshold"
    older, normalised = f"{ACTOR}tis_imp_ratio_cap", f"{table}rollout_is_batch_normalize"
    cap = book.number(older)
    if cap is not None and cap > 0:
        settings: dict[str, object] = {"algorithm.rollout_is": "token", "algorithm.rollout_is_threshold": cap}
        book.exact([older], "truncated by token", settings)
        return
    kind = book.value(level)
    if kind not in ("token", "sequence") or book.waits([level, bound]):
        return
    if book.flag(normalised) or book.flag(f"{table}bypass_mode"):
        text = "weights normalised over the batch, or taken against the sampler (bypass_mode); rlctl has neither"
        book.missing([level, bound, normalised, f"{table}bypass_mode"], text)
        return
    bounds = _bounds(str(book.value(bound)))
    if bounds is None:
        book.invalid([level, bound], f"{shown(book.value(bound))} is neither a number nor low_high")
    else:
        book.exact([level, bound], "", {"algorithm.rollout_is": kind, **bounds})


def _bounds(text: str) -> dict[str, object] | None:
    """verl truncates at a number, and masks outside two."""
    numbers = [as_number(part) for part in text.split("_")]
    if len(numbers) == 1 and numbers[0] is not None:
        return {"algorithm.rollout_is_threshold": numbers[0]}
    if len(numbers) == 2 and None not in numbers:
        bounds = {"algorithm.rollout_is_lower": numbers[0], "algorithm.rollout_is_threshold": numbers[1]}
        return {"algorithm.rollout_is_mode": "mask", **bounds}
    return None


def overlong(book: Book) -> None:
    """Two places: reward_model.overlong_buffer, and the reward manager's own arguments."""
    for table in ("reward_model.overlong_buffer", "reward_model.reward_kwargs.overlong_buffer_cfg"):
        switch, length, factor = (f"{table}.{name}" for name in ("enable", "len", "penalty_factor"))
        if not book.has(switch, length) or book.waits([switch, length, factor]):
            continue
        if not book.flag(switch):
            book.unused([switch, length, factor], "the soft punishment is off")
            continue
        settings = {"reward.overlong_buffer_len": book.value(length)}
        if book.value(factor) is not None:
            settings["reward.overlong_penalty_factor"] = book.value(factor)
        book.exact([switch, length, factor], "DAPO's soft punishment", settings)
        book.unused([f"{table}.log"], "rlctl logs reward/shaping/mean")
