"""The example plugin, installed as its users would and tested by its own tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "plugin"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed example, built from a copy so that nothing is left in the checkout."""
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*command, "--target", str(target), str(EXAMPLE)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return target


@pytest.mark.slow
def test_the_example_passes_its_own_tests_where_it_is_installed(site: Path, tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(EXAMPLE / "tests")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout
