"""verl: what of its config only makes sense together.

Formulas are those of verl 0.9.1: verl/trainer/ppo/core_algos.py, verl/utils/torch_functional.py.
"""

from __future__ import annotations

from fractions import Fraction

from rlctl.peers import common, verl_algorithm
from rlctl.peers.book import Book
from rlctl.peers.entries import shown
from rlctl.peers.findings import Effect, Group

ACTOR = "actor_rollout_ref.actor."
ROLLOUT = "actor_rollout_ref.rollout."


def rules(book: Book) -> None:
    verl_algorithm.rules(book)
    geometry(book)
    clipping(book)
    schedule(book)
    draws(book)
    evaluation(book)
    micro_batches(book)
    lora(book)
    filtering(book)
    over_long(book)
    data(book)


def geometry(book: Book) -> None:
    n_keys = [f"{ROLLOUT}n"]
    if book.has(f"{ROLLOUT}n_agent"):  # Search-R1's name for completions a prompt, each of which draws rollout.n
        n_keys = [f"{ROLLOUT}n_agent", *n_keys]
    sizes = [book.whole(key) for key in n_keys]
    product = None if None in sizes else (sizes[0] or 0) * (sizes[1] or 0 if len(sizes) > 1 else 1)
    common.group_size(book, n_keys, size=product)
    keys = ["data.train_batch_size", f"{ACTOR}ppo_mini_batch_size"]
    if book.waits(keys, "the batch is left as it is"):
        return
    prompts, mini = (book.whole(key) for key in keys)
    if prompts is None or mini is None:
        book.invalid(keys, "both must be whole numbers of at least 1")
        return
    how = f"{prompts} prompts a step, {mini} an update: verl counts both in prompts, as rlctl does"
    common.batches(book, keys, sizes=common.Batches(Fraction(prompts), Fraction(mini), how))


def clipping(book: Book) -> None:
    low, high, both = f"{ACTOR}clip_ratio_low", f"{ACTOR}clip_ratio_high", f"{ACTOR}clip_ratio"
    for key in (low, high):
        setting = f"algorithm.{key.removeprefix(ACTOR)}"
        if not book.waits([key]):
            book.exact([key], "", {setting: book.value(both) if book.value(key) is None else book.value(key)})
    used = {book.value(both)} == {book.value(low), book.value(high)}
    if used or not book.has(both):
        book.unused([both], "clip_ratio_low and clip_ratio_high are read in its place, and say the same")
        return
    text = (
        f"verl reads clip_ratio_low and clip_ratio_high ({shown(book.value(low))}, {shown(book.value(high))}) instead; "
    )
    book.put(
        Group.INVALID,
        [both],
        text + "versions before 0.3 had clip_ratio alone: set the two if yours is",
        effect=Effect.RESULT,
    )


def schedule(book: Book) -> None:
    optim = f"{ACTOR}optim."
    style = [f"{optim}lr_scheduler_type", f"{optim}warmup_style"]
    floor = [f"{optim}min_lr_ratio", f"{optim}num_cycles"]
    kind = next((v for key in reversed(style) if (v := book.value(key)) is not None), "constant")
    if not book.waits(style):
        if kind == "cosine" and (book.number(floor[0]) or book.number(floor[1]) not in (None, 0.5)):
            text = f"cosine to {shown(book.value(floor[0]))} of the peak; rlctl's ends at 0"
            book.put(Group.MEANING, [*style, *floor], text, {"trainer.lr_schedule": "cosine"}, effect=Effect.RESULT)
        elif kind in ("constant", "cosine"):
            book.exact(style, "", {"trainer.lr_schedule": kind})
            book.unused(floor, f"the learning rate is {kind}")
        else:
            book.missing([*style, *floor], f"a schedule of {shown(kind)}; rlctl has constant, cosine and linear")
    steps, ratio = f"{optim}lr_warmup_steps", f"{optim}lr_warmup_steps_ratio"
    if not book.waits([steps, ratio]):
        count = book.number(steps)
        total = book.whole("trainer.total_training_steps")
        fixed = count if count is not None and count > 0 else None
        common.warmup(book, [steps, ratio], ratio=book.number(ratio), steps=fixed, total=total)


def draws(book: Book) -> None:
    names = {"rollout.top_p": "top_p", "rollout.top_k": "top_k"}
    common.sampling(book, {ours: (f"{ROLLOUT}{key}", book.value(f"{ROLLOUT}{key}")) for ours, key in names.items()})


def evaluation(book: Book) -> None:
    sample, temperature = f"{ROLLOUT}val_kwargs.do_sample", f"{ROLLOUT}val_kwargs.temperature"
    if book.waits([sample, temperature]):
        return
    if book.flag(sample):
        book.exact([sample, temperature], "", {"eval.temperature": book.value(temperature)})
    else:
        book.exact([sample], "evaluations take the likeliest token", {"eval.temperature": 0.0})
        book.unused([temperature], "val_kwargs.do_sample is false")


def micro_batches(book: Book) -> None:
    dynamic, tokens = f"{ACTOR}use_dynamic_bsz", f"{ACTOR}ppo_max_token_len_per_gpu"
    old, new = f"{ACTOR}ppo_micro_batch_size", f"{ACTOR}ppo_micro_batch_size_per_gpu"
    if book.value(old) is not None and book.value(new) is not None and book.has(old, new):
        book.invalid([old, new], "verl refuses both at once; rlctl fills micro-batches by tokens", Effect.SPEED)
    elif book.flag(dynamic):
        book.unused([old, new], "use_dynamic_bsz is true, so micro-batches hold tokens")
    elif book.value(old) is None and book.value(new) is None and not any(key.startswith("$") for key in book.given):
        text = f"neither {new} nor {dynamic} is set; verl refuses that"
        book.remark(Group.INVALID, new, text, effect=Effect.SPEED)
    if book.flag(dynamic) and not book.waits([tokens]):
        text = "tokens of a micro-batch; rlctl counts a prompt once for all of its completions"
        book.meaning([dynamic, tokens], text, {"trainer.max_tokens_per_device": book.value(tokens)})
    else:
        book.missing([dynamic], "rlctl fills micro-batches by tokens: trainer.max_tokens_per_device", Effect.SPEED) if (
            book.has(dynamic)
        ) else None
        book.unused([tokens], "use_dynamic_bsz is false")


def lora(book: Book) -> None:
    """Two places in verl: model.lora_rank (FSDP) and model.lora.rank (Megatron)."""
    flat = ["actor_rollout_ref.model." + key for key in ("lora_rank", "lora_alpha", "target_modules")]
    nested = ["actor_rollout_ref.model.lora." + key for key in ("rank", "alpha", "target_modules")]
    keys = nested if book.number(nested[0]) else flat
    unused = [key for key in (*flat, *nested) if key not in keys]
    if book.waits(keys):
        return
    book.unused(unused, "the other place of LoRA's settings counts")
    if not book.number(keys[0]):
        book.exact(keys[:1], "all weights are trained", {"model.lora.rank": 0})
        more = [key for key in (*book.given, *book.table.defaults) if key.startswith("actor_rollout_ref.model.lora.")]
        book.unused([*keys[1:], *more], "lora rank is 0")
        return
    book.exact(keys[:2], "", {"model.lora.rank": book.value(keys[0]), "model.lora.alpha": book.value(keys[1])})
    modules = book.value(keys[2])
    names = modules if isinstance(modules, list) else [modules]
    if any(str(name).startswith("linear_") for name in names):
        text = "Megatron's names; rlctl, with the names of transformers, gives every linear layer factors"
        book.meaning(keys[2:], text, {"model.lora.target_modules": ["all-linear"]})
    else:
        book.exact(keys[2:], "", {"model.lora.target_modules": names})


def filtering(book: Book) -> None:
    switch, most = "algorithm.filter_groups.enable", "algorithm.filter_groups.max_num_gen_batches"
    if book.waits([switch, most]):
        return
    if not book.flag(switch):
        book.exact([switch], "no groups are replaced", {"algorithm.filter_groups": False})
        book.unused([most, "algorithm.filter_groups.metric"], "filter_groups is off")
        return
    text = "groups of equal rewards are replaced; verl looks at filter_groups.metric, which may not be the reward"
    book.meaning([switch, "algorithm.filter_groups.metric"], text, {"algorithm.filter_groups": True})
    batches = book.whole(most)
    text = "verl counts batches, and goes on without end at 0; rlctl counts samplings after the first"
    book.meaning([most], text, {"algorithm.max_refills": max(batches - 1, 1) if batches else 1000})


def over_long(book: Book) -> None:
    """rlctl always leaves out over-long prompts and counts them; verl does when asked."""
    switch, how = "data.filter_overlong_prompts", "data.truncation"
    if book.flag(switch):
        book.exact([switch], "as rlctl always does")
        book.unused([how], "over-long prompts are left out")
        return
    text = "rlctl leaves out prompts that are too long, and counts them"
    if book.value(how) in ("error", None):
        text = f"{text}; verl stops at the first one"
        book.meaning([switch, how], text)
    else:
        book.missing([switch, how], f"{text}; verl cuts them ({shown(book.value(how))})")


def data(book: Book) -> None:
    train, val = book.value("data.train_files"), book.value("data.val_files")
    if not book.has("data.train_files"):
        book.waits(["data.val_files"])
        return
    book.exact(["data.prompt_key"], "", {"data.question_key": book.value("data.prompt_key")})
    columns = {"data.answer_key": "reward_model.ground_truth"}
    book.put(Group.DEFAULT, ["(columns)"], "where verl's parquet files hold the gold answer", columns)
    if not book.waits(["data.train_files"], "set data.path"):
        files = train if isinstance(train, list) else [train]
        if len(files) == 1:
            book.exact(["data.train_files"], "", {"data.path": files[0]})
        else:
            sources = [{"path": str(path), "name": f"{at}-{_stem(str(path))}"} for at, path in enumerate(files, 1)]
            text = "several files; rlctl draws from each by its size, verl from all of them in one row"
            book.meaning(["data.train_files"], text, {"data.sources": sources})
    if not book.waits(["data.val_files"], "set data.eval_path"):
        files = val if isinstance(val, list) else [val]
        several = isinstance(train, list) and len(train) > 1
        if len(files) == 1 and not several:
            settings = {"data.eval_path": files[0]}
            note = "data.eval_size rows of them at most, 256 unless you set it; verl takes all"
            book.meaning(["data.val_files"], note, settings)
        else:
            text = "with several files, name eval_path in each [[data.sources]] yourself"
            book.missing(["data.val_files"], text, Effect.MEASURE)


def _stem(path: str) -> str:
    parts = [part for part in path.replace("\\", "/").split("/") if part]
    return "-".join(parts[-2:]).rsplit(".", 1)[0][:80] or "file"
