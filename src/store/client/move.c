/* Transfers by segment. */
#include "store/client/move.h"

#include "store/client/avoid.h"
#include "store/client/endpoints.h"
#include "store/client/link.h"
#include "store/client/master.h"
#include "store/client/owners.h"

#include "store/path/path.h"
#include "store/path/paths.h"
#include "env/clock.h"
#include "env/spans.h"

#define PATIENCE_NS (MC_PATIENCE_MS * 1000000ull)

static void write_live(struct mc_buffer *out, struct mc_transfer **group, size_t count)
{
    for (size_t at = 0; at < count;) {
        size_t items = 0;
        size_t frame = mc_frame_begin(out, MC_MESSAGE_LIVE, 0);
        size_t list = mc_wire_live_head(out, &(struct mc_wire_live){.segment = group[0]->place.segment});
        for (; at < count && items < MC_BATCH_MAX; at++) {
            if (group[at]->result < 0)
                continue;
            struct mc_wire_live_item item = {
                .slot = group[at]->place.slot, .code = 0, .generation = group[at]->place.generation};
            mc_wire_live_item_write(out, &item);
            items++;
        }
        mc_frame_end_list(out, frame, list, items);
        if (items == 0)
            out->length = frame;
    }
}

/* One call. */
struct moving {
    struct mc_store *store;
    struct mc_master_link *link;
    uint64_t epoch;
    const struct mc_run *run;
    struct mc_haste *haste;
    struct mc_buffer *live;
    const struct mc_transfer *transfers; /* all of them */
    bool failed;                         /* an owner has failed just now */
};

/* Did the group meet a path that does not work (as opposed to an object that is gone or rotten, to trouble of our own,
 * and to a deadline that came)? */
static int path_failure(struct mc_transfer **group, size_t count, const struct mc_run *run)
{
    bool is_stall = run->patience_ns == 0 && mc_clock_ns() < run->deadline_ns;
    for (size_t i = 0; i < count; i++) {
        if (group[i]->result == MC_ERR_TRANSFER_FAIL || (group[i]->result == MC_ERR_RPC_TIMEOUT && is_stall))
            return group[i]->result;
    }
    return 0;
}

/* Was it silent for longer than the run had patience? */
static bool is_slow(struct mc_transfer **group, size_t count, const struct mc_run *run)
{
    for (size_t i = 0; i < count && run->patience_ns != 0; i++) {
        if (group[i]->result == MC_ERR_RPC_TIMEOUT && mc_clock_ns() < run->deadline_ns)
            return true;
    }
    return false;
}

struct doubted {
    struct mc_master_link *link;
    uint32_t segment;
};

/* One way, and not worth any wait. */
static void doubt(void *context)
{
    const struct doubted *doubted = context;
    mc_store_suspect(&doubted->link->out, doubted->segment, 0);
    (void)mc_link_send(doubted->link, mc_clock_ns() + 1000000ull);
}

/* An owner that was only silent is not told of by who has heard no other one meanwhile: it may be his own cable. He has
 * doubted it already, so the master looks. An end of a connection, or a refusal, is a word of the peer's host. */
static bool is_to_tell(struct mc_store *store, const struct mc_master_link *link, uint64_t start_ns, bool is_beside)
{
    bool was_silent = mc_clock_ns() - start_ns >= MC_STALL_NS / 2;
    /* Those that were asked together with it have answered before the cable broke, if it did. */
    uint64_t since_ns = is_beside ? start_ns + MC_STALL_NS / 2 : start_ns;
    return link != NULL && (!was_silent || atomic_load(&mc_paths_counters(store->paths)->read_ns) > since_ns);
}

/* An owner has failed. Was it silent until then? */
static void note_stall(const struct moving *moving, uint64_t start_ns)
{
    if (moving->haste != NULL && mc_clock_ns() - start_ns >= PATIENCE_NS)
        moving->haste->stalled = true;
}

/* Until when a path may be opened. */
static uint64_t open_until_ns(const struct moving *moving, uint64_t now_ns)
{
    bool is_short = moving->haste != NULL && moving->haste->stalled && now_ns + PATIENCE_NS < moving->run->deadline_ns;
    return is_short ? now_ns + PATIENCE_NS : moving->run->deadline_ns;
}

/* There, perhaps, our ticket has expired, or another process has taken its place. Then the master is asked, and nobody
 * is blamed. */
static bool is_told_anew(const struct moving *moving, struct mc_endpoint *endpoint)
{
    uint64_t until_ns = mc_clock_ns() + PATIENCE_NS;
    until_ns = until_ns < moving->run->deadline_ns ? until_ns : moving->run->deadline_ns;
    return moving->link != NULL && mc_store_ticket_renew(moving->store, moving->epoch, until_ns, endpoint);
}

static bool has_expired(const struct moving *moving, const struct mc_path *path)
{
    struct mc_endpoint endpoint = path->endpoint;
    return is_told_anew(moving, &endpoint);
}

/* The way to the segment. 0; MC_ERR_TRANSFER_FAIL: there is none now; MC_ERR_RPC_TIMEOUT: the deadline, or haste; or
 * our own trouble. */
static int find_path(const struct moving *moving, uint32_t segment, struct mc_path **path, bool *failed)
{
    struct mc_store *store = moving->store;
    struct mc_master_link *link = moving->link;
    const struct mc_run *run = moving->run;
    uint64_t epoch = moving->epoch;
    struct mc_endpoint endpoint;
    int rc = MC_ERR_TRANSFER_FAIL;
    if (mc_store_is_avoided(store, epoch, segment))
        return rc;
    if (link != NULL)
        rc = mc_store_endpoint(store, epoch, segment, run->deadline_ns, &endpoint);
    else if (mc_store_endpoint_known(store, epoch, segment, &endpoint))
        rc = 0;
    if (rc < 0)
        return mc_master_is_gone(rc) || mc_socket_is_own(rc) || rc == MC_ERR_RPC_TIMEOUT ? rc : MC_ERR_TRANSFER_FAIL;
    uint64_t start_ns = mc_clock_ns(), until_ns = open_until_ns(moving, start_ns);
    rc = mc_store_path(store, &endpoint, until_ns, path);
    if (rc == MC_ERR_STALE && is_told_anew(moving, &endpoint)) /* once */
        rc = mc_store_path(store, &endpoint, until_ns, path);
    uint64_t now_ns = mc_clock_ns();
    bool is_refused = rc == MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS && link != NULL && now_ns - start_ns < MC_STALL_NS / 2;
    if (rc == 0 || (mc_socket_is_own(rc) && !is_refused))
        return rc;
    if (is_refused) { /* a router or a filter said so at once, or there is no such name, and the master's way is open:
                       * it may be this owner's. Nobody is accused, the master looks. */
        doubt(&(struct doubted){link, segment});
        mc_store_report(store, false, epoch, &endpoint, NULL, rc);
        *failed = true;
        return MC_ERR_TRANSFER_FAIL;
    }
    if (rc == MC_ERR_RPC_TIMEOUT && now_ns >= run->deadline_ns)
        return rc; /* it had less than its time */
    if (link != NULL && rc == MC_ERR_RPC_TIMEOUT)
        doubt(&(struct doubted){link, segment});
    if (rc == MC_ERR_RPC_TIMEOUT && now_ns >= until_ns) {
        mc_store_avoid(store, epoch, segment, MC_AVOID_SLOW, 0);
        return rc;
    }
    note_stall(moving, start_ns);
    mc_store_report(store, is_to_tell(store, link, start_ns, false), epoch, &endpoint, NULL, rc);
    *failed = true;
    return MC_ERR_TRANSFER_FAIL;
}

/* How long the owner may be silent; 0: MC_STALL_NS, as on ways that know nothing shorter. */
static uint64_t patience_ns(const struct moving *moving, const struct mc_path *path, struct mc_transfer **group,
                            size_t count)
{
    const struct mc_haste *haste = moving->haste;
    bool is_short = haste != NULL;
    for (size_t i = 0; i < count && is_short; i++)
        is_short = haste->has_others[group[i] - moving->transfers] || (haste->stalled && path->transport->has_patience);
    return is_short ? PATIENCE_NS : 0;
}

/* The caller comes back to what was left in haste, and only to that. */
static void end_stalled(struct mc_transfer **group, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (group[i]->result == MC_ERR_RPC_TIMEOUT)
            group[i]->result = MC_ERR_TRANSFER_FAIL;
    }
}

/* One segment's transfers on their way. */
struct move_part {
    struct mc_path_batch group; /* the first, as it is what mc_path_run_all gives back */
    struct moving *moving;
    struct doubted doubted;
    bool is_beside;         /* others are moved at the same time */
    struct mc_traced *span; /* or NULL */
};

/* Several are under way at a time: none is what the thread does. */
static void part_trace(struct move_part *part)
{
    const struct mc_trace_context now = mc_trace_inside();
    bool is_read = part->group.transfers[0]->kind == MC_TRANSFER_READ;
    part->span = mc_traced_make(is_read ? "mooncake.get.read" : "mooncake.put.write", MC_SPAN_CLIENT, &now);
    if (part->span == NULL)
        return;
    mc_traced_segment(part->span, part->group.path->endpoint.name);
    part->span->path = part->group.path->transport->name;
    part->group.run.trace = &part->span->self;
}

static void part_trace_end(struct move_part *part)
{
    int rc = 0;
    part->group.run.trace = NULL;
    part->span->keys = (uint32_t)part->group.count;
    for (size_t i = 0; i < part->group.count; i++) {
        const struct mc_transfer *transfer = part->group.transfers[i];
        part->span->bytes += transfer->result == 0 ? transfer->length : 0;
        rc = rc < 0 ? rc : transfer->result;
    }
    mc_traced_end(part->span, rc);
}

/* What it has come to. The path's reference is given back. */
static void part_end(struct move_part *part)
{
    struct moving *moving = part->moving;
    struct mc_path_batch *group = &part->group;
    const struct mc_run *run = &group->run;
    struct mc_path *path = group->path;
    if (part->span != NULL)
        part_trace_end(part);
    int rc = path_failure(group->transfers, group->count, run);
    if (rc < 0 && has_expired(moving, path)) {
        mc_path_drop(path);
    } else if (rc < 0) {
        note_stall(moving, group->start_ns);
        mc_store_report(moving->store, is_to_tell(moving->store, moving->link, group->start_ns, part->is_beside),
                        moving->epoch, &path->endpoint, path, rc);
        if (moving->haste != NULL && run->patience_ns == 0 && mc_clock_ns() < run->deadline_ns)
            end_stalled(group->transfers, group->count);
    } else if (is_slow(group->transfers, group->count, run)) {
        mc_store_avoid(moving->store, moving->epoch, part->doubted.segment, MC_AVOID_SLOW, 0);
    }
    if (moving->live != NULL && path->transport->commits_here)
        write_live(moving->live, group->transfers, group->count);
    mc_path_release(path);
    moving->failed = moving->failed || rc < 0;
}

static void part_ended(struct mc_path_batch *group)
{
    part_end((struct move_part *)group);
}

/* Finds the way. False when there is none: then the results are set. */
static bool part_begin(struct move_part *part, struct moving *moving, struct mc_transfer **group, size_t count)
{
    uint32_t segment = group[0]->place.segment;
    *part = (struct move_part){
        .group = {.transfers = group, .count = count, .run = *moving->run, .ended = part_ended},
        .moving = moving,
        .doubted = {moving->link, segment},
    };
    int rc = find_path(moving, segment, &part->group.path, &moving->failed);
    for (size_t i = 0; i < count && rc < 0; i++)
        group[i]->result = rc;
    return rc == 0;
}

/* Just before it runs: how long its owner may be silent depends on what was waited for before. */
static void part_arm(struct move_part *part)
{
    struct moving *moving = part->moving;
    struct mc_run *run = &part->group.run;
    if (moving->link != NULL) {
        run->doubt = doubt;
        run->doubt_context = &part->doubted;
    }
    run->patience_ns = patience_ns(moving, part->group.path, part->group.transfers, part->group.count);
    if (mc_traces_are_on())
        part_trace(part);
}

static void part_run(struct move_part *part)
{
    part_arm(part);
    part->group.start_ns = mc_clock_ns();
    mc_path_run(part->group.path, part->group.transfers, part->group.count, &part->group.run);
    part_end(part);
}

/* Those that can go at once do so. */
static void parts_run(struct move_part *parts, size_t count)
{
    struct mc_path_batch *groups[MC_PATH_BATCHES_MAX];
    for (size_t i = 0; i < count && count > 1; i++) {
        part_arm(&parts[i]);
        parts[i].is_beside = true;
        groups[i] = &parts[i].group;
    }
    if (count > 1)
        mc_path_run_all(groups, count);
    else if (count == 1)
        part_run(parts);
}

bool mc_store_move(struct mc_store *store, struct mc_master_link *link, uint64_t epoch, struct mc_transfer *transfers,
                   size_t count, const struct mc_run *run, struct mc_haste *haste, struct mc_transfer **scratch,
                   struct mc_buffer *live)
{
    struct moving moving = {store, link, epoch, run, haste, live, transfers, false};
    struct move_part parts[MC_PATH_BATCHES_MAX];
    size_t part_count = 0;
    /* Segments are few: one pass per segment. `result` 1 marks what has not been moved yet. */
    for (size_t i = 0; i < count; i++)
        transfers[i].result = 1;
    for (size_t first = 0; first < count; first++) {
        struct move_part *part = &parts[part_count];
        if (transfers[first].result != 1)
            continue;
        size_t group_count = 0;
        for (size_t i = first; i < count; i++) {
            if (transfers[i].result == 1 && transfers[i].place.segment == transfers[first].place.segment) {
                scratch[group_count++] = &transfers[i];
                transfers[i].result = 2; /* its way is looked for */
            }
        }
        if (part_begin(part, &moving, scratch, group_count)) {
            if (mc_path_runs_with_others(part->group.path, scratch, group_count))
                part_count++;
            else
                part_run(part);
        }
        scratch += group_count;
        if (part_count == MC_PATH_BATCHES_MAX) {
            parts_run(parts, part_count);
            part_count = 0;
        }
    }
    parts_run(parts, part_count);
    return moving.failed;
}
