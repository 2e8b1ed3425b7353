"""A plugin of an environment, and of a backend that knows nothing of masks."""

from __future__ import annotations

from rlctl.backends.registry import register as register_backend
from rlctl.environments.registry import register
from tests.fakes import FakeBackend


class Deaf(FakeBackend):
    """As a backend is that was written before there were turns."""

    plays_episodes = False


register("plugged", environment="tests.environments.games:Echo")
register_backend("deaf", backend="tests.environments.plugin:Deaf", settings="tests.fakes:FakeSettings")
