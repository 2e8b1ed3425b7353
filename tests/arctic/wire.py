"""The two codecs of the platform's wire, written from their descriptions: DSSST1 frames, and `torch.save`.

A DSSST1 frame is a safetensors file whose metadata `dss` holds a JSON tree; tensors stand under their dotted path.
"""

from __future__ import annotations

import io
import json
from typing import Any

import safetensors.torch
import torch

EMPTY = "__dss_empty__"


class WireError(ValueError):
    """A frame that cannot be read or written."""


def encode(value: Any) -> bytes:
    tensors: dict[str, torch.Tensor] = {}
    tree = _node(value, "", tensors)
    if not tensors:
        tensors[EMPTY] = torch.zeros(1, dtype=torch.uint8)
    return safetensors.torch.save(tensors, metadata={"dss": json.dumps({"v": "DSSST1", "tree": tree})})


def _node(value: Any, path: str, tensors: dict[str, torch.Tensor]) -> list[Any]:
    if isinstance(value, torch.Tensor):
        key = path or "__root__"
        whole = value.detach().cpu().contiguous().clone()
        tensors[key] = whole.reshape(1) if whole.ndim == 0 else whole
        return ["t", key, {"scalar": True}] if whole.ndim == 0 else ["t", key]
    if isinstance(value, tuple):
        return ["u", [_node(item, f"{path}.{i}".strip("."), tensors) for i, item in enumerate(value)]]
    if not _holds_tensor(value):
        _must_be_json(value)
        return ["j", value]
    if isinstance(value, dict):
        if not all(isinstance(name, str) for name in value):
            raise WireError("a key beside a tensor must be a string")
        return ["d", [[name, _node(item, f"{path}.{name}".strip("."), tensors)] for name, item in value.items()]]
    return ["l", [_node(item, f"{path}.{i}".strip("."), tensors) for i, item in enumerate(value)]]


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_holds_tensor, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_holds_tensor, value))
    return isinstance(value, torch.Tensor)


def _must_be_json(value: Any) -> None:
    json.dumps(value)  # TypeError for numpy scalars and bytes, as upstream


def decode(data: bytes) -> Any:
    # A frame begins with a length, which may look like a signature; its header then follows.
    if data[8:9] != b"{" and (data[:4] == b"PK\x03\x04" or data[:1] == b"\x80"):
        raise WireError("legacy pickle/torch.save message")
    try:
        length = int.from_bytes(data[:8], "little")
        frame = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["dss"])
        tensors = safetensors.torch.load(data)
    except (ValueError, KeyError, safetensors.SafetensorError) as error:
        raise WireError(f"not a frame: {error}") from error
    if frame["v"] != "DSSST1":
        raise WireError(f"unknown version {frame['v']}")
    return _value(frame["tree"], tensors)


def _value(node: list[Any], tensors: dict[str, torch.Tensor]) -> Any:
    tag, body = node[0], node[1]
    if tag == "t":
        return tensors[body].reshape(()) if len(node) > 2 else tensors[body]
    if tag == "j":
        return body
    if tag == "d":
        return {name: _value(item, tensors) for name, item in body}
    if tag == "l":
        return [_value(item, tensors) for item in body]
    if tag == "u":
        return tuple(_value(item, tensors) for item in body)
    raise WireError(f"unknown tag {tag!r}")


def torch_encode(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def torch_decode(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
