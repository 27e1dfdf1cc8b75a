/* One run: begins the world anew, starts the processes, lets happen what happens, and brings all to rest. */
#include "cluster.h"
#include "disk.h"
#include "disk_watch.h"
#include "held.h"
#include "jobs.h"
#include "kept.h"
#include "members.h"
#include "oracle.h"
#include "parts.h"
#include "placed.h"
#include "states.h"
#include "told.h"
#include "watch.h"

#include "store/core/core.h"

#include <string.h>

#define CALM_MS 90000u /* after the last fault everything must have settled by then */

void *sim_calloc(size_t count, size_t size);

/* ---- the end: everything is well again, and must come to rest ---- */

static bool is_settled(void)
{
    struct mc_core_statistics statistics;
    const struct sim_process *master = sim_master();
    if (!master->alive || master->core == NULL)
        return false;
    mc_core_statistics(master->core, &statistics);
    return statistics.used == 0 && statistics.clearing_bytes == 0 && statistics.quarantine_bytes == 0 &&
           statistics.objects == 0 && statistics.disk_objects == 0 && statistics.promotions == 0 &&
           statistics.segments == sim_plan->owners && statistics.populated == statistics.capacity;
}

static void sure_keys_check(struct sim_worker *worker)
{
    for (uint32_t key = 0; key < sim_plan->keys; key++) {
        if (sim_key_tenant(key) != worker->tenant)
            continue;
        struct mc_get_item item = {.key = sim_key_name(key)};
        for (unsigned tries = 0; tries < 50; tries++) {
            struct oracle_call call = oracle_begin();
            (void)mc_store_get(worker->store, &item, 1, sim_get_allocate, worker);
            oracle_end(&call, sim_plan->timeout_ms, "get");
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
    struct sim_worker workers[SIM_TENANTS_MAX];
    uint32_t tenants = sim_plan->has_quotas ? sim_plan->tenants : 1;
    uint64_t limit_ns = sim_now_ns + CALM_MS * SIM_MS;
    for (uint32_t tenant = 0; tenant < tenants; tenant++) {
        workers[tenant] = (struct sim_worker){.process = process, .tenant = tenant};
        for (uint32_t i = 0; i < SIM_BATCH_MAX; i++)
            workers[tenant].buffers[i] = sim_calloc(1, SIM_VALUE_MAX);
        workers[tenant].store = sim_store_open(process, 0, tenant);
    }
    sim_drains_end();
    limit_ns = sim_now_ns + CALM_MS * SIM_MS;
    for (uint32_t tenant = 0; tenant < tenants; tenant++)
        sure_keys_check(&workers[tenant]);
    sim_told_settle();
    while (!is_settled() && !sim_failed) {
        if (sim_now_ns > limit_ns) {
            struct mc_core_statistics s;
            if (sim_master()->core == NULL)
                sim_fail("rest: there is no master");
            mc_core_statistics(sim_master()->core, &s);
            sim_fail("rest: used %llu, clearing %llu, quarantine %llu, objects %llu, segments %llu of %u",
                     (unsigned long long)s.used, (unsigned long long)s.clearing_bytes,
                     (unsigned long long)s.quarantine_bytes, (unsigned long long)s.objects,
                     (unsigned long long)s.segments, sim_plan->owners);
        }
        for (uint32_t tenant = 0; tenant < tenants; tenant++)
            (void)sim_remove_all(&workers[tenant], true, false);
        if (!is_settled())
            sim_sleep_ns(500 * SIM_MS);
    }
    oracle_check_masters();
    oracle_check_indexes();
    sim_told_settle();
    for (uint32_t tenant = 0; tenant < tenants; tenant++)
        (void)mc_store_close(workers[tenant].store);
    sim_cluster.is_ended = true;
}

static void all_well(void)
{
    sim_cluster.is_calm = true;
    sim_partitions_end();
    for (uint32_t a = 0; a < SIM_PROCESSES_MAX; a++) {
        sim_threads_continue(&sim_processes[a]);
        sim_machine_wake(a);
        sim_process_wake(&sim_processes[a]);
        sim_process_continue(&sim_processes[a]);
    }
    sim_disks_well();
    /* In half of these seeds another process meets what lies there; in the others removals come to their end without:
     * whose journal is broken gives its disk up, now that it can be said on the disk. */
    bool is_met_again = sim_cluster.has_broken_disks && (sim_plan->seed & 2) != 0;
    for (uint32_t owner = 0; owner < sim_plan->owners && is_met_again; owner++)
        sim_place_end(SIM_PLACE_OWNER + owner);
    sim_etcd_slow(0), sim_etcd_away(0), sim_etcd_full(0);
    for (uint32_t place = 0; place < SIM_PROCESSES_MAX; place++) {
        bool is_client = place >= SIM_PLACE_CLIENT && place < SIM_PLACE_STANDBY;
        if (sim_is_member(place) && !is_client && !sim_processes[place].alive)
            sim_place_start(place);
    }
}

static void run_to_the_end(void)
{
    uint64_t limit_ns = sim_now_ns + 600000 * SIM_MS;
    while (sim_cluster.operations_left > 0 && sim_now_ns < limit_ns && !sim_failed)
        sim_run(sim_now_ns + 20 * SIM_MS);
    all_well();
    /* Calls in progress end: the longest is remove_all. */
    uint64_t end_ns = sim_now_ns + (sim_plan->timeout_ms + 62000ull) * SIM_MS;
    for (uint32_t i = 0; i < sim_plan->clients && !sim_failed; i++) {
        while (sim_processes[SIM_PLACE_CLIENT + i].alive && !sim_failed) {
            if (sim_now_ns > end_ns)
                sim_fail("rest: %s did not come to its end", sim_processes[SIM_PLACE_CLIENT + i].name);
            sim_run(sim_now_ns + 20 * SIM_MS);
        }
    }
    if (sim_failed)
        return;
    (void)sim_process_start(SIM_PROCESSES_MAX - 1, "last", 0, last_main);
    while ((!sim_cluster.is_ended || sim_processes[SIM_PLACE_FOREIGN].alive) && !sim_failed)
        sim_run(sim_now_ns + 20 * SIM_MS);
}

static void on_end(struct sim_process *process)
{
    sim_disks_end(process);
    sim_process_close_files(process);
    sim_arena_reset(process);
}

static void world_reset(void)
{
    sim_reset(sim_plan->seed);
    for (uint32_t place = 0; place < SIM_PROCESSES_MAX; place++)
        sim_arena_reset(&sim_processes[place]);
    sim_net_reset();
    sim_files_reset();
    sim_disks_reset();
    sim_clocks_reset();
    sim_etcd_reset();
    sim_want_reset();
    sim_told_reset();
    sim_on_end = on_end;
    sim_cluster_reset();
}

void sim_plan_run(const struct sim_plan *wanted, struct sim_result *result)
{
    sim_plan = wanted;
    sim_depart_ms = (uint32_t)sim_plan->depart_ms;
    sim_blanks = sim_plan->blanks;
    world_reset();
    /* The drawing of the plan is behind us: what follows is its own. */
    for (unsigned i = 0; i < 64; i++)
        (void)sim_random(SIM_PLAN);
    sim_delay_us_max = 20u << sim_below(SIM_NET, 6);
    sim_preempt_in = 2u << sim_below(SIM_SCHEDULE, 6);
    sim_cluster = (struct sim_cluster){.operations_left = sim_plan->operations};
    sim_cluster.absent_until_ns = sim_cluster.first_story_ns =
        sim_plan->quiet_masters || sim_plan->unmet_keys || sim_plan->returning_owner || sim_plan->heard_alone
            ? sim_now_ns + (1000 + sim_below(SIM_VARIANT, 7000)) * SIM_MS
            : 0;
    sim_limits_start();
    oracle_reset(sim_plan);
    oracle_placed_reset(sim_plan);
    oracle_parts_reset();
    oracle_held_reset(sim_plan);
    oracle_kept_reset();
    oracle_watch_reset();
    oracle_disks_reset();
    oracle_states_reset();
    sim_on_change = oracle_changed;
    for (uint32_t machine = 0; sim_has_fault(SIM_FAULT_skew) && machine < sim_plan->machines; machine++)
        sim_clock_draw(machine);
    for (uint32_t place = 0; place < SIM_PROCESSES_MAX; place++) {
        if (sim_is_member(place))
            sim_place_start(place);
    }
    if (sim_plan->has_foreign)
        (void)sim_process_start(SIM_PLACE_FOREIGN, "foreign", SIM_PLACE_FOREIGN, sim_foreign_main);
    sim_faults_start();
    sim_hard_start();
    sim_disk_faults_start();
    sim_drains_start();
    sim_want_start();
    run_to_the_end();
    *result = (struct sim_result){.failed = sim_failed,
                                  .hash = sim_hash,
                                  .messages = sim_messages,
                                  .events = sim_events,
                                  .operations = sim_cluster.operations_done,
                                  .now_ns = sim_now_ns};
    memcpy(result->failure, sim_failure, sizeof(sim_failure));
}
