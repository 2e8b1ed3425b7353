"""What can go wrong on purpose, in one place, with the exit code each ends in.

RlctlError                     exit 1  every error rlctl raises on purpose
  RewardError                  exit 1  a reward breaks its contract, fails on everything, or does not pay for golds
  ConfigError                  exit 2  a preset, file, RLCTL_ variable or option is wrong
    DataError                  exit 2  the problems cannot be read, or none is left to train on
    ModelError                 exit 2  the model cannot be found, read, or run exactly
    BackendNotFound            exit 2  no backend of that name is registered
  BackendUnavailable           exit 3  a backend is registered, but cannot be imported or reached here
    BackendBusy                exit 3  it serves one run at a time, and somebody else's is on it
  BackendError                 exit 4  a backend's verb failed while the run was going
    NonFinite                  exit 4  weights or logits have become infinite or not a number
      NonFiniteGradient        exit 4  too many updates in a row had a gradient that is not a number
    OutOfMemory                exit 4  a device, or the machine, has not as much memory as the verb needs
    Stalled                    exit 4  what the run waited for did not come within its deadline
  CheckpointError              exit 4  a checkpoint could not be written or read
    NonFiniteWeights           exit 4  a weight is not finite, so that no checkpoint may hold it
  Interrupted                  129.. a signal came before there was anything to save: 128 + its number

Beside these: 0 success; 4 also for a smoke run whose verdict is no, or that is worse than its baseline; 5 for one of
which that cannot be told; 75 when `trainer.save_before` ended a run that is
not complete; 129, 130 and 143 after SIGHUP, Ctrl-C and SIGTERM.
"""

from __future__ import annotations


class RlctlError(Exception):
    """An error with a cure: `message` says what is wrong, `hint` what to do."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    @property
    def with_cure(self) -> str:
        """In one line, where it is told beside another error."""
        return f"{self.message} ({self.hint})" if self.hint else self.message


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


class BackendBusy(BackendUnavailable):
    """A backend that serves one run at a time, and serves somebody else's."""


class BackendError(RlctlError):
    """A backend's verb failed while the run was going."""

    exit_code = 4


class OutOfMemory(BackendError):
    """A device, or the machine, has not as much memory as the verb needs."""


class NonFinite(BackendError):
    """Weights or logits have become infinite or not a number."""


class NonFiniteGradient(NonFinite):
    """The gradient was infinite or not a number too many times in a row; no such step was taken."""


class Interrupted(RlctlError):
    """A signal ended the run before there was anything to save."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Stalled(BackendError):
    """Something that the run waited for did not come within its deadline."""


class CheckpointError(RlctlError):
    """A checkpoint could not be written or read; older ones are untouched."""

    exit_code = 4


class NonFiniteWeights(CheckpointError):
    """A weight is infinite or not a number: such a model is never saved."""
