"""A store of the version that MC_PYTHONPATH names, told what to do line by line.

    version_client.py MASTER SEGMENT_BYTES [DATA_DIR]      a line of JSON in, a line of JSON out: {"call": [arguments]} -> result

The bytes of a value are a function of its name, so that whoever reads it can judge them.
"""
import ctypes
import json
import os
import sys

sys.path.insert(0, os.environ["MC_PYTHONPATH"])

from mooncake.store import MooncakeDistributedStore, ReplicateConfig  # noqa: E402


def content(name, size):
    seed = name.encode() + b"|"
    return (seed * (size // len(seed) + 1))[:size]


class Client:
    def __init__(self, master, segment, data_dir=""):
        self.store = MooncakeDistributedStore()
        self.config = ReplicateConfig
        code = self.store.setup("127.0.0.1", "P2PHANDSHAKE", int(segment), 16 << 20, "tcp", "", master, data_dir=data_dir)
        print(json.dumps(code), flush=True)

    def put(self, key, name, size, segment="", replicas=1):
        return self.store.put(key, content(name, size), self.with_config(segment, replicas))

    def upsert(self, key, name, size, segment=""):
        return self.store.upsert(key, content(name, size), self.with_config(segment, 1))

    def with_config(self, segment, replicas):
        config = self.config()
        config.replica_num = replicas
        if segment:
            config.preferred_segment = segment
        return config

    def put_firm(self, key, name, size, segment, or_not):
        """Of this release only."""
        config = self.with_config(segment, 1)
        config.firm_pin_ms, config.firm_pin_or_not = 3_600_000, or_not
        return self.store.put(key, content(name, size), config)

    def pin_firm(self, key):
        config = self.config()
        config.firm_pin_ms, config.firm_pin_or_not = 3_600_000, True
        return self.store.batch_pin([key], config)

    def hint(self, key, kind):
        return self.store.hint([key], kind)

    def firm_left(self, key):
        return self.store.firm_pin_left(key)

    def same(self, key, name, size):
        """True, False, or None for a miss."""
        found = self.store.get(key)
        return None if found == b"" else found == content(name, size)

    def ranges(self, key, name, size, session=False):
        """Are three pieces of the value right, one over a border of blocks where it has any? None: they could not be read."""
        pieces = [(0, min(size, 10)), (size // 2, size - size // 2), (max(size - 7, 0), min(size, 7))]
        sources, sizes = [list(one) for one in zip(*pieces)]
        places = [0, sizes[0], sizes[0] + sizes[1]]
        memory = ctypes.create_string_buffer(sum(sizes) + 1)
        base = ctypes.addressof(memory)
        if session:
            started = self.store.batch_get_session_start([key])
            right = started == [0] and self.store.batch_get_into_multi_buffer_ranges(
                [key], [[base + place for place in places]], [sizes], [sources]) == [sum(sizes)]
            right &= self.store.batch_get_session_end([key]) == 0
        else:
            self.store.register_buffer(base, len(memory))
            right = self.store.get_into_ranges([base], [[key]], [[places]], [[sources]], [[sizes]]) == [[sizes]]
            self.store.unregister_buffer(base)
        whole = content(name, size)
        return None if not right else memory.raw[:sum(sizes)] == b"".join(whole[at:at + length] for at, length in pieces)

    def session_start(self, key):
        return self.store.batch_get_session_start([key])[0]

    def session_same(self, key, name, size):
        memory = ctypes.create_string_buffer(size)
        got = self.store.batch_get_into_multi_buffer_ranges([key], [[ctypes.addressof(memory)]], [[size]], [[0]])
        return got == [size] and memory.raw == content(name, size)

    def session_end(self, key):
        return self.store.batch_get_session_end([key])

    def segments(self, key):
        return [one.get_memory_descriptor().buffer_descriptor.transport_endpoint_ for one in self.store.batch_get_replica_desc([key])[key]]

    def exist(self, keys):
        return self.store.batch_is_exist(keys)

    def size(self, key):
        return self.store.get_size(key)

    def remove(self, key):
        return self.store.remove(key, True)

    def remove_by_regex(self, pattern):
        return self.store.remove_by_regex(pattern, True)

    def hostname(self):
        return self.store.get_hostname()

    def run(self):
        for line in sys.stdin:
            (call, arguments), = json.loads(line).items()
            print(json.dumps(getattr(self, call)(*arguments)), flush=True)
        sys.exit(self.store.close())


if __name__ == "__main__":
    Client(*sys.argv[1:]).run()
