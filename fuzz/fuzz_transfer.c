/* What the transfer engine reads from peers and metadata servers. The first byte says what the rest is: a document, a
 * handshake's bytes, a note, an rpc_meta document, the bytes of a data connection (in pieces whose sizes they say
 * themselves), the answers to requests of ours, what etcd's gateway says of a key, or what comes before a proof. */
#include "base/checksum.h"
#include "base/error.h"
#include "env/etcd.h"
#include "transfer/wire/document.h"
#include "transfer/wire/handshake.h"
#include "transfer/wire/preface.h"
#include "transfer/serve/inbound.h"
#include "transfer/run/outbound.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MEMORY ((uint64_t)4096)
/* Where inputs find the memory: offsets from here, so that they mean the same in any run */
#define BASE ((uint64_t)1 << 20)

/* Read, written, read again: the same. */
static void run_document(struct mc_span text)
{
    struct mc_document first, second;
    struct mc_buffer written = {0};
    if (mc_document_read(text, &first) == 0) {
        mc_document_write(&written, &first, "");
        mc_assert(mc_document_read(mc_span(written.data, written.length), &second) == 0);
        mc_assert(strcmp(first.name, second.name) == 0 && first.buffer_count == second.buffer_count);
        for (size_t i = 0; i < first.buffer_count; i++)
            mc_assert(first.buffers[i].length > 0 &&
                      first.buffers[i].length - 1 <= UINT64_MAX - first.buffers[i].address &&
                      memcmp(&first.buffers[i], &second.buffers[i], sizeof(first.buffers[i])) == 0);
        mc_document_free(&second);
    }
    mc_document_free(&first);
    mc_buffer_free(&written);
}

static void run_note(struct mc_span text)
{
    char *name, *message;
    if (mc_handshake_read_note(text, &name, &message) == 0) {
        mc_assert(name != NULL && message != NULL);
        free(name);
        free(message);
    }
}

static void run_rpc_meta(struct mc_span text)
{
    char host[32];
    uint16_t port;
    if (mc_rpc_meta_read(text, host, sizeof(host), &port) == 0)
        mc_assert(host[0] != 0 && port != 0);
}

static void run_etcd(struct mc_span text)
{
    struct mc_buffer value = {0};
    char line[64];
    int rc = mc_etcd_bytes(text, "kvs.0.value", &value), short_rc = mc_etcd_text(text, "kvs.0.value", line, 64);
    mc_assert(rc == 1 || rc == 0 || rc == MC_ERR_PROTOCOL);
    mc_assert(short_rc == rc || (rc == 1 && short_rc == MC_ERR_PROTOCOL));
    if (rc == 1) {
        run_document(mc_span(value.data, value.length));
        run_rpc_meta(mc_span(value.data, value.length));
    }
    mc_buffer_free(&value);
}

static void run_handshake(struct mc_span bytes)
{
    struct mc_handshake frame;
    int before = 0;
    for (size_t length = 0; length <= bytes.length; length++) { /* what is a frame stays one, what is none too */
        int rc = mc_handshake_read(mc_span(bytes.data, length), 1024, &frame);
        mc_assert(rc == 0 || rc == 1 || rc == MC_ERR_PROTOCOL);
        mc_assert(before == 0 || rc == before);
        before = rc;
    }
    if (before == 1) {
        run_note(frame.json);
        run_document(frame.json);
    }
}

/* ---- a data connection ---- */

static uint8_t memory[MEMORY];
static uint32_t held;

static struct mc_region *hold(void *context, uint64_t address, uint64_t length)
{
    struct mc_region *region = mc_region_find(context, address, length);
    held += region != NULL;
    return region;
}
static void release(void *context, struct mc_region *region)
{
    (void)context;
    (void)region;
    mc_assert(held > 0);
    held--;
}
static bool copy(void *context, uint64_t address, const void *from, size_t size)
{
    (void)context;
    mc_assert(address >= (uintptr_t)memory && size <= MEMORY && address - (uintptr_t)memory <= MEMORY - size);
    memcpy((void *)(uintptr_t)address, from, size);
    return true;
}

static int sum(void *context, uint64_t address, uint64_t length, uint64_t since_ns, uint32_t *result)
{
    (void)since_ns;
    if (mc_region_find(context, address, length) == NULL)
        return 0;
    *result = mc_crc32c(0, (const void *)(uintptr_t)address, (size_t)length);
    return 1;
}

/* Takes or sends at most `most`, as the shell would. */
static size_t feed(struct mc_inbound *inbound, const uint8_t *data, size_t size)
{
    struct iovec parts[2];
    size_t count = mc_inbound_window(inbound, parts), used = 0;
    for (size_t i = 0; i < count; i++) {
        size_t part = size - used < parts[i].iov_len ? size - used : parts[i].iov_len;
        memcpy(parts[i].iov_base, data + used, part);
        used += part;
    }
    if (used > 0)
        mc_inbound_received(inbound, used);
    return used;
}

static size_t answer(struct mc_inbound *inbound, size_t most)
{
    struct iovec parts[8];
    size_t count = mc_inbound_replies(inbound, parts, 8), used = 0;
    uint8_t sink = 0;
    for (size_t i = 0; i < count && used < most; i++) {
        size_t part = most - used < parts[i].iov_len ? most - used : parts[i].iov_len;
        for (size_t at = 0; at < part; at++)
            sink ^= ((const uint8_t *)parts[i].iov_base)[at]; /* it is there to be read */
        used += part;
    }
    if (used > 0)
        mc_inbound_sent(inbound, used);
    return used + (sink & 0);
}

static void run_data(const uint8_t *data, size_t size)
{
    static struct mc_inbound inbound;
    struct mc_region_table table = {0};
    struct mc_inbound_hooks hooks = {&table, hold, release, copy, NULL, NULL, sum, NULL, NULL};
    struct mc_transfer_range ranges[2] = {{(uintptr_t)memory, 1000}, {(uintptr_t)memory + 1000, MEMORY - 1000}};
    uint8_t bytes[512];
    mc_assert(mc_region_add(&table, ranges, 2, NULL) == 0);
    mc_inbound_init(&inbound, &hooks);
    inbound.id = (struct mc_id){.high = 7, .low = (uintptr_t)memory}; /* as an address is meant */
    for (size_t at = 0; at + 1 < size && !inbound.is_over;) {
        size_t piece = data[at] < size - at - 1 ? data[at] : size - at - 1;
        at++;
        memcpy(bytes, data + at, piece);
        /* Headers come as pieces of 24: their addresses are made to mean our memory. */
        uint64_t address;
        if (piece == 24) {
            memcpy(&address, bytes + 8, 8);
            address += (uintptr_t)memory - BASE;
            memcpy(bytes + 8, &address, 8);
        }
        size_t used = feed(&inbound, bytes, piece);
        if (used < piece && answer(&inbound, 1 + piece) == 0)
            break;
        at += piece == 0 ? 0 : piece;
        (void)answer(&inbound, data[at - 1] & 63);
    }
    while (answer(&inbound, 1000) > 0)
        continue;
    mc_inbound_end(&inbound);
    mc_assert(held == 0);
    mc_region_table_free(&table);
}

/* Answers of a peer to two reads and more. */
static void run_answers(const uint8_t *data, size_t size)
{
    static struct mc_outbound outbound;
    struct mc_transfer_item items[3] = {{memory, 1, 100}, {memory + 100, 2, 7}, {memory + 107, 3, 1000}};
    struct iovec parts[MC_OUTBOUND_PARTS];
    enum mc_outbound_sums sums = (enum mc_outbound_sums)(size / 2 % 3);
    mc_outbound_init(&outbound, size % 2 == 0 ? MC_TRANSFER_READ : MC_TRANSFER_WRITE, 2, sums, items, 3);
    while (outbound.sending < outbound.count) {
        size_t count = mc_outbound_send_parts(&outbound, parts);
        mc_assert(count > 0);
        mc_outbound_sent(&outbound, parts[0].iov_len);
    }
    while (size > 0) {
        size_t count = mc_outbound_receive_parts(&outbound, parts);
        mc_assert((count == 0) == mc_outbound_is_done(&outbound));
        if (count == 0)
            break;
        size_t part = size < parts[0].iov_len ? size : parts[0].iov_len;
        memcpy(parts[0].iov_base, data, part);
        data += part;
        size -= part;
        if (mc_outbound_received(&outbound, part) < 0)
            break;
        mc_assert(outbound.done <= outbound.sending);
    }
}

/* ---- who has not proved a key yet ---- */

#define A16 "0123456789abcdef"

/* The first byte is the port, the second the size of a piece. Nobody gets through: the server's bytes are random. */
static void run_preface(const uint8_t *data, size_t size)
{
    static bool has_keys;
    char error[256];
    if (!has_keys) {
        mc_assert(setenv("MC_AUTH_TOKEN", "me:" A16 A16 A16 A16, 1) == 0);
        mc_assert(mc_keys_check(error, sizeof(error)) == 0);
        has_keys = true;
    }
    struct mc_preface preface = {.port = size > 0 ? (enum mc_preface_port)data[0] : MC_PREFACE_DATA};
    size_t piece = size > 1 ? data[1] + 1u : 1;
    for (size_t at = 2; at < size;) {
        uint8_t *to;
        size_t room = mc_preface_window(&preface, &to), part = size - at < piece ? size - at : piece;
        mc_assert(room > 0 && room <= sizeof(preface.in));
        part = part < room ? part : room;
        memcpy(to, data + at, part);
        at += part;
        int rc = mc_preface_received(&preface, part);
        mc_assert(rc < 2);
        mc_assert(rc != 1 || (preface.is_asked && strcmp(preface.key.id, "me") == 0));
        if (rc < 0) {
            mc_assert(mc_preface_fault(&preface, rc)[0] != 0);
            break;
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    struct mc_span rest = mc_span(data + 1, size - 1);
    switch (data[0] % 8) {
    case 0:
        run_document(rest);
        break;
    case 1:
        run_handshake(rest);
        break;
    case 2:
        run_note(rest);
        break;
    case 3:
        run_rpc_meta(rest);
        break;
    case 4:
        run_data(data + 1, size - 1);
        break;
    case 6:
        run_etcd(rest);
        break;
    case 7:
        run_preface(data + 1, size - 1);
        break;
    default:
        run_answers(data + 1, size - 1);
        break;
    }
    return 0;
}
