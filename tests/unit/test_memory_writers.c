/* A writer of another process that is stopped, killed or continued in the middle of a copy, against the owner that cuts
 * it, raises the epoch, or dies and comes back. */
#include "base/checksum.h"
#include "store/path/paths.h"
#include "store/segment/memory_inside.h"
#include "store/segment/serve.h"
#include "env/clock.h"
#include "env/log.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define CAPACITY (64ull << 20)
#define LENGTH (4ull << 20)
#define PLACES 12u
#define COPIES 800u /* until a tick has come in the middle of one, so many again */
#define FLAGS 2u
#define EPOCH 5ull
#define FIRST_GENERATION (EPOCH << MC_EPOCH_SHIFT)

struct owner {
    char directory[32];
    struct mc_segment_memory *memory;
    struct mc_serve *serve;
    struct mc_endpoint endpoint;
    _Atomic unsigned cuts_done;
    _Atomic int last_code;
    pid_t writer;
    struct mc_id writer_node;
};

static uint64_t soon(void)
{
    return mc_clock_ns() + 10000000000u;
}

static void on_committed(void *context, struct mc_segment_memory *memory, uint32_t slot, uint64_t generation, int code)
{
    (void)memory;
    (void)slot;
    (void)generation;
    atomic_store(&((struct owner *)context)->last_code, code);
}

static void owner_start(struct owner *owner, bool expected)
{
    bool contents;
    struct mc_id node = mc_random_id();
    struct mc_serve_hooks hooks = {.context = owner, .committed = on_committed};
    assert_int_equal(mc_segment_memory_open(owner->directory, "test:1", CAPACITY, 0, false, &owner->memory, &contents),
                     0);
    assert_true(mc_segment_memory_is_named(owner->memory));
    assert_int_equal(contents, expected);
    assert_int_equal(mc_segment_memory_populate(owner->memory, NULL, NULL), 0);
    for (int i = 0; i < 10000 && mc_segment_memory_populated(owner->memory) < CAPACITY; i++)
        usleep(1000);
    assert_int_equal(mc_segment_memory_populated(owner->memory), CAPACITY);
    assert_int_equal(mc_serve_create(node, 9, "127.0.0.1", 0, true, &hooks, &owner->serve), 0);
    mc_serve_set_memory(owner->serve, owner->memory);
    owner->endpoint = (struct mc_endpoint){.segment = 3,
                                           .node = node,
                                           .incarnation = 9,
                                           .segment_id = mc_segment_memory_id(owner->memory),
                                           .capacity = CAPACITY,
                                           .slot_count = mc_segment_memory_slot_count(owner->memory),
                                           .nonce = mc_segment_memory_nonce(owner->memory),
                                           .host = mc_host_id()};
    snprintf(owner->endpoint.unix_path, sizeof(owner->endpoint.unix_path), "%s", mc_serve_unix_path(owner->serve));
    assert_int_equal(mc_serve_start(owner->serve), 0);
}

static void owner_stop(struct owner *owner)
{
    mc_serve_destroy(owner->serve);
    mc_segment_memory_release(owner->memory);
    owner->serve = NULL;
    owner->memory = NULL;
}

static void stop_here(void *context)
{
    bool *stopped = context;
    if (!*stopped)
        raise(SIGSTOP);
    *stopped = true;
}

/* The writer's process: writes until a tick comes in the middle of a copy, stops itself there, and when continued ends
 * that write. */
static void writer_run(const struct owner *owner)
{
#ifdef __SANITIZE_THREAD__ /* it lets a forked child have no threads of its own */
    setenv("MC_COPY_THREADS", "1", 1);
#endif
    struct mc_paths *paths = mc_paths_create(owner->writer_node, 1, MC_PATH_SHM);
    struct mc_path *path;
    uint8_t *data = calloc(1, LENGTH);
    struct iovec part = {data, LENGTH};
    bool stopped = false;
    if (paths == NULL || data == NULL || mc_path_get(paths, &owner->endpoint, soon(), &path) != 0)
        _exit(20);
    struct mc_hash hash = mc_hash("key", 3);
    static struct mc_transfer transfers[COPIES], *list[COPIES];
    struct mc_run run = {.deadline_ns = UINT64_MAX, .tick = stop_here, .context = &stopped};
    for (uint64_t before = 0; before < 1000 * COPIES && !stopped; before += COPIES) {
        for (uint32_t i = 0; i < COPIES; i++) {
            transfers[i] = (struct mc_transfer){
                .kind = MC_TRANSFER_WRITE,
                .place = {3, i % PLACES, FIRST_GENERATION + before + i + 1, i % PLACES * (LENGTH + 65536), 0, 0},
                .object_length = LENGTH,
                .hash_low = hash.low,
                .hash_high = hash.high,
                .key = mc_span_string("key"),
                .flags = FLAGS,
                .replica = 1,
                .length = LENGTH,
                .parts = &part,
                .part_count = 1};
            list[i] = &transfers[i];
        }
        path->transport->run(path, list, COPIES, &run);
    }
#ifndef __SANITIZE_THREAD__ /* a thread unmaps what is given back */
    mc_path_release(path);
    mc_paths_destroy(paths);
#endif
    _exit(stopped ? 0 : 21);
}

static void writer_start(struct owner *owner)
{
    int status;
    owner->writer_node = mc_random_id();
    owner->writer = fork();
    if (owner->writer == 0) {
        mc_serve_forked(owner->serve);
        writer_run(owner);
    }
    assert_true(owner->writer > 0);
    assert_int_equal(waitpid(owner->writer, &status, WUNTRACED), owner->writer);
    assert_true(WIFSTOPPED(status));
    usleep(100000); /* what it has sent is taken */
}

static int writer_end(struct owner *owner, int signal)
{
    int status;
    assert_int_equal(kill(owner->writer, signal), 0);
    assert_int_equal(waitpid(owner->writer, &status, 0), owner->writer);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

struct being_written { /* in the order of their places */
    unsigned count;
    struct mc_content contents[MC_WRITER_INTENTS];
};

/* The extents that are being written: one for each thread that copies, so at least one; the others are live. */
static struct being_written contents_being_written(struct owner *owner)
{
    struct mc_content *contents;
    struct being_written found = {0};
    int64_t count = mc_segment_memory_contents(owner->memory, NULL, &contents);
    assert_true(count >= 0);
    for (int64_t i = 0; i < count; i++) {
        if (i > 0)
            assert_true(contents[i].offset > contents[i - 1].offset);
        if (contents[i].state == 2) {
            assert_true(found.count < MC_WRITER_INTENTS);
            assert_true(mc_id_equal(contents[i].writer, owner->writer_node));
            assert_int_equal(contents[i].length, mc_extent_size(LENGTH, 3));
            assert_int_equal(contents[i].offset, contents[i].slot * (LENGTH + 65536));
            found.contents[found.count++] = contents[i];
        } else {
            assert_int_equal(contents[i].state, 1);
            assert_int_equal(contents[i].length, LENGTH);
            assert_int_equal(contents[i].key_length, 3);
            assert_memory_equal(contents[i].key, "key", 3);
            assert_int_equal(contents[i].flags, FLAGS);
            assert_int_equal(contents[i].replica, 1);
        }
    }
    free(contents);
    assert_true(found.count > 0);
    return found;
}

struct cut_post {
    struct owner *owner;
    uint32_t slot;
    uint64_t generation;
};

static void on_cut_done(void *context, uint32_t slot, uint64_t generation)
{
    (void)slot;
    (void)generation;
    atomic_fetch_add(&((struct owner *)context)->cuts_done, 1);
}

static void do_cut(void *argument)
{
    struct cut_post *post = argument;
    mc_serve_cut(post->owner->serve, post->slot, post->generation, post->owner->writer_node, on_cut_done, post->owner);
    free(post);
}

static void cut(struct owner *owner, uint32_t slot, uint64_t generation)
{
    struct cut_post *post = malloc(sizeof(*post));
    *post = (struct cut_post){owner, slot, generation};
    mc_serve_post(owner->serve, do_cut, post);
}

static void cut_all(struct owner *owner, const struct being_written *writing)
{
    for (unsigned i = 0; i < writing->count; i++)
        cut(owner, writing->contents[i].slot, writing->contents[i].generation);
}

static bool is_one_written(struct owner *owner, const struct being_written *writing)
{
    for (unsigned i = 0; i < writing->count; i++)
        if (mc_segment_memory_is_written(owner->memory, writing->contents[i].slot, UINT64_MAX))
            return true;
    return false;
}

static bool is_one_readable(struct owner *owner, const struct being_written *writing)
{
    struct mc_slot seen;
    const struct mc_slot *slots = mc_segment_memory_slots(owner->memory);
    for (unsigned i = 0; i < writing->count; i++)
        if (mc_slot_read(&slots[writing->contents[i].slot], writing->contents[i].generation, &seen))
            return true;
    return false;
}

static void wait_cuts(struct owner *owner, unsigned count)
{
    for (int i = 0; i < 2000 && atomic_load(&owner->cuts_done) < count; i++)
        usleep(1000);
    assert_int_equal(atomic_load(&owner->cuts_done), count);
}

static int setup(void **state)
{
    static struct owner owner;
    owner = (struct owner){.directory = "/tmp/mc-writers-XXXXXX"};
    if (mkdtemp(owner.directory) == NULL)
        return -1;
    owner_start(&owner, false);
    *state = &owner;
    return 0;
}

static int teardown(void **state)
{
    struct owner *owner = *state;
    char command[64];
    owner_stop(owner);
    snprintf(command, sizeof(command), "rm -r %s", owner->directory);
    return system(command);
}

static void test_killed(void **state)
{
    struct owner *owner = *state;
    writer_start(owner);
    struct being_written writing = contents_being_written(owner);
    for (unsigned i = 0; i < writing.count; i++) /* older ones: nobody writes them */
        cut(owner, writing.contents[i].slot, writing.contents[i].generation - 1);
    wait_cuts(owner, writing.count);
    cut_all(owner, &writing);
    usleep(150000);
    assert_int_equal(atomic_load(&owner->cuts_done), writing.count);
    for (unsigned i = 0; i < writing.count; i++)
        assert_true(mc_segment_memory_slot_top(owner->memory) > writing.contents[i].slot);
    assert_int_equal(writer_end(owner, SIGKILL), -SIGKILL);
    wait_cuts(owner, 2 * writing.count);
    assert_false(is_one_written(owner, &writing));
}

static void test_continued(void **state)
{
    struct owner *owner = *state;
    writer_start(owner);
    struct being_written writing = contents_being_written(owner);
    cut_all(owner, &writing);
    usleep(100000);
    assert_int_equal(atomic_load(&owner->cuts_done), 0);
    assert_int_equal(writer_end(owner, SIGCONT), 0);
    wait_cuts(owner, writing.count);
    for (int i = 0; i < 1000 && is_one_written(owner, &writing); i++)
        usleep(1000);
    usleep(20000);
    assert_false(is_one_readable(owner, &writing)); /* refused */
}

/* A new epoch: what the stopped one was told by the master before is worth nothing when it goes on. */
static void test_floor(void **state)
{
    struct owner *owner = *state;
    writer_start(owner);
    mc_segment_memory_set_epoch(owner->memory, EPOCH + 1);
    struct being_written writing = contents_being_written(owner);
    assert_int_equal(writer_end(owner, SIGCONT), 0);
    for (int i = 0; i < 1000 && atomic_load(&owner->last_code) != MC_ERR_STALE; i++)
        usleep(1000);
    assert_int_equal(atomic_load(&owner->last_code), MC_ERR_STALE);
    assert_false(is_one_readable(owner, &writing));
    assert_false(is_one_written(owner, &writing));
}

/* The owner dies and comes back while the writer is stopped. */
static void test_owner_restarts(void **state)
{
    struct owner *owner = *state;
    struct mc_content *before, *after;
    writer_start(owner);
    struct being_written writing = contents_being_written(owner);
    struct mc_id id = mc_segment_memory_id(owner->memory);
    int64_t count = mc_segment_memory_contents(owner->memory, NULL, &before);
    mc_segment_memory_set_contact_ms(owner->memory, mc_clock_boot_ms());
    owner_stop(owner);
    owner_start(owner, true);
    assert_true(mc_id_equal(mc_segment_memory_id(owner->memory), id));
    struct being_written again = contents_being_written(owner);
    assert_int_equal(again.count, writing.count);
    for (unsigned i = 0; i < writing.count; i++) {
        assert_int_equal(again.contents[i].slot, writing.contents[i].slot);
        assert_int_equal(again.contents[i].generation, writing.contents[i].generation);
    }
    assert_int_equal(mc_segment_memory_contents(owner->memory, NULL, &after), count);
    for (int64_t i = 0; i < count; i++) {
        assert_int_equal(after[i].generation, before[i].generation);
        assert_int_equal(after[i].offset, before[i].offset);
        assert_int_equal(after[i].slot, before[i].slot);
    }
    free(before);
    free(after);
    cut_all(owner, &writing);
    usleep(100000);
    assert_int_equal(atomic_load(&owner->cuts_done), 0);
    /* A new peer does not get the entry of the one that is stopped. */
    int entry = mc_segment_memory_writer_add(owner->memory, mc_random_id(), 1);
    assert_true(entry > 0);
    for (unsigned i = 0; i < writing.count; i++)
        assert_true(
            mc_segment_memory_is_written(owner->memory, writing.contents[i].slot, writing.contents[i].generation));
    mc_segment_memory_writer_remove(owner->memory, (uint32_t)entry);
    assert_int_equal(writer_end(owner, SIGKILL), -SIGKILL);
    wait_cuts(owner, writing.count);
    assert_int_equal(mc_segment_memory_contents(owner->memory, NULL, &after), count - writing.count);
    free(after);
}

/* ---- many threads of one writer ---- */

struct copier {
    struct mc_segment_memory *memory;
    uint32_t slot;
    _Atomic uint64_t copying, generation;
    _Atomic bool stop;
    _Atomic uint64_t copies, late;
};

static void *copier_run(void *argument)
{
    struct copier *copier = argument;
    while (!atomic_load(&copier->stop)) {
        struct mc_local_write write;
        uint64_t generation = atomic_fetch_add(&copier->generation, 1) + 1;
        int rc = mc_segment_memory_write_begin(copier->memory, &write, copier->slot, generation, 0, 64, soon());
        if (rc < 0) {
            atomic_fetch_add(&copier->late, 1);
            continue;
        }
        atomic_store(&copier->copying, generation);
        atomic_fetch_add(&copier->copies, 1);
        atomic_store(&copier->copying, 0);
        mc_segment_memory_write_end(copier->memory, &write);
    }
    return NULL;
}

/* Raise, then look: when the table says nobody writes, nobody does. */
static void test_dekker(void **state)
{
    struct owner *owner = *state;
    struct copier copier = {.memory = owner->memory, .slot = 7, .generation = FIRST_GENERATION};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, copier_run, &copier), 0);
    uint64_t end_ms = mc_clock_ms() + 500, raised = 0;
    while (mc_clock_ms() < end_ms) {
        uint64_t generation = atomic_load(&copier.generation);
        assert_int_equal(mc_segment_memory_clear(owner->memory, 7, generation), 0);
        if (mc_segment_memory_is_written(owner->memory, 7, generation))
            continue;
        uint64_t copying = atomic_load(&copier.copying);
        if (copying != 0 && copying <= generation)
            fail_msg("%llu is copied after the cut of %llu", (unsigned long long)copying,
                     (unsigned long long)generation);
        raised++;
    }
    atomic_store(&copier.stop, true);
    pthread_join(thread, NULL);
    assert_true(raised > 0 && atomic_load(&copier.copies) > 0);
}

static void test_all_intents_taken(void **state)
{
    struct owner *owner = *state;
    struct mc_local_write writes[MC_WRITER_INTENTS], one_more;
    for (uint32_t i = 0; i < MC_WRITER_INTENTS; i++)
        assert_int_equal(
            mc_segment_memory_write_begin(owner->memory, &writes[i], i, FIRST_GENERATION, i * 64, 64, soon()), 0);
    uint64_t start_ms = mc_clock_ms();
    assert_int_equal(
        mc_segment_memory_write_begin(owner->memory, &one_more, 200, FIRST_GENERATION, 0, 64, mc_clock_ns() + 50000000),
        MC_ERR_RPC_TIMEOUT);
    assert_in_range(mc_clock_ms() - start_ms, 45, 3000);
    for (uint32_t i = 0; i < MC_WRITER_INTENTS; i++) {
        assert_true(mc_segment_memory_is_written(owner->memory, i, FIRST_GENERATION));
        mc_segment_memory_write_end(owner->memory, &writes[i]);
        assert_false(mc_segment_memory_is_written(owner->memory, i, FIRST_GENERATION));
    }
}

static void test_entries(void **state)
{
    struct owner *owner = *state;
    for (uint32_t i = 1; i < MC_WRITERS_MAX; i++)
        assert_int_equal(mc_segment_memory_writer_add(owner->memory, mc_random_id(), i), i);
    assert_int_equal(mc_segment_memory_writer_add(owner->memory, mc_random_id(), 1), MC_ERR_BUSY);
    mc_segment_memory_writer_remove(owner->memory, 500);
    assert_int_equal(mc_segment_memory_writer_add(owner->memory, mc_random_id(), 1), 500);
    for (uint32_t i = 1; i < MC_WRITERS_MAX; i++)
        mc_segment_memory_writer_remove(owner->memory, i);
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    mc_log_set_level(MC_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        TEST(test_killed), TEST(test_continued),         TEST(test_floor),   TEST(test_owner_restarts),
        TEST(test_dekker), TEST(test_all_intents_taken), TEST(test_entries),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
