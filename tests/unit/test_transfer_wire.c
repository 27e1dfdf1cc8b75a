/* The engine's protocols without a socket: documents, handshake frames, data requests and answers, batch ids, intents.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/checksum.h"
#include "base/error.h"
#include "env/keys.h"
#include "transfer/state/batch.h"
#include "transfer/wire/document.h"
#include "transfer/wire/handshake.h"
#include "transfer/state/host_table.h"
#include "transfer/serve/inbound.h"
#include "transfer/state/region.h"
#include "transfer/state/settings.h"
#include "transfer/wire/tcp_wire.h"
#include "transfer/run/outbound.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- documents ---- */

/* As the original wheel 0.3.13.post1 wrote it. */
static const char original[] =
    "{\"buffers\":[{\"addr\":139678986108944,\"length\":1048576,\"name\":\"127.0.0.1:16059\"}],\"name\":\"127.0.0.1:"
    "16059\","
    "\"protocol\":\"tcp\",\"rdma_server_name\":\"\",\"tcp_data_host\":\"127.0.0.1\",\"tcp_data_port\":16102,"
    "\"tcp_proto_version\":2,\"timestamp\":\"2026-11-21 10:07:41.295204\"}\n";

static void test_document_of_original(void **state)
{
    (void)state;
    struct mc_document document;
    assert_int_equal(mc_document_read(mc_span_string(original), &document), 0);
    assert_string_equal(document.name, "127.0.0.1:16059");
    assert_string_equal(document.data_host, "127.0.0.1");
    assert_int_equal(document.data_port, 16102);
    assert_int_equal(document.data_version, 2);
    assert_true(document.is_tcp);
    assert_int_equal(document.buffer_count, 1);
    assert_true(document.buffers[0].address == 139678986108944u && document.buffers[0].length == 1048576);
    assert_true(mc_id_is_zero(document.id));
    mc_document_free(&document);
}

static void test_document_round(void **state)
{
    (void)state;
    struct mc_transfer_range buffers[3] = {{1, 1}, {4096, UINT64_MAX - 4095}, {2, 100}};
    struct mc_document in = {.name = "no\"de\\ \x01\xc3\xa4",
                             .is_tcp = true,
                             .data_host = "::1",
                             .data_port = 65535,
                             .data_version = 2,
                             .buffers = buffers,
                             .buffer_count = 3,
                             .host = {1, UINT64_MAX},
                             .id = {0xabcdef, 7},
                             .can_cut = true,
                             .can_mean = true,
                             .unix_name = "@x"};
    struct mc_document out;
    struct mc_buffer text = {0};
    mc_document_write(&text, &in, "now");
    assert_int_equal(mc_document_read(mc_span(text.data, text.length), &out), 0);
    assert_string_equal(out.name, in.name);
    assert_string_equal(out.unix_name, "@x");
    assert_true(out.can_cut && out.can_mean);
    assert_true(mc_id_equal(out.id, in.id) && mc_id_equal(out.host, in.host));
    assert_int_equal(out.buffer_count, 3);
    assert_memory_equal(out.buffers, buffers, sizeof(buffers));
    mc_document_free(&out);
    for (size_t length = 0; length < text.length; length++) { /* cut anywhere it is none */
        assert_int_equal(mc_document_read(mc_span(text.data, length), &out), MC_TRANSFER_ERR_MALFORMED_JSON);
        mc_document_free(&out);
    }
    mc_buffer_free(&text);
}

static void test_document_bad(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        "[]",
        "5",
        "{}",
        "{\"name\":\"a\"}",
        "{\"protocol\":\"tcp\"}",
        "{\"name\":\"\",\"protocol\":\"tcp\"}",
        "{\"name\":5,\"protocol\":\"tcp\"}",
        "{\"name\":\"a\",\"protocol\":5}",
        "{\"name\":\"a\",\"protocol\":{}}",
        "{\"name\":\"a\",\"protocol\":\"tcp\",\"buffers\":{}}",
        "{\"name\":\"a\",\"protocol\":\"tcp\",\"buffers\":[5]}",
        "{\"name\":\"a\",\"protocol\":\"tcp\",\"buffers\":[{\"addr\":1,\"length\":1}]}",
        "{\"name\":\"a\",\"protocol\":\"tcp\",\"buffers\":[{\"addr\":0,\"length\":1,\"name\":\"x\"}]}",
        "{\"name\":\"a\",\"protocol\":\"tcp\",\"buffers\":[{\"addr\":1,\"length\":0,\"name\":\"x\"}]}",
        "{\"name\":\"a\",\"protocol\":\"tcp\",\"buffers\":[{\"addr\":-1,\"length\":1,\"name\":\"x\"}]}",
        "{\"name\":\"a\",\"protocol\":\"tcp\",\"buffers\":[{\"addr\":1.5,\"length\":1,\"name\":\"x\"}]}",
        "{\"name\":\"a\",\"protocol\":\"tcp\",\"buffers\":[{\"addr\":\"1\",\"length\":1,\"name\":\"x\"}]}",
        "{\"name\":\"a\",\"protocol\":\"tcp\",\"buffers\":[{\"addr\":2,\"length\":18446744073709551615,\"name\":\"x\"}]"
        "}",
        "{\"name\":\"a\",\"protocol\":\"tcp\",\"buffers\":[{\"addr\":1,\"length\":18446744073709551616,\"name\":\"x\"}]"
        "}",
        "{\"name\":\"a\",\"protocol\":\"tcp\",\"tcp_data_port\":65536}",
        "{\"name\":\"a\",\"protocol\":\"tcp\",\"tcp_data_port\":\"1\"}",
        "{\"name\":\"a\",\"protocol\":\"tcp\",\"mooncake_c\":5}",
        "{\"name\":\"a\",\"protocol\":\"tcp\",\"mooncake_c\":{\"id\":\"12\"}}",
        "{\"name\":\"a\\u0000b\",\"protocol\":\"tcp\"}",
        "{\"name\":\"a\\ud800\",\"protocol\":\"tcp\"}",
        "{\"name\":\"a\",\"protocol\":\"tcp\"} x"};
    struct mc_document document;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        if (mc_document_read(mc_span_string(bad[i]), &document) != MC_TRANSFER_ERR_MALFORMED_JSON)
            fail_msg("accepted: %s", bad[i]);
        mc_document_free(&document);
    }
    static const char odd[] =
        "{\"x\":{\"y\":[1,{}]},\"protocol\":[\"rdma\",\"tcp\"],\"name\":\"\\u00e4\",\"new\":null}";
    assert_int_equal(mc_document_read(mc_span_string(odd), &document), 0);
    assert_true(document.is_tcp);
    assert_string_equal(document.name, "\xc3\xa4");
    assert_int_equal(document.data_version, 1);
    mc_document_free(&document);
}

static void test_keys(void **state)
{
    (void)state;
    char key[MC_TRANSFER_KEY_MAX];
    mc_segment_key(key, sizeof(key), "", "node");
    assert_string_equal(key, "mooncake/ram/node");
    mc_segment_key(key, sizeof(key), "c1", "node");
    assert_string_equal(key, "mooncake/c1/ram/node");
    mc_segment_key(key, sizeof(key), "c1", "a/b");
    assert_string_equal(key, "mooncake/a/b");
    mc_rpc_meta_key(key, sizeof(key), NULL, "h:1");
    assert_string_equal(key, "mooncake/rpc_meta/h:1");
    mc_rpc_meta_key(key, sizeof(key), "c1", "h:1");
    assert_string_equal(key, "mooncake/c1/rpc_meta/h:1");
    struct mc_buffer text = {0};
    char host[64];
    uint16_t port;
    mc_rpc_meta_write(&text, "10.0.0.1", 15234);
    mc_buffer_append(&text, "", 1);
    assert_string_equal((char *)text.data, "{\"ip_or_host_name\":\"10.0.0.1\",\"rpc_port\":15234}");
    assert_int_equal(mc_rpc_meta_read(mc_span(text.data, text.length - 1), host, sizeof(host), &port), 0);
    assert_string_equal(host, "10.0.0.1");
    assert_int_equal(port, 15234);
    assert_true(mc_rpc_meta_read(mc_span_string("{\"ip_or_host_name\":\"a\"}"), host, sizeof(host), &port) < 0);
    assert_true(mc_rpc_meta_read(mc_span_string("{\"ip_or_host_name\":\"a\",\"rpc_port\":0}"), host, 64, &port) < 0);
    mc_buffer_free(&text);
}

/* ---- handshake ---- */

static void test_handshake(void **state)
{
    (void)state;
    struct mc_buffer out = {0};
    struct mc_handshake frame;
    mc_handshake_write(&out, MC_HANDSHAKE_NOTIFY, false, mc_span("{}", 2));
    assert_int_equal(out.length, 11);
    for (size_t length = 0; length < out.length; length++)
        assert_int_equal(mc_handshake_read(mc_span(out.data, length), 100, &frame), 0);
    assert_int_equal(mc_handshake_read(mc_span(out.data, out.length), 100, &frame), 1);
    assert_int_equal(frame.type, MC_HANDSHAKE_NOTIFY);
    assert_false(frame.is_old);
    assert_true(mc_span_equal(frame.json, mc_span("{}", 2)));
    assert_int_equal(mc_handshake_read(mc_span(out.data, out.length), 2, &frame), MC_ERR_PROTOCOL);
    out.length = 0;
    mc_handshake_write(&out, MC_HANDSHAKE_CONNECTION, true, mc_span("{}", 2));
    assert_int_equal(mc_handshake_read(mc_span(out.data, out.length), 100, &frame), 1);
    assert_true(frame.is_old && frame.type == MC_HANDSHAKE_CONNECTION && frame.json.length == 2);
    mc_buffer_free(&out);
    static const char zero[9] = {0}, type[9] = {5, 0, 0, 0, 0, 0, 0, 0, 9};
    assert_int_equal(mc_handshake_read(mc_span(zero, 8), 100, &frame), MC_ERR_PROTOCOL);
    assert_int_equal(mc_handshake_read(mc_span(type, 9), 100, &frame), MC_ERR_PROTOCOL);
    assert_int_equal(mc_handshake_read(mc_span("GET / HTTP/1.1\r\n", 16), 1 << 20, &frame), MC_ERR_PROTOCOL);
    assert_int_equal(mc_handshake_read(mc_span("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03", 10), 1 << 20, &frame),
                     MC_ERR_PROTOCOL); /* TLS */
}

static void test_note(void **state)
{
    (void)state;
    struct mc_buffer out = {0};
    char *name, *message;
    mc_handshake_write_note(&out, "a\"\n", "");
    assert_int_equal(mc_handshake_read_note(mc_span(out.data, out.length), &name, &message), 0);
    assert_string_equal(name, "a\"\n");
    assert_string_equal(message, "");
    free(name);
    free(message);
    mc_buffer_free(&out);
    static const char *const bad[] = {
        "", "{}", "{\"name\":\"a\"}", "{\"name\":1,\"notify_msg\":\"b\"}", "[", "{\"name\":\"a\",\"notify_msg\":\"b\""};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_true(mc_handshake_read_note(mc_span_string(bad[i]), &name, &message) < 0);
        assert_null(name);
        assert_null(message);
    }
}

/* ---- data: an asking and a serving half joined by a pipe of every possible width ---- */

struct world {
    struct mc_region_table table;
    uint32_t held;
};

static struct mc_region *hold(void *context, uint64_t address, uint64_t length)
{
    struct world *world = context;
    struct mc_region *region = mc_region_find(&world->table, address, length);
    if (region != NULL) {
        region->in_flight++;
        world->held++;
    }
    return region;
}
static void release(void *context, struct mc_region *region)
{
    struct world *world = context;
    assert_true(region->in_flight > 0);
    region->in_flight--;
    world->held--;
}

static bool copy(void *context, uint64_t address, const void *from, size_t size)
{
    (void)context;
    memcpy((void *)(uintptr_t)address, from, size);
    return true;
}

static int sum(void *context, uint64_t address, uint64_t length, uint64_t since_ns, uint32_t *result)
{
    (void)since_ns;
    struct world *world = context;
    if (mc_region_find(&world->table, address, length) == NULL)
        return 0;
    *result = mc_crc32c(0, (const void *)(uintptr_t)address, (size_t)length);
    return 1;
}

static size_t gather(const struct iovec *parts, size_t count, uint8_t *to, size_t most)
{
    size_t used = 0;
    for (size_t i = 0; i < count && used < most; i++) {
        size_t size = parts[i].iov_len < most - used ? parts[i].iov_len : most - used;
        memcpy(to + used, parts[i].iov_base, size);
        used += size;
    }
    return used;
}
static size_t scatter(const struct iovec *parts, size_t count, const uint8_t *from, size_t size)
{
    size_t used = 0;
    for (size_t i = 0; i < count && used < size; i++) {
        size_t part = parts[i].iov_len < size - used ? parts[i].iov_len : size - used;
        memcpy(parts[i].iov_base, from + used, part);
        used += part;
    }
    return used;
}

/* One exchange in both directions of at most `width` bytes each. What the asking half says. */
static int pump(struct mc_outbound *outbound, struct mc_inbound *inbound, size_t width, bool *moved)
{
    static uint8_t wire[1 << 17];
    struct iovec parts[MC_OUTBOUND_PARTS], window[2], replies[64];
    *moved = false;
    size_t sent = gather(parts, mc_outbound_send_parts(outbound, parts), wire, width);
    size_t taken = scatter(window, mc_inbound_window(inbound, window), wire, sent);
    if (taken > 0) {
        mc_outbound_sent(outbound, taken);
        mc_inbound_received(inbound, taken);
        *moved = true;
    }
    size_t count = mc_inbound_replies(inbound, replies, 64);
    size_t answered = gather(replies, count, wire, width);
    size_t got = scatter(parts, mc_outbound_receive_parts(outbound, parts), wire, answered);
    if (got == 0)
        return 0;
    *moved = true;
    mc_inbound_sent(inbound, got);
    return mc_outbound_received(outbound, got);
}

static void run_pair(enum mc_transfer_opcode opcode, unsigned version, enum mc_outbound_sums sums, size_t width,
                     size_t count, size_t length)
{
    struct world world = {0};
    struct mc_inbound_hooks hooks = {&world, hold, release, copy, NULL, NULL, sum, NULL, NULL};
    struct mc_inbound *inbound = malloc(sizeof(*inbound));
    struct mc_outbound outbound;
    uint8_t *near = malloc(count * length), *far = calloc(count, length);
    struct mc_transfer_item *items = calloc(count, sizeof(*items));
    assert_true(inbound != NULL && near != NULL && far != NULL && items != NULL);
    struct mc_transfer_range range = {(uintptr_t)far, count * length};
    assert_int_equal(mc_region_add(&world.table, &range, 1, NULL), 0);
    for (size_t i = 0; i < count * length; i++)
        (opcode == MC_TRANSFER_WRITE ? near : far)[i] = (uint8_t)(i * 31 + i / 251);
    for (size_t i = 0; i < count; i++) /* backwards in the far memory */
        items[i] = (struct mc_transfer_item){near + i * length, (uintptr_t)far + (count - 1 - i) * length, length};
    mc_inbound_init(inbound, &hooks);
    mc_outbound_init(&outbound, opcode, version, sums, items, count);
    bool moved = true;
    while (moved && !mc_outbound_is_done(&outbound))
        assert_int_equal(pump(&outbound, inbound, width, &moved), 0);
    assert_true(mc_outbound_is_done(&outbound));
    assert_int_equal(world.held, 0);
    for (size_t i = 0; i < count; i++)
        assert_memory_equal(near + i * length, far + (count - 1 - i) * length, length);
    /* A write of version 1 is confirmed by a read of its last byte. */
    assert_int_equal(inbound->bytes, count * length + (version == 1 && opcode == MC_TRANSFER_WRITE ? count : 0));
    mc_inbound_end(inbound);
    mc_region_table_free(&world.table);
    free(items);
    free(far);
    free(near);
    free(inbound);
}

static void test_data(void **state)
{
    (void)state;
    static const size_t widths[] = {1, 7, 8, 24, 25, 1000, 65536, 1 << 17};
    for (unsigned version = 1; version <= 3; version++) { /* 3: 2 with sums */
        const enum mc_outbound_sums sums = version == 3 ? MC_SUMS_TOO : MC_SUMS_NONE;
        for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++) {
            run_pair(MC_TRANSFER_WRITE, version < 2 ? 1 : 2, sums, widths[i], 1, 1);
            run_pair(MC_TRANSFER_READ, version < 2 ? 1 : 2, sums, widths[i], 1, 1);
            run_pair(MC_TRANSFER_WRITE, version < 2 ? 1 : 2, sums, widths[i], 600, 13);
            run_pair(MC_TRANSFER_READ, version < 2 ? 1 : 2, sums, widths[i], 600, 13);
            run_pair(MC_TRANSFER_WRITE, version < 2 ? 1 : 2, sums, widths[i], 3, 70001);
            run_pair(MC_TRANSFER_READ, version < 2 ? 1 : 2, sums, widths[i], 3, 70001);
        }
    }
}

static void feed(struct mc_inbound *inbound, uint64_t length, uint64_t address, uint8_t opcode)
{
    struct mc_tcp_header header = {.length = length, .address = address, .opcode = opcode};
    struct iovec window[2];
    assert_true(mc_inbound_window(inbound, window) == 1);
    memcpy(window[0].iov_base, &header, sizeof(header));
    mc_inbound_received(inbound, sizeof(header));
}

/* Whatever is not inside one region is refused, once, and nothing more is taken. */
static void test_data_refused(void **state)
{
    (void)state;
    static uint8_t memory[64];
    uint64_t base = (uintptr_t)memory;
    const struct mc_transfer_range bad[] = {{base - 1, 1},      {base, 65}, {base + 63, 2},
                                            {base, UINT64_MAX}, {base, 0},  {UINT64_MAX, 1},
                                            {base + 1, -base},  {0, 1},     {base + 64, 1}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        for (int opcode = 0; opcode < 2; opcode++) {
            struct world world = {0};
            struct mc_inbound_hooks hooks = {&world, hold, release, copy, NULL, NULL, sum, NULL, NULL};
            static struct mc_inbound inbound;
            struct iovec parts[4];
            struct mc_transfer_range range = {base, 64};
            uint64_t status;
            assert_int_equal(mc_region_add(&world.table, &range, 1, NULL), 0);
            mc_inbound_init(&inbound, &hooks);
            feed(&inbound, bad[i].length, bad[i].address, (uint8_t)(opcode | 0x80));
            assert_true(inbound.is_over && !mc_inbound_is_done(&inbound));
            assert_int_equal(mc_inbound_window(&inbound, parts), 0);
            assert_int_equal(mc_inbound_replies(&inbound, parts, 4), 1);
            memcpy(&status, parts[0].iov_base, sizeof(status));
            assert_true(status == MC_TCP_STATUS_REFUSED);
            mc_inbound_sent(&inbound, 8);
            assert_true(mc_inbound_is_done(&inbound));
            assert_int_equal(world.held, 0);
            assert_int_equal(inbound.refused, 1);
            mc_region_table_free(&world.table);
        }
    }
}

static void test_data_end(void **state)
{
    (void)state;
    static uint8_t memory[64];
    static struct mc_inbound inbound;
    struct world world = {0};
    struct mc_inbound_hooks hooks = {&world, hold, release, copy, NULL, NULL, sum, NULL, NULL};
    struct mc_transfer_range range = {(uintptr_t)memory, 64};
    assert_int_equal(mc_region_add(&world.table, &range, 1, NULL), 0);
    struct mc_region *region = mc_region_at(&world.table, range.address);
    mc_inbound_init(&inbound, &hooks);
    feed(&inbound, 64, range.address, 0x80); /* a read that is never sent */
    feed(&inbound, 64, range.address, 0x81); /* and a write that never comes */
    assert_int_equal(world.held, 2);
    assert_false(mc_inbound_holds_leaving(&inbound));
    region->is_leaving = true;
    assert_true(mc_inbound_holds_leaving(&inbound));
    mc_inbound_end(&inbound);
    assert_int_equal(world.held, 0);
    assert_false(mc_inbound_holds_leaving(&inbound));
    region->is_leaving = false;
    mc_inbound_init(&inbound, &hooks);
    feed(&inbound, 64, range.address, 0x42);
    assert_true(mc_inbound_is_done(&inbound)); /* nonsense is not answered */
    mc_inbound_end(&inbound);
    for (int i = 0; i < 3; i++) { /* who is meant, or another, in one half or the other: nothing of that is taken */
        struct mc_id meant = {.high = i == 1 ? 8 : 7, .low = i == 2 ? 8 : 9};
        mc_inbound_init(&inbound, &hooks);
        inbound.id = (struct mc_id){.high = 7, .low = 9};
        feed(&inbound, meant.high, meant.low, MC_TCP_WHO);
        assert_int_equal(mc_inbound_is_done(&inbound), i > 0);
        assert_int_equal(inbound.count, 0);
        mc_inbound_end(&inbound);
    }
    mc_region_table_free(&world.table);
}

/* A peer that answers with something else than a status. */
static void test_outbound_lies(void **state)
{
    (void)state;
    uint8_t memory[16];
    struct mc_transfer_item items[2] = {{memory, 4096, 8}, {memory + 8, 8192, 8}};
    struct iovec parts[MC_OUTBOUND_PARTS];
    struct mc_outbound outbound;
    static const struct {
        uint64_t status;
        int rc;
    } rows[] = {{0, MC_TRANSFER_ERR_REJECT_HANDSHAKE},
                {MC_TCP_STATUS_REFUSED, MC_TRANSFER_ERR_ADDRESS_NOT_REGISTERED},
                {MC_TCP_STATUS_OK | 77, MC_TRANSFER_ERR_ADDRESS_NOT_REGISTERED},
                {UINT64_MAX, MC_TRANSFER_ERR_REJECT_HANDSHAKE}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        mc_outbound_init(&outbound, MC_TRANSFER_READ, 2, MC_SUMS_NONE, items, 2);
        assert_int_equal(mc_outbound_receive_parts(&outbound, parts), 0); /* nothing asked, nothing expected */
        assert_int_equal(mc_outbound_send_parts(&outbound, parts), 2);
        mc_outbound_sent(&outbound, 48);
        assert_int_equal(mc_outbound_receive_parts(&outbound, parts), 4);
        memcpy(parts[0].iov_base, &rows[i].status, 8);
        assert_int_equal(mc_outbound_received(&outbound, 7), 0);
        assert_int_equal(mc_outbound_received(&outbound, 1), rows[i].rc);
        assert_int_equal(outbound.done, 0);
    }
    mc_outbound_restart(&outbound);
    assert_int_equal(outbound.sending, 0);
    assert_int_equal(mc_outbound_send_parts(&outbound, parts), 2);
    const struct mc_tcp_header *header = parts[0].iov_base;
    static const uint8_t zero[7];
    assert_memory_equal(header->lane, zero, 7);
}

/* ---- sums ---- */

enum { SUMMED = 100000, FLIPPED = 70000 };

struct sums_world {
    struct world world;
    struct mc_inbound_hooks hooks;
    struct mc_inbound inbound;
    struct mc_outbound outbound;
    struct mc_transfer_item items[3];
    uint8_t near[3 * SUMMED], far[3 * SUMMED];
};

static struct sums_world *sums_open(enum mc_transfer_opcode opcode, enum mc_outbound_sums sums)
{
    struct sums_world *own = calloc(1, sizeof(*own));
    assert_non_null(own);
    own->hooks = (struct mc_inbound_hooks){&own->world, hold, release, copy, NULL, NULL, sum, NULL, NULL};
    struct mc_transfer_range range = {(uintptr_t)own->far, sizeof(own->far)};
    assert_int_equal(mc_region_add(&own->world.table, &range, 1, NULL), 0);
    for (size_t i = 0; i < sizeof(own->near); i++)
        own->near[i] = own->far[i] = (uint8_t)(i * 31 + i / 251);
    for (size_t i = 0; i < 3; i++)
        own->items[i] = (struct mc_transfer_item){own->near + i * SUMMED, (uintptr_t)own->far + i * SUMMED, SUMMED};
    mc_inbound_init(&own->inbound, &own->hooks);
    mc_outbound_init(&own->outbound, opcode, 2, sums, own->items, 3);
    return own;
}

static void sums_close(struct sums_world *own)
{
    mc_inbound_end(&own->inbound);
    assert_int_equal(own->world.held, 0);
    mc_region_table_free(&own->world.table);
    free(own);
}

/* Until something is said, or all is done. */
static int sums_pump(struct sums_world *own, uint8_t *flipped)
{
    bool moved = true;
    int rc = 0;
    for (bool has_flipped = false; rc == 0 && moved && !mc_outbound_is_done(&own->outbound);) {
        rc = pump(&own->outbound, &own->inbound, 4096, &moved);
        const size_t at = FLIPPED % SUMMED;
        bool is_there = own->outbound.opcode == MC_TRANSFER_WRITE
                            ? own->inbound.region != NULL && own->inbound.left < SUMMED - at
                            : own->outbound.received_of_oldest > at + 8;
        if (flipped != NULL && !has_flipped && (is_there || own->outbound.sums == MC_SUMS_ONLY)) {
            *flipped ^= 4;
            has_flipped = true;
        }
    }
    return rc;
}

/* A bit of what has arrived is another: the request fails, and which one and both sums can be told. */
static void test_sums_differ(void **state)
{
    (void)state;
    for (int row = 0; row < 4; row++) {
        enum mc_transfer_opcode opcode = row % 2 == 0 ? MC_TRANSFER_READ : MC_TRANSFER_WRITE;
        enum mc_outbound_sums sums = row < 2 ? MC_SUMS_TOO : MC_SUMS_ONLY;
        struct sums_world *own = sums_open(opcode, sums);
        assert_int_equal(sums_pump(own, NULL), 0);
        assert_true(mc_outbound_is_done(&own->outbound));
        /* Of nothing but sums no byte is moved. */
        assert_int_equal(own->inbound.bytes, sums == MC_SUMS_ONLY ? 0 : sizeof(own->far));
        mc_outbound_again(&own->outbound, 2, sums);
        uint8_t *arrived = opcode == MC_TRANSFER_WRITE ? own->far : own->near;
        uint32_t sum_before = mc_crc32c(0, arrived, SUMMED);
        if (sums == MC_SUMS_ONLY)
            arrived[FLIPPED] ^= 4;
        if (opcode == MC_TRANSFER_WRITE || sums == MC_SUMS_ONLY) {
            assert_int_equal(sums_pump(own, sums == MC_SUMS_ONLY ? NULL : arrived + FLIPPED),
                             MC_TRANSFER_ERR_INVALID_ARGUMENT);
            assert_int_equal(own->outbound.done, 0);
            uint32_t ours = own->outbound.ours[0], theirs = (uint32_t)own->outbound.theirs[0].sum;
            assert_int_equal(opcode == MC_TRANSFER_WRITE ? ours : theirs, sum_before);
            assert_int_not_equal(ours, theirs);
        }
        sums_close(own);
    }
}

/* As above, of a READ: a bit is another when it comes. */
static void test_sums_differ_of_read(void **state)
{
    (void)state;
    struct sums_world *own = sums_open(MC_TRANSFER_READ, MC_SUMS_TOO);
    struct iovec parts[MC_OUTBOUND_PARTS], replies[8], window[2];
    static uint8_t wire[3 * (SUMMED + 64)];
    size_t asked = gather(parts, mc_outbound_send_parts(&own->outbound, parts), wire, sizeof(wire));
    assert_int_equal(asked, 3 * 2 * sizeof(struct mc_tcp_header));
    assert_int_equal(scatter(window, mc_inbound_window(&own->inbound, window), wire, asked), asked);
    mc_outbound_sent(&own->outbound, asked);
    mc_inbound_received(&own->inbound, asked);
    size_t said = gather(replies, mc_inbound_replies(&own->inbound, replies, 8), wire, sizeof(wire));
    wire[8 + FLIPPED] ^= 4;
    assert_true(said > SUMMED + 24);
    assert_int_equal(scatter(parts, mc_outbound_receive_parts(&own->outbound, parts), wire, SUMMED + 23), SUMMED + 23);
    assert_int_equal(mc_outbound_received(&own->outbound, SUMMED + 23), 0); /* not before all of it has come */
    assert_int_equal(scatter(parts, mc_outbound_receive_parts(&own->outbound, parts), wire + SUMMED + 23, 1), 1);
    assert_int_equal(mc_outbound_received(&own->outbound, 1), MC_TRANSFER_ERR_INVALID_ARGUMENT);
    sums_close(own);
}

/* Who may only write can ask for the sum of what he wrote, once, and of nothing else. */
static void test_sums_rights(void **state)
{
    (void)state;
    for (int row = 0; row < 4; row++) {
        struct sums_world *own = sums_open(MC_TRANSFER_WRITE, MC_SUMS_TOO);
        struct iovec parts[8];
        uint64_t base = (uintptr_t)own->far;
        own->inbound.rights = MC_RIGHT_WRITE;
        if (row > 0) {
            feed(&own->inbound, 4, base, MC_TCP_OPCODE_VERSION_2 | MC_TRANSFER_WRITE);
            assert_int_equal(mc_inbound_window(&own->inbound, parts), 2);
            mc_inbound_received(&own->inbound, 4);
        }
        feed(&own->inbound, row == 2 ? 3 : 4, base, MC_TCP_OPCODE_VERSION_2 | MC_TCP_SUM);
        assert_int_equal(own->inbound.refused, row == 0 || row == 2);
        if (row == 1 || row == 3) {
            feed(&own->inbound, 4, base, MC_TCP_OPCODE_VERSION_2 | MC_TCP_SUM);
            assert_int_equal(own->inbound.refused, 1);
        }
        sums_close(own);
    }
}

/* A sum is made in one go, so it is of little; many take turns; and version 1 knows none. */
static void test_sums_bounds(void **state)
{
    (void)state;
    static uint8_t memory[MC_TCP_SUM_MAX + 1];
    static struct mc_inbound inbound;
    struct world world = {0};
    struct mc_inbound_hooks hooks = {&world, hold, release, copy, NULL, NULL, sum, NULL, NULL};
    struct mc_transfer_range range = {(uintptr_t)memory, sizeof(memory)};
    struct iovec window[2], parts[64];
    struct mc_tcp_header headers[8];
    assert_int_equal(mc_region_add(&world.table, &range, 1, NULL), 0);
    mc_inbound_init(&inbound, &hooks);
    feed(&inbound, MC_TCP_SUM_MAX + 1, range.address, MC_TCP_OPCODE_VERSION_2 | MC_TCP_SUM);
    assert_true(inbound.is_over && inbound.refused == 1);
    mc_inbound_end(&inbound);
    mc_inbound_init(&inbound, &hooks);
    feed(&inbound, 1, range.address, MC_TCP_SUM);
    assert_true(mc_inbound_is_done(&inbound));
    mc_inbound_init(&inbound, &hooks);
    for (size_t i = 0; i < 8; i++)
        headers[i] = (struct mc_tcp_header){
            .length = MC_TCP_SUM_MAX, .address = range.address, .opcode = MC_TCP_OPCODE_VERSION_2 | MC_TCP_SUM};
    assert_int_equal(mc_inbound_window(&inbound, window), 1);
    memcpy(window[0].iov_base, headers, sizeof(headers));
    mc_inbound_received(&inbound, sizeof(headers));
    size_t answered = 0;
    for (uint32_t turns = 0; inbound.count > 0; turns++) {
        size_t count = mc_inbound_replies(&inbound, parts, 64), bytes = 0;
        assert_true(turns < 8 && count <= 2);
        for (size_t i = 0; i < count; i++)
            bytes += parts[i].iov_len;
        answered += bytes;
        mc_inbound_sent(&inbound, bytes);
    }
    assert_int_equal(answered, 8 * sizeof(struct mc_tcp_sum));
    mc_inbound_end(&inbound);
    assert_int_equal(world.held, 0);
    mc_region_table_free(&world.table);
}

/* A peer that refuses to say the sum hangs up behind its status. */
static void test_sum_refused(void **state)
{
    (void)state;
    struct sums_world *own = sums_open(MC_TRANSFER_READ, MC_SUMS_TOO);
    struct iovec parts[MC_OUTBOUND_PARTS];
    const uint64_t ok = MC_TCP_STATUS_OK, refused = MC_TCP_STATUS_REFUSED;
    own->items[0].length = 8;
    assert_true(mc_outbound_send_parts(&own->outbound, parts) > 0);
    mc_outbound_sent(&own->outbound, 2 * sizeof(struct mc_tcp_header));
    assert_int_equal(mc_outbound_receive_parts(&own->outbound, parts), 3);
    memcpy(parts[0].iov_base, &ok, 8);
    assert_int_equal(mc_outbound_received(&own->outbound, 16), 0);
    assert_int_equal(mc_outbound_receive_parts(&own->outbound, parts), 1);
    memcpy(parts[0].iov_base, &refused, 8);
    assert_int_equal(mc_outbound_received(&own->outbound, 8), MC_TRANSFER_ERR_ADDRESS_NOT_REGISTERED);
    sums_close(own);
}

/* ---- batch ids ---- */

static void test_batches(void **state)
{
    (void)state;
    struct mc_batch_table table = {0};
    int64_t first, id, *ids = malloc(MC_TRANSFER_BATCHES_MAX * sizeof(*ids));
    assert_non_null(ids);
    assert_non_null(mc_batch_add(&table, &first));
    assert_true(first > 0);
    mc_batch_remove(&table, first);
    assert_null(mc_batch_find(&table, first));
    assert_non_null(mc_batch_add(&table, &id)); /* in the same place */
    assert_true(id != first && id > 0);
    assert_null(mc_batch_find(&table, first));
    assert_non_null(mc_batch_find(&table, id));
    mc_batch_remove(&table, id);
    static const int64_t never[] = {0, -1, INT64_MIN, INT64_MAX, 1, 65536};
    for (size_t i = 0; i < sizeof(never) / sizeof(never[0]); i++)
        assert_null(mc_batch_find(&table, never[i]));
    for (size_t i = 0; i < MC_TRANSFER_BATCHES_MAX; i++)
        assert_non_null(mc_batch_add(&table, &ids[i]));
    assert_null(mc_batch_add(&table, &id));
    for (size_t i = 0; i < MC_TRANSFER_BATCHES_MAX; i += 4096)
        assert_int_equal(mc_batch_find(&table, ids[i])->id, ids[i]);
    mc_batch_table_free(&table);
    free(ids);
}

/* ---- the table between two processes ---- */

static void test_host_table(void **state)
{
    (void)state;
    struct mc_host_table *table = calloc(1, sizeof(*table));
    static struct mc_host_intents intents;
    struct mc_host_view view = {0};
    assert_non_null(table);
    for (uint32_t i = 0; i < 10; i++) {
        struct mc_region region = {
            .address = 1000 - i * 100, .length = 50, .generation = i + 1, .slot = i, .memory_fd = (int)i - 1};
        mc_host_entry_set(table, &region);
    }
    assert_int_equal(mc_host_view_refresh(&view, table), 0);
    assert_int_equal(view.count, 10);
    const struct mc_host_known *known = mc_host_view_find(&view, 1010, 40);
    assert_true(known != NULL && known->slot == 0 && known->generation == 1 && known->memory == 0);
    assert_int_equal(mc_host_view_find(&view, 700, 50)->memory, 3); /* descriptor 2 */
    assert_null(mc_host_view_find(&view, 1010, 41));
    assert_null(mc_host_view_find(&view, 1050, 1));
    assert_null(mc_host_view_find(&view, 99, 1));
    assert_null(mc_host_view_find(&view, 1010, UINT64_MAX));
    assert_true(mc_host_announce(&intents.intents[63], table, &known, 1));
    assert_true(mc_host_is_intended(&intents, 0));
    assert_false(mc_host_is_intended(&intents, 1));
    mc_host_entry_clear(table, 0);
    assert_true(mc_host_is_intended(&intents, 0)); /* it goes on, the owner sees it */
    mc_host_retreat(&intents.intents[63]);
    assert_false(mc_host_is_intended(&intents, 0));
    assert_false(mc_host_announce(&intents.intents[0], table, &known, 1)); /* gone */
    mc_host_retreat(&intents.intents[0]);
    struct mc_region again = {.address = 1000, .length = 50, .generation = 99, .slot = 0, .memory_fd = -1};
    mc_host_entry_set(table, &again);
    assert_false(mc_host_announce(&intents.intents[0], table, &known, 1)); /* another one, in its place */
    mc_host_retreat(&intents.intents[0]);
    assert_int_equal(mc_host_view_refresh(&view, table), 0);
    assert_int_equal(mc_host_view_find(&view, 1000, 50)->generation, 99);
    atomic_store(&table->used, UINT32_MAX); /* a lie */
    assert_int_equal(mc_host_view_refresh(&view, table), 0);
    assert_int_equal(view.count, 10);
    free(view.known);
    free(table);
}

/* Which of the machine's addresses is published. */
static void test_address_of_the_machine(void **state)
{
    struct sockaddr_in v4[3] = {{.sin_family = AF_INET}, {.sin_family = AF_INET}, {.sin_family = AF_INET}};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
    struct ifaddrs list[5] = {{.ifa_flags = IFF_UP | IFF_RUNNING | IFF_LOOPBACK}, /* lo */
                              {.ifa_flags = IFF_UP | IFF_RUNNING},                /* without an address */
                              {.ifa_flags = IFF_UP},                              /* docker0, no cable ... */
                              {.ifa_flags = IFF_RUNNING},                         /* taken down */
                              {.ifa_flags = IFF_UP | IFF_RUNNING}};
    char address[64];
    (void)state;
    assert_int_equal(inet_pton(AF_INET, "127.0.0.1", &v4[0].sin_addr), 1);
    assert_int_equal(inet_pton(AF_INET, "172.17.0.1", &v4[1].sin_addr), 1);
    assert_int_equal(inet_pton(AF_INET, "10.0.0.7", &v4[2].sin_addr), 1);
    assert_int_equal(inet_pton(AF_INET6, "fd00::7", &v6.sin6_addr), 1);
    list[0].ifa_addr = (struct sockaddr *)&v4[0];
    list[2].ifa_addr = (struct sockaddr *)&v4[1];
    list[3].ifa_addr = (struct sockaddr *)&v4[1];
    list[4].ifa_addr = (struct sockaddr *)&v4[2];
    for (size_t i = 0; i < 4; i++)
        list[i].ifa_next = &list[i + 1];
    mc_network_pick(list, false, address, sizeof(address));
    assert_string_equal(address, "10.0.0.7");
    mc_network_pick(list, true, address, sizeof(address));
    assert_string_equal(address, "::1");
    list[4].ifa_flags = 0;
    mc_network_pick(list, false, address, sizeof(address)); /* better than none */
    assert_string_equal(address, "172.17.0.1");
    list[3].ifa_addr = (struct sockaddr *)&v6;
    list[3].ifa_flags = IFF_UP | IFF_RUNNING;
    mc_network_pick(list, true, address, sizeof(address));
    assert_string_equal(address, "fd00::7");
    mc_network_pick(NULL, false, address, sizeof(address));
    assert_string_equal(address, "127.0.0.1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_address_of_the_machine),
        cmocka_unit_test(test_document_of_original),
        cmocka_unit_test(test_document_round),
        cmocka_unit_test(test_document_bad),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_handshake),
        cmocka_unit_test(test_note),
        cmocka_unit_test(test_data),
        cmocka_unit_test(test_data_refused),
        cmocka_unit_test(test_data_end),
        cmocka_unit_test(test_outbound_lies),
        cmocka_unit_test(test_sums_differ),
        cmocka_unit_test(test_sums_differ_of_read),
        cmocka_unit_test(test_sums_rights),
        cmocka_unit_test(test_sums_bounds),
        cmocka_unit_test(test_sum_refused),
        cmocka_unit_test(test_batches),
        cmocka_unit_test(test_host_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
