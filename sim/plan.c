/* What a seed draws: the cluster, its workload, its faults and stories. */
#include "plan.h"

#include "sizes.h"

const struct sim_plan *sim_plan;

const char *const sim_fault_names[SIM_FAULTS_COUNT] = {
#define SIM_FAULT_NAME(name) #name,
    SIM_FAULTS_MAP(SIM_FAULT_NAME)
#undef SIM_FAULT_NAME
};

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
    made->early_mounts = sim_once_in(SIM_RETURN, 2);
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
    made->all_forget = sim_once_in(SIM_NOTE, 2);
}

/* An owner comes back after the master has acted on its absence, and has only begun to talk with it when the master's
 * machine ends. */
static void returning_owner_prepare(struct sim_plan *made)
{
    story_prepare(made, SIM_FAULT_absent_owner);
    made->returning_owner = true;
    made->is_given_up = sim_once_in(SIM_RETURN, 2);
    made->client_ttl_ms = made->is_given_up ? 3000 + sim_below(SIM_RETURN, 800) : 8000;
    made->owners = 1 + sim_below(SIM_RETURN, 2);
    made->machines = 3; /* none of them is on the master's */
    made->replicas_max = 1;
    made->keys = 4 + sim_below(SIM_RETURN, 7);
    made->think_us_max = 500000u << sim_below(SIM_RETURN, 2);
    made->timeout_ms = 500 + sim_below(SIM_RETURN, 4000);
    made->fault_gap_ms = 20;
}

/* A master acts on the absence of an owner, and ends. The next one hears that owner only, and ends before it can learn
 * from the others what it would have to know of the one before it. */
static void heard_alone_prepare(struct sim_plan *made)
{
    returning_owner_prepare(made);
    made->returning_owner = false;
    made->heard_alone = true;
    made->client_ttl_ms = 8000;
    made->timeout_ms = 3500 + sim_below(SIM_RETURN, 2000);
    made->owners = 2;
}

/* A writer is cut off from the master when its value becomes live: the answer is lost, others read the value and remove
 * or replace it, and then the writer asks again. */
static void lost_answers_prepare(struct sim_plan *made)
{
    made->loses_answers = made->is_durable = true;
    made->faults = 1u << SIM_FAULT_broken;
    made->depart_ms = 3000;
    made->window_ms = 60000;
    made->owners = 1 + sim_below(SIM_ANSWER, 2);
    made->clients = SIM_CLIENTS_MAX;
    made->machines = 3;
    made->keys = 1 + sim_below(SIM_ANSWER, 2);
    made->replicas_max = made->batch_max = 1;
    made->value_max = 2000;
    made->capacity = 256u << 10;
    made->timeout_ms = 2000 + sim_below(SIM_ANSWER, 2000);
    made->think_us_max = 20000u << sim_below(SIM_ANSWER, 3);
    made->fault_gap_ms = 400;
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
        for (uint32_t i = SIM_FAULTS_PLAIN; i < SIM_FAULTS_HARD; i++)
            made->faults |= sim_below(SIM_EXTRA, 2) << i;
    } else if (sim_once_in(SIM_RETURN, 14)) {
        returning_owner_prepare(made);
    } else if (sim_once_in(SIM_RETURN, 14)) {
        heard_alone_prepare(made);
    } else if (sim_once_in(SIM_ANSWER, 14)) {
        lost_answers_prepare(made);
    }
}

/* One kind, or several, on top of what was drawn; in half of these seeds alone. There must be time for them. */
static void hard_draw(struct sim_plan *made)
{
    uint32_t kinds = SIM_FAULTS_COUNT - SIM_FAULTS_HARD;
    if (sim_once_in(SIM_HARD, 2))
        made->faults = 0;
    made->faults |= 1u << (SIM_FAULTS_HARD + sim_below(SIM_HARD, kinds));
    if (sim_once_in(SIM_HARD, 2))
        made->faults |= 1u << (SIM_FAULTS_HARD + sim_below(SIM_HARD, kinds));
    if (sim_once_in(SIM_HARD, 4))
        made->faults |= (1u << SIM_FAULT_skew) | (1u << SIM_FAULT_suspend) | (1u << SIM_FAULT_kill_master);
    made->hard_gap_ms = 100u << sim_below(SIM_HARD, 6);
    uint32_t think_us = 50000u << sim_below(SIM_HARD, 4);
    made->think_us_max = made->think_us_max > think_us ? made->think_us_max : think_us;
}

/* No fault, no story. */
static void nothing_happens(struct sim_plan *made)
{
    made->faults = 0;
    made->hard_gap_ms = made->standbys = 0;
    made->has_notes = made->restarts_owner = made->holds_keys = made->quiet_masters = made->unmet_keys = false;
    made->heard_alone = made->returning_owner = made->loses_answers = false;
}

/* Masters that are elected. What else happens to a single one does not happen to them. */
static void election_draw(struct sim_plan *made)
{
    const uint32_t others = 1u << SIM_FAULT_kill_owner | 1u << SIM_FAULT_stop_owner | 1u << SIM_FAULT_kill_client |
                            1u << SIM_FAULT_stop_client | 1u << SIM_FAULT_broken | 1u << SIM_FAULT_partition;
    made->standbys = 1 + sim_below(SIM_ELECTION, SIM_STANDBYS_MAX);
    made->election_gap_ms = 500u << sim_below(SIM_ELECTION, 5);
    made->faults = sim_once_in(SIM_ELECTION, 2) ? 0 : made->faults & others;
    made->has_notes = made->restarts_owner = made->holds_keys = made->quiet_masters = made->unmet_keys = false;
    made->heard_alone = made->returning_owner = made->loses_answers = false;
    made->hard_gap_ms = 0;
    made->depart_ms = 3000;
    made->timeout_ms = 2000 + sim_below(SIM_ELECTION, 5000);
    uint32_t think_us = 100000u << sim_below(SIM_ELECTION, 3);
    made->think_us_max = made->think_us_max > think_us ? made->think_us_max : think_us;
}

/* One key is replaced while its ranges are read: some of them meet the value before. */
static void rewritten_prepare(struct sim_plan *made)
{
    made->is_rewritten = made->has_upserts = true;
    made->faults = 0;
    made->hard_gap_ms = made->standbys = 0;
    made->owners = made->keys = made->replicas_max = made->batch_max = 1;
    made->clients = SIM_CLIENTS_MAX;
    made->threads = 2;
    made->value_max = 20480;
    made->capacity = 256u << 10;
    made->think_us_max = 1000;
}

/* What clients ask beyond puts, gets and removals; in a third of these seeds without any fault, so that it is known
 * what must be there, or under the fault of all that needs others least: masters that end. */
static void wide_draw(struct sim_plan *made)
{
    uint32_t kind = sim_below(SIM_WIDE, 6);
    if (kind < 2)
        nothing_happens(made);
    if (kind == 1 && !made->is_rewritten) {
        made->faults = 1u << SIM_FAULT_kill_master;
        made->is_durable = false;
        made->depart_ms = 3000;
    }
    made->has_sessions = sim_once_in(SIM_SESSION, 2);
    made->has_pins = sim_once_in(SIM_PIN, 2);
    made->has_firm = made->has_pins && sim_once_in(SIM_FIRM, 2);
    made->has_groups = sim_once_in(SIM_PIN, 2);
    made->has_hints = sim_once_in(SIM_HINT, 2);
    made->has_jobs = sim_once_in(SIM_JOB, 2);
    made->has_drains = sim_once_in(SIM_JOB, 3) && made->owners > 1;
    made->has_old = sim_once_in(SIM_OLD, 4);
    made->few_tombstones = sim_once_in(SIM_LIMIT, 3);
    made->few_clearing = sim_once_in(SIM_LIMIT, 3) ? 1 + sim_below(SIM_LIMIT, 2) : 0;
    if (sim_once_in(SIM_LIMIT, 8)) { /* generations of such an epoch reach far into those of later ones */
        nothing_happens(made);
        made->few_generations = true;
        made->depart_ms = 3000; /* its master begins again and again, and owners are heard once a second */
        made->lease_ms = made->lease_ms < 500 ? made->lease_ms : 500;
    }
    if (sim_once_in(SIM_WANT, 4)) {
        made->want_gap_ms = 20u << sim_below(SIM_WANT, 8);
        made->only_clients_want = !sim_once_in(SIM_WANT, 3);
    }
    if (made->has_sessions && sim_once_in(SIM_SESSION, 2)) /* else readers are protected for too short a time */
        made->lease_ms = 300 + sim_below(SIM_SESSION, 3000);
    if ((made->has_sessions || made->has_pins || made->has_groups) && sim_once_in(SIM_PIN, 3)) /* too little room */
        made->capacity = 64u << 10;
}

/* Owners have disks. In most of these seeds memory is too small for what is put, so that it comes back from there. In a
 * quarter nothing happens, in an eighth only masters end, in a half something happens to disks and owners, mostly
 * nothing else. */
static void disks_draw(struct sim_plan *made)
{
    uint32_t kind = sim_below(SIM_DISKS, 8);
    if (made->few_generations) /* its master begins again and again as it is */
        kind = 0;
    if (made->is_rewritten)
        kind = 7;
    if (kind < 6)
        nothing_happens(made);
    if (kind >= 2 && kind < 7) {
        made->depart_ms = 3000;
        made->timeout_ms = made->timeout_ms < 1000 ? 1000 : made->timeout_ms;
    }
    if (kind == 2) {
        made->faults = 1u << SIM_FAULT_kill_master;
        made->is_durable = false;
    }
    if (kind >= 3 && kind < 7)
        made->disk_gap_ms = 100u << sim_below(SIM_DISKS, 6);
    /* Machines reboot then, and the master's comes back without the note that says which cluster this is. */
    made->has_foreign = made->has_foreign && (made->is_told || made->disk_gap_ms == 0);
    made->disks = sim_once_in(SIM_DISKS, 4) ? 2 : 1;
    made->disk_bytes = (4 + sim_below(SIM_DISKS, 5)) * SIM_DISK_REGION;
    made->disk_ttl_ms = 1000u << sim_below(SIM_DISKS, 6);
    /* A window that is over long before disks may come no more. Stored seeds keep their course. */
    if (made->seed >= 998900000 && made->seed % 3 == 0) {
        made->window_ms = 4000 + made->seed % 4000;
        made->disk_ttl_ms = 30000 + made->seed % 30000;
    }
    if (made->is_rewritten)
        return;
    made->is_named = made->is_named && sim_once_in(SIM_DISKS, 3);
    made->has_upserts |= sim_once_in(SIM_DISKS, 2);
    uint32_t think_us = 20000u << sim_below(SIM_DISKS, 6);
    made->think_us_max = made->disk_gap_ms > 0 && made->think_us_max < think_us ? think_us : made->think_us_max;
    made->owners = 1 + (made->owners - 1) % 3;
    if (sim_once_in(SIM_DISKS, 4))
        return;
    made->value_max = sim_once_in(SIM_DISKS, 2) ? 9000 : 20480;
    made->capacity = 64u << 10;
    made->keys = 6 + made->keys % 5;
    made->lease_ms = made->lease_ms < 100 ? made->lease_ms : 100;
}

void sim_plan_draw(struct sim_plan *made, uint64_t seed, uint32_t operations, bool is_plain, uint32_t hard_in,
                   uint32_t wide_in, uint32_t disks_in)
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
    made->batch_max = draw(1, SIM_BATCH_MAX);
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
        /* The epochs of an election rise, whatever the clock says. */
        made->has_notes = (made->faults & 1u << SIM_FAULT_clock) == 0 && sim_once_in(SIM_NOTE, 4);
        if (made->faults == 1u << SIM_FAULT_late_owner && sim_once_in(SIM_UPSERT, 2))
            held_keys_prepare(made);
        bool is_absent = made->faults == 1u << SIM_FAULT_absent_owner && !made->returning_owner && !made->heard_alone;
        if (is_absent && sim_once_in(SIM_VARIANT, 3))
            quiet_masters_prepare(made);
        else if (is_absent && sim_once_in(SIM_VARIANT, 3))
            unmet_keys_prepare(made);
        if (made->faults == 1u << SIM_FAULT_past_writer && sim_once_in(SIM_VARIANT, 2))
            restarted_owner_prepare(made);
    }
    if (!is_plain && hard_in > 0 && sim_once_in(SIM_HARD, hard_in))
        hard_draw(made);
    if (!is_plain && hard_in > 0 && sim_once_in(SIM_ELECTION, 2 * hard_in))
        election_draw(made);
    made->has_foreign = !is_plain && hard_in > 0 && made->hard_gap_ms == 0 && sim_once_in(SIM_FOREIGN, 8);
    made->is_told = made->has_foreign && (made->standbys > 0 || sim_once_in(SIM_FOREIGN, 2));
    made->has_pieces = !is_plain && hard_in > 0 && sim_once_in(SIM_PIECES, 2);
    if (made->has_pieces && sim_once_in(SIM_PIECES, 16))
        rewritten_prepare(made);
    if (!is_plain && hard_in > 0 && wide_in > 0 && sim_once_in(SIM_WIDE, wide_in))
        wide_draw(made);
    if (!is_plain && hard_in > 0 && wide_in > 0 && disks_in > 0 && sim_once_in(SIM_DISKS, disks_in))
        disks_draw(made);
    if (!is_plain && hard_in > 0 && wide_in > 0 && disks_in > 0 && sim_once_in(SIM_DATA, 4))
        made->data_threads = 1 + sim_below(SIM_DATA, 3);
    made->is_stored_ahead = made->disks > 0 && seed % 4 == 1; /* no draw: the other seeds stay what they were */
    made->is_resized = made->disks > 0 && seed % 8 == 3;      /* likewise */
    made->has_budget = made->disks > 0 && seed % 16 == 7;
    /* All values of all keys together fit far below where eviction begins, with those that are to replace them. */
    uint64_t most = made->keys * 3ull + (made->has_upserts ? made->clients * made->threads * made->batch_max : 0);
    made->is_roomy =
        most * (made->value_max + 2048) * made->replicas_max < made->capacity * (made->owners - made->has_drains) / 2 &&
        made->value_max * 8ull < made->capacity;
}
