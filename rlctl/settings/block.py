"""What every table of settings shares: frozen, nothing unknown, no number that is not finite."""

from __future__ import annotations

from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

Count = Annotated[int, Field(gt=0, lt=2**31)]
"""At least one, and small enough for any counter."""


class Block(BaseModel):
    """One table of settings: frozen, nothing unknown, no number that is not finite."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False, protected_namespaces=()
    )

    @field_validator("*", mode="before")
    @classmethod
    def a_number_is_not_a_boolean(cls, value: Any, info: ValidationInfo) -> Any:
        # pydantic takes true for 1: `steps = true` would be one step.
        if isinstance(value, bool) and _is_numeric(cls.model_fields[info.field_name or ""].annotation):
            raise ValueError("must be a number, not a boolean")
        return value


def _is_numeric(annotation: Any) -> bool:
    return annotation in (int, float) or any(_is_numeric(part) for part in get_args(annotation))
