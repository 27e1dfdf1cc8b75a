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
        mc_segment_memory_drop(memory);
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

struct local_window { /* a window of transfers */
    struct mc_segment_memory *memory;
    struct mc_transfer **transfers;
};

static int local_move(void *context, size_t index, struct mc_motion *motion)
{
    const struct local_window *moved = context;
    struct mc_segment_memory *memory = moved->memory;
    const struct mc_transfer *transfer = moved->transfers[index];
    return transfer->kind == MC_TRANSFER_WRITE
               ? local_write(memory, transfer, motion)
               : mc_memory_read(mc_segment_memory_slots(memory), mc_segment_memory_data(memory),
                                mc_segment_memory_data_size(memory), transfer, motion);
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
    for (size_t i = 0; i < count; i++)
        transfers[i]->result = mc_transfer_check(transfers[i], data_size, slot_count);
    for (size_t first = 0, window; first < count; first += window) {
        struct local_window moved = {memory, transfers + first};
        window = mc_motion_window(&motion, transfers + first, count - first);
        mc_motion_move(&motion, transfers + first, window, &late, local_move, &moved);
    }
    mc_path_account(path, transfers, count);
}

static void local_close(struct mc_path *path)
{
    struct local_path *local = (struct local_path *)path;
    mc_segment_memory_drop(local->memory);
    free(local);
}

static bool local_is_ended(struct mc_path *path)
{
    (void)path;
    return false;
}

const struct mc_transport mc_transport_local = {
    "local", 0, true, local_open, local_run, local_close, local_is_ended, NULL, NULL, false, false, NULL, NULL};
