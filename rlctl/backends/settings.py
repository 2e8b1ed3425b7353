"""What every remote backend lets its user set, in `[remote_backend.NAME]`; a backend adds its own below this."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class RemoteBackendSettings(BaseModel):
    """Base class of a remote backend's settings; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    colocate: bool = True
    """Whether sampler and trainer share the same devices and take turns; false needs devices for both at once."""

    tiled_logits_compute: bool = True
    """Compute logits in tiles over tokens, never all at once; false is faster but holds tokens x vocabulary floats."""

    request_timeout_s: float = Field(600.0, gt=0)
    """Seconds to wait for one answer of the backend; a request that takes longer fails the run."""
