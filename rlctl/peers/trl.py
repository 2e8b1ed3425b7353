"""TRL: what of its config only makes sense together. Formulas are those of TRL 1.16.0 (trl/trainer/grpo_trainer.py)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from rlctl.peers import common, trl_algorithm
from rlctl.peers.book import Book
from rlctl.peers.entries import Unresolved, shown
from rlctl.peers.findings import Effect, Group

SIZES = ("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation", "generation_batch_size")
FILES = (".json", ".jsonl", ".parquet", ".csv", ".tsv")


@dataclass(frozen=True, slots=True)
class Pace:
    """Optimizer updates that TRL makes of one generation: its step counts them, rlctl's step is a generation."""

    updates: int | None

    def steps(self, updates: float) -> int | None:
        return math.ceil(updates / self.updates) if self.updates else None

    @property
    def words(self) -> str:
        return f"TRL counts updates, {self.updates} a generation; rlctl counts generations"


def rules(book: Book) -> None:
    pace = geometry(book)
    length(book, pace)
    schedule(book)
    trl_algorithm.rules(book)
    common.pair(book, ("adam_beta1", "adam_beta2"), setting="trainer.betas")
    draws(book)
    prompt_limit(book)
    lora(book)
    data(book)
    evaluation(book, pace)
    saving(book, pace)


def draws(book: Book) -> None:
    """TRL writes 0 for a top_k that is off, and null for min_p."""
    top_k, min_p = book.value("top_k"), book.value("min_p")
    settings = {
        "rollout.top_p": ("top_p", book.value("top_p")),
        "rollout.top_k": ("top_k", -1 if top_k == 0 else top_k),
        "rollout.min_p": ("min_p", 0.0 if min_p is None else min_p),
    }
    common.sampling(book, settings)


def geometry(book: Book) -> Pace:
    """Batches, in samples and per device in TRL, as prompts."""
    size = common.group_size(book, ["num_generations"], size=book.whole("num_generations"))
    iterations = book.whole("num_iterations") or 1
    if book.waits(SIZES, "batch sizes are left out"):
        return Pace(None)
    if size is None:
        text = "batches are counted in groups, whose size is not known"
        book.put(Group.UNRESOLVED, SIZES, text, effect=Effect.RESULT)
        return Pace(None)
    each, accumulation = book.whole(SIZES[0]), book.whole(SIZES[1])
    per_generation, generated = book.whole(SIZES[2]), book.whole(SIZES[3])
    if per_generation and generated:
        book.invalid(SIZES, "TRL refuses steps_per_generation beside generation_batch_size")
        return Pace(None)
    if not each or not accumulation:
        book.invalid(SIZES, "batch sizes must be whole numbers of at least 1")
        return Pace(None)
    if book.devices is None:
        return _without_devices(book, size, generated)
    forward = each * book.devices
    if generated and generated % forward:
        book.invalid(SIZES, f"TRL refuses it: generation_batch_size is no multiple of {each} x {book.devices} devices")
        return Pace(None)
    sampled = generated or forward * (per_generation or accumulation)
    updated = forward * accumulation
    sampled = max(sampled, updated)  # an update over several generations, all of one policy, is one larger generation
    how = f"{sampled} completions a generation / {size} a prompt, {updated} an update, on {book.devices} device(s)"
    sizes = common.Batches(Fraction(sampled, size), Fraction(updated, size), how)
    updates = common.batches(book, SIZES, sizes=sizes)
    return Pace(updates * iterations if updates else None)


def _without_devices(book: Book, size: int, generated: int | None) -> Pace:
    text = "sizes are per device, and nothing says how many there are: give --num-devices"
    if generated and generated % size == 0:
        settings = {"trainer.train_batch_size": generated // size}
        book.put(Group.MEANING, SIZES[3:], "prompts of a generation", settings)
        text = "what an update takes depends on the number of devices: give --num-devices"
    book.put(Group.UNRESOLVED, [key for key in SIZES if key not in book.done], text, effect=Effect.RESULT)
    return Pace(None)


def length(book: Book, pace: Pace) -> None:
    epochs, steps = "num_train_epochs", "max_steps"
    if book.waits([steps]):
        book.waits([epochs])
        return
    count = book.number(steps)
    if count is not None and count > 0:
        made = pace.steps(count)
        if made is None:
            book.put(
                Group.UNRESOLVED,
                [steps],
                "TRL counts updates; how many a generation has is not known",
                effect=Effect.RESULT,
            )
        elif pace.updates == 1:
            book.exact([steps], "", {"trainer.steps": made})
        else:
            book.meaning([steps], pace.words, {"trainer.steps": made})
        book.unused([epochs], "max_steps is set")
        return
    book.unused([steps], "-1 leaves the length to num_train_epochs")
    if book.waits([epochs]):
        return
    passes = book.number(epochs)
    if passes is None or passes != int(passes) or passes < 1:
        book.missing([epochs], "rlctl's epochs are whole; set trainer.steps")
    else:
        book.exact([epochs], "passes over the data", {"trainer.epochs": int(passes)})


def schedule(book: Book) -> None:
    kind, extra = "lr_scheduler_type", [key for key in book.given if key.startswith("lr_scheduler_kwargs")]
    value = str(book.value(kind)).lower().removeprefix("schedulertype.")
    warm = ["warmup_ratio", "warmup_steps"]
    if book.waits([kind, *warm]):
        return
    if value == "constant":
        book.exact([kind], "", {"trainer.lr_schedule": "constant"})
        book.unused(warm, "transformers' `constant` has no warm-up (constant_with_warmup has)")
    elif value in ("constant_with_warmup", "linear", "cosine"):
        book.exact([kind], "", {"trainer.lr_schedule": value.removesuffix("_with_warmup")})
    elif value == "cosine_with_min_lr":
        text = "the cosine ends above 0 in TRL (see lr_scheduler_kwargs); rlctl's ends at 0"
        book.put(Group.MEANING, [kind, *extra], text, {"trainer.lr_schedule": "cosine"}, effect=Effect.RESULT)
    else:
        book.missing([kind, *extra], f"a schedule of {shown(value)}; rlctl has constant, cosine and linear")
    ratio, steps = book.number(warm[0]), book.number(warm[1])
    if steps is not None and 0 < steps < 1:  # transformers 5 takes a fraction for a share
        ratio, steps = steps, None
    total = int(count) if (count := book.number("max_steps") or 0) > 0 else None
    if not book.done.intersection(warm):
        common.warmup(book, warm, ratio=ratio, steps=steps, total=total)


def prompt_limit(book: Book) -> None:
    key = "max_prompt_length"
    if book.waits([key]):
        return
    if book.value(key) is None:
        text = "TRL takes prompts of any length; rlctl leaves out those longer than data.max_prompt_length"
        book.put(Group.MEANING, [key], text, absent=False)
        if not book.has(key):
            book.remark(Group.MEANING, "(prompts)", text)
        return
    text = "TRL cuts longer prompts from the left; rlctl leaves them out and counts them"
    book.meaning([key], text, {"data.max_prompt_length": book.value(key)})


def lora(book: Book) -> None:
    keys = ["lora_r", "lora_alpha", "lora_target_modules", "lora_dropout"]
    more = [key for key in book.table.defaults if key.startswith("lora_") and key not in keys]
    more += ["use_rslora", "use_dora"]
    if book.waits(["use_peft"]):
        return
    if not book.flag("use_peft"):
        book.exact(["use_peft"], "all weights are trained", {"model.lora.rank": 0})
        book.unused([*keys, *more], "use_peft is false")
        return
    settings = {"model.lora.rank": book.value(keys[0]), "model.lora.alpha": book.value(keys[1])}
    book.exact(["use_peft", *keys[:2]], "", settings)
    modules = book.value(keys[2])
    if modules is None:
        text = "peft's own choice for the model, often q_proj and v_proj; rlctl gives every linear layer factors"
        book.put(Group.MEANING, keys[2:3], text, {}, effect=Effect.RESULT)
    else:
        names = modules if isinstance(modules, list) else [modules]
        book.exact(keys[2:3], "", {"model.lora.target_modules": names})
    if book.number(keys[3]):
        book.missing(keys[3:], f"dropout of {shown(book.value(keys[3]))} on LoRA's factors; rlctl has none")
    elif book.number(keys[3]) == 0:
        book.exact(keys[3:], "no dropout")


def data(book: Book) -> None:
    name, config, column = "dataset_name", "dataset_config", "dataset_prompt_column"
    if not book.has(name) or book.waits([name]):
        return
    value = str(book.value(name))
    if value.endswith(FILES):
        book.exact([name], "", {"data.path": value})
        book.unused([config, "dataset_train_split", "dataset_test_split"], "the data is a file")
    else:
        text = "a folder" if value.startswith(("/", "./", "~", "../")) else ""
        book.exact([name], text, {"data.source": value})
        book.exact(
            [config], "TRL's default is the data set's own, rlctl's is `main`", {"data.subset": book.value(config)}
        )
        book.exact(["dataset_train_split"], "", {"data.train_split": book.value("dataset_train_split")})
        book.exact(["dataset_test_split"], "", {"data.eval_split": book.value("dataset_test_split")})
    prompt = book.value(column) if book.has(column) else "prompt"
    book.exact(
        [column] if book.has(column) else ["(columns)"], "the column of the prompt", {"data.question_key": prompt}
    )
    text = "TRL hands every column to the reward; name the one with the gold answer in data.answer_key"
    book.remark(Group.MISSING, "(columns)", text, effect=Effect.RESULT)


def evaluation(book: Book, pace: Pace) -> None:
    when, every = "eval_strategy", "eval_steps"
    if book.waits([when]):
        return
    if str(book.value(when)).lower() == "no":
        book.exact([when], "no evaluation", {"trainer.eval_freq": 0})
        book.unused([every, "num_generations_eval", "per_device_eval_batch_size"], "eval_strategy is no")
        return
    _frequency(book, when, every, "trainer.eval_freq", pace)
    size = book.value("num_generations_eval") or book.value("num_generations")
    if isinstance(size, int):
        book.exact(
            ["num_generations_eval"], "TRL evaluates with as many completions as it trains with", {"eval.n": size}
        )
    temperature = book.value("temperature")
    if not isinstance(temperature, Unresolved):
        text = "TRL evaluates at the training temperature"
        book.put(Group.DEFAULT, ["(evaluation)"], text, {"eval.temperature": temperature})


def saving(book: Book, pace: Pace) -> None:
    when, every = "save_strategy", "save_steps"
    if not book.waits([when]):
        _frequency(book, when, every, "trainer.save_freq", pace)


def _frequency(book: Book, when: str, every: str, setting: str, pace: Pace) -> None:
    strategy = str(book.value(when)).lower().removeprefix("saveStrategy.").removeprefix("intervalstrategy.")
    count = book.number(every) or (book.number("logging_steps") if every == "eval_steps" else None)
    if strategy == "no":
        book.exact([when], "never", {setting: 0})
        book.unused([every], f"{when} is no")
    elif strategy == "steps" and count and count >= 1:
        made = pace.steps(count)
        if made is None:
            book.missing(
                [when, every], "counted in updates, of which the file does not tell how many a step has", Effect.NONE
            )
        elif pace.updates == 1:
            book.exact([when, every], "", {setting: made})
        else:
            book.meaning([when, every], pace.words, {setting: made})
    else:
        book.missing([when, every], f"every {shown(strategy)}: rlctl counts steps in {setting}", Effect.NONE)
