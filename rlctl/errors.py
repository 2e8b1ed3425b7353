"""What can go wrong on purpose, in one place, with the exit code each ends in.

RlctlError                     exit 1  every error rlctl raises on purpose
  RewardError                  exit 1  a reward breaks its contract, fails on everything, or does not pay for golds
  ConfigError                  exit 2  a preset, file, RLCTL_ variable or option is wrong
    DataError                  exit 2  the problems cannot be read, or none is left to train on
    ModelError                 exit 2  the model cannot be found, read, or run exactly
    BackendNotFound            exit 2  no backend of that name is registered
  BackendUnavailable           exit 3  a backend is registered, but cannot be imported or reached here
  BackendError                 exit 4  a backend's verb failed while the run was going
    NonFiniteGradient          exit 4  too many updates in a row had a gradient that is not a number
  CheckpointError              exit 4  a checkpoint could not be written or read

Beside these: 0 success, 4 also for a smoke run whose verdict is no, 130 after Ctrl-C, 143 after SIGTERM.
"""

from __future__ import annotations


class RlctlError(Exception):
    """An error with a cure: `message` says what is wrong, `hint` what to do."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class RewardError(RlctlError):
    """A reward function returned no number, failed on every completion, or gives gold answers less than full marks."""


class ConfigError(RlctlError):
    """Settings that cannot be used; the message lists every complaint, one a line."""

    exit_code = 2


class DataError(ConfigError):
    """Problems that cannot be read or used; names the file and line."""


class ModelError(ConfigError):
    """A model that cannot be found, read, or computed exactly by the engine."""


class BackendNotFound(ConfigError):
    """No backend of that name is registered."""


class BackendUnavailable(RlctlError):
    """A registered backend that cannot be imported or reached on this machine."""

    exit_code = 3


class BackendError(RlctlError):
    """A backend's verb failed while the run was going."""

    exit_code = 4


class NonFiniteGradient(BackendError):
    """The gradient was infinite or not a number too many times in a row; no such step was taken."""


class CheckpointError(RlctlError):
    """A checkpoint could not be written or read; older ones are untouched."""

    exit_code = 4
