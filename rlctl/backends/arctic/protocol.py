"""What a run calls on an Arctic client, as declarations: `rlctl check-backend arctic` compares a client with it.

The methods are those that the published client and the development version's clients share. All are
declared async, as the clients of both versions mostly are; `calling.call` copes with one that is not,
such as `shutdown`, which is sync over HTTP. What stands after `*` is passed by keyword, so its place does
not matter; no default is relied on, because defaults are what changed between versions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

Reply = Mapping[str, Any]
"""A reply as the client returns it: decoded, not yet checked."""


class ArcticClient(Protocol):
    """The verbs of one training job and one sampling job, which the client created."""

    async def generate(self, prompts: Sequence[str], *, sampling_params: Mapping[str, Any]) -> Sequence[Reply]:
        """One completion for each prompt, which are texts; repeat a prompt to sample it again."""

    async def fwd_no_grad(self, batch: Mapping[str, Any], *, reference_model: bool) -> Reply:
        """Log-probs of the batch, under the frozen starting policy when `reference_model`."""

    async def fwd_bwd(self, batch: Mapping[str, Any], *, processing: Mapping[str, Any]) -> Reply:
        """Add the gradient of the batch's loss; `processing` names the loss."""

    async def step(self) -> Reply:
        """One optimizer update; its metrics are one number, or one for each rank."""

    async def sync_weights(self, *, cuda_ipc: bool, low_memory: bool) -> Reply:
        """Bring the sampling job to the training job's weights; `cuda_ipc` when both share devices."""

    async def save_checkpoint(self) -> Reply:
        """Write model and optimizer where the training job was told to."""

    async def sleep_inference(self, *, level: int) -> Reply:
        """Free the sampler's device memory; at level 2 its weights too."""

    async def wake_inference(self, *, tags: Sequence[str]) -> Reply:
        """Take it back: `weights` first, then `kv_cache`."""

    async def sleep_training(self, *, mode: str) -> Reply:
        """Move the trainer's tensors off the device."""

    async def wake_training(self) -> Reply:
        """Move them back."""

    async def shutdown(self) -> None:
        """Destroy the jobs."""
