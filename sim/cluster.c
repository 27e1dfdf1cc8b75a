/* The processes of the cluster: masters, owners, clients, and what clients ask. */
#include "cluster.h"

#include "disk.h"
#include "held.h"
#include "jobs.h"
#include "kept.h"
#include "members.h"
#include "oracle.h"
#include "parts.h"
#include "placed.h"
#include "quotas.h"
#include "states.h"
#include "told.h"

#include "store/core/core.h"
#include "store/master/election.h"
#include "store/master/server.h"
#include "store/owner/disk.h"
#include "store/core/state.h"
#include "mooncake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MASTER_PORT 50051
#define ELECTION_TTL_MS 2000u
#define OPEN_LATE_MS 600u

void *sim_calloc(size_t count, size_t size);
void sim_free(void *pointer);
int sim_pthread_create(unsigned long *thread, const void *attributes, void *(*function)(void *), void *argument);
int sim_pthread_join(unsigned long thread, void **result);
struct mc_core *sim_core_create(const struct mc_core_config *config, const struct mc_core_output *output,
                                struct mc_id node, uint64_t epoch, uint64_t seed, uint64_t now_ms);

uint32_t sim_depart_ms;
bool sim_blanks;
void (*sim_on_heartbeat)(void);
static uint64_t aged_epoch; /* of the last one that may come of age */
/* What an election holds beside the claim (store/master/election.c): the epoch of the last master, and of the last one
 * that may have acted on a departure. */
static struct {
    uint64_t last_epoch, departed_epoch, asked_epoch, asked_at_ms, due_ns;
} sim_notes;

/* ---- the master ---- */

struct mc_core *sim_core_create(const struct mc_core_config *config, const struct mc_core_output *output,
                                struct mc_id node, uint64_t epoch, uint64_t seed, uint64_t now_ms)
{
    struct mc_core_config noted = *config;
    if (sim_plan->has_notes) {
        noted.asks_to_depart = true;
        noted.whole_epoch =
            sim_notes.departed_epoch < sim_notes.last_epoch && epoch > sim_notes.last_epoch ? sim_notes.last_epoch : 0;
        sim_notes.last_epoch = epoch;
    }
    noted.blanks_anywhere = sim_plan->blanks && !sim_plan->blanks_near; /* segments are small */
    noted.blank_part = sim_plan->blanks ? 4 : noted.blank_part;
    struct mc_core *core = mc_core_create(&noted, output, node, epoch, seed, now_ms);
    if (core == NULL)
        return NULL;
    sim_limits_core(core);
    if (sim_plan->has_quotas)
        sim_quotas_give(core);
    sim_cluster.latest_epoch = epoch > sim_cluster.latest_epoch ? epoch : sim_cluster.latest_epoch;
    oracle_master_begins(epoch);
    oracle_evictions_begin();
    sim_process()->core = core;
    oracle_changed();
    return core;
}

/* Where no master comes back within a hundredth of a second none waits for it to be over: seeds that were found before
 * masters did stay what they were. */
uint64_t sim_election_epoch_start(void);
uint64_t sim_election_epoch_start(void)
{
    return sim_has_fault(SIM_FAULT_quick_master) ? mc_election_epoch_start() : mc_election_epoch_now();
}

/* Writing the note takes its time, and so does the answer: the master may end before either. */
uint64_t sim_core_tick(struct mc_core *core, uint64_t now_ms);
uint64_t sim_core_tick(struct mc_core *core, uint64_t now_ms)
{
    uint64_t due_ms = mc_core_tick(core, now_ms);
    if (core->may_age && core->epoch != aged_epoch)
        oracle_master_may_age(aged_epoch = core->epoch);
    if (core->statistics.recovery_in_doubt > 0)
        oracle_told();
    oracle_core_rests(core);
    oracle_parts_rest(core);
    sim_drains_apply(core);
    sim_told_rests(core);
    if (sim_plan->standbys > 0 || !sim_plan->has_notes || !mc_core_asks_to_depart(core))
        return due_ms;
    uint64_t at_ms = mc_core_asks_to_depart(core);
    if (sim_notes.asked_epoch != sim_notes.last_epoch ||
        (sim_notes.asked_at_ms < at_ms && sim_now_ns >= sim_notes.due_ns)) {
        sim_notes.asked_epoch = sim_notes.last_epoch;
        sim_notes.asked_at_ms = at_ms;
        sim_notes.due_ns = sim_now_ns + sim_below(SIM_NOTE, sim_once_in(SIM_NOTE, 3) ? 9000 : 400) * SIM_MS;
    } else if (sim_now_ns >= sim_notes.due_ns && sim_notes.departed_epoch != sim_notes.last_epoch) {
        sim_say("it is noted that masters up to epoch %llu may have acted on departures",
                (unsigned long long)sim_notes.last_epoch);
        sim_notes.departed_epoch = sim_notes.last_epoch;
        sim_notes.due_ns = sim_now_ns + sim_below(SIM_NOTE, 100) * SIM_MS;
    } else if (sim_now_ns >= sim_notes.due_ns) {
        mc_core_let_depart(core, now_ms, sim_notes.asked_at_ms);
    }
    return due_ms < now_ms + 5 ? due_ms : now_ms + 5;
}

/* To the shell, which asks an election, or its note. */
uint64_t sim_core_asks_to_depart(const struct mc_core *core);
uint64_t sim_core_asks_to_depart(const struct mc_core *core)
{
    return sim_plan->standbys > 0 || !sim_plan->has_notes ? mc_core_asks_to_depart(core) : 0;
}

void sim_core_destroy(struct mc_core *core);
void sim_core_destroy(struct mc_core *core)
{
    if (core != NULL)
        oracle_master_ends(core->epoch);
    if (sim_process() != NULL && sim_process()->core == core)
        sim_process()->core = NULL;
    oracle_changed();
    mc_core_destroy(core);
}

void sim_core_input(struct mc_core *core, uint64_t now_ms, uint64_t connection, const struct mc_frame *frame);
void sim_core_input(struct mc_core *core, uint64_t now_ms, uint64_t connection, const struct mc_frame *frame)
{
    sim_say("from connection %llu: %s %llu, %zu bytes", (unsigned long long)(connection >> 16),
            mc_message_name(frame->type), (unsigned long long)frame->request_id, frame->body.length);
    if (frame->type == MC_MESSAGE_HEARTBEAT)
        sim_on_heartbeat();
    mc_core_input(core, now_ms, connection, frame);
    if (frame->type == MC_MESSAGE_PUT_START)
        oracle_puts_granted(core);
    oracle_core_rests(core);
    sim_drains_apply(core);
    sim_told_rests(core);
}

/* A leader looks at its clock before everything that it sends, and never finds its time not over when another has
 * begun. It may be stopped behind the look: then what it does is late as if the network had kept it. */
bool sim_election_may_serve(const struct mc_election *election, uint64_t epoch);
bool sim_election_may_serve(const struct mc_election *election, uint64_t epoch)
{
    bool may = mc_election_may_serve(election, epoch);
    if (may && epoch < sim_cluster.latest_epoch)
        sim_fail("leadership: the master of epoch %llu serves after one of %llu has begun", (unsigned long long)epoch,
                 (unsigned long long)sim_cluster.latest_epoch);
    sim_process()->may_send = may;
    return may;
}

static void leader_sends(struct sim_process *process)
{
    if (sim_plan->standbys > 0 && process->core != NULL && !process->may_send)
        sim_fail("leadership: the master of epoch %llu sends without a look at its clock",
                 (unsigned long long)((const struct mc_core *)process->core)->epoch);
    process->may_send = false;
}

void sim_cluster_reset(void)
{
    aged_epoch = 0;
    memset(&sim_notes, 0, sizeof(sim_notes));
    sim_in_send = leader_sends;
}

static void master_main(struct sim_process *process)
{
    struct mc_master_config config = {.rpc_address = "0.0.0.0", .rpc_port = MASTER_PORT, .log_level = -1};
    struct mc_server *server;
    char error[256], host[32];
    snprintf(host, sizeof(host), "10.0.0.%u", process->address);
    if (sim_plan->standbys > 0) {
        snprintf(config.rpc_address, sizeof(config.rpc_address), "%s", host);
        config.ha_enabled = true;
        config.ha_is_lease = sim_plan->has_lease;
        snprintf(config.ha_place, sizeof(config.ha_place), "%s", config.ha_is_lease ? "sim/mooncake" : "etcd:2379");
        snprintf(config.cluster_id, sizeof(config.cluster_id), "mooncake_cluster");
        config.ha_lease_ttl_ms = ELECTION_TTL_MS;
        config.etcd_compaction_ms = 3000;
    }
    config.core = mc_core_config_default();
    /* Then what they have is counted, and states.c has it counted anew. */
    config.core.tenants = sim_plan->has_tenants || sim_plan->has_quotas || sim_plan->seed % 2 != 0;
    config.core.quotas = sim_plan->has_quotas;
    config.core.lease_ttl_ms = sim_plan->lease_ms;
    config.core.client_ttl_ms = sim_plan->client_ttl_ms;
    config.core.put_discard_ms = sim_plan->put_discard_ms;
    config.core.depart_ms = sim_plan->depart_ms;
    config.core.recovery_window_ms = sim_plan->window_ms;
    if (sim_plan->disks > 0) {
        config.core.offload = sim_plan->is_stored_ahead ? MC_OFFLOAD_ON_EVICT : MC_OFFLOAD_ON_PUT;
        config.core.disk_ttl_ms = sim_plan->disk_ttl_ms;
    }
    if (sim_plan->is_told || (sim_plan->has_foreign && sim_plan->is_noteless)) {
        config.core.cluster = (struct mc_id){0xabc, 0xdef};
        config.core.cluster_way = MC_CLUSTER_TOLD;
    }
    config.kv_events = sim_told_begin(process->place);
    if (!sim_plan->is_noteless)
        snprintf(config.state_dir, sizeof(config.state_dir), "/shm");
    while (mc_server_create(&config, &server, error, sizeof(error)) < 0) {
        if (!sim_has_wanted(process->place)) {
            sim_fail("the master does not start: %s", error);
            return;
        }
        sim_sleep_ns(100 * SIM_MS);
    }
    (void)mc_server_run(server);
    process->core = NULL;
    mc_server_destroy(server);
}

/* ---- store nodes ---- */

const char *sim_master_address(void)
{
    return sim_plan->standbys == 0 ? "master:50051" : sim_plan->has_lease ? "k8s://sim/mooncake" : "etcd://etcd:2379";
}

struct mc_store *sim_store_open(struct sim_process *process, uint64_t segment_size, uint32_t tenant)
{
    char host[32];
    bool is_named = segment_size > 0 && sim_plan->is_named;
    snprintf(host, sizeof(host), is_named ? "10.0.0.%u:7000" : "10.0.0.%u", process->address);
    struct mc_store_config config = {.local_hostname = host,
                                     .master_server_addr = sim_master_address(),
                                     .protocol = "tcp",
                                     .paths = sim_plan->paths,
                                     .global_segment_size = segment_size,
                                     .local_buffer_size = 1 << 20,
                                     .tenant = sim_tenant(tenant),
                                     .data_dir = is_named ? "/shm" : NULL,
                                     .call_timeout_ms = sim_plan->timeout_ms};
    if (segment_size > 0 && sim_plan->disks > 0) {
        config.disk_paths = sim_plan->disks == 1 ? SIM_DISK_PATH : SIM_DISK_PATH "," SIM_DISK_PATH;
        config.disk_bytes = sim_plan->disk_bytes;
        if (sim_plan->is_resized)
            config.disk_bytes += sim_now_ns / SIM_MS % 5 * SIM_DISK_REGION;
    }
    for (;;) {
        struct mc_store *store;
        struct oracle_call call = oracle_begin();
        int rc = mc_store_open(&config, &store);
        /* one that fails closes the disks that it has opened */
        bool closes = rc != 0 && config.disk_paths != NULL;
        oracle_end(&call, sim_plan->timeout_ms + OPEN_LATE_MS + (closes ? MC_DISK_GRACE_MS : 0), "open");
        if (rc == 0)
            return store;
        sim_say("open: %s", mc_error_name(rc));
        sim_sleep_ns(100 * SIM_MS);
    }
}

static void owner_main(struct sim_process *process)
{
    for (;;) {
        struct mc_store *store = sim_store_open(process, sim_plan->capacity, 0);
        sim_sleep_till(&sim_cluster.leaving[process->place], 5 * SIM_MS);
        sim_say("leaves");
        (void)mc_store_close(store);
        oracle_owner_lost(process->place);
        sim_sleep_ns(sim_below(SIM_FAULTS, 1000) * SIM_MS);
        sim_cluster.leaving[process->place] = false; /* and comes back as another */
    }
}

/* ---- clients ---- */

static void do_put(struct sim_worker *worker)
{
    struct mc_put_item items[SIM_BATCH_MAX];
    struct iovec parts[SIM_BATCH_MAX][2];
    uint32_t numbers[SIM_BATCH_MAX], keys[SIM_BATCH_MAX] = {0}, count = 1 + sim_below(SIM_PLAN, sim_plan->batch_max);
    uint64_t groups[SIM_BATCH_MAX];
    struct mc_replicate_config config = {.replica_count = 1 + sim_below(SIM_PLAN, sim_plan->replicas_max),
                                         .with_soft_pin = sim_below(SIM_PLAN, 16) == 0};
    bool replaces = sim_plan->has_upserts && (sim_plan->is_rewritten || sim_once_in(SIM_UPSERT, 4));
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *bytes;
        uint32_t length = sim_length_draw(SIM_PLAN), cut = sim_below(SIM_PLAN, length);
        keys[i] = sim_key_draw(SIM_PLAN, worker->tenant);
        numbers[i] = oracle_put_begin(keys[i], length, replaces, &bytes);
        parts[i][0] = (struct iovec){(void *)(uintptr_t)bytes, cut};
        parts[i][1] = (struct iovec){(void *)(uintptr_t)(bytes + cut), length - cut};
        items[i] = (struct mc_put_item){.key = sim_key_name(keys[i]), .parts = parts[i], .part_count = 2};
        sim_say("%s %u: key %u, %u bytes, %u replicas", replaces ? "upsert" : "put", numbers[i], keys[i], length,
                config.replica_count);
    }
    sim_wishes_draw(&config, keys, count, groups);
    for (uint32_t i = 0; i < count; i++)
        oracle_put_wishes(numbers[i], &config);
    struct oracle_call call = oracle_begin();
    if (replaces)
        (void)mc_store_upsert(worker->store, items, count, &config);
    else
        (void)mc_store_put(worker->store, items, count, &config);
    oracle_end(&call, sim_plan->timeout_ms + SIM_PUT_LATE_MS, "put");
    for (uint32_t i = 0; i < count; i++) {
        sim_say("  put %u: %s", numbers[i], mc_error_name(items[i].result));
        oracle_put_end(numbers[i], items[i].result);
        sim_note((uint64_t)(uint32_t)items[i].result << 8 | 4);
    }
}

void *sim_get_allocate(void *context, size_t index, uint64_t length)
{
    struct sim_worker *worker = context;
    return length <= SIM_VALUE_MAX ? worker->buffers[index] : NULL;
}

static void do_get(struct sim_worker *worker)
{
    struct mc_get_item items[SIM_BATCH_MAX];
    struct iovec parts[SIM_BATCH_MAX];
    uint32_t keys[SIM_BATCH_MAX], count = 1 + sim_below(SIM_PLAN, sim_plan->batch_max);
    for (uint32_t i = 0; i < count; i++) {
        keys[i] = sim_key_draw(SIM_PLAN, worker->tenant);
        parts[i] = (struct iovec){worker->buffers[i], SIM_VALUE_MAX};
        items[i] = (struct mc_get_item){.key = sim_key_name(keys[i]), .parts = &parts[i], .part_count = 1};
    }
    struct oracle_call call = oracle_begin();
    bool allocates = sim_below(SIM_PLAN, 2) == 0;
    (void)mc_store_get(worker->store, items, count, allocates ? sim_get_allocate : NULL, worker);
    oracle_end(&call, sim_plan->timeout_ms, "get");
    for (uint32_t i = 0; i < count; i++) {
        sim_say("get key %u: %s", keys[i], items[i].result > 0 ? "found" : mc_error_name((int)items[i].result));
        sim_note((uint64_t)items[i].result << 8 | 5);
        oracle_got(&call, keys[i], worker->buffers[i], items[i].result);
    }
}

static void do_range(struct sim_worker *worker)
{
    uint32_t key = sim_key_draw(SIM_PLAN, worker->tenant);
    struct mc_range_item item = {.key = sim_key_name(key),
                                 .source_offset = sim_below(SIM_PLAN, sim_plan->value_max),
                                 .size = 1 + sim_below(SIM_PLAN, sim_plan->value_max),
                                 .target = worker->buffers[0]};
    struct oracle_call call = oracle_begin();
    (void)mc_store_get_ranges(worker->store, &item, 1);
    oracle_end(&call, sim_plan->timeout_ms, "get_ranges");
    if (item.result > 0)
        oracle_got_range(&call, key, worker->buffers[0], item.source_offset, item.size);
}

/* Several ranges of one key in one call: they are of one value, whoever replaces it meanwhile. */
static void do_pieces(struct sim_worker *worker)
{
    uint32_t key = sim_key_draw(SIM_PLAN, worker->tenant), count = 2 + sim_below(SIM_PIECES, SIM_BATCH_MAX - 1);
    struct mc_range_item items[SIM_BATCH_MAX];
    struct oracle_piece pieces[SIM_BATCH_MAX];
    for (uint32_t i = 0; i < count; i++)
        items[i] = (struct mc_range_item){.key = sim_key_name(key),
                                          .source_offset = sim_below(SIM_PIECES, sim_plan->value_max / 2),
                                          .size = 1 + sim_below(SIM_PIECES, sim_plan->value_max / 4),
                                          .target = worker->buffers[i]};
    struct oracle_call call = oracle_begin();
    (void)mc_store_get_ranges(worker->store, items, count);
    oracle_end(&call, sim_plan->timeout_ms, "get_ranges");
    for (uint32_t i = 0; i < count; i++) {
        pieces[i] =
            (struct oracle_piece){worker->buffers[i], items[i].source_offset, items[i].result > 0 ? items[i].size : 0};
        sim_note((uint64_t)items[i].result << 8 | 8);
    }
    oracle_got_pieces(&call, key, pieces, count);
}

static void do_exist(struct sim_worker *worker)
{
    uint32_t key = sim_key_draw(SIM_PLAN, worker->tenant);
    struct mc_bytes name = sim_key_name(key);
    int result;
    int64_t length;
    struct oracle_call call = oracle_begin();
    if (sim_below(SIM_PLAN, 2) == 0) {
        (void)mc_store_exist(worker->store, &name, 1, &result);
        sim_say("exist key %u: %s", key, result >= 0 ? result > 0 ? "yes" : "no" : mc_error_name(result));
        oracle_exists(&call, key, result);
    } else {
        (void)mc_store_size(worker->store, &name, 1, &length);
        sim_say("size of key %u: %lld", key, (long long)length);
        oracle_length(&call, key, length);
    }
    oracle_end(&call, sim_plan->timeout_ms, "exist");
}

static void do_remove(struct sim_worker *worker)
{
    uint32_t keys[SIM_BATCH_MAX], count = 1 + sim_below(SIM_PLAN, sim_plan->batch_max);
    struct mc_bytes names[SIM_BATCH_MAX];
    int results[SIM_BATCH_MAX];
    for (uint32_t i = 0; i < count; i++) {
        keys[i] = sim_key_draw(SIM_PLAN, worker->tenant);
        names[i] = sim_key_name(keys[i]);
        oracle_remove_begin(keys[i], false);
    }
    bool force = sim_below(SIM_PLAN, 2) == 0;
    struct oracle_call call = oracle_begin();
    (void)mc_store_remove(worker->store, names, count, force, results);
    oracle_end(&call, sim_plan->timeout_ms, "remove");
    for (uint32_t i = 0; i < count; i++) {
        sim_say("remove key %u: %s", keys[i], mc_error_name(results[i]));
        bool removed = results[i] == 0 || results[i] == MC_ERR_OBJECT_NOT_FOUND;
        oracle_remove_end(&call, keys[i], removed, removed || results[i] == MC_ERR_OBJECT_HAS_LEASE, false);
        if (results[i] == MC_ERR_OBJECT_NOT_FOUND)
            oracle_not_there(&call, keys[i]);
        sim_note((uint64_t)(uint32_t)results[i] << 8 | 6);
    }
}

int64_t sim_remove_all(struct sim_worker *worker, bool force, bool by_regex)
{
    for (uint32_t i = 0; i < sim_plan->keys; i++)
        if (sim_key_tenant(i) == worker->tenant)
            oracle_remove_begin(i, true);
    struct oracle_call call = oracle_begin();
    int64_t rc = by_regex ? mc_store_remove_by_regex(worker->store, (struct mc_bytes){"^key", 4}, force)
                          : mc_store_remove_all(worker->store, force);
    oracle_end(&call, sim_plan->timeout_ms + 60000, "remove_all");
    sim_say("remove_all: %lld", (long long)rc);
    for (uint32_t i = 0; i < sim_plan->keys; i++)
        if (sim_key_tenant(i) == worker->tenant)
            oracle_remove_end(&call, i, rc >= 0 && force, rc >= 0, true);
    return rc;
}

static void do_one(struct sim_worker *worker)
{
    uint32_t what = sim_below(SIM_PLAN, 100);
    if (sim_plan->quiet_masters && what >= 88)
        what = 38; /* no removals: nothing may get lost */
    if (sim_plan->quiet_masters && what < 38 && sim_now_ns >= sim_cluster.first_story_ns)
        what = 38; /* nor puts, which would hide that something was */
    if (sim_plan->holds_keys && sim_once_in(SIM_UPSERT, 5))
        what = 98 + sim_below(SIM_UPSERT, 2);
    if (sim_plan->unmet_keys && sim_now_ns + 6000 * SIM_MS < sim_cluster.absent_until_ns && sim_once_in(SIM_VARIANT, 3))
        what = 98; /* a removal, while the owners are away */
    if (sim_now_ns < sim_cluster.removing_until_ns && (what < 38 || sim_once_in(SIM_RETURN, 3)))
        what = 98;
    if (sim_plan->has_sessions && sim_once_in(SIM_SESSION, 3))
        sim_session_do(worker);
    else if (sim_plan->has_jobs && sim_once_in(SIM_JOB, 6))
        sim_job_do(worker);
    else if (sim_plan->has_hints && sim_once_in(SIM_HINT, 6))
        sim_hint_do(worker);
    else if (sim_plan->is_rewritten && what >= 38)
        do_pieces(worker);
    else if (sim_plan->has_pieces && what >= 38 && what < 82 && sim_once_in(SIM_PIECES, 3))
        do_pieces(worker);
    else if (what < 38)
        do_put(worker);
    else if (what < 76)
        do_get(worker);
    else if (what < 82)
        do_range(worker);
    else if (what < 88)
        do_exist(worker);
    else if (what < 99)
        do_remove(worker);
    else
        (void)sim_remove_all(worker, sim_below(SIM_PLAN, 2) == 0, sim_below(SIM_PLAN, 2) == 0);
    sim_cluster.operations_done++;
    if (sim_cluster.operations_done % 4 == 0) {
        oracle_check_masters();
        oracle_check_indexes();
    }
}

static void *worker_main(void *argument)
{
    struct sim_worker *worker = argument;
    for (uint32_t i = 0; i < SIM_BATCH_MAX; i++) {
        while ((worker->buffers[i] = sim_calloc(1, SIM_VALUE_MAX)) == NULL)
            sim_sleep_ns(10 * SIM_MS);
    }
    while (sim_cluster.operations_left > 0 && !sim_cluster.is_calm) {
        sim_cluster.operations_left--;
        do_one(worker);
        if (sim_below(SIM_PLAN, 4) == 0)
            sim_sleep_ns(sim_below(SIM_PLAN, sim_plan->think_us_max) * 1000ull);
    }
    return NULL;
}

static void client_main(struct sim_process *process)
{
    struct sim_worker workers[2];
    unsigned long threads[2];
    struct mc_store *store = sim_store_open(process, 0, sim_tenant_of(process));
    for (uint32_t i = 0; i < sim_plan->threads; i++) {
        workers[i] =
            (struct sim_worker){.store = store, .process = process, .number = i, .tenant = sim_tenant_of(process)};
        if (sim_pthread_create(&threads[i], NULL, worker_main, &workers[i]) != 0)
            sim_fail("no more fibers");
    }
    for (uint32_t i = 0; i < sim_plan->threads; i++)
        (void)sim_pthread_join(threads[i], NULL);
    (void)mc_store_close(store);
}

/* ---- places ---- */

static const char *name_of(uint32_t place, char *name, size_t size)
{
    if (place >= SIM_PLACE_STANDBY)
        snprintf(name, size, "master-%u", place - SIM_PLACE_STANDBY + 2);
    else if (place == SIM_PLACE_MASTER)
        snprintf(name, size, "master");
    else if (place < SIM_PLACE_CLIENT)
        snprintf(name, size, "owner-%u", place - SIM_PLACE_OWNER);
    else
        snprintf(name, size, "client-%u", place - SIM_PLACE_CLIENT);
    return name;
}

void sim_place_start(uint32_t place)
{
    char name[24];
    sim_cluster.leaving[place] = false;
    (void)sim_process_start(place, name_of(place, name, sizeof(name)), place % sim_plan->machines,
                            sim_is_master(place)       ? master_main
                            : place < SIM_PLACE_CLIENT ? owner_main
                                                       : client_main);
    if (place == SIM_PLACE_MASTER && sim_has_fault(SIM_FAULT_clock)) {
        static const uint32_t most_s[] = {1, 10, 5000};
        uint32_t off_s = sim_below(SIM_EXTRA, most_s[sim_below(SIM_EXTRA, 3)]);
        sim_processes[place].wall_s = sim_once_in(SIM_EXTRA, 2) ? off_s : -(int64_t)off_s;
        /* One that begins with an epoch of the past is met by some before it knows better, and may forget. */
        oracle_fault(true);
        for (uint32_t i = 0; i < sim_plan->owners; i++)
            oracle_owner_lost(SIM_PLACE_OWNER + i);
    }
}
