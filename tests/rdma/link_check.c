/* Two processes, real verbs: sets up a link, moves bytes both ways in many sizes, compares every one.
 *
 *   link_check LOCAL REMOTE [--setup oob|cm] [--max BYTES] [--break COMMAND --mend COMMAND]
 *
 * LOCAL and REMOTE are lists of devices ("rxe0,rxe1"). --break: a command that pulls a cable of one of several, run in
 * the middle of a transfer, which must end well all the same; after --mend all pairs must come back. Exit 0 and
 * "link_check: good ...", or 1 and a line that says what is wrong. */
#include "link_describe.h"

#include "env/clock.h"
#include "env/log.h"
#include "rdma/link.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define SECOND_NS 1000000000ull
#define BYTES_MAX ((size_t)64 << 20)
#define MARGIN 8192u
#define MESSAGE_MAX 200000u
#define ROUNDS_AFTER 5

static struct mc_rdma *rdma;
static struct mc_rdma_memory *memory;
static uint8_t *bytes;
static int peer_fd;

_Noreturn static void fail(const char *what, long long value)
{
    printf("link_check: FAILED: %s (%lld)\n", what, value);
    fflush(stdout);
    _exit(1);
}

/* ---- the other process ---- */

static void put(const void *data, size_t length)
{
    for (size_t done = 0; done < length;) {
        ssize_t sent = write(peer_fd, (const char *)data + done, length - done);
        if (sent <= 0)
            fail("the other process is gone", 0);
        done += (size_t)sent;
    }
}

static void get(void *data, size_t length)
{
    for (size_t done = 0; done < length;) {
        ssize_t received = read(peer_fd, (char *)data + done, length - done);
        if (received <= 0)
            fail("the other process is gone", 0);
        done += (size_t)received;
    }
}

static void put_message(char kind, const void *data, uint32_t length)
{
    put(&kind, 1);
    put(&length, sizeof(length));
    put(data, length);
}

static char get_message(struct mc_buffer *message)
{
    char kind;
    uint32_t length;
    get(&kind, 1);
    get(&length, sizeof(length));
    if (length > MESSAGE_MAX)
        fail("a message is too long", length);
    message->length = 0;
    mc_buffer_reserve(message, length + 1);
    get(message->data, length);
    message->length = length;
    message->data[length] = 0;
    return kind;
}

static void expect(char kind, struct mc_buffer *message)
{
    char got = get_message(message);
    if (got != kind)
        fail("an unexpected message", got);
}

/* ---- both ---- */

static uint8_t pattern(uint64_t seed, size_t at)
{
    uint64_t word = (seed + at / 8 + 1) * 0x9e3779b97f4a7c15ull;
    return (uint8_t)((word ^ word >> 29) >> (at % 8 * 8));
}

static void fill(uint8_t *to, size_t length, uint64_t seed)
{
    for (size_t i = 0; i < length; i++)
        to[i] = pattern(seed, i);
}

static void compare(const uint8_t *got, size_t length, uint64_t seed, const char *what)
{
    for (size_t i = 0; i < length; i++)
        if (got[i] != pattern(seed, i))
            fail(what, (long long)i);
}

static void open_devices(const char *filter, int64_t setup)
{
    struct mc_rdma_settings settings;
    mc_rdma_settings_read(&settings);
    settings.setup = setup;
    if (getenv("MC_RDMA_ACK_TIMEOUT") == NULL)
        settings.ack_timeout = 18; /* 1 s: the soft device of Linux 6.1 confuses itself when it sends again too early */
    struct mc_rdma_options options = {.filter = filter, .settings = &settings};
    int rc = mc_rdma_open(&options, &rdma);
    if (rc != 0)
        fail("no RDMA device", rc);
    size_t length = BYTES_MAX + 2 * MARGIN;
    bytes = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (bytes == MAP_FAILED)
        fail("no memory", (long long)length);
    struct mc_rdma_range range = {.address = bytes,
                                  .length = length,
                                  .dmabuf_fd = -1,
                                  .is_remote_readable = true,
                                  .is_remote_writable = true,
                                  .numa_node = -1};
    rc = mc_rdma_memory_register(rdma, &range, &memory);
    if (rc != 0)
        fail("memory is not registered", rc);
}

/* ---- the serving process ---- */

struct check { /* is that pattern at that place? or: put it there */
    uint64_t offset, length, seed;
};

_Noreturn static void serve(const char *filter, int64_t setup)
{
    struct mc_buffer message = {0}, reply = {0};
    struct mc_rdma_link *half = NULL;
    struct check check;
    open_devices(filter, setup);
    mc_rdma_put_devices(rdma, &reply);
    put_message('d', reply.data, (uint32_t)reply.length);
    struct mc_rdma_chunks chunks = mc_rdma_memory_remote(memory);
    put_message('c', chunks.list, (uint32_t)(chunks.count * sizeof(*chunks.list)));
    for (;;) {
        char kind = get_message(&message);
        reply.length = 0;
        if (kind == 'o') {
            (void)mc_rdma_link_answer(rdma, &half, mc_span(message.data, message.length), &reply);
            put_message('a', reply.data, (uint32_t)reply.length);
        } else if (kind == 'v' || kind == 'f') {
            memcpy(&check, message.data, sizeof(check));
            if (kind == 'v')
                compare(bytes + check.offset, (size_t)check.length, check.seed, "a byte written is wrong at the peer");
            else
                fill(bytes + check.offset, (size_t)check.length, check.seed);
            put_message('y', "", 0);
        } else {
            if (half != NULL)
                mc_rdma_link_close(half);
            mc_rdma_memory_unregister(memory);
            mc_rdma_close(rdma);
            _exit(kind == 'q' ? 0 : 1);
        }
    }
}

/* ---- the asking process ---- */

static struct mc_rdma_link *the_link;
static struct mc_rdma_chunk *peer_chunks;
static uint32_t peer_chunk_count;
static struct mc_buffer text;

static void ask_peer(char kind, uint64_t offset, uint64_t length, uint64_t seed)
{
    struct check check = {offset, length, seed};
    put_message(kind, &check, sizeof(check));
    expect('y', &text);
}

/* Offers and completes until every pair stands, or time is up. Pairs that stand. */
static uint32_t connect_pairs(uint64_t ms)
{
    uint64_t end_ns = mc_clock_ns() + ms * 1000000u;
    struct mc_buffer offer = {0};
    do {
        offer.length = 0;
        int rc = mc_rdma_link_offer(the_link, 0, &offer);
        if (rc == 1) {
            put_message('o', offer.data, (uint32_t)offer.length);
            expect('a', &text);
            (void)mc_rdma_link_complete(the_link, mc_span(text.data, text.length), mc_clock_ns() + 5 * SECOND_NS);
        }
        if (mc_rdma_link_due_ns(the_link) == UINT64_MAX && rc >= 0)
            break;
        usleep(10000);
    } while (mc_clock_ns() < end_ns);
    mc_buffer_free(&offer);
    return mc_rdma_link_ready(the_link);
}

static struct mc_rdma_request request(enum mc_rdma_opcode opcode, size_t local, size_t remote, size_t length)
{
    return (struct mc_rdma_request){.opcode = opcode,
                                    .local = bytes + local,
                                    .remote = peer_chunks[0].address + remote,
                                    .length = length,
                                    .local_chunks = mc_rdma_memory_local(memory),
                                    .remote_chunks = {peer_chunks, peer_chunk_count}};
}

static void run(struct mc_rdma_request *requests, size_t count, struct mc_rdma_run *how)
{
    /* Emulated machines stand still for longer than the default. */
    *how = (struct mc_rdma_run){.deadline_ns = mc_clock_ns() + 60 * SECOND_NS, .stall_ns = 5 * SECOND_NS};
    int rc = mc_rdma_link_run(the_link, requests, count, how);
    if (rc != 0)
        fail("a run failed", rc);
}

static void check_size(size_t size, uint64_t seed)
{
    size_t local = 1 + seed % 4093, remote = 3 + seed % 4091;
    struct mc_rdma_run how;
    fill(bytes + local, size, seed);
    ask_peer('f', remote, size + 1, seed + 1000);
    struct mc_rdma_request one = request(MC_RDMA_WRITE, local, remote, size);
    run(&one, 1, &how);
    ask_peer('v', remote, size, seed);
    ask_peer('f', remote, size, seed + 2000);
    one = request(MC_RDMA_READ, local, remote, size);
    bytes[local + size] = 0x5a;
    run(&one, 1, &how);
    compare(bytes + local, size, seed + 2000, "a byte read is wrong");
    if (bytes[local + size] != 0x5a)
        fail("the byte behind a read is touched", (long long)size);
}

static void check_batch(void)
{
    struct mc_rdma_request requests[128];
    struct mc_rdma_run how;
    for (size_t i = 0; i < 128; i++) {
        fill(bytes + i * 8192, 4096, i);
        requests[i] = request(MC_RDMA_WRITE, i * 8192, (127 - i) * 8192, 4096);
    }
    run(requests, 128, &how);
    for (size_t i = 0; i < 128; i++)
        ask_peer('v', (127 - i) * 8192, 4096, i);
}

/* A key that is wrong is refused, and everything goes on after that. */
static void check_refusal(uint32_t pairs)
{
    struct mc_rdma_chunk wrong = peer_chunks[0];
    for (uint32_t i = 0; i < MC_RDMA_DEVICES_MAX; i++)
        wrong.keys[i] ^= 0x00ffff00;
    struct mc_rdma_request one = request(MC_RDMA_READ, 0, 0, 4096);
    one.remote_chunks = (struct mc_rdma_chunks){&wrong, 1};
    struct mc_rdma_run how = {.deadline_ns = mc_clock_ns() + 10 * SECOND_NS};
    int rc = mc_rdma_link_run(the_link, &one, 1, &how);
    if (rc != MC_ERR_INVALID_PARAMS)
        fail("a wrong key is not refused", rc);
    uint32_t now = connect_pairs(10000);
    if (now != pairs)
        fail("pairs do not come back after a refusal", now);
}

static void *run_command(void *command)
{
    usleep(50000);
    if (system(command) != 0)
        fail("the command failed", 0);
    return NULL;
}

static void check_cable(const char *break_command, const char *mend_command, uint32_t pairs, size_t most)
{
    pthread_t thread;
    uint64_t failed = 0, retried = 0;
    pthread_create(&thread, NULL, run_command, (void *)(uintptr_t)break_command);
    uint64_t end_ns = mc_clock_ns() + 30 * SECOND_NS;
    for (unsigned i = 0, after = 0; after < ROUNDS_AFTER && mc_clock_ns() < end_ns; i++) {
        struct mc_rdma_run how;
        size_t size = most / 8;
        fill(bytes, size, i);
        struct mc_rdma_request one = request(MC_RDMA_WRITE, 0, 0, size);
        run(&one, 1, &how);
        ask_peer('v', 0, size, i);
        failed += how.failed_pairs;
        retried += how.retried;
        after += failed > 0;
    }
    pthread_join(thread, NULL);
    if (failed == 0)
        fail("the cable was pulled, and no pair broke", 0);
    if (system(mend_command) != 0)
        fail("the command failed", 1);
    uint32_t now = connect_pairs(20000);
    for (unsigned i = 0; now < pairs && i < 50; i++) {
        usleep(200000);
        now = connect_pairs(1000);
    }
    if (now != pairs)
        fail("pairs do not come back", now);
    check_size(most / 2, 77);
    printf("link_check: cable: %llu pairs broke, %llu slices moved over, all back\n", (unsigned long long)failed,
           (unsigned long long)retried);
}

static void ask(const char *filter, int64_t setup, size_t most, const char *break_command, const char *mend_command)
{
    static const size_t sizes[] = {1,    2,     7,     63,    64,    65,      1000,    4095,     4096,
                                   4097, 65535, 65536, 65537, 81921, 1000003, 4 << 20, 16777217, 64 << 20};
    struct mc_rdma_peer_device devices[MC_RDMA_DEVICES_MAX];
    open_devices(filter, setup);
    expect('d', &text);
    int count = mc_rdma_parse_devices(mc_span(text.data, text.length), devices, MC_RDMA_DEVICES_MAX);
    if (count <= 0)
        fail("the list of the peer's devices", count);
    expect('c', &text);
    peer_chunk_count = (uint32_t)(text.length / sizeof(*peer_chunks));
    peer_chunks = malloc(text.length);
    memcpy(peer_chunks, text.data, text.length);
    struct mc_rdma_link_options options = {.devices = devices, .device_count = (uint32_t)count};
    int rc = mc_rdma_link_open(rdma, &options, &the_link);
    if (rc != 0)
        fail("no link", rc);
    uint32_t pairs = connect_pairs(10000);
    text.length = 0;
    rdma_link_describe(the_link, &text);
    printf("link_check: %.*s\n", (int)text.length, (const char *)text.data);
    if (pairs == 0)
        fail("no pair could be connected", 0);
    uint64_t moved = 0;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]) && sizes[i] <= most; i++) {
        check_size(sizes[i], i + 1);
        moved += 2 * sizes[i];
    }
    check_batch();
    check_refusal(pairs);
    if (break_command != NULL)
        check_cable(break_command, mend_command, pairs, most);
    mc_rdma_link_close(the_link);
    put_message('q', "", 0);
    mc_rdma_memory_unregister(memory);
    mc_rdma_close(rdma);
    printf("link_check: good: %u pairs, %llu bytes in sizes up to %zu\n", (unsigned)pairs, (unsigned long long)moved,
           most);
}

int main(int count, char **words)
{
    int64_t setup = MC_RDMA_SETUP_OOB;
    size_t most = BYTES_MAX;
    const char *break_command = NULL, *mend_command = NULL;
    int fds[2], status = 0;
    for (int i = 3; i + 1 < count; i += 2) {
        if (strcmp(words[i], "--setup") == 0)
            setup = strcmp(words[i + 1], "cm") == 0 ? MC_RDMA_SETUP_CM : MC_RDMA_SETUP_OOB;
        else if (strcmp(words[i], "--max") == 0)
            most = (size_t)strtoull(words[i + 1], NULL, 10);
        else if (strcmp(words[i], "--break") == 0)
            break_command = words[i + 1];
        else if (strcmp(words[i], "--mend") == 0)
            mend_command = words[i + 1];
    }
    if (count < 3 || most > BYTES_MAX || (break_command != NULL) != (mend_command != NULL)) {
        fprintf(stderr,
                "usage: link_check LOCAL REMOTE [--setup oob|cm] [--max BYTES] [--break COMMAND --mend COMMAND]\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGPIPE, SIG_IGN);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0)
        fail("socketpair", 0);
    pid_t child = fork(); /* before anything is opened */
    peer_fd = child == 0 ? fds[1] : fds[0];
    (void)close(child == 0 ? fds[0] : fds[1]);
    if (child == 0)
        serve(words[2], setup);
    ask(words[1], setup, most, break_command, mend_command);
    (void)waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : 1;
}
