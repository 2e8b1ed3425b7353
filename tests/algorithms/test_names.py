"""Estimators and losses by name: built in, of plugins, and unknown; and the settings that do not go together."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from rlctl import config, presets
from rlctl.algorithms import estimators, losses
from rlctl.algorithms.idle import idle_lines
from rlctl.algorithms.registry import Registry
from rlctl.algorithms.words import algorithm_line
from rlctl.backends import registry as backends
from rlctl.completion.names import assignments
from rlctl.errors import BackendError, BackendUnavailable, ConfigError
from rlctl.recipe import advantage_spec
from rlctl.settings import Settings
from tests.algorithms.test_steps import Recording, algorithm, step

PLUGIN = "tests.algorithms.foreign"


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The plugin, named in RLCTL_PLUGINS, and afterwards as if it had never been there."""
    monkeypatch.setenv("RLCTL_PLUGINS", PLUGIN)
    yield
    sys.modules.pop(PLUGIN, None)
    for known in (estimators.registry, losses.registry):
        for name in [name for name, module in known._origins.items() if module == PLUGIN]:
            del known._entries[name], known._origins[name]


def test_every_built_in_can_be_loaded_and_says_its_formula_and_source() -> None:
    for known in (estimators.registry, losses.registry):
        for name in known.names():
            assert callable(known.load(name))
            entry = known.get(name)
            assert entry.formula
            assert entry.source.startswith("https://arxiv.org/abs/")


def test_an_unknown_name_lists_the_nearest_and_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="did you mean 'rloo'") as error:
        estimators.registry.get("rlooo")
    assert "reinforce_plus_plus" in str(error.value.hint)
    assert "rlctl.advantages" in str(error.value.hint)


@pytest.mark.parametrize("known", [estimators.registry, losses.registry])
def test_a_name_of_another_framework_is_told_in_ours(known: Registry[Any]) -> None:
    assert known.elsewhere
    for name, ours in known.elsewhere.items():
        assert ours.replace(",", " ").split()[0] in known.names()
        with pytest.raises(ConfigError, match=re.escape(f"; what others call that is {ours} here.")):
            known.get(name.upper().replace("_", "-"))


def test_a_plugins_estimator_trains(plugin: None) -> None:
    backend = Recording()
    step(algorithm(adv_estimator="doubled"), [1.0, 0.5], backend=backend)
    assert [row.advantage for row in backend.updates[0]] == [2.0, 1.0] * 8


def test_an_estimator_may_give_each_token_its_own(plugin: None) -> None:
    backend, config = Recording(), algorithm(adv_estimator="last_token")
    assert config.loss.token_advantages
    step(config, [1.0, 0.5], backend=backend)
    assert all((row.advantages[:-1] == 0).all() for row in backend.updates[0])
    assert [float(row.advantages[-1]) for row in backend.updates[0]] == [1.0, 0.5] * 8


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("too_few", "returned 4 advantages in 4 groups for 16 rewards"),
        ("infinite", "not finite"),
        ("huge", "returned 1e\\+300, which is not finite in float32"),
        ("exits", "raised SystemExit: 3"),
        ("undeclared", "without by_token"),
    ],
)
def test_an_estimator_that_gives_something_else_ends_the_run(plugin: None, name: str, told: str) -> None:
    # Field fault 006, for a plugin's estimator: nothing is broadcast.
    backend = Recording()
    with pytest.raises(ConfigError, match=f"{name}.*{told}"):
        step(algorithm(adv_estimator=name), [1.0, 0.5], backend=backend)
    assert backend.updates == []


def test_a_plugins_loss_is_computed_by_the_engine(plugin: None) -> None:
    from rlctl.engine.policy_losses import Tokens, loss_function

    spec = Settings(algorithm={"policy_loss": "plain"}).loss()
    two = torch.tensor([2.0])
    loss, clipped = loss_function(spec)(Tokens(two, two, two), spec)
    assert (loss.tolist(), clipped.tolist()) == ([-4.0], [False])


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("mean", r"gave shapes \(\) and \(1,\) for 1 tokens"),
        ("no_loss", "failed: TypeError"),
        ("leaving", "failed: SystemExit: 3"),
        ("detached", "has no gradient"),
    ],
)
def test_a_plugins_loss_that_gives_something_else_is_named(plugin: None, name: str, told: str) -> None:
    from rlctl.engine.policy_losses import Tokens, loss_function

    spec, two = Settings(algorithm={"policy_loss": name}).loss(), torch.tensor([2.0])
    drawn = torch.tensor([-1.0], requires_grad=True)
    with pytest.raises(BackendError, match=f"'{name}' {told}"):
        loss_function(spec)(Tokens(drawn, drawn, two), spec)


def test_a_module_of_the_variable_may_be_in_the_working_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "lying_about.py").write_text("raise ValueError('found')\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RLCTL_PLUGINS", "lying_about")
    with pytest.raises(ConfigError, match="ValueError: found"):
        estimators.registry.get("mine")
    assert any("found" in failure.message for failure in backends.open_plugins())


def test_a_plugin_with_an_algorithm_alone_is_no_failed_backend(plugin: None) -> None:
    algorithm(adv_estimator="doubled")
    assert not [record for record in backends.plugins() if record.name == PLUGIN]
    assert ("doubled", f"module {PLUGIN}", None) in estimators.registry.foreign()
    assert ("plain", f"module {PLUGIN}", None) in losses.registry.foreign()


def test_a_plugin_that_fails_is_told_to_who_asks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "half_a_plugin.py").write_text(
        "from rlctl.algorithms import estimators\n"
        "estimators.register('half', function='half_a_plugin:half')\n"
        "raise ValueError('no such file')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("RLCTL_PLUGINS", "half_a_plugin")
    with pytest.raises(ConfigError, match="ValueError: no such file"):
        estimators.registry.get("half")
    assert estimators.registry.get("grpo").name == "grpo"


def test_a_plugin_is_found_in_the_folder_one_stands_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside_me.py").write_text(
        "from rlctl.algorithms import estimators\nestimators.register('beside', function='beside_me:f')\n"
    )
    monkeypatch.setenv("RLCTL_PLUGINS", "beside_me")
    assert estimators.registry.get("beside").function == "beside_me:f"
    del estimators.registry._entries["beside"], estimators.registry._origins["beside"]


def test_an_entry_point_is_opened_when_its_name_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    known: Registry[estimators.Estimator] = Registry(
        "advantage estimator", group="some.group", setting="", elsewhere={}
    )
    module = SimpleNamespace(__name__="a_package", __file__="")
    monkeypatch.setitem(sys.modules, "a_package", module)  # type: ignore[arg-type]
    point = EntryPoint("mine", "a_package", "some.group")
    monkeypatch.setattr("rlctl.algorithms.registry.entry_points", lambda group: {known.group: (point,)}[group])
    assert known.names() == ["mine"]
    with pytest.raises(ConfigError, match="there is no advantage estimator 'mine'"):
        known.get("mine")
    known.add(estimators.Estimator("mine", "a_package:f", ""), module="a_package")
    assert known.get("mine").function == "a_package:f"


@pytest.mark.parametrize(
    ("name", "function", "told"),
    [("grpo", "a:b", "is taken"), ("a b", "a:b", "is no name"), ("new", "a.b", "package.module:function")],
)
def test_a_registration_that_is_wrong_is_refused(name: str, function: str, told: str) -> None:
    with pytest.raises(ConfigError) as error:
        estimators.register(name, function=function)
    assert told in f"{error.value.message} {error.value.hint}"


IN_REWARD = {"use_kl_in_reward": True, "kl_coef": 0.1}


@pytest.mark.parametrize(
    ("changes", "in_loss", "in_reward"),
    [
        ({}, 0.0, 0.0),
        ({"kl_coef": 0.1}, 0.1, 0.0),
        ({"kl_loss_coef": 0.2}, 0.2, 0.0),
        ({"kl_coef": 0.2, "kl_loss_coef": 0.2}, 0.2, 0.0),
        (IN_REWARD, 0.0, 0.1),
        ({**IN_REWARD, "kl_loss_coef": 0.2}, 0.2, 0.1),
    ],
)
def test_kl_in_loss_and_in_reward_have_weights_of_their_own(
    changes: dict[str, Any], in_loss: float, in_reward: float
) -> None:
    settings = Settings(algorithm=changes)
    assert (settings.loss().kl_coef, advantage_spec(settings).kl_coef) == (in_loss, in_reward)
    assert settings.job(model="", end_token_ids=()).needs_reference is bool(in_loss or in_reward)


@pytest.mark.parametrize(
    ("tables", "told"),
    [
        ({"algorithm": {"adv_estimator": "gae"}}, "no advantage estimator 'gae'"),
        ({"algorithm": {"policy_loss": "GSPO"}}, "no policy loss 'GSPO'"),
        ({"algorithm": {"policy_loss": ""}}, "no policy loss ''"),
        ({"algorithm": {"policy_loss": "gspo", "loss_agg_mode": "seq-mean-token-sum"}}, "set it to seq-mean-token"),
        ({"algorithm": {"policy_loss": "sapo", "importance_sampling": "sequence"}}, "it is for vanilla"),
        ({"algorithm": {"use_kl_in_reward": True}}, "set algorithm.kl_coef above 0"),
        ({"algorithm": {"use_kl_in_reward": True, "kl_coef": 0.1, "adv_estimator": "gdpo"}}, "puts KL into the loss"),
        ({"algorithm": {"kl_coef": 0.1, "kl_loss_coef": 0.2}}, "set one of them"),
        ({"algorithm": {"kl_coef": 0.1, "kl_target": 0.05}}, "steers the weight of KL off the reward, and none"),
        ({"algorithm": {**IN_REWARD, "kl_target": 0.05, "kl_horizon": 51}}, "make it more than 51"),
        ({"algorithm": {"clip_cov_lb": 5.0}}, "must be below algorithm.clip_cov_ub = 5"),
        ({"algorithm": {"rollout_is": "token", "rollout_is_mode": "mask", "rollout_is_threshold": 0.5}}, "least"),
        ({"algorithm": {"kl_penalty": "k3+"}}, "'k1', 'k2', 'k3' or 'abs'"),
        ({"algorithm": {"tau_pos": 0.0}}, "greater than 0"),
        ({"reward": {"overlong_buffer_len": 1025}}, "cannot be longer"),
        ({"reward": {"rank_in_group": True}, "algorithm": {"adv_estimator": "gdpo"}}, "leave one of them out"),
        *(
            (
                {"rollout": {"allow_biased_sampling": True, name: value}, "algorithm": {"rollout_is": "sequence"}},
                "which are both of the whole vocabulary",
            )
            for name, value in (("top_p", 0.9), ("top_k", 50), ("min_p", 0.1))
        ),
    ],
)  # fmt: skip
def test_settings_that_do_not_go_together_are_refused(tables: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told.replace("+", r"\+")):
        Settings(**tables)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"policy_loss": "gspo"}, "policy_loss = gspo"),
        ({"importance_sampling": "sequence"}, "importance_sampling = sequence"),
        ({"rollout_is": "token"}, "differ from token to token"),
        ({"kl_coef": 0.1, "kl_estimator": "k3+"}, "kl_estimator = k3+"),
    ],
)
def test_a_backend_that_says_nothing_is_asked_for_the_clipped_loss_only(changes: dict[str, Any], told: str) -> None:
    obstacle = Recording().loss_obstacle(Settings(algorithm=changes).loss())
    assert obstacle is not None
    assert told in obstacle
    assert Recording().loss_obstacle(Settings().loss()) is None


def test_a_loss_whose_code_is_not_there_stops_the_run_before_it_starts(plugin: None) -> None:
    settings = Settings(algorithm={"policy_loss": "absent"})
    from rlctl.backends.local.backend import LocalBackend

    backend = LocalBackend(settings.local, settings.job(model="", end_token_ids=()))
    with pytest.raises(BackendUnavailable, match="has no 'absent'"):
        backend.loss_obstacle(settings.loss())


PLAIN = (
    "effective algorithm: grpo advantages divided by their standard deviation, vanilla loss, token-mean, clip 0.2/0.2, "
    "dual clip 3, no KL, no rollout correction, groups of equal rewards left out"
)
GSPO = (
    "effective algorithm: rloo advantages, gspo loss, seq-mean-token-mean, clip 0.2/0.2, KL 0.1 (k3+) in the loss, "
    "no rollout correction, groups of equal rewards left out"
)
EVERYTHING = (
    "effective algorithm: remax advantages, up to 1 off over the last 64 tokens, clip_cov loss, token-mean, clip "
    "0.2/0.2, 0.0002 of the tokens by covariance, KL 0.1 (k1) off the reward, rollout weights by sequence "
    "(product) masked outside 0.5 to 2, groups of equal rewards kept, truncated completions left out"
)
BOTH = "KL 0.02 (k3) in the loss, KL 0.1 (k1) off the reward"
STEERED = "KL 0.1 (k1) off the reward at first, steered to 0.05 nats a token"
MUCH = {
    "adv_estimator": "remax", "policy_loss": "clip_cov", "use_kl_in_reward": True, "kl_coef": 0.1,
    "rollout_is": "sequence", "rollout_is_mode": "mask", "mask_truncated_completions": True,
}  # fmt: skip


@pytest.mark.parametrize(
    ("tables", "told"),
    [
        ({}, PLAIN),
        ({"algorithm": {"adv_estimator": "rloo", "policy_loss": "gspo", "kl_coef": 0.1, "kl_estimator": "k3+"}}, GSPO),
        ({"algorithm": MUCH, "reward": {"overlong_buffer_len": 64}}, EVERYTHING),
        ({"algorithm": {**IN_REWARD, "kl_loss_coef": 0.02}}, PLAIN.replace("no KL", BOTH)),
        ({"algorithm": {**IN_REWARD, "kl_target": 0.05}}, PLAIN.replace("no KL", STEERED)),
    ],
)
def test_the_effective_algorithm_is_one_line(tables: dict[str, Any], told: str) -> None:
    assert algorithm_line(Settings(**tables)) == told


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"tau_pos": 3}, ["algorithm.tau_pos = 3 changes nothing, since algorithm.policy_loss is vanilla"]),
        (
            {"policy_loss": "gspo", "clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4, "clip_ratio_c": None},
            ["algorithm.clip_ratio_c = null changes nothing, since algorithm.policy_loss is gspo"],
        ),
        (
            {"adv_estimator": "rloo", "norm_adv_by_std": False},
            ["algorithm.norm_adv_by_std = false changes nothing, since algorithm.adv_estimator is rloo"],
        ),
        ({"policy_loss": "cispo", "clip_ratio_high": 4.0}, []),
        ({"policy_loss": "cispo", "clip_ratio_low": 0.1}, [
            "algorithm.clip_ratio_low = 0.1 changes nothing, since algorithm.policy_loss is cispo"
        ]),
        ({"policy_loss": "gspo", "clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4}, []),
        ({"kl_estimator": "k1"}, ["algorithm.kl_estimator = k1 changes nothing, since algorithm.kl_coef is 0"]),
        (
            {"kl_estimator": "k1", "kl_coef": 0.1, "use_kl_in_reward": True},
            ["algorithm.kl_estimator = k1 changes nothing, since algorithm.use_kl_in_reward is true"],
        ),
        ({"kl_estimator": "k1", "kl_coef": 0.1}, []),
        ({"kl_estimator": "k1", "kl_loss_coef": 0.1}, []),
        ({"kl_estimator": "k1", "kl_coef": 0.1, "use_kl_in_reward": True, "kl_loss_coef": 0.1}, []),
        ({"kl_horizon": 7}, ["algorithm.kl_horizon = 7 changes nothing, since algorithm.kl_target is null"]),
        (
            {"rollout_is": "token", "rollout_is_combine": "geometric", "rollout_is_lower": 0.1},
            [
                "algorithm.rollout_is_lower = 0.1 changes nothing, since algorithm.rollout_is_mode is truncate",
                "algorithm.rollout_is_combine = geometric changes nothing, since algorithm.rollout_is is token",
            ],
        ),
        ({"max_refills": 9}, ["algorithm.max_refills = 9 changes nothing, since algorithm.filter_groups is false"]),
        ({"max_refills": 9, "filter_groups": True}, []),
        ({"policy_loss": "plain", "tau_pos": 3, "clip_ratio_c": 5}, []),
    ],
)  # fmt: skip
def test_settings_without_a_use_are_told(plugin: None, table: dict[str, Any], told: list[str]) -> None:
    assert list(idle_lines(Settings(algorithm=table).algorithm)) == told  # type: ignore[arg-type]


def test_bounds_that_never_cut_a_completions_ratio_are_told() -> None:
    (line,) = idle_lines(Settings(algorithm={"policy_loss": "gspo"}).algorithm)  # type: ignore[arg-type]
    assert line.startswith("algorithm.clip_ratio_low = 0.2 and clip_ratio_high = 0.2 hardly ever cut")


@pytest.mark.parametrize("name", sorted(presets.available()))
def test_no_preset_sets_what_its_algorithm_has_no_use_for(name: str) -> None:
    assert list(idle_lines(config.load(preset=name, environ={}).settings.algorithm)) == []


def test_names_complete_with_their_formulas(plugin: None) -> None:
    found = dict(assignments("algorithm.policy_loss="))
    assert found["algorithm.policy_loss=gpg"] == "-A_t log p(t)"
    assert "algorithm.policy_loss=plain" in found
    assert "algorithm.adv_estimator=doubled" in dict(assignments("algorithm.adv_estimator="))


def test_the_vanilla_bounds_are_told_beside_gmpos() -> None:
    (line,) = idle_lines(Settings(algorithm={"policy_loss": "gmpo"}).algorithm)  # type: ignore[arg-type]
    assert line.endswith("GMPO's paper has 0.4 and 0.4")
    own = {"policy_loss": "gmpo", "clip_ratio_low": 0.4, "clip_ratio_high": 0.4}
    assert list(idle_lines(Settings(algorithm=own).algorithm)) == []  # type: ignore[arg-type]
