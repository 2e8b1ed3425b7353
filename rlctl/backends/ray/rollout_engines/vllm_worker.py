"""What rlctl adds to vLLM's worker processes: taking weights from files of this machine."""

from __future__ import annotations

from typing import Any

from rlctl.backends.ray.sync import TensorRecord, read


class WeightReceiver:
    """Mixed into vLLM's worker class; its method is called on every worker by `collective_rpc`."""

    model_runner: Any

    def receive_weights(self, files: list[str], manifest: dict[str, list[Any]]) -> int:
        """Load the tensors through the model's own loader, which splits, stacks and packs them; how many there were.

        `model.load_weights` alone fails on a CPU, where the packed copies have taken the place of the weights.
        """
        records = {name: TensorRecord(tuple(shape), dtype, crc) for name, (shape, dtype, crc) in manifest.items()}
        loaded = 0

        def counted() -> Any:
            nonlocal loaded
            for name, tensor in read(files, records):
                loaded += 1
                yield name, tensor

        self.model_runner.reload_weights(weights_iterator=counted())
        _pack_tied_head(self.model_runner.get_model())
        return loaded


def _pack_tied_head(model: Any) -> None:
    """On a CPU, pack again what shares a weight that has been loaded.

    vLLM multiplies by a packed copy, and packs a layer when its own weights arrive. Those of a tied head arrive as the
    embedding's, so its copy would stay what it was at the start: here, a dummy.
    """
    for layer in model.modules():
        if hasattr(layer, "cpu_linear") and getattr(layer, "weight", None) is not None and layer.weight.numel():
            layer.quant_method.process_weights_after_loading(layer)
