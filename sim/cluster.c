/* One run: the processes of the cluster, what they are asked to do, what happens to them. */
#include "oracle.h"
#include "plan.h"

#include "master/core.h"
#include "master/server.h"
#include "mooncake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MASTER_PORT 50051
#define VALUE_MAX (24u << 10)
#define BATCH_MAX 4u
#define PUT_LATE_MS 100u /* a put waits so long for the fate of its grants, whatever its deadline is */
#define CALM_MS 90000u   /* after the last fault everything must have settled by then */

void *sim_calloc(size_t count, size_t size);
void sim_free(void *pointer);
int sim_pthread_create(unsigned long *thread, const void *attributes, void *(*function)(void *), void *argument);
int sim_pthread_join(unsigned long thread, void **result);
struct mc_core *sim_core_create(const struct mc_core_config *config, const struct mc_core_output *output,
                                struct mc_id node, uint64_t epoch, uint64_t seed, uint64_t now_ms);

const char *const sim_fault_names[SIM_FAULTS_COUNT] = {
#define SIM_FAULT_NAME(name) #name,
    SIM_FAULTS_MAP(SIM_FAULT_NAME)
#undef SIM_FAULT_NAME
};

static const struct sim_plan *plan;
uint32_t sim_depart_ms;
static uint32_t operations_left, operations_done, clients_ended;
static bool is_calm, is_ended;
static uint64_t absent_until_ns; /* one such story after the other */
static uint64_t first_story_ns;  /* some begin when there is something to lose */
static uint64_t calm_ns;

/* ---- drawing ---- */

static uint32_t draw(uint32_t low, uint32_t high)
{
    return low + sim_below(SIM_PLAN, high - low + 1);
}

/* The cluster in which that story is worth telling. */
static void story_prepare(struct sim_plan *made, enum sim_fault story)
{
    made->faults = 1u << story;
    made->fault_gap_ms = 1 + sim_below(SIM_EXTRA, 40); /* most draws of a fault find none */
    made->clients = made->clients < 2 ? 2 : made->clients;
    switch (story) {
    case SIM_FAULT_slow_writer:
        made->owners = 1 + sim_below(SIM_EXTRA, 2);
        made->clients = SIM_CLIENTS_MAX;
        made->put_discard_ms = 120 + sim_below(SIM_EXTRA, 100);
        made->think_us_max = 1000u << sim_below(SIM_EXTRA, 4);
        made->value_max = 2000;
        made->paths = NULL; /* also through shared memory */
        made->machines = 1;
        break;
    case SIM_FAULT_past_writer:
        made->paths = NULL;
        break;
    case SIM_FAULT_late_owner:
        made->owners = 1 + sim_below(SIM_EXTRA, 2);
        made->clients = SIM_CLIENTS_MAX;
        made->think_us_max = 1000u << sim_below(SIM_EXTRA, 5);
        break;
    case SIM_FAULT_absent_owner: /* roomy, so that it is known what must be there */
        made->is_durable = true;
        made->depart_ms = 3000;
        made->window_ms = 60000;
        made->owners = 2 + sim_below(SIM_EXTRA, 3);
        made->clients = 2;
        made->threads = 1;
        made->keys = 1 + made->keys % 4;
        made->value_max = 2000;
        made->capacity = 256u << 10;
        made->think_us_max = 500000u << sim_below(SIM_EXTRA, 3);
        made->timeout_ms = 300 + sim_below(SIM_EXTRA, 1500);
        break;
    default:
        made->faults |= 1u << SIM_FAULT_kill_master;
        break;
    }
}

/* Removals wait for an owner that does not hear; others ask for the same; the master ends before it has heard. */
static void held_keys_prepare(struct sim_plan *made)
{
    made->holds_keys = made->is_durable = true;
    made->depart_ms = 3000;
    made->window_ms = 60000;
    made->keys = 1 + made->keys % 2;
    made->value_max = 2000;
    made->capacity = 256u << 10;
    made->think_us_max = 100000u;
    made->fault_gap_ms = 200;
}

/* All owners are away, longer than depart_ms, while masters begin and end that never offered anything: they may not
 * cost what is stored. */
static void quiet_masters_prepare(struct sim_plan *made)
{
    made->quiet_masters = true;
    made->owners = 1 + made->owners % 3;
    made->clients = 2 + made->clients % 3;
    made->capacity = 1u << 20;
    made->fault_gap_ms = 20;
}

/* A writer is stopped in the middle of its copy, its owner begins anew on the same memory, takes the grant back, and
 * others would write there as soon as it believes that nobody does. */
static void restarted_owner_prepare(struct sim_plan *made)
{
    made->restarts_owner = made->is_named = true;
    made->owners = made->machines = made->replicas_max = made->batch_max = 1;
    made->clients = SIM_CLIENTS_MAX;
    made->threads = 2;
    made->keys = 10;
    made->put_discard_ms = 120 + sim_below(SIM_VARIANT, 200);
    made->value_max = 9000;
    made->capacity = 64u << 10;
    made->think_us_max = 4000u << sim_below(SIM_VARIANT, 4);
    made->fault_gap_ms = 1000;
}

/* All owners are away while a master begins and lives long enough to answer removals of keys that it never met. */
static void unmet_keys_prepare(struct sim_plan *made)
{
    quiet_masters_prepare(made);
    made->quiet_masters = false;
    made->unmet_keys = true;
}

static void stories_draw(struct sim_plan *made)
{
    static const enum sim_fault stories[] = {SIM_FAULT_past_writer, SIM_FAULT_absent_owner, SIM_FAULT_absent_owner,
                                             SIM_FAULT_late_owner,  SIM_FAULT_late_owner,   SIM_FAULT_late_owner,
                                             SIM_FAULT_slow_writer, SIM_FAULT_slow_writer,  SIM_FAULT_clock};
    const uint32_t count = sizeof(stories) / sizeof(stories[0]);
    uint32_t story = sim_below(SIM_EXTRA, 3 * (count + 1));
    if (story < count)
        story_prepare(made, stories[story]);
    else if (story == count) { /* on top of what was drawn */
        for (uint32_t i = SIM_FAULTS_PLAIN; i < SIM_FAULTS_COUNT; i++)
            made->faults |= sim_below(SIM_EXTRA, 2) << i;
    }
}

void sim_plan_draw(struct sim_plan *made, uint64_t seed, uint32_t operations, bool is_plain)
{
    static const char *const paths[] = {NULL, NULL, "tcp", "local,tcp", "local,shm,tcp"};
    static const uint64_t capacities[] = {64u << 10, 96u << 10, 128u << 10, 256u << 10};
    static const uint32_t values[] = {64, 2000, 9000, 20480};
    sim_random_start(seed);
    *made = (struct sim_plan){.seed = seed, .operations = operations};
    made->owners = draw(1, SIM_OWNERS_MAX);
    made->clients = draw(1, SIM_CLIENTS_MAX);
    made->threads = draw(1, 2);
    made->keys = draw(1, 10);
    made->machines = draw(1, 3);
    made->replicas_max = draw(1, 2);
    made->value_max = values[draw(0, 3)];
    made->batch_max = draw(1, BATCH_MAX);
    made->timeout_ms = draw(300, 4000);
    made->capacity = capacities[draw(0, 3)];
    made->lease_ms = draw(0, 3) == 0 ? 10000 : draw(5, 500);
    made->client_ttl_ms = draw(3000, 8000); /* heartbeats come every second */
    made->paths = paths[draw(0, 4)];
    made->fault_gap_ms = draw(5, 400);
    made->put_discard_ms = draw(0, 3) == 0 ? 30000 : draw(120, 1500);
    /* Masters that end one after the other cost what was silent for so long: with the short times nothing is promised.
     */
    made->is_durable = draw(0, 1) == 0;
    made->depart_ms = made->is_durable ? 3000 : draw(500, 3000);
    made->window_ms = draw(0, 1) == 0 ? 60000 : draw(8000, 20000);
    made->think_us_max = 1000u << draw(0, 9);
    /* A third of the runs is without faults, a third has one kind, a third any. */
    uint32_t kinds = draw(0, 2);
    for (uint32_t i = 0; i < SIM_FAULTS_COUNT; i++) {
        bool wanted = i < SIM_FAULTS_PLAIN && draw(0, 2) == 0;
        made->faults |= wanted && kinds == 2 ? 1u << i : 0;
    }
    if (kinds == 1)
        made->faults = 1u << draw(0, SIM_FAULTS_PLAIN - 1);
    made->is_named = draw(0, 1) == 0;
    if (!is_plain) {
        stories_draw(made);
        made->has_upserts = sim_once_in(SIM_UPSERT, 2);
        if (made->faults == 1u << SIM_FAULT_late_owner && sim_once_in(SIM_UPSERT, 2))
            held_keys_prepare(made);
        if (made->faults == 1u << SIM_FAULT_absent_owner && sim_once_in(SIM_VARIANT, 3))
            quiet_masters_prepare(made);
        else if (made->faults == 1u << SIM_FAULT_absent_owner && sim_once_in(SIM_VARIANT, 3))
            unmet_keys_prepare(made);
        if (made->faults == 1u << SIM_FAULT_past_writer && sim_once_in(SIM_VARIANT, 2))
            restarted_owner_prepare(made);
    }
    /* All values of all keys together fit far below where eviction begins, with those that are to replace them. */
    uint64_t most = made->keys * 3ull + (made->has_upserts ? made->clients * made->threads * made->batch_max : 0);
    made->is_roomy = most * (made->value_max + 2048) * made->replicas_max < made->capacity * made->owners / 2 &&
                     made->value_max * 8ull < made->capacity;
}

/* ---- the master ---- */

struct mc_core *sim_core_create(const struct mc_core_config *config, const struct mc_core_output *output,
                                struct mc_id node, uint64_t epoch, uint64_t seed, uint64_t now_ms)
{
    struct mc_core *core = mc_core_create(config, output, node, epoch, seed, now_ms);
    oracle_master_begins(epoch);
    sim_process()->core = core;
    return core;
}

void sim_core_destroy(struct mc_core *core);
void sim_core_destroy(struct mc_core *core)
{
    if (sim_process() != NULL && sim_process()->core == core)
        sim_process()->core = NULL;
    mc_core_destroy(core);
}

void sim_core_input(struct mc_core *core, uint64_t now_ms, uint64_t connection, const struct mc_frame *frame);
void sim_core_input(struct mc_core *core, uint64_t now_ms, uint64_t connection, const struct mc_frame *frame)
{
    sim_say("from connection %llu: %s %llu, %zu bytes", (unsigned long long)(connection >> 16),
            mc_message_name(frame->type), (unsigned long long)frame->request_id, frame->body.length);
    mc_core_input(core, now_ms, connection, frame);
}

static void master_main(struct sim_process *process)
{
    struct mc_master_config config = {.rpc_address = "0.0.0.0", .rpc_port = MASTER_PORT, .log_level = -1};
    struct mc_server *server;
    char error[256];
    (void)process;
    config.core = mc_core_config_default();
    config.core.lease_ttl_ms = plan->lease_ms;
    config.core.client_ttl_ms = plan->client_ttl_ms;
    config.core.put_discard_ms = plan->put_discard_ms;
    config.core.depart_ms = plan->depart_ms;
    config.core.recovery_window_ms = plan->window_ms;
    if (mc_server_create(&config, &server, error, sizeof(error)) < 0) {
        sim_fail("the master does not start: %s", error);
        return;
    }
    (void)mc_server_run(server);
    process->core = NULL;
    mc_server_destroy(server);
}

/* ---- store nodes ---- */

static struct mc_store *store_open(struct sim_process *process, uint64_t segment_size)
{
    char host[32];
    bool is_named = segment_size > 0 && plan->is_named;
    snprintf(host, sizeof(host), is_named ? "10.0.0.%u:7000" : "10.0.0.%u", process->address);
    struct mc_store_config config = {.local_hostname = host,
                                     .master_server_addr = "master:50051",
                                     .protocol = "tcp",
                                     .paths = plan->paths,
                                     .global_segment_size = segment_size,
                                     .local_buffer_size = 1 << 20,
                                     .data_dir = is_named ? "/shm" : NULL,
                                     .call_timeout_ms = plan->timeout_ms};
    for (;;) {
        struct mc_store *store;
        struct oracle_call call = oracle_begin();
        int rc = mc_store_open(&config, &store);
        oracle_end(&call, plan->timeout_ms + 600, "open");
        if (rc == 0)
            return store;
        sim_say("open: %s", mc_error_name(rc));
        sim_sleep_ns(100 * SIM_MS);
    }
}

static bool leaving[SIM_PROCESSES_MAX], is_slow[SIM_PROCESSES_MAX];

static void owner_main(struct sim_process *process)
{
    for (;;) {
        struct mc_store *store = store_open(process, plan->capacity);
        while (!leaving[process->place])
            sim_sleep_ns(5 * SIM_MS);
        sim_say("leaves");
        (void)mc_store_close(store);
        sim_sleep_ns(sim_below(SIM_FAULTS, 1000) * SIM_MS);
        leaving[process->place] = false; /* and comes back as another */
    }
}

/* ---- clients ---- */

struct worker {
    struct mc_store *store;
    struct sim_process *process;
    uint8_t *buffers[BATCH_MAX];
};

static uint32_t key_draw(void)
{
    return sim_below(SIM_PLAN, plan->keys);
}

static struct mc_bytes key_name(uint32_t key)
{
    static char names[SIM_KEY_NAMES_MAX][16];
    int length = snprintf(names[key], sizeof(names[key]), SIM_KEY_FORMAT, key);
    return (struct mc_bytes){names[key], (size_t)length};
}

static uint32_t length_draw(void)
{
    uint32_t kind = sim_below(SIM_PLAN, 8);
    if (kind < 5) /* few lengths: what lies in the place of another may then pass for it */
        return 1 + plan->value_max / (1 + sim_below(SIM_PLAN, 3));
    return kind == 5 ? 1 + sim_below(SIM_PLAN, 16) : 1 + sim_below(SIM_PLAN, plan->value_max);
}

static void do_put(struct worker *worker)
{
    struct mc_put_item items[BATCH_MAX];
    struct iovec parts[BATCH_MAX][2];
    uint32_t numbers[BATCH_MAX], keys[BATCH_MAX], count = 1 + sim_below(SIM_PLAN, plan->batch_max);
    struct mc_replicate_config config = {.replica_count = 1 + sim_below(SIM_PLAN, plan->replicas_max),
                                         .with_soft_pin = sim_below(SIM_PLAN, 16) == 0};
    bool replaces = plan->has_upserts && sim_once_in(SIM_UPSERT, 4);
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *bytes;
        uint32_t length = length_draw(), cut = sim_below(SIM_PLAN, length);
        keys[i] = key_draw();
        numbers[i] = oracle_put_begin(keys[i], length, replaces, &bytes);
        parts[i][0] = (struct iovec){(void *)(uintptr_t)bytes, cut};
        parts[i][1] = (struct iovec){(void *)(uintptr_t)(bytes + cut), length - cut};
        items[i] = (struct mc_put_item){.key = key_name(keys[i]), .parts = parts[i], .part_count = 2};
        sim_say("%s %u: key %u, %u bytes, %u replicas", replaces ? "upsert" : "put", numbers[i], keys[i], length,
                config.replica_count);
    }
    struct oracle_call call = oracle_begin();
    if (replaces)
        (void)mc_store_upsert(worker->store, items, count, &config);
    else
        (void)mc_store_put(worker->store, items, count, &config);
    oracle_end(&call, plan->timeout_ms + PUT_LATE_MS, "put");
    for (uint32_t i = 0; i < count; i++) {
        sim_say("  put %u: %s", numbers[i], mc_error_name(items[i].result));
        oracle_put_end(numbers[i], items[i].result);
        sim_note((uint64_t)(uint32_t)items[i].result << 8 | 4);
    }
}

static void *get_allocate(void *context, size_t index, uint64_t length)
{
    struct worker *worker = context;
    return length <= VALUE_MAX ? worker->buffers[index] : NULL;
}

static void do_get(struct worker *worker)
{
    struct mc_get_item items[BATCH_MAX];
    struct iovec parts[BATCH_MAX];
    uint32_t keys[BATCH_MAX], count = 1 + sim_below(SIM_PLAN, plan->batch_max);
    for (uint32_t i = 0; i < count; i++) {
        keys[i] = key_draw();
        parts[i] = (struct iovec){worker->buffers[i], VALUE_MAX};
        items[i] = (struct mc_get_item){.key = key_name(keys[i]), .parts = &parts[i], .part_count = 1};
    }
    struct oracle_call call = oracle_begin();
    bool allocates = sim_below(SIM_PLAN, 2) == 0;
    (void)mc_store_get(worker->store, items, count, allocates ? get_allocate : NULL, worker);
    oracle_end(&call, plan->timeout_ms, "get");
    for (uint32_t i = 0; i < count; i++) {
        sim_say("get key %u: %s", keys[i], items[i].result > 0 ? "found" : mc_error_name((int)items[i].result));
        sim_note((uint64_t)items[i].result << 8 | 5);
        oracle_got(&call, keys[i], worker->buffers[i], items[i].result);
    }
}

static void do_range(struct worker *worker)
{
    uint32_t key = key_draw();
    struct mc_range_item item = {.key = key_name(key),
                                 .source_offset = sim_below(SIM_PLAN, plan->value_max),
                                 .size = 1 + sim_below(SIM_PLAN, plan->value_max),
                                 .target = worker->buffers[0]};
    struct oracle_call call = oracle_begin();
    (void)mc_store_get_ranges(worker->store, &item, 1);
    oracle_end(&call, plan->timeout_ms, "get_ranges");
    if (item.result > 0)
        oracle_got_range(key, worker->buffers[0], item.source_offset, item.size);
}

static void do_exist(struct worker *worker)
{
    uint32_t key = key_draw();
    struct mc_bytes name = key_name(key);
    int result;
    int64_t length;
    struct oracle_call call = oracle_begin();
    if (sim_below(SIM_PLAN, 2) == 0) {
        (void)mc_store_exist(worker->store, &name, 1, &result);
    } else {
        (void)mc_store_size(worker->store, &name, 1, &length);
        oracle_length(key, length);
    }
    oracle_end(&call, plan->timeout_ms, "exist");
}

static void do_remove(struct worker *worker)
{
    uint32_t keys[BATCH_MAX], count = 1 + sim_below(SIM_PLAN, plan->batch_max);
    struct mc_bytes names[BATCH_MAX];
    int results[BATCH_MAX];
    for (uint32_t i = 0; i < count; i++) {
        keys[i] = key_draw();
        names[i] = key_name(keys[i]);
        oracle_remove_begin(keys[i]);
    }
    bool force = sim_below(SIM_PLAN, 2) == 0;
    struct oracle_call call = oracle_begin();
    (void)mc_store_remove(worker->store, names, count, force, results);
    oracle_end(&call, plan->timeout_ms, "remove");
    for (uint32_t i = 0; i < count; i++) {
        sim_say("remove key %u: %s", keys[i], mc_error_name(results[i]));
        oracle_remove_end(&call, keys[i], results[i] == 0 || results[i] == MC_ERR_OBJECT_NOT_FOUND);
        if (results[i] == MC_ERR_OBJECT_NOT_FOUND)
            oracle_not_there(&call, keys[i]);
        sim_note((uint64_t)(uint32_t)results[i] << 8 | 6);
    }
}

static int64_t remove_all(struct worker *worker, bool force, bool by_regex)
{
    for (uint32_t i = 0; i < plan->keys; i++)
        oracle_remove_begin(i);
    struct oracle_call call = oracle_begin();
    int64_t rc = by_regex ? mc_store_remove_by_regex(worker->store, (struct mc_bytes){"^key", 4}, force)
                          : mc_store_remove_all(worker->store, force);
    oracle_end(&call, plan->timeout_ms + 60000, "remove_all");
    sim_say("remove_all: %lld", (long long)rc);
    for (uint32_t i = 0; i < plan->keys; i++)
        oracle_remove_end(&call, i, rc >= 0 && force);
    return rc;
}

static void do_one(struct worker *worker)
{
    uint32_t what = sim_below(SIM_PLAN, 100);
    if (plan->quiet_masters && what >= 88)
        what = 38; /* no removals: nothing may get lost */
    if (plan->quiet_masters && what < 38 && sim_now_ns >= first_story_ns)
        what = 38; /* nor puts, which would hide that something was */
    if (plan->holds_keys && sim_once_in(SIM_UPSERT, 5))
        what = 98 + sim_below(SIM_UPSERT, 2);
    if (plan->unmet_keys && sim_now_ns + 6000 * SIM_MS < absent_until_ns && sim_once_in(SIM_VARIANT, 3))
        what = 98; /* a removal, while the owners are away */
    if (what < 38)
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
        (void)remove_all(worker, sim_below(SIM_PLAN, 2) == 0, sim_below(SIM_PLAN, 2) == 0);
    operations_done++;
    if (operations_done % 4 == 0) {
        oracle_check_masters();
        oracle_check_indexes();
    }
}

static void *worker_main(void *argument)
{
    struct worker *worker = argument;
    for (uint32_t i = 0; i < BATCH_MAX; i++)
        worker->buffers[i] = sim_calloc(1, VALUE_MAX);
    while (operations_left > 0 && !is_calm) {
        operations_left--;
        do_one(worker);
        if (sim_below(SIM_PLAN, 4) == 0)
            sim_sleep_ns(sim_below(SIM_PLAN, plan->think_us_max) * 1000ull);
    }
    return NULL;
}

static void client_main(struct sim_process *process)
{
    struct worker workers[2];
    unsigned long threads[2];
    struct mc_store *store = store_open(process, 0);
    for (uint32_t i = 0; i < plan->threads; i++) {
        workers[i] = (struct worker){.store = store, .process = process};
        if (sim_pthread_create(&threads[i], NULL, worker_main, &workers[i]) != 0)
            sim_fail("no more fibers");
    }
    for (uint32_t i = 0; i < plan->threads; i++)
        (void)sim_pthread_join(threads[i], NULL);
    (void)mc_store_close(store);
    clients_ended++;
}

/* ---- faults; from the driver ---- */

static const char *name_of(uint32_t place, char *name, size_t size)
{
    if (place == SIM_PLACE_MASTER)
        snprintf(name, size, "master");
    else if (place < SIM_PLACE_CLIENT)
        snprintf(name, size, "owner-%u", place - SIM_PLACE_OWNER);
    else
        snprintf(name, size, "client-%u", place - SIM_PLACE_CLIENT);
    return name;
}

static bool has_fault(enum sim_fault fault)
{
    return (plan->faults >> fault & 1u) != 0;
}

static void place_start(uint32_t place)
{
    char name[24];
    leaving[place] = false;
    (void)sim_process_start(place, name_of(place, name, sizeof(name)), place % plan->machines,
                            place == SIM_PLACE_MASTER  ? master_main
                            : place < SIM_PLACE_CLIENT ? owner_main
                                                       : client_main);
    if (place == SIM_PLACE_MASTER && has_fault(SIM_FAULT_clock)) {
        static const uint32_t most_s[] = {1, 10, 5000};
        uint32_t off_s = sim_below(SIM_EXTRA, most_s[sim_below(SIM_EXTRA, 3)]);
        sim_processes[place].wall_s = sim_once_in(SIM_EXTRA, 2) ? off_s : -(int64_t)off_s;
        /* One that begins with an epoch of the past is met by some before it knows better, and may forget. */
        oracle_fault(true);
    }
}

static bool is_member(uint32_t place)
{
    return place == SIM_PLACE_MASTER || (place >= SIM_PLACE_OWNER && place < SIM_PLACE_OWNER + plan->owners) ||
           (place >= SIM_PLACE_CLIENT && place < SIM_PLACE_CLIENT + plan->clients);
}

static void on_restart(void *argument)
{
    uint32_t place = (uint32_t)(uintptr_t)argument;
    if (!is_ended && !sim_processes[place].alive)
        place_start(place);
}

static void on_continue(void *argument)
{
    sim_process_continue(&sim_processes[(uintptr_t)argument]);
}

static void on_heal(void *argument)
{
    uintptr_t pair = (uintptr_t)argument;
    sim_partition((uint32_t)(pair >> 8), (uint32_t)(pair & 255), false);
}

static uint64_t pause_draw(void)
{
    static const uint32_t most_ms[] = {2, 50, 1000, 6000};
    return sim_now_ns + (1 + sim_below(SIM_FAULTS, most_ms[sim_below(SIM_FAULTS, 4)])) * SIM_MS;
}

static void place_kill(uint32_t place)
{
    if (!sim_processes[place].alive)
        return;
    oracle_process_killed(&sim_processes[place]);
    sim_process_kill(&sim_processes[place]);
    /* No process is there again within a hundredth of a second, from which a master takes its epoch. */
    sim_at(pause_draw() + 20 * SIM_MS, on_restart, (void *)(uintptr_t)place);
}

static void place_stop(uint32_t place)
{
    sim_process_stop(&sim_processes[place]);
    sim_at(pause_draw(), on_continue, (void *)(uintptr_t)place);
}

static void on_kill(void *argument)
{
    place_kill((uint32_t)(uintptr_t)argument);
}

/* Killed, and started again by who asked for it. */
static void on_end(void *argument)
{
    struct sim_process *process = &sim_processes[(uintptr_t)argument];
    if (is_calm || !process->alive)
        return;
    oracle_process_killed(process);
    sim_process_kill(process);
}

/* A writer is stopped over half of its bytes, and its owner ends and begins again; the master takes the grant back. */
static void restarted_owner(struct sim_process *process)
{
    uint64_t restart_ns = sim_now_ns + (20 + sim_below(SIM_VARIANT, 200)) * SIM_MS;
    uint64_t end_ns = restart_ns + (plan->put_discard_ms + 500 + sim_below(SIM_VARIANT, 2500)) * SIM_MS;
    absent_until_ns = end_ns + 200 * SIM_MS;
    oracle_fault(true);
    sim_process_stop(process);
    sim_at(sim_now_ns + sim_below(SIM_VARIANT, 3) * SIM_MS, on_end, (void *)(uintptr_t)SIM_PLACE_OWNER);
    sim_at(restart_ns, on_restart, (void *)(uintptr_t)SIM_PLACE_OWNER);
    sim_at(end_ns, on_continue, (void *)(uintptr_t)process->place);
}

/* A writer is stopped over half of its bytes, and the master that gave it leave to write dies: the next one learns of
 * it by the owner only. */
static void past_writer(struct sim_process *process)
{
    if (sim_now_ns < absent_until_ns || process->stopped)
        return;
    if (plan->restarts_owner) {
        restarted_owner(process);
        return;
    }
    /* What it reads when it goes on is taken for a sign that the dead master lived until then: less than depart_ms. */
    uint64_t end_ns = sim_now_ns + (1500 + sim_below(SIM_EXTRA, plan->is_durable ? 1300 : 6000)) * SIM_MS;
    absent_until_ns = end_ns + 200 * SIM_MS;
    oracle_fault(!plan->is_durable);
    sim_process_stop(process);
    sim_at(sim_now_ns + sim_below(SIM_EXTRA, 3) * SIM_MS, on_kill, (void *)(uintptr_t)SIM_PLACE_MASTER);
    sim_at(end_ns, on_continue, (void *)(uintptr_t)process->place);
}

/* A writer is stopped until its grant was taken away, and once more between its copy and its commit: that comes when
 * the slot is another's. */
static void slow_writer(struct sim_process *process)
{
    if (process->stopped)
        return;
    oracle_fault(!plan->is_durable);
    is_slow[process->place] = true;
    sim_process_stop(process);
    sim_at(sim_now_ns + (plan->put_discard_ms + sim_below(SIM_EXTRA, 200)) * SIM_MS, on_continue,
           (void *)(uintptr_t)process->place);
}

static void before_commit(struct sim_process *process)
{
    if (!is_slow[process->place] || process->stopped || is_calm)
        return;
    is_slow[process->place] = false;
    sim_process_stop(process);
    sim_at(sim_now_ns + (1 + sim_below(SIM_EXTRA, 60)) * SIM_MS, on_continue, (void *)(uintptr_t)process->place);
}

/* The worst moment for a client to be stopped or to die: half of its bytes are there. */
static void in_copy(struct sim_process *process)
{
    bool may_stop = has_fault(SIM_FAULT_stop_client), may_die = has_fault(SIM_FAULT_kill_client);
    bool is_client = !is_calm && process->place >= SIM_PLACE_CLIENT && is_member(process->place);
    if (is_client && has_fault(SIM_FAULT_past_writer) && sim_once_in(SIM_EXTRA, 8)) {
        past_writer(process);
        return;
    }
    if (is_client && has_fault(SIM_FAULT_slow_writer) && sim_once_in(SIM_EXTRA, 5)) {
        slow_writer(process);
        return;
    }
    if (is_calm || (!may_stop && !may_die) || process->place < SIM_PLACE_CLIENT || !is_member(process->place) ||
        !sim_once_in(SIM_FAULTS, 8))
        return;
    oracle_fault(!plan->is_durable);
    if (may_stop && (!may_die || sim_once_in(SIM_FAULTS, 2))) {
        /* Often until after its grant was taken away, and others have written where it writes. */
        sim_process_stop(process);
        sim_at(sim_now_ns + (1 + sim_below(SIM_FAULTS, 2 * (uint32_t)plan->put_discard_ms % 8000)) * SIM_MS,
               on_continue, (void *)(uintptr_t)process->place);
    } else if (may_die)
        sim_at(sim_now_ns, on_kill, (void *)(uintptr_t)process->place);
}

static void fault_partition(void)
{
    uint32_t a = sim_below(SIM_FAULTS, SIM_PLACE_CLIENT + plan->clients),
             b = sim_below(SIM_FAULTS, SIM_PLACE_CLIENT + plan->clients);
    if (a == b || !is_member(a) || !is_member(b))
        return;
    sim_say("places %u and %u are cut off from each other", a, b);
    sim_partition(a, b, true);
    sim_at(pause_draw(), on_heal, (void *)(uintptr_t)(a << 8 | b));
}

/* An owner is silent while its master ends and the next one begins; sometimes the first one noticed, and had time to
 * act on it or not. */
static void fault_absent(uint32_t owner)
{
    if (sim_now_ns < absent_until_ns || !sim_processes[owner].alive || !sim_processes[SIM_PLACE_MASTER].alive)
        return;
    uint64_t notice_ms = sim_once_in(SIM_EXTRA, 2) ? 0 : 300 + sim_below(SIM_EXTRA, 2400);
    if (notice_ms > 0 && sim_once_in(SIM_EXTRA, 2))
        notice_ms = plan->depart_ms + 200 + sim_below(SIM_EXTRA, 4000);
    uint64_t end_ns = sim_now_ns + (notice_ms + 1000 + sim_below(SIM_EXTRA, 7000)) * SIM_MS;
    absent_until_ns = end_ns + 6000 * SIM_MS;
    bool is_stopped = sim_once_in(SIM_EXTRA, 2);
    /* What a stopped one reads when it goes on is taken for a sign that the dead master lived until then; after
     * depart_ms that costs the others their contents. */
    bool reads_late = is_stopped && end_ns + 200 * SIM_MS >= sim_now_ns + plan->depart_ms * SIM_MS;
    oracle_fault(notice_ms > 0 || reads_late || !plan->is_durable);
    if (is_stopped) {
        sim_process_stop(&sim_processes[owner]);
        sim_at(end_ns, on_continue, (void *)(uintptr_t)owner);
    } else {
        sim_say("owner-%u and the master are cut off from each other", owner - SIM_PLACE_OWNER);
        sim_partition(owner, SIM_PLACE_MASTER, true);
        sim_at(end_ns, on_heal, (void *)(uintptr_t)(owner << 8 | SIM_PLACE_MASTER));
    }
    sim_at(sim_now_ns + notice_ms * SIM_MS, on_kill, (void *)(uintptr_t)SIM_PLACE_MASTER);
}

/* All owners are cut off from the machine of the master, which ends at once; so do those after it, before they have
 * lived depart_ms, until the owners have been away for longer than that. */
static void fault_quiet(void)
{
    if (sim_now_ns < absent_until_ns || !sim_processes[SIM_PLACE_MASTER].alive)
        return;
    uint64_t last_ns = sim_now_ns + (plan->depart_ms + 300 + sim_below(SIM_VARIANT, 4000)) * SIM_MS;
    absent_until_ns = last_ns + 8000 * SIM_MS;
    oracle_fault(false);
    for (uint32_t i = 0; i < plan->owners; i++) {
        uint32_t owner = SIM_PLACE_OWNER + i;
        sim_partition(owner, SIM_PLACE_MASTER, true);
        sim_at(last_ns + (100 + sim_below(SIM_VARIANT, 1500)) * SIM_MS, on_heal,
               (void *)(uintptr_t)(owner << 8 | SIM_PLACE_MASTER));
    }
    for (uint64_t at_ns = sim_now_ns; at_ns < last_ns; at_ns += (1000 + sim_below(SIM_VARIANT, 1500)) * SIM_MS) {
        sim_at(at_ns, on_end, (void *)(uintptr_t)SIM_PLACE_MASTER);
        sim_at(at_ns + (20 + sim_below(SIM_VARIANT, 400)) * SIM_MS, on_restart, (void *)(uintptr_t)SIM_PLACE_MASTER);
    }
    sim_at(last_ns, on_end, (void *)(uintptr_t)SIM_PLACE_MASTER);
    sim_at(last_ns + (20 + sim_below(SIM_VARIANT, 400)) * SIM_MS, on_restart, (void *)(uintptr_t)SIM_PLACE_MASTER);
}

/* All owners are cut off from the machine of the master, which ends at once; the one after it is of age, and answers
 * removals, before they come. */
static void fault_unmet(void)
{
    if (sim_now_ns < absent_until_ns || !sim_processes[SIM_PLACE_MASTER].alive)
        return;
    uint64_t restart_ns = sim_now_ns + (20 + sim_below(SIM_VARIANT, 400)) * SIM_MS;
    uint64_t end_ns = restart_ns + (plan->depart_ms + 500 + sim_below(SIM_VARIANT, 3000)) * SIM_MS;
    absent_until_ns = end_ns + 6000 * SIM_MS;
    oracle_fault(true);
    for (uint32_t i = 0; i < plan->owners; i++) {
        uint32_t owner = SIM_PLACE_OWNER + i;
        sim_partition(owner, SIM_PLACE_MASTER, true);
        sim_at(end_ns + sim_below(SIM_VARIANT, 1000) * SIM_MS, on_heal,
               (void *)(uintptr_t)(owner << 8 | SIM_PLACE_MASTER));
    }
    sim_at(sim_now_ns, on_end, (void *)(uintptr_t)SIM_PLACE_MASTER);
    sim_at(restart_ns, on_restart, (void *)(uintptr_t)SIM_PLACE_MASTER);
}

static void on_late(void *argument)
{
    on_heal(argument);
    sim_slow_way(SIM_PLACE_MASTER, (uint32_t)((uintptr_t)argument >> 8), sim_now_ns + 150 * SIM_MS);
}

/* Owner and master do not hear each other for as long as writers wait for a commit. What was said meanwhile meets what
 * was said against it, and what the master says then comes late: when the slot may be in use again. */
static void fault_late(uint32_t owner)
{
    if (sim_now_ns < absent_until_ns || !sim_processes[owner].alive)
        return;
    uint64_t end_ns = sim_now_ns + (80 + sim_below(SIM_EXTRA, 250)) * SIM_MS;
    absent_until_ns = end_ns + 150 * SIM_MS;
    if (plan->holds_keys && sim_processes[SIM_PLACE_MASTER].alive) {
        sim_at(end_ns - SIM_MS, on_kill, (void *)(uintptr_t)SIM_PLACE_MASTER);
        absent_until_ns = end_ns + 2500 * SIM_MS;
    }
    oracle_fault(true);
    sim_say("owner-%u and the master are cut off from each other", owner - SIM_PLACE_OWNER);
    sim_partition(owner, SIM_PLACE_MASTER, true);
    sim_at(end_ns, on_late, (void *)(uintptr_t)(owner << 8 | SIM_PLACE_MASTER));
}

static void fault_do(enum sim_fault fault)
{
    uint32_t owner = SIM_PLACE_OWNER + sim_below(SIM_FAULTS, plan->owners),
             client = SIM_PLACE_CLIENT + sim_below(SIM_FAULTS, plan->clients);
    bool is_harmless = fault == SIM_FAULT_kill_client || fault == SIM_FAULT_stop_client || fault == SIM_FAULT_broken ||
                       fault == SIM_FAULT_kill_master || fault == SIM_FAULT_stop_master;
    if (fault < SIM_FAULTS_PLAIN)
        oracle_fault(!is_harmless || !plan->is_durable);
    sim_note((uint64_t)fault << 8 | 7);
    switch (fault) {
    case SIM_FAULT_kill_master:
        place_kill(SIM_PLACE_MASTER);
        break;
    case SIM_FAULT_stop_master:
        place_stop(SIM_PLACE_MASTER);
        break;
    case SIM_FAULT_kill_owner:
        place_kill(owner);
        break;
    case SIM_FAULT_stop_owner:
        place_stop(owner);
        break;
    case SIM_FAULT_leave_owner:
        leaving[owner] = sim_processes[owner].alive;
        break;
    case SIM_FAULT_kill_client:
        place_kill(client);
        break;
    case SIM_FAULT_stop_client:
        place_stop(client);
        break;
    case SIM_FAULT_partition:
        fault_partition();
        break;
    case SIM_FAULT_broken:
        (void)sim_break_connection();
        break;
    case SIM_FAULT_absent_owner:
        if (plan->quiet_masters)
            fault_quiet();
        else if (plan->unmet_keys)
            fault_unmet();
        else
            fault_absent(owner);
        break;
    case SIM_FAULT_late_owner:
        fault_late(owner);
        break;
    case SIM_FAULT_past_writer: /* from within copies */
    case SIM_FAULT_slow_writer:
    case SIM_FAULT_clock: /* with each start of the master */
        break;
    default:
        (void)sim_flip_bit();
        break;
    }
}

static void on_fault(void *argument)
{
    (void)argument;
    if (is_calm)
        return;
    enum sim_fault fault = (enum sim_fault)sim_below(
        SIM_FAULTS, plan->faults >> SIM_FAULTS_PLAIN != 0 ? SIM_FAULTS_COUNT : SIM_FAULTS_PLAIN);
    if (has_fault(fault))
        fault_do(fault);
    sim_at(sim_now_ns + (1 + sim_below(SIM_FAULTS, plan->fault_gap_ms)) * SIM_MS, on_fault, NULL);
}

/* ---- the end: everything is well again, and must come to rest ---- */

static bool is_settled(void)
{
    struct mc_core_statistics statistics;
    const struct sim_process *master = &sim_processes[SIM_PLACE_MASTER];
    if (!master->alive || master->core == NULL)
        return false;
    mc_core_statistics(master->core, &statistics);
    return statistics.used == 0 && statistics.clearing_bytes == 0 && statistics.quarantine_bytes == 0 &&
           statistics.objects == 0 && statistics.segments == plan->owners &&
           statistics.populated == statistics.capacity;
}

static void sure_keys_check(struct worker *worker)
{
    for (uint32_t key = 0; key < plan->keys; key++) {
        struct mc_get_item item = {.key = key_name(key)};
        for (unsigned tries = 0; tries < 50; tries++) {
            struct oracle_call call = oracle_begin();
            (void)mc_store_get(worker->store, &item, 1, get_allocate, worker);
            oracle_end(&call, plan->timeout_ms, "get");
            if (item.result > 0 || !oracle_is_sure(key)) {
                oracle_got(&call, key, worker->buffers[0], item.result > 0 ? item.result : -1);
                break;
            }
            sim_sleep_ns(100 * SIM_MS);
        }
        if (item.result < 0 && oracle_is_sure(key))
            sim_fail("lost: key %u was acknowledged and is not readable at the end: %s", key,
                     mc_error_name((int)item.result));
    }
}

static void last_main(struct sim_process *process)
{
    struct worker worker = {.process = process};
    uint64_t limit_ns = sim_now_ns + CALM_MS * SIM_MS;
    for (uint32_t i = 0; i < BATCH_MAX; i++)
        worker.buffers[i] = sim_calloc(1, VALUE_MAX);
    worker.store = store_open(process, 0);
    sure_keys_check(&worker);
    while (!is_settled() && !sim_failed) {
        if (sim_now_ns > limit_ns) {
            struct mc_core_statistics s;
            if (sim_processes[SIM_PLACE_MASTER].core == NULL)
                sim_fail("rest: there is no master");
            mc_core_statistics(sim_processes[SIM_PLACE_MASTER].core, &s);
            sim_fail("rest: used %llu, clearing %llu, quarantine %llu, objects %llu, segments %llu of %u",
                     (unsigned long long)s.used, (unsigned long long)s.clearing_bytes,
                     (unsigned long long)s.quarantine_bytes, (unsigned long long)s.objects,
                     (unsigned long long)s.segments, plan->owners);
        }
        (void)remove_all(&worker, true, false);
        if (!is_settled())
            sim_sleep_ns(500 * SIM_MS);
    }
    oracle_check_masters();
    oracle_check_indexes();
    (void)mc_store_close(worker.store);
    is_ended = true;
}

static void all_well(void)
{
    is_calm = true;
    calm_ns = sim_now_ns;
    for (uint32_t a = 0; a < SIM_PROCESSES_MAX; a++) {
        for (uint32_t b = 0; b < SIM_PROCESSES_MAX; b++)
            sim_partition(a, b, false);
        sim_process_continue(&sim_processes[a]);
    }
    for (uint32_t place = 0; place < SIM_PLACE_CLIENT; place++) {
        if (is_member(place) && !sim_processes[place].alive)
            place_start(place);
    }
}

static void run_to_the_end(void)
{
    uint64_t limit_ns = sim_now_ns + 600000 * SIM_MS;
    while (operations_left > 0 && sim_now_ns < limit_ns && !sim_failed)
        sim_run(sim_now_ns + 20 * SIM_MS);
    all_well();
    /* Calls in progress end: the longest is remove_all. */
    uint64_t end_ns = sim_now_ns + (plan->timeout_ms + 62000ull) * SIM_MS;
    for (uint32_t i = 0; i < plan->clients && !sim_failed; i++) {
        while (sim_processes[SIM_PLACE_CLIENT + i].alive && !sim_failed) {
            if (sim_now_ns > end_ns)
                sim_fail("rest: %s did not come to its end", sim_processes[SIM_PLACE_CLIENT + i].name);
            sim_run(sim_now_ns + 20 * SIM_MS);
        }
    }
    if (sim_failed)
        return;
    (void)sim_process_start(SIM_PROCESSES_MAX - 1, "last", 0, last_main);
    while (!is_ended && !sim_failed)
        sim_run(sim_now_ns + 20 * SIM_MS);
}

void sim_plan_run(const struct sim_plan *wanted, struct sim_result *result)
{
    plan = wanted;
    sim_depart_ms = (uint32_t)plan->depart_ms;
    sim_reset(plan->seed);
    /* The drawing of the plan is behind us: what follows is its own. */
    for (unsigned i = 0; i < 64; i++)
        (void)sim_random(SIM_PLAN);
    sim_delay_us_max = 20u << sim_below(SIM_NET, 6);
    sim_preempt_in = 2u << sim_below(SIM_SCHEDULE, 6);
    operations_left = plan->operations;
    operations_done = clients_ended = 0;
    is_calm = is_ended = false;
    absent_until_ns = first_story_ns =
        plan->quiet_masters || plan->unmet_keys ? sim_now_ns + (1000 + sim_below(SIM_VARIANT, 7000)) * SIM_MS : 0;
    memset(leaving, 0, sizeof(leaving));
    memset(is_slow, 0, sizeof(is_slow));
    sim_in_copy = in_copy;
    sim_in_unix_send = before_commit;
    oracle_reset(plan);
    for (uint32_t place = 0; place < SIM_PLACE_CLIENT + SIM_CLIENTS_MAX; place++) {
        if (is_member(place))
            place_start(place);
    }
    if (plan->faults != 0)
        sim_at(sim_now_ns + SIM_MS, on_fault, NULL);
    run_to_the_end();
    *result = (struct sim_result){.failed = sim_failed,
                                  .hash = sim_hash,
                                  .messages = sim_messages,
                                  .events = sim_events,
                                  .operations = operations_done,
                                  .now_ns = sim_now_ns};
    memcpy(result->failure, sim_failure, sizeof(sim_failure));
}
