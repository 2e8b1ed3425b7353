"""Who may import what at module level, and how light the command line stays."""

from __future__ import annotations

import ast
import fnmatch
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HEAVY = {
    "torch", "transformers", "ray", "vllm", "deepspeed", "pydantic", "pydantic_settings", "rich", "typer", "numpy",
    "datasets", "pyarrow", "gguf", "safetensors", "tokenizers", "huggingface_hub", "accelerate",
    "reasoning_gym", "verifiers", "matplotlib", "tensorboard", "wandb", "mlflow", "trackio", "httpx", "fastapi",
    "starlette", "uvicorn", "msgspec", "zstandard", "prometheus_client",
}  # fmt: skip
ALLOWED = [  # first match wins: module pattern -> heavy packages it may import at module level
    ("rlctl.cli", {"typer"}),
    ("rlctl.commands*", {"typer"}),
    ("rlctl.completion*", {"typer"}),
    ("rlctl.settings*", {"pydantic", "pydantic_settings"}),
    ("rlctl.config", {"pydantic"}),
    ("rlctl.settings_tree", {"pydantic"}),
    ("rlctl.backends.settings", {"pydantic"}),
    ("rlctl.backends.*.settings", {"pydantic"}),
    ("rlctl.backends.ray.*", {"ray", "torch", "numpy"}),
    ("rlctl.backends.arctic.*", {"torch", "numpy"}),
    ("rlctl.backends.http.server.*", {"numpy", "fastapi", "starlette", "uvicorn", "msgspec", "prometheus_client"}),
    ("rlctl.backends.http.*", {"numpy", "httpx", "msgspec", "zstandard"}),
    ("rlctl.backends.probe.trial", {"numpy"}),
    ("rlctl.engine*", {"torch", "numpy"}),
    ("rlctl.live*", {"rich"}),
    ("rlctl.backends.local.*", {"torch", "numpy"}),
    ("rlctl.types", {"numpy"}),
    ("rlctl.seeds", {"numpy"}),
    ("rlctl.baselines.estimating", {"numpy"}),
    ("rlctl.grpo", {"numpy"}),
    ("rlctl.tokenizer", {"numpy"}),
    ("rlctl.data", {"numpy"}),
    ("rlctl.statistics", {"numpy"}),
    ("rlctl.algorithms.*", {"numpy"}),
    ("rlctl.environments.episode", {"numpy"}),
    ("*", set()),
]
FORBIDDEN = [  # who -> whom it must not import, at any level
    ("rlctl.grpo", "rlctl.backends.local"),
    ("rlctl.loop", "rlctl.backends.local"),
    ("rlctl.types", "rlctl."),
    ("rlctl.errors", "rlctl."),
    ("rlctl.engine*", "rlctl.backends"),
    ("rlctl.grpo", "rlctl.backends.ray"),
    ("rlctl.loop", "rlctl.backends.ray"),
    *(
        (f"rlctl.backends.{one}*", f"rlctl.backends.{other}")
        for one in ("local", "ray", "arctic", "http")
        for other in ("local", "ray", "arctic", "http")
        if one != other
    ),
]


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted((ROOT / "rlctl").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield ".".join(parts).removesuffix(".__init__"), ast.parse(path.read_text(encoding="utf-8"))


def imports(tree: ast.Module, *, everywhere: bool) -> Iterator[str]:
    stack: list[ast.AST] = list(tree.body)
    while stack:
        node = stack.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not everywhere:
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) and not everywhere:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        stack.extend(ast.iter_child_nodes(node))


def test_heavy_packages_are_imported_only_where_they_may_be() -> None:
    bad = []
    for module, tree in modules():
        allowed = next(packages for pattern, packages in ALLOWED if fnmatch.fnmatch(module, pattern))
        bad += [(module, name) for name in imports(tree, everywhere=False) if name.split(".")[0] in HEAVY - allowed]
    assert not bad


def test_layers_below_do_not_import_layers_above() -> None:
    bad = []
    for module, tree in modules():
        for pattern, forbidden in FORBIDDEN:
            if fnmatch.fnmatch(module, pattern):
                bad += [
                    (module, n)
                    for n in imports(tree, everywhere=True)
                    if f"{n}.".startswith(forbidden.rstrip(".") + ".")
                ]
        if not module.startswith(("rlctl.commands", "rlctl.cli", "rlctl.__main__")):
            bad += [(module, n) for n in imports(tree, everywhere=True) if n.startswith("rlctl.commands")]
    assert not bad


def test_core_names_no_foreign_backend() -> None:
    bad = [
        str(path)
        for path in (ROOT / "rlctl").rglob("*.py")
        if "arctic" in path.read_text(encoding="utf-8").lower() and "backends/arctic" not in path.as_posix()
    ]
    assert not bad


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout


@pytest.mark.parametrize(
    "command",
    [
        "--help",
        "train --help",
        "smoke --help",
        "--version",
        "check-backend --help",
        "eval --help",
        "data lint --help",
        "config import --help",
        "runs report --help",
    ],
)
def test_help_loads_nothing_heavy(command: str) -> None:
    # Typer itself takes pydantic, where it is installed, to describe the options of a single command.
    heavy = sorted(HEAVY - {"typer", "rich", "numpy"} - ({"pydantic"} if " " in command else set()))
    code = f"""
import sys
sys.argv = ["rlctl", *{command.split()!r}]
from rlctl.cli import main
try:
    main()
except SystemExit as end:
    assert end.code == 0, end.code
print("LOADED", sorted(set({heavy!r}) & set(sys.modules)))
"""
    assert run_python(code).strip().endswith("LOADED []")


def test_help_costs_little_more_than_typer_itself() -> None:
    """A ratio within one run, not a time: help may cost three times what importing typer alone costs."""
    code = """
import os, subprocess, sys
def cpu(arguments):
    best = 1e9
    for _ in range(3):
        before = os.times()
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
        after = os.times()
        best = min(best, after.children_user - before.children_user + after.children_system - before.children_system)
    return best
print(cpu(["-m", "rlctl", "--help"]) / cpu(["-c", "import typer, asyncio"]))
"""
    assert float(run_python(code)) < 3


def test_config_show_does_not_load_torch() -> None:
    code = """
import sys
sys.argv = ["rlctl", "config", "show", "--preset", "gsm8k-grpo"]
from rlctl.cli import main
try:
    main()
except SystemExit as end:
    assert end.code == 0
print("LOADED", sorted({"torch", "transformers", "ray", "datasets"} & set(sys.modules)))
"""
    assert run_python(code).strip().endswith("LOADED []")
