/* How fast the master's core is by itself, and what an object weighs: exist in batches of 128, put start + live,
 * resident bytes per object with keys of 40 bytes, and the longest single call while the table grows. Argument: objects
 * (default 1,000,000).
 *
 * bench_core recover [objects]: a master that learns them (default 50,000,000) from inventories of simulated owners:
 * time and resident bytes. bench_core evict [more] [fewer]: what an eviction costs with so many objects (defaults
 * 10,000,000 and 100,000).
 *
 * bench_core cost [objects] [events]: what `./dev bench cost` compares, a name and a number a line; "events": each key
 * that becomes readable, or is so no more, is written into the ring of KV events. */
#include "store/core/core.h"
#include "store/master/kv_events.h"
#include "env/clock.h"
#include "store/segment/layout.h"
#include "tool/process.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BATCH 128u
#define SEGMENTS 4u
#define LENGTH 4000u
#define EPOCH 5u
#define OWNERS 16u /* of the recovery */
#define ITEMS 128u /* of a frame of an inventory */

struct bench {
    struct mc_core *core;
    struct mc_buffer out[8 + OWNERS], in; /* by connection */
    double longest_us;
};

static struct mc_buffer *get_buffer(void *context, uint64_t connection)
{
    struct bench *bench = context;
    return &bench->out[connection];
}
static void closed(void *context, uint64_t connection)
{
    (void)context;
    fprintf(stderr, "connection %" PRIu64 " was closed\n", connection);
    exit(1);
}

static double now_s(void)
{
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time); /* not disturbed by what else runs on the machine */
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static size_t resident(void)
{
    return mc_process_resident(getpid());
}

static void send_frame(struct bench *bench, uint64_t connection)
{
    struct mc_frame frame;
    size_t used;
    if (mc_frame_parse(bench->in.data, bench->in.length, &frame, &used) != 1)
        exit(1);
    double start = now_s();
    mc_core_input(bench->core, 1, connection, &frame);
    double us = (now_s() - start) * 1e6;
    if (us > bench->longest_us)
        bench->longest_us = us;
}

static struct mc_core_config config;
static struct mc_kv_events *events; /* NULL: nobody wants to know */

static void moved(void *context, struct mc_span key, enum mc_core_medium medium, bool is_there)
{
    (void)context;
    mc_kv_events_add(events, mc_clock_wall_ms(), medium, is_there, key); /* as the master's shell does */
}

static void start(struct bench *bench, uint64_t epoch, uint64_t recovery_window_ms)
{
    static struct mc_core_output output;
    memset(bench, 0, sizeof(*bench));
    config = mc_core_config_default();
    config.recovery_window_ms = recovery_window_ms;
    output = (struct mc_core_output){bench, get_buffer, closed, NULL, NULL, NULL, events == NULL ? NULL : moved, NULL};
    bench->core = mc_core_create(&config, &output, (struct mc_id){1, 2}, epoch, 7, 0);
    if (bench->core == NULL)
        exit(1);
}

static void free_buffers(struct bench *bench)
{
    for (unsigned i = 0; i < 8 + OWNERS; i++)
        mc_buffer_free(&bench->out[i]);
    mc_buffer_free(&bench->in);
}

static void stop(struct bench *bench)
{
    mc_core_destroy(bench->core);
    free_buffers(bench);
}

static void join(struct bench *bench, uint64_t connection, uint8_t role, struct mc_id node)
{
    struct mc_wire_hello hello = {
        .magic = MC_WIRE_MAGIC, .version_min = 1, .version_max = 1, .role = role, .node = node, .incarnation = 1};
    mc_core_connected(bench->core, 1, connection);
    bench->in.length = 0;
    size_t frame = mc_frame_begin(&bench->in, MC_MESSAGE_HELLO, 1);
    mc_wire_hello_write(&bench->in, &hello);
    mc_frame_end(&bench->in, frame);
    send_frame(bench, connection);
    bench->out[connection].length = 0;
}

static void mount(struct bench *bench, uint64_t connection, struct mc_wire_mount mount)
{
    mount.populated = mount.capacity;
    mount.slot_count = mc_slot_count(mount.capacity);
    mount.name = mc_span_string("bench");
    bench->in.length = 0;
    size_t frame = mc_frame_begin(&bench->in, MC_MESSAGE_MOUNT, 1);
    mc_wire_mount_write(&bench->in, &mount);
    mc_frame_end(&bench->in, frame);
    send_frame(bench, connection);
    bench->out[connection].length = 0;
}

/* A client, and an owner whose segments have room for so many objects. */
static void join_both(struct bench *bench, uint64_t objects)
{
    join(bench, 1, MC_ROLE_CALL, (struct mc_id){5, 5});
    join(bench, 2, MC_ROLE_OWNER, (struct mc_id){5, 5});
    for (uint64_t i = 1; i <= SEGMENTS; i++)
        mount(bench, 2, (struct mc_wire_mount){.segment_id = {i, i}, .capacity = objects * 4096 / SEGMENTS / 80 * 100});
}

static void key_of(char key[41], uint64_t number)
{
    (void)snprintf(key, 41, "model-7b/layer-00/block-%016" PRIx64, number * (uint64_t)0x9e3779b97f4a7c15);
}

static void put_batch(struct bench *bench, uint64_t first, uint32_t count)
{
    struct mc_wire_put_start head = {.replica_count = 1};
    char key[41];
    bench->in.length = 0;
    size_t frame = mc_frame_begin(&bench->in, MC_MESSAGE_PUT_START, 1);
    mc_wire_put_start_write(&bench->in, &head);
    size_t list = mc_list_begin(&bench->in);
    for (uint32_t i = 0; i < count; i++) {
        key_of(key, first + i);
        struct mc_wire_put_start_item item = {.length = LENGTH, .key = mc_span(key, 40)};
        mc_wire_put_start_item_write(&bench->in, &item);
    }
    mc_list_end(&bench->in, list, count);
    mc_list_empty(&bench->in);
    mc_list_empty(&bench->in);
    mc_frame_end(&bench->in, frame);
    send_frame(bench, 1);
}

/* Answers every grant of the last PUT_GRANTED; how many there were. */
static uint32_t live_batch(struct bench *bench)
{
    static struct mc_wire_place places[MC_BATCH_MAX];
    struct mc_frame frame;
    size_t used;
    if (mc_frame_parse(bench->out[1].data, bench->out[1].length, &frame, &used) != 1 ||
        frame.type != MC_MESSAGE_PUT_GRANTED)
        exit(1);
    struct mc_reader reader = mc_reader(frame.body.data, frame.body.length);
    struct mc_wire_none none;
    struct mc_wire_granted granted;
    mc_wire_none_read(&reader, &none);
    for (uint32_t items = mc_list_read(&reader); items > 0; items--)
        mc_wire_granted_read(&reader, &granted);
    uint32_t count = mc_list_read(&reader);
    for (uint32_t i = 0; i < count; i++)
        mc_wire_place_read(&reader, &places[i]);
    for (uint32_t i = 0; i < count;) {
        struct mc_wire_live head = {.segment = places[i].segment};
        uint32_t same = 0;
        bench->in.length = 0;
        size_t at = mc_frame_begin(&bench->in, MC_MESSAGE_LIVE, 0);
        mc_wire_live_write(&bench->in, &head);
        size_t list = mc_list_begin(&bench->in);
        for (; i < count && places[i].segment == head.segment; i++, same++) {
            struct mc_wire_live_item item = {.slot = places[i].slot, .generation = places[i].generation};
            mc_wire_live_item_write(&bench->in, &item);
        }
        mc_list_end(&bench->in, list, same);
        mc_frame_end(&bench->in, at);
        send_frame(bench, 2);
    }
    bench->out[1].length = 0;
    return count;
}

/* The owner does what it is told. */
static void obey(struct bench *bench)
{
    struct mc_buffer told = bench->out[2];
    bench->out[2] = (struct mc_buffer){0};
    struct mc_frame frame;
    size_t used;
    for (size_t at = 0; at < told.length; at += used) {
        if (mc_frame_parse(told.data + at, told.length - at, &frame, &used) != 1 || frame.type != MC_MESSAGE_CLEAR)
            exit(1);
        frame.type = MC_MESSAGE_CLEARED; /* the same records */
        mc_core_input(bench->core, 1, 2, &frame);
    }
    mc_buffer_free(&told);
}

static double put_all(struct bench *bench, uint64_t first, uint64_t count, uint32_t batch)
{
    double start = now_s();
    uint64_t granted = 0;
    for (uint64_t done = 0; done < count; done += batch) {
        put_batch(bench, first + done, batch);
        granted += live_batch(bench);
        obey(bench);
        (void)mc_core_tick(bench->core, 1);
    }
    double seconds = now_s() - start;
    if (granted < count)
        printf("  (%" PRIu64 " of %" PRIu64 " were granted at the first attempt)\n", granted, count);
    return (double)count / seconds;
}

/* Keys per second over `window` keys again and again. Frames are made beforehand; what is measured is the core. */
static double ask_all(struct bench *bench, enum mc_message message, uint64_t first, uint64_t window, uint64_t total)
{
    uint64_t frames = window / BATCH, asked = 0;
    struct mc_buffer *made = calloc(frames, sizeof(*made));
    char key[41];
    if (made == NULL)
        exit(1);
    for (uint64_t f = 0; f < frames; f++) {
        struct mc_wire_none none = {0};
        struct mc_wire_get get = {0};
        if (message == MC_MESSAGE_GET)
            mc_wire_get_write(&made[f], &get);
        else
            mc_wire_none_write(&made[f], &none);
        size_t list = mc_list_begin(&made[f]);
        for (uint32_t i = 0; i < BATCH; i++) {
            key_of(key, first + (f * BATCH + i) * 7919 % window);
            struct mc_wire_key item = {.key = mc_span(key, 40)};
            mc_wire_key_write(&made[f], &item);
        }
        mc_list_end(&made[f], list, BATCH);
    }
    double start = now_s();
    while (asked < total) {
        for (uint64_t f = 0; f < frames; f++) {
            struct mc_frame frame = {message, 0, 1, mc_span(made[f].data, made[f].length)};
            mc_core_input(bench->core, 1, 1, &frame);
            bench->out[1].length = 0;
        }
        asked += frames * BATCH;
    }
    double seconds = now_s() - start;
    for (uint64_t f = 0; f < frames; f++)
        mc_buffer_free(&made[f]);
    free(made);
    return (double)asked / seconds;
}

static double exist_all(struct bench *bench, uint64_t first, uint64_t window, uint64_t total)
{
    return ask_all(bench, MC_MESSAGE_EXIST, first, window, total);
}

/* Ticks until the work is done; the longest of them, and the sum, in microseconds. */
static double ticks(struct bench *bench, double *sum)
{
    double longest = 0;
    *sum = 0;
    for (bool more = true; more;) {
        double start = now_s();
        more = mc_core_tick(bench->core, 1) <= 1;
        double us = (now_s() - start) * 1e6;
        longest = us > longest ? us : longest;
        *sum += us;
        obey(bench);
    }
    return longest;
}

/* Everything that matches goes; nothing does when the pattern fits no key. */
static void remove_matching(struct bench *bench, const char *pattern, const char *what)
{
    struct mc_wire_remove_regex head = {.force = 1, .pattern = mc_span_string(pattern)};
    double sum;
    bench->in.length = 0;
    size_t frame = mc_frame_begin(&bench->in, MC_MESSAGE_REMOVE_REGEX, 1);
    mc_wire_remove_regex_write(&bench->in, &head);
    mc_frame_end(&bench->in, frame);
    send_frame(bench, 1);
    double longest = ticks(bench, &sum);
    printf("%-30s %10.1f ms in slices of at most %.0f us\n", what, sum / 1e3, longest);
    bench->out[1].length = 0;
}

/* The owner dies: its segments are swept. */
static void sweep(struct bench *bench)
{
    double sum;
    for (uint32_t number = 1; number <= SEGMENTS; number++) {
        struct mc_wire_unmount head = {.segment = number};
        bench->in.length = 0;
        size_t frame = mc_frame_begin(&bench->in, MC_MESSAGE_UNMOUNT, 1);
        mc_wire_unmount_write(&bench->in, &head);
        mc_frame_end(&bench->in, frame);
        send_frame(bench, 2);
        bench->out[2].length = 0;
    }
    double longest = ticks(bench, &sum);
    printf("sweep of all segments          %10.1f ms in slices of at most %.0f us\n", sum / 1e3, longest);
}

/* ---- recovery ---- */

/* Slots come in an order of their own, as they do after a long life. */
static void tell(struct bench *bench, uint32_t owner, uint32_t sequence, uint32_t slots)
{
    struct mc_wire_inventory head = {
        .segment = owner + 1, .sequence = sequence, .last = (sequence + 1) * ITEMS >= slots};
    uint32_t from = sequence * ITEMS, count = slots - from < ITEMS ? slots - from : ITEMS;
    char key[41];
    bench->in.length = 0;
    size_t frame = mc_frame_begin(&bench->in, MC_MESSAGE_INVENTORY, 0);
    mc_wire_inventory_write(&bench->in, &head);
    size_t list = mc_list_begin(&bench->in);
    for (uint32_t i = from; i < from + count; i++) {
        uint64_t slot = (uint64_t)(i / ITEMS) * ITEMS + (count == ITEMS ? i % ITEMS * 7 % ITEMS : i % ITEMS);
        key_of(key, (uint64_t)owner << 32 | i);
        struct mc_wire_inventory_item item = {.slot = (uint32_t)slot,
                                              .state = 1,
                                              .generation = ((EPOCH - 1ull) << MC_EPOCH_SHIFT) + 1 + i,
                                              .offset = (uint64_t)i * 4160,
                                              .length = LENGTH,
                                              .key = mc_span(key, 40)};
        mc_wire_inventory_item_write(&bench->in, &item);
    }
    mc_list_end(&bench->in, list, count);
    mc_frame_end(&bench->in, frame);
}

static int recover(uint64_t objects)
{
    static struct bench bench;
    struct mc_core_statistics statistics;
    uint32_t slots = (uint32_t)((objects + OWNERS - 1) / OWNERS);
    size_t before = resident();
    start(&bench, EPOCH, mc_core_config_default().recovery_window_ms);
    for (uint32_t owner = 0; owner < OWNERS; owner++) {
        join(&bench, 8 + owner, MC_ROLE_OWNER, (struct mc_id){100 + owner, 5});
        mount(&bench, 8 + owner,
              (struct mc_wire_mount){.segment_id = {100 + owner, 1},
                                     .capacity = (uint64_t)slots * 4160 + 4096,
                                     .epoch = EPOCH - 1,
                                     .slot_top = slots});
    }
    bench.longest_us = 0;
    double seconds = 0;
    for (uint32_t sequence = 0; sequence * ITEMS < slots; sequence++) {
        for (uint32_t owner = 0; owner < OWNERS; owner++) {
            tell(&bench, owner, sequence, slots);
            double begun = now_s();
            send_frame(&bench, 8 + owner);
            seconds += now_s() - begun;
            bench.out[8 + owner].length = 0;
        }
    }
    double begun = now_s(), longest = 0;
    for (bool more = true; more;) {
        double from = now_s();
        more = mc_core_tick(bench.core, config.recovery_grace_ms) <= config.recovery_grace_ms;
        double us = (now_s() - from) * 1e6;
        longest = us > longest ? us : longest;
    }
    seconds += now_s() - begun;
    size_t full = resident();
    mc_core_statistics(bench.core, &statistics);
    printf("objects recovered              %10" PRIu64 " from %u owners, %" PRIu64 " still recovering\n",
           statistics.objects, OWNERS, statistics.recovering);
    printf("rebuilt in                     %10.2f s (%.3f M/s), longest frame %.0f us, longest tick %.0f us\n", seconds,
           (double)statistics.objects / seconds / 1e6, bench.longest_us, longest);
    printf("resident                       %10.2f GiB, %.1f bytes per object\n", (double)full / (1 << 30),
           (double)(full - before) / (double)statistics.objects);
    stop(&bench);
    return statistics.objects >= objects && statistics.recovering == 0 ? 0 : 1;
}

/* ---- eviction ---- */

/* Seconds of an insertion into a full store of so many objects, each of which evicts one; and of one into a store with
 * room. */
static double insertion(uint64_t objects, uint64_t insertions, double *with_room)
{
    static struct bench bench;
    struct mc_core_statistics before, after;
    start(&bench, EPOCH, 0);
    join_both(&bench, objects);
    *with_room = 1 / put_all(&bench, 0, objects / BATCH * BATCH, BATCH);
    (void)put_all(&bench, objects * 2, objects / 2 / BATCH * BATCH, BATCH); /* now it is full */
    mc_core_statistics(bench.core, &before);
    double seconds = 1 / put_all(&bench, objects * 4, insertions, BATCH);
    mc_core_statistics(bench.core, &after);
    printf("  %" PRIu64 " objects: %" PRIu64 " evicted by %" PRIu64
           " puts, %.0f ns a put, %.0f ns before it was full\n",
           before.objects, after.evicted_objects - before.evicted_objects, insertions, seconds * 1e9, *with_room * 1e9);
    stop(&bench);
    return seconds;
}

static int eviction(uint64_t more, uint64_t fewer)
{
    double room;
    uint64_t insertions = 2000 * BATCH;
    printf("what a put that evicts costs\n");
    double small = insertion(fewer, insertions, &room), large = insertion(more, insertions, &room);
    printf("evicting among more objects    %10.2f times what it costs among fewer\n", large / small);
    return 0;
}

/* ---- what reasons, curve and events cost ---- */

static int cost(uint64_t objects, bool with_events)
{
    static struct bench bench;
    struct mc_core_statistics statistics;
    if (with_events && (events = mc_kv_events_create(65536, "bench")) == NULL)
        return 1;
    mc_kv_events_lead(events, EPOCH);
    size_t before = resident();
    start(&bench, EPOCH, 0);
    join_both(&bench, objects);
    printf("put_ns %.2f\n", 1e9 / put_all(&bench, 0, objects, BATCH));
    printf("exist_ns %.2f\n", 1e9 / ask_all(&bench, MC_MESSAGE_EXIST, 0, objects, 8000000));
    printf("exist_absent_ns %.2f\n", 1e9 / ask_all(&bench, MC_MESSAGE_EXIST, objects * 16, objects, 8000000));
    printf("get_ns %.2f\n", 1e9 / ask_all(&bench, MC_MESSAGE_GET, 0, objects, 4000000));
    printf("get_absent_ns %.2f\n", 1e9 / ask_all(&bench, MC_MESSAGE_GET, objects * 16, objects, 8000000));
    (void)mc_core_tick(bench.core, 3600000); /* leases of what was read are over */
    printf("put_evicting_ns %.2f\n", 1e9 / put_all(&bench, objects, objects * 2, BATCH));
    mc_core_statistics(bench.core, &statistics);
    printf("bytes_an_object %.2f\n", (double)(resident() - before) / (double)statistics.objects);
    stop(&bench);
    mc_kv_events_destroy(events);
    return statistics.evicted_objects > objects / 2 ? 0 : 1;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "cost") == 0)
        return cost((argc > 2 ? strtoull(argv[2], NULL, 10) : 1000000) / BATCH * BATCH, argc > 3);
    if (argc > 1 && strcmp(argv[1], "recover") == 0)
        return recover(argc > 2 ? strtoull(argv[2], NULL, 10) : 50000000);
    if (argc > 1 && strcmp(argv[1], "evict") == 0)
        return eviction(argc > 2 ? strtoull(argv[2], NULL, 10) : 10000000,
                        argc > 3 ? strtoull(argv[3], NULL, 10) : 100000);
    uint64_t objects = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000000;
    objects = (objects + BATCH - 1) / BATCH * BATCH;
    static struct bench bench;
    size_t before = resident();
    start(&bench, 1, 0); /* no tombstones among what is measured */
    join_both(&bench, objects);
    size_t empty = resident();
    bench.longest_us = 0;
    double put = put_all(&bench, 0, objects, BATCH);
    size_t full = resident();
    struct mc_core_statistics statistics;
    mc_core_statistics(bench.core, &statistics);
    printf("core without objects           %10.2f MB\n", (double)(empty - before) / 1e6);
    printf("objects                        %10" PRIu64 "\n", statistics.objects);
    printf("resident bytes per object      %10.1f\n", (double)(full - before) / (double)statistics.objects);
    printf("put start + live, batch 128    %10.3f M/s\n", put / 1e6);
    printf("longest call                   %10.1f us\n", bench.longest_us);
    printf("exist, 128 of 1,024 keys       %10.3f M/s\n", exist_all(&bench, 0, 1024, 20000000) / 1e6);
    printf("exist, 128 of 64 K keys        %10.3f M/s\n", exist_all(&bench, 0, 65536, 20000000) / 1e6);
    printf("exist, 128 of all keys         %10.3f M/s\n", exist_all(&bench, 0, objects, 20000000) / 1e6);
    printf("exist of absent keys           %10.3f M/s\n", exist_all(&bench, objects * 16, objects, 20000000) / 1e6);
    bench.longest_us = 0;
    double filled = put_all(&bench, objects, objects * 2, BATCH);
    mc_core_statistics(bench.core, &statistics);
    printf("put into the full store        %10.3f M/s (%.0f %%), %" PRIu64 " evicted, longest call %.1f us\n",
           filled / 1e6, filled / put * 100, statistics.evicted_objects, bench.longest_us);
    bench.longest_us = 0;
    filled = put_all(&bench, objects * 4, 256 * MC_BATCH_MAX, MC_BATCH_MAX);
    printf("the same, batch 1024           %10.3f M/s, longest call %.1f us\n", filled / 1e6, bench.longest_us);
    remove_matching(&bench, "(block|page)-z", "search of all keys");
    remove_matching(&bench, "([a-z]+-?)+[0-9]$", "a costly search");
    remove_matching(&bench, "[0-7]$", "removal of half of the objects");
    sweep(&bench);
    double begun = now_s();
    mc_core_destroy(bench.core);
    printf("destroyed in                   %10.1f ms\n", (now_s() - begun) * 1e3);
    free_buffers(&bench);
    return 0;
}
