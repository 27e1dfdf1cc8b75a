/* The command: runs seeds, replays one, shrinks what fails. */
#include "disk_watch.h"
#include "plan.h"
#include "quotas.h"
#include "told.h"
#include "watch.h"

#include "env/log.h"
#include "env/meter.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define OPERATIONS 120u

struct options {
    uint64_t seed, seeds;
    uint32_t operations, owners, clients, threads, keys, without;
    const char *list;
    uint64_t skipped[256];
    size_t skipped_count;
    bool plain, mild, narrow, wide, hard, noteless, lease, tenants, proofs, quotas, dozes, stripes, disks, diskless,
        data_threads, blanks, forgets, trace, keep_going, no_shrink, check_hash, fails, is_single;
    uint32_t only, has_only;
};

static volatile uint64_t current_seed;
static struct mc_meter meter; /* in seeds */

static void on_crash(int number)
{
    char text[96];
    int length = snprintf(text, sizeof(text), "\nsignal %d in seed %llu\n", number, (unsigned long long)current_seed);
    (void)!write(STDERR_FILENO, text, (size_t)length);
    _exit(3);
}

static void handlers_set(void)
{
    static uint8_t stack[64 << 10];
    stack_t alternative = {.ss_sp = stack, .ss_size = sizeof(stack)};
    struct sigaction action = {.sa_handler = on_crash, .sa_flags = SA_ONSTACK};
    (void)sigaltstack(&alternative, NULL);
    (void)sigaction(SIGSEGV, &action, NULL);
    (void)sigaction(SIGBUS, &action, NULL);
    (void)sigaction(SIGFPE, &action, NULL);
    (void)sigaction(SIGABRT, &action, NULL);
}

static double cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* The meter's clock, which is the real one (meson.build). */
uint64_t sim_meter_ns(void);
uint64_t sim_meter_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void plan_make(const struct options *options, uint64_t seed, struct sim_plan *plan)
{
    sim_plan_draw(plan, seed, options->operations, options->plain,
                  options->mild   ? 0
                  : options->hard ? 1
                                  : 4,
                  options->narrow ? 0
                  : options->wide ? 1
                                  : 3,
                  options->diskless ? 0
                  : options->disks  ? 1
                                    : 4);
    plan->is_noteless = options->noteless;
    plan->has_lease = options->lease;
    plan->has_tenants = options->tenants;
    plan->proves_epochs = options->proofs;
    plan->dozes = options->dozes;
    plan->has_stripes = options->stripes;
    plan->blanks = options->blanks;
    plan->blanks_near = plan->blanks && seed % 8 >= 4;
    plan->batch_max = plan->blanks && seed % 4 != 1 ? 1 : plan->batch_max;
    plan->has_groups = plan->has_groups && (!plan->blanks || seed % 4 == 0); /* what has one goes into no blank */
    if (options->data_threads && plan->data_threads == 0)
        plan->data_threads = 1 + (uint32_t)(seed % 3);
    plan->all_forget = plan->all_forget && !options->noteless; /* without a note nobody can know of that master */
    plan->is_durable = plan->is_durable && !options->forgets;
    if (options->has_only != 0) {
        plan->faults = options->only;
        plan->few_generations &= options->only == 0; /* they reach far into the epochs of later masters (plan.c) */
    }
    plan->faults &= ~options->without;
    if (options->owners != 0 && options->owners < plan->owners)
        plan->owners = options->owners;
    if (options->clients != 0 && options->clients < plan->clients)
        plan->clients = options->clients;
    if (options->threads != 0 && options->threads < plan->threads)
        plan->threads = options->threads;
    if (options->keys != 0 && options->keys < plan->keys)
        plan->keys = options->keys;
    if (options->quotas)
        sim_quotas_draw(plan);
}

static void print_faults(const char *option, uint32_t faults)
{
    for (uint32_t i = 0; i < SIM_FAULTS_COUNT; i++) {
        if ((faults >> i & 1u) != 0)
            printf(" %s %s", option, sim_fault_names[i]);
    }
}

static void print_replay(const struct options *options, uint64_t seed)
{
    printf("  replay: ./dev sim --seed %llu --operations %u", (unsigned long long)seed, options->operations);
    if (options->owners != 0)
        printf(" --owners %u", options->owners);
    if (options->clients != 0)
        printf(" --clients %u", options->clients);
    if (options->threads != 0)
        printf(" --threads %u", options->threads);
    if (options->keys != 0)
        printf(" --keys %u", options->keys);
    if (options->has_only != 0 && options->only == 0)
        printf(" --only none");
    print_faults("--only", options->only);
    print_faults("--without", options->without);
    printf("%s%s%s%s%s%s%s%s%s%s%s%s%s%s%s%s%s --trace\n", options->plain ? " --plain" : "",
           options->mild ? " --mild" : "", options->narrow ? " --narrow" : "", options->wide ? " --wide" : "",
           options->hard ? " --hard" : "", options->noteless ? " --noteless" : "", options->lease ? " --lease" : "",
           options->tenants ? " --tenants" : "", options->proofs ? " --proofs" : "", options->quotas ? " --quotas" : "",
           options->dozes ? " --dozes" : "", options->stripes ? " --stripes" : "", options->disks ? " --disks" : "",
           options->diskless ? " --diskless" : "", options->data_threads ? " --data-threads" : "",
           options->blanks ? " --blanks" : "", options->forgets ? " --forgets" : "");
}

/* Does it fail so? In a process of its own: a failure may be a crash. kind: the word before the colon. */
static bool fails(const struct options *options, uint64_t seed, const char *kind)
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        struct sim_plan plan;
        struct sim_result result;
        alarm(20);
        plan_make(options, seed, &plan);
        sim_plan_run(&plan, &result);
        bool same = result.failed && strncmp(result.failure, kind, strcspn(kind, ":")) == 0;
        _exit(same ? 1 : 0);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child)
        return false;
    bool crashed = !WIFEXITED(status) || WEXITSTATUS(status) == 3;
    return strncmp(kind, "crash", 5) == 0 ? crashed : WIFEXITED(status) && WEXITSTATUS(status) == 1;
}

static bool shrink_number(struct options *options, uint32_t *field, uint32_t value, uint64_t seed, const char *kind)
{
    uint32_t before = *field;
    *field = value;
    if (fails(options, seed, kind))
        return true;
    *field = before;
    return false;
}

static void shrink(const struct options *wanted, uint64_t seed, const char *kind)
{
    struct options options = *wanted;
    struct sim_plan plan;
    if (!fails(&options, seed, kind))
        printf("  it does not fail again: the run depends on something but the seed\n");
    plan_make(&options, seed, &plan);
    for (uint32_t i = 0; i < SIM_FAULTS_COUNT; i++) {
        if ((plan.faults >> i & 1u) != 0)
            (void)shrink_number(&options, &options.without, options.without | 1u << i, seed, kind);
    }
    for (uint32_t i = 1; i < plan.owners && !shrink_number(&options, &options.owners, i, seed, kind); i++)
        ;
    for (uint32_t i = 1; i < plan.clients && !shrink_number(&options, &options.clients, i, seed, kind); i++)
        ;
    if (plan.threads > 1)
        (void)shrink_number(&options, &options.threads, 1, seed, kind);
    for (uint32_t i = 1; i < plan.keys && !shrink_number(&options, &options.keys, i, seed, kind); i++)
        ;
    for (uint32_t step = options.operations / 2; step > 0; step /= 2) {
        while (options.operations > step &&
               shrink_number(&options, &options.operations, options.operations - step, seed, kind))
            ;
    }
    print_replay(&options, seed);
}

static void seed_failed(const struct options *options, uint64_t seed, const char *failure)
{
    mc_meter_hold(&meter);
    printf("seed %llu: %s\n", (unsigned long long)seed, failure);
    if (!options->no_shrink && !options->is_single)
        shrink(options, seed, failure);
    else
        print_replay(options, seed);
    fflush(stdout);
    mc_meter_go_on(&meter);
}

/* Seeds that are known to fail. */
static void skip_read(struct options *options, const char *path)
{
    char line[512];
    FILE *file = fopen(path, "r");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL && options->skipped_count < 256) {
        if (line[0] >= '0' && line[0] <= '9')
            options->skipped[options->skipped_count++] = strtoull(line, NULL, 10);
    }
    if (file != NULL)
        fclose(file);
}

static bool is_skipped(const struct options *options, uint64_t seed)
{
    for (size_t i = 0; !options->is_single && i < options->skipped_count; i++) {
        if (options->skipped[i] == seed)
            return true;
    }
    return false;
}

static bool parse(int argc, char **argv, struct options *options)
{
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(name, "--trace") == 0) {
            options->trace = true;
        } else if (strcmp(name, "--keep-going") == 0) {
            options->keep_going = true;
        } else if (strcmp(name, "--no-shrink") == 0) {
            options->no_shrink = true;
        } else if (strcmp(name, "--forgets") == 0) { /* a restarted master may have lost everything */
            options->forgets = true;
        } else if (strcmp(name, "--plain") == 0) { /* as seeds were drawn before there were stories */
            options->plain = true;
        } else if (strcmp(name, "--mild") == 0) { /* as before there were hard faults */
            options->mild = true;
        } else if (strcmp(name, "--hard") == 0) { /* each seed has some */
            options->hard = true;
        } else if (strcmp(name, "--narrow") == 0) { /* as before clients asked for more than puts, gets and removals */
            options->narrow = true;
        } else if (strcmp(name, "--wide") == 0) { /* in each seed they do */
            options->wide = true;
        } else if (strcmp(name, "--lease") == 0) { /* masters are elected by a Lease of Kubernetes */
            options->lease = true;
        } else if (strcmp(name, "--tenants") == 0) { /* all is put by a tenant that has a name, and counted */
            options->tenants = true;
        } else if (strcmp(name, "--proofs") == 0) { /* masters' epochs are proved, and believed with proof only */
            options->proofs = true;
        } else if (strcmp(name, "--quotas") == 0) { /* all is put by tenants that have quotas */
            options->quotas = true;
        } else if (strcmp(name, "--noteless") == 0) { /* masters have no directory for a note to the next one */
            options->noteless = true;
        } else if (strcmp(name, "--dozes") == 0) { /* masters stand still for seconds just before they are killed */
            options->dozes = true;
        } else if (strcmp(name, "--stripes") == 0) { /* values of more than 512 bytes are put in pieces */
            options->stripes = true;
        } else if (strcmp(name, "--disks") == 0) { /* in each seed owners have disks */
            options->disks = true;
        } else if (strcmp(name, "--diskless") == 0) { /* as before there were disks */
            options->diskless = true;
        } else if (strcmp(name, "--data-threads") == 0) { /* in each seed owners have data threads */
            options->data_threads = true;
        } else if (strcmp(name, "--blanks") == 0) { /* clients use places that are granted ahead */
            options->blanks = true;
        } else if (strcmp(name, "--check-hash") == 0) {
            options->check_hash = true;
        } else if (strcmp(name, "--fails") == 0) { /* each seed counts as failed: what is said of those is tested so */
            options->fails = true;
        } else if (value == NULL) {
            return false;
        } else if (strcmp(name, "--without") == 0 || strcmp(name, "--only") == 0) {
            uint32_t fault = 0;
            while (fault < SIM_FAULTS_COUNT && strcmp(value, sim_fault_names[fault]) != 0)
                fault++;
            if (fault == SIM_FAULTS_COUNT && strcmp(value, "none") != 0)
                return false;
            uint32_t bit = fault == SIM_FAULTS_COUNT ? 0 : 1u << fault;
            if (strcmp(name, "--without") == 0) {
                options->without |= bit;
            } else {
                options->only |= bit;
                options->has_only = 1;
            }
            i++;
        } else {
            uint64_t number = strtoull(value, NULL, 10);
            if (strcmp(name, "--seed") == 0)
                options->seed = number, options->is_single = true, options->seeds = 1;
            else if (strcmp(name, "--from") == 0)
                options->seed = number;
            else if (strcmp(name, "--skip") == 0)
                skip_read(options, value);
            else if (strcmp(name, "--list") == 0)
                options->list = value;
            else if (strcmp(name, "--seeds") == 0)
                options->seeds = number;
            else if (strcmp(name, "--operations") == 0)
                options->operations = (uint32_t)number;
            else if (strcmp(name, "--owners") == 0)
                options->owners = (uint32_t)number;
            else if (strcmp(name, "--clients") == 0)
                options->clients = (uint32_t)number;
            else if (strcmp(name, "--threads") == 0)
                options->threads = (uint32_t)number;
            else if (strcmp(name, "--keys") == 0)
                options->keys = (uint32_t)number;
            else
                return false;
            i++;
        }
    }
    return options->seeds > 0 && options->operations > 0;
}

struct sim_sums {
    uint64_t messages, events, operations, seeds, failures;
    uint64_t hash; /* of all the runs: two builds that share it ran the same */
};

static bool seed_run(const struct options *options, uint64_t seed, struct sim_sums *sums)
{
    struct sim_plan plan;
    struct sim_result result, again;
    current_seed = seed;
    plan_make(options, seed, &plan);
    sim_plan_run(&plan, &result);
    sums->messages += result.messages;
    sums->events += result.events;
    sums->operations += result.operations;
    sums->seeds++;
    mc_meter_at(&meter, sums->seeds);
    sums->hash = (sums->hash ^ result.hash) * 0x9e3779b97f4a7c15ull;
    if (result.failed || options->fails) {
        seed_failed(options, seed, result.failed ? result.failure : "it is asked to");
        return false;
    }
    if (options->check_hash) {
        sim_plan_run(&plan, &again);
        if (again.hash != result.hash || again.messages != result.messages) {
            printf("seed %llu: two runs differ\n", (unsigned long long)seed);
            return false;
        }
    }
    if (options->is_single)
        printf("seed %llu: hash %016llx, %llu operations, %llu messages, %llu events, %.3f s\n",
               (unsigned long long)seed, (unsigned long long)result.hash, (unsigned long long)result.operations,
               (unsigned long long)result.messages, (unsigned long long)result.events,
               (double)(result.now_ns - 10000 * SIM_MS) / 1e9);
    return true;
}

/* The seeds of a file: one at the start of each line, the rest of the line is for people. */
static bool list_run(const struct options *options, struct sim_sums *sums)
{
    char line[512];
    FILE *file = fopen(options->list, "r");
    if (file == NULL) {
        fprintf(stderr, "%s cannot be read\n", options->list);
        return false;
    }
    while (fgets(line, sizeof(line), file) != NULL) {
        if (line[0] >= '0' && line[0] <= '9' && !seed_run(options, strtoull(line, NULL, 10), sums))
            sums->failures++;
    }
    fclose(file);
    return true;
}

int main(int argc, char **argv)
{
    struct options options = {.seed = 1, .seeds = 1000, .operations = OPERATIONS};
    struct sim_sums sums = {0};
    if (!parse(argc, argv, &options)) {
        fprintf(stderr,
                "usage: mooncake_sim [--seed S | --from S --seeds N | --list FILE] [--skip FILE] [--operations "
                "N] [--trace] "
                "[--keep-going] "
                "[--no-shrink] [--check-hash] [--fails] [--forgets] [--plain] [--mild] [--narrow] [--wide] [--hard] "
                "[--noteless] [--lease] [--tenants] [--quotas] [--proofs] [--dozes] [--stripes] [--disks | --diskless] "
                "[--data-threads] [--blanks]\n"
                "                    [--owners N] [--clients N] [--threads N] [--keys N] [--without FAULT | "
                "--only FAULT|none]...\nfaults:");
        for (uint32_t i = 0; i < SIM_FAULTS_COUNT; i++)
            fprintf(stderr, " %s", sim_fault_names[i]);
        fprintf(stderr, "\n");
        return 2;
    }
    handlers_set();
    sim_tracing = options.trace;
    if (options.trace)
        mc_log_threshold = MC_LOG_DEBUG;
    double start_s = cpu_seconds();
    mc_meter_begin(&meter);
    mc_meter_step(&meter, "", "seeds", options.list == NULL ? options.seeds : 0, 0);
    if (options.list != NULL && !list_run(&options, &sums))
        return 2;
    for (uint64_t i = 0; options.list == NULL && i < options.seeds; i++) {
        if (!is_skipped(&options, options.seed + i) && !seed_run(&options, options.seed + i, &sums)) {
            sums.failures++;
            if (!options.keep_going)
                break;
        }
    }
    mc_meter_end(&meter);
    double passed_s = cpu_seconds() - start_s;
    if (sums.seeds == 0) {
        fprintf(stderr, "no seed was run\n");
        return 2;
    }
    printf("%llu seeds, %llu failed, %llu operations, %llu messages, %llu events in %.1f CPU seconds: %.0f messages a "
           "second, %.0f events a seed, hash %016llx\n",
           (unsigned long long)sums.seeds, (unsigned long long)sums.failures, (unsigned long long)sums.operations,
           (unsigned long long)sums.messages, (unsigned long long)sums.events, passed_s,
           (double)sums.messages / passed_s, (double)sums.events / (double)sums.seeds, (unsigned long long)sums.hash);
    if (oracle_disk_stores > 0)
        printf("disks: %llu values stored, %llu loaded, %llu found again\n", (unsigned long long)oracle_disk_stores,
               (unsigned long long)oracle_disk_loads, (unsigned long long)oracle_disk_returns);
    if (oracle_hints_kept > 0)
        printf("hints: owners were seen to keep one %llu times\n", (unsigned long long)oracle_hints_kept);
    printf("KV events: %llu told, %llu taken by consumers, who were too slow %llu times, met another master %llu times "
           "and "
           "read %llu snapshots; another master broke off %llu\n",
           (unsigned long long)sim_told_counts.told, (unsigned long long)sim_told_counts.taken,
           (unsigned long long)sim_told_counts.slow, (unsigned long long)sim_told_counts.other,
           (unsigned long long)sim_told_counts.snapshots, (unsigned long long)sim_told_counts.broken);
    return sums.failures == 0 ? 0 : 1;
}
