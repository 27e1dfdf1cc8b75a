/* Sessions of clients: objects that are read piece by piece, and objects that are put together from pieces. */
#include "kept.h"
#include "oracle.h"
#include "worker.h"

#include "members.h"

#include <stdio.h>
#include <string.h>

/* Different keys; how many. */
static uint32_t keys_draw(const struct sim_worker *worker, uint32_t keys[SIM_BATCH_MAX])
{
    uint32_t every = sim_plan->has_quotas ? sim_plan->tenants : 1;
    uint32_t all = (sim_plan->keys - worker->tenant + every - 1) / every; /* of its tenant's */
    uint32_t most = all < SIM_BATCH_MAX ? all : SIM_BATCH_MAX;
    uint32_t count = 1 + sim_below(SIM_SESSION, most), first = sim_below(SIM_SESSION, all);
    for (uint32_t i = 0; i < count; i++)
        keys[i] = worker->tenant + every * ((first + i) % all);
    return count;
}

static void think(void)
{
    static const uint32_t most_us[] = {100, 20000, 1000000, 4000000};
    if (sim_once_in(SIM_SESSION, 2))
        sim_sleep_ns(sim_below(SIM_SESSION, most_us[sim_below(SIM_SESSION, 4)]) * 1000ull);
}

/* ---- read piece by piece ---- */

static void read_pieces(struct sim_worker *worker, uint32_t key)
{
    struct mc_range_item items[SIM_BATCH_MAX];
    struct oracle_piece pieces[SIM_BATCH_MAX];
    uint32_t count = 1 + sim_below(SIM_SESSION, SIM_BATCH_MAX);
    for (uint32_t i = 0; i < count; i++)
        items[i] = (struct mc_range_item){.key = sim_key_name(key),
                                          .source_offset = sim_below(SIM_SESSION, sim_plan->value_max / 2),
                                          .size = 1 + sim_below(SIM_SESSION, sim_plan->value_max / 4),
                                          .target = worker->buffers[i]};
    struct oracle_kept kept = oracle_session_before(worker->process->place, key);
    struct oracle_call call = oracle_begin();
    (void)mc_store_get_session_ranges(worker->store, items, count);
    oracle_end(&call, sim_plan->timeout_ms, "get_session_ranges");
    for (uint32_t i = 0; i < count; i++) {
        int64_t result = items[i].result;
        sim_say("  range of key %u in a session: %s", key, result > 0 ? "found" : mc_error_name((int)result));
        pieces[i] = (struct oracle_piece){worker->buffers[i], items[i].source_offset, result > 0 ? items[i].size : 0};
        sim_note((uint64_t)result << 8 | 9);
        oracle_session_read(worker->process->place, key, &kept, items[i].source_offset + items[i].size, result);
    }
    oracle_got_pieces(&call, key, pieces, count);
}

static void get_session(struct sim_worker *worker)
{
    uint32_t keys[SIM_BATCH_MAX], count = keys_draw(worker, keys), place = worker->process->place;
    struct mc_bytes names[SIM_BATCH_MAX];
    struct oracle_kept before[SIM_BATCH_MAX];
    int results[SIM_BATCH_MAX];
    struct oracle_call call = oracle_begin();
    for (uint32_t i = 0; i < count; i++) {
        names[i] = sim_key_name(keys[i]);
        oracle_session_ends(place, keys[i]);
        before[i] = oracle_kept_now(keys[i]);
    }
    (void)mc_store_get_session_start(worker->store, names, count, results);
    oracle_end(&call, sim_plan->timeout_ms, "get_session_start");
    for (uint32_t i = 0; i < count; i++) {
        sim_say("session of key %u: %s", keys[i], mc_error_name(results[i]));
        sim_note((uint64_t)(uint32_t)results[i] << 8 | 9);
        if (results[i] == 0)
            oracle_session_begins(&call, place, keys[i], &before[i]);
        else
            oracle_got(&call, keys[i], NULL, results[i]);
    }
    for (uint32_t reads = 1 + sim_below(SIM_SESSION, 6); reads > 0 && !sim_cluster.is_calm; reads--) {
        think();
        uint32_t chosen = sim_below(SIM_SESSION, count);
        if (results[chosen] == 0)
            read_pieces(worker, keys[chosen]);
    }
    if (sim_once_in(SIM_SESSION, 4))
        return; /* it forgets to end them */
    for (uint32_t i = 0; i < count; i++)
        oracle_session_ends(place, keys[i]);
    (void)mc_store_get_session_end(worker->store, names, count);
}

/* ---- put together from pieces ---- */

/* All of it, in pieces of which some come twice, the last one first. */
static void write_pieces(struct sim_worker *worker, uint32_t key, const uint8_t *bytes, uint32_t length)
{
    uint32_t end = length;
    while (end > 0) {
        uint32_t size = 1 + sim_below(SIM_SESSION, end), extra = sim_below(SIM_SESSION, length - end + 1);
        struct mc_put_range_item item = {
            .key = sim_key_name(key), .target_offset = end - size, .size = size + extra, .source = bytes + end - size};
        end -= size;
        (void)mc_store_put_session_ranges(worker->store, &item, 1);
        if (item.result != (int64_t)item.size && !sim_has_wanted(worker->process->place))
            sim_fail("session: %llu bytes of key %u are not taken: %s", (unsigned long long)item.size, key,
                     mc_error_name((int)item.result));
        if (sim_once_in(SIM_SESSION, 8))
            think();
    }
}

static void put_session(struct sim_worker *worker)
{
    uint32_t keys[SIM_BATCH_MAX], count = keys_draw(worker, keys), numbers[SIM_BATCH_MAX], begun = 0;
    struct mc_bytes names[SIM_BATCH_MAX];
    const uint8_t *bytes[SIM_BATCH_MAX];
    uint64_t sizes[SIM_BATCH_MAX], groups[SIM_BATCH_MAX];
    int results[SIM_BATCH_MAX];
    struct mc_replicate_config config = {.replica_count = 1 + sim_below(SIM_SESSION, sim_plan->replicas_max)};
    sim_wishes_draw(&config, keys, count, groups);
    for (uint32_t i = 0; i < count; i++) {
        names[i] = sim_key_name(keys[i]);
        sizes[i] = sim_length_draw(SIM_SESSION);
        numbers[i] = oracle_put_begin(keys[i], (uint32_t)sizes[i], false, &bytes[i]);
        oracle_put_hide(numbers[i]);
        oracle_put_wishes(numbers[i], &config);
    }
    struct oracle_call call = oracle_begin();
    (void)mc_store_put_session_start(worker->store, names, sizes, count, &config, results);
    oracle_end(&call, sim_plan->timeout_ms, "put_session_start");
    for (uint32_t i = 0; i < count; i++) {
        sim_say("put %u of key %u, %llu bytes, in a session: %s", numbers[i], keys[i], (unsigned long long)sizes[i],
                mc_error_name(results[i]));
        if (results[i] == MC_ERR_OBJECT_ALREADY_EXISTS)
            oracle_exists(&call, keys[i], 1);
        if (results[i] != 0)
            continue; /* the other thread may have a session of that key */
        write_pieces(worker, keys[i], bytes[i], (uint32_t)sizes[i]);
        keys[begun] = keys[i];
        names[begun] = names[i];
        numbers[begun++] = numbers[i];
    }
    bool is_revoked = sim_once_in(SIM_SESSION, 4);
    for (uint32_t i = 0; i < begun && !is_revoked; i++)
        oracle_put_show(numbers[i]);
    call = oracle_begin();
    if (is_revoked)
        (void)mc_store_put_session_revoke(worker->store, names, begun, results);
    else
        (void)mc_store_put_session_end(worker->store, names, begun, results);
    oracle_end(&call, sim_plan->timeout_ms + SIM_PUT_LATE_MS, "put_session_end");
    for (uint32_t i = 0; i < begun; i++) {
        sim_say("  put %u: %s%s", numbers[i], is_revoked ? "revoked, " : "", mc_error_name(results[i]));
        sim_note((uint64_t)(uint32_t)results[i] << 8 | 10);
        if (!is_revoked)
            oracle_put_end(numbers[i], results[i]);
    }
}

/* Get sessions are one thread's: to start or to end one is to do so for all threads of a store. */
void sim_session_do(struct sim_worker *worker)
{
    if (worker->number == 0 && sim_once_in(SIM_SESSION, 2))
        get_session(worker);
    else
        put_session(worker);
}
