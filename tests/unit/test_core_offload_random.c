/* Values between memories, disks and clients, by chance: a few owners, each with a small memory and a smaller disk, a
 * few clients and keys; what is said is late, connections break, processes end and come back, one master follows
 * another. Judged is what clients may conclude: nothing that was removed or replaced is seen again, no reader gets
 * another value than that of the put that counts, nothing that was put is lost without a reason, and nothing is left
 * over. Each seed is one history: MC_TEST_SEED=S runs one and tells it, MC_TEST_SEEDS=N runs N. */
#include "core_disk_owner.h"

#include "store/core/job.h"
#include "store/core/limits.h"
#include "store/core/list.h"

#include <signal.h>
#include <unistd.h>

#define SEEDS 300u
#define STEPS 800u
#define KEYS 8u
#define VALUES_MAX 1024u
#define PROCESSES_MAX 3u
#define WRITERS 3u
#define REMOVERS 2u
#define YOUNG_MS (MC_DEPART_MS + 500u)

enum value_state { PUTTING, PUT, UNKNOWN }; /* UNKNOWN: it may have been put, or may still be */
struct value {
    enum value_state state;
    bool dead;  /* nobody may see it any more */
    bool unmet; /* but the master that said so had not met an owner that has it */
    bool hides; /* one before it may be back without it: the page of ordering, "What is still open" */
    bool kept;  /* nothing has happened since it was put that may lose it */
    uint8_t key;
    uint64_t length, ended; /* ended: when the put was over, in steps */
};
struct writer {
    uint64_t connection;
    bool open, is_revoked, is_over_unmet; /* over_unmet: an owner that the master has not met has a value of its key */
    uint32_t value, place_count;
    struct mc_wire_place places[2];
    bool ended[2];
};
struct remover {
    uint64_t connection, began;
    bool open, is_count;
    uint32_t keys; /* a bit for each that goes */
};
struct model {
    struct world world;
    struct mc_core_config config;
    uint64_t random, next_id, epoch, step;
    unsigned seed, process_count;
    bool is_told, is_calm;
    struct process processes[PROCESSES_MAX];
    struct writer writers[WRITERS];
    struct remover removers[REMOVERS];
    uint64_t reader, seen_epoch, seen_ms, evicted;
    uint32_t value_count;
    struct value values[VALUES_MAX];
};

static struct model the_model;

/* ---- what the owners need of it ---- */

static const char *model_key(unsigned key)
{
    static const char *const keys[KEYS] = {"a0", "a1", "a2", "a3", "b0", "b1", "b2", "b3"};
    return keys[key];
}
static uint64_t model_random(struct model *model, uint64_t below)
{
    model->random ^= model->random << 13;
    model->random ^= model->random >> 7;
    model->random ^= model->random << 17;
    return below == 0 ? 0 : (model->random * 0x2545f4914f6cdd1dull >> 33) % below;
}
static bool chance(struct model *model, unsigned of)
{
    return model_random(model, of) == 0;
}
static void model_wrong(struct model *model, const char *what)
{
    fail_msg("seed %u, step %u: %s", model->seed, (unsigned)model->step, what);
}
static void model_trace(struct model *model, const char *format, ...)
{
    va_list arguments;
    if (!model->is_told)
        return;
    printf("%u %u: ", (unsigned)model->step, (unsigned)(model->world.now % 1000000));
    va_start(arguments, format);
    (void)vprintf(format, arguments);
    va_end(arguments);
    printf("\n");
}
static struct world *model_world(struct model *model)
{
    return &model->world;
}
/* Something happens that may cost any value. */
static void model_lossy(struct model *model)
{
    for (uint32_t i = 0; i < model->value_count; i++)
        model->values[i].kept = false;
}
static uint64_t model_next_id(struct model *model)
{
    return ++model->next_id;
}
static bool model_is_calm(const struct model *model)
{
    return model->is_calm;
}
/* All nodes tell each other: the epoch of the last master that they have heard, and how long ago it may have acted. */
static uint64_t model_seen(const struct model *model, uint64_t *age_ms)
{
    *age_ms = model->world.now - model->seen_ms;
    return model->seen_epoch;
}
static void hear(struct model *model)
{
    if (!mc_core_acts(model->world.core))
        return;
    model->seen_epoch = model->world.core->epoch;
    model->seen_ms = model->world.now;
}

/* What is left, when something is. */
static void tell_nodes(struct model *model)
{
    const struct mc_core *core = model->world.core;
    for (uint32_t index = 1; index < core->segment_top; index++) {
        const struct mc_segment *segment = core->segments[index];
        if (segment == NULL)
            continue;
        model_trace(model, "segment %u, kind %u, state %u, owner %u", segment->number, segment->kind, segment->state,
                    segment->owner != NULL);
        for (uint32_t slot = 0; slot < segment->space.node_fresh; slot++) {
            const struct mc_node *node = mc_segment_node(segment, slot);
            if (node->state > MC_NODE_FREE)
                model_trace(model, "  slot %u, state %u, generation %llx, seen %u, version %llx", slot,
                            (unsigned)node->state, (unsigned long long)mc_node_generation(core, node),
                            (unsigned)node->seen, (unsigned long long)mc_node_version(core, node));
        }
    }
}

/* ---- what may be seen ---- */

static void value_dies(struct model *model, uint32_t value, const char *why)
{
    if (model->values[value].dead)
        return;
    model->values[value].dead = true;
    model_trace(model, "value %u of %s is %s", value, model_key(model->values[value].key), why);
}
/* It counts: no other that was put before it does. */
static void value_counts(struct model *model, uint32_t value)
{
    const struct value *counts = &model->values[value];
    model->values[value].state = PUT;
    for (uint32_t i = 0; i < model->value_count; i++)
        if (i != value && model->values[i].key == counts->key && model->values[i].state == PUT &&
            !model->values[i].hides)
            value_dies(model, i, "replaced");
}
static bool anything_lives(const struct model *model, unsigned key)
{
    for (uint32_t i = 0; i < model->value_count; i++)
        if (model->values[i].key == key && !model->values[i].dead)
            return true;
    return false;
}
static bool is_met(const struct model *model, const struct medium *medium)
{
    const struct mc_segment *segment = mc_segment_find(model->world.core, medium->number);
    return medium->mounted && segment != NULL && !segment->recovering;
}

/* Those of these keys whose puts were over when the removal began are gone for good. */
static void removed(struct model *model, const struct remover *remover)
{
    for (uint32_t i = 0; i < model->value_count; i++) {
        struct value *value = &model->values[i];
        if ((remover->keys >> value->key & 1) != 0 && value->ended != 0 && value->ended <= remover->began)
            value_dies(model, i, "removed");
    }
}
/* Who removes or replaces some of these keys just now may have done so: what is put there need not stay. */
static void may_go(struct model *model, uint32_t keys)
{
    for (uint32_t i = 0; i < model->value_count; i++)
        if ((keys >> model->values[i].key & 1) != 0)
            model->values[i].kept = false;
}
static bool may_be_removed(const struct model *model, unsigned key)
{
    for (unsigned i = 0; i < REMOVERS; i++)
        if (model->removers[i].open && (model->removers[i].keys >> key & 1) != 0)
            return true;
    return false;
}

static struct process *process_of(struct model *model, uint32_t segment)
{
    for (unsigned i = 0; i < model->process_count; i++)
        if (model->processes[i].alive && model->processes[i].media[MEMORY].number == segment)
            return &model->processes[i];
    return NULL;
}

/* How many places with another value of its key owners have; unmet: those alone that the master has not taken in. */
static unsigned lies_elsewhere(const struct model *model, uint32_t value, bool unmet)
{
    unsigned count = 0;
    for (unsigned i = 0; i < model->process_count; i++)
        for (unsigned which = 0; which < MEDIA; which++)
            for (uint32_t slot = 0; slot < KEPT_MAX; slot++) {
                const struct medium *medium = &model->processes[i].media[which];
                const struct kept *kept = &medium->slots[slot];
                count += kept->live && kept->value != value && kept->key == model->values[value].key &&
                         !(unmet && is_met(model, medium));
            }
    return count;
}
static bool is_held(const struct model *model, uint32_t value)
{
    for (unsigned i = 0; i < model->process_count; i++)
        for (uint32_t slot = 0; slot < KEPT_MAX; slot++) {
            const struct kept *kept = &model->processes[i].media[MEMORY].slots[slot];
            if (kept->live && kept->value == value)
                return true;
        }
    return false;
}

static void value_is_read(struct model *model, unsigned key, const struct mc_wire_found *found,
                          const struct mc_wire_place *place)
{
    struct process *process = process_of(model, place->segment);
    if (process == NULL || process->epoch != model->world.core->epoch)
        return;
    const struct kept *kept = &process->media[MEMORY].slots[place->slot];
    if (kept->generation < place->generation)
        model_wrong(model, "a place is offered that never held anything");
    if (!kept->live || kept->generation != place->generation)
        return; /* cleared meanwhile */
    model_trace(model, "value %u of %s is read", kept->value, model_key(key));
    if (kept->key != key || found->length != kept->length)
        model_wrong(model, "a place is offered that holds something else");
    if (model->values[kept->value].dead)
        model_wrong(model, "a value is back");
    /* What two segments bring to a new master is not one yet: the winner is offered, the loser still to be cleared. */
    if (model->values[kept->value].hides)
        model->values[kept->value].state = PUT;
    else if (model->values[kept->value].state == PUT || lies_elsewhere(model, kept->value, false) == 0)
        value_counts(model, kept->value);
}

/* The code; 0 also when nothing was found to be read where it was said to be. */
static int32_t look(struct model *model, unsigned key)
{
    struct mc_wire_found found;
    struct mc_wire_place place;
    bool exists = world_exist(&model->world, model->reader, model_key(key)) != 0;
    if (exists && !anything_lives(model, key))
        model_wrong(model, "what is no more is said to exist");
    int32_t code = world_get(&model->world, model->reader, model_key(key), 0, &found, &place);
    hear(model);
    model_trace(model, "get %s: %d, %s", model_key(key), code, exists ? "exists" : "absent");
    if (code == MC_ERR_PUT_IN_PROGRESS && exists && !anything_lives(model, key))
        model_wrong(model, "what is no more is loaded");
    if (code == 0)
        value_is_read(model, key, &found, &place);
    return code;
}

/* Whatever is said of it, it is there or not. */
static void hint(struct model *model)
{
    unsigned key = (unsigned)model_random(model, KEYS);
    unsigned kind = MC_HINT_DROP + (unsigned)model_random(model, MC_HINT_PREFETCH);
    int32_t code = world_hint(&model->world, model->reader, kind, model_key(key), 0);
    hear(model);
    model_trace(model, "hint %u of %s: %d", kind, model_key(key), code);
    if (code >= 0 && !anything_lives(model, key))
        model_wrong(model, "a hint finds what is no more");
}

/* ---- clients ---- */

static void connect_clients(struct model *model)
{
    struct world *world = &model->world;
    uint64_t age_ms = 0, seen = model_seen(model, &age_ms);
    model->reader = join_seen(world, MC_ROLE_CALL, CLIENT, FIRST_LIFE, seen, age_ms);
    for (unsigned i = 0; i < WRITERS; i++)
        model->writers[i] =
            (struct writer){.connection = join_seen(world, MC_ROLE_CALL, CLIENT, FIRST_LIFE, seen, age_ms)};
    for (unsigned i = 0; i < REMOVERS; i++)
        model->removers[i] =
            (struct remover){.connection = join_seen(world, MC_ROLE_CALL, CLIENT, FIRST_LIFE, seen, age_ms)};
}

/* A value that is put now may take the key of one in a segment that this master has not met (the ordering page, "What
 * is still open"): puts wait for all who may have something, or for its age. */
static bool may_put(const struct model *model)
{
    const struct mc_core *core = model->world.core;
    if (mc_core_life_ms(core) >= YOUNG_MS)
        return true;
    for (unsigned i = 0; i < model->process_count; i++)
        if (!model->processes[i].joined || !model->processes[i].media[MEMORY].mounted ||
            !model->processes[i].media[DISK].mounted)
            return false;
    return mc_link_alone(&core->recovering);
}

static void begin_put(struct model *model, struct writer *writer)
{
    static struct world_grants grants;
    unsigned key = (unsigned)model_random(model, KEYS);
    struct world_wish wish = {.replica_count = (uint8_t)(1 + chance(model, 4)),
                              .flags = chance(model, 2) ? MC_PUT_REPLACE : 0};
    uint64_t length = 1000 + model_random(model, chance(model, 12) ? 60000 : 3500);
    struct world_item item = {mc_span_string(model_key(key)), length};
    if (writer->open || !may_put(model) || model->value_count == VALUES_MAX)
        return;
    world_put_start(&model->world, writer->connection, PUT_1, &item, 1, &wish, &grants);
    hear(model);
    if (grants.items[0].code != 0) {
        model_trace(model, "put %s is refused: %d", model_key(key), grants.items[0].code);
        return;
    }
    may_go(model, 1u << key);
    writer->value = model->value_count++;
    model->values[writer->value] = (struct value){.key = (uint8_t)key, .length = length};
    writer->open = true;
    writer->is_revoked = false;
    writer->is_over_unmet = lies_elsewhere(model, writer->value, true) > 0;
    writer->place_count = grants.place_count;
    for (uint32_t i = 0; i < grants.place_count; i++) {
        writer->places[i] = grants.places[i];
        writer->ended[i] = false;
    }
    model_trace(model, "put value %u of %s%s: %u places, %u %u %llx", writer->value, model_key(key),
                wish.flags != 0 ? " anew" : "", grants.place_count, grants.places[0].segment, grants.places[0].slot,
                (unsigned long long)grants.places[0].generation);
}

/* The writer's bytes and its COMMIT have come to the owner. */
static void commit(struct model *model, const struct writer *writer, const struct mc_wire_place *place)
{
    struct process *process = process_of(model, place->segment);
    if (process == NULL || process->epoch != place->generation >> MC_EPOCH_SHIFT)
        return;
    struct kept *kept = &process->media[MEMORY].slots[place->slot];
    if (kept->generation >= place->generation)
        return;
    *kept = (struct kept){.generation = place->generation,
                          .version = place->generation - place->replica,
                          .offset = place->offset,
                          .length = model->values[writer->value].length,
                          .value = writer->value,
                          .key = model->values[writer->value].key,
                          .replica = place->replica,
                          .live = true};
    say_slot(process, MC_MESSAGE_LIVE, MEMORY, place->slot, place->generation, 0);
}

static void end_place(struct model *model, struct writer *writer)
{
    uint32_t at = (uint32_t)model_random(model, writer->place_count);
    if (!writer->open)
        return;
    if (!writer->ended[at] && !chance(model, 10)) {
        writer->ended[at] = true;
        model_trace(model, "value %u is written", writer->value);
        commit(model, writer, &writer->places[at]);
    } else if (chance(model, 4)) { /* it failed, or nobody says how it ended */
        writer->ended[at] = true;
        writer->is_revoked = true;
        model_trace(model, "value %u is revoked", writer->value);
        world_revoke(&model->world, writer->connection, &writer->places[at]);
    }
}

static void put_ends(struct model *model, struct writer *writer, int32_t code)
{
    struct value *value = &model->values[writer->value];
    model_trace(model, "value %u of %s ends: %d", writer->value, model_key(value->key), code);
    writer->open = false;
    value->ended = model->step;
    if (value->state == PUTTING)
        value->state = UNKNOWN;
    if (code != 0)
        return;
    if (value->dead)
        model_wrong(model, "a put ends well whose value was seen to be no more");
    value->hides = writer->is_over_unmet;
    if (value->hides)
        value->state = PUT;
    else
        value_counts(model, writer->value);
    /* Not when its owner has just ended, nor when the place that is left is that of such an owner. */
    value->kept = !may_be_removed(model, value->key) && !writer->is_revoked && is_held(model, writer->value);
}

static void begin_removal(struct model *model, struct remover *remover)
{
    static const char *const patterns[] = {NULL, "^a", "1$"};
    static const uint32_t matched[] = {0xff, 0x0f, 0x22};
    unsigned key = (unsigned)model_random(model, KEYS), pattern = (unsigned)model_random(model, 3);
    const char *name = model_key(key);
    if (remover->open)
        return;
    remover->open = true;
    remover->began = model->step;
    remover->is_count = remover != &model->removers[0];
    remover->keys = remover->is_count ? matched[pattern] : 1u << key;
    may_go(model, remover->keys);
    model_trace(model, "remove %s", remover->is_count ? pattern == 0 ? "all" : patterns[pattern] : name);
    if (remover->is_count)
        world_remove_all_send(&model->world, remover->connection, patterns[pattern], true);
    else
        world_remove_send(&model->world, remover->connection, &name, 1, true);
}

static void hear_removal(struct model *model, struct remover *remover)
{
    struct mc_frame answer = world_receive(&model->world, remover->connection);
    struct mc_reader reader = mc_reader(answer.body.data, answer.body.length);
    int32_t code = 0;
    if (answer.type == 0)
        return;
    if (answer.type == MC_MESSAGE_FAILED) {
        struct mc_wire_failed failed;
        mc_wire_failed_read(&reader, &failed);
        code = failed.code;
    } else if (answer.type == MC_MESSAGE_COUNT_REPLY) {
        struct mc_wire_count_reply reply;
        mc_wire_count_reply_read(&reader, &reply);
        code = reply.code;
    } else {
        struct mc_wire_none none;
        struct mc_wire_code one;
        mc_wire_none_read(&reader, &none);
        assert_int_equal(mc_list_read(&reader), 1);
        mc_wire_code_read(&reader, &one);
        code = one.code;
    }
    hear(model);
    model_trace(model, "removed: %d", code);
    remover->open = false;
    if (code == 0 || code == MC_ERR_OBJECT_NOT_FOUND)
        removed(model, remover);
}

/* Clients read what they are told as soon as it comes. */
static void clients_hear(struct model *model)
{
    for (unsigned i = 0; i < WRITERS; i++) {
        struct writer *writer = &model->writers[i];
        if (!writer->open || model->world.connections[writer->connection].out.length == 0)
            continue;
        int32_t code = world_put_done(&model->world, writer->connection, PUT_1);
        hear(model);
        put_ends(model, writer, code);
    }
    for (unsigned i = 0; i < REMOVERS; i++)
        if (model->removers[i].open)
            hear_removal(model, &model->removers[i]);
}

/* ---- masters and time ---- */

static void next_master(struct model *model)
{
    struct world *world = &model->world;
    model_trace(model, "the master ends");
    for (unsigned i = 0; i < WRITERS; i++) {
        if (model->writers[i].open && model->writers[i].place_count > 0 && chance(model, 2))
            commit(model, &model->writers[i], &model->writers[i].places[0]);
        if (model->writers[i].open)
            put_ends(model, &model->writers[i], MC_ERR_RPC_FAIL);
    }
    for (unsigned i = 0; i < model->process_count; i++)
        process_breaks(model, &model->processes[i]);
    master_stop(world);
    world->now += 1 + model_random(model, 500);
    for (unsigned i = 0; i < model->process_count; i++)
        while (model->processes[i].task_count > 0 && !chance(model, 3))
            process_works(model, &model->processes[i]);
    master_start(world, ++model->epoch, &model->config);
    model_lossy(model);
    model->evicted = 0;
    connect_clients(model);
}

static bool is_cut(const struct model *model, const struct process *process)
{
    return model->world.connections[process->owner].closed || model->world.connections[process->heartbeat].closed;
}

static void pass(struct model *model, uint64_t ms)
{
    struct world *world = &model->world;
    for (uint64_t end = world->now + ms; world->now < end;) {
        uint64_t left = end - world->now;
        world_pass(world, left < 200 ? left : 200);
        for (unsigned i = 0; i < model->process_count; i++) {
            struct process *process = &model->processes[i];
            if (process->mute || !process->joined)
                model_lossy(model); /* it may be given up */
            if (process->joined && !process->mute && is_cut(model, process))
                process_breaks(model, process);
            if (process->joined && !process->mute && world->now - process->beat_ms >= 700)
                process_beats(model, process);
        }
        hear(model);
    }
}

static void pass_some(struct model *model)
{
    uint64_t most = chance(model, 40) ? 30000 : chance(model, 6) ? 4000 : 150;
    uint64_t ms = 1 + model_random(model, most);
    model_trace(model, "%u ms pass", (unsigned)ms);
    if (ms >= model->config.client_ttl_ms / 2)
        model_lossy(model);
    pass(model, ms);
}

/* ---- a step ---- */

static void process_event(struct model *model, struct process *process)
{
    switch (model_random(model, 24)) {
    case 0:
        process_breaks(model, process);
        break;
    case 1:
        if (chance(model, 2))
            process_ends(model, process);
        break;
    case 2:
        process->mute = !process->mute;
        model_trace(model, "node %u is %s", (unsigned)process->node, process->mute ? "mute" : "mute no more");
        model_lossy(model);
        break;
    case 3:
        if (chance(model, 4))
            process_unmounts_disk(model, process);
        break;
    case 4:
    case 5:
        disk_drops(model, process);
        break;
    default:
        if (!process->alive)
            process_begins(model, process);
        else if (!process->joined)
            process_joins(model, process);
    }
}

static void deliver(struct model *model, struct process *process)
{
    switch (model_random(model, 3)) {
    case 0:
        if (process->joined && !process->mute && !is_cut(model, process))
            (void)process_hears(model, process);
        break;
    case 1:
        if (process->task_count > 0)
            process_works(model, process);
        break;
    default:
        if (process->joined && !process->mute && !is_cut(model, process) && process->answer_count > 0)
            process_says(model, process);
    }
}

static void any_step(struct model *model)
{
    struct process *process = &model->processes[model_random(model, model->process_count)];
    switch (model_random(model, 20)) {
    case 0:
    case 1:
        begin_put(model, &model->writers[model_random(model, WRITERS)]);
        break;
    case 2:
    case 3:
    case 4:
        end_place(model, &model->writers[model_random(model, WRITERS)]);
        break;
    case 5:
        hint(model);
        break;
    case 6:
        (void)look(model, (unsigned)model_random(model, KEYS));
        break;
    case 7:
        if (chance(model, 2))
            begin_removal(model, &model->removers[chance(model, 6)]);
        break;
    case 8:
        pass_some(model);
        break;
    case 9:
        if (chance(model, 3))
            process_event(model, process);
        else if (process->alive && !process->joined)
            process_joins(model, process);
        break;
    case 10:
        if (chance(model, 30))
            next_master(model);
        break;
    default:
        deliver(model, process);
    }
}

/* An eviction may cost what lies in memory alone. */
static void note_evictions(struct model *model)
{
    uint64_t evicted = model->world.core->statistics.evicted_bytes;
    if (evicted != model->evicted)
        for (uint32_t i = 0; i < model->value_count; i++) {
            const struct mc_object *object =
                mc_object_find(model->world.core, mc_span_string(model_key(model->values[i].key)));
            if (object == NULL || !object->visible || mc_object_on_disk(model->world.core, object).segment == NULL)
                model->values[i].kept = false;
        }
    model->evicted = evicted;
}

static void check_step(struct model *model)
{
    clients_hear(model);
    note_evictions(model);
    const char *wrong = mc_core_check(model->world.core);
    if (wrong != NULL)
        model_wrong(model, wrong);
}

/* ---- at rest ---- */

static bool is_quiet(const struct model *model)
{
    for (unsigned i = 0; i < model->process_count; i++) {
        const struct process *process = &model->processes[i];
        if (!process->joined || process->answer_count > 0 || process->task_count > 0 ||
            model->world.connections[process->owner].out.length > 0)
            return false;
    }
    for (unsigned i = 0; i < WRITERS; i++)
        if (model->writers[i].open)
            return false;
    return !model->removers[0].open && !model->removers[1].open && mc_link_alone(&model->world.core->recovering) &&
           mc_link_alone(&model->world.core->jobs) && mc_link_alone(&model->world.core->dirty);
}

static void go_on(struct model *model)
{
    for (unsigned i = 0; i < model->process_count; i++) {
        struct process *process = &model->processes[i];
        process->mute = false;
        if (process->joined && is_cut(model, process))
            process_breaks(model, process);
        process_begins(model, process);
        process_joins(model, process);
        while (process_hears(model, process) != 0)
            continue;
        while (process->task_count > 0)
            process_works(model, process);
        for (unsigned left = process->answer_count; left > 0 && process->answer_count > 0 && !is_cut(model, process);
             left--)
            process_says(model, process);
    }
    for (unsigned i = 0; i < WRITERS; i++)
        for (unsigned tries = 0; tries < 4 && model->writers[i].open; tries++)
            end_place(model, &model->writers[i]);
    check_step(model);
}

/* All is said and done. */
static void rest(struct model *model)
{
    model->is_calm = true;
    model_trace(model, "rest");
    go_on(model);
    pass(model, model->config.client_ttl_ms + 500); /* who has ended is given up */
    for (unsigned round = 0; round < 200 && (round < 30 || !is_quiet(model)); round++) {
        go_on(model);
        pass(model, 100);
    }
    check_step(model);
    tell_nodes(model);
    if (!is_quiet(model))
        model_wrong(model, "it does not come to rest");
    if (model->world.core->moves.count > 0)
        model_wrong(model, "a move does not end");
}

/* Master and owners agree about what lies where. */
static void expect_agreement(struct model *model, struct process *process, unsigned which)
{
    const struct mc_core *core = model->world.core;
    const struct medium *medium = &process->media[which];
    const struct mc_segment *segment = mc_segment_find(core, medium->number);
    if (segment == NULL || segment->state != MC_SEGMENT_OK)
        model_wrong(model, "a segment is not offered at rest");
    for (uint32_t slot = 0; slot < KEPT_MAX; slot++) {
        const struct kept *kept = &medium->slots[slot];
        const struct mc_node *node = mc_space_node_checked(&segment->space, slot);
        bool is_live = node != NULL && node->state == MC_NODE_LIVE;
        if (node != NULL && (node->state == MC_NODE_CLEARING || node->state == MC_NODE_QUARANTINE ||
                             node->state == MC_NODE_MOVING || node->state == MC_NODE_GRANTED))
            model_wrong(model, "a node is left over");
        if (is_live != kept->live)
            model_wrong(model,
                        is_live ? "the master knows what is not there" : "the master does not know what is there");
        if (!is_live)
            continue;
        if (mc_node_generation(core, node) != kept->generation || mc_node_version(core, node) != kept->version)
            model_wrong(model, "another generation lies there");
        if (!mc_span_equal(mc_object_key(mc_node_object(node)), mc_span_string(model_key(kept->key))) ||
            mc_node_object(node)->length != kept->length)
            model_wrong(model, "another object lies there");
        model_trace(model, "value %u of %s lies at node %u, %u %u, generation %llx", kept->value, model_key(kept->key),
                    (unsigned)process->node, medium->number, slot, (unsigned long long)kept->generation);
        if (model->values[kept->value].dead)
            model_wrong(model, "a value that is no more lies there at rest");
    }
}

static void expect_found(struct model *model, unsigned key)
{
    bool exists = world_exist(&model->world, model->reader, model_key(key)) != 0;
    for (uint32_t i = 0; i < model->value_count; i++)
        if (model->values[i].key == key && model->values[i].kept && !model->values[i].dead && !exists)
            model_wrong(model, "a value is lost");
    int32_t code = look(model, key);
    for (unsigned round = 0; round < 60 && exists && code != 0; round++) {
        go_on(model);
        pass(model, 100);
        code = look(model, key);
    }
    if ((code == 0) != exists)
        model_wrong(model, exists ? "what exists cannot be had" : "what does not exist can be had");
}

static void expect_nothing(struct model *model)
{
    struct remover *remover = &model->removers[1];
    struct mc_core_statistics statistics;
    for (unsigned round = 0; round < 20; round++) {
        world_remove_all_send(&model->world, remover->connection, NULL, true);
        *remover = (struct remover){
            .connection = remover->connection, .open = true, .is_count = true, .began = ++model->step, .keys = 0xff};
        rest(model);
        bool is_done = true;
        for (uint32_t i = 0; i < model->value_count; i++)
            is_done &= model->values[i].dead;
        if (is_done)
            break;
    }
    mc_core_statistics(model->world.core, &statistics);
    if (statistics.objects > 0 || statistics.used > 0 || statistics.disk_used > 0 || statistics.clearing_bytes > 0 ||
        statistics.quarantine_bytes > 0)
        model_wrong(model, "something is left over");
    for (unsigned i = 0; i < model->process_count; i++)
        for (unsigned which = 0; which < MEDIA; which++)
            for (uint32_t slot = 0; slot < KEPT_MAX; slot++)
                if (model->processes[i].media[which].slots[slot].live)
                    model_wrong(model, "an owner has what was removed");
}

/* ---- histories ---- */

static void model_begin(struct model *model, unsigned seed)
{
    *model = (struct model){.seed = seed, .random = seed * 0x9e3779b97f4a7c15ull + 1, .epoch = FIRST_EPOCH};
    model->is_told = getenv("MC_TEST_SEED") != NULL;
    for (unsigned i = 0; i < 10; i++)
        (void)model_random(model, 1);
    model->config = mc_core_config_default();
    static const char *const policies[] = {"s3fifo", "clock", "lru"};
    model->config.offload = seed % 2 == 0 ? MC_OFFLOAD_ON_EVICT : MC_OFFLOAD_ON_PUT;
    model->config.policy = mc_eviction_find(policies[seed / 2 % 3]);
    model->config.offload_force_evict = seed % 5 == 0;
    model->config.promotion_on_hit = seed % 3 == 0;
    model->config.client_ttl_ms = 6000;
    model->config.disk_ttl_ms = 15000;
    model->config.offload_queue_limit = 4;
    world_start(&model->world, FIRST_EPOCH, &model->config);
    model->seen_ms = model->world.now;
    model->process_count = 1 + (unsigned)model_random(model, PROCESSES_MAX);
    connect_clients(model);
    for (unsigned i = 0; i < model->process_count; i++) {
        struct process *process = &model->processes[i];
        *process = (struct process){.node = 100 + i, .incarnation = FIRST_LIFE, .alive = true};
        for (unsigned which = 0; which < MEDIA; which++)
            process->media[which].id = model_next_id(model);
        process_joins(model, process);
    }
}

static void history(unsigned seed)
{
    struct model *model = &the_model;
    model_begin(model, seed);
    for (model->step = 1; model->step <= STEPS; model->step++) {
        any_step(model);
        check_step(model);
    }
    rest(model);
    for (unsigned i = 0; i < model->process_count; i++)
        for (unsigned which = 0; which < MEDIA; which++)
            expect_agreement(model, &model->processes[i], which);
    for (unsigned key = 0; key < KEYS; key++)
        expect_found(model, key);
    expect_nothing(model);
    world_close_all(&model->world);
}

/* An assertion of the core says which history has failed it. */
static void say_seed(int signal_number)
{
    char text[64];
    int length = snprintf(text, sizeof(text), "seed %u, step %u\n", the_model.seed, (unsigned)the_model.step);
    (void)fflush(stdout);
    (void)!write(STDERR_FILENO, text, (size_t)length);
    (void)signal(signal_number, SIG_DFL);
    (void)raise(signal_number);
}

static void test_histories(void **state)
{
    const char *one = getenv("MC_TEST_SEED"), *many = getenv("MC_TEST_SEEDS"), *from = getenv("MC_TEST_FROM");
    unsigned first = from == NULL ? 1 : (unsigned)strtoul(from, NULL, 10);
    unsigned count = many == NULL ? SEEDS : (unsigned)strtoul(many, NULL, 10);
    (void)state;
    (void)signal(SIGABRT, say_seed);
    if (one != NULL)
        history((unsigned)strtoul(one, NULL, 10));
    for (unsigned seed = first; one == NULL && seed < first + count; seed++)
        history(seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_histories),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
