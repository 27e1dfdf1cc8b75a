/* The original's C names over ours: handles, segment numbers, and batches whose tasks come in several submissions. */
#include "transfer_engine_c.h"

#include "transfer/engine/open.h"
#include "transfer/engine/original_calls.h"
#include "transfer/peer/ask.h"
#include "transfer/run/run.h"
#include "transfer/serve/publish.h"
#include "transfer/state/engine.h"
#include "transfer/state/region.h"

#include "base/error.h"
#include "base/variables.h"
#include "env/log.h"

#include <stdio.h>
#include <stdlib.h>

#define ENGINES_MAX 256u
#define SEGMENTS_MAX MC_PEERS_MAX
#define PLACE_BITS 16u
#define BATCHES_MAX (1u << PLACE_BITS)

struct task_group { /* tasks of one submission with one direction and segment: one batch of ours */
    int64_t id;     /* 0: being submitted, or ended */
    int status;     /* STATUS_... */
    struct task_group *next;
};

struct batch_task {
    struct task_group *group;
    uint64_t length;
};

struct c_batch {
    uint64_t id;
    size_t capacity, used;
    uint32_t submitting; /* calls in the middle of it */
    struct batch_task *tasks;
    struct task_group *groups;
    int32_t note_target;
    char *note_name, *note_message; /* NULL: none to be sent */
};

struct original {
    uintptr_t handle;
    struct mc_transfer_engine *engine;
    uint32_t users; /* of the table's lock */
    pthread_mutex_t lock;
    char **segments; /* names; ids are their places + 1 */
    size_t segment_count, segment_capacity;
    struct c_batch **batches;
    uint32_t *free_places;
    uint32_t batch_count, batch_capacity, free_count; /* places in use or free; in all; free */
    uint64_t generation;
    struct mc_region_table hidden; /* registered, but not for peers */
};

/* ---- handles ---- */

static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t table_changed = PTHREAD_COND_INITIALIZER;
static struct original *table[ENGINES_MAX];
static uintptr_t handles_given;

/* The threads that might hold the lock are not there in a child, and its engines are of no use. */
static void on_fork_in_child(void)
{
    pthread_mutex_init(&table_lock, NULL);
    pthread_cond_init(&table_changed, NULL);
    memset(table, 0, sizeof(table));
}

static void start_once(void)
{
    (void)pthread_atfork(NULL, NULL, on_fork_in_child);
}

/* A handle is odd, so it is never an object's address: (number of the engine << 9 | place << 1) + 1. */
static struct original *enter(transfer_engine_t handle)
{
    uintptr_t value = (uintptr_t)handle;
    size_t place = value >> 1 & (ENGINES_MAX - 1);
    pthread_mutex_lock(&table_lock);
    struct original *original = (value & 1) != 0 ? table[place] : NULL;
    if (original != NULL && original->handle == value)
        original->users++;
    else
        original = NULL;
    pthread_mutex_unlock(&table_lock);
    if (original == NULL)
        mc_log_limited(ERROR, "a call of transfer_engine_c.h on what is no engine (any more)");
    return original;
}

static void leave(struct original *original)
{
    pthread_mutex_lock(&table_lock);
    if (--original->users == 0)
        pthread_cond_broadcast(&table_changed);
    pthread_mutex_unlock(&table_lock);
}

/* NULL: there are too many. */
static transfer_engine_t give_handle(struct original *original)
{
    pthread_mutex_lock(&table_lock);
    for (size_t place = 0; place < ENGINES_MAX && original->handle == 0; place++) {
        if (table[place] != NULL)
            continue;
        original->handle = (++handles_given << 9 | place << 1) + 1;
        table[place] = original;
    }
    pthread_mutex_unlock(&table_lock);
    return (transfer_engine_t)original->handle;
}

static void batch_free(struct c_batch *batch)
{
    while (batch->groups != NULL) {
        struct task_group *next = batch->groups->next;
        free(batch->groups);
        batch->groups = next;
    }
    free(batch->note_name);
    free(batch->note_message);
    free(batch->tasks);
    free(batch);
}

static void original_free(struct original *original)
{
    mc_transfer_close(original->engine);
    for (uint32_t i = 0; i < original->batch_count; i++)
        if (original->batches[i] != NULL)
            batch_free(original->batches[i]);
    for (size_t i = 0; i < original->segment_count; i++)
        free(original->segments[i]);
    free(original->free_places);
    free(original->batches);
    free(original->segments);
    mc_region_table_free(&original->hidden);
    pthread_mutex_destroy(&original->lock);
    free(original);
}

/* 0: there are RDMA devices, and peers know of them. */
static int install_rdma(struct mc_transfer_engine *engine, const char *matrix)
{
    if (mc_variable(MC_FORCE_TCP) != NULL)
        return MC_ERR_UNAVAILABLE_IN_CURRENT_MODE;
    int rc = mc_transfer_start_rdma(engine, "", matrix);
    if (rc == 0 && mc_transfer_publish_document(engine, false) < 0)
        mc_log(WARNING, "the metadata server was not told of the RDMA devices: peers do not use them yet");
    return rc;
}

transfer_engine_t createTransferEngine(const char *metadata_conn_string, const char *local_server_name,
                                       const char *ip_or_host_name, uint64_t rpc_port, int auto_discover)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)ip_or_host_name;
    (void)rpc_port;
    struct mc_transfer_config config = {.local_name = local_server_name, .metadata_server = metadata_conn_string};
    pthread_once(&once, start_once);
    struct original *original = calloc(1, sizeof(*original));
    if (original == NULL)
        return NULL;
    pthread_mutex_init(&original->lock, NULL);
    int rc = mc_transfer_open(&config, &original->engine);
    if (rc == 0 && auto_discover != 0 && install_rdma(original->engine, NULL) < 0)
        mc_log(INFO, "no RDMA device is found: tcp and the paths within the machine are used");
    transfer_engine_t handle = rc < 0 ? NULL : give_handle(original);
    if (handle == NULL)
        original_free(original);
    return handle;
}

void destroyTransferEngine(transfer_engine_t engine)
{
    uintptr_t value = (uintptr_t)engine;
    size_t place = value >> 1 & (ENGINES_MAX - 1);
    pthread_mutex_lock(&table_lock);
    struct original *original = (value & 1) != 0 ? table[place] : NULL;
    if (original == NULL || original->handle != value) {
        pthread_mutex_unlock(&table_lock);
        return;
    }
    table[place] = NULL; /* nobody enters any more */
    while (original->users > 0)
        pthread_cond_wait(&table_changed, &table_lock);
    pthread_mutex_unlock(&table_lock);
    original_free(original);
}

/* ---- about the engine ---- */

int discoverTopology(transfer_engine_t engine)
{
    struct original *original = enter(engine);
    if (original == NULL)
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    leave(original);
    return 0;
}

int getLocalIpAndPort(transfer_engine_t engine, char *buf_out, size_t buf_len)
{
    char address[MC_ADDRESS_MAX + 8];
    struct original *original = enter(engine);
    if (original == NULL)
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    mc_address_join(address, sizeof(address), mc_transfer_host(original->engine),
                    mc_transfer_rpc_port(original->engine));
    leave(original);
    if (buf_out == NULL || strlen(address) >= buf_len)
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    memcpy(buf_out, address, strlen(address) + 1);
    return 0;
}

transport_t installTransport(transfer_engine_t engine, const char *proto, void **args)
{
    static char tcp[] = "tcp", rdma[] = "rdma";
    struct original *original = enter(engine);
    if (original == NULL)
        return NULL;
    bool is_rdma = proto != NULL && strcmp(proto, rdma) == 0;
    int rc = is_rdma ? install_rdma(original->engine, args == NULL ? NULL : args[0]) : 0;
    leave(original);
    if (is_rdma && rc < 0)
        mc_log(WARNING, "installTransport: no RDMA: %s",
               rc == MC_ERR_UNAVAILABLE_IN_CURRENT_MODE ? "no usable device here (mooncake_doctor says why)"
                                                        : mc_error_name(rc));
    if (is_rdma)
        return rc < 0 ? NULL : rdma;
    if (proto != NULL && strcmp(proto, tcp) == 0)
        return tcp;
    mc_log(WARNING, "installTransport: there is no '%.40s' here; tcp and the paths within the machine are always there",
           proto == NULL ? "" : proto);
    return NULL;
}

int uninstallTransport(transfer_engine_t engine, const char *proto)
{
    return proto == NULL ? MC_TRANSFER_ERR_INVALID_ARGUMENT : discoverTopology(engine);
}

int warmupEfaSegment(transfer_engine_t engine, const char *segment_name)
{
    (void)segment_name;
    return discoverTopology(engine);
}

void enableGracefulShutdown(transfer_engine_t engine)
{
    struct original *original = enter(engine);
    if (original == NULL)
        return;
    if (mc_transfer_drain_on_signals(original->engine) < 0)
        mc_log(ERROR, "enableGracefulShutdown: no thread or descriptor is left for it; signals do what they did");
    leave(original);
}

int showLinks(transfer_engine_t engine, char *buf_out, size_t buf_len, int json)
{
    struct original *original = buf_out == NULL || buf_len == 0 ? NULL : enter(engine);
    if (original == NULL)
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    char *text = json != 0 ? mc_transfer_links(original->engine) : mc_transfer_links_text(original->engine);
    leave(original);
    size_t length = text == NULL ? 0 : strlen(text);
    bool is_shown = text != NULL && (json == 0 || length < buf_len);
    buf_out[0] = 0;
    if (is_shown)
        snprintf(buf_out, buf_len, "%s", text);
    free(text);
    return is_shown ? 0 : MC_TRANSFER_ERR_INVALID_ARGUMENT;
}

int getNicLoadStats(transfer_engine_t engine, nic_load_stat_t *stats, size_t *count)
{
    struct original *original = stats == NULL || count == NULL ? NULL : enter(engine);
    if (original == NULL)
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    leave(original);
    *count = 0;
    return 0;
}

/* ---- segments ---- */

static const char *plain(const char *name)
{
    return name != NULL && name[0] == '/' ? name + 1 : name;
}

/* The lock is held. */
static segment_id_t number_of(struct original *original, const char *name)
{
    for (size_t i = 0; i < original->segment_count; i++)
        if (strcmp(original->segments[i], name) == 0)
            return (segment_id_t)(i + 1);
    if (original->segment_count == original->segment_capacity) {
        size_t capacity = original->segment_capacity == 0 ? 16 : original->segment_capacity * 2;
        char **more = capacity > SEGMENTS_MAX ? NULL : realloc(original->segments, capacity * sizeof(char *));
        if (more == NULL)
            return MC_TRANSFER_ERR_INVALID_ARGUMENT;
        original->segments = more;
        original->segment_capacity = capacity;
    }
    char *copy = strdup(name);
    if (copy == NULL)
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    original->segments[original->segment_count++] = copy;
    return (segment_id_t)original->segment_count;
}

/* A name that lives as long as the engine; NULL: no such segment. */
static const char *name_of(struct original *original, int64_t number)
{
    const char *name = NULL;
    pthread_mutex_lock(&original->lock);
    if (number == LOCAL_SEGMENT)
        name = mc_transfer_name(original->engine);
    else if (number > 0 && (uint64_t)number <= original->segment_count)
        name = original->segments[number - 1];
    pthread_mutex_unlock(&original->lock);
    return name;
}

static segment_id_t open_segment(transfer_engine_t engine, const char *segment_name, bool is_fresh)
{
    const char *name = plain(segment_name);
    struct original *original = enter(engine);
    if (original == NULL)
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    if (is_fresh)
        (void)mc_transfer_close_segment(original->engine, name); /* a bad name is refused below */
    segment_id_t number = mc_transfer_open_segment(original->engine, name) < 0 ? MC_TRANSFER_ERR_INVALID_ARGUMENT : 0;
    if (number == 0) {
        pthread_mutex_lock(&original->lock);
        number = number_of(original, name);
        pthread_mutex_unlock(&original->lock);
    }
    leave(original);
    return number;
}

segment_id_t openSegment(transfer_engine_t engine, const char *segment_name)
{
    return open_segment(engine, segment_name, false);
}

segment_id_t openSegmentNoCache(transfer_engine_t engine, const char *segment_name)
{
    return open_segment(engine, segment_name, true);
}

int closeSegment(transfer_engine_t engine, segment_id_t segment_id)
{
    struct original *original = enter(engine);
    if (original == NULL)
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    int rc = mc_transfer_close_segment(original->engine, name_of(original, segment_id));
    leave(original);
    return rc;
}

int removeLocalSegment(transfer_engine_t engine, const char *segment_name)
{
    struct original *original = enter(engine);
    if (original == NULL)
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    int rc = mc_transfer_close_segment(original->engine, plain(segment_name));
    leave(original);
    return rc;
}

int syncSegmentCache(transfer_engine_t engine)
{
    struct original *original = enter(engine);
    const char *name;
    if (original == NULL)
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    for (int64_t number = 1; (name = name_of(original, number)) != NULL; number++)
        (void)mc_transfer_close_segment(original->engine, name); /* knows the name, so cannot fail */
    leave(original);
    return 0;
}

/* ---- memory ---- */

int registerLocalMemory(transfer_engine_t engine, void *addr, size_t length, const char *location,
                        int remote_accessible)
{
    struct mc_transfer_range range = {(uintptr_t)addr, length};
    struct original *original = enter(engine);
    if (original == NULL)
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    int rc;
    if (remote_accessible != 0) {
        rc = mc_transfer_register_at(original->engine, &range, 1, location);
    } else {
        pthread_mutex_lock(&original->lock);
        rc = mc_region_add(&original->hidden, &range, 1, NULL);
        pthread_mutex_unlock(&original->lock);
    }
    leave(original);
    return rc;
}

int registerLocalMemoryBatch(transfer_engine_t engine, buffer_entry_t *buffer_list, size_t buffer_len,
                             const char *location)
{
    struct original *original = enter(engine);
    if (original == NULL)
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    int rc = buffer_len > MC_TRANSFER_ITEMS_MAX      ? MC_TRANSFER_ERR_MEMORY
             : buffer_list == NULL && buffer_len > 0 ? MC_TRANSFER_ERR_INVALID_ARGUMENT
                                                     : 0;
    struct mc_transfer_range *ranges = rc == 0 ? calloc(buffer_len + 1, sizeof(*ranges)) : NULL;
    if (rc == 0 && ranges == NULL)
        rc = MC_TRANSFER_ERR_MEMORY;
    for (size_t i = 0; rc == 0 && i < buffer_len; i++)
        ranges[i] = (struct mc_transfer_range){(uintptr_t)buffer_list[i].addr, buffer_list[i].length};
    if (rc == 0)
        rc = mc_transfer_register_at(original->engine, ranges, buffer_len, location);
    free(ranges);
    leave(original);
    return rc;
}

static bool drop_hidden(struct original *original, uint64_t address)
{
    pthread_mutex_lock(&original->lock);
    struct mc_region *region = mc_region_at(&original->hidden, address);
    if (region != NULL)
        mc_region_remove(&original->hidden, region);
    pthread_mutex_unlock(&original->lock);
    return region != NULL;
}

int unregisterLocalMemoryBatch(transfer_engine_t engine, void **addr_list, size_t addr_len)
{
    struct original *original = enter(engine);
    if (original == NULL)
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    int rc = addr_list == NULL && addr_len > 0 ? MC_TRANSFER_ERR_INVALID_ARGUMENT : 0;
    uint64_t *addresses = rc == 0 && addr_len < SIZE_MAX / 8 - 1 ? malloc((addr_len + 1) * sizeof(*addresses)) : NULL;
    size_t count = 0;
    if (rc == 0 && addresses == NULL)
        rc = MC_TRANSFER_ERR_MEMORY;
    for (size_t i = 0; rc == 0 && i < addr_len; i++)
        if (!drop_hidden(original, (uintptr_t)addr_list[i]))
            addresses[count++] = (uintptr_t)addr_list[i];
    if (rc == 0 && count > 0)
        rc = mc_transfer_unregister(original->engine, addresses, count);
    free(addresses);
    leave(original);
    return rc;
}

int unregisterLocalMemory(transfer_engine_t engine, void *addr)
{
    return unregisterLocalMemoryBatch(engine, &addr, 1);
}

/* ---- batches ---- */

/* The lock is held. NULL: no such batch (any more). */
static struct c_batch *find_batch(const struct original *original, uint64_t id)
{
    size_t place = id & (BATCHES_MAX - 1);
    struct c_batch *batch = place < original->batch_count ? original->batches[place] : NULL;
    return batch != NULL && batch->id == id ? batch : NULL;
}

/* The lock is held. -1: there are too many, or no memory. */
static int64_t take_place(struct original *original)
{
    if (original->free_count > 0)
        return original->free_places[--original->free_count];
    if (original->batch_count == original->batch_capacity) {
        uint32_t capacity = original->batch_capacity == 0 ? 64 : original->batch_capacity * 2;
        if (capacity > BATCHES_MAX)
            return -1;
        struct c_batch **batches = realloc(original->batches, capacity * sizeof(struct c_batch *));
        original->batches = batches == NULL ? original->batches : batches;
        uint32_t *places = realloc(original->free_places, capacity * sizeof(uint32_t));
        original->free_places = places == NULL ? original->free_places : places;
        if (batches == NULL || places == NULL)
            return -1;
        original->batch_capacity = capacity;
    }
    return original->batch_count++;
}

batch_id_t allocateBatchID(transfer_engine_t engine, size_t batch_size)
{
    struct original *original = enter(engine);
    uint64_t id = INVALID_BATCH;
    if (original == NULL)
        return id;
    struct c_batch *batch = batch_size > MC_TRANSFER_ITEMS_MAX ? NULL : calloc(1, sizeof(*batch));
    struct batch_task *tasks = batch == NULL ? NULL : calloc(batch_size + 1, sizeof(*tasks));
    pthread_mutex_lock(&original->lock);
    int64_t place = tasks == NULL ? -1 : take_place(original);
    if (place >= 0) {
        /* 47 bits of generation: never given twice in a process's life, and never INVALID_BATCH. */
        id = (++original->generation & (UINT64_MAX >> (PLACE_BITS + 1))) << PLACE_BITS | (uint64_t)place;
        *batch = (struct c_batch){.id = id, .capacity = batch_size, .tasks = tasks};
        original->batches[place] = batch;
    }
    pthread_mutex_unlock(&original->lock);
    leave(original);
    if (place < 0) {
        free(tasks);
        free(batch);
    }
    return id;
}

/* Entries sorted by group; groups are in the order of their first entries. */
struct submit_plan {
    size_t count, group_count;
    uint32_t *group_of; /* of each entry */
    struct mc_transfer_item *items;
    struct plan_group {
        const struct transfer_request *first;
        const char *target;
        size_t begin, count;
        struct task_group *group;
    } * groups;
};

static void plan_free(struct submit_plan *plan)
{
    for (size_t i = 0; plan->groups != NULL && i < plan->group_count; i++)
        free(plan->groups[i].group); /* those that a batch has taken are NULL here */
    free(plan->group_of);
    free(plan->items);
    free(plan->groups);
}

static uint32_t group_of(struct submit_plan *plan, const struct transfer_request *entry, uint32_t last)
{
    for (uint32_t i = 0; i < plan->group_count; i++) {
        uint32_t at = (uint32_t)((last + i) % plan->group_count); /* mostly that of the entry before */
        if (plan->groups[at].first->target_id == entry->target_id && plan->groups[at].first->opcode == entry->opcode)
            return at;
    }
    plan->groups[plan->group_count] = (struct plan_group){.first = entry};
    return (uint32_t)plan->group_count++;
}

static int plan_groups(struct submit_plan *plan, struct original *original, const struct transfer_request *entries)
{
    uint32_t last = 0;
    for (size_t i = 0; i < plan->count; i++) {
        if (entries[i].opcode != OPCODE_READ && entries[i].opcode != OPCODE_WRITE)
            return TRANSFER_STATUS_CODE_INVALID_ARGUMENT;
        last = group_of(plan, &entries[i], last);
        plan->group_of[i] = last;
        plan->groups[last].count++;
    }
    size_t begin = 0;
    for (size_t i = 0; i < plan->group_count; i++) {
        struct plan_group *group = &plan->groups[i];
        group->target = name_of(original, group->first->target_id);
        if (group->target == NULL)
            return TRANSFER_STATUS_CODE_INVALID_ARGUMENT;
        group->group = calloc(1, sizeof(*group->group));
        if (group->group == NULL)
            return TRANSFER_STATUS_CODE_MEMORY;
        group->begin = begin;
        begin += group->count;
        group->count = 0;
    }
    return 0;
}

/* 0 or a positive code. Free in every case. */
static int plan_make(struct submit_plan *plan, struct original *original, const struct transfer_request *entries,
                     size_t count)
{
    *plan = (struct submit_plan){.count = count};
    if (count > MC_TRANSFER_ITEMS_MAX)
        return TRANSFER_STATUS_CODE_TOO_MANY_REQUESTS;
    plan->group_of = malloc((count + 1) * sizeof(*plan->group_of));
    plan->items = malloc((count + 1) * sizeof(*plan->items));
    plan->groups = malloc((count + 1) * sizeof(*plan->groups));
    if (plan->group_of == NULL || plan->items == NULL || plan->groups == NULL)
        return TRANSFER_STATUS_CODE_MEMORY;
    int rc = plan_groups(plan, original, entries);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        struct plan_group *group = &plan->groups[plan->group_of[i]];
        plan->items[group->begin + group->count++] =
            (struct mc_transfer_item){entries[i].source, entries[i].target_offset, entries[i].length};
    }
    if (rc == 0 && mc_run_check(plan->items, count) < 0)
        rc = TRANSFER_STATUS_CODE_INVALID_ARGUMENT;
    return rc;
}

/* Gives the batch its new tasks, which are not begun yet. The lock is held. */
static void take_tasks(struct c_batch *batch, const struct submit_plan *plan, const struct transfer_request *entries)
{
    for (size_t i = 0; i < plan->count; i++)
        batch->tasks[batch->used++] = (struct batch_task){plan->groups[plan->group_of[i]].group, entries[i].length};
    for (size_t i = 0; i < plan->group_count; i++) {
        plan->groups[i].group->next = batch->groups;
        batch->groups = plan->groups[i].group;
    }
    batch->submitting++;
}

/* Begins them, without the lock: a peer may have to be looked up. */
static void task_begin(struct original *original, struct c_batch *batch, struct submit_plan *plan,
                       const struct mc_transfer_note *note)
{
    for (size_t i = 0; i < plan->group_count; i++) {
        struct plan_group *group = &plan->groups[i];
        int64_t id = mc_transfer_submit(original->engine, group->target, (enum mc_transfer_opcode)group->first->opcode,
                                        plan->items + group->begin, group->count, note);
        pthread_mutex_lock(&original->lock);
        if (id > 0)
            group->group->id = id;
        else
            group->group->status = STATUS_FAILED;
        group->group = NULL; /* the batch's */
        pthread_mutex_unlock(&original->lock);
    }
    pthread_mutex_lock(&original->lock);
    batch->submitting--;
    pthread_mutex_unlock(&original->lock);
}

/* A batch of one group in one submission leaves its note to the engine; else it is kept until all has ended. */
static bool keep_note(struct c_batch *batch, const struct submit_plan *plan, const struct mc_transfer_note *note,
                      int32_t target)
{
    if (note == NULL || (plan->group_count == 1 && batch->used == plan->count))
        return true;
    free(batch->note_name);
    free(batch->note_message);
    batch->note_name = strdup(note->name);
    batch->note_message = strdup(note->message);
    batch->note_target = target;
    return batch->note_name != NULL && batch->note_message != NULL;
}

static int submit(transfer_engine_t engine, uint64_t id, const struct transfer_request *entries, size_t count,
                  const struct mc_transfer_note *note)
{
    struct submit_plan plan;
    struct original *original = enter(engine);
    if (original == NULL)
        return TRANSFER_STATUS_CODE_INVALID_ARGUMENT;
    bool is_fine = (entries != NULL || count == 0) && mc_ask_is_note(note);
    int rc = is_fine ? plan_make(&plan, original, entries, count) : TRANSFER_STATUS_CODE_INVALID_ARGUMENT;
    pthread_mutex_lock(&original->lock);
    struct c_batch *batch = rc == 0 ? find_batch(original, id) : NULL;
    if (rc == 0)
        rc = batch == NULL                           ? TRANSFER_STATUS_CODE_INVALID_ARGUMENT
             : count > batch->capacity - batch->used ? TRANSFER_STATUS_CODE_TOO_MANY_REQUESTS
                                                     : 0;
    if (rc == 0) {
        take_tasks(batch, &plan, entries);
        if (count > 0 && !keep_note(batch, &plan, note, entries[0].target_id))
            mc_log_limited(ERROR, "out of memory: a note will not be sent");
        if (batch->note_name != NULL)
            note = NULL;
    }
    pthread_mutex_unlock(&original->lock);
    if (rc == 0)
        task_begin(original, batch, &plan, note); /* the batch cannot be freed meanwhile */
    if (is_fine)
        plan_free(&plan);
    leave(original);
    return rc;
}

int submitTransfer(transfer_engine_t engine, batch_id_t batch_id, struct transfer_request *entries, size_t count)
{
    return submit(engine, batch_id, entries, count, NULL);
}

int submitTransferWithNotify(transfer_engine_t engine, batch_id_t batch_id, struct transfer_request *entries,
                             size_t count, notify_msg_t notify_msg)
{
    struct mc_transfer_note note = {notify_msg.name, notify_msg.msg};
    return submit(engine, batch_id, entries, count, &note);
}

/* ---- the end of tasks ---- */

/* The lock is held. */
static int group_status(struct original *original, struct task_group *group)
{
    if (group->id == 0)
        return group->status;
    int rc = mc_transfer_status(original->engine, group->id);
    if (rc == 0)
        return STATUS_WAITING;
    group->id = 0;
    /* Never STATUS_TIMEOUT: the original does not give it unless asked to (MC_SLICE_TIMEOUT), and its users, NIXL's
     * plugin among them, take all for a success that is neither under way nor FAILED. */
    group->status = rc == 1 ? STATUS_COMPLETED : STATUS_FAILED;
    return group->status;
}

/* The lock is held. WAITING before all others, then what is not COMPLETED. */
static int look_at_all(struct original *original, struct c_batch *batch)
{
    int worst = batch->submitting > 0 ? STATUS_WAITING : STATUS_COMPLETED;
    for (struct task_group *group = batch->groups; group != NULL; group = group->next) {
        int status = group_status(original, group);
        if (status != STATUS_COMPLETED && worst != STATUS_WAITING)
            worst = status;
    }
    return worst;
}

int getTransferStatus(transfer_engine_t engine, batch_id_t batch_id, size_t task_id, struct transfer_status *status)
{
    struct mc_transfer_note note = {NULL, NULL};
    int32_t target = 0;
    struct original *original = enter(engine);
    if (original == NULL)
        return TRANSFER_STATUS_CODE_INVALID_ARGUMENT;
    pthread_mutex_lock(&original->lock);
    struct c_batch *batch = find_batch(original, batch_id);
    bool is_there = batch != NULL && task_id < batch->used && status != NULL;
    if (is_there) {
        const struct batch_task *task = &batch->tasks[task_id];
        status->status = group_status(original, task->group);
        status->transferred_bytes = status->status == STATUS_COMPLETED ? task->length : 0;
    }
    if (is_there && batch->note_name != NULL && look_at_all(original, batch) == STATUS_COMPLETED) {
        note = (struct mc_transfer_note){batch->note_name, batch->note_message};
        target = batch->note_target;
        batch->note_name = batch->note_message = NULL;
    }
    pthread_mutex_unlock(&original->lock);
    if (note.name != NULL && mc_transfer_notify(original->engine, name_of(original, target), &note) < 0)
        mc_log_limited(WARNING, "a note was not taken; the bytes have been moved");
    free((char *)(uintptr_t)note.name);
    free((char *)(uintptr_t)note.message);
    leave(original);
    return is_there ? 0 : TRANSFER_STATUS_CODE_INVALID_ARGUMENT;
}

int freeBatchID(transfer_engine_t engine, batch_id_t batch_id)
{
    struct original *original = enter(engine);
    if (original == NULL)
        return TRANSFER_STATUS_CODE_INVALID_ARGUMENT;
    pthread_mutex_lock(&original->lock);
    struct c_batch *batch = find_batch(original, batch_id);
    int rc = batch == NULL                                    ? TRANSFER_STATUS_CODE_INVALID_ARGUMENT
             : look_at_all(original, batch) == STATUS_WAITING ? TRANSFER_STATUS_CODE_BATCH_BUSY
                                                              : 0;
    if (rc == 0) {
        uint32_t place = batch_id & (BATCHES_MAX - 1);
        original->batches[place] = NULL;
        original->free_places[original->free_count++] = place;
    }
    pthread_mutex_unlock(&original->lock);
    if (rc == 0)
        batch_free(batch);
    leave(original);
    return rc;
}

/* ---- notes ---- */

notify_msg_t *getNotifsFromEngine(transfer_engine_t engine, int *size)
{
    notify_msg_t *notes = NULL;
    size_t count = 0, capacity = 0;
    struct original *original = size == NULL ? NULL : enter(engine);
    if (size != NULL)
        *size = 0;
    if (original == NULL)
        return NULL;
    for (;;) {
        if (count == capacity) {
            capacity = capacity == 0 ? 8 : capacity * 2;
            notify_msg_t *more = realloc(notes, capacity * sizeof(*notes));
            if (more == NULL)
                break; /* the others wait */
            notes = more;
        }
        if (mc_transfer_take_note(original->engine, &notes[count].name, &notes[count].msg) != 1)
            break;
        count++;
    }
    leave(original);
    *size = (int)count;
    if (count > 0)
        return notes;
    free(notes);
    return NULL;
}

int freeNotifsMsgBuf(notify_msg_t *msg, int size)
{
    for (int i = 0; msg != NULL && i < size; i++) {
        free(msg[i].name);
        free(msg[i].msg);
    }
    free(msg);
    return 0;
}

int genNotifyInEngine(transfer_engine_t engine, uint64_t target_id, notify_msg_t notify_msg)
{
    struct mc_transfer_note note = {notify_msg.name, notify_msg.msg};
    struct original *original = enter(engine);
    if (original == NULL)
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    int rc =
        mc_transfer_notify(original->engine, name_of(original, target_id > INT32_MAX ? -1 : (int64_t)target_id), &note);
    leave(original);
    return rc;
}

/* ---- for libtransfer_engine ---- */

/* By names that no other library can take over: that one has functions of the same names, which call these. */
#define X(type, name, parameters, arguments) static type name##_here parameters __attribute__((alias(#name)));
#define NOTHING(name, parameters, arguments) static void name##_here parameters __attribute__((alias(#name)));
#include "transfer/engine/original_calls.def"
#undef NOTHING
#undef X

const struct mc_original_calls mc_original_calls = {
#define X(type, name, parameters, arguments) .name = name##_here,
#define NOTHING(name, parameters, arguments) .name = name##_here,
#include "transfer/engine/original_calls.def"
};
