"""Files of every form become entries, and what is no config ends in a sentence that says what it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlctl.errors import ConfigError
from rlctl.peers.entries import Source, Unresolved, scalar
from rlctl.peers.reading import MAX_BYTES, read


def source(tmp_path: Path, text: str | bytes, name: str, variables: dict[str, str] | None = None) -> Source:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read(str(path), variables=variables)


def values(found: Source) -> dict[str, object]:
    return {entry.key: entry.value for entry in found.entries}


def complaint(tmp_path: Path, text: str | bytes, name: str = "c.yaml") -> str:
    with pytest.raises(ConfigError) as caught:
        source(tmp_path, text, name)
    assert caught.value.exit_code == 2
    assert len(caught.value.message) < 400
    return caught.value.message


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", "trainer:\n  lr: 1e-6\n  on: true\n"),
        ("a.json", '{"trainer": {"lr": 1e-6, "on": true}}'),
        ("a.toml", "[trainer]\nlr = 1e-6\non = true\n"),
        ("a", "trainer:\n  lr: 1e-6\n  on: true\n"),
        ("b", '{"trainer": {"lr": 1e-6, "on": true}}'),
        ("c", "[trainer]\nlr = 1e-6\non = true\n"),
    ],
)
def test_forms_of_tables_say_the_same(tmp_path: Path, name: str, text: str) -> None:
    assert values(source(tmp_path, text, name)) == {"trainer.lr": 1e-6, "trainer.on": True}


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_marks_and_line_ends_make_no_difference(tmp_path: Path, mark: bytes, end: str) -> None:
    text = mark + f"lr: 1e-6{end}seed: 3{end}".encode()
    found = source(tmp_path, text, "a.yaml")
    assert values(found) == {"lr": 1e-6, "seed": 3}
    assert [entry.place for entry in found.entries] == ["line 1", "line 2"]


def test_scalars_are_what_they_look_like_and_nothing_more() -> None:
    # Field faults 096 and 097: YAML 1.1 makes false of `no`, 8 of `010` and 750 of `12:30`.
    read_as = {text: scalar(text) for text in ("no", "off", "y", "010", "09", "12:30", "1_000", "1e-6", ".5", "~")}
    assert read_as == {
        "no": "no",
        "off": "off",
        "y": "y",
        "010": "010",
        "09": "09",
        "12:30": "12:30",
        "1_000": 1000,
        "1e-6": 1e-6,
        ".5": 0.5,
        "~": None,
    }


def test_anchors_and_merges_are_followed(tmp_path: Path) -> None:
    text = "base: &b {lr: 1e-6, n: 4}\nrun:\n  <<: *b\n  n: 8\nsame: *b\n"
    assert values(source(tmp_path, text, "a.yaml")) == {
        "base.lr": 1e-6,
        "base.n": 4,
        "run.lr": 1e-6,
        "run.n": 8,
        "same.lr": 1e-6,
        "same.n": 4,
    }


def test_anchors_that_multiply_come_to_an_end(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
    assert "more than 20000 values" in complaint(tmp_path, "\n".join(lines))


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.yaml", "", "is empty"),
        ("a.yaml", "  \n\n", "is empty"),
        ("a.yaml", "# nothing\n", "it is nothing"),
        ("a.yaml", "- a\n- b\n", "it is a list"),
        ("a.json", "[1, 2]", "it is a list"),
        ("a.json", '"text"', "it is a text"),
        ("a.yaml", "just words\n", "it is a text"),
        ("a.yaml", "lr: 1\nlr: 2\n", "a.yaml:2: YAML with the key lr for a second time (first in line 1)"),
        ("a.yaml", "a:\n  b: 1\n  b: 2\n", "the key a.b for a second time (first in line 2)"),
        ("a.json", '{"a": 1, "a": 2}', "the key 'a' for a second time"),
        ("a.toml", "a = 1\na = 2\n", "not TOML"),
        ("a.yaml", "a: [1, 2\n", "not YAML"),
        ("a.yaml", "a: *nowhere\n", "not YAML"),
        ("a.yaml", "a: &a [*a]\n", "an anchor that holds itself"),
        ("a.yaml", "a: !!python/object/apply:os.system [ls]\n", "the tag"),
        ("a.yaml", "a: 1\n---\nb: 2\n", "2 YAML documents"),
        ("a.yaml", "? [a]\n: 1\n", "a key that is no text"),
        ("a.yaml", "[" * 20_000, "nested too deeply"),
        ("a.json", "[" * 100_000, "nested too deeply"),
        ("a.json", '{"a": ', "not JSON"),
        ("a.yaml", b"\x00\x01\x02", "bytes of 0"),
        ("a.yaml", "lr: 1e-6 # \xfc".encode("latin-1"), "a.yaml:1: not UTF-8 text (byte 0xfc)"),
        ("a.yaml", "lr: 1".encode("utf-16"), "is UTF-16"),
        ("a.yaml", b"a: 1\n" + b"#" * (MAX_BYTES + 1), "is larger than 1 MiB"),
        ("a.sh", "echo hello\nls -l\n", "starts no training; it runs echo, ls"),
        ("a.sh", "if then\n((\n", "not a shell script"),
        ("a.argv.txt", "ls\n-l\n", "it is a text"),
        ("a.py", "x = (\n", "not Python"),
        ("a.py", "x = 1\n", "0 calls of GRPOConfig"),
    ],
)
def test_what_is_no_config_is_told(tmp_path: Path, name: str, text: str | bytes, said: str) -> None:
    assert said in complaint(tmp_path, text, name)


@pytest.mark.parametrize("name", ["c.yaml", "c.json"])
def test_a_number_of_thousands_of_digits_stays_text(tmp_path: Path, name: str) -> None:
    """Python refuses to read one, so that it is for the setting's own type to refuse."""
    digits = "9" * 5000
    assert values(source(tmp_path, f'{{"beta": {digits}}}', name)) == {"beta": digits}
    assert "not TOML" in complaint(tmp_path, f"beta = {digits}", "c.toml")


def test_folders_and_files_that_are_not_there_are_told(tmp_path: Path) -> None:
    for path, said in (
        (tmp_path, "is a folder"),
        (tmp_path / "none.yaml", "No such file"),
        (Path("a\0b"), "null byte"),
    ):
        with pytest.raises(ConfigError, match=said):
            read(str(path))


def test_references_are_put_in_and_the_rest_is_named(tmp_path: Path) -> None:
    text = (
        "a: {n: 4, m: '${a.n}', k: '${.n}', far: '${b}'}\nb: '${a.m}'\nloop: '${loop}'\nhome: '${oc.env:HOME}'\n"
        "or: '${oc.env:X,3}'\nselect: '${oc.select:a.n,9}'\nnone: '${oc.select:zz,9}'\npath: '${a.n}/${zz}'\n"
    )
    found = values(source(tmp_path, text, "a.yaml"))
    assert [found[key] for key in ("a.m", "a.k", "a.far", "b", "select", "none")] == [4, 4, 4, 4, 4, 9]
    assert isinstance(found["loop"], Unresolved)
    assert found["home"] == Unresolved("${oc.env:HOME}", ("$HOME",))
    assert isinstance(found["or"], Unresolved)
    assert found["path"] == Unresolved("${a.n}/${zz}", ("${zz}",))
    given = values(source(tmp_path, text, "a.yaml", {"HOME": "/h"}))
    assert given["home"] == "/h"


def test_hydra_overrides_become_values(tmp_path: Path) -> None:
    words = [
        "python3",
        "-m",
        "verl.trainer.main_ppo",
        "a.b=1e-6",
        "+c.d=[x,'y z']",
        "++e=True",
        "~f.g",
        "h='a b'",
        "i=null",
        "j={k:1,l:[2]}",
        "m=",
        "n=a=b",
        "o=['$HOME/x']",
    ]
    found = source(tmp_path, "\n".join(words), "run.argv.txt")
    assert values(found) == {
        "a.b": 1e-6,
        "c.d": ["x", "y z"],
        "e": True,
        "f.g": None,
        "h": "a b",
        "i": None,
        "j.k": 1,
        "j.l": [2],
        "m": None,
        "n": "a=b",
        "o": Unresolved("$HOME/x", ("$HOME",)),
    }
    assert [entry.key for entry in found.entries if entry.added] == ["c.d", "e"]


def test_flags_become_values(tmp_path: Path) -> None:
    words = [
        "torchrun",
        "--nproc_per_node",
        "4",
        "--nnodes=2",
        "src/grpo.py",
        "--bf16",
        "--lr",
        "1e-6",
        "--n=8",
        "--range",
        "0",
        "1",
        "--steps",
        "-1",
        "--kwargs",
        '{"min_lr": 0.1}',
        "--lr",
        "2e-6",
    ]
    found = source(tmp_path, "\n".join(words), "run.argv.txt")
    assert values(found) == {"bf16": True, "lr": 2e-6, "n": 8, "range": [0, 1], "steps": -1, "kwargs.min_lr": 0.1}
    assert found.launched_devices() == 8
    assert "lr is given twice; the last value counts, as in the peer" in found.notes


def test_python_gives_literals_and_names_expressions(tmp_path: Path) -> None:
    text = (
        "import os\nos.system('touch ran')\nargs = GRPOConfig(\n    'out',\n    learning_rate=1e-6,\n"
        "    num_generations=G,\n    lr_scheduler_kwargs={'min_lr': 0.1},\n    **more,\n)\n"
    )
    found = values(source(tmp_path, text, "train.py"))
    assert found["learning_rate"] == 1e-6
    assert found["lr_scheduler_kwargs.min_lr"] == 0.1
    assert found["output_dir"] == "out"
    assert found["num_generations"] == Unresolved("G", ("G",))
    assert isinstance(found["**"], Unresolved)
    assert not Path("ran").exists()


@pytest.mark.parametrize("terms", [700, 5_000])
def test_python_nested_too_deeply_is_told(tmp_path: Path, terms: int) -> None:
    with pytest.raises(ConfigError, match="nested too deeply to be settings"):
        source(tmp_path, f"GRPOConfig(learning_rate={'+'.join(['1'] * terms)})", "train.py")


PROGRAM = """
from trl import GRPOConfig, GRPOTrainer
MODEL: str = "Qwen/Qwen3-0.6B"
RATE = 2e-6
twice = 1
twice = 2
def main(argument=3):
    args = GRPOConfig(learning_rate=RATE, num_generations=twice, beta=argument)
    lora = LoraConfig(%s)
    trainer = GRPOTrainer(%s, args=args, train_dataset=data, peft_config=lora)
"""


def test_python_gives_what_the_trainer_is_handed(tmp_path: Path) -> None:
    text = PROGRAM % ("16, target_modules=['q_proj'], bias='none', use_dora=True", "model=MODEL, reward_funcs=[good]")
    found = values(source(tmp_path, text, "train.py"))
    assert found["model_name_or_path"] == "Qwen/Qwen3-0.6B"
    assert found["learning_rate"] == 2e-6
    assert found["reward_funcs"] == Unresolved("[good]", ("[good]",))
    assert found["num_generations"] == Unresolved("twice", ("twice",))
    assert found["beta"] == Unresolved("argument", ("argument",))
    lora = {key: value for key, value in found.items() if "lora" in key or key.startswith("use_")}
    # peft's own alpha and dropout, not those of TRL's program.
    assert lora == {
        "use_peft": True, "lora_r": 16, "lora_alpha": 8, "lora_dropout": 0.0, "lora_target_modules": ["q_proj"],
        "use_dora": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    "model", ["AutoModelForCausalLM.from_pretrained(MODEL, dtype='auto')", "loaded", "AutoModel.from_pretrained(path)"]
)
def test_python_names_the_model_that_was_loaded(tmp_path: Path, model: str) -> None:
    text = "def load():\n    loaded = AutoModelForCausalLM.from_pretrained('Qwen/Qwen3-0.6B')\n" + PROGRAM
    found = values(source(tmp_path, text % ("", f"model={model}"), "train.py"))["model_name_or_path"]
    assert found == (Unresolved("path", ("path",)) if "path" in model else "Qwen/Qwen3-0.6B")


def test_python_takes_the_trainers_arguments_by_their_order(tmp_path: Path) -> None:
    found = values(source(tmp_path, PROGRAM % ("", "'org/model', good"), "train.py"))
    assert found["model_name_or_path"] == "org/model"
    assert found["reward_funcs"] == Unresolved("good", ("good",))
    assert found["lora_r"] == 8
