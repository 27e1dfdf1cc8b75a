"""Every name of the original's mooncake.store below the tensors is there: it works, or says that it does not."""
import ctypes
import pickle
import socket
import threading

import pytest

import cluster
from ports import free_port
from python_cluster import joined, master, node, pattern, store  # noqa: F401
from mooncake import engine, store as module
from mooncake.store import MooncakeDistributedStore

MEMBERS = {
    module.ObjectDataType: "UNKNOWN KVCACHE TENSOR WEIGHT SAMPLE ACTIVATION GRADIENT OPTIMIZER_STATE METADATA GENERAL",
    module.ReplicaStatus: "UNDEFINED INITIALIZED COMPLETE REMOVED",
    module.TaskStatus: "PENDING PROCESSING FAILED SUCCESS",
    module.TaskType: "REPLICA_COPY REPLICA_MOVE",
}


@pytest.mark.parametrize("enum, names", MEMBERS.items(), ids=[enum.__name__ for enum in MEMBERS])
def test_members_are_names_of_the_module(enum, names):
    for name in names.split():
        assert getattr(module, name) is getattr(enum, name)


@pytest.mark.parametrize("enum", [*MEMBERS, module.SoftPinAction, engine.TransferOpcode], ids=lambda enum: enum.__name__)
def test_members_show_their_names(enum):
    """As in the original, and not as each version of Python would have it."""
    for one in enum:
        name = f"{enum.__name__}.{one.name}"
        assert (str(one), f"{one}", "%s" % one, repr(one)) == (name, name, name, f"<{name}: {int(one)}>")
        assert f"{one:d}" == "%d" % one == str(int(one)) and pickle.loads(pickle.dumps(one)) is one


def test_values_of_the_task_enums():
    assert [int(one) for one in (module.PENDING, module.PROCESSING, module.FAILED, module.SUCCESS)] == [0, 1, 2, 3]
    assert [int(one) for one in (module.REPLICA_COPY, module.REPLICA_MOVE)] == [0, 1]


def test_an_empty_task_response():
    empty = module.QueryTaskResponse()
    assert (empty.id, empty.type, empty.status, empty.message) == ((0, 0), module.REPLICA_COPY, module.PENDING, "")
    assert (empty.assigned_client, empty.created_at_ms_epoch, empty.last_updated_at_ms_epoch) == ((0, 0), 0, 0)
    assert "PENDING" in repr(empty)
    with pytest.raises(AttributeError):
        empty.message = "other"
    with pytest.raises(TypeError):
        module.QueryTaskResponse(1)


@pytest.mark.parametrize("name", ["EngramStore", "EngramStoreConfig", "MooncakeDistributedNoFRegister"])
def test_what_is_not_there_says_so(name):
    with pytest.raises(NotImplementedError, match="not in this build|no NVMe"):
        getattr(module, name)()


def test_methods_that_are_not_there_say_so(store):
    with pytest.raises(NotImplementedError, match="C\\+\\+"):
        store._get_pyclient_capsule()
    with pytest.raises(NotImplementedError, match="C\\+\\+"):
        module._get_pyclient_from_wrapper(store)
    for name in ("get_tensor_into_cuda", "batch_get_tensor_into_cuda"):
        with pytest.raises(NotImplementedError, match="GPU"):
            getattr(store, name)("key", None)


def test_descriptors(store):
    assert store.put("key", b"value") == 0
    replica = store.get_replica_desc("key")[0]
    place = replica.get_memory_descriptor().buffer_descriptor
    assert (place.size, place.buffer_address, place.transport_endpoint) == (place.size_, place.buffer_address_, place.transport_endpoint_)
    assert place.size == 5 and place.transport_endpoint == store.get_hostname()
    with pytest.raises(RuntimeError, match="memory"):
        replica.get_disk_descriptor()
    assert {"file_path", "object_size"} <= set(dir(module.DiskDescriptor))


def test_memory_of_the_functions(store):
    allocate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(module.get_alloc_func_addr())
    release = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(module.get_free_func_addr())
    for size in (1, 4096, 1 << 20):
        memory = allocate(size)
        assert memory % 4096 == 0
        ctypes.memset(memory, 7, size)
        assert ctypes.string_at(memory, size) == b"\7" * size
        release(memory)
    assert allocate(0) is None and allocate(1 << 63) is None
    release(None)


def test_small_ones(store):
    assert store.get_offload_rpc_read_count() == 0
    assert store.alloc_from_mem_pool(100) == 0, "there is no pool without setup_dummy"


def test_init_all_is_a_setup(store):
    assert store.init_all("tcp", "") == -600, "it is set up already"
    with pytest.raises(TypeError):
        store.init_all("tcp")
    with pytest.raises(TypeError):
        MooncakeDistributedStore().init_all(5, "")


def port_of(store):
    return int(store.get_hostname().rpartition(":")[2])


def test_a_bare_host_has_a_port_that_people_open(master, monkeypatch):
    first, other = joined(master, 1 << 20), joined(master, 1 << 20)
    assert 12300 <= port_of(first) <= 14300 and 12300 <= port_of(other) <= 14300 and port_of(first) != port_of(other)
    assert other.close() == 0
    only = free_port()
    for name in ("MIN", "MAX"):
        monkeypatch.setenv(f"MC_STORE_CLIENT_{name}_PORT", str(only))
    taken, left = joined(master, 1 << 20), joined(master, 1 << 20)
    assert port_of(taken) == only != port_of(left), "without a free one the kernel chooses"
    for name, value in (("MIN", "many"), ("MAX", "70000")):
        monkeypatch.setenv(f"MC_STORE_CLIENT_{name}_PORT", value)
    last = joined(master, 1 << 20)
    assert 12300 <= port_of(last) <= 14300
    monkeypatch.setenv("MC_STORE_CLIENT_MIN_PORT", "20000")
    monkeypatch.delenv("MC_STORE_CLIENT_MAX_PORT")
    above = joined(master, 1 << 20)
    assert 20000 <= port_of(above) <= 22000, "one bound moves the range"
    assert [one.close() for one in (first, taken, left, last, above)] == [0] * 5


@pytest.mark.parametrize("sizes", [(0, 0), (16 << 20, 1 << 20)])
def test_one_that_only_asks(master, store, sizes):
    segments = master.get("/get_all_segments")
    asker = MooncakeDistributedStore()
    assert asker.setup(cluster.OWN_NAME, "P2PHANDSHAKE", *sizes, "rpc_only", "", master.address) == 0
    assert store.put("there", b"value") == 0
    assert asker.batch_is_exist(["there", "not there"]) == [1, 0] and asker.get_size("there") == 5
    assert asker.get("there") == b"" and asker.put("new", b"value") == -600 and store.is_exist("new") == 0
    assert asker.allocate_and_mount_segment(16 << 20)["ret"] == -600
    assert master.get("/get_all_segments") == segments, "it lends nothing"
    assert asker.remove("there") == 0 and asker.remove("there") == -704 and store.is_exist("there") == 0
    assert asker.health_check() == 0 and asker.close() == 0


def test_efa_is_tcp(master, store):
    client = MooncakeDistributedStore()
    assert client.setup(cluster.OWN_NAME, "P2PHANDSHAKE", 0, 1 << 20, "efa", "", master.address) == 0
    assert client.put("by efa", pattern(100_000)) == 0 and client.get("by efa") == pattern(100_000) == store.get("by efa")
    assert client.close() == 0
    assert client.setup(cluster.OWN_NAME, "P2PHANDSHAKE", 0, 1 << 20, "carrier pigeon", "", master.address) == -600


class Daemon:
    """Says `line` to whoever connects, as mooncake_client does."""

    def __init__(self, line):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.line = line
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self):
        connection, _ = self.listener.accept()
        try:
            for at in range(len(self.line)):
                connection.sendall(self.line[at : at + 1])
        except ConnectionError:
            pass  # it has seen enough
        connection.close()
        self.listener.close()

    def end(self):
        self.thread.join()


def test_setup_dummy_uses_the_daemons_master(master, store):
    daemon, client = Daemon(f"mooncake_client {master.address}\n".encode()), MooncakeDistributedStore()
    assert client.setup_dummy(1 << 20, 1 << 20, daemon.address) == 0
    daemon.end()
    assert store.put("key", pattern(1000)) == 0
    base = client.alloc_from_mem_pool(1000)
    other = client.alloc_from_mem_pool(1)
    assert base % 64 == 0 and other >= base + 1000
    assert client.register_buffer(base, 1000) == 0
    assert client.get_into("key", base, 1000) == 1000 and ctypes.string_at(base, 1000) == pattern(1000)
    assert client.put_from("back", base, 1000) == 0 and store.get("back") == pattern(1000)
    assert client.alloc_from_mem_pool(1 << 20) == 0
    assert client.setup_dummy(0, 1, "127.0.0.1:1") == -1 and client.close() == 0


@pytest.mark.parametrize("line", [b"", b"HTTP/1.1 400\r\n", b"mooncake_client", b"x" * 2000, b"mooncake_client \0\n"])
def test_setup_dummy_of_something_else(line):
    daemon, client = Daemon(line), MooncakeDistributedStore()
    assert client.setup_dummy(1 << 20, 1 << 20, daemon.address) < 0
    daemon.end()
    assert client.health_check() == 1


def test_setup_dummy_bad_addresses():
    client = MooncakeDistributedStore()
    assert client.setup_dummy(0, 0, "127.0.0.1:1") == -1
    assert client.setup_dummy(0, 0, "") == -600 == client.setup_dummy(0, 0, "127.0.0.1")
    with pytest.raises(TypeError):
        client.setup_dummy(0, 0, 5)
