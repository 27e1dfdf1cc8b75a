/* A store as its user sees it: open, close, how it is. */
#include "mooncake.h"

#include "env/clock.h"
#include "env/spans.h"
#include "store/client/hot.h"
#include "store/client/life.h"
#include "store/client/link.h"
#include "store/client/master.h"
#include "store/client/parts.h"
#include "store/client/retire.h"
#include "store/client/state.h"
#include "store/client/threads.h"
#include "store/owner/owner.h"

int mc_store_open(const struct mc_store_config *config, struct mc_store **made)
{
    mc_spans_start("mooncake_store"); /* before the first hello, which says whether we make any */
    int rc = mc_parts_begin(config, made);
    if (rc < 0)
        mc_spans_end();
    return rc;
}

int mc_store_close(struct mc_store *store)
{
    if (store != NULL && !atomic_load(&store->retired))
        (void)mc_store_retire(store, 0, mc_retire_grace_ms(), NULL, NULL); /* what was left stands in the log */
    if (!mc_life_quiet(store))
        return 0;
    mc_tasks_end(store); /* from now on its thread's calls are refused */
    mc_mounts_end(store);
    mc_life_end(store);
    mc_spans_end();
    return 0;
}

void mc_store_trace(const char *traceparent)
{
    mc_trace_enter_text(traceparent);
}

const char *mc_store_hostname(const struct mc_store *store)
{
    return store->hostname;
}

static void build_ping(struct mc_buffer *out, uint64_t request_id, const void *context)
{
    (void)context;
    size_t frame = mc_frame_begin(out, MC_MESSAGE_EXIST, request_id);
    mc_frame_end_list(out, frame, mc_wire_none_head(out, &(struct mc_wire_none){0}), 0);
}

int mc_store_health(struct mc_store *store)
{
    struct mc_master_link *link;
    struct mc_reader reader;
    int rc = mc_store_enter(store);
    if (rc < 0)
        return 1;
    /* One try: what is asked is whether there is a master now. */
    rc = mc_master_is_away(store) ? MC_ERR_RPC_FAIL
                                  : mc_link_try(store, mc_clock_ns() + 1000000000ull, build_ping, NULL,
                                                MC_MESSAGE_EXIST_REPLY, &link, &reader);
    if (rc == 0)
        mc_link_return(store, link);
    mc_store_leave(store);
    return rc == 0 ? 0 : 2;
}

int mc_store_disks(struct mc_store *store, struct mc_store_disk *disks, size_t capacity)
{
    struct mc_owner *owner = atomic_load(&store->owner);
    return owner == NULL ? 0 : mc_owner_disks_seen(owner, disks, capacity);
}

static void segment_add(struct mc_owner *owner, struct mc_store_statistics *statistics)
{
    uint64_t bytes, rotten;
    statistics->segment_capacity += mc_owner_capacity(owner);
    statistics->segment_populated += mc_owner_populated(owner);
    mc_owner_scrubbed(owner, &bytes, &rotten);
    statistics->scrubbed_bytes += bytes;
    statistics->rotten_slots += rotten;
    statistics->tags_refused += mc_owner_tags_refused(owner);
}

void mc_store_statistics(struct mc_store *store, struct mc_store_statistics *statistics)
{
    const struct mc_paths_counters *counters = mc_paths_counters(store->paths);
    struct mc_owner *owner = atomic_load(&store->owner);
    *statistics = (struct mc_store_statistics){.put_objects = atomic_load(&store->put_objects),
                                               .put_bytes = atomic_load(&store->put_bytes),
                                               .get_objects = atomic_load(&store->get_objects),
                                               .get_bytes = atomic_load(&store->get_bytes),
                                               .get_misses = atomic_load(&store->get_misses),
                                               .retries = atomic_load(&store->retries),
                                               .places_hits = atomic_load(&store->places_hits),
                                               .get_loads = atomic_load(&store->get_loads),
                                               .hot_hits = atomic_load(&store->hot_hits),
                                               .hot_bytes = store->hot == NULL ? 0 : mc_hot_bytes(store->hot),
                                               .rdma_copied_bytes = atomic_load(&counters->rdma_copied_bytes),
                                               .checksum_errors = atomic_load(&counters->checksum_errors),
                                               .fallbacks = atomic_load(&counters->fallbacks)};
    statistics->put_times = mc_call_times_seen(&store->put_times);
    statistics->get_times = mc_call_times_seen(&store->get_times);
    statistics->exist_times = mc_call_times_seen(&store->exist_times);
    for (size_t i = 0; i < 4; i++)
        statistics->path_bytes[i] = atomic_load(&counters->path_bytes[i]);
    struct mc_store *parts[MC_MOUNTS_MAX];
    size_t part_count = mc_mounts_parts(store, parts);
    if (owner != NULL)
        segment_add(owner, statistics);
    for (size_t i = 0; i < part_count; i++)
        segment_add(atomic_load(&parts[i]->owner), statistics);
}
