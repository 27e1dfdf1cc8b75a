"""A store node: lends argv[1] bytes until its input ends."""
import os
import sys
import time

from mooncake.store import MooncakeDistributedStore
from steps import MASTER, METADATA, say

size = int(sys.argv[1])
store = MooncakeDistributedStore()
code = store.setup("127.0.0.1", METADATA, size, 16 << 20, "tcp", "", MASTER)
if code != 0:
    raise SystemExit(f"setup: {code}")
end = time.monotonic() + 50
while store.put("node is ready", bytes(min(size // 8, 4 << 20))) != 0:
    if time.monotonic() > end:
        raise SystemExit("the segment does not come")
    time.sleep(0.1)
# The original keeps what was put for its lease; ours may not remove in a master's first seconds.
while (code := store.remove("node is ready", True)) != 0 and time.monotonic() < end:
    time.sleep(0.1)
say(step="node", result="ready")
sys.stdin.buffer.read()
store.close()
os._exit(0)
