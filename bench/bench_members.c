/* A real master and the many who are its members: simulated owners that bring their contents to a master that knows
 * nothing, and simulated clients that send heartbeats all the while. What is asked: how long the recovery takes,
 * whether every heartbeat is answered in time, how long a client waits for an answer, and how long the master's loop
 * was away at most.
 *
 * bench_members [--owners 1000] [--objects 50000] [--clients 10000] [--seconds 10] [--master PROGRAM]: objects are per
 * owner; after the recovery the heartbeats go on for so many seconds. One thread; the master is a process of its own.
 */
#include "base/bytes.h"
#include "env/clock.h"
#include "env/limits.h"
#include "store/segment/layout.h"
#include "env/socket.h"
#include "tool/bench.h"
#include "tool/histogram.h"
#include "tool/process.h"
#include "store/wire/wire.h"

#include <errno.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define ITEMS 128u            /* of a frame of an inventory */
#define UNDER_WAY 8u          /* frames of an inventory that are not acknowledged */
#define LENGTH 4000u          /* of an object */
#define EXTENT 4160u          /* bytes from one object to the next */
#define BEAT_MS 1000u         /* between two heartbeats of one member */
#define MISSED_MS 700u        /* a heartbeat thread takes the master for gone after it */
#define ASK_US 2000u          /* between two questions of the client that is served meanwhile */
#define EPOCHS_BEFORE 100000u /* of the contents, before the master's */
#define PATIENCE_S 600u

enum kind { CLIENT, HEARTBEAT, OWNER, ASKER };

struct bench_party {
    enum kind kind;
    int fd;
    uint32_t number; /* among its kind */
    bool is_writing; /* EPOLLOUT is asked for */
    bool is_greeted, is_mounted, is_offered;
    uint32_t segment;                /* as the master numbers it, of owners and their heartbeat connections */
    uint32_t sequence, acknowledged; /* frames of the inventory */
    uint64_t asked_ns;               /* a heartbeat or question that is not answered; 0 = none */
    uint32_t unanswered;             /* heartbeats that came due meanwhile */
    struct mc_buffer in, out;
};

struct bench {
    uint32_t owners, objects, clients, seconds;
    struct mc_cluster cluster; /* the master alone */
    uint64_t epoch, begun_ns;
    int epoll;
    struct bench_party *parties; /* clients, heartbeat connections, owners, the asker */
    size_t count;
    uint32_t greeted, offered;
    uint64_t beats, missed;
    double longest_us;                           /* turn of the master's loop */
    struct mc_histogram beat_delays, ask_delays; /* ns */
    uint8_t received[256u << 10];
};

static void give_up(const char *what)
{
    fprintf(stderr, "bench_members: %s (%s)\n", what, strerror(errno));
    exit(1);
}

/* ---- what the machine took for itself: a virtual machine's processor may be away, and no program on it can do
 * anything ---- */

/* Of one processor: for how long a thread that goes before all others was not let run when it was due. */
struct bench_pause {
    pthread_t thread;
    _Atomic uint64_t longest_ns;
};

static struct bench_pause pauses[1024];
static unsigned pause_count;

static void *watch_processor(void *data)
{
    struct bench_pause *pause = data;
    for (;;) {
        uint64_t due_ns = mc_clock_ns() + 1000000;
        struct timespec due = {(time_t)(due_ns / 1000000000), (long)(due_ns % 1000000000)};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL) == EINTR)
            continue;
        uint64_t now_ns = mc_clock_ns();
        if (now_ns > due_ns + atomic_load(&pause->longest_ns))
            atomic_store(&pause->longest_ns, now_ns - due_ns);
    }
    return NULL;
}

static void watch_processors(void)
{
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0)
        give_up("sched_getaffinity");
    for (size_t i = 0; i < CPU_SETSIZE; i++) {
        if (!CPU_ISSET(i, &allowed))
            continue;
        struct bench_pause *pause = &pauses[pause_count++];
        struct sched_param first = {.sched_priority = 1};
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(i, &one);
        if (pthread_create(&pause->thread, NULL, watch_processor, pause) != 0)
            give_up("pthread_create");
        if (pthread_setaffinity_np(pause->thread, sizeof(one), &one) != 0 ||
            pthread_setschedparam(pause->thread, SCHED_FIFO, &first) != 0)
            fprintf(stderr,
                    "bench_members: without the right to SCHED_FIFO the pauses below are also this program's\n");
    }
}

static double longest_pause_ms(void)
{
    uint64_t longest_ns = 0;
    for (unsigned i = 0; i < pause_count; i++) {
        uint64_t ns = atomic_load(&pauses[i].longest_ns);
        longest_ns = ns > longest_ns ? ns : longest_ns;
    }
    return (double)longest_ns / 1e6;
}

/* Seconds of all processors that the host of this virtual machine took, since it started; 0 where that is not known. */
static double stolen_seconds(void)
{
    unsigned long long part[8] = {0};
    FILE *file = fopen("/proc/stat", "re");
    if (file == NULL)
        return 0;
    int count = fscanf(file, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &part[0], &part[1], &part[2], &part[3],
                       &part[4], &part[5], &part[6], &part[7]);
    (void)fclose(file);
    return count == 8 ? (double)part[7] / (double)sysconf(_SC_CLK_TCK) : 0;
}

/* One line, and all is forgotten. */
static void delays_print(struct mc_histogram *delays, const char *what)
{
    if (delays->count > 0)
        printf("  %-34s %8zu, ms: median %.2f, p99 %.2f, p99.9 %.2f, max %.2f\n", what, (size_t)delays->count,
               (double)mc_histogram_quantile(delays, 0.5) / 1e6, (double)mc_histogram_quantile(delays, 0.99) / 1e6,
               (double)mc_histogram_quantile(delays, 0.999) / 1e6, (double)delays->max / 1e6);
    memset(delays, 0, sizeof(*delays));
}

/* The value of a metric of the master. */
static double metric(const struct bench *bench, const char *name)
{
    double value = -1;
    if (!mc_cluster_metric(bench->cluster.metrics_address, name, &value))
        give_up("the master's metrics");
    return value;
}

/* The metric remembers ten seconds at least. */
static void note_turn(struct bench *bench)
{
    double longest_us = metric(bench, "mooncake_loop_longest_turn_seconds") * 1e6;
    bench->longest_us = longest_us > bench->longest_us ? longest_us : bench->longest_us;
}

/* ---- what is said ---- */

/* Since the master before this one was last heard of: it ended a second before the bench began. */
static uint32_t contact_age_ms(const struct bench *bench)
{
    return (uint32_t)((mc_clock_ns() - bench->begun_ns) / 1000000 + 1000);
}

static void say_hello(const struct bench *bench, struct bench_party *party)
{
    static const uint8_t roles[] = {MC_ROLE_HEARTBEAT, MC_ROLE_HEARTBEAT, MC_ROLE_OWNER, MC_ROLE_CALL};
    bool is_node = party->kind == HEARTBEAT || party->kind == OWNER;
    struct mc_wire_hello hello = {.magic = MC_WIRE_MAGIC,
                                  .version_min = MC_WIRE_VERSION_MIN,
                                  .version_max = MC_WIRE_VERSION_MAX,
                                  .role = roles[party->kind],
                                  .node = {party->number + 1, is_node                ? 1
                                                              : party->kind == ASKER ? 2
                                                                                     : 3},
                                  .incarnation = 1,
                                  .name = mc_span_string("bench"),
                                  .seen_epoch = is_node ? bench->epoch - EPOCHS_BEFORE : 0,
                                  .seen_age_ms = is_node ? contact_age_ms(bench) : UINT32_MAX};
    size_t frame = mc_frame_begin(&party->out, MC_MESSAGE_HELLO, 1);
    mc_wire_hello_write(&party->out, &hello);
    mc_frame_end(&party->out, frame);
}

static void say_mount(const struct bench *bench, struct bench_party *party)
{
    uint64_t capacity = (uint64_t)bench->objects * EXTENT + 65536;
    char name[32], address[32];
    (void)snprintf(name, sizeof(name), "node-%u", (unsigned)party->number);
    (void)snprintf(address, sizeof(address), "127.0.0.1:%u", 1024u + (unsigned)party->number);
    struct mc_wire_mount mount = {.segment_id = {party->number + 1, 7},
                                  .capacity = capacity,
                                  .populated = capacity,
                                  .slot_count = bench->objects + 64,
                                  .nonce = 1,
                                  .epoch = bench->epoch - EPOCHS_BEFORE,
                                  .host = {party->number + 1, 9},
                                  .name = mc_span_string(name),
                                  .tcp_address = mc_span_string(address),
                                  .contact_age_ms = contact_age_ms(bench),
                                  .slot_top = bench->objects};
    size_t frame = mc_frame_begin(&party->out, MC_MESSAGE_MOUNT, 2);
    mc_wire_mount_write(&party->out, &mount);
    mc_frame_end(&party->out, frame);
}

static void say_inventory(const struct bench *bench, struct bench_party *party)
{
    uint32_t from = party->sequence * ITEMS;
    uint32_t count = bench->objects - from < ITEMS ? bench->objects - from : ITEMS;
    struct mc_wire_inventory head = {
        .segment = party->segment, .sequence = party->sequence, .last = from + count == bench->objects};
    char key[48];
    size_t frame = mc_frame_begin(&party->out, MC_MESSAGE_INVENTORY, 0);
    mc_wire_inventory_write(&party->out, &head);
    size_t list = mc_list_begin(&party->out);
    for (uint32_t i = from; i < from + count; i++) {
        uint64_t number = ((uint64_t)party->number << 32 | i) * 0x9e3779b97f4a7c15u;
        (void)snprintf(key, sizeof(key), "model-7b/layer-00/block-%016" PRIx64, number);
        struct mc_wire_inventory_item item = {.slot = i,
                                              .state = 1,
                                              .generation = ((bench->epoch - EPOCHS_BEFORE) << MC_EPOCH_SHIFT) + 1 +
                                                            (uint64_t)party->number * bench->objects + i,
                                              .offset = (uint64_t)i * EXTENT,
                                              .length = LENGTH,
                                              .key = mc_span(key, 40)};
        mc_wire_inventory_item_write(&party->out, &item);
    }
    mc_list_end(&party->out, list, count);
    mc_frame_end(&party->out, frame);
    party->sequence++;
}

static void say_heartbeat(struct bench *bench, struct bench_party *party)
{
    if (party->asked_ns != 0) {
        party->unanswered++;
        return;
    }
    const struct bench_party *owner = party->kind == HEARTBEAT ? party + bench->owners : NULL;
    bool has_segment = owner != NULL && owner->is_mounted;
    struct mc_wire_heartbeat head = {.epoch = bench->epoch};
    size_t frame = mc_frame_begin(&party->out, MC_MESSAGE_HEARTBEAT, 3);
    mc_wire_heartbeat_write(&party->out, &head);
    size_t list = mc_list_begin(&party->out);
    if (has_segment) {
        struct mc_wire_heartbeat_segment item = {.segment = owner->segment,
                                                 .populated = (uint64_t)bench->objects * EXTENT + 65536};
        mc_wire_heartbeat_segment_write(&party->out, &item);
    }
    mc_list_end(&party->out, list, has_segment ? 1 : 0);
    mc_frame_end(&party->out, frame);
    party->asked_ns = mc_clock_ns();
    bench->beats++;
}

static void say_exist(struct bench_party *party)
{
    size_t frame = mc_frame_begin(&party->out, MC_MESSAGE_EXIST, 4);
    mc_wire_none_write(&party->out, &(struct mc_wire_none){0});
    size_t list = mc_list_begin(&party->out);
    mc_wire_key_write(&party->out, &(struct mc_wire_key){.key = mc_span_string("nothing")});
    mc_list_end(&party->out, list, 1);
    mc_frame_end(&party->out, frame);
    party->asked_ns = mc_clock_ns();
}

/* ---- what is heard ---- */

static void hear(struct bench *bench, struct bench_party *party, const struct mc_frame *frame)
{
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length);
    uint64_t waited_ns = party->asked_ns == 0 ? 0 : mc_clock_ns() - party->asked_ns;
    if (frame->type == MC_MESSAGE_HELLO_REPLY) {
        struct mc_wire_hello_reply reply;
        mc_wire_hello_reply_read(&reader, &reply);
        if (reply.code != 0)
            give_up("a member was refused");
        bench->epoch = bench->epoch == 0 ? reply.epoch : bench->epoch;
        party->is_greeted = true;
        bench->greeted++;
        if (party->kind == OWNER)
            say_mount(bench, party);
    } else if (frame->type == MC_MESSAGE_MOUNT_REPLY) {
        struct mc_wire_mount_reply reply;
        mc_wire_mount_reply_read(&reader, &reply);
        if (reply.code != 0 || reply.inventory == 0)
            give_up("a mount was refused");
        party->segment = reply.segment;
        party->is_mounted = true;
        while (party->sequence < UNDER_WAY && party->sequence * ITEMS < bench->objects)
            say_inventory(bench, party);
    } else if (frame->type == MC_MESSAGE_INVENTORY_ACK) {
        struct mc_wire_inventory_ack reply;
        mc_wire_inventory_ack_read(&reader, &reply);
        if (reply.code != 0)
            give_up("an inventory was refused");
        party->acknowledged++;
        if (party->sequence * ITEMS < bench->objects)
            say_inventory(bench, party);
    } else if (frame->type == MC_MESSAGE_OFFERED) {
        party->is_offered = true;
        bench->offered++;
    } else if (frame->type == MC_MESSAGE_HEARTBEAT_REPLY) {
        mc_histogram_add(&bench->beat_delays, waited_ns);
        bench->missed += waited_ns > MISSED_MS * 1000000ull;
        party->asked_ns = 0;
    } else if (frame->type == MC_MESSAGE_EXIST_REPLY) {
        mc_histogram_add(&bench->ask_delays, waited_ns);
        party->asked_ns = 0;
    } else if (frame->type == MC_MESSAGE_PING) {
        mc_frame_bare(&party->out, MC_MESSAGE_PONG, frame->request_id);
    }
}

static void write_out(const struct bench *bench, struct bench_party *party)
{
    while (party->out.length > 0) {
        ssize_t sent = send(party->fd, party->out.data, party->out.length, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno != EAGAIN)
            give_up("the master has closed a connection");
        if (sent < 0)
            break;
        mc_buffer_consume(&party->out, (size_t)sent);
    }
    bool wants = party->out.length > 0;
    if (wants != party->is_writing) {
        struct epoll_event event = {.events = EPOLLIN | (wants ? EPOLLOUT : 0u), .data.ptr = party};
        if (epoll_ctl(bench->epoll, EPOLL_CTL_MOD, party->fd, &event) != 0)
            give_up("epoll");
        party->is_writing = wants;
    }
}

static void read_in(struct bench *bench, struct bench_party *party)
{
    ssize_t got = recv(party->fd, bench->received, sizeof(bench->received), MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN))
        give_up("the master has closed a connection");
    if (got < 0)
        return;
    mc_buffer_append(&party->in, bench->received, (size_t)got);
    struct mc_frame frame;
    size_t used = 0, at = 0;
    while (mc_frame_parse(party->in.data + at, party->in.length - at, &frame, &used) == 1) {
        hear(bench, party, &frame);
        at += used;
    }
    mc_buffer_consume(&party->in, at);
    if (party->in.length == 0 && party->in.capacity > 4096)
        mc_buffer_free(&party->in);
}

/* ---- the loop ---- */

/* One look at everything; waits for at most a millisecond. */
static void step(struct bench *bench)
{
    static struct epoll_event events[512];
    int count = epoll_wait(bench->epoll, events, 512, 1);
    for (int i = 0; i < count; i++) {
        struct bench_party *party = events[i].data.ptr;
        if ((events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0)
            read_in(bench, party);
        write_out(bench, party);
    }
}

struct beats { /* members take turns, so that each has one beat in BEAT_MS */
    uint64_t begun_ns, done;
    uint64_t asked_ns;
};

static void beat(struct bench *bench, struct beats *beats)
{
    uint64_t now_ns = mc_clock_ns(), members = bench->clients + bench->owners;
    uint64_t due = (now_ns - beats->begun_ns) / 1000 * members / (BEAT_MS * 1000ull);
    for (; beats->done < due; beats->done++) {
        struct bench_party *party = &bench->parties[beats->done % members];
        if (!party->is_greeted)
            continue;
        say_heartbeat(bench, party);
        write_out(bench, party);
    }
    struct bench_party *asker = &bench->parties[bench->count - 1];
    if (asker->asked_ns == 0 && now_ns - beats->asked_ns > ASK_US * 1000ull) {
        beats->asked_ns = now_ns;
        say_exist(asker);
        write_out(bench, asker);
    }
}

static void join(struct bench *bench, struct bench_party *party)
{
    uint64_t deadline_ns = mc_clock_ns() + 10000000000ull;
    party->fd = mc_tcp_connect(bench->cluster.master_address, deadline_ns);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = party};
    if (party->fd < 0 || epoll_ctl(bench->epoll, EPOLL_CTL_ADD, party->fd, &event) != 0)
        give_up("a member cannot connect");
    say_hello(bench, party);
    write_out(bench, party);
}

static double seconds_since(uint64_t begun_ns)
{
    return (double)(mc_clock_ns() - begun_ns) / 1e9;
}

static void prepare(struct bench *bench)
{
    bench->count = bench->clients + 2 * (size_t)bench->owners + 1;
    bench->parties = calloc(bench->count, sizeof(bench->parties[0]));
    bench->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (bench->parties == NULL || bench->epoll < 0)
        give_up("out of memory");
    for (size_t i = 0; i < bench->count; i++) {
        struct bench_party *party = &bench->parties[i];
        size_t at = i;
        party->kind = i == bench->count - 1                ? ASKER
                      : i < bench->clients                 ? CLIENT
                      : i < bench->clients + bench->owners ? HEARTBEAT
                                                           : OWNER;
        at -= party->kind == HEARTBEAT ? bench->clients : party->kind == OWNER ? bench->clients + bench->owners : 0;
        party->number = (uint32_t)at;
    }
    struct bench_party *asker = &bench->parties[bench->count - 1];
    join(bench, asker);
    while (!asker->is_greeted)
        step(bench);
}

static void run(struct bench *bench)
{
    struct beats beats;
    uint64_t begun_ns = mc_clock_ns(), empty = mc_process_resident(bench->cluster.master.pid);
    for (size_t i = 0; i < bench->clients; i++) {
        join(bench, &bench->parties[i]);
        if (i % 64 == 63)
            step(bench);
    }
    while (bench->greeted < bench->clients + 1)
        step(bench);
    printf("%u clients joined in %.2f s, %.1f KiB each at the master\n", bench->clients, seconds_since(begun_ns),
           (double)(mc_process_resident(bench->cluster.master.pid) - empty) / 1024 / bench->clients);
    (void)fflush(stdout);

    begun_ns = mc_clock_ns();
    beats = (struct beats){begun_ns, 0, 0};
    for (size_t i = bench->clients; i < bench->count - 1; i++) {
        join(bench, &bench->parties[i]);
        if (i % 64 == 63) {
            step(bench);
            beat(bench, &beats);
        }
    }
    uint64_t told_s = 0;
    double stolen = stolen_seconds();
    while (bench->offered < bench->owners) {
        step(bench);
        beat(bench, &beats);
        uint64_t now_s = (uint64_t)seconds_since(begun_ns);
        if (now_s >= told_s + 5) {
            uint64_t frames = 0;
            told_s = now_s;
            note_turn(bench);
            for (size_t i = bench->clients + bench->owners; i < bench->count - 1; i++)
                frames += bench->parties[i].acknowledged;
            fprintf(stderr, "  %" PRIu64 " s: %.1f M objects told, %u of %u owners offered\n", now_s,
                    (double)frames * ITEMS / 1e6, bench->offered, bench->owners);
        }
        if (now_s > PATIENCE_S)
            give_up("the recovery does not end");
    }
    double took = seconds_since(begun_ns);
    printf("%.1f M objects of %u owners recovered in %.2f s (%.2f M/s), the master has %.2f GiB\n",
           (double)bench->owners * bench->objects / 1e6, bench->owners, took,
           (double)bench->owners * bench->objects / 1e6 / took,
           (double)mc_process_resident(bench->cluster.master.pid) / (1 << 30));
    delays_print(&bench->beat_delays, "heartbeats answered meanwhile");
    delays_print(&bench->ask_delays, "existence checks meanwhile");
    note_turn(bench);
    printf("  longest turn of the master's loop  %.2f ms; the machine's longest pause of a processor %.2f ms, "
           "%.1f %% of their time went to its host\n",
           bench->longest_us / 1e3, longest_pause_ms(), 100 * (stolen_seconds() - stolen) / took / pause_count);
    (void)fflush(stdout);

    begun_ns = mc_clock_ns();
    while (seconds_since(begun_ns) < bench->seconds) {
        step(bench);
        beat(bench, &beats);
    }
    printf("%u s of %u members at rest\n", bench->seconds, bench->clients + bench->owners);
    delays_print(&bench->beat_delays, "heartbeats answered");
    delays_print(&bench->ask_delays, "existence checks");
    uint64_t skipped = 0;
    for (size_t i = 0; i < bench->count; i++)
        skipped += bench->parties[i].unanswered;
    printf("heartbeats: %" PRIu64 " sent, %" PRIu64 " answered after %u ms or later, %" PRIu64
           " not sent because the one before had no answer\n",
           bench->beats, bench->missed, MISSED_MS, skipped);
    printf("objects at the master: %.0f\n", metric(bench, "master_key_count"));
}

#define NUMBER .minimum = 1, .maximum = 100000000

static const struct mc_option option_table[] = {
    ROW("owners", INT, "1000", "simulated owners", NUMBER),
    ROW("objects", INT, "50000", "that each of them brings", NUMBER),
    ROW("clients", INT, "10000", "simulated clients", NUMBER),
    ROW("seconds", INT, "10", "of heartbeats after the recovery", NUMBER),
    ROW("master", TEXT, "", "program; empty: the mooncake_master of the build"),
    ROW("help", BOOL, "false", "prints this"),
};

static void start_master(struct bench *bench, const char *program)
{
    char beside[PATH_MAX];
    (void)snprintf(beside, sizeof(beside), "%s/../mooncake_master", dirname(mc_self_path()));
    struct mc_cluster_config config = {.master_binary = program != NULL ? program : beside};
    if (mc_cluster_start(&bench->cluster, &config) != 0)
        give_up("the master does not start");
}

int main(int argc, char **argv)
{
    static struct bench bench;
    struct mc_options options;
    int rc;
    if (!mc_bench_options(&options, option_table, sizeof(option_table) / sizeof(option_table[0]), "bench_members",
                          " [options]\nA master that learns what many owners have, while clients send heartbeats.\n",
                          argc, argv, &rc))
        return rc;
    bench.owners = (uint32_t)mc_options_int(&options, "owners");
    bench.objects = (uint32_t)mc_options_int(&options, "objects");
    bench.clients = (uint32_t)mc_options_int(&options, "clients");
    bench.seconds = (uint32_t)mc_options_int(&options, "seconds");
    size_t wanted = bench.clients + 2 * (size_t)bench.owners + 64;
    mc_file_limit_raise();
    if (mc_file_limit() < wanted)
        return mc_bench_fail(1, "bench_members: %zu descriptors are needed, the limit is %" PRIu64, wanted,
                             mc_file_limit());
    bench.begun_ns = mc_clock_ns();
    start_master(&bench, mc_bench_text(&options, "master"));
    watch_processors();
    prepare(&bench);
    run(&bench);
    mc_cluster_stop(&bench.cluster);
    mc_options_free(&options);
    return bench.missed == 0 ? 0 : 1;
}
