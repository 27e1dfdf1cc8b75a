/* The core's life, the way of a frame to its handler, and the clockwork of ticks. */
#include "store/core/account.h"
#include "store/core/blank.h"
#include "store/core/hint.h"
#include "store/core/job.h"
#include "store/core/limits.h"
#include "store/core/list.h"
#include "store/core/member.h"
#include "store/core/place.h"
#include "store/core/put.h"
#include "store/core/recover.h"
#include "store/core/replica.h"
#include "store/core/request.h"
#include "store/core/segment.h"
#include "store/core/state.h"
#include "store/core/stripe.h"

#include <stdlib.h>

struct mc_core_config mc_core_config_default(void)
{
    return (struct mc_core_config){
        .lease_ttl_ms = 10000,
        .client_ttl_ms = 10000,
        .soft_pin_ttl_ms = 1800000,
        .soft_pin_max_ms = 86400000,
        .firm_pin_ratio = 0.25,
        .eviction_high_watermark = 1,
        .eviction_ratio = 0,
        .policy = mc_eviction_default(),
        .allow_evict_soft_pinned = true,
        .hard_pin_ratio = 1,
        .disk_ttl_ms = 3600000,
        .offload_queue_limit = 50000,
        .offload_cap_ratio = 0.5,
        .promotion_threshold = 2,
        .promotion_queue_limit = 50000,
        .promotion_per_heartbeat = 1,
        .spread_window_ms = 10000,
        .spread_reads_per_s = 0.8,
        .spread_replicas_max = 2,
        .put_discard_ms = 30000,
        .blank_part = 16,
        .depart_ms = MC_DEPART_MS,
        .recovery_grace_ms = 1000,
        .recovery_window_ms = 60000,
        .predecessor_end_ms = 0,
    };
}

/* ---- life ---- */

static void free_tables(struct mc_core *core)
{
    free(core->segments);
    free(core->segment_uses);
    mc_set_destroy(&core->ok);
    mc_set_destroy(&core->roomy);
    free(core->ended_well);
    free(core->keys_left);
    free(core->gone_bits);
    mc_groups_destroy(&core->groups);
    mc_pins_destroy(&core->pins);
    mc_ghosts_destroy(&core->ghosts);
    mc_reuse_destroy(&core->reuse);
    mc_heat_destroy(&core->heat);
}

static bool create_tables(struct mc_core *core, uint64_t seed)
{
    core->segments = calloc(MC_SEGMENTS_MAX, sizeof(*core->segments));
    core->segment_uses = calloc(MC_SEGMENTS_MAX, sizeof(*core->segment_uses));
    core->ended_well = calloc(MC_ENDED_WELL_MAX / 64, sizeof(*core->ended_well)); /* touched as it is used */
    bool is_counted = core->config.tenants;
    return core->segments != NULL && core->segment_uses != NULL && mc_set_init(&core->ok, MC_SET_OK) &&
           mc_set_init(&core->roomy, MC_SET_ROOMY) && core->ended_well != NULL && mc_groups_init(&core->groups, seed) &&
           mc_objects_init(&core->objects, seed) && mc_reuse_init(&core->reuse) &&
           mc_heat_init(&core->heat, &core->config) &&
           (!is_counted || (core->objects.accounts = mc_accounts_create(seed)) != NULL);
}

struct mc_core *mc_core_create(const struct mc_core_config *config, const struct mc_core_output *output,
                               struct mc_id node, uint64_t epoch, uint64_t seed, uint64_t now_ms)
{
    struct mc_core *core = calloc(1, sizeof(*core));
    if (core == NULL)
        return NULL;
    core->config = *config;
    if (core->config.client_ttl_ms < 2) /* half of it must be some time */
        core->config.client_ttl_ms = 2;
    core->output = *output;
    core->node = node;
    core->epoch = epoch;
    core->base_ms = now_ms;
    core->wake_ms = MC_TICK_IDLE_MS;
    core->random = seed;
    core->depart_let_ms = config->asks_to_depart ? 0 : UINT64_MAX;
    core->may_age = !config->asks_to_age;
    core->recovery_over = core->disks_over = config->recovery_window_ms == 0;
    core->segment_cursor = 1;
    core->slot_limit = MC_SLOTS_MAX;
    core->lender_segments = MC_SEGMENTS_MAX - MC_SEGMENTS_MAX / MC_LENDER_PARTS;
    core->fresh_part = MC_FRESH_PART;
    core->leaving = MC_GONE_LOST;
    core->puts.limit = MC_PUTS_MAX;
    core->tombstone_limit = MC_TOMBSTONES_MAX;
    core->counter_end = MC_COUNTER_END;
    core->waits.limit = MC_WAITS_MAX;
    mc_link_init(&core->members);
    mc_link_init(&core->puts_by_age);
    mc_link_init(&core->puts_dying);
    mc_link_init(&core->blanks);
    mc_link_init(&core->jobs);
    mc_link_init(&core->dirty);
    mc_link_init(&core->busy);
    mc_link_init(&core->watched);
    mc_link_init(&core->recovering);
    if (!create_tables(core, mc_core_random(core))) {
        free_tables(core);
        free(core);
        return NULL;
    }
    core->others_alive_ms = INT64_MIN;
    mc_evidence_noted(core, config->known_epoch, config->known_age_ms);
    mc_cluster_begin(core);
    return core;
}

static void destroy_connection(struct mc_connection *connection)
{
    free(connection->reading);
    free(connection);
}

void mc_core_destroy(struct mc_core *core)
{
    if (core == NULL)
        return;
    while (!mc_link_alone(&core->jobs))
        mc_job_destroy(core, mc_link_of(core->jobs.next, struct mc_job, link));
    for (uint32_t i = 0; i < core->puts.count; i++)
        if (core->puts.items[i] != NULL)
            mc_put_destroy(core, mc_table_get(&core->puts, i));
    for (uint32_t i = 1; i < core->segment_top; i++) {
        struct mc_segment *segment = core->segments[i];
        if (segment == NULL)
            continue;
        for (uint32_t slot = segment->cuts.head; slot != MC_NODE_NONE; slot = mc_segment_node(segment, slot)->list_next)
            mc_writer_release((struct mc_writer *)(uintptr_t)mc_segment_node(segment, slot)->pointer);
        for (uint32_t slot = segment->clears.head; slot != MC_NODE_NONE;
             slot = mc_segment_node(segment, slot)->list_next)
            if (mc_node_clearing_writer(mc_segment_node(segment, slot)) != NULL)
                mc_writer_release(mc_node_clearing_writer(mc_segment_node(segment, slot)));
        mc_segment_destroy(core, segment);
    }
    for (uint32_t i = 0; i < core->waits.count; i++)
        free(core->waits.items[i]);
    for (size_t i = 0; core->connections.entries != NULL && i <= core->connections.mask; i++)
        if (core->connections.entries[i].value != NULL)
            destroy_connection(core->connections.entries[i].value);
    while (!mc_link_alone(&core->members))
        mc_member_destroy(core, mc_link_of(core->members.next, struct mc_member, by_seen));
    mc_map_destroy(&core->connections);
    mc_map_destroy(&core->members_by_id);
    mc_map_destroy(&core->segments_by_id);
    mc_map_destroy(&core->lenders);
    mc_map_destroy(&core->held_more);
    mc_map_destroy(&core->remains_more);
    mc_map_destroy(&core->moves);
    for (unsigned i = 0; i < MC_ALIASES; i++)
        mc_map_destroy(&core->segments_by_alias[i]);
    free(core->puts.items);
    free(core->puts.free);
    free(core->waits.items);
    free(core->waits.free);
    mc_accounts_destroy(core->objects.accounts);
    mc_objects_destroy(&core->objects);
    mc_buffer_free(&core->scratch);
    free(core->waiters);
    free_tables(core);
    free(core);
}

/* ---- time ---- */

static void enter(struct mc_core *core, uint64_t now_ms)
{
    uint64_t now = now_ms > core->base_ms ? now_ms - core->base_ms : 0;
    if (now > core->now_ms)
        core->now_ms = now;
    if (core->now_ms > core->wake_ms + MC_GAP_MS) {
        core->gap_ms += core->now_ms - core->wake_ms;
        mc_core_log(core, MC_CORE_LOG_WARNING,
                    "this process stood still for %llu ms; deadlines of members are moved by it",
                    (unsigned long long)(core->now_ms - core->wake_ms));
        core->wake_ms = core->now_ms;
    }
    core->evictions_left = MC_EVICT_INPUT_MAX;
    core->turns_left = MC_EVICT_TURNS_MAX;
    core->waits_left = MC_SLICE_WAITS;
}

/* Every call that may have made news for owners ends with this. */
static bool flush(struct mc_core *core)
{
    bool more = false;
    struct mc_link *link = core->dirty.next;
    for (unsigned budget = MC_SLICE_FRAMES * 4; link != &core->dirty && budget > 0; budget--) {
        struct mc_segment *segment = mc_link_of(link, struct mc_segment, dirty);
        link = link->next;
        if (mc_segment_flush(core, segment))
            more = true;
        else
            mc_link_remove(&segment->dirty);
    }
    return more || !mc_link_alone(&core->dirty);
}

/* ---- departures ---- */

bool mc_core_acts(const struct mc_core *core)
{
    return mc_recover_acts(core);
}

void mc_core_note_foreign(struct mc_core *core)
{
    core->statistics.foreign_connections++;
}

bool mc_core_has_changed(const struct mc_core *core)
{
    return core->has_changed;
}

bool mc_core_has_given_up(const struct mc_core *core)
{
    return core->has_given_up || core->has_unmounted;
}

uint64_t mc_core_asks_to_depart(const struct mc_core *core)
{
    return mc_core_is_departing(core) ? core->depart_wanted_ms : 0;
}

void mc_core_let_depart(struct mc_core *core, uint64_t now_ms, uint64_t at_ms)
{
    enter(core, now_ms);
    if (core->depart_let_ms < at_ms) {
        core->depart_let_ms = at_ms;
        mc_members_depart(core);
    }
    (void)flush(core);
}

void mc_core_hold(struct mc_core *core, uint64_t now_ms, bool is_held)
{
    if (is_held == core->is_held)
        return;
    enter(core, now_ms);
    core->is_held = is_held;
    if (is_held) {
        core->held_ms = core->now_ms;
        mc_members_hold(core);
    } else {
        mc_segments_sent(core);
    }
}

void mc_core_sent(struct mc_core *core)
{
    core->sent_ms = core->now_ms;
}

bool mc_core_is_of_age(const struct mc_core *core)
{
    return mc_recover_is_of_age(core);
}

bool mc_core_asks_to_age(const struct mc_core *core)
{
    return mc_recover_asks_to_age(core);
}

void mc_core_let_age(struct mc_core *core)
{
    core->may_age = true;
}

/* ---- connections ---- */

void mc_core_connected(struct mc_core *core, uint64_t now_ms, uint64_t number)
{
    enter(core, now_ms);
    struct mc_connection *connection = NULL;
    if (core->connections.count < MC_CONNECTIONS_MAX && mc_map_get(&core->connections, number) == NULL)
        connection = calloc(1, sizeof(*connection));
    if (connection == NULL || !mc_map_put(&core->connections, number, connection)) {
        free(connection);
        core->output.close(core->output.context, number);
        return;
    }
    connection->number = number;
    mc_link_init(&connection->of_member);
    mc_link_init(&connection->puts);
    mc_link_init(&connection->waits);
}

void mc_core_comes_from(struct mc_core *core, uint64_t number, uint64_t address)
{
    struct mc_connection *connection = mc_map_get(&core->connections, number);
    if (connection != NULL)
        connection->address = address;
}

void mc_core_permitted(struct mc_core *core, uint64_t now_ms, uint64_t number, unsigned rights, uint64_t key,
                       const char *tenant)
{
    enter(core, now_ms);
    struct mc_connection *connection = mc_map_get(&core->connections, number);
    if (connection == NULL)
        return;
    connection->rights = (uint8_t)rights;
    connection->key = key;
    bool is_name = mc_scope_make(&connection->scope, mc_span_string(tenant));
    mc_assert(is_name); /* the file of keys was looked at */
}

void mc_core_disconnected(struct mc_core *core, uint64_t now_ms, uint64_t number)
{
    enter(core, now_ms);
    struct mc_connection *connection = mc_map_remove(&core->connections, number);
    if (connection == NULL)
        return;
    mc_reading_end(core, connection);
    mc_waits_abandon(connection);
    mc_puts_abandon(core, connection, false);
    mc_member_connection_ended(core, connection);
    destroy_connection(connection);
    (void)mc_puts_tick(core);
    (void)flush(core);
}

/* An owner's that no segment hangs on. What else it says is of no use to anybody. */
static uint64_t owner_rest_ms(const struct mc_core *core, const struct mc_connection *connection)
{
    uint64_t rest_ms = mc_core_life_ms(core) - connection->lent_ms;
    return connection->closing || mc_member_lends(connection) || rest_ms < MC_OWNER_MOUNT_MS ? 0 : rest_ms;
}

bool mc_core_lends_nothing(const struct mc_core *core, uint64_t number)
{
    const struct mc_connection *connection = mc_map_get(&core->connections, number);
    return connection != NULL && connection->member != NULL && connection->role == MC_ROLE_OWNER &&
           !mc_member_lends(connection);
}

uint64_t mc_core_rest_ms(struct mc_core *core, uint64_t now_ms, uint64_t number)
{
    enter(core, now_ms);
    const struct mc_connection *connection = mc_map_get(&core->connections, number);
    if (connection != NULL && connection->member != NULL && connection->role == MC_ROLE_OWNER)
        return owner_rest_ms(core, connection);
    bool rests = connection != NULL && connection->member != NULL && connection->role == MC_ROLE_CALL &&
                 !connection->closing && connection->grants == 0 && mc_link_alone(&connection->puts) &&
                 mc_link_alone(&connection->waits);
    return rests ? mc_core_life_ms(core) - connection->heard_ms : 0;
}

/* ---- frames ---- */

static void pong(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame)
{
    struct mc_buffer *out = mc_core_buffer(core, connection->number);
    if (out != NULL)
        mc_core_frame_bare(core, out, MC_MESSAGE_PONG, frame->request_id);
}

enum { CALL = 1 << MC_ROLE_CALL, HEARTBEAT = 1 << MC_ROLE_HEARTBEAT, OWNER = 1 << MC_ROLE_OWNER };

struct handler {
    void (*run)(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
    unsigned roles; /* that may send it */
    bool beside; /* goes on beside a read; anything else is the connection's next request and so the end of its read */
    bool checks; /* checks the body itself; for the others it is well formed */
};

/* By message number; what is not here is not for a master, or not after the hello. */
static const struct handler handlers[] = {
    [MC_MESSAGE_HEARTBEAT] = {mc_member_heartbeat, HEARTBEAT, false, false},
    [MC_MESSAGE_MOUNT] = {mc_segment_mount, OWNER, false, false},
    [MC_MESSAGE_UNMOUNT] = {mc_segment_unmount, OWNER, false, false},
    [MC_MESSAGE_FLUSH] = {mc_sweep_asked, OWNER, false, false},
    [MC_MESSAGE_LIVE] = {mc_put_live, OWNER | CALL, true, false},
    [MC_MESSAGE_CLEARED] = {mc_node_cleared, OWNER, false, false},
    [MC_MESSAGE_CUT_DONE] = {mc_node_cut_done, OWNER, false, false},
    [MC_MESSAGE_SEGMENT] = {mc_segment_describe, CALL, false, false},
    [MC_MESSAGE_SEGMENT_NAMED] = {mc_segment_describe_named, CALL, false, false},
    [MC_MESSAGE_SEGMENTS] = {mc_segments_tell, CALL, false, false},
    [MC_MESSAGE_SEGMENT_KEYS] = {mc_segment_tell_keys, CALL, false, false},
    [MC_MESSAGE_PUT_START] = {mc_put_start, CALL, false, false},
    [MC_MESSAGE_PUT_REVOKE] = {mc_put_revoke, CALL, true, false},
    [MC_MESSAGE_PUT_BIND] = {mc_put_bind, CALL, false, false},
    [MC_MESSAGE_GET] = {mc_request_get, CALL, false, false},
    [MC_MESSAGE_RENEW] = {mc_request_renew, CALL, true, false},
    [MC_MESSAGE_EXIST] = {mc_request_exist, CALL, false, true},
    [MC_MESSAGE_HINT] = {mc_request_hint, CALL, false, false},
    [MC_MESSAGE_REMOVE] = {mc_request_remove, CALL, false, false},
    [MC_MESSAGE_REMOVE_REGEX] = {mc_job_remove_regex, CALL, false, false},
    [MC_MESSAGE_REMOVE_ALL] = {mc_job_remove_all, CALL, false, false},
    [MC_MESSAGE_SUSPECT] = {mc_segment_report, CALL, true, false},
    [MC_MESSAGE_INVENTORY] = {mc_recover_inventory, OWNER, false, false},
    [MC_MESSAGE_LOST] = {mc_recover_lost, OWNER, false, false},
    [MC_MESSAGE_HINTED] = {mc_hints_kept, OWNER, false, false},
    [MC_MESSAGE_ROTTEN] = {mc_recover_rotten, CALL, true, false},
    [MC_MESSAGE_PONG] = {mc_segment_pong, OWNER, true, false},
    [MC_MESSAGE_PING] = {pong, CALL | HEARTBEAT | OWNER, true, false},
};

static void dispatch(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame)
{
    if (connection->member == NULL) {
        if (frame->type != MC_MESSAGE_HELLO || mc_wire_check(frame->type, frame->body) != 0)
            mc_core_malformed(core, connection, "its first message is no hello");
        else
            mc_member_hello(core, connection, frame);
        return;
    }
    const struct handler *handler =
        frame->type < sizeof(handlers) / sizeof(handlers[0]) ? &handlers[frame->type] : NULL;
    if (handler == NULL || (handler->roles & 1u << connection->role) == 0) {
        mc_core_malformed(core, connection, "a message that its role does not send");
        return;
    }
    if (!handler->checks && mc_wire_check(frame->type, frame->body) != 0) {
        mc_core_malformed(core, connection, "a malformed message");
        return;
    }
    if (connection->said.epoch != 0)
        mc_evidence_confirm(core, connection);
    if (!handler->beside)
        mc_reading_end(core, connection);
    handler->run(core, connection, frame);
}

void mc_core_input(struct mc_core *core, uint64_t now_ms, uint64_t number, const struct mc_frame *frame)
{
    enter(core, now_ms);
    struct mc_connection *connection = mc_map_get(&core->connections, number);
    if (connection == NULL || connection->closing)
        return;
    connection->heard_ms = mc_core_life_ms(core);
    dispatch(core, connection, frame);
    (void)flush(core);
}

/* ---- ticks ---- */

static bool work_busy_segment(struct mc_core *core)
{
    if (mc_link_alone(&core->busy))
        return false;
    struct mc_segment *segment = mc_link_of(core->busy.next, struct mc_segment, busy);
    mc_link_remove(&segment->busy);
    bool more = mc_segment_release_keys(core, segment);
    more |= mc_evict_debt(core, segment);
    more |= mc_recover_work(core, segment);
    if (more)
        mc_link_append(&core->busy, &segment->busy);
    return !mc_link_alone(&core->busy);
}

uint64_t mc_core_tick(struct mc_core *core, uint64_t now_ms)
{
    enter(core, now_ms);
    mc_members_tick(core);
    mc_segments_tick(core);
    mc_reuse_tick(&core->reuse, core->now_ms);
    bool more = mc_puts_tick(core);
    more |= mc_jobs_tick(core);
    more |= mc_waits_tick(core);
    more |= work_busy_segment(core);
    more |= mc_evict_groups(core);
    more |= mc_stripes_tick(core);
    more |= mc_pins_expire(core);
    more |= mc_recover_tick(core);
    more |= flush(core);
    if (more)
        core->wake_ms = core->now_ms;
    else if (mc_link_alone(&core->members))
        core->wake_ms = core->now_ms + MC_TICK_IDLE_MS;
    else
        core->wake_ms = core->now_ms + MC_TICK_BUSY_MS;
    uint64_t due_ms = mc_pins_due(core);
    core->wake_ms = due_ms < core->wake_ms ? due_ms : core->wake_ms;
    due_ms = mc_segments_due(core);
    core->wake_ms = due_ms < core->wake_ms ? due_ms : core->wake_ms;
    due_ms = mc_core_is_departing(core) ? UINT64_MAX : mc_jobs_due(core);
    core->wake_ms = due_ms < core->wake_ms ? due_ms : core->wake_ms;
    return core->wake_ms + core->base_ms;
}
