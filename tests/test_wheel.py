"""The wheel alone, in an empty environment outside the checkout, has presets and the embedded model."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_presets_and_the_embedded_model(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for wanted in (
        "rlctl/presets/gsm8k-grpo.toml",
        "rlctl/presets/smoke.toml",
        "rlctl/presets/calculator-tool.toml",
        "rlctl/embedded/tiny/model.safetensors",
        "rlctl/embedded/tiny-sql/model.safetensors",
        "rlctl/presets/bird-grpo.toml",
        "rlctl/engine/adamw.c",
        "rlctl/engine/attention_tiles.c",
        "rlctl/engine/decode_attention.c",
        "rlctl/engine/draw.c",
        "rlctl/engine/element.h",
        "rlctl/engine/elementwise.c",
        "rlctl/engine/logits.c",
        "rlctl/backends/arctic/contract.toml",
        "rlctl/completion/rlctl.bash",
        "rlctl/completion/rlctl.fish",
        "rlctl/completion/rlctl.zsh",
        "rlctl/peers/maps/verl.toml",
        "rlctl/peers/defaults/verl-0.9.1.toml",
    ):
        assert wanted in names
    assert not any(name.startswith(("tests", "presets")) for name in names)
    size = sum(f.stat().st_size for f in (ROOT / "rlctl/embedded").rglob("*") if f.is_file())
    assert size <= 8 * 2**20


@pytest.mark.slow
def test_the_wheel_runs_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    # The light dependencies are installed from the running environment's own folder, so nothing is downloaded.
    environment = tmp_path / "venv"
    venv.create(environment, with_pip=True)
    python = environment / "bin/python"
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", str(wheel)], check=True)
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    ours = next(path for path in sys.path if path.endswith("site-packages"))
    (Path(site) / "dependencies.pth").write_text(f"import sys; sys.path.append({ours!r})\n")
    run = subprocess.run([environment / "bin/rlctl", "presets"], capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert "gsm8k-grpo: " in run.stdout
    where = subprocess.run(
        [python, "-c", "import rlctl; print(rlctl.__file__)"], capture_output=True, text=True, cwd=tmp_path
    )
    assert str(environment) in where.stdout
    checked = subprocess.run(
        [environment / "bin/rlctl", "train", "--variant", "embedded", "--dry-run"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert checked.returncode == 0, checked.stderr
