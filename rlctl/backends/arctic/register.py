"""Announces `arctic`. This is what its entry point names; importing it imports nothing of the platform.

The client named here is the HTTP client of `arctic_platform.rl`: the one that both the published package
(0.1.2, what the extra installs) and the development version have. The unified clients exist only in
the development version, under names that still move; check one with
`rlctl check-backend arctic --client arctic_platform.client:AsyncArcticRLClient`.
"""

from __future__ import annotations

from rlctl.backends.registry import register

register(
    "arctic",
    backend="",  # TODO: an adapter. Until then a run with this backend is refused, and check-backend says so.
    settings="rlctl.backends.arctic.settings:ArcticSettings",
    client="arctic_platform.rl.http_client:ArcticRLHTTPClient",
    protocol="rlctl.backends.arctic.protocol:ArcticClient",
    install="pip install 'rlctl[arctic]'",
)
