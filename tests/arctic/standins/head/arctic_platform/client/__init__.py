"""The unified clients."""

from arctic_platform.client.client import ArcticRLClient, SyncArcticRLClient, create_arctic_rl_client
from arctic_platform.client.config import ArcticRLClientConfig

__all__ = ["ArcticRLClient", "ArcticRLClientConfig", "SyncArcticRLClient", "create_arctic_rl_client"]
