"""Launch scripts are followed, never run."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlctl.errors import ConfigError
from rlctl.peers.entries import Source, Unresolved
from rlctl.peers.reading import read


def script(tmp_path: Path, text: str) -> Source:
    path = tmp_path / "run.sh"
    path.write_text(text, encoding="utf-8")
    return read(str(path))


def values(tmp_path: Path, text: str) -> dict[str, object]:
    return {entry.key: entry.value for entry in script(tmp_path, text).entries}


def test_variables_arrays_and_arithmetic_are_followed(tmp_path: Path) -> None:
    # The shape of verl's DAPO recipes.
    text = """#!/usr/bin/env bash
set -xeuo pipefail
project='DAPO'   # quotes
N=16
max_prompt=$((1024 * 2))
max_response=$((1024 * 20))
tokens=$(( (max_prompt + max_response) * 2 / N ))
export NNODES=${NNODES:-4}
MODEL=${MODEL:-"Qwen/Qwen2.5-7B"}
EXTRA=(data.shuffle=False
  # in between
  "trainer.project_name=${project}")
EXTRA+=(trainer.nnodes=$NNODES)

python3 -m verl.trainer.main_ppo \\
    data.max_prompt_length=${max_prompt} \\
    actor_rollout_ref.rollout.n="${N}" \\
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=${tokens} \\
    actor_rollout_ref.model.path="${MODEL}/$N" \\
    "${EXTRA[@]}" trainer.logger='["console","wandb"]' 2>&1 | tee log.txt &
"""
    found = script(tmp_path, text)
    assert {entry.key: entry.value for entry in found.entries} == {
        "data.max_prompt_length": 2048,
        "actor_rollout_ref.rollout.n": 16,
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": (2048 + 20480) * 2 // 16,
        "actor_rollout_ref.model.path": "Qwen/Qwen2.5-7B/16",
        "data.shuffle": False,
        "trainer.project_name": "DAPO",
        "trainer.nnodes": 4,
        "trainer.logger": ["console", "wandb"],
    }
    assert any("NNODES" in note and "'4'" in note for note in found.notes)


def test_a_command_kept_in_a_variable_is_found(tmp_path: Path) -> None:
    # The shape of OpenRLHF's older scripts.
    text = """read -r -d '' training_commands <<EOF
openrlhf.cli.train_ppo \\
   --pretrain my/model \\
   --rollout_batch_size 1024
EOF
if [[ ${1} != "slurm" ]]; then
    deepspeed --module $training_commands
fi
"""
    assert values(tmp_path, text) == {"pretrain": "my/model", "rollout_batch_size": 1024}


def test_ray_jobs_and_launchers_are_taken_off(tmp_path: Path) -> None:
    text = """ray start --head --num-gpus 8
ray job submit --address="http://127.0.0.1:8265" --runtime-env-json='{"working_dir": "/openrlhf"}' \\
   -- python3 -m openrlhf.cli.train_ppo_ray --actor.num_nodes 1 --algo.kl.init_coef 1e-3
"""
    assert values(tmp_path, text) == {"actor.num_nodes": 1, "algo.kl.init_coef": 1e-3}
    text = "ACCELERATE_LOG_LEVEL=info accelerate launch --config_file z3.yaml --num_processes=7 src/grpo.py --beta 0\n"
    assert script(tmp_path, text).launched_devices() == 7
    text = "CUDA_VISIBLE_DEVICES=0,1,2 python train.py --beta 0.1 --num_generations 8\n"
    assert script(tmp_path, text).launched_devices() == 3


@pytest.mark.parametrize(
    ("before", "value"),
    [
        ("", "$X"),
        ("if [ -z $Y ]; then X=1; fi", "$X"),
        ("X=1\nif [ -z $Y ]; then X=2; fi", "$X"),
        ("for X in 1 2; do echo $X; done", "$X"),
        ("test -f a || X=1", "$X"),
        ("X=$(nproc)", "$X"),
        ("X=`nproc`", "$X"),
        ("X=$1", "$X"),
        ("X=${X}", "$X"),
        ("X=$((Y * 2))", "$X"),
        ("f() { X=1; }", "$X"),
    ],
)
def test_what_only_running_could_tell_is_named(tmp_path: Path, before: str, value: str) -> None:
    found = values(tmp_path, f"{before}\npython3 -m verl.trainer.main_ppo a.b={value} c.d=1 e.f=2\n")
    assert isinstance(found["a.b"], Unresolved)
    assert found["c.d"] == 1


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ('"a b"', "a b"),
        ("'a $Z'", None),
        ("a\\ b", "a b"),
        ("${Q:-x}", "x"),
        ("${Q-x}", "x"),
        ("${Q:=x}", "x"),
        ("${K:-x}", "known"),
        ("${K}", "known"),
        ("pre${K}post", "preknownpost"),
        ("$'a'", "a"),
        ('"${K}  x"', "known  x"),
        ("$((7 / 2))", 3),
        ("$((-7 % 4))", -3),
        ("$((2 ** 3))", None),
        ('"${A[@]}"', "1"),
    ],
)
def test_quotes_and_expansions(tmp_path: Path, written: str, value: object) -> None:
    text = f"K=known\nA=(1)\npython3 -m verl.trainer.main_ppo a.b={written} c.d=1\n"
    found = values(tmp_path, text)["a.b"]
    assert isinstance(found, Unresolved) if value is None else str(found) == str(value)


@pytest.mark.parametrize(
    "line", ["X=$X$X$X$X$X$X$X$X\n", "X+=$X\n", 'A=("${A[@]}" "${A[@]}" $X)\n', 'bash -c "$X$X"\n']
)
def test_variables_that_multiply_come_to_an_end(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigError, match="the script's variables multiply"):
        script(tmp_path, f"X={'x' * 10_000}\nA=(a)\n{line * 300}python -m verl.trainer.main_ppo a.b=$X")


def test_nothing_of_a_script_is_run(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    text = f"touch {ran}\nX=$(touch {ran})\nY=`touch {ran}`\npython3 -m verl.trainer.main_ppo a=$(touch {ran}) b.c=1\n"
    values(tmp_path, text)
    assert not ran.exists()


def test_two_trainings_of_like_size_are_refused_and_a_side_job_is_not(tmp_path: Path) -> None:
    one = "python3 -m verl.trainer.main_ppo a.b=1 c.d=2 e.f=3 g.h=4 i.j=5\n"
    with pytest.raises(ConfigError, match=r"starts several trainings: .*line 1 and .*line 2"):
        script(tmp_path, one + one)
    found = script(tmp_path, "python3 examples/data_preprocess/gsm8k.py --local_dir x\n" + one)
    assert found.program == "verl.trainer.main_ppo"
    assert len(found.entries) == 5


@pytest.mark.parametrize("broken", ["\\  # why", "\\ ", ""])
def test_settings_that_the_shell_cuts_off_are_told(tmp_path: Path, broken: str) -> None:
    text = f"python3 -m verl.trainer.main_ppo \\\n  a.b=1 \\\n  c.d=2 {broken}\n  e.f=3 \\\n  g.h=4\n"
    found = script(tmp_path, text)
    assert {entry.key for entry in found.entries} >= {"a.b", "c.d"}
    assert "e.f" not in {entry.key for entry in found.entries}
    assert len(found.faults) == 1
    assert found.faults[0].startswith("line 4 begins a command of its own, e.f=3")


def test_a_command_in_quotes_for_another_shell_is_found(tmp_path: Path) -> None:
    text = """#SBATCH -N 2
PATH_TO=<PUT_IT_HERE>
MOUNT="$PATH_TO:/openrlhf"
N=8
srun -w node bash -c "pip install ray \\
&& ray job submit --address=x --runtime-env-json='{\\"a\\": \\"b\\"}' -- python3 -m openrlhf.cli.train_ppo_ray \\
  --rollout.batch_size 16 --rollout.n_samples_per_prompt $N --algo.advantage.estimator group_norm" &>> log &
"""
    found = script(tmp_path, text)
    assert found.program == "openrlhf.cli.train_ppo_ray"
    assert {entry.key: entry.value for entry in found.entries}["rollout.n_samples_per_prompt"] == 8
    assert any(note.startswith("line 2 does not parse") for note in found.notes)


def test_given_variables_win_over_the_scripts_own(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text("N=4\nif true; then N=5; fi\npython3 -m verl.trainer.main_ppo a.b=$N c.d=1\n", encoding="utf-8")
    assert isinstance(read(str(path)).entries[0].value, Unresolved)
    assert read(str(path), variables={"N": "6"}).entries[0].value == 6
