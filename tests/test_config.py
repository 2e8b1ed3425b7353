"""Settings from every source: precedence, origins, and complaints that name the value, its origin and the cure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from rlctl import config
from rlctl.backends import registry
from rlctl.config import Loaded, load
from rlctl.errors import ConfigError
from rlctl.settings import Settings
from rlctl.settings_tree import PREFIX, json_schema, leaves, variable_name


def loaded(**sources: Any) -> Loaded:
    return load(**{"environ": {}, **sources})


def complaint(**sources: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(**sources)
    assert caught.value.exit_code == 2
    return f"{caught.value.message}\n{caught.value.hint}"


def toml(tmp_path: Path, text: str, name: str = "mine.toml") -> str:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.fixture
def fake_backend(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RLCTL_PLUGINS", "tests.fake_plugin")
    return "fake"


def test_defaults_are_those_that_the_user_fixed(fake_backend: str) -> None:
    settings = loaded(assignments=["backend=fake"]).settings
    assert settings.backend == "fake"
    assert settings.local.tiled_logits_compute is True
    block = settings.remote_backend["fake"]
    assert (block.colocate, block.tiled_logits_compute) == (True, True)


def test_precedence_and_origin_of_each_source(tmp_path: Path) -> None:
    # Field fault 091: remove the sources from the top, one at a time.
    preset = toml(tmp_path, "[rollout]\nn = 3\n", "preset.toml")
    file = toml(tmp_path, "[rollout]\nn = 4\n")
    sources: dict[str, Any] = {
        "preset": preset,
        "config": file,
        "environ": {"RLCTL_ROLLOUT__N": "5"},
        "assignments": ["rollout.n=6"],
        "options": {"rollout.n": ("--n", 7)},
    }
    seen = []
    for name in ["options", "assignments", "environ", "config", "preset"]:
        result = loaded(**sources)
        seen.append((result.settings.rollout.n, result.origins["rollout.n"]))
        sources.pop(name)
    result = loaded()
    seen.append((result.settings.rollout.n, result.origins["rollout.n"]))
    assert seen == [
        (7, "--n"),
        (6, "--set rollout.n"),
        (5, "RLCTL_ROLLOUT__N"),
        (4, file),
        (3, "preset preset"),
        (8, "default"),
    ]


def test_tables_are_merged_and_lists_replaced(tmp_path: Path) -> None:
    preset = toml(
        tmp_path, '[trainer]\nlr = 1e-5\nbetas = [0.8, 0.9]\n[reward]\nfunctions = ["a:b", "c:d"]\n', "p.toml"
    )
    file = toml(tmp_path, '[trainer]\nbetas = [0.7, 0.9]\n[reward]\nfunctions = ["gsm8k"]\n')
    settings = loaded(preset=preset, config=file).settings
    assert settings.trainer.lr == 1e-5
    assert settings.trainer.betas == (0.7, 0.9)
    assert settings.reward.functions == ["gsm8k"]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("trainer.test_freq", "verl's trainer.test_freq is trainer.eval_freq."),
        ("actor_rollout_ref.rollout.n", "verl's actor_rollout_ref.rollout.n is rollout.n; 1, verl's"),
        ("num_generations", "TRL's num_generations is rollout.n."),
        ("trainer.beta", "TRL's beta is algorithm.kl_coef, by k3."),
        ("trainer.gradient_accumulation_steps", "TRL's gradient_accumulation_steps is trainer.mini_batch_size."),
        ("trainer.val_before_train", "verl's trainer.val_before_train has no counterpart: rlctl evaluates before"),
        ("algorithm.seed", "Did you mean seed?"),  # TRL's is of that name too, and needs no word on TRL
        ("trainer.savefreq", "Did you mean trainer.save_freq?"),
    ],
)
def test_a_setting_by_its_name_elsewhere_is_told_with_its_name_here(name: str, told: str) -> None:
    assert f"{name} (from --set) is not a setting. {told}" in complaint(assignments=[f"{name}=1"])


@pytest.mark.parametrize(
    ("variable", "nearest"),
    [
        # Field fault 087.
        ("RLCTL_TRIANER__LR", "RLCTL_TRAINER__LR"),
        ("RLCTL_TRAINER_LR", "RLCTL_TRAINER__LR"),
        ("RLCTL_TRAINER__LRR", "RLCTL_TRAINER__LR"),
        ("RLCTL_SEEDS", "RLCTL_SEED"),
        ("rlctl_trainer_lr", "RLCTL_TRAINER__LR"),
        ("RLCTL_PLUGIN", "RLCTL_PLUGINS"),
        ("RLCTL_LOCAL__TILED_LOGITS", "RLCTL_LOCAL__TILED_LOGITS_COMPUTE"),
    ],
)
def test_misspelt_variables_are_refused_with_the_nearest(variable: str, nearest: str) -> None:
    text = complaint(environ={variable: "1e-5"})
    assert variable in text
    assert f"Did you mean {nearest}?" in text


def test_other_programs_variables_have_no_effect() -> None:
    # Field fault 090.
    environ = {"USER": "alice", "HOME": "/x", "RLCTL": "y", "RLCTL_ALGORITHM__KL_COEF": "0.1"}
    settings = loaded(environ=environ).settings
    assert settings.algorithm.kl_coef == 0.1


@pytest.mark.parametrize(
    ("text", "path", "nearest"),
    [
        # Field fault 088: at the top, in a section, in a preset's variant below.
        ("learning_rte = 1e-5", "learning_rte", ""),
        ("[trainer]\nlearning_rate = 1e-5", "trainer.learning_rate", ""),
        ("[trainer]\nweight_decey = 0.1", "trainer.weight_decey", "trainer.weight_decay"),
        ("[trianer]\nlr = 1e-5", "trianer", "trainer"),
        (
            "[reward.gsm8k]\nallow_last_nummer = true",
            "reward.gsm8k.allow_last_nummer",
            "reward.gsm8k.allow_last_number",
        ),
    ],
)
@pytest.mark.parametrize("source", ["config", "preset"])
def test_unknown_keys_are_refused_with_path_and_origin(
    tmp_path: Path, source: str, text: str, path: str, nearest: str
) -> None:
    told = complaint(**{source: toml(tmp_path, text)})
    assert f"{path} (from " in told
    assert "mine" in told
    assert f"Did you mean {nearest}" in told if nearest else "is not a setting" in told


def test_unknown_key_in_a_variant_is_refused(tmp_path: Path) -> None:
    preset = toml(tmp_path, '[[variant]]\nname = "a"\n[variant.settings.trainer]\nlrr = 1\n')
    assert "trainer.lrr (from preset mine, variant a) is not a setting. Did you mean trainer.lr?" in complaint(
        preset=preset
    )


@pytest.mark.parametrize("text", ["0", "false", "False", "off", "no"])
def test_false_in_the_environment_is_false(text: str) -> None:
    # Field fault 094.
    settings = loaded(environ={"RLCTL_LOCAL__TILED_LOGITS_COMPUTE": text}).settings
    assert settings.local.tiled_logits_compute is False


@pytest.mark.parametrize("text", ["", "disabled", "2"])
def test_what_is_no_boolean_is_an_error(text: str) -> None:
    told = complaint(environ={"RLCTL_LOCAL__TILED_LOGITS_COMPUTE": text})
    assert (
        f'local.tiled_logits_compute = "{text}" (from RLCTL_LOCAL__TILED_LOGITS_COMPUTE) must be a valid boolean'
        in told
    )


def test_null_is_the_one_spelling_of_nothing() -> None:
    # Field fault 093.
    assert loaded(environ={"RLCTL_TRAINER__STEPS": "null"}).settings.trainer.steps is None
    for text in ("None", "none", "", "~"):
        assert "write null" in complaint(environ={"RLCTL_TRAINER__STEPS": text})
    assert "write null" in complaint(assignments=["model.tokenizer=None"])


def test_numbers_mean_the_same_in_every_source(tmp_path: Path) -> None:
    # Field fault 097: 010 is ten in the environment and an error in TOML, never eight.
    assert loaded(environ={"RLCTL_SEED": "010"}).settings.seed == 10
    assert "not valid TOML" in complaint(config=toml(tmp_path, "seed = 010"))
    assert loaded(config=toml(tmp_path, "seed = 1_000")).settings.seed == 1000
    for text in ("0o10", "12:30", "1.5", "ten", "NaN"):
        assert 'seed = "' in complaint(environ={"RLCTL_SEED": text})


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "0", "-1"])
def test_a_learning_rate_is_a_positive_number(value: str) -> None:
    assert "trainer.lr" in complaint(assignments=[f"trainer.lr={value}"])


def test_a_boolean_is_not_a_number(tmp_path: Path) -> None:
    assert "trainer.steps = true" in complaint(config=toml(tmp_path, "[trainer]\nsteps = true"))


def test_all_complaints_come_at_once(tmp_path: Path) -> None:
    told = complaint(
        config=toml(tmp_path, "[rollout]\nn = 1\nnn = 2\n"),
        environ={"RLCTL_TRAINER__LR": "fast", "RLCTL_TRAINER__GRAD_CLIP": "-1", "RLCTL_NOPE__X": "1"},
        assignments=["data.prompt_format=poem", "eval.m=3", "novalue"],
    )
    for part in (
        "rollout.n = 1",
        "rollout.nn",
        "trainer.lr",
        "trainer.grad_clip",
        "RLCTL_NOPE__X",
        "prompt_format",
        "eval.m",
        "novalue",
    ):
        assert part in told


def test_group_of_one_is_refused() -> None:
    # Field fault 004.
    told = complaint(environ={"RLCTL_ROLLOUT__N": "1"})
    assert 'rollout.n = "1" (from RLCTL_ROLLOUT__N) must be greater than or equal to 2' in told


@pytest.mark.parametrize(
    ("batch", "mini", "parts"),
    [(6, 4, ["6 is not a multiple", "3 or 6", "4 or 8"]), (32, 5, ["4 or 8", "30 or 35"]), (8, 16, ["8 is not", "16"])],
)
def test_geometry_that_does_not_divide_names_the_nearest(batch: int, mini: int, parts: list[str]) -> None:
    # Field fault 009.
    told = complaint(assignments=[f"trainer.train_batch_size={batch}", f"trainer.mini_batch_size={mini}"])
    assert all(part in told for part in parts), told
    assert "trainer.mini_batch_size from --set trainer.mini_batch_size" in told


def test_biased_sampling_needs_an_opt_in() -> None:
    for one in ("rollout.top_p=0.9", "rollout.top_k=20", "rollout.min_p=0.1"):
        assert "allow_biased_sampling" in complaint(assignments=[one])
        assert loaded(assignments=[one, "rollout.allow_biased_sampling=true"]).settings


def test_settings_are_frozen_and_validated_whole() -> None:
    # Field fault 099.
    settings = loaded().settings
    with pytest.raises(ValidationError):
        settings.rollout.n = 3  # type: ignore[misc]
    with pytest.raises(ValidationError):
        settings.seed = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('{"trainer": {"lr": 1e-5}}', "settings files are TOML"),
        ("trainer:\n  lr: 1e-5\n", "not valid TOML"),
        ("[trainer]\nlr = 1e-5\nlr = 2e-5\n", "not valid TOML"),
        ("trainer = 3\n", "trainer"),
    ],
)
def test_a_file_that_is_not_settings_is_told_so(tmp_path: Path, text: str, part: str) -> None:
    assert part in complaint(config=toml(tmp_path, text, "mine.yaml"))


def test_a_file_with_bad_bytes_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(b"[trainer]\nlr = 1e-5 # caf\xe9\n")
    assert f"{path}:2: not UTF-8" in complaint(config=str(path))
    path.write_bytes(b"\xef\xbb\xbfseed = 4\r\n")
    assert loaded(config=str(path)).settings.seed == 4


def test_a_missing_file_names_the_nearest(tmp_path: Path) -> None:
    toml(tmp_path, "", "settings.toml")
    assert "Did you mean settings.toml?" in complaint(config=str(tmp_path / "setings.toml"))
    assert "cannot be read" in complaint(config=str(tmp_path))


def test_unknown_preset_variant_and_backend_name_the_nearest() -> None:
    assert "Did you mean gsm8k-grpo?" in complaint(preset="gsm8k-gpro")
    assert "Did you mean embedded?" in complaint(preset="gsm8k-grpo", variant="embeded")
    assert "has no variants" in complaint(preset="smoke", variant="cpu")
    assert "without a preset" in complaint(variant="cpu")
    told = complaint(assignments=["backend=locl"])
    assert 'backend = "locl" (from --set backend)' in told
    assert "'local'" in told


def test_blocks_are_typed_by_their_backends_own_class(fake_backend: str, tmp_path: Path) -> None:
    block = loaded(
        environ={"RLCTL_REMOTE_BACKEND__FAKE__COLOCATE": "false", "RLCTL_REMOTE_BACKEND__FAKE__NAN_AT_UPDATE": "3"}
    ).settings.remote_backend["fake"]
    assert (type(block).__name__, block.colocate, block.nan_at_update) == ("FakeSettings", False, 3)
    told = complaint(config=toml(tmp_path, "[remote_backend.fake]\ncolocat = true\nnan_at_update = 'x'\n"))
    assert "remote_backend.fake.colocat (from" in told
    assert "Did you mean remote_backend.fake.colocate?" in told
    assert 'remote_backend.fake.nan_at_update = "x"' in told
    told = complaint(environ={"RLCTL_REMOTE_BACKEND__FAKE__NAN_AT": "3"})
    assert "Did you mean RLCTL_REMOTE_BACKEND__FAKE__NAN_AT_UPDATE?" in told
    assert "remote_backend.nobody" in complaint(config=toml(tmp_path, "[remote_backend.nobody]\ncolocate = true\n"))


def test_secrets_are_masked_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    # Field fault 102.
    monkeypatch.setenv("RLCTL_PLUGINS", "tests.secret_plugin")
    environ = {"RLCTL_REMOTE_BACKEND__SECRETIVE__TOKEN": "s3cr3t-xyz"}
    result = loaded(environ=environ)
    assert "s3cr3t-xyz" not in json.dumps(config.dump(result.settings)) + repr(result) + json.dumps(
        dict(result.origins)
    )
    assert result.settings.remote_backend["secretive"].token.get_secret_value() == "s3cr3t-xyz"
    told = complaint(environ={**environ, "RLCTL_REMOTE_BACKEND__SECRETIVE__TOKN": "s3cr3t-xyz", "RLCTL_SEED": "x"})
    assert "s3cr3t-xyz" not in told
    told = complaint(environ={"RLCTL_REMOTE_BACKEND__SECRETIVE__TOKEN": "s3cr3t-x"})  # too short: 10 are wanted
    assert "s3cr3t-x" not in told
    assert "***" in told


def test_every_leaf_has_its_own_variable() -> None:
    # Field fault 090: the name of a variable leads back to its setting and to no other.
    all_keys = list(leaves())
    names = [variable_name(keys) for keys in all_keys]
    assert len(set(names)) == len(names)
    for keys, name in zip(all_keys, names, strict=True):
        back = tuple(name.removeprefix(PREFIX).lower().split("__"))
        assert back == tuple(key.replace("-", "_") for key in keys)


def test_every_setting_is_documented_and_in_the_schema() -> None:
    schema = json_schema()
    text = json.dumps(schema)
    for keys in leaves():
        assert f'"{keys[-1]}"' in text
    for definition in schema["$defs"].values():
        for name, field in definition.get("properties", {}).items():
            if "$ref" not in field and "allOf" not in field:
                assert field.get("description"), name
    for block in schema["properties"]["remote_backend"]["properties"].values():
        assert all(field.get("description") for field in block["properties"].values())
    assert set(schema["properties"]["remote_backend"]["properties"]) == set(registry.names()) - {"local"}


def test_every_accepted_setting_has_a_reader() -> None:
    """A setting that nothing reads is accepted and does nothing: look for each name as an attribute in the code."""
    package = Path(config.__file__).parent
    code = "\n".join(
        p.read_text(encoding="utf-8") for p in package.rglob("*.py") if "arctic" not in p.relative_to(package).parts
    )
    lists = (package / "data.py").read_text(encoding="utf-8")
    for keys in leaves():
        if keys[0] == "remote_backend":
            continue  # read by the backend itself; its contract test knows
        assert (
            f".{keys[-1]}" in code or f"    {keys[-1]}:" in lists or keys == ("reward", "gsm8k", "allow_last_number")
        ), keys


def test_presets_that_ship_are_valid() -> None:
    for preset, variant in [("gsm8k-grpo", "gpu"), ("gsm8k-grpo", "embedded"), ("gsm8k-grpo", "cpu"), ("smoke", None)]:
        result = loaded(preset=preset, variant=variant)
        assert isinstance(result.settings, Settings)
    gpu = loaded(preset="gsm8k-grpo", variant="gpu").settings
    assert gpu.model.path == "Qwen/Qwen3-1.7B"
    assert (gpu.trainer.train_batch_size, gpu.rollout.n) == (32, 8)
    assert (gpu.data.max_prompt_length, gpu.rollout.max_response_length) == (1024, 1024)
    assert (gpu.trainer.lr, gpu.trainer.warmup_ratio, gpu.trainer.betas) == (1e-6, 0.05, (0.9, 0.95))
    assert (gpu.algorithm.clip_ratio_low, gpu.algorithm.kl_coef) == (0.2, 0.0)
    assert gpu.data.prompt_suffix == 'Let\'s think step by step and output the final answer after "####".'


@pytest.mark.parametrize(
    "text",
    [
        "model = 3\n",
        "trainer = [1]\n",
        "[[model]]\npath = 'x'\n",
        "[remote_backend]\nfake = 3\n",
        "remote_backend = 1\n",
    ],
)
def test_a_table_that_is_no_table_is_an_error_and_no_crash(tmp_path: Path, fake_backend: str, text: str) -> None:
    assert complaint(config=toml(tmp_path, text), preset="gsm8k-grpo")


def test_two_spellings_of_one_variable_are_refused() -> None:
    told = complaint(environ={"RLCTL_TRAINER__STEPS": "3", "rlctl_trainer__steps": "4"})
    assert "are the same setting; keep one" in told


@pytest.mark.parametrize("source", ["preset", "config"])
def test_an_empty_name_is_not_no_name(source: str) -> None:
    assert complaint(**{source: ""})


@pytest.mark.parametrize("text", ['["gsm8k"', "[1"])
def test_a_broken_list_is_an_error(text: str) -> None:
    assert "is not a JSON list" in complaint(environ={"RLCTL_REWARD__FUNCTIONS": text})
    assert loaded(environ={"RLCTL_REWARD__FUNCTIONS": "gsm8k, a:b"}).settings.reward.functions == ["gsm8k", "a:b"]


def test_null_in_a_file_switches_off_what_has_a_default(tmp_path: Path) -> None:
    settings = loaded(
        config=toml(tmp_path, '[algorithm]\nclip_ratio_c = "null"\n[data]\nprompt_suffix = "null"\n')
    ).settings
    assert settings.algorithm.clip_ratio_c is None
    assert settings.data.prompt_suffix == "null"


def test_local_is_no_remote_backend() -> None:
    assert "remote_backend.local" in complaint(assignments=["remote_backend.local.dtype=float32"])


@pytest.mark.parametrize(
    "setting", ["rollout.temperature=1e-320", "eval.temperature=1e-9", "rollout.n=99999999", "trainer.steps=1e400"]
)
def test_numbers_that_no_run_can_use_are_refused(setting: str) -> None:
    assert setting.split("=")[0] in complaint(assignments=[setting])


def test_switches_that_are_no_settings_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RLCTL_NO_KERNELS", "RLCTL_NO_AMX", "RLCTL_CACHE_DIR"):
        monkeypatch.setenv(name, "1")
    assert loaded(preset="smoke").settings


@pytest.mark.parametrize("name", ["ray", "arctic"])
def test_one_of_some_numbers_can_be_set_from_a_shell(name: str) -> None:
    by_option = loaded(assignments=[f"remote_backend.{name}.zero_stage=3"]).settings
    by_variable = loaded(environ={f"RLCTL_REMOTE_BACKEND__{name.upper()}__ZERO_STAGE": " 3"}).settings
    assert [each.remote_backend[name].zero_stage for each in (by_option, by_variable)] == [3, 3]
    assert 'zero_stage = "4" (from --set' in complaint(assignments=[f"remote_backend.{name}.zero_stage=4"])


def test_a_number_of_thousands_of_digits_is_no_toml(tmp_path: Path) -> None:
    assert "not valid TOML" in complaint(config=toml(tmp_path, f"seed = {'9' * 5000}"))


def test_one_key_of_a_free_table_is_set_by_its_dotted_name() -> None:
    """JSON where it is that, else text; merged with the whole table where that is given too."""
    table = "remote_backend.ray.vllm"
    texts = ("enforce_eager=true", "block_size=16", "kv_cache_dtype=fp8", 'limits={"image": 2}', "quantization=null")
    result = loaded(assignments=["backend=ray", f'{table}={{"max_seq": 1}}', *(f"{table}.{text}" for text in texts)])
    assert result.settings.remote_backend["ray"].vllm == {
        "max_seq": 1, "enforce_eager": True, "block_size": 16, "kv_cache_dtype": "fp8", "limits": {"image": 2},
        "quantization": None,
    }  # fmt: skip
    told = complaint(assignments=["backend=ray", f"{table}.enforce_eager=True"])
    assert f'{table}.enforce_eager = "True" (from --set {table}.enforce_eager) is Python; write true' in told


def test_a_variable_for_one_key_of_a_free_table_names_the_tables_own() -> None:
    told = complaint(environ={"RLCTL_REMOTE_BACKEND__RAY__VLLM__ENFORCE_EAGER": "true"})
    assert """Write RLCTL_REMOTE_BACKEND__RAY__VLLM='{"KEY": VALUE}'.""" in told
