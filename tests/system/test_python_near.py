"""prefer_alloc_in_same_node: batches go to the writer's machine."""
import pytest

import cluster
from python_cluster import address, joined, pattern, small, wait_until, with_fields  # noqa: F401
from store_process import StoreProcess, elsewhere


def test_the_same_node(small, tmp_path):
    """A store that lends much more, and says that it runs on another machine, gets what nobody wants here."""
    master, store = small
    data = bytearray(pattern(20 << 20))
    at, here = address(data), store.get_hostname()
    near = with_fields(prefer_alloc_in_same_node=True)

    def put(prefix, config):
        keys = [f"{prefix}{number}" for number in range(8)]
        assert store.batch_put_from_multi_buffers(keys, [[at, at + 7]] * 8, [[7, 1000]] * 8, config) == [0] * 8
        assert store.get_batch(keys) == [bytes(data[:1007])] * 8
        return {store.get_replica_desc(key)[0].get_memory_descriptor().buffer_descriptor.transport_endpoint_ for key in keys}

    with StoreProcess(master.address, 128 << 20, before=elsewhere(tmp_path)):
        wait_until(lambda: store.put("large", bytes(100 << 20)) == 0)
        wait_until(lambda: store.remove_all(True) >= 0)
        assert all(put(f"near{batch}-", near) == {here} for batch in range(10))
        for _ in range(10):  # and what upserts of tensors are
            assert store._batch_upsert_from_multi_buffers(["upserted"], [[at, at + 7]], [[7, 1000]], near) == [0]
            assert store.get_replica_desc("upserted")[0].get_memory_descriptor().buffer_descriptor.transport_endpoint_ == here
        others = set().union(*(put(f"any{batch}-", with_fields()) for batch in range(10))) - {here}
        assert len(others) == 1
        named = with_fields(prefer_alloc_in_same_node=True, preferred_segments=list(others))
        assert put("named", named) == others
        # Larger than what this machine lends.
        assert store.batch_put_from_multi_buffers(["huge"], [[at]], [[len(data)]], near) == [0]
        assert store.get("huge") == data
