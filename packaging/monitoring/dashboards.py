#!/usr/bin/env python3
"""Writes the dashboards for Grafana beside this file: dashboards.py [FOLDER]

A dashboard is a list of rows, a row a title and its panels: (title, kind, unit, what it means, queries), a query (PromQL, legend). $store are the store
nodes that are chosen above, $__rate_interval is Grafana's. `./dev test monitoring` runs every query, and compares the files with what this writes.
"""
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
STAT, LINES, STACK = "stat", "timeseries", "stacked"
WIDTH = {STAT: 3, LINES: 8, STACK: 8}
HEIGHT = {STAT: 4, LINES: 8, STACK: 8}
RATE = "[$__rate_interval]"


def each(**names):
    """A query for each: legend=name of a counter."""
    return [(f"rate({name}{RATE})", legend.replace("_", " ")) for legend, name in names.items()]


def quantiles(name, by="", where=""):
    group = f"le, {by}" if by else "le"
    return [(f"histogram_quantile({part}, sum by ({group}) (rate({name}_bucket{where}{RATE})))", f"{'{{' + by.split(', ')[-1] + '}} ' if by else ''}{title}")
            for part, title in ((0.5, "half below"), (0.99, "99 of 100 below"))]


POOL = [
    ("Now", [
        ("Alerts that fire", STAT, "none", "Of alerts.yml.", [('count(ALERTS{alertname=~"Mooncake.*", alertstate="firing"}) or vector(0)', "")]),
        ("Leads since", STAT, "s", "Age of the leader's process; empty: nobody leads.", [("max(mooncake_uptime_seconds)", "")]),
        ("Segments", STAT, "none", "Memory and disks' memory that store nodes have mounted.", [("sum(mooncake_segments)", "")]),
        ("Suspect", STAT, "none", "Segments that are hidden: their owner does not answer.", [("sum(mooncake_segments_suspect)", "")]),
        ("Members", STAT, "none", "Clients and store nodes.", [("sum(master_active_clients)", "")]),
        ("Objects", STAT, "short", "That can be read.", [("sum(master_key_count)", "")]),
        ("Memory in use", STAT, "percentunit", "", [("sum(master_allocated_bytes) / sum(master_total_capacity_bytes)", "")]),
        ("Found", STAT, "percentunit", "Of what was looked for in the last hours.", [("max(mooncake_hit_ratio)", "")]),
    ]),
    ("Memory", [
        ("Memory", LINES, "bytes", "Ready: touched by its node, so that objects may lie there.",
         [("sum(master_allocated_bytes)", "in use"), ("sum(mooncake_populated_bytes)", "ready"), ("sum(master_total_capacity_bytes)", "lent")]),
        ("Use of each segment", LINES, "percentunit", "They should be alike.", [("segment_allocated_bytes / segment_total_capacity_bytes", "{{segment}}")]),
        ("On its way back", STACK, "bytes", "Growth means an owner that does not answer, or a writer that is stopped.",
         [("sum(mooncake_clearing_bytes)", "to be cleared"), ("sum(mooncake_quarantine_bytes)", "in quarantine")]),
    ]),
    ("Calls", [
        ("Keys", LINES, "ops", "", each(put="master_put_end_requests_total", got="mem_cache_hit_nums_", checked="master_exist_key_requests_total",
                                        removed="master_remove_requests_total")),
        ("Not done", LINES, "ops", "Misses are no failure; puts without room should stay 0.",
         each(gets_that_missed="master_get_replica_list_failures_total", puts_refused="master_put_start_failures_total",
              puts_without_room="master_put_start_alloc_failures_total", removes_refused="master_remove_failures_total")),
        ("Bytes put", LINES, "Bps", "", each(put="mooncake_put_bytes_total")),
        ("Sizes of values", LINES, "bytes", "Of what was put.", quantiles("master_value_size_bytes")),
        ("Requests", LINES, "reqps", "Each with one key or many.", each(put="master_batch_put_start_requests_total", get="master_batch_get_replica_list_requests_total",
                                                                     check="master_batch_exist_key_requests_total", remove="mooncake_remove_requests_total",
                                                                     heartbeat="master_ping_requests_total")),
        ("Given up", LINES, "ops", "Grants that their writer gave back, or whose writer died or took too long.",
         each(given_back="master_put_revoke_requests_total", cut="mooncake_cuts_total", late_news_refused="mooncake_stale_refused_total")),
    ]),
    ("Hits", [
        ("Found of what was looked for", LINES, "percentunit", "A check and the get of what it has found are one look.",
         [(f"rate(mooncake_lookup_hits_total{RATE}) / rate(mooncake_lookups_total{RATE})", "now"), ("mooncake_hit_ratio", "last hours")]),
        ("Why keys were not there", STACK, "ops", "docs/metrics.md has what each word means.", [(f"sum by (reason) (rate(mooncake_misses_total{RATE}))", "{{reason}}")]),
        ("With other memory", LINES, "percentunit", "What so many times the memory that there is would have found, estimated.", [("mooncake_expected_hit_ratio", "{{memory}} times")]),
        ("Time between uses", LINES, "s", "Of keys whose use before is known, estimated.", quantiles("mooncake_reuse_seconds")),
        ("Evicted objects", LINES, "ops", "", each(evicted="master_evicted_key_count")),
        ("Evicted bytes", LINES, "Bps", "The memory that is lent by this is how long an object stays.", each(evicted="master_evicted_size_bytes")),
    ]),
    ("Trouble", [
        ("Nodes", LINES, "none", "In the last hour.", [("increase(mooncake_members_lost_total[1h])", "lost"), ("increase(mooncake_owners_stuck_total[1h])", "stood still"),
                                                      ("increase(mooncake_probes_failed_total[1h])", "pings without an answer"),
                                                      ("increase(mooncake_reports_refuted_total[1h])", "reports of nodes that do answer")]),
        ("Segments", STACK, "none", "", [("mooncake_segments_suspect", "suspect"), ("mooncake_recovering_segments", "being taken in"),
                                         ("mooncake_segments_draining", "being emptied"), ("mooncake_segments_drained", "emptied")]),
        ("Refused, found rotten", LINES, "none", "In the last hour.", [("increase(mooncake_rotten_replicas_total[1h])", "rotten replicas"),
                                                                      ("increase(mooncake_foreign_refused_total[1h])", "nodes of another cluster"),
                                                                      ("increase(mooncake_foreign_connections_total[1h])", "other protocols"),
                                                                      ("increase(mooncake_protocol_errors_total[1h])", "malformed messages")]),
    ]),
    ("Disks", [
        ("Disks", STACK, "none", "", [("mooncake_disks", "mounted"), ("mooncake_disks_absent", "absent"), ("mooncake_disks_slow", "slow"), ("mooncake_disks_read_only", "read-only"),
                                      ("mooncake_disks_off", "off")]),
        ("Bytes on disks", LINES, "bytes", "", [("master_allocated_file_size_bytes", "in use"), ("master_total_file_capacity_bytes", "lent")]),
        ("Objects to and from disks", LINES, "ops", "Late: evicted before a disk had them, and lost.",
         each(stored="mooncake_offload_done_total", not_stored="mooncake_offload_failed_total", late="mooncake_offload_late_total", loaded="master_promotion_completed_total",
              dropped="mooncake_disk_lost_total")),
    ]),
    ("Master", [
        ("Longest turn", LINES, "s", "For so long it answered nobody, at most. Above 20 ms its machine gives it too little time.", [("mooncake_loop_longest_turn_seconds", "{{instance}}")]),
        ("Its memory", LINES, "bytes", "", [("mooncake_resident_bytes", "{{instance}}")]),
        ("Connections", LINES, "none", "", [("mooncake_connections", "{{instance}}")]),
    ]),
]


def of_nodes(name):
    return f'{name}{{instance=~"$store"}}'


def rates(*names):
    return [(f"rate({of_nodes(name)}{RATE})", "{{instance}} " + legend) for legend, name in names]


NODES = [
    ("Now", [
        ("Answer", STAT, "none", "Nodes whose metrics can be read.", [('sum(up{job="mooncake-store"})', "")]),
        ("Do not", STAT, "none", "", [('count(up{job="mooncake-store"}) - sum(up{job="mooncake-store"})', "")]),
        ("Lent", STAT, "bytes", "", [(f"sum({of_nodes('mooncake_client_segment_capacity_bytes')})", "")]),
        ("Ready", STAT, "percentunit", "Of it, touched by its node.",
         [(f"sum({of_nodes('mooncake_client_segment_populated_bytes')}) / sum({of_nodes('mooncake_client_segment_capacity_bytes')})", "")]),
        ("Rotten", STAT, "none", "Objects that were dropped because their bytes had changed, since the start.", [(f"sum({of_nodes('mooncake_client_rotten_slots_total')})", "")]),
        ("Disks that are well", STAT, "none", "", [('sum(mooncake_client_disk_health{instance=~"$store", health="ok"})', "")]),
        ("On disks", STAT, "bytes", "", [(f"sum({of_nodes('mooncake_client_disk_live_bytes')})", "")]),
        ("Written by stored", STAT, "none", "Bytes written to disks, by bytes of objects stored there.",
         [(f"sum({of_nodes('mooncake_client_disk_written_bytes_total')}) / sum({of_nodes('mooncake_client_disk_stored_bytes_total')})", "")]),
    ]),
    ("What these processes put and get", [
        ("Bytes", LINES, "Bps", "", rates(("put", "mooncake_client_put_bytes_total"), ("got", "mooncake_client_get_bytes_total"))),
        ("Objects", LINES, "ops", "", rates(("put", "mooncake_client_put_objects_total"), ("got", "mooncake_client_get_objects_total"), ("missed", "mooncake_client_get_misses_total"))),
        ("Ways", STACK, "Bps", "By which bytes were moved.", [(f"sum(rate({of_nodes(f'mooncake_client_path_{way}_bytes_total')}{RATE}))", way) for way in ("local", "shm", "tcp")]),
        ("Tried again", LINES, "ops", "", rates(("retries", "mooncake_client_retries_total"), ("slower ways", "mooncake_client_fallbacks_total"))),
        ("Checksums", LINES, "ops", "Should stay 0.", rates(("wrong blocks", "mooncake_client_checksum_errors_total"), ("rotten objects", "mooncake_client_rotten_slots_total"))),
        ("Read in the background", LINES, "Bps", "To find what has rotted.", rates(("", "mooncake_client_scrubbed_bytes_total"))),
    ]),
    ("Disks", [
        ("Health", LINES, "none", "1: that is what it is.", [(f"{of_nodes('mooncake_client_disk_health')} == 1", "{{instance}} {{disk}} {{health}}")]),
        ("Objects on disks", LINES, "bytes", "", [(of_nodes("mooncake_client_disk_live_bytes"), "{{instance}} {{disk}}"), (of_nodes("mooncake_client_disk_capacity_bytes"), "{{instance}} {{disk}} at most")]),
        ("Read and written", LINES, "Bps", "Of their files, of all kinds.", rates(("read", "mooncake_client_disk_read_bytes_total"), ("written", "mooncake_client_disk_written_bytes_total"))),
        ("Objects stored and read", LINES, "ops", "", rates(("stored", "mooncake_client_disk_stored_total"), ("read", "mooncake_client_disk_served_total"), ("dropped", "mooncake_client_disk_lost_total"))),
        ("How long a store takes", LINES, "s", "", quantiles("mooncake_client_disk_store_seconds", "instance", '{instance=~"$store"}')),
        ("How long a read takes", LINES, "s", "", quantiles("mooncake_client_disk_read_seconds", "instance", '{instance=~"$store"}')),
        ("Not stored", STACK, "ops", "By reason.", [(f"sum by (reason) (rate({of_nodes('mooncake_client_disk_not_stored_total')}{RATE}))", "{{reason}}")]),
        ("Errors", LINES, "ops", "Of the kernel; late: reads without an answer by their deadline.",
         rates(("reads", "mooncake_client_disk_read_errors_total"), ("writes", "mooncake_client_disk_write_errors_total"), ("late", "mooncake_client_disk_late_total"))),
        ("Oldest operation", LINES, "s", "Above a second the disk is slow, and is left alone until it answers.", [(of_nodes("mooncake_client_disk_oldest_seconds"), "{{instance}} {{disk}}")]),
    ]),
]

PROXY = [
    ("Now", [
        ("Instances that get requests", STAT, "none", "", [("sum(mooncake_proxy_instance_up)", "")]),
        ("That do not", STAT, "none", "", [("count(mooncake_proxy_instance_up) - sum(mooncake_proxy_instance_up)", "")]),
        ("Under way", STAT, "none", "Requests.", [("sum(mooncake_proxy_requests_running)", "")]),
        ("Connections", STAT, "none", "Of clients.", [("sum(mooncake_proxy_connections)", "")]),
    ]),
    ("Requests", [
        ("Requests", LINES, "reqps", "", each(requests="mooncake_proxy_requests_total", tried_elsewhere="mooncake_proxy_requests_retried_total",
                                              refused_by_a_limit="mooncake_proxy_requests_refused_total", left_by_their_client="mooncake_proxy_requests_cancelled_total")),
        ("Answers", STACK, "reqps", "By the class of their status.", [(f"sum by (class) (rate(mooncake_proxy_answers_total{RATE}))", "{{class}}"),
                                                                    (f"sum(rate(mooncake_proxy_answers_broken_total{RATE}))", "ended in the middle")]),
        ("Bytes of requests", LINES, "bytes", "Under way.", [("mooncake_proxy_buffered_bytes", "{{instance}}")]),
    ]),
    ("Instances", [
        ("Under way", LINES, "none", "", [("mooncake_proxy_instance_running", "{{role}} {{exported_instance}}")]),
        ("First byte", LINES, "s", "Time until the first byte of an answer.", quantiles("mooncake_proxy_instance_first_byte_seconds", "role")),
        ("Whole answer", LINES, "s", "", quantiles("mooncake_proxy_instance_request_seconds", "role")),
        ("Failed", LINES, "reqps", "", [(f"rate(mooncake_proxy_instance_errors_total{RATE})", "{{role}} {{exported_instance}}")]),
        ("Gets requests", LINES, "none", "1: it does.", [("mooncake_proxy_instance_up", "{{role}} {{exported_instance}}")]),
    ]),
]

DASHBOARDS = {"pool": ("Mooncake: pool", POOL), "store-nodes": ("Mooncake: store nodes", NODES), "proxy": ("Mooncake: proxy", PROXY)}
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def panel(number, at, described):
    title, kind, unit, text, queries = described
    custom = {"lineWidth": 1, "fillOpacity": 30 if kind == STACK else 5, "showPoints": "never", "stacking": {"mode": "normal" if kind == STACK else "none"}}
    options = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}}
    if kind == STAT:
        custom, options = {}, {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "none", "graphMode": "area"}
    return {"id": number, "type": STAT if kind == STAT else LINES, "title": title, "description": text, "gridPos": at, "datasource": SOURCE, "options": options,
            "fieldConfig": {"defaults": {"unit": unit, "min": 0, "custom": custom}, "overrides": []},
            "targets": [{"refId": chr(ord("A") + i), "expr": expression, "legendFormat": legend or "__auto", "datasource": SOURCE} for i, (expression, legend) in enumerate(queries)]}


def panels_of(rows):
    found, y = [], 0
    for title, described in rows:
        found.append({"id": len(found) + 1, "type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}})
        x, y = 0, y + 1
        for one in described:
            wide, high = WIDTH[one[1]], HEIGHT[one[1]]
            if x + wide > 24:
                x, y = 0, y + high
            found.append(panel(len(found) + 1, {"x": x, "y": y, "w": wide, "h": high}, one))
            x += wide
        y += high
    return found


def dashboard(name):
    title, rows = DASHBOARDS[name]
    variables = [{"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}]
    if rows is NODES:
        variables.append({"name": "store", "label": "Store node", "type": "query", "datasource": SOURCE, "query": 'label_values(up{job="mooncake-store"}, instance)',
                          "refresh": 2, "multi": True, "includeAll": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"}})
    return {"uid": f"mooncake-{name}", "title": title, "tags": ["mooncake"], "schemaVersion": 36, "editable": True, "graphTooltip": 1, "refresh": "30s",
            "time": {"from": "now-1h", "to": "now"}, "templating": {"list": variables}, "annotations": {"list": []},
            "links": [{"type": "dashboards", "tags": ["mooncake"], "title": "Mooncake", "asDropdown": False, "includeVars": False, "keepTime": True}],
            "panels": panels_of(rows)}


def text_of(name):
    return json.dumps(dashboard(name), indent=1) + "\n"


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "dashboards"
    folder.mkdir(exist_ok=True)
    for known in DASHBOARDS:
        (folder / f"mooncake-{known}.json").write_text(text_of(known), encoding="utf-8")
