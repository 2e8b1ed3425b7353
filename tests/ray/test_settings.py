"""What can be said of the settings without Ray, vLLM or DeepSpeed."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from rlctl import config
from rlctl.errors import ConfigError


def load(**block: Any) -> Any:
    assignments = [f"remote_backend.ray.{key}={value}" for key, value in block.items()]
    return config.load(preset="smoke", assignments=assignments).settings.remote_backend["ray"]


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("trainer_rank", "2", "Did you mean remote_backend.ray.trainer_ranks"),
        ("trainer_ranks", "0", "greater than 0"),
        ("zero_stage", "4", "1, 2 or 3"),
        ("rollout_engine", "vlm", "is not one of vllm. Did you mean vllm?"),
        ("offload", "parameters", "needs zero_stage = 3"),
        ("deepspeed", '{"zero_optimisation": {}}', "Did you mean zero_optimization?"),
        ("deepspeed", '{"train_batch_size": 8}', "is set by rlctl: rlctl counts rows"),
        ("deepspeed", '{"gradient_clipping": 8}', "set trainer.grad_clip"),
        ("vllm", '{"dtype": "half"}', "set remote_backend.ray.dtype"),
        ("vllm", '{"load_format": "auto"}', "weights come from the trainer"),
    ],
)
def test_what_cannot_be_is_refused_with_a_cure(key: str, value: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(**{key: value})
    assert told in caught.value.message


def test_tables_of_overrides_come_from_the_shell() -> None:
    block = load(vllm='{"max_num_batched_tokens": 4096}', deepspeed='{"zero_optimization": {"reduce_bucket_size": 9}}')
    assert block.vllm == {"max_num_batched_tokens": 4096}
    assert block.deepspeed == {"zero_optimization": {"reduce_bucket_size": 9}}


def test_other_backends_load_neither_ray_nor_vllm_nor_deepspeed() -> None:
    code = """
import asyncio, sys
from rlctl import config, loop
from rlctl.prepare import prepare
settings = config.load(preset="smoke", assignments=["remote_backend.ray.trainer_ranks=2"]).settings
backend = loop.backend_for(prepare(settings))
asyncio.run(backend.close())
print(sorted({"ray", "vllm", "deepspeed"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("missing", ["ray", "deepspeed"])
def test_a_missing_package_names_the_install_line(missing: str) -> None:
    code = f"""
import sys
sys.modules[{missing!r}] = None
sys.argv = ["rlctl", "smoke", "--backend", "ray", "--steps", "1"]
from rlctl.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 3
    assert repr(missing) in done.stderr
    assert "which is not installed" in done.stderr
    assert "hint: pip install 'rlctl[ray]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_deepspeed_does_not_bring_mlflow_along(ray_stack: None) -> None:
    code = (
        "import sys; from rlctl.backends.ray.installed import import_deepspeed; import_deepspeed()\n"
        "import deepspeed, importlib.util\n"
        "print('mlflow' in sys.modules, importlib.util.find_spec('mlflow') is not None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    # It is here, and can be imported later by what wants it.
    assert done.stdout.split()[-2:] == ["False", "True"]
