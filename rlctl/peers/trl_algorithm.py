"""TRL's algorithm: loss, clip, normalisation, and the correction of vLLM's probabilities.

Formulas are those of TRL 1.16.0 (trl/trainer/grpo_trainer.py).
"""

from __future__ import annotations

from rlctl.peers.book import Book
from rlctl.peers.entries import shown
from rlctl.peers.findings import Group

LOSSES = {
    "grpo": ("seq-mean-token-mean", ""),
    "dr_grpo": ("seq-mean-token-sum-norm", ""),
    "dapo": ("token-mean", "TRL divides by the tokens of all devices, averaged over the updates of a generation"),
    "bnpo": ("token-mean", "TRL takes the mean in each micro-batch on each device, rlctl over the whole update"),
}


def rules(book: Book) -> None:
    loss(book)
    clipping(book)
    importance_sampling(book)


def loss(book: Book) -> None:
    if not book.waits(["beta"]):
        if book.number("beta"):
            book.exact(
                ["beta"], "k3 in the loss", {"algorithm.kl_coef": book.value("beta"), "algorithm.kl_estimator": "k3"}
            )
        else:
            book.exact(["beta"], "no KL term", {"algorithm.kl_coef": 0.0})
    if not book.waits(["loss_type"]):
        loss_type(book)
    if not book.waits(["importance_sampling_level"]):
        level = str(book.value("importance_sampling_level") or "token")
        if level in ("token", "sequence"):
            book.exact(["importance_sampling_level"], "", {"algorithm.importance_sampling": level})
        else:
            text = f"a ratio per {shown(level)}; rlctl has token and sequence"
            book.missing(["importance_sampling_level"], text)
    if not book.waits(["scale_rewards"]):
        scale = str(book.value("scale_rewards")).lower()
        if scale in ("group", "true", "none", "false"):
            by_std = scale in ("group", "true")
            text = "TRL adds 1e-4 to the standard deviation, rlctl 1e-6" if by_std else ""
            settings = {"algorithm.norm_adv_by_std": by_std}
            book.put(Group.MEANING if by_std else Group.EXACT, ["scale_rewards"], text, settings)
        else:
            book.missing(
                ["scale_rewards"], f"{shown(scale)}: rlctl divides by the standard deviation of a group or not at all"
            )


def loss_type(book: Book) -> None:
    name = str(book.value("loss_type"))
    if name == "sapo":
        keys = ["loss_type", "sapo_temperature_pos", "sapo_temperature_neg"]
        taus = {"algorithm.tau_pos": book.value(keys[1]), "algorithm.tau_neg": book.value(keys[2])}
        if not book.waits(keys):
            book.exact(keys, "", {"algorithm.policy_loss": "sapo", **taus})
    elif name == "cispo":
        capped(book)
    elif name in LOSSES:
        mode, different = LOSSES[name]
        group = Group.MEANING if different else Group.EXACT
        book.put(group, ["loss_type"], different, {"algorithm.loss_agg_mode": mode})
    else:
        book.missing(["loss_type"], f"no loss of rlctl: it has those of {', '.join((*LOSSES, 'sapo', 'cispo'))}")


def capped(book: Book) -> None:
    """TRL's cap of a ratio is epsilon_high itself, and there is none below."""
    keys = ["loss_type", "epsilon", "epsilon_high"]
    cap = book.number("epsilon_high")
    if book.waits(keys):
        return
    if cap is None or cap < 1:
        book.missing(keys, f"a cap of {shown(book.value('epsilon_high'))} on ratios; rlctl's is at least 1")
        return
    bounds = {"algorithm.clip_ratio_high": round(cap - 1, 12), "algorithm.clip_ratio_low": 0.999}
    text = "TRL's cap is epsilon_high, rlctl's 1 + clip_ratio_high; TRL has no bound below"
    book.meaning(keys, text, {"algorithm.policy_loss": "cispo", **bounds})


def clipping(book: Book) -> None:
    low, high, dual = "epsilon", "epsilon_high", "delta"
    if str(book.value("loss_type")) in ("sapo", "cispo"):
        book.unused([low, high, dual], "another loss than the clipped one")
        return
    if book.waits([low, high, dual]):
        return
    book.exact([low], "", {"algorithm.clip_ratio_low": book.value(low)})
    if book.value(high) is None:
        text = "epsilon counts above 1 too"
        book.exact([high], text, {"algorithm.clip_ratio_high": book.value(low)})
    else:
        book.exact([high], "", {"algorithm.clip_ratio_high": book.value(high)})
    book.exact([dual], "dual clip", {"algorithm.clip_ratio_c": book.value(dual)})


def importance_sampling(book: Book) -> None:
    keys = [key for key in book.table.defaults if key.startswith("vllm_importance_sampling_")]
    switch = "vllm_importance_sampling_correction"
    if not keys or not book.flag("use_vllm") or not book.flag(switch):
        book.unused(keys, "vLLM does not sample, or the correction is off")
        return
    if book.waits(keys):
        return
    level, _, how = str(book.value("vllm_importance_sampling_mode")).partition("_")
    if level not in ("token", "sequence") or how not in ("truncate", "mask"):
        text = f"weights of trainer/sampler probabilities by {shown(book.value('vllm_importance_sampling_mode'))}"
        book.missing(keys, f"{text}; rlctl has token and sequence, truncate and mask")
        return
    cap, least = (book.value(f"vllm_importance_sampling_{name}") for name in ("cap", "clip_min"))
    most = book.value("vllm_importance_sampling_clip_max") if cap is None else cap
    settings = {"algorithm.rollout_is": level, "algorithm.rollout_is_mode": how, "algorithm.rollout_is_threshold": most}
    if how == "mask":
        settings["algorithm.rollout_is_lower"] = 0.0 if least is None else least
    book.exact(keys, "weights of trainer/sampler probabilities", settings)
