"""Names, kinds and help of all metrics, as `promtool check metrics` sees them: nothing but what the original's names bring with them."""
import re

import pytest
from cluster import Master
from prometheus import PROMTOOL, promtool
from proxy_engines import Engine, Proxy
from service_process import CLIENT, Service
from test_engine import Near, Peer

pytestmark = pytest.mark.skipif(PROMTOOL is None, reason="no promtool here")

MIB = 1 << 20
TOTAL = 'counter metrics should have "_total" suffix'
COUNT = 'non-histogram and non-summary metrics should not have "_count" suffix'
SUM = 'non-histogram and non-summary metrics should not have "_sum" suffix'
UNIT = "metric names should not contain abbreviated units"
KIND = "metric name should not include type 'summary'"
# What promtool says of names that we did not choose: dashboards and alerts of the original's users ask for them. A line that no longer comes fails
# the test as one that is new does.
OF_ITS_CACHE = "the original's counters of hits, of its class of cache statistics, whose names end with nums_"
OF_EVICTION = "the original's counters of evictions, by what was evicted from"
OF_STAGING = "the original's counters of puts that were given up, which end with cnt"
OF_SNAPSHOTS = "the original's, of snapshots that are not made here"
OF_PROBES = "the original's, of NVMe over fabrics, which is not built here"
OF_KEYS = "the original's gauges of keys: the first that anybody asks a master for"
OF_QUOTAS = "the original's sums over all tenants; they are gauges"
OF_DISKS = "the original's times of its disks, in microseconds"
MASTER = {
    ("file_cache_hit_nums_", TOTAL): OF_ITS_CACHE,
    ("mem_cache_hit_nums_", TOTAL): OF_ITS_CACHE,
    ("total_get_nums_", TOTAL): OF_ITS_CACHE,
    ("valid_get_nums_", TOTAL): OF_ITS_CACHE,
    **{(f"master_{what}_{where}", TOTAL): OF_EVICTION for what in ("attempted_evictions", "successful_evictions", "evicted_key_count", "evicted_size_bytes")
       for where in ("mem", "nof")},
    ("master_evicted_key_count", TOTAL): OF_EVICTION,
    ("master_evicted_key_count", COUNT): OF_EVICTION,
    ("master_evicted_size_bytes", TOTAL): OF_EVICTION,
    ("master_put_start_discard_cnt", TOTAL): OF_STAGING,
    ("master_put_start_release_cnt", TOTAL): OF_STAGING,
    ("master_snapshot_duration_ms", UNIT): OF_SNAPSHOTS,
    ("master_snapshot_fail", TOTAL): OF_SNAPSHOTS,
    ("master_snapshot_success", TOTAL): OF_SNAPSHOTS,
    ("master_nof_heartbeat_probe_latency_ms", UNIT): OF_PROBES,
    ("master_key_count", COUNT): OF_KEYS,
    ("master_soft_pin_key_count", COUNT): OF_KEYS,
}
TENANTS = {(f"mooncake_tenant_quota_{what}_bytes_sum", SUM): OF_QUOTAS for what in ("effective", "requested")}
WAYS = ("read", "write", "total")
NODE = {**{(f"mooncake_ssd_{way}_latency_{of}us", UNIT): OF_DISKS for way in WAYS for of in ("", "summary_")},
        **{(f"mooncake_ssd_{way}_latency_summary_us", KIND): OF_DISKS for way in WAYS}}


def check(text, known):
    """promtool says of the page what is known, and nothing else. Returns the page as text."""
    text = text.decode() if isinstance(text, bytes) else text
    code, said = promtool("check", "metrics", text=text)
    lines = said.splitlines()
    assert code == (3 if known else 0), said
    assert sorted(lines) == sorted(f"{name} {what}" for name, what in known), sorted(set(lines) ^ {f"{name} {what}" for name, what in known})
    assert len(re.findall(r"^# TYPE ", text, re.M)) > 10
    return text


def test_every_exception_has_a_reason():
    """Nobody else's name is among them, and ours say what they are in base units."""
    everything = {**MASTER, **TENANTS, **NODE}
    assert all(reason.startswith("the original's") for reason in everything.values())
    ours = {name for name, _ in everything if name.startswith("mooncake_")}
    assert all(name.startswith(("mooncake_ssd_", "mooncake_tenant_quota_")) for name in ours)


def test_promtool_finds_what_is_wrong():
    """The test can fail."""
    text = "# HELP a_ms A time.\n# TYPE a_ms gauge\na_ms 1\n"
    assert promtool("check", "metrics", text=text) == (3, f"a_ms {UNIT}\n")


def test_master():
    with Master() as master:
        check(master.get("/metrics")[1], MASTER)


def test_master_of_tenants():
    with Master("--enable_multi_tenants=true") as master:
        assert "mooncake_tenant_quota_reject_total" in check(master.get("/metrics")[1], {**MASTER, **TENANTS})


@pytest.mark.parametrize("command", ["mc_store_rest_server", "mooncake_client"])
def test_store_node(tmp_path, command):
    disk = dict(MOONCAKE_OFFLOAD_ENABLED="true", MOONCAKE_OFFLOAD_FILE_STORAGE_PATH=tmp_path, MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES=256 * MIB)
    with Master("--enable_offload") as master:
        if command == "mooncake_client":
            node = Service("--global_segment_size=64mb", f"--master_server_address={master.address}", "--enable_offload=true", "--enable_http_server=true", "--http_port=0", command=CLIENT, **disk)
            node.spawn().wait(r"HTTP server started on port (\d+)")
        else:
            node = Service(MOONCAKE_MASTER=master.address, **disk)
            node.start()
        try:
            assert "mooncake_client_disk_health{" in check(node.call("GET", "/metrics")[1], NODE)
        finally:
            node.__exit__()


def test_proxy():
    with Proxy("--prefill", Engine().address, "--decode", Engine().address) as proxy:
        assert proxy.complete()[0] == 200
        assert "mooncake_proxy_instance_request_seconds_bucket{" in check(proxy.get("/metrics")[-1], {})


def test_transfer_engine():
    with Peer() as peer:
        near = Near()
        assert near.engine.transfer_sync_write(peer.target, near.address, peer.address, 10) == 0
        assert "mooncake_transfer_seconds_bucket{" in check(near.engine.get_metrics(), {})
