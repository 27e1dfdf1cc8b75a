"""Who takes part in the comparison: one module each, with a class that knows how to install, start and stop it."""

from .base import Cluster, Contestant, affinity, free_port
from .original import Original, OriginalSnapshot
from .ours import Ours
from .redis_server import RedisServer

__all__ = ["Cluster", "Contestant", "Original", "OriginalSnapshot", "Ours", "RedisServer", "affinity", "free_port"]
