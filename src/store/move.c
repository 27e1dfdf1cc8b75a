/* Transfers by segment. */
#include "store/move.h"

#include "env/clock.h"

static void write_live(struct mc_buffer *out, struct mc_transfer **group, size_t count)
{
    for (size_t at = 0; at < count;) {
        size_t items = 0;
        size_t frame = mc_frame_begin(out, MC_MESSAGE_LIVE, 0);
        mc_wire_live_write(out, &(struct mc_wire_live){.segment = group[0]->place.segment});
        size_t list = mc_list_begin(out);
        for (; at < count && items < MC_BATCH_MAX; at++) {
            if (group[at]->result < 0)
                continue;
            struct mc_wire_live_item item = {
                .slot = group[at]->place.slot, .code = 0, .generation = group[at]->place.generation};
            mc_wire_live_item_write(out, &item);
            items++;
        }
        mc_list_end(out, list, items);
        mc_frame_end(out, frame);
        if (items == 0)
            out->length = frame;
    }
}

/* Did the group meet a path that does not work (as opposed to an object that is gone or rotten)? */
static int path_failure(struct mc_transfer **group, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (group[i]->result == MC_ERR_TRANSFER_FAIL || group[i]->result == MC_ERR_RPC_TIMEOUT)
            return group[i]->result;
    }
    return 0;
}

struct doubted {
    struct mc_link *link;
    uint32_t segment;
};

/* One way, and not worth any wait. */
static void doubt(void *context)
{
    const struct doubted *doubted = context;
    mc_store_suspect(doubted->link, doubted->segment, 0);
    (void)mc_link_send(doubted->link, mc_clock_ns() + 1000000ull);
}

static void move_group(struct mc_store *store, struct mc_link *link, uint64_t epoch, struct mc_transfer **group,
                       size_t count, const struct mc_run *run, struct mc_buffer *live)
{
    struct mc_path *path = NULL;
    struct mc_endpoint endpoint;
    uint32_t segment = group[0]->place.segment;
    int rc = MC_ERR_TRANSFER_FAIL;
    if (!mc_store_is_shunned(store, epoch, segment)) {
        if (link != NULL)
            rc = mc_store_endpoint(store, epoch, segment, run->deadline_ns, &endpoint);
        else if (mc_store_endpoint_known(store, epoch, segment, &endpoint))
            rc = 0;
        if (rc == 0) {
            rc = mc_store_path(store, &endpoint, run->deadline_ns, &path);
            if (rc < 0)
                mc_store_report(store, link, epoch, segment, NULL, rc);
        }
    }
    if (path == NULL) {
        for (size_t i = 0; i < count; i++)
            group[i]->result = MC_ERR_TRANSFER_FAIL;
        return;
    }
    struct doubted doubted = {link, segment};
    struct mc_run own = *run;
    if (link != NULL) {
        own.doubt = doubt;
        own.doubt_context = &doubted;
    }
    mc_path_run(path, group, count, &own);
    rc = path_failure(group, count);
    if (rc < 0)
        mc_store_report(store, link, epoch, segment, path, rc);
    if (live != NULL && path->transport->commits_here)
        write_live(live, group, count);
    mc_path_release(path);
}

void mc_store_move(struct mc_store *store, struct mc_link *link, uint64_t epoch, struct mc_transfer *transfers,
                   size_t count, const struct mc_run *run, struct mc_transfer **scratch, struct mc_buffer *live)
{
    /* Segments are few: one pass per segment. `result` 1 marks what has not been moved yet. */
    for (size_t i = 0; i < count; i++)
        transfers[i].result = 1;
    for (size_t first = 0; first < count; first++) {
        if (transfers[first].result != 1)
            continue;
        size_t group_count = 0;
        for (size_t i = first; i < count; i++) {
            if (transfers[i].result == 1 && transfers[i].place.segment == transfers[first].place.segment)
                scratch[group_count++] = &transfers[i];
        }
        move_group(store, link, epoch, scratch, group_count, run, live);
    }
}
