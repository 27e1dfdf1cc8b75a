/* The RPC shell of the master: sockets, clock and log around the core. */
#include "store/master/server.h"

#include "base/error.h"
#include "store/segment/layout.h"
#include "env/clock.h"
#include "env/exposed.h"
#include "env/limits.h"
#include "env/log.h"
#include "env/unread.h"
#include "store/core/limits.h"
#include "store/master/connections.h"
#include "store/master/kv_events.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define SPIN_PROBE_EVERY 16u
#define SPIN_BUSY_NS 1000000u /* a wait longer than this ends all probing: nobody is in a hurry */
#define IDLE_AFTER_MS 5000u
#define IDLE_TICK_MS 200u
#define TICK_MAX_MS 60000u
/* Nothing is said for so long while the note hangs: with a second between two heartbeats less than owners may be
 * silent, by a half. */
#define NOTE_PATIENCE_MS 1500u
#define AGING_TICK_MS 5u         /* while the disk is waited for, */
#define AGING_PATIENCE_MS 10000u /* so long, sleeps aside: a disk that hangs is not to end all removals */
#define LATE_TICK_MS 500u        /* then */
#define REPORT_MS 10000u         /* between two lines of metrics */
#define CORE_LINES_PER_SECOND 50u
#define NOTE_WAIT_MS 10000u /* for descriptors or memory to read it with */
#define NOTE_LOOK_MS 50u
#define EPOCH_LEAP 65536u /* hundredths of a second: eleven minutes */

static void core_log(void *context, int level, const char *text)
{
    struct mc_server *server = context;
    if (level < atomic_load_explicit(&mc_log_threshold, memory_order_relaxed))
        return;
    if (server->now_ms - server->log_second_ms >= 1000) {
        uint32_t held = server->log_held;
        server->log_second_ms = server->now_ms;
        server->log_lines = server->log_held = 0;
        if (held > 0)
            mc_log(WARNING, "%u lines of the core were not written", held);
    }
    if (++server->log_lines > CORE_LINES_PER_SECOND)
        server->log_held++;
    else
        mc_log_write((enum mc_log_level)level, "core", 0, "%s", text);
}

static void core_event(void *context, enum mc_core_topic topic, int level, const char *text)
{
    struct mc_server *server = context;
    if (server->sampler.events != NULL)
        mc_events_add(server->sampler.events, topic, level, mc_clock_wall_ms(), text);
}

static void core_medium(void *context, struct mc_span key, enum mc_core_medium medium, bool is_there)
{
    const struct mc_server *server = context;
    mc_kv_events_add(server->kv_events, mc_clock_wall_ms(), medium, is_there, key);
}

/* ---- timers, mail, signals ---- */

static void note_hangs(const struct mc_server *server)
{
    bool withholds = server->core != NULL && mc_core_asks_to_keep_cluster(server->core);
    mc_log_limited(WARNING,
                   "writing the note %s takes too long; should this master end now, the next one may not know all that "
                   "it did%s",
                   server->note.path, withholds ? "; nobody is told the id of this cluster yet" : "");
}

static void on_report(evutil_socket_t fd, short events, void *argument)
{
    struct mc_server *server = argument;
    (void)fd, (void)events;
    mc_server_turn_enter(server);
    atomic_store_explicit(&server->longest_turn_ns[1],
                          atomic_exchange_explicit(&server->longest_turn_ns[0], 0, memory_order_relaxed),
                          memory_order_relaxed);
    mc_server_sweep(server);
    if (mc_note_hangs(&server->note)) /* one of age goes on without a word */
        note_hangs(server);
    if (server->core == NULL || (!server->report_metrics && server->sampler.history == NULL))
        return;
    struct mc_core_statistics statistics;
    struct mc_buffer line = {0};
    mc_core_statistics(server->core, &statistics);
    mc_sampler_take(&server->sampler, &statistics, atomic_load(&server->epoch));
    if (!server->report_metrics)
        return;
    mc_metrics_window_move(&server->window, &statistics, server->now_ms);
    mc_metrics_summary(&line, &statistics, &server->window);
    mc_log(INFO, "Master Metrics: %.*s", (int)line.length, (const char *)line.data);
    mc_buffer_free(&line);
}

static void on_tick(evutil_socket_t fd, short events, void *argument)
{
    struct mc_server *server = argument;
    (void)fd, (void)events;
    mc_server_turn_enter(server);
    server->tick_due_ms = 0; /* the turn's end calls the core and sets it again */
}

static void on_mail(evutil_socket_t fd, short events, void *argument)
{
    struct mc_server *server = argument;
    (void)fd, (void)events;
    mc_server_turn_enter(server);
    if (mc_server_may_serve(server))
        mc_mailbox_serve(server->mailbox, server->core);
    else
        mc_mailbox_refuse(server->mailbox);
}

static void on_election(evutil_socket_t fd, short events, void *argument)
{
    struct mc_server *server = argument;
    (void)fd, (void)events;
    mc_server_turn_enter(server);
    server->is_role_due = true; /* in keep_role, when nothing points to a connection */
}

static void on_signal(evutil_socket_t fd, short events, void *argument)
{
    struct mc_server *server = argument;
    struct signalfd_siginfo info;
    (void)events;
    if (read(fd, &info, sizeof(info)) != (ssize_t)sizeof(info))
        return;
    if (info.ssi_signo == SIGHUP) {
        mc_unread_hangup();
        return;
    }
    mc_log(INFO, "stopping on signal %u", info.ssi_signo);
    server->is_stopping = true;
}

static void note_failed(const struct mc_server *server)
{
    mc_log(WARNING, "the note %s cannot be written: %s; the next master will not know of this one", server->note.path,
           strerror(errno));
}

/* As mc_note_keep: what stands there has to say that we may act until needed_ms, at least. */
static int note_keep(struct mc_server *server, uint64_t needed_ms)
{
    int rc = mc_note_keep(&server->note, atomic_load(&server->epoch), !mc_core_has_given_up(server->core),
                          mc_clock_boot_ms(), needed_ms);
    if (rc < 0)
        note_failed(server);
    return rc;
}

static void age_is_unknown(const struct mc_server *server, int rc)
{
    mc_log_limited(WARNING,
                   "the note %s cannot be written to the disk: %s; should this machine reboot, the next master will "
                   "not know that this one acted, and what was removed may be back with an owner that is away now",
                   server->note.path, rc > 0 ? "it takes too long" : strerror(errno));
}

static void note_take(struct mc_server *server, uint64_t epoch)
{
    int rc = mc_note_take(&server->note, epoch);
    server->is_taking = rc > 0;
    if (rc < 0 && server->note.fd < 0)
        note_failed(server);
    else if (rc < 0)
        age_is_unknown(server, rc);
}

/* Up to when a young master may have acted: now. That is compared with the last contacts of who never came to it, all
 * of which are before its core began: no later time than depart_ms after that tells more of them, however long it is
 * young, or sleeps. So where each write takes longer than it is written ahead, this is met when that has passed. */
static uint64_t young_until_ms(const struct mc_server *server)
{
    uint64_t now_ms = mc_clock_boot_ms(), most_ms = server->core_since_ms + server->core_config.depart_ms;
    return now_ms < most_ms ? now_ms : most_ms;
}

/* Before the core acts on the absence of who never came to it, the election or the note on the disk says so. True: that
 * is under way.
 */
static bool keep_age(struct mc_server *server)
{
    if (!mc_core_asks_to_age(server->core))
        return false;
    if (server->election != NULL) { /* the answer comes by its descriptor */
        if (!server->is_aging)
            mc_election_say(server->election, MC_ELECTION_AGED, atomic_load(&server->epoch), server->cluster);
        server->is_aging = true;
        return false;
    }
    int rc = mc_note_age(&server->note, atomic_load(&server->epoch));
    if (rc == 0 && mc_core_acts(server->core) && note_keep(server, young_until_ms(server)) > 0)
        rc = 1; /* it has to say so for the last time */
    server->aging_since_ms = server->aging_since_ms != 0 ? server->aging_since_ms : server->now_ms;
    bool is_late = server->now_ms - server->aging_since_ms >= AGING_PATIENCE_MS;
    if (rc > 0 && !is_late)
        return true;
    if (rc != 0)
        age_is_unknown(server, rc);
    mc_core_let_age(server->core);
    return false;
}

/* Before it acts on the silence of who did come, likewise. Sets *lets where the core may go on, and has more to do. */
static bool keep_horizon(struct mc_server *server, bool *lets)
{
    uint64_t at_ms = mc_core_asks_to_depart(server->core);
    *lets = false;
    if (at_ms != 0 && server->election != NULL && at_ms > server->depart_at_ms) {
        server->depart_at_ms = at_ms;
        mc_election_depart(server->election, atomic_load(&server->epoch), at_ms);
    }
    if (at_ms == 0 || server->election != NULL) {
        server->departing_since_ms = 0;
        return false;
    }
    if (at_ms != server->departing_at_ms) { /* whoever had the last contact then has been silent for depart_ms by now */
        server->departing_at_ms = at_ms;
        server->departed_ms = mc_clock_boot_ms();
    }
    int rc = mc_note_depart(&server->note, atomic_load(&server->epoch), at_ms);
    if (rc == 0 && note_keep(server, server->departed_ms) > 0)
        rc = 1; /* of owners that tell no age at their contact the record says the time only */
    server->departing_since_ms = server->departing_since_ms != 0 ? server->departing_since_ms : server->now_ms;
    if (rc > 0 && server->now_ms - server->departing_since_ms < AGING_PATIENCE_MS)
        return true;
    if (rc != 0)
        age_is_unknown(server, rc);
    server->departing_since_ms = 0;
    mc_core_let_depart(server->core, server->now_ms, at_ms);
    *lets = true;
    return false;
}

static bool naming_is_late(const struct mc_server *server)
{
    return server->naming_since_ms != 0 && server->now_ms - server->naming_since_ms >= AGING_PATIENCE_MS;
}

static void tick_set(struct mc_server *server, uint64_t wait_ms)
{
    uint64_t due_ms = server->now_ms + wait_ms;
    /* A timer that is set too early costs one turn; setting it in every turn costs more. */
    if (server->tick_due_ms != 0 && server->tick_due_ms <= due_ms)
        return;
    struct timeval wait = {(time_t)(wait_ms / 1000), (suseconds_t)(wait_ms % 1000 * 1000)};
    mc_assert(event_add(&server->tick_event, &wait) == 0);
    server->tick_due_ms = due_ms;
}

/* Calls the core and sets the timer for its next wish. True: it has more work now. */
static bool tick(struct mc_server *server)
{
    if (server->core == NULL)
        return false;
    uint64_t due_ms = mc_core_tick(server->core, server->now_ms);
    bool lets, is_going = keep_horizon(server, &lets);
    bool is_waiting = keep_age(server) || is_going || (server->naming_since_ms != 0 && !naming_is_late(server));
    if (lets || due_ms <= server->now_ms)
        return true;
    uint64_t wait_ms = due_ms - server->now_ms;
    if (wait_ms < IDLE_TICK_MS && server->now_ms - server->active_ms > IDLE_AFTER_MS)
        wait_ms = IDLE_TICK_MS;
    if (wait_ms > (is_waiting ? AGING_TICK_MS : TICK_MAX_MS))
        wait_ms = is_waiting ? AGING_TICK_MS : TICK_MAX_MS;
    tick_set(server, wait_ms);
    return false;
}

/* ---- leadership ---- */

static void say_role(const struct mc_server *server)
{
    if (server->pod_lead != NULL)
        server->pod_lead(server->pod, server->core != NULL);
}

/* What is known of the cluster: the operator's word, what stands beside the election or in the note, what the core
 * before this one had found out. */
static void cluster_known(const struct mc_server *server, const struct mc_election_role *role,
                          struct mc_core_config *config)
{
    struct mc_id kept = role != NULL ? role->cluster : server->note.cluster;
    if (mc_id_is_zero(config->cluster) && !mc_id_is_zero(kept)) {
        config->cluster = kept;
        config->cluster_way = role != NULL ? MC_CLUSTER_ELECTED : MC_CLUSTER_NOTED;
    } else if (mc_id_is_zero(config->cluster) && !mc_id_is_zero(server->cluster)) {
        config->cluster = server->cluster;
        config->cluster_way = MC_CLUSTER_NOTED;
    }
    config->asks_to_keep_cluster = mc_id_is_zero(kept) || !mc_id_equal(kept, config->cluster);
}

static const struct mc_epoch_proofs proofs = {mc_keys_epoch_prove, mc_keys_epoch_is_proved};

static int core_begin(struct mc_server *server, uint64_t epoch, const struct mc_election_role *role)
{
    struct mc_core_config config = server->core_config;
    server->now_ms =
        mc_clock_boot_ms(); /* one look for the core's start and the note's age: we may sleep between two */
    cluster_known(server, role, &config);
    server->is_naming = false;
    if (role != NULL) {
        config.predecessor_end_ms = role->predecessor_end_ms;
        config.whole_epoch = role->whole_epoch;
        config.whole_since = role->whole_since;
        config.departed_epoch = role->departed_epoch;
        config.asks_to_depart = true;
        memcpy(config.horizons, role->horizons, sizeof(config.horizons));
        /* Who was silent for the whole life of a master of age was so before it began, whenever that ended. */
        if (role->predecessor_end_ms == 0 && role->aged_epoch > 1)
            config.known_epoch = role->aged_epoch - 1;
    }
    if (role == NULL) {
        config.asks_to_depart = server->note.fd >= 0;
        memcpy(config.horizons, server->note.horizons, sizeof(config.horizons));
    }
    config.asks_to_age = role != NULL || server->note.fd >= 0;
    config.proofs = &proofs;
    config.has_key = mc_keys_has_number;
    config.idle_since_ms = server->idle_since_ms;
    config.idle_epoch = atomic_load(&server->epoch);
    config.clock_epoch = mc_election_epoch_now();
    server->core_since_ms = server->now_ms;
    if (server->idle_since_ms == 0) {
        server->noted_epoch = server->note.epoch;
        server->noted_until_ms = server->note.until_ms;
        server->noted_is_whole = server->note.is_whole;
        if (server->note.aged > server->aged_epoch)
            server->aged_epoch = server->note.aged;
    }
    if (server->aged_epoch != 0 && server->aged_epoch == config.idle_epoch)
        server->aged_next = epoch;
    if (role == NULL) {
        config.aged_epoch = server->aged_epoch;
        config.aged_next = server->aged_next;
    }
    if (role == NULL && server->noted_epoch != 0 && server->noted_epoch < epoch) {
        uint64_t age_ms = server->now_ms - server->noted_until_ms;
        config.known_epoch = server->noted_epoch;
        config.known_is_timed = server->noted_until_ms != 0;
        config.known_is_whole = server->noted_is_whole;
        config.known_age_ms = (int64_t)age_ms < 0 ? 0 : age_ms; /* our own, of a core before: it lies ahead */
    }
    note_take(server, epoch);
    mc_server_drop_connections(server); /* the core was not told of them; they come again */
    mc_kv_events_lead(server->kv_events, epoch);
    server->core = mc_core_create(&config, &server->output, server->node, epoch, mc_random_u64(), server->now_ms);
    if (server->core != NULL && server->core_made != NULL)
        server->core_made(server->quotas, server->core);
    say_role(server);
    server->tick_due_ms = 0;
    server->is_aging = false;
    server->depart_at_ms = 0;
    server->aging_since_ms = server->naming_since_ms = server->departing_since_ms = server->departing_at_ms = 0;
    atomic_store(&server->epoch, epoch);
    mc_sampler_leads(&server->sampler, epoch, true);
    return server->core == NULL ? MC_ERR_NO_MEMORY : 0;
}

static void name_is_unknown(const struct mc_server *server, const char *why)
{
    unsigned long long high = server->cluster.high, low = server->cluster.low;
    mc_log(
        WARNING,
        "the note %s does not say which cluster this is: %s. The next master will not know that it is %016llx%016llx, "
        "and may refuse the contents of its nodes: start it with --cluster_uuid=%016llx%016llx",
        server->note.path, why, high, low, high, low);
}

/* Members are told when the disk has it, or takes too long: then the next boot may have to ask who is here. Not before
 * the file has it, however long its write hangs: should this process be killed, the next one may make another cluster,
 * in which whoever was told and is away meanwhile is a stranger for ever. Who is told nothing is none. The operator's
 * word outlives us without the file. What cannot be written is told all the same, as where there is no note. True: it
 * is waited for. */
static bool is_unnamed(struct mc_server *server)
{
    int rc = mc_note_name(&server->note, server->cluster);
    if (rc > 0 && server->naming_since_ms == 0)
        server->naming_since_ms = server->now_ms;
    bool next_knows = rc == MC_NOTE_STANDS || !mc_id_is_zero(server->core_config.cluster);
    if (rc > 0 && !(next_knows && naming_is_late(server)))
        return true;
    if (rc < 0)
        name_is_unknown(server, strerror(errno));
    else if (server->note.fd < 0 && server->note.path[0] != 0)
        name_is_unknown(server, "there is none any more");
    server->naming_since_ms = 0;
    mc_core_cluster_is_kept(server->core);
    return false;
}

/* The core knows which cluster this is: it is written down before anybody is told. */
static void cluster_keep(struct mc_server *server)
{
    uint64_t epoch = atomic_load(&server->epoch);
    if (server->core != NULL && mc_core_asks_for_cluster(server->core))
        mc_core_make_cluster(server->core, mc_random_id());
    if (server->core == NULL || !mc_core_asks_to_keep_cluster(server->core))
        return;
    server->cluster = mc_core_cluster(server->core);
    if (server->election == NULL) {
        if (is_unnamed(server))
            tick_set(server, naming_is_late(server) ? LATE_TICK_MS : AGING_TICK_MS);
    } else if (mc_election_has_said(server->election, MC_ELECTION_CLUSTER, epoch)) {
        mc_core_cluster_is_kept(server->core);
    } else if (!server->is_naming) {
        server->is_naming = true;
        mc_election_say(server->election, MC_ELECTION_CLUSTER, epoch, server->cluster);
    }
}

/* Called at least every few ms while something is waited for. While this process stood still, as in a sleep of the
 * machine, nothing could be written, and none of the note's patience has passed. */
static void patience_passes(struct mc_server *server, uint64_t now_ms)
{
    uint64_t *since_ms[] = {&server->taking_since_ms, &server->keeping_since_ms, &server->held_since_ms,
                            &server->aging_since_ms,  &server->naming_since_ms,  &server->departing_since_ms};
    uint64_t gap_ms = now_ms - server->patience_ms;
    server->patience_ms = now_ms;
    for (size_t i = 0; gap_ms > MC_GAP_MS && i < sizeof(since_ms) / sizeof(since_ms[0]); i++)
        *since_ms[i] += *since_ms[i] == 0 ? 0 : gap_ms;
}

/* Is what is late still waited for? since_ms: its patience began then; 0: it was not late. What becomes late while
 * nothing is sent for something else has what is left of that: then all that waits is sent, once at least. */
static bool is_waited_for(const struct mc_server *server, bool is_late, uint64_t *since_ms)
{
    uint64_t begun_ms = server->is_held ? server->held_since_ms : server->now_ms;
    *since_ms = !is_late ? 0 : *since_ms != 0 ? *since_ms : begun_ms;
    if (is_late && server->now_ms - *since_ms >= NOTE_PATIENCE_MS)
        note_hangs(server);
    return is_late && server->now_ms - *since_ms < NOTE_PATIENCE_MS;
}

/* Before anything goes out: what it speaks of was decided while the note said so. Sets is_held. */
static void note_tell(struct mc_server *server)
{
    bool may_act = server->note.fd >= 0 && server->core != NULL && mc_core_acts(server->core);
    if (server->is_taking && server->core != NULL)
        note_take(server, atomic_load(&server->epoch));
    /* Of age it acts on nothing that the time has to say, but for what keep_horizon waits for. */
    uint64_t needed_ms = may_act && !mc_core_is_of_age(server->core) ? young_until_ms(server) : 0;
    bool is_late = may_act && note_keep(server, needed_ms) > 0;
    bool takes = is_waited_for(server, server->is_taking, &server->taking_since_ms);
    bool keeps = is_waited_for(server, is_late, &server->keeping_since_ms);
    if ((takes || keeps) && !server->is_held)
        server->held_since_ms = server->now_ms;
    server->is_held = takes || keeps;
    if (server->core != NULL)
        mc_core_hold(server->core, server->now_ms, server->is_held);
    if (server->is_held)
        tick_set(server, AGING_TICK_MS);
}

/* wanted: an epoch that somebody has seen and ours must reach; 0: none. */
static void core_end(struct mc_server *server, uint64_t wanted)
{
    struct mc_core *core = server->core;
    server->core = NULL;
    mc_kv_events_lead(server->kv_events, 0);
    say_role(server);
    mc_sampler_leads(&server->sampler, atomic_load(&server->epoch), false);
    if (server->election == NULL && mc_core_has_changed(core) && mc_core_is_of_age(core))
        server->aged_epoch = atomic_load(&server->epoch);
    /* With an election another master may have been there as well. */
    if (server->election != NULL || mc_core_has_changed(core))
        server->idle_since_ms = 0;
    else if (server->idle_since_ms == 0)
        server->idle_since_ms = server->core_since_ms;
    mc_server_drop_connections(server);
    /* Before the memory is given back, which takes its time: nothing is said any more. */
    if (server->election != NULL)
        mc_election_yield(server->election, atomic_load(&server->epoch), wanted);
    mc_core_destroy(core);
    server->is_role_due = true;
}

/* At least the wanted epoch, which is above what a node has met. Another master may have begun after the same word,
 * and have ended, unknown to whoever tells us now: its epoch is not to be ours too. But it is none in which whoever
 * follows us could not believe, if that can be. */
static uint64_t epoch_above(uint64_t wanted)
{
    uint64_t now = mc_election_epoch_now(), latest = mc_core_epoch_latest(now);
    uint64_t room = (MC_EPOCH_MAX - MC_EPOCH_CARRY - wanted) / 2 + 1; /* never all that is left */
    uint64_t believed = latest > wanted + MC_EPOCH_CARRY ? latest - wanted : MC_EPOCH_CARRY;
    room = room < believed ? room : believed;
    uint64_t leapt = wanted + mc_random_u64() % (room < EPOCH_LEAP ? room : EPOCH_LEAP);
    return now > leapt ? now : leapt;
}

/* Becomes what the election says. Called where nothing points to a connection. 0 or negative. */
static int keep_role(struct mc_server *server)
{
    struct mc_election_role role;
    uint64_t wanted = server->core == NULL ? 0 : mc_core_wanted_epoch(server->core);
    if (server->core != NULL && !mc_server_may_serve(server)) {
        mc_log(WARNING, "leadership is over: all connections are closed, this master is a standby");
        core_end(server, 0);
    } else if (!mc_leadership_can_want(wanted)) {
        mc_log_limited(WARNING, "nodes say that they have met an epoch after which there is none: restart them");
    } else if (wanted > 0) {
        mc_log(WARNING, "epoch %llu at least is needed: this master begins again", (unsigned long long)wanted);
        core_end(server, wanted);
        if (server->election == NULL)
            return core_begin(server, epoch_above(wanted), NULL);
    }
    if (!server->is_role_due)
        return 0;
    server->is_role_due = false;
    if (server->election == NULL)
        return 0;
    mc_election_role(server->election, &role); /* whatever it was, the descriptor is read */
    if (server->core != NULL) {
        uint64_t depart_at_ms = mc_election_departed(server->election, atomic_load(&server->epoch));
        if (depart_at_ms != 0)
            mc_core_let_depart(server->core, server->now_ms, depart_at_ms);
        if (mc_election_has_said(server->election, MC_ELECTION_AGED, atomic_load(&server->epoch)))
            mc_core_let_age(server->core);
        server->is_role_due = !mc_server_may_serve(server);
        return 0;
    }
    if (role.epoch == 0 || role.epoch == atomic_load(&server->epoch))
        return 0;
    return core_begin(server, role.epoch, &role);
}

void mc_server_role(struct mc_server *server, struct mc_election_role *role)
{
    if (server->election != NULL) {
        mc_election_describe(server->election, role);
        return;
    }
    *role = (struct mc_election_role){.phase = MC_LEADERSHIP_LEADER, .epoch = atomic_load(&server->epoch)};
    role->leader_epoch = role->epoch;
    snprintf(role->leader, sizeof(role->leader), "%s", server->address);
}

void mc_server_describe(struct mc_server *server, struct mc_election_role *role)
{
    mc_server_role(server, role);
}

uint64_t mc_server_longest_turn_ns(const struct mc_server *server)
{
    uint64_t now = atomic_load_explicit(&server->longest_turn_ns[0], memory_order_relaxed);
    uint64_t before = atomic_load_explicit(&server->longest_turn_ns[1], memory_order_relaxed);
    return now > before ? now : before;
}

/* ---- the loop ---- */

/* Is there something to be done at the turn's end? A frame that is no activity may have left some. */
static bool is_pending(const struct mc_server *server)
{
    return server->ready.first != NULL || server->bulk.first != NULL ||
           (server->dirty.first != NULL && !server->is_held) || server->is_role_due;
}

/* Looks without waiting; true when something happened. */
static bool poll_events(struct mc_server *server)
{
    server->has_activity = false;
    (void)event_base_loop(server->base, EVLOOP_ONCE | EVLOOP_NONBLOCK);
    return server->has_activity;
}

/* Waits for something to happen. Spinning saves the wake-up of an idle processor (about 90 us on a virtual one), so it
 * pays when answers are asked for in quick succession; hits counts how often it paid. A blocked wait cannot tell
 * whether a spin would have ended it, hence a probe now and then, but only while waits are short: an idle master never
 * spins. */
static void wait_for_events(struct mc_server *server)
{
    uint64_t start_ns = mc_clock_ns();
    bool is_probe = server->wait_ns < SPIN_BUSY_NS && ++server->spin.probe % SPIN_PROBE_EVERY == 0;
    if (server->spin.hits > 0 || is_probe) {
        do {
            sched_yield(); /* first: what has just been answered must run before it can ask again */
            if (poll_events(server)) {
                mc_spin_hit(&server->spin);
                return;
            }
            if (is_pending(server))
                return;
        } while (mc_clock_ns() - start_ns < mc_spin_ns());
        mc_spin_miss(&server->spin);
    }
    server->has_activity = false;
    (void)event_base_loop(server->base, EVLOOP_ONCE);
    server->wait_ns = mc_clock_ns() - start_ns;
}

static void flush(struct mc_server *server)
{
    mc_server_flush(server);
    if (server->core != NULL && server->dirty.first == NULL)
        mc_core_sent(server->core);
}

int mc_server_run(struct mc_server *server)
{
    bool is_busy = true;
    int rc = 0;
    mc_exposed_say(MC_EXPOSED_MASTER, server->listener);
    on_report(-1, 0, server);
    while (!server->is_stopping && rc == 0) {
        if (is_busy)
            (void)poll_events(server);
        else
            wait_for_events(server);
        if (server->turn_ns == 0) /* else a callback has just begun it */
            mc_server_turn_enter(server);
        if (server->has_activity)
            server->active_ms = server->now_ms;
        rc = keep_role(server);
        if (rc < 0)
            break;
        mc_server_run_ready(server);
        patience_passes(server, server->now_ms);
        is_busy = tick(server);
        note_tell(server);
        cluster_keep(server);
        if (server->is_held)
            mc_server_hold(server);
        else if (server->core == NULL || mc_server_may_serve(server))
            flush(server);
        mc_server_turn_end(server);
        is_busy = is_busy || is_pending(server);
        if (server->is_crowded)
            sched_yield(); /* this thread never rests then: others of its processor have theirs all the same */
        server->is_crowded = false;
    }
    mc_mailbox_close(server->mailbox);
    return rc;
}

/* ---- life ---- */

static int open_signals(void)
{
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGHUP);
    if (pthread_sigmask(SIG_BLOCK, &signals, NULL) != 0)
        return -1;
    return signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC);
}

static void end_process(int number)
{
    (void)number;
    _exit(0); /* as a stop of one that serves */
}

/* A note can hang for ever before the loop reads any signal: meanwhile they end the process, which has told nobody
 * anything. All other threads have them blocked. By a handler: in a container it may be the first process, to which
 * the kernel delivers no signal that it has none for. */
static void signals_end_process(bool do_they)
{
    static struct sigaction before[2];
    static const int numbers[] = {SIGTERM, SIGINT};
    struct sigaction ends = {.sa_handler = end_process};
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    if (!do_they)
        (void)pthread_sigmask(SIG_BLOCK, &signals, NULL);
    for (unsigned i = 0; i < 2; i++)
        (void)sigaction(numbers[i], do_they ? &ends : &before[i], do_they ? &before[i] : NULL);
    if (do_they)
        (void)pthread_sigmask(SIG_UNBLOCK, &signals, NULL);
}

static int add_events(struct mc_server *server)
{
    static const struct timeval report = {REPORT_MS / 1000, 0};
    int mail = mc_mailbox_fd(server->mailbox), rc = 0;
    rc |= event_assign(&server->listen_event, server->base, server->listener, EV_READ | EV_PERSIST, mc_server_on_accept,
                       server);
    rc |= event_assign(&server->unix_event, server->base, server->unix_listener, EV_READ | EV_PERSIST,
                       mc_server_on_accept, server);
    rc |= event_assign(&server->crowd_event, server->base, server->crowd, EV_READ | EV_PERSIST, mc_server_on_crowd,
                       server);
    rc |= event_assign(&server->signal_event, server->base, server->signal_fd, EV_READ | EV_PERSIST, on_signal, server);
    rc |= event_assign(&server->mail_event, server->base, mail, EV_READ | EV_PERSIST, on_mail, server);
    if (server->election != NULL) {
        rc |= event_assign(&server->election_event, server->base, mc_election_fd(server->election),
                           EV_READ | EV_PERSIST, on_election, server);
        rc |= event_add(&server->election_event, NULL);
    }
    rc |= event_assign(&server->report_event, server->base, -1, EV_PERSIST, on_report, server);
    rc |= event_assign(&server->resume_event, server->base, -1, 0, mc_server_on_resume, server);
    rc |= event_assign(&server->tick_event, server->base, -1, 0, on_tick, server);
    if (rc == 0)
        rc = event_add(&server->listen_event, NULL) | event_add(&server->signal_event, NULL) |
             event_add(&server->mail_event, NULL) | event_add(&server->report_event, &report);
    if (rc == 0 && server->unix_listener >= 0)
        rc = event_add(&server->unix_event, NULL);
    if (rc == 0 && server->crowd >= 0)
        rc = event_add(&server->crowd_event, NULL);
    return rc == 0 ? 0 : MC_ERR_INTERNAL_ERROR;
}

static int prepare_election(struct mc_server *server, const struct mc_master_config *config, char *error,
                            size_t error_size)
{
    struct mc_election_backend backend;
    if (!config->ha_enabled)
        return 0;
    int rc = config->ha_is_lease
                 ? mc_election_k8s_create(config->ha_place, config->ha_lease_ttl_ms, &backend, error, error_size)
                 : mc_election_etcd_create(config->ha_place, config->cluster_id, config->ha_lease_ttl_ms, &backend,
                                           error, error_size);
    if (rc == 0)
        rc = mc_election_create(&backend, config->ha_lease_ttl_ms, config->etcd_compaction_ms, server->address,
                                &server->election);
    return rc;
}

/* What the master before us refused must not be believed for want of a descriptor: a note that could not be looked at
 * is waited for, and without it this master does not begin. */
static int open_note(struct mc_server *server, const struct mc_master_config *config, char *error, size_t error_size)
{
    char why[MC_NOTE_PATH_MAX + 128];
    int rc;
    for (unsigned waited_ms = 0; waited_ms <= NOTE_WAIT_MS; waited_ms += NOTE_LOOK_MS) {
        rc = mc_note_open(&server->note, config->state_dir, server->port, why, sizeof(why));
        if (rc != MC_ERR_NO_MEMORY) {
            if (rc < 0)
                mc_log(WARNING, "%s; the next master will not know of this one", why);
            return 0;
        }
        (void)poll(NULL, 0, NOTE_LOOK_MS);
    }
    snprintf(error, error_size, "%.400s: a note of the master before this one could not be read", why);
    return MC_ERR_NO_MEMORY;
}

/* Of which its operator has told it: those who come first are told, too, or would take us for whom they knew. */
static bool name_first(struct mc_server *server)
{
    if (!mc_core_asks_to_keep_cluster(server->core))
        return false;
    server->cluster = mc_core_cluster(server->core);
    return is_unnamed(server);
}

/* Without an election: what the master before us on this machine has left, and the first core. */
static int begin_alone(struct mc_server *server, const struct mc_master_config *config, char *error, size_t error_size)
{
    uint64_t now = mc_election_epoch_start();
    if (now == 0) {
        mc_election_clock_words(error, error_size);
        return MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS;
    }
    int rc = open_note(server, config, error, error_size);
    if (rc < 0)
        return rc;
    uint64_t taken = server->note.taken;
    bool is_late = now <= taken && mc_epoch_can_be(taken + MC_EPOCH_CARRY); /* our clock is, or was early then */
    rc = core_begin(server, is_late ? epoch_above(taken + MC_EPOCH_CARRY) : now, NULL);
    /* Nobody is served yet, so we may wait here. It is a part of the time in which nothing is said. */
    server->taking_since_ms = server->patience_ms = server->now_ms;
    bool names = rc == 0 && name_first(server);
    while ((server->is_taking || names) && rc == 0 &&
           server->patience_ms - server->taking_since_ms < NOTE_PATIENCE_MS) {
        (void)poll(NULL, 0, 1);
        patience_passes(server, mc_clock_boot_ms());
        if (server->is_taking)
            note_take(server, atomic_load(&server->epoch));
        names = name_first(server);
    }
    return rc;
}

/* Everything but the listener. */
static int prepare(struct mc_server *server, const struct mc_master_config *config, char *error, size_t error_size)
{
    server->now_ms = server->active_ms = mc_clock_boot_ms();
    server->signal_fd = open_signals();
    server->crowd = mc_crowd_open();
    server->base = event_base_new();
    server->connections = calloc(MC_SERVER_CONNECTIONS_MAX, sizeof(server->connections[0]));
    server->free_indices = calloc(MC_SERVER_CONNECTIONS_MAX, sizeof(server->free_indices[0]));
    server->mailbox = mc_mailbox_create();
    server->node = mc_random_id();
    server->core_config = config->core;
    mc_address_join(server->address, sizeof(server->address), config->rpc_address, server->port);
    int rc = prepare_election(server, config, error, error_size);
    if (rc < 0)
        return rc;
    if (server->signal_fd < 0 || server->base == NULL || server->connections == NULL || server->free_indices == NULL ||
        server->mailbox == NULL)
        return MC_ERR_NO_MEMORY;
    if (server->election == NULL) {
        signals_end_process(true);
        rc = begin_alone(server, config, error, error_size);
        signals_end_process(false);
    }
    if (rc < 0)
        return rc;
    char name[MC_MASTER_UNIX_MAX];
    mc_master_unix_name(name, sizeof(name), server->node);
    server->unix_listener = mc_unix_listen(name); /* peers of this machine do without it if it fails */
    rc = add_events(server);
    return rc == 0 && server->election != NULL ? mc_election_start(server->election) : rc;
}

int mc_server_create(const struct mc_master_config *config, struct mc_server **out, char *error, size_t error_size)
{
    struct mc_server *server = calloc(1, sizeof(*server));
    if (server == NULL)
        return MC_ERR_NO_MEMORY;
    server->signal_fd = server->unix_listener = server->crowd = server->note.fd = -1;
    server->port = config->rpc_port;
    server->report_metrics = config->report_metrics;
    server->quotas = config->quotas;
    server->core_made = config->core_made;
    server->pod = config->pod;
    server->pod_lead = config->pod_lead;
    server->wants_keys = mc_keys_are_wanted();
    server->sampler.history = config->history;
    server->sampler.events = config->events;
    server->slow = config->slow;
    server->kv_events = config->kv_events;
    server->output = (struct mc_core_output){server,
                                             mc_server_core_buffer,
                                             mc_server_core_close,
                                             core_log,
                                             mc_server_core_way,
                                             core_event,
                                             server->kv_events == NULL ? NULL : core_medium,
                                             config->slow == NULL ? NULL : mc_server_core_slow};
    server->stored_max = MC_SERVER_INPUT_ALL;
    server->dirty.last = &server->dirty.first;
    mc_link_init(&server->held);
    server->ready.last = &server->ready.first;
    server->bulk.last = &server->bulk.first;
    mc_file_limit_raise();
    uint64_t places = mc_file_limit() < MC_SERVER_CONNECTIONS_MAX ? mc_file_limit() : MC_SERVER_CONNECTIONS_MAX;
    server->share_max = config->connections_per_address != 0 ? config->connections_per_address
                                                             : (uint32_t)(places - places / MC_SERVER_SHARE_PARTS);
    server->listener = mc_server_listen(config->rpc_address, &server->port, "rpc_port", error, error_size);
    int rc = server->listener < 0 ? server->listener : prepare(server, config, error, error_size);
    if (rc == 0) {
        *out = server;
        return 0;
    }
    if (server->listener >= 0 && error[0] == 0)
        snprintf(error, error_size, "the server cannot be set up: %s", mc_error_text(rc));
    mc_server_destroy(server);
    return rc;
}

int mc_server_listen(const char *host, uint16_t *port, const char *flag, char *error, size_t error_size)
{
    uint16_t wanted = *port;
    int fd = mc_tcp_listen(host, port);
    if (fd >= 0)
        return fd;
    const char *advice = errno == EADDRINUSE      ? "stop the process that has it, or choose another port with --"
                         : errno == EACCES        ? "choose a port above 1023 with --"
                         : errno == EADDRNOTAVAIL ? "that is no address of this machine; choose another one beside --"
                                                  : "choose another with --";
    char address[MC_ADDRESS_MAX + 8];
    int reason = errno;
    mc_address_join(address, sizeof(address), host, wanted);
    snprintf(error, error_size, "cannot listen on %s (%s): %s; %s%s", address, flag, strerror(reason), advice, flag);
    return MC_ERR_RPC_FAIL;
}

void mc_server_destroy(struct mc_server *server)
{
    mc_server_drop_connections(server);
    if (!mc_note_close(&server->note))
        server->listener = -1; /* open for as long as the process: the next master is not to begin before that */
    mc_election_destroy(server->election); /* after the last word to anybody: now another may lead */
    if (server->core != NULL)
        mc_core_destroy(server->core);
    mc_mailbox_destroy(server->mailbox);
    if (server->base != NULL)
        event_base_free(server->base);
    free(server->connections);
    free(server->free_indices);
    mc_map_destroy(&server->shares);
    mc_fd_close(server->signal_fd);
    mc_fd_close(server->unix_listener);
    mc_fd_close(server->crowd);
    mc_fd_close(server->listener);
    free(server);
}

uint16_t mc_server_port(const struct mc_server *server)
{
    return server->port;
}
uint64_t mc_server_epoch(const struct mc_server *server)
{
    return atomic_load(&server->epoch);
}

int mc_server_ask(struct mc_server *server, mc_question *function, void *argument, uint64_t timeout_ms)
{
    return mc_mailbox_ask(server->mailbox, function, argument, timeout_ms);
}

int mc_server_ask_first(struct mc_server *server, mc_question *function, void *argument, uint64_t timeout_ms)
{
    return mc_mailbox_ask_first(server->mailbox, function, argument, timeout_ms);
}
