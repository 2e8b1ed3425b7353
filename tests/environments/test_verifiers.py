"""verifiers: an environment of the real package, and what is told where it is not installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import needs

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.fixture
def site() -> Path:
    """The folder of the real package."""
    site = ROOT / ".venv" / "verifiers"
    how = f"pip install --target {site} 'verifiers>=0.1.9,<0.2'"
    needs("the verifiers package", there=(site / "verifiers").is_dir(), how=how)
    return site


@pytest.mark.slow
def test_environments_of_the_real_package(site: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(HERE)])}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / "with_verifiers.py")]
    run = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "9 passed" in run.stdout, run.stdout + run.stderr
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize(
    ("package", "told"),
    [
        ("sys.modules['verifiers'] = None", "pip install 'rlctl[verifiers]'"),
        ("sys.modules['verifiers'] = types.SimpleNamespace(__version__='0.4.0')", "pip install 'verifiers<0.2'"),
    ],
)
def test_without_a_usable_package_the_install_line_is_told(package: str, told: str) -> None:
    code = f"""
import sys, types
{package}
from rlctl.data import load_problems
from rlctl.errors import DataError
from rlctl.settings import DataSettings
try:
    load_problems(DataSettings(source="verifiers:x"), split="train", seed=0)
except DataError as error:
    print(error.message, error.hint)
"""
    assert told in subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
