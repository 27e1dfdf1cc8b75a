/* Transport `local`: the segment is this process's own. */
#include "store/path/gather.h"
#include "store/path/path.h"
#include "store/path/paths.h"

#include <stdlib.h>

struct local_path {
    struct mc_path path;
    struct mc_segment_memory *memory;
};

static int local_open(struct mc_paths *paths, const struct mc_endpoint *endpoint, const struct mc_patience *patience,
                      struct mc_path **path)
{
    (void)patience;
    struct mc_segment_memory *memory = mc_paths_find_segment(paths, endpoint->segment_id);
    if (memory == NULL)
        return MC_ERR_UNAVAILABLE_IN_CURRENT_MODE;
    struct local_path *local = calloc(1, sizeof(*local));
    if (local == NULL) {
        mc_segment_memory_release(memory);
        return MC_ERR_NO_MEMORY;
    }
    mc_path_init(&local->path, &mc_transport_local, paths, endpoint);
    local->memory = memory;
    *path = &local->path;
    return 0;
}

static int local_write(struct mc_segment_memory *memory, const struct mc_transfer *transfer, struct mc_motion *motion)
{
    const struct mc_place *place = &transfer->place;
    struct mc_local_write write;
    struct mc_wire_commit_item commit;
    int rc = mc_segment_memory_write_begin(memory, &write, place->slot, place->generation, place->offset,
                                           mc_extent_size(transfer->object_length, transfer->key.length),
                                           motion->run->deadline_ns);
    if (rc < 0)
        return rc;
    rc = mc_memory_write(mc_segment_memory_data(memory), transfer, motion, &commit);
    if (rc == 0)
        rc = mc_segment_memory_commit(memory, &commit);
    mc_segment_memory_write_end(memory, &write);
    return rc;
}

static void local_run(struct mc_path *path, struct mc_transfer **transfers, size_t count, const struct mc_run *run)
{
    struct mc_segment_memory *memory = ((struct local_path *)path)->memory;
    struct mc_motion motion;
    if (mc_paths_is_forked(path->paths)) {
        mc_path_fail_all(transfers, count, MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS);
        return;
    }
    if (!mc_segment_memory_contact_within(memory, run->contact_age_max_ms)) {
        mc_path_fail_all(transfers, count, MC_ERR_REPLICA_IS_GONE);
        return;
    }
    uint64_t data_size = mc_segment_memory_data_size(memory);
    uint32_t slot_count = mc_segment_memory_slot_count(memory);
    mc_motion_start(&motion, run, path->paths->verify);
    motion.crew = path->paths->crew;
    int late = mc_motion_look(&motion);
    for (size_t i = 0; i < count; i++) {
        struct mc_transfer *transfer = transfers[i];
        transfer->result = mc_transfer_check(transfer, data_size, slot_count);
        if (transfer->result == 0)
            transfer->result = late;
        if (transfer->result < 0)
            continue;
        transfer->result = transfer->kind == MC_TRANSFER_WRITE
                               ? local_write(memory, transfer, &motion)
                               : mc_memory_read(mc_segment_memory_slots(memory), mc_segment_memory_data(memory),
                                                data_size, transfer, &motion);
        if (transfer->result == MC_ERR_RPC_TIMEOUT)
            late = MC_ERR_RPC_TIMEOUT;
    }
    mc_path_account(path, transfers, count);
}

static void local_close(struct mc_path *path)
{
    struct local_path *local = (struct local_path *)path;
    mc_segment_memory_release(local->memory);
    free(local);
}

static bool local_is_ended(struct mc_path *path)
{
    (void)path;
    return false;
}

const struct mc_transport mc_transport_local = {"local",        0,    true, local_open, local_run, local_close,
                                                local_is_ended, NULL, NULL, false,      NULL};
