/* Prometheus text and the summary line. */
#include "store/master/metrics.h"

#include "base/size.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))
#define NOTHING SIZE_MAX /* a name of the original without a meaning here */

enum metric_kind { GAUGE, COUNTER };
static const char *const kind_names[] = {"gauge", "counter"};

struct metric {
    enum metric_kind kind;
    const char *name;
    size_t offset; /* of a uint64_t in struct mc_core_statistics, or NOTHING */
    const char *help;
};
#define FROM(field) offsetof(struct mc_core_statistics, field)
/* Names that a dashboard of the original draws; others of that kind are left out. */
#define ABSENT "Kept for dashboards; there is nothing of it here."

/* clang-format off */
#define NO_CALLS(name) {COUNTER, name "_requests_total", NOTHING, ABSENT}, {COUNTER, name "_failures_total", NOTHING, ABSENT}
static const struct metric metrics[] = {
    {GAUGE, "master_allocated_bytes", FROM(used), "Bytes of live and granted extents."},
    {GAUGE, "master_total_capacity_bytes", FROM(capacity), "Bytes that all segments lend."},
    {GAUGE, "master_nof_allocated_bytes", NOTHING, ABSENT},
    {GAUGE, "master_total_nof_capacity_bytes", NOTHING, ABSENT},
    {GAUGE, "master_allocated_file_size_bytes", FROM(disk_used), "Bytes of objects on disks."},
    {GAUGE, "master_total_file_capacity_bytes", FROM(disk_capacity), "Bytes that all disks lend."},
    {GAUGE, "master_key_count", FROM(objects), "Objects that can be read."},
    {GAUGE, "master_soft_pin_key_count", FROM(soft_pinned), "Objects with a soft pin."},
    {COUNTER, "mooncake_soft_pins_expired_total", FROM(soft_pins_expired), "Objects whose soft pin's time was over."},
    {GAUGE, "mooncake_firm_pin_objects", FROM(firm_pinned), "Objects with a firm pin."},
    {GAUGE, "mooncake_firm_pin_bytes", FROM(firm_bytes), "Bytes of memory that objects with a firm pin take, and those that are being put."},
    {GAUGE, "mooncake_hard_pin_bytes", FROM(hard_bytes), "Bytes of memory that objects with a hard pin take, and those that are being put."},
    {GAUGE, "mooncake_firm_pin_budget_bytes", FROM(firm_budget), "Bytes of memory that may be pinned firmly."},
    {COUNTER, "mooncake_firm_pins_expired_total", FROM(firm_pins_expired), "Objects whose firm pin's time was over."},
    {COUNTER, "mooncake_firm_pins_refused_total", FROM(firm_pins_refused), "Puts that wanted a firm pin, and did not get one."},
    {COUNTER, "mooncake_hints_kept_total", FROM(hints_kept), "Changes by hints that owners have confirmed to keep, one per replica."},
    {COUNTER, "mooncake_hints_not_kept_total", FROM(hints_not_kept), "Changes by hints that owners are not told, since too many wait for their word."},
    {COUNTER, "mooncake_hints_recovered_total", FROM(hints_recovered), "Replicas of which owners have told this master what a hint had said under one before it."},
    {GAUGE, "master_active_clients", FROM(members), "Members of the cluster."},
    {GAUGE, "mem_cache_nums_", FROM(objects), "Objects in memory."},
    {GAUGE, "file_cache_nums_", FROM(disk_objects), "Objects on disks."},
    {GAUGE, "master_put_start_discarded_staging_size", FROM(quarantine_bytes), "Bytes whose writer was cut and is not yet confirmed gone."},
    {GAUGE, "master_promotion_in_flight", FROM(promotions), "Objects that are being loaded from disks."},
    {COUNTER, "master_put_start_requests_total", FROM(put_start_items), "Puts begun, one per object."},
    {COUNTER, "master_put_start_failures_total", FROM(put_start_failures), "Puts refused, one per object."},
    {COUNTER, "master_put_start_alloc_failures_total", FROM(allocation_failures), "Puts for which no segment had room."},
    {COUNTER, "master_put_start_partial_allocations_total", FROM(put_start_partial), "Puts with fewer replicas than wanted."},
    {COUNTER, "master_put_end_requests_total", FROM(put_end_items), "Puts ended well, one per object."},
    {COUNTER, "master_put_end_failures_total", FROM(put_end_failures), "Puts that were granted and did not end well, one per object."},
    {COUNTER, "master_put_revoke_requests_total", FROM(put_revokes), "Grants given back by their writer."},
    {COUNTER, "master_put_revoke_failures_total", FROM(put_revoke_failures), "Grants given back that had ended otherwise."},
    {COUNTER, "master_get_replica_list_requests_total", FROM(get_items), "Lookups, one per key."},
    {COUNTER, "master_get_replica_list_failures_total", FROM(get_misses), "Lookups that found nothing readable."},
    NO_CALLS("master_get_replica_list_by_regex"),
    {COUNTER, "master_exist_key_requests_total", FROM(exist_items), "Existence checks, one per key."},
    {COUNTER, "mooncake_get_waits_total", FROM(get_waits), "Lookups of a value that is on its way; they are asked again."},
    {COUNTER, "mooncake_exist_hits_total", FROM(exist_hits), "Keys that existence checks have found."},
    {COUNTER, "mooncake_lookups_total", FROM(lookups), "Keys that were looked for; an existence check and the get of what it has found are one look."},
    {COUNTER, "mooncake_lookup_hits_total", FROM(lookup_hits), "Keys that were looked for and found."},
    {COUNTER, "master_exist_key_failures_total", NOTHING, ABSENT},
    {COUNTER, "master_remove_requests_total", FROM(remove_items), "Removes, one per key."},
    {COUNTER, "master_remove_failures_total", FROM(remove_failures), "Removes refused or of absent keys."},
    {COUNTER, "master_remove_by_regex_requests_total", FROM(remove_regex_requests), "Removes by pattern."},
    {COUNTER, "master_remove_by_regex_failures_total", FROM(remove_regex_failures), "Of them refused."},
    {COUNTER, "master_remove_all_requests_total", FROM(remove_all_requests), "Removes of everything."},
    {COUNTER, "master_remove_all_failures_total", FROM(remove_all_failures), "Of them refused."},
    {COUNTER, "master_mount_segment_requests_total", FROM(mount_requests), "Mounts."},
    {COUNTER, "master_mount_segment_failures_total", FROM(mount_failures), "Mounts refused."},
    {COUNTER, "master_unmount_segment_requests_total", FROM(unmount_requests), "Unmounts."},
    {COUNTER, "master_unmount_segment_failures_total", FROM(unmount_failures), "Unmounts refused."},
    {COUNTER, "master_remount_segment_requests_total", FROM(remounts), "Mounts of what was lent before, to this master or another one."},
    {COUNTER, "master_remount_segment_failures_total", FROM(remount_failures), "Of them refused."},
    {COUNTER, "master_mount_nof_segment_requests_total", NOTHING, ABSENT},
    {COUNTER, "master_unmount_nof_segment_requests_total", NOTHING, ABSENT},
    {COUNTER, "master_remount_nof_segment_requests_total", NOTHING, ABSENT},
    {COUNTER, "master_ping_requests_total", FROM(heartbeats), "Heartbeats."},
    {COUNTER, "master_ping_failures_total", NOTHING, ABSENT},
    {COUNTER, "master_nof_heartbeat_success_total", NOTHING, ABSENT},
    {COUNTER, "master_nof_heartbeat_failure_total", NOTHING, ABSENT},
    {COUNTER, "master_nof_heartbeat_timeout_total", NOTHING, ABSENT},
    {COUNTER, "master_nof_segments_unmounted_by_heartbeat_total", NOTHING, ABSENT},
    {COUNTER, "master_batch_exist_key_requests_total", FROM(exist_requests), "Requests with existence checks."},
    {COUNTER, "master_batch_exist_key_items_total", FROM(exist_items), "Keys in them."},
    {COUNTER, "master_batch_query_ip_requests_total", NOTHING, ABSENT},
    {COUNTER, "master_batch_query_ip_items_total", NOTHING, ABSENT},
    {COUNTER, "master_batch_replica_clear_requests_total", NOTHING, ABSENT},
    {COUNTER, "master_batch_replica_clear_items_total", NOTHING, ABSENT},
    {COUNTER, "master_batch_get_replica_list_requests_total", FROM(get_requests), "Requests with lookups."},
    {COUNTER, "master_batch_get_replica_list_failures_total", FROM(get_none), "Of them such that found nothing."},
    {COUNTER, "master_batch_get_replica_list_partial_successes_total", FROM(get_some), "Of them such that found some of their keys."},
    {COUNTER, "master_batch_get_replica_list_items_total", FROM(get_items), "Keys in them."},
    {COUNTER, "master_batch_get_replica_list_failed_items_total", FROM(get_misses), "Keys in them that were not found."},
    {COUNTER, "master_batch_put_start_requests_total", FROM(put_start_requests), "Requests that begin puts."},
    {COUNTER, "master_batch_put_start_failures_total", FROM(put_start_none), "Of them refused as a whole."},
    {COUNTER, "master_batch_put_start_partial_successes_total", FROM(put_start_some), "Of them refused in part."},
    {COUNTER, "master_batch_put_start_items_total", FROM(put_start_items), "Objects in them."},
    {COUNTER, "master_batch_put_start_failed_items_total", FROM(put_start_failures), "Objects in them that were refused."},
    {COUNTER, "master_batch_put_end_requests_total", FROM(put_answers), "Requests of puts that have ended."},
    {COUNTER, "master_batch_put_end_items_total", FROM(put_end_items), "Puts ended well."},
    {COUNTER, "master_batch_put_end_failed_items_total", FROM(put_end_failures), "Puts that were granted and did not end well."},
    {COUNTER, "master_batch_put_revoke_requests_total", FROM(put_revoke_requests), "Requests that give grants back."},
    {COUNTER, "master_batch_put_revoke_items_total", FROM(put_revokes), "Grants given back."},
    {COUNTER, "master_batch_put_revoke_failed_items_total", FROM(put_revoke_failures), "Grants given back that had ended otherwise."},
    {COUNTER, "mem_cache_hit_nums_", FROM(get_hits), "Lookups that found an object in memory."},
    {COUNTER, "file_cache_hit_nums_", FROM(promotion_done), "Objects loaded from disks, for readers or hints."},
    {COUNTER, "mem_cache_hit_bytes_total", FROM(get_hit_bytes), "Bytes of objects that lookups found."},
    {COUNTER, "file_cache_hit_bytes_total", FROM(promotion_bytes), "Bytes of objects loaded from disks, for readers or hints."},
    {COUNTER, "valid_get_nums_", FROM(get_hits), "Lookups that found an object."},
    {COUNTER, "total_get_nums_", FROM(get_items), "Lookups."},
    {COUNTER, "master_successful_evictions_total", FROM(eviction_successes), "Evictions that freed something."},
    {COUNTER, "master_attempted_evictions_total", FROM(eviction_attempts), "Evictions tried."},
    {COUNTER, "master_evicted_key_count", FROM(evicted_objects), "Objects evicted."},
    {COUNTER, "master_evicted_size_bytes", FROM(evicted_bytes), "Bytes of objects evicted."},
    {COUNTER, "master_successful_evictions_mem", FROM(eviction_successes), "Evictions that freed something."},
    {COUNTER, "master_attempted_evictions_mem", FROM(eviction_attempts), "Evictions tried, memory."},
    {COUNTER, "master_evicted_key_count_mem", FROM(evicted_objects), "Objects evicted from memory."},
    {COUNTER, "master_evicted_size_bytes_mem", FROM(evicted_bytes), "Bytes of objects evicted from memory."},
    {COUNTER, "master_successful_evictions_nof", NOTHING, ABSENT},
    {COUNTER, "master_attempted_evictions_nof", NOTHING, ABSENT},
    {COUNTER, "master_evicted_key_count_nof", NOTHING, ABSENT},
    {COUNTER, "master_evicted_size_bytes_nof", NOTHING, ABSENT},
    {COUNTER, "master_put_start_discard_cnt", FROM(cuts), "Grants whose writer was cut."},
    {COUNTER, "master_put_start_release_cnt", FROM(cuts_done), "Of them those whose space is free again."},
    {COUNTER, "master_promotion_admitted_total", FROM(promotion_admitted), "Loads from disks of objects that are to stay in memory like those that are put."},
    {COUNTER, "master_promotion_completed_total", FROM(promotion_done), "Loads from disks that ended well."},
    {COUNTER, "master_promotion_completed_bytes_total", FROM(promotion_bytes), "Bytes of objects loaded from disks."},
    {COUNTER, "master_promotion_expired_total", NOTHING, ABSENT},
    {COUNTER, "master_promotion_failed_total", FROM(promotion_failed), "Loads from disks that failed, or whose object went meanwhile."},
    {COUNTER, "master_promotion_cancelled_total", FROM(promotion_cancelled), "Loads from disks whose object went meanwhile."},
    {COUNTER, "master_promotion_rejected_frequency_total", FROM(promotion_rare), "Loads of objects that were not read often enough for that."},
    {COUNTER, "master_promotion_rejected_watermark_total", FROM(promotion_no_room), "Loads from disks for which memory had no room."},
    {COUNTER, "master_promotion_rejected_cap_total", FROM(promotion_capped), "Loads for which that was done for too many others already."},
    {COUNTER, "master_snapshot_success", NOTHING, ABSENT},
    {COUNTER, "master_snapshot_fail", NOTHING, ABSENT},
    {COUNTER, "master_copy_start_requests_total", FROM(copy_starts), "Values begun to be put in place of themselves: copies, moves and new pins."},
    {COUNTER, "master_copy_start_failures_total", FROM(copy_start_failures), "Of them refused."},
    {COUNTER, "master_copy_end_requests_total", FROM(copy_ends), "Of them ended well."},
    {COUNTER, "master_copy_end_failures_total", FROM(copy_end_failures), "Of them granted and not ended well."},
    {COUNTER, "master_copy_revoke_requests_total", FROM(copy_revokes), "Of their grants given back."},
    NO_CALLS("master_move_start"),
    NO_CALLS("master_move_end"),
    {COUNTER, "master_move_revoke_requests_total", NOTHING, ABSENT},
    {COUNTER, "master_evict_disk_replica_requests_total", FROM(disk_lost), "Objects that a disk dropped, mostly to make room."},
    NO_CALLS("master_create_copy_task"),
    NO_CALLS("master_create_move_task"),
    {COUNTER, "master_query_task_requests_total", NOTHING, ABSENT},
    {COUNTER, "master_fetch_tasks_requests_total", NOTHING, ABSENT},
    {COUNTER, "master_update_task_requests_total", NOTHING, ABSENT},
    {GAUGE, "mooncake_segments", FROM(segments), "Segments mounted."},
    {GAUGE, "mooncake_segments_suspect", FROM(suspect), "Of them hidden: their owner does not answer, or what they hold is being taken in."},
    {GAUGE, "mooncake_segments_draining", FROM(draining), "Of them being emptied."},
    {GAUGE, "mooncake_segments_drained", FROM(drained), "Of them emptied."},
    {GAUGE, "mooncake_disks", FROM(disks), "Disks mounted."},
    {GAUGE, "mooncake_disks_absent", FROM(disks_absent), "Disks whose owner is gone and which may come back."},
    {GAUGE, "mooncake_disks_slow", FROM(disks_slow), "Disks that have not answered for a second: nothing is stored or loaded there until they do."},
    {GAUGE, "mooncake_disks_read_only", FROM(disks_read_only), "Disks on which nothing is stored any more, since writing failed."},
    {GAUGE, "mooncake_disks_off", FROM(disks_off), "Disks that their store node cannot use: they are not mounted."},
    {COUNTER, "mooncake_offload_begun_total", FROM(offload_begun), "Objects that owners were told to store on a disk."},
    {COUNTER, "mooncake_offload_done_total", FROM(offload_done), "Objects stored on a disk."},
    {COUNTER, "mooncake_offload_failed_total", FROM(offload_failed), "Objects not stored: the disk refused, or they went meanwhile."},
    {COUNTER, "mooncake_offload_skipped_total", FROM(offload_skipped), "Objects not stored because the disk had no number left for them."},
    {COUNTER, "mooncake_offload_ahead_total", FROM(offload_ahead), "Of those begun: because they were to be evicted soon."},
    {COUNTER, "mooncake_offload_late_total", FROM(offload_late), "Objects evicted before a disk of their owner had them; they are lost."},
    {COUNTER, "mooncake_loads_begun_total", FROM(promotion_begun), "Loads from disks that were begun."},
    {COUNTER, "mooncake_disk_lost_total", FROM(disk_lost), "Objects that a disk dropped, mostly to make room."},
    {COUNTER, "mooncake_hot_objects_total", FROM(hot_objects), "Objects found to be read often; of one, once a window."},
    {COUNTER, "mooncake_hot_copies_wanted_total", FROM(hot_copies_wanted), "Copies of them that readers were asked for, or, where they are only observed, would have been."},
    {COUNTER, "mooncake_hot_copies_total", FROM(hot_copies), "Of these seen to be there."},
    {GAUGE, "mooncake_connections", FROM(connections), "Connections to the master."},
    {GAUGE, "mooncake_populated_bytes", FROM(populated), "Bytes of segments that are ready for objects."},
    {GAUGE, "mooncake_clearing_bytes", FROM(clearing_bytes), "Bytes that wait for their owner to clear them."},
    {GAUGE, "mooncake_quarantine_bytes", FROM(quarantine_bytes), "Bytes whose writer was cut and is not yet confirmed gone."},
    {GAUGE, "mooncake_blank_bytes", FROM(blank_bytes), "Bytes that are granted to clients with MC_STORE_BLANK_PLACES, and have no key yet."},
    {COUNTER, "mooncake_cuts_total", FROM(cuts), "Grants whose writer was cut."},
    {COUNTER, "mooncake_blanks_granted_total", FROM(blanks_granted), "Places that were granted before a key was known, MC_STORE_BLANK_PLACES."},
    {COUNTER, "mooncake_blanks_bound_total", FROM(blanks_bound), "Of them those that a put went into."},
    {COUNTER, "mooncake_blanks_refused_total", FROM(blanks_refused), "Puts that named such a place and went by the ordinary way: the key was known, or the place no more."},
    {COUNTER, "mooncake_clears_total", FROM(clears), "Slots that owners were told to clear."},
    {COUNTER, "mooncake_suspects_total", FROM(suspects), "Reports of failed transfers."},
    {COUNTER, "mooncake_reports_refuted_total", FROM(reports_refuted), "Reports of nodes that answered the master."},
    {COUNTER, "mooncake_members_lost_total", FROM(members_lost), "Members that were silent too long."},
    {COUNTER, "mooncake_owners_stuck_total", FROM(owners_stuck),
     "Nodes given up because what serves their data was silent too long, though their heartbeats came."},
    {COUNTER, "mooncake_foreign_connections_total", FROM(foreign_connections),
     "Connections closed because they spoke another protocol."},
    {COUNTER, "mooncake_protocol_errors_total", FROM(protocol_errors), "Connections closed for what they sent."},
    {COUNTER, "mooncake_stale_refused_total", FROM(stale_refused), "Late news refused."},
    {COUNTER, "mooncake_put_bytes_total", FROM(put_bytes), "Bytes of objects put."},
    {COUNTER, "mooncake_remove_requests_total", FROM(remove_requests), "Requests with removes."},
    {GAUGE, "mooncake_recovering_segments", FROM(recovering), "Segments whose contents are being taken in."},
    {COUNTER, "mooncake_recovered_segments_total", FROM(segments_recovered), "Segments offered after their contents were taken in."},
    {COUNTER, "mooncake_recovered_objects_total", FROM(recovered_objects), "Objects taken in from the contents of segments."},
    {COUNTER, "mooncake_recovered_replicas_total", FROM(recovered_replicas), "Replicas taken in from the contents of segments."},
    {COUNTER, "mooncake_recovery_refused_total", FROM(recovery_refused), "Replicas of contents that were not taken in: of an older value, of a removed key, or not known after a takeover."},
    {COUNTER, "mooncake_recovery_in_doubt_total", FROM(recovery_in_doubt), "Segments whose contents were taken in though their owner was without a master so long that one that nobody remembers may have removed some of them; see --state_dir."},
    {COUNTER, "mooncake_recovery_dropped_total", FROM(recovery_dropped), "Replicas that the contents told after a takeover did not confirm; they are dropped."},
    {GAUGE, "mooncake_tombstones", FROM(tombstones), "Keys that must not come back from an earlier epoch."},
    {COUNTER, "mooncake_tombstones_made_total", FROM(tombstones_made), "Tombstones made."},
    {COUNTER, "mooncake_probes_total", FROM(probes), "Owners that were pinged after a report."},
    {COUNTER, "mooncake_probes_failed_total", FROM(probes_failed), "Pings without an answer in time."},
    {COUNTER, "mooncake_rotten_reports_total", FROM(rotten_reports), "Replicas that readers called rotten."},
    {COUNTER, "mooncake_foreign_refused_total", FROM(foreign_refused), "Hellos of nodes that hold contents of another cluster, or have met a later epoch there; they keep what they hold."},
    {GAUGE, "mooncake_clusters_torn", FROM(clusters_torn), "1 while store nodes bring contents of several clusters and it is not known which of them this is."},
    {COUNTER, "mooncake_epochs_doubted_total", FROM(epochs_doubted), "Hellos and mounts that named a later epoch than the master's."},
    {COUNTER, "mooncake_rotten_replicas_total", FROM(rotten_replicas), "Replicas that their owner found rotten; they are dropped."},
};
/* clang-format on */

static const uint64_t value_size_bounds[] = {4096, 65536, 262144, 1048576, 4194304, 16777216, 67108864};
static const uint64_t snapshot_bounds[] = {0, 500, 1000, 5000, 10000, 30000, 60000, 120000, 180000, 240000, 300000};
static const uint64_t probe_bounds[] = {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000};

static uint64_t value_at(const struct mc_core_statistics *statistics, size_t offset)
{
    uint64_t value = 0;
    if (offset != NOTHING)
        memcpy(&value, (const char *)statistics + offset, sizeof(value));
    return value;
}

/* ---- summary ---- */

static struct mc_metrics_rate rate(uint64_t total, uint64_t last_total, uint64_t failed, uint64_t last_failed,
                                   double seconds)
{
    double all = (double)(total - last_total), bad = (double)(failed - last_failed);
    return (struct mc_metrics_rate){(all > bad ? all - bad : 0) / seconds, all / seconds};
}

void mc_metrics_window_move(struct mc_metrics_window *window, const struct mc_core_statistics *now, uint64_t now_ms)
{
    const struct mc_core_statistics *last = &window->last;
    double seconds = (double)(now_ms - window->last_ms) / 1000;
    if (window->last_ms != 0 && now_ms > window->last_ms) {
        window->put = rate(now->put_start_items, last->put_start_items, now->put_start_failures,
                           last->put_start_failures, seconds);
        window->get = rate(now->get_items, last->get_items, now->get_misses, last->get_misses, seconds);
        window->exist = rate(now->exist_items, last->exist_items, now->exist_items - now->exist_hits,
                             last->exist_items - last->exist_hits, seconds);
        window->lookup = rate(now->lookups, last->lookups, now->lookups - now->lookup_hits,
                              last->lookups - last->lookup_hits, seconds);
        window->remove =
            rate(now->remove_items, last->remove_items, now->remove_failures, last->remove_failures, seconds);
    }
    window->last = *now;
    window->last_ms = now_ms;
}

/* " | SSD Storage: 1.00 GB / 2.00 GB (50.0%, 1 slow, 1 read-only, 2 off)"; nothing where nobody has a disk. */
static void put_disks(struct mc_buffer *out, const struct mc_core_statistics *s)
{
    char used[32], capacity[32];
    const struct {
        uint64_t count;
        const char *what;
    } bad[] = {
        {s->disks_slow, "slow"}, {s->disks_read_only, "read-only"}, {s->disks_absent, "absent"}, {s->disks_off, "off"}};
    if (s->disks + s->disks_off == 0)
        return;
    mc_size_text(used, sizeof(used), s->disk_used);
    mc_size_text(capacity, sizeof(capacity), s->disk_capacity);
    mc_buffer_printf(out, " | SSD Storage: %s / %s", used, capacity);
    const char *before = " (", *after = "";
    if (s->disk_capacity > 0) {
        mc_buffer_printf(out, "%s%.1f%%", before, 100 * (double)s->disk_used / (double)s->disk_capacity);
        before = ", ";
        after = ")";
    }
    for (size_t i = 0; i < LENGTH(bad); i++) {
        if (bad[i].count == 0)
            continue;
        mc_buffer_printf(out, "%s%llu %s", before, (unsigned long long)bad[i].count, bad[i].what);
        before = ", ";
        after = ")";
    }
    mc_buffer_printf(out, "%s", after);
}

void mc_metrics_summary(struct mc_buffer *out, const struct mc_core_statistics *statistics,
                        const struct mc_metrics_window *window)
{
    char used[32], capacity[32], evicted[32];
    const struct mc_core_statistics *s = statistics;
    double percent = s->capacity == 0 ? 0 : 100 * (double)s->used / (double)s->capacity;
    mc_size_text(used, sizeof(used), s->used);
    mc_size_text(capacity, sizeof(capacity), s->capacity);
    mc_size_text(evicted, sizeof(evicted), s->evicted_bytes);
    mc_buffer_printf(out, "Storage: %s / %s (%.1f%%)", used, capacity, percent);
    put_disks(out, s);
    mc_buffer_printf(out, " | Keys: %llu (soft-pinned: %llu) | Clients: %llu", (unsigned long long)s->objects,
                     (unsigned long long)s->soft_pinned, (unsigned long long)s->members);
    if (window->lookup.total > 0)
        mc_buffer_printf(out, " | Hit ratio: %.1f%%", 100 * window->lookup.success / window->lookup.total);
    mc_buffer_printf(
        out, " | Requests (Success/Total per sec): PutStart=%.2f/%.2f, Get=%.2f/%.2f, Exist=%.2f/%.2f, Del=%.2f/%.2f",
        window->put.success, window->put.total, window->get.success, window->get.total, window->exist.success,
        window->exist.total, window->remove.success, window->remove.total);
    mc_buffer_printf(out, " | Eviction: Success/Attempts=%llu/%llu, keys=%llu, size=%s",
                     (unsigned long long)s->eviction_successes, (unsigned long long)s->eviction_attempts,
                     (unsigned long long)s->evicted_objects, evicted);
}

/* ---- exposition ---- */

static void put_head(struct mc_buffer *out, const char *name, const char *kind, const char *help)
{
    mc_buffer_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind);
}

static void put_one(struct mc_buffer *out, const char *name, enum metric_kind kind, const char *help, uint64_t value)
{
    put_head(out, name, kind_names[kind], help);
    mc_buffer_printf(out, "%s %llu\n", name, (unsigned long long)value);
}

static void put_label(struct mc_buffer *out, const char *text)
{
    for (; *text != 0; text++) {
        if (*text == '\n')
            mc_buffer_append(out, "\\n", 2);
        else if (*text == '"' || *text == '\\')
            mc_buffer_printf(out, "\\%c", *text);
        else
            mc_buffer_put_u8(out, (uint8_t)*text);
    }
}

/* The same from milliseconds. */
static void put_seconds(struct mc_buffer *out, const char *name, const char *help, const uint64_t *bounds_ms,
                        size_t bound_count, const uint64_t *counts, uint64_t sum_ms)
{
    uint64_t total = 0;
    put_head(out, name, "histogram", help);
    for (size_t i = 0; i < bound_count; i++) {
        total += counts[i];
        mc_buffer_printf(out, "%s_bucket{le=\"%g\"} %llu\n", name, (double)bounds_ms[i] / 1000,
                         (unsigned long long)total);
    }
    total += counts[bound_count];
    mc_buffer_printf(out, "%s_bucket{le=\"+Inf\"} %llu\n%s_sum %.3f\n%s_count %llu\n", name, (unsigned long long)total,
                     name, (double)sum_ms / 1000, name, (unsigned long long)total);
}

/* counts: one per bound and one for what is larger; NULL: nothing was counted. */
static void put_histogram(struct mc_buffer *out, const char *name, const char *help, const uint64_t *bounds,
                          size_t bound_count, const uint64_t *counts, uint64_t sum)
{
    uint64_t total = 0;
    put_head(out, name, "histogram", help);
    for (size_t i = 0; i < bound_count; i++) {
        total += counts == NULL ? 0 : counts[i];
        mc_buffer_printf(out, "%s_bucket{le=\"%llu\"} %llu\n", name, (unsigned long long)bounds[i],
                         (unsigned long long)total);
    }
    total += counts == NULL ? 0 : counts[bound_count];
    mc_buffer_printf(out, "%s_bucket{le=\"+Inf\"} %llu\n%s_sum %llu\n%s_count %llu\n", name, (unsigned long long)total,
                     name, (unsigned long long)sum, name, (unsigned long long)total);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct mc_core_segment *)a)->name, ((const struct mc_core_segment *)b)->name);
}

/* Makes one entry of those with one name (a node that mounted anew while its old segment is swept): a sample may be
 * there once only. */
static size_t merge_segments(struct mc_core_segment *segments, size_t count)
{
    size_t merged = 0;
    if (count == 0)
        return 0;
    qsort(segments, count, sizeof(segments[0]), compare_names);
    for (size_t i = 1; i < count; i++) {
        if (strcmp(segments[merged].name, segments[i].name) != 0) {
            segments[++merged] = segments[i];
            continue;
        }
        segments[merged].used += segments[i].used;
        segments[merged].capacity += segments[i].capacity;
    }
    return merged + 1;
}

static void put_segments(struct mc_buffer *out, const struct mc_core_segment *segments, size_t count)
{
    put_head(out, "segment_allocated_bytes", "gauge", "Bytes of live and granted extents of a segment.");
    for (size_t i = 0; i < count; i++) {
        mc_buffer_printf(out, "segment_allocated_bytes{segment=\"");
        put_label(out, segments[i].name);
        mc_buffer_printf(out, "\"} %llu\n", (unsigned long long)segments[i].used);
    }
    put_head(out, "segment_total_capacity_bytes", "gauge", "Bytes that a segment lends.");
    for (size_t i = 0; i < count; i++) {
        mc_buffer_printf(out, "segment_total_capacity_bytes{segment=\"");
        put_label(out, segments[i].name);
        mc_buffer_printf(out, "\"} %llu\n", (unsigned long long)segments[i].capacity);
    }
}

static void put_accusers(struct mc_buffer *out, const struct mc_core_accuser *accusers, size_t count)
{
    put_head(out, "mooncake_accusing_host", "gauge",
             "Nodes that a host has reported in the last minute although they answer: look at that host's link.");
    for (size_t i = 0; i < count; i++) {
        size_t same = 0; /* a sample may be there once only */
        while (strcmp(accusers[same].name, accusers[i].name) != 0)
            same++;
        if (same < i)
            continue;
        mc_buffer_printf(out, "mooncake_accusing_host{host=\"");
        put_label(out, accusers[i].name);
        mc_buffer_printf(out, "\"} %u\n", accusers[i].nodes);
    }
}

/* ---- tenants ---- */

static uint64_t tenant_value(const struct mc_core_tenant *tenant, size_t which, bool has_quotas)
{
    const uint64_t values[] = {tenant->quota.bytes,
                               tenant->effective_bytes,
                               tenant->bytes,
                               has_quotas && !tenant->has_quota,
                               tenant->has_quota && tenant->bytes > tenant->effective_bytes,
                               tenant->has_quota,
                               tenant->quota.objects,
                               tenant->objects,
                               tenant->quota.guaranteed_bytes,
                               tenant->quota.guaranteed_objects,
                               tenant->evicted_bytes,
                               tenant->evicted_objects,
                               tenant->firm_bytes};
    return values[which];
}

static const struct { /* in the order of tenant_value */
    const char *name;
    enum metric_kind kind;
    const char *help;
} tenant_metrics[] = {
    {"mooncake_tenant_quota_requested_bytes", GAUGE, "Quota that a tenant was given."},
    {"mooncake_tenant_quota_effective_bytes", GAUGE, "Quota that a tenant has, of what memory there is."},
    {"mooncake_tenant_quota_charged_bytes", GAUGE, "Bytes of values of a tenant in memory, once for each replica."},
    {"mooncake_tenant_quota_admission_closed", GAUGE, "1: the tenant has no quota, and puts nothing."},
    {"mooncake_tenant_quota_over_quota", GAUGE, "1: the tenant has more than its quota."},
    {"mooncake_tenant_quota_explicit_policy", GAUGE, "1: the tenant has a quota."},
    {"mooncake_tenant_quota_requested_objects", GAUGE, "Objects that a tenant may have; 0: as many as it likes."},
    {"mooncake_tenant_quota_charged_objects", GAUGE, "Objects of a tenant in memory."},
    {"mooncake_tenant_guaranteed_bytes", GAUGE, "Bytes of a tenant that are not evicted to make room for others."},
    {"mooncake_tenant_guaranteed_objects", GAUGE, "Objects that are not evicted to make room for others."},
    {"mooncake_tenant_evict_bytes_total", COUNTER, "Bytes that a tenant has evicted among its own for its quota."},
    {"mooncake_tenant_evict_objects_total", COUNTER, "Objects that a tenant has evicted among its own."},
    {"mooncake_tenant_firm_pin_bytes", GAUGE, "Bytes of memory that a tenant's objects with a firm pin take."},
};

static void put_refusal(struct mc_buffer *out, const char *name, const char *reason, uint64_t count)
{
    mc_buffer_printf(out, "mooncake_tenant_quota_reject_total{tenant_id=\"");
    put_label(out, name);
    mc_buffer_printf(out, "\",reason=\"%s\"} %llu\n", reason, (unsigned long long)count);
}

void mc_metrics_tenants(struct mc_buffer *out, const struct mc_core_tenant *list, size_t count, uint64_t capacity,
                        bool has_quotas, const struct mc_core_statistics *statistics)
{
    uint64_t requested = 0, effective = 0;
    for (size_t which = 0; which < LENGTH(tenant_metrics); which++) {
        put_head(out, tenant_metrics[which].name, kind_names[tenant_metrics[which].kind], tenant_metrics[which].help);
        for (size_t i = 0; i < count; i++) {
            mc_buffer_printf(out, "%s{tenant_id=\"", tenant_metrics[which].name);
            put_label(out, list[i].name);
            mc_buffer_printf(out, "\"} %llu\n", (unsigned long long)tenant_value(&list[i], which, has_quotas));
        }
    }
    put_head(out, "mooncake_tenant_quota_reject_total", "counter", "Puts that were refused for a tenant's quota.");
    for (size_t i = 0; i < count; i++) {
        put_refusal(out, list[i].name, "quota_exceeded", list[i].refused);
        requested += list[i].quota.bytes;
        effective += list[i].has_quota ? list[i].effective_bytes : 0;
    }
    put_refusal(out, "", "tenant_not_registered", statistics->tenants_unknown);
    put_one(out, "mooncake_tenant_quota_allocatable_capacity_bytes", GAUGE, "Memory that quotas are about.", capacity);
    put_one(out, "mooncake_tenant_quota_requested_bytes_sum", GAUGE, "Of all quotas.", requested);
    put_one(out, "mooncake_tenant_quota_effective_bytes_sum", GAUGE, "Of all quotas, as they are now.", effective);
}

/* ---- misses ---- */

static const char *const reason_names[MC_GONE_COUNT] = {[MC_GONE_NONE] = "not_loaded",
#define MC_GONE_REASON(name, text) [MC_GONE_##name] = text,
                                                        MC_GONE_REASONS(MC_GONE_REASON)
#undef MC_GONE_REASON
};

const char *mc_metrics_reason(enum mc_gone why)
{
    return reason_names[why];
}

/* What is not known yet has no sample. */
static void put_ratio(struct mc_buffer *out, const char *sample, double ratio)
{
    if (ratio >= 0)
        mc_buffer_printf(out, "%s %.4f\n", sample, ratio);
}

void mc_metrics_misses(struct mc_buffer *out, const struct mc_core_statistics *statistics,
                       const struct mc_core_curve *curve)
{
    static const struct {
        unsigned point;
        const char *sample;
    } points[] = {{1, "mooncake_expected_hit_ratio{memory=\"0.25\"}"},
                  {3, "mooncake_expected_hit_ratio{memory=\"0.5\"}"},
                  {MC_CORE_CURVE_NOW, "mooncake_expected_hit_ratio{memory=\"1\"}"},
                  {9, "mooncake_expected_hit_ratio{memory=\"1.5\"}"},
                  {11, "mooncake_expected_hit_ratio{memory=\"2\"}"},
                  {15, "mooncake_expected_hit_ratio{memory=\"4\"}"}};
    put_head(out, "mooncake_misses_total", "counter", "Keys that were looked for and not there, by why; see the page.");
    for (unsigned why = 0; why < MC_GONE_COUNT; why++)
        mc_buffer_printf(out, "mooncake_misses_total{reason=\"%s\"} %llu\n", reason_names[why],
                         (unsigned long long)statistics->misses[why]);
    put_head(out, "mooncake_hit_ratio", "gauge", "Part of the keys that were looked for in the last hours and found.");
    put_ratio(out, "mooncake_hit_ratio", curve->found);
    put_head(out, "mooncake_expected_hit_ratio", "gauge",
             "What an LRU of so many times the memory that there is would have found of them, estimated.");
    for (size_t i = 0; i < LENGTH(points); i++)
        put_ratio(out, points[i].sample, curve->points[points[i].point].ratio);
    put_histogram(out, "mooncake_reuse_seconds", "Time since the use before, of keys that were looked for, estimated.",
                  curve->span_s, MC_CORE_SPANS, curve->spans, curve->span_sum_s);
    put_histogram(out, "mooncake_eviction_age_seconds",
                  "Time since the last use, or the put, of what was evicted, estimated.", curve->span_s, MC_CORE_SPANS,
                  curve->ages.counts, curve->ages.sum_s);
}

static const char *const eviction_names[MC_CORE_EVICTION_COUNT] = {
#define MC_EVICTION_NAME(name, text) [MC_CORE_EVICTION_##name] = (text),
    MC_CORE_EVICTIONS(MC_EVICTION_NAME)
#undef MC_EVICTION_NAME
};
static const char *const hint_names[MC_CORE_HINTS] = {NULL, "drop", "pause", "resume", "prefetch"};
static const char *const outcome_names[MC_CORE_HINT_OUTCOMES] = {"done", "begun", "absent", "no_room", "refused"};

const char *mc_metrics_eviction(enum mc_core_eviction what)
{
    return eviction_names[what];
}

const char *mc_metrics_hint(unsigned hint)
{
    return hint_names[hint];
}

const char *mc_metrics_outcome(enum mc_core_hinted outcome)
{
    return outcome_names[outcome];
}

static void put_evictions(struct mc_buffer *out, const struct mc_core_statistics *statistics)
{
    put_head(out, "mooncake_evictions_total", "counter", "Objects evicted, by what room was wanted for.");
    for (unsigned what = 0; what < MC_CORE_EVICTION_COUNT; what++)
        mc_buffer_printf(out, "mooncake_evictions_total{reason=\"%s\"} %llu\n", eviction_names[what],
                         (unsigned long long)statistics->evictions[what]);
}

static void put_hints(struct mc_buffer *out, const struct mc_core_statistics *statistics)
{
    put_head(out, "mooncake_hints_total", "counter", "Keys that hints were given of, by hint and what came of it.");
    for (unsigned hint = 1; hint < MC_CORE_HINTS; hint++)
        for (unsigned outcome = 0; outcome < MC_CORE_HINT_OUTCOMES; outcome++)
            mc_buffer_printf(out, "mooncake_hints_total{hint=\"%s\",outcome=\"%s\"} %llu\n", hint_names[hint],
                             outcome_names[outcome], (unsigned long long)statistics->hints[hint][outcome]);
}

void mc_metrics_text(struct mc_buffer *out, const struct mc_core_statistics *statistics,
                     struct mc_core_segment *segments, size_t count, const struct mc_metrics_extra *extra)
{
    for (size_t i = 0; i < LENGTH(metrics); i++)
        put_one(out, metrics[i].name, metrics[i].kind, metrics[i].help, value_at(statistics, metrics[i].offset));
    put_histogram(out, "master_value_size_bytes", "Bytes of the objects put.", value_size_bounds,
                  LENGTH(value_size_bounds), statistics->value_size_histogram, statistics->value_size_histogram[8]);
    put_seconds(out, "mooncake_put_seconds",
                "Puts as the master sees them, from their grant until the last value was there or had failed.",
                mc_core_put_ms, MC_CORE_PUT_BOUNDS, statistics->put_ms, statistics->put_ms_sum);
    put_histogram(out, "master_snapshot_duration_ms", ABSENT, snapshot_bounds, LENGTH(snapshot_bounds), NULL, 0);
    put_histogram(out, "master_nof_heartbeat_probe_latency_ms", ABSENT, probe_bounds, LENGTH(probe_bounds), NULL, 0);
    put_segments(out, segments, merge_segments(segments, count));
    put_accusers(out, extra->accusers, extra->accuser_count);
    put_evictions(out, statistics);
    put_hints(out, statistics);
    put_one(out, "mooncake_resident_bytes", GAUGE, "Resident memory of the master.", extra->resident_bytes);
    put_one(out, "mooncake_uptime_seconds", GAUGE, "Seconds since the master started.", extra->uptime_seconds);
    put_one(out, "mooncake_epoch", GAUGE, "Epoch of this leadership.", extra->epoch);
    put_one(out, "mooncake_tls_handshakes_total", COUNTER, "Handshakes of TLS with callers of the RPC port.",
            extra->tls_handshakes);
    put_one(out, "mooncake_tls_resumed_total", COUNTER, "Of them, by a ticket of an earlier one.", extra->tls_resumed);
    put_head(out, "mooncake_standbys", "gauge", "Masters that say that they wait to lead.");
    if (extra->standbys_are_known)
        mc_buffer_printf(out, "mooncake_standbys %llu\n", (unsigned long long)extra->standbys);
    put_one(out, "mooncake_trace_spans_sent_total", COUNTER, "Spans of traces that a collector, or a file, has taken.",
            extra->spans_sent);
    put_one(out, "mooncake_trace_spans_dropped_total", COUNTER,
            "Spans that were too many, or that nobody has taken in time.", extra->spans_dropped);
    put_head(out, "mooncake_loop_longest_turn_seconds", "gauge",
             "For how long the master's loop answered nobody, at most, in the last 10 to 20 seconds.");
    mc_buffer_printf(out, "mooncake_loop_longest_turn_seconds %.6f\n", (double)extra->longest_turn_ns / 1e9);
    put_head(out, "mooncake_build_info", "gauge", "Version of the master.");
    mc_buffer_printf(out, "mooncake_build_info{version=\"%s\"} 1\n", MC_VERSION);
}
