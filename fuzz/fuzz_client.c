/* A store client whose master and whose store node are hostile: what they answer is made by the tables, wrong where the
 * input says so. Input: byte 0: 1 = by shared memory, 2 = the segment's index is the input's; then eight bytes, each a
 * call (0: none); the rest in three parts: what is wrong with the master's answers, with the node's, and with what is
 * said to heartbeats. Calls must end by their deadline, with a result that they may have. */
#include "base/checksum.h"
#include "env/clock.h"
#include "env/log.h"
#include "env/socket.h"
#include "store/path/path.h"
#include "store/segment/memory.h"
#include "hostile.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define CALLS 8u
#define CAPACITY (1u << 20)
#define LENGTH 150000u /* three blocks */
#define OBJECT_SIZE 160000u
#define EPOCH 3u
#define SEGMENT 7u
#define SLOT 1u
#define GENERATION (((uint64_t)EPOCH << MC_EPOCH_SHIFT) + 5)
#define TIMEOUT_MS 60u
#define PATIENT_MS 60000u      /* for what must go well, on whatever machine */
#define LATE_NS 90000000000ull /* so long after its deadline a call hangs */
#define CONNECTIONS 32u

enum place { AT_MASTER, AT_NODE, AT_HEARTBEATS, PLACES };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct connection {
    int fd;
    enum place place;
    bool is_unix;
    uint64_t payload; /* of a WRITE, still to come */
    struct mc_buffer in, out;
};

static struct {
    pthread_mutex_t lock; /* over what the input says */
    struct hostile hostile[PLACES];
    struct mc_segment_memory *memory;
    uint8_t *object; /* its bytes, with what stands behind them: OBJECT_SIZE */
    int index_fd;    /* what ATTACH is answered with */
    int listeners[3];
    char master[MC_ADDRESS_MAX], node[MC_ADDRESS_MAX], unix_path[MC_UNIX_PATH_MAX];
    struct hostile_value values[48];
    struct connection connections[CONNECTIONS];
} world;

/* ---- what an honest peer says ---- */

static void honest(const char *name, uint64_t number, struct mc_id id, struct mc_span bytes)
{
    size_t at = world.hostile[0].value_count;
    mc_assert(at < sizeof(world.values) / sizeof(world.values[0]));
    world.values[at] = (struct hostile_value){name, number, id, bytes};
    for (unsigned i = 0; i < PLACES; i++)
        world.hostile[i].value_count = at + 1;
}
static void honest_number(const char *name, uint64_t number)
{
    honest(name, number, (struct mc_id){0, 0}, mc_span(NULL, 0));
}

static void object_make(void)
{
    static const char key[] = "key";
    uint8_t *bytes = mc_segment_memory_data(world.memory), shift = mc_block_shift(LENGTH);
    uint32_t crc = 0, *table = (uint32_t *)(void *)(bytes + mc_table_offset(LENGTH));
    for (uint32_t i = 0; i < LENGTH; i++)
        bytes[i] = (uint8_t)(i * 31 >> 3);
    for (uint32_t block = 0; block < mc_block_count(LENGTH, shift); block++) {
        uint32_t from = block << shift, left = LENGTH - from;
        table[block] = mc_crc32c(0, bytes + from, left < 1u << shift ? left : 1u << shift);
    }
    crc = mc_crc32c(0, table, mc_table_length(LENGTH, shift));
    memcpy(bytes + mc_key_offset(LENGTH), key, 3);
    struct mc_hash hash = mc_hash(key, 3);
    struct mc_wire_commit_item commit = {SLOT < 1, SLOT,  crc, GENERATION, 0, LENGTH, hash.low, hash.high,
                                         3,        shift, 0,   0,          0, 0,      0};
    mc_assert(mc_segment_memory_commit(world.memory, &commit) == 0);
    world.object = malloc(OBJECT_SIZE);
    mc_assert(world.object != NULL && mc_key_offset(LENGTH) + sizeof(key) <= OBJECT_SIZE);
    memcpy(world.object, bytes, OBJECT_SIZE);
    honest_number("crc", crc);
    honest_number("hash_low", hash.low);
    honest_number("hash_high", hash.high);
    honest_number("block_shift", shift);
    honest_number("table_length", 0);
    honest_number("payload_length", 0);
    honest_number("offset", 0);
}

static void honest_make(void)
{
    static const struct {
        const char *name;
        uint64_t number;
    } numbers[] = {
        {"version_min", 1},       {"version_max", 1}, {"epoch", EPOCH},           {"lease_ttl_ms", 5000},
        {"client_ttl_ms", 10000}, {"age_ms", 5000},   {"segment", SEGMENT},       {"capacity", CAPACITY},
        {"replica_count", 1},     {"slot", SLOT},     {"generation", GENERATION}, {"length", LENGTH},
        {"changes", 1},           {"count", 1},       {"incarnation", 9},         {"layout", MC_INDEX_VERSION},
        {"features", UINT64_MAX}};
    for (unsigned i = 0; i < PLACES; i++)
        world.hostile[i].values = world.values;
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        honest_number(numbers[i].name, numbers[i].number);
    object_make();
    int writer = mc_segment_memory_writer_add(world.memory, (struct mc_id){5, 5}, 1);
    mc_assert(writer > 0);
    honest("writer", (uint64_t)writer, (struct mc_id){0, 0}, mc_span(NULL, 0));
    honest_number("slot_count", mc_segment_memory_slot_count(world.memory));
    honest_number("data_size", mc_segment_memory_data_size(world.memory));
    honest_number("nonce", mc_segment_memory_nonce(world.memory));
    honest("node", 0, (struct mc_id){3, 4}, mc_span(NULL, 0));
    honest("host", 0, mc_host_id(), mc_span(NULL, 0));
    honest("segment_id", 0, mc_segment_memory_id(world.memory), mc_span(NULL, 0));
    honest("key", 0, (struct mc_id){0, 0}, mc_span_string("key"));
    honest("name", 0, (struct mc_id){0, 0}, mc_span_string(world.node));
    honest("tcp_address", 0, (struct mc_id){0, 0}, mc_span_string(world.node));
    honest("unix_path", 0, (struct mc_id){0, 0}, mc_span_string(world.unix_path));
    honest("results", 0, (struct mc_id){0, 0}, mc_span("\1", 1));
}

/* ---- saying it ---- */

static void send_some(struct connection *connection)
{
    if (connection->out.length > 0)
        (void)send(connection->fd, connection->out.data, connection->out.length, MSG_NOSIGNAL | MSG_DONTWAIT);
    connection->out.length = 0;
}

/* The frame is the first that goes out, and has the descriptors. */
static void send_attached(struct connection *connection)
{
    int fds[3] = {mc_segment_memory_data_fd(world.memory),
                  world.index_fd >= 0 ? world.index_fd : mc_segment_memory_index_fd(world.memory),
                  mc_segment_memory_writers_fd(world.memory)};
    struct mc_reader *in = &world.hostile[AT_NODE].in;
    uint8_t order = mc_reader_u8(in);
    if (order > 0) { /* others, or fewer */
        int first = fds[order % 3];
        fds[order % 3] = fds[order / 3 % 3];
        fds[order / 3 % 3] = first;
    }
    if (connection->out.length > 0)
        (void)mc_unix_send_fds(connection->fd, connection->out.data, connection->out.length, fds,
                               order < 200 ? 3 : 1 + order % 3, mc_clock_ns() + 1000000);
    connection->out.length = 0;
}

static void honest_set(const char *name, uint64_t number)
{
    for (size_t i = 0; i < world.hostile[0].value_count; i++)
        if (strcmp(world.values[i].name, name) == 0)
            world.values[i].number = number;
}

static bool say(struct connection *connection, unsigned type, uint64_t id)
{
    return hostile_say(&world.hostile[connection->place], type, id, &connection->out);
}

static bool read_answer(struct connection *connection, const struct mc_frame *frame)
{
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length), *wrong = &world.hostile[AT_NODE].in;
    struct mc_wire_read read;
    uint8_t harm = mc_reader_u8(wrong);
    mc_wire_read_read(&reader, &read);
    bool is_fine = read.offset <= LENGTH && read.length <= LENGTH - read.offset;
    honest_set("payload_length", is_fine ? read.length : 0);
    honest_set("table_length", read.table ? mc_table_length(LENGTH, mc_block_shift(LENGTH)) : 0);
    bool goes_on = say(connection, MC_MESSAGE_READ_REPLY, frame->request_id);
    const uint8_t *bytes = mc_segment_memory_data(world.memory);
    if (read.table)
        mc_buffer_append(&connection->out, bytes + mc_table_offset(LENGTH),
                         mc_table_length(LENGTH, mc_block_shift(LENGTH)));
    if (is_fine)
        mc_buffer_append(&connection->out, bytes + read.offset, read.length);
    if (harm > 0 && connection->out.length > harm) /* bytes that were not put, or too few */
        connection->out.data[connection->out.length - harm] ^= 1;
    if (harm > 200)
        connection->out.length -= harm;
    return say(connection, MC_MESSAGE_READ_END, frame->request_id) && goes_on;
}

/* As many as were asked for. */
static void count_take(struct hostile *hostile, const struct mc_frame *frame)
{
    static uint8_t ones[MC_BATCH_MAX];
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length);
    bool has_list = frame->type == MC_MESSAGE_GET || frame->type == MC_MESSAGE_EXIST ||
                    frame->type == MC_MESSAGE_REMOVE || frame->type == MC_MESSAGE_HINT ||
                    frame->type == MC_MESSAGE_PUT_START;
    memset(ones, 1, sizeof(ones));
    (void)mc_reader_take(&reader, mc_reader_u16(&reader));
    hostile->count = has_list ? mc_list_read(&reader) : 1;
    for (size_t i = 0; i < hostile->value_count; i++)
        if (strcmp(world.values[i].name, "results") == 0)
            world.values[i].bytes = mc_span(ones, hostile->count);
}

static bool answer(struct connection *connection, const struct mc_frame *frame)
{
    static const uint8_t answers[][3] = {{MC_MESSAGE_HELLO, MC_MESSAGE_HELLO_REPLY},
                                         {MC_MESSAGE_AUTH, MC_MESSAGE_CHALLENGE},
                                         {MC_MESSAGE_HEARTBEAT, MC_MESSAGE_HEARTBEAT_REPLY},
                                         {MC_MESSAGE_SEGMENT, MC_MESSAGE_SEGMENT_REPLY},
                                         {MC_MESSAGE_SEGMENT_NAMED, MC_MESSAGE_SEGMENT_REPLY},
                                         {MC_MESSAGE_SEGMENTS, MC_MESSAGE_SEGMENTS_REPLY},
                                         {MC_MESSAGE_SEGMENT_KEYS, MC_MESSAGE_SEGMENT_KEYS_REPLY},
                                         {MC_MESSAGE_PUT_START, MC_MESSAGE_PUT_GRANTED, MC_MESSAGE_PUT_DONE},
                                         {MC_MESSAGE_GET, MC_MESSAGE_GET_FOUND},
                                         {MC_MESSAGE_EXIST, MC_MESSAGE_EXIST_REPLY},
                                         {MC_MESSAGE_REMOVE, MC_MESSAGE_REMOVE_REPLY},
                                         {MC_MESSAGE_HINT, MC_MESSAGE_HINT_REPLY},
                                         {MC_MESSAGE_REMOVE_REGEX, MC_MESSAGE_COUNT_REPLY},
                                         {MC_MESSAGE_REMOVE_ALL, MC_MESSAGE_COUNT_REPLY},
                                         {MC_MESSAGE_PING, MC_MESSAGE_PONG},
                                         {MC_MESSAGE_RDMA_OFFER, MC_MESSAGE_RDMA_ANSWER}};
    struct mc_reader *wrong = &world.hostile[connection->place].in;
    count_take(&world.hostile[connection->place], frame);
    if (frame->type == MC_MESSAGE_READ)
        return read_answer(connection, frame);
    if (frame->type == MC_MESSAGE_ATTACH) {
        bool goes_on = say(connection, MC_MESSAGE_ATTACH_REPLY, frame->request_id);
        send_attached(connection);
        return goes_on;
    }
    honest_set("slot", frame->type == MC_MESSAGE_PUT_START ? SLOT + 1 : SLOT); /* a put must not change what is read */
    honest_set("offset", frame->type == MC_MESSAGE_PUT_START ? CAPACITY / 2 : 0);
    for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++) {
        if (answers[i][0] != frame->type)
            continue;
        uint8_t more = mc_reader_u8(wrong);
        if (more > 200 && !say(connection, more % 84, frame->request_id)) /* what nobody has asked for, before it */
            return false;
        return say(connection, answers[i][1], frame->request_id) &&
               (answers[i][2] == 0 || say(connection, answers[i][2], frame->request_id));
    }
    return true; /* one way */
}

/* ---- the thread of both ---- */

static void place_of(struct connection *connection, const struct mc_frame *frame)
{
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length);
    struct mc_wire_hello hello;
    if (frame->type != MC_MESSAGE_HELLO || connection->place != AT_MASTER)
        return;
    mc_wire_hello_read(&reader, &hello);
    if (hello.role == MC_ROLE_HEARTBEAT)
        connection->place = AT_HEARTBEATS;
}

/* What has come. False: it is over. */
static bool take(struct connection *connection)
{
    struct mc_frame frame;
    size_t used;
    mc_buffer_reserve(&connection->in, 65536);
    ssize_t got = recv(connection->fd, connection->in.data + connection->in.length, 65536, MSG_DONTWAIT);
    if (got <= 0)
        return false;
    connection->in.length += (size_t)got;
    for (;;) {
        size_t drop = connection->payload < connection->in.length ? (size_t)connection->payload : connection->in.length;
        mc_buffer_consume(&connection->in, drop);
        connection->payload -= drop;
        if (mc_frame_parse(connection->in.data, connection->in.length, &frame, &used) != 1)
            break;
        mc_assert(mc_wire_check(frame.type, frame.body) == 0); /* whatever it was told, it is honest */
        place_of(connection, &frame);
        if (frame.type == MC_MESSAGE_WRITE) {
            struct mc_wire_write write;
            struct mc_reader reader = mc_reader(frame.body.data, frame.body.length);
            mc_wire_write_read(&reader, &write);
            connection->payload = write.payload_length;
        }
        bool goes_on = answer(connection, &frame);
        send_some(connection);
        mc_buffer_consume(&connection->in, used);
        if (!goes_on)
            return false;
    }
    return true;
}

static void let_go(struct connection *connection)
{
    close(connection->fd);
    mc_buffer_free(&connection->in);
    mc_buffer_free(&connection->out);
    connection->fd = -1;
}

static void *serve(void *unused)
{
    for (;;) {
        struct pollfd waited[CONNECTIONS + 3];
        for (unsigned i = 0; i < 3; i++)
            waited[CONNECTIONS + i] = (struct pollfd){.fd = world.listeners[i], .events = POLLIN};
        for (unsigned i = 0; i < CONNECTIONS; i++)
            waited[i] = (struct pollfd){.fd = world.connections[i].fd, .events = POLLIN};
        if (poll(waited, CONNECTIONS + 3, -1) <= 0)
            continue;
        pthread_mutex_lock(&world.lock);
        for (unsigned i = 0; i < CONNECTIONS; i++)
            if (waited[i].revents != 0 && !take(&world.connections[i]))
                let_go(&world.connections[i]);
        for (unsigned i = 0, free_one = 0; i < 3; i++) {
            if (waited[CONNECTIONS + i].revents == 0)
                continue;
            int fd = mc_socket_accept(world.listeners[i]);
            while (free_one < CONNECTIONS && world.connections[free_one].fd >= 0)
                free_one++;
            if (fd >= 0 && free_one < CONNECTIONS)
                world.connections[free_one] =
                    (struct connection){.fd = fd, .place = i == 0 ? AT_MASTER : AT_NODE, .is_unix = i == 2};
            else if (fd >= 0)
                close(fd);
        }
        pthread_mutex_unlock(&world.lock);
    }
    return unused;
}

static void begin(void)
{
    uint16_t port = 0;
    pthread_t thread;
    (void)signal(SIGPIPE, SIG_IGN);
    mc_log_set_level(MC_LOG_ERROR);
    pthread_mutex_init(&world.lock, NULL);
    for (unsigned i = 0; i < CONNECTIONS; i++)
        world.connections[i].fd = -1;
    for (unsigned i = 0; i < 2; i++, port = 0) {
        world.listeners[i] = mc_tcp_listen("127.0.0.1", &port);
        mc_assert(world.listeners[i] >= 0);
        mc_address_join(i == 0 ? world.master : world.node, MC_ADDRESS_MAX, "127.0.0.1", port);
    }
    snprintf(world.unix_path, sizeof(world.unix_path), "@mooncake-fuzz-%d", (int)getpid());
    world.listeners[2] = mc_unix_listen(world.unix_path);
    mc_assert(world.listeners[2] >= 0);
    world.index_fd = -1;
    mc_assert(mc_segment_memory_create(CAPACITY, &world.memory) == 0);
    mc_segment_memory_meet(world.memory, EPOCH);
    honest_make();
    mc_assert(pthread_create(&thread, NULL, serve, NULL) == 0);
}

/* An index as the honest one, with what the input has stored there: places of 16 bits, words of 64. */
static int index_of(struct mc_reader *in)
{
    size_t size = MC_INDEX_SLOTS_AT + mc_segment_memory_slot_count(world.memory) * sizeof(struct mc_slot);
    const struct mc_slot *slots = mc_segment_memory_slots(world.memory);
    const uint8_t *start = (const uint8_t *)(const void *)slots - MC_INDEX_SLOTS_AT;
    int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    mc_assert(fd >= 0 && ftruncate(fd, (off_t)size) == 0 && pwrite(fd, start, 8192, 0) == 8192);
    for (uint8_t words = mc_reader_u8(in) % 16; words > 0; words--) {
        struct hostile drawn = {.in = *in};
        uint64_t at = mc_reader_u8(&drawn.in), word = hostile_number(&drawn, 1);
        *in = drawn.in;
        at = at < 24 ? at * 8 : MC_INDEX_SLOTS_AT + SLOT * sizeof(struct mc_slot) + at % 8 * 8;
        mc_assert(pwrite(fd, &word, 8, (off_t)at) == 8);
    }
    if (mc_reader_u8(in) < 200)
        mc_assert(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
    return fd;
}

/* ---- the calls ---- */

static bool result_is_possible(int64_t result)
{
    return result >= 0 || strcmp(mc_error_name((int)result), mc_error_name(1)) != 0;
}

static void *allocate(void *context, size_t index, uint64_t length)
{
    void **memory = context;
    mc_assert(index == 0);
    if (length > 64u << 20)
        return NULL;
    free(*memory);
    *memory = malloc(length == 0 ? 1 : length);
    return *memory;
}

static bool is_honest; /* what all others say: then calls go well */

static void call_get(struct mc_store *store, uint8_t how, uint8_t *bytes)
{
    void *memory = NULL;
    struct iovec parts[2] = {{bytes, LENGTH / 3}, {bytes + LENGTH / 3, LENGTH - LENGTH / 3}};
    struct mc_get_item items[2] = {{{"key", 3}, parts, 2, 0}, {{"other", 5}, parts, 1, 0}};
    struct mc_range_item ranges[2] = {{{"key", 3}, 1, 70000, bytes, 0}, {{"key", 3}, 66000, 10, bytes + 70000, 0}};
    if (how < 2)
        (void)mc_store_get(store, items, how + 1u, NULL, NULL);
    else if (how == 2)
        (void)mc_store_get(store, items, 1, allocate, &memory);
    else
        (void)mc_store_get_ranges(store, ranges, 2);
    if (is_honest)
        mc_assert(how == 3 ? ranges[0].result == 70000 : items[0].result == LENGTH);
    if (is_honest)
        mc_assert(how == 3 ? memcmp(bytes, world.object + 1, 70000) == 0
                           : memcmp(how == 2 ? memory : bytes, world.object, LENGTH) == 0);
    mc_assert(how == 3 || how == 2 || items[0].result <= (int64_t)LENGTH);
    mc_assert(how == 3 ? ranges[0].result <= 70000 && ranges[1].result <= 10 : result_is_possible(items[0].result));
    free(memory);
}

static void call_put(struct mc_store *store, uint8_t how, uint8_t *bytes)
{
    struct iovec part = {bytes, how % 2 == 0 ? LENGTH : 10};
    struct mc_put_item items[2] = {{{"key", 3}, &part, 1, 0}, {{"other", 5}, &part, 1, 0}};
    struct mc_replicate_config config = {.replica_count = how % 4 + 1u};
    int rc = how < 4 ? mc_store_put(store, items, 1 + how / 2u, &config) : mc_store_upsert(store, items, 1, &config);
    mc_assert(!is_honest || how % 4 != 0 || rc == 0);
    mc_assert(rc <= 0 && items[0].result <= 0 && result_is_possible(items[0].result));
}

static void call_session(struct mc_store *store, uint8_t *bytes)
{
    struct mc_bytes key = {"key", 3};
    struct mc_range_item range = {key, 100, 1000, bytes, 0};
    int result = 0;
    (void)mc_store_get_session_start(store, &key, 1, &result);
    (void)mc_store_get_session_ranges(store, &range, 1);
    mc_assert(!is_honest || (result == 0 && range.result == 1000));
    mc_assert(range.result <= 1000);
    (void)mc_store_get_session_end(store, &key, 1);
}

static void call_other(struct mc_store *store, uint8_t which)
{
    const struct mc_bytes keys[2] = {{"key", 3}, {"other", 5}};
    const char *target = world.node;
    struct mc_replica_description described[4];
    int results[2] = {0};
    int64_t sizes[2] = {0};
    if (which == 0) {
        (void)mc_store_exist(store, keys, 2, results);
        mc_assert(results[0] <= 1 && results[1] <= 1 && (!is_honest || results[0] == 1));
    } else if (which == 1) {
        (void)mc_store_size(store, keys, 2, sizes);
    } else if (which == 2) {
        (void)mc_store_remove(store, keys, 2, false, results);
        mc_assert(results[0] <= 0);
    } else if (which == 3) {
        (void)mc_store_remove_by_regex(store, keys[0], true);
    } else if (which == 4) {
        (void)mc_store_remove_all(store, true);
    } else if (which == 5) {
        (void)mc_store_describe(store, keys[0], described, 4);
    } else if (which == 6) {
        (void)mc_store_copy(store, keys[0], NULL, &target, 1);
    } else {
        (void)mc_store_replica_clear(store, keys, 2, target, results);
    }
}

static void call(struct mc_store *store, uint8_t what, uint8_t *bytes)
{
    uint64_t start_ns = mc_clock_ns();
    if (what % 4 == 1)
        call_get(store, what / 4 % 4, bytes);
    else if (what % 4 == 2)
        call_put(store, what / 4 % 8, bytes);
    else if (what % 4 == 3)
        call_other(store, what / 4 % 8);
    else
        call_session(store, bytes);
    mc_assert(mc_clock_ns() - start_ns < LATE_NS);
}

static void run(uint8_t flags, const uint8_t *calls)
{
    struct mc_store_config config = {.local_hostname = "127.0.0.1",
                                     .master_server_addr = world.master,
                                     .paths = flags & 1 ? "shm,tcp" : "tcp",
                                     .local_buffer_size = 1,
                                     .call_timeout_ms = is_honest ? PATIENT_MS : TIMEOUT_MS};
    struct mc_store *store;
    int rc = mc_store_open(&config, &store);
    mc_assert(rc == 0 || !is_honest);
    if (rc < 0)
        return;
    uint8_t *bytes = malloc(LENGTH); /* to the byte */
    mc_assert(bytes != NULL);
    memset(bytes, 7, LENGTH);
    for (unsigned i = 0; i < CALLS && calls[i] != 0; i++)
        call(store, calls[i], bytes);
    mc_store_close(store);
    free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1 + CALLS)
        return 0;
    if (world.memory == NULL)
        begin();
    struct mc_reader rest = mc_reader(data + 1 + CALLS, size - 1 - CALLS);
    is_honest = true;
    for (size_t i = 1 + CALLS; i < size; i++)
        is_honest = is_honest && data[i] == 0;
    size_t half = mc_reader_left(&rest) / 2, quarter = mc_reader_left(&rest) / 4;
    pthread_mutex_lock(&world.lock);
    for (unsigned i = 0; i < PLACES; i++) {
        size_t length = i == AT_MASTER ? half : quarter;
        world.hostile[i].in = mc_reader(mc_reader_take(&rest, length), length);
        world.hostile[i].count = 1;
    }
    if (data[0] & 2)
        world.index_fd = index_of(&world.hostile[AT_NODE].in);
    /* A hostile master lets a client that has mapped the memory put anywhere, also there. */
    if (memcmp(mc_segment_memory_data(world.memory), world.object, OBJECT_SIZE) != 0)
        memcpy(mc_segment_memory_data(world.memory), world.object, OBJECT_SIZE);
    pthread_mutex_unlock(&world.lock);
    run(data[0], data + 1);
    pthread_mutex_lock(&world.lock);
    for (unsigned i = 0; i < PLACES; i++) /* they borrow from data */
        world.hostile[i].in = mc_reader(NULL, 0);
    if (world.index_fd >= 0)
        close(world.index_fd);
    world.index_fd = -1;
    pthread_mutex_unlock(&world.lock);
    return 0;
}
