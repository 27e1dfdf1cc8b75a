/* mc_store_trace: what a thread's calls are a part of, over real processes that write their spans into one file. */
#include "env/json.h"
#include "store/path/tcp_lane.h"
#include "store_rig.h"

#define TRACE "0af7651916cd43dd8448eb211c80319c"
#define GOOD "00-" TRACE "-b7ad6b7169203331-01"
#define NODE_BYTES (64ull << 20)
#define VALUES 40u
#define LARGE (3u << 20)

static char path[64];
static struct process node;

static int open_all(void **state)
{
    char setting[80];
    (void)state;
    snprintf(path, sizeof(path), "/tmp/mc-store-trace-%d", (int)getpid());
    snprintf(setting, sizeof(setting), "file:%s", path);
    setenv("MC_TRACES", setting, 1);
    setenv("MC_TRACES_RATE", "100000", 1);
    setenv("MC_TRACES_KEYS", "hash", 1);
    start_master(0);
    node = start_node(NODE_BYTES);
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    stop(&node, SIGTERM);
    stop(&master, SIGTERM);
    (void)unlink(path);
    return 0;
}

/* The next span of a text of spans that begins at *at. False: that was the last. */
static bool span_next(const char **at, struct mc_span *span)
{
    static const char begin[] = "{\"traceId\":";
    const char *found = strstr(*at, begin), *behind = found == NULL ? NULL : strstr(found + 1, begin);
    if (found == NULL)
        return false;
    *at = behind != NULL ? behind : found + strlen(found);
    *span = mc_span(found, (size_t)(*at - found));
    return true;
}

static bool holds(struct mc_span span, const char *words)
{
    return memmem(span.data, span.length, words, strlen(words)) != NULL;
}

static const char *text_now(void)
{
    static char text[8u << 20];
    FILE *file = fopen(path, "rb");
    size_t length = file == NULL ? 0 : fread(text, 1, sizeof(text) - 1, file);
    if (file != NULL)
        fclose(file);
    text[length] = 0;
    return text;
}

/* How many spans have those words and that word, or NULL. */
static unsigned spans_with(const char *words, const char *word)
{
    const char *at = text_now();
    unsigned count = 0;
    struct mc_span span;
    while (span_next(&at, &span))
        count += holds(span, words) && (word == NULL || holds(span, word));
    return count;
}

static uint64_t bytes_of(const char *name)
{
    static const char before[] = "\"mooncake.bytes\",\"value\":{\"intValue\":\"";
    const char *at = text_now();
    uint64_t bytes = 0;
    struct mc_span span;
    while (span_next(&at, &span)) {
        const char *found = memmem(span.data, span.length, before, sizeof(before) - 1);
        if (holds(span, name) && found != NULL)
            bytes += strtoull(found + sizeof(before) - 1, NULL, 10);
    }
    return bytes;
}

static void wait_for(const char *name, unsigned count)
{
    uint64_t end_ns = mc_clock_ns() + START_MS * 1000000ull;
    while (spans_with(name, NULL) < count && mc_clock_ns() < end_ns)
        usleep(10000);
    assert_true(spans_with(name, NULL) >= count);
}

static void calls_are_a_part_of_what_their_thread_says(void **state)
{
    uint8_t data[1000], found[1000];
    (void)state;
    fill(data, sizeof(data), 1);
    mc_store_trace(GOOD); /* before there is a store */
    struct mc_store *store = open_client("tcp", 0);
    assert_int_equal(put(store, "one", data, sizeof(data)), 0);
    assert_int_equal(get(store, "one", found, sizeof(found)), sizeof(found));
    assert_int_equal(get(store, "none", found, sizeof(found)), MC_ERR_OBJECT_NOT_FOUND);
    assert_int_equal(put(store, "one", data, sizeof(data)), 0); /* it is there already */
    struct mc_put_item bad = {.key = {NULL, 5}, .parts = NULL}; /* nowhere */
    assert_int_equal(mc_store_put(store, &bad, 1, NULL), MC_ERR_INVALID_PARAMS);
    mc_store_trace("00-nonsense");
    assert_int_equal(put(store, "two", data, sizeof(data)), 0);
    mc_store_trace(NULL);
    assert_int_equal(put(store, "three", data, sizeof(data)), 0);
    mc_store_close(store);
    assert_memory_equal(data, found, sizeof(data));
    assert_int_equal(spans_with("\"name\":\"mooncake.put\"", "\"parentSpanId\":\"b7ad6b7169203331\""), 3);
    assert_int_equal(spans_with("\"name\":\"mooncake.put\"", NULL), 3);
    assert_int_equal(spans_with("\"name\":\"mooncake.put\"", "\"status\":{}"), 2);
    assert_int_equal(spans_with("\"name\":\"mooncake.get\"", "\"mooncake.code\",\"value\":{\"intValue\":\"-704\"}"), 1);
    assert_int_equal(spans_with("\"name\":\"mooncake.get\"", "\"status\":{}"), 2); /* a miss is no failure */
    wait_for("\"name\":\"mooncake.master.get\"", 2);
    wait_for("\"name\":\"mooncake.master.put_start\"", 2);
    assert_int_equal(spans_with("\"name\":\"mooncake.master.put_start\"", "\"status\":{}"), 2);
    wait_for("\"name\":\"mooncake.node.read\"", 1);
    assert_int_equal(spans_with("\"traceId\":", NULL), spans_with("\"traceId\":\"" TRACE "\"", NULL));
}

/* Many values over one connection, and a large one in parts over several: all that is written and read is in spans. */
static void batches_and_parts_are_traced_and_whole(void **state)
{
    struct mc_put_item items[VALUES];
    struct mc_get_item gets[VALUES];
    struct iovec parts[VALUES], targets[VALUES];
    char keys[VALUES][16];
    uint64_t bytes = 0;
    (void)state;
    uint64_t written = bytes_of("\"name\":\"mooncake.node.write\""), read = bytes_of("\"name\":\"mooncake.node.read\"");
    uint64_t part_bytes = mc_tcp_part_bytes;
    mc_tcp_part_bytes = 256u << 10; /* also to an owner of this machine */
    struct mc_store *store = open_client("tcp", 0);
    for (unsigned i = 0; i < VALUES; i++) {
        size_t length = i == 7 ? LARGE : 1 + i * 3571u;
        snprintf(keys[i], sizeof(keys[i]), "many %u", i);
        parts[i] = (struct iovec){malloc(length), length};
        targets[i] = (struct iovec){calloc(1, length), length};
        fill(parts[i].iov_base, length, i);
        items[i] = (struct mc_put_item){.key = key_of(keys[i]), .parts = &parts[i], .part_count = 1};
        gets[i] = (struct mc_get_item){.key = key_of(keys[i]), .parts = &targets[i], .part_count = 1};
        bytes += length;
    }
    mc_store_trace(GOOD);
    assert_int_equal(mc_store_put(store, items, VALUES, NULL), 0);
    assert_int_equal(mc_store_get(store, gets, VALUES, NULL, NULL), 0);
    mc_store_trace(NULL);
    mc_store_close(store);
    mc_tcp_part_bytes = part_bytes;
    for (unsigned i = 0; i < VALUES; i++) {
        assert_memory_equal(parts[i].iov_base, targets[i].iov_base, parts[i].iov_len);
        free(parts[i].iov_base);
        free(targets[i].iov_base);
    }
    uint64_t end_ns = mc_clock_ns() + START_MS * 1000000ull;
    while ((bytes_of("\"name\":\"mooncake.node.write\"") < written + bytes ||
            bytes_of("\"name\":\"mooncake.node.read\"") < read + bytes) &&
           mc_clock_ns() < end_ns)
        usleep(10000);
    written = bytes_of("\"name\":\"mooncake.node.write\"") - written;
    read = bytes_of("\"name\":\"mooncake.node.read\"") - read;
    assert_in_range(written, bytes, bytes + bytes / 10);
    assert_in_range(read, bytes, bytes + bytes / 10);
    assert_int_equal(spans_with("\"name\":\"mooncake.put\"", "\"mooncake.keys\",\"value\":{\"intValue\":\"40\"}"), 1);
}

int main(int argument_count, char **arguments)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_are_a_part_of_what_their_thread_says),
        cmocka_unit_test(batches_and_parts_are_traced_and_whole),
    };
    if (argument_count == 4 && strcmp(arguments[1], "node") == 0)
        return node_main(arguments[2], arguments[3]);
    signal(SIGPIPE, SIG_IGN);
    if (realpath(arguments[0], self_path) == NULL)
        return 1;
    int failed = cmocka_run_group_tests(tests, open_all, close_all);
    stop(&master, SIGKILL); /* of a test that failed: it would keep our output open */
    return failed;
}
