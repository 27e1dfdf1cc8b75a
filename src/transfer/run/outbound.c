/* The requests of one lane. */
#include "transfer/run/outbound.h"

#include "base/checksum.h"
#include "base/error.h"

#include <string.h>

#define CALL_BYTES ((uint64_t)1 << 20)
#define SUMS_AT_ONCE 4u /* asked for without bytes: our own are made between two looks at the clock */

void mc_outbound_init(struct mc_outbound *outbound, enum mc_transfer_opcode opcode, unsigned version,
                      enum mc_outbound_sums sums, const struct mc_transfer_item *items, size_t count)
{
    outbound->items = items;
    outbound->count = count;
    outbound->done = outbound->sending = 0;
    outbound->opcode = opcode;
    outbound->has_status = version >= 2;
    outbound->sums = sums;
    outbound->lane = 0;
    outbound->sent_of_current = outbound->received_of_oldest = 0;
}

void mc_outbound_restart(struct mc_outbound *outbound)
{
    outbound->sending = outbound->done;
    outbound->sent_of_current = outbound->received_of_oldest = 0;
}

void mc_outbound_again(struct mc_outbound *outbound, unsigned version, enum mc_outbound_sums sums)
{
    outbound->has_status = version >= 2;
    outbound->sums = sums;
    outbound->done = 0;
    mc_outbound_restart(outbound);
}

static bool has_fences(const struct mc_outbound *outbound)
{
    return !outbound->has_status && outbound->opcode == MC_TRANSFER_WRITE;
}

static bool moves(const struct mc_outbound *outbound, enum mc_transfer_opcode opcode)
{
    return outbound->opcode == opcode && outbound->sums != MC_SUMS_ONLY;
}

static uint64_t head_size(const struct mc_outbound *outbound)
{
    return outbound->sums == MC_SUMS_ONLY ? 0 : sizeof(struct mc_tcp_header);
}

static uint64_t bytes_to_send(const struct mc_outbound *outbound, size_t at)
{
    return head_size(outbound) + (moves(outbound, MC_TRANSFER_WRITE) ? outbound->items[at].length : 0) +
           (has_fences(outbound) || outbound->sums != MC_SUMS_NONE ? sizeof(struct mc_tcp_header) : 0);
}

/* Of a status, or of the byte that a fence brings. */
static uint64_t word_size(const struct mc_outbound *outbound)
{
    return outbound->sums == MC_SUMS_ONLY ? 0 : outbound->has_status ? sizeof(uint64_t) : has_fences(outbound) ? 1 : 0;
}

static uint64_t bytes_to_receive(const struct mc_outbound *outbound, size_t at)
{
    return word_size(outbound) + (moves(outbound, MC_TRANSFER_READ) ? outbound->items[at].length : 0) +
           (outbound->sums == MC_SUMS_NONE ? 0 : sizeof(struct mc_tcp_sum));
}

struct vector { /* the parts of one call: a bounded number of bytes */
    struct iovec *parts;
    size_t used;
    uint64_t room;
};

static void add_part(struct vector *vector, void *base, uint64_t size, uint64_t skip)
{
    uint64_t left = skip < size ? size - skip : 0, part = left < vector->room ? left : vector->room;
    if (part > 0)
        vector->parts[vector->used++] = (struct iovec){(char *)base + skip, (size_t)part};
    vector->room -= part;
}

static void add_header(struct vector *vector, struct mc_tcp_header *at, struct mc_tcp_header header, uint64_t lane,
                       uint64_t skip)
{
    memcpy(header.lane, &lane, sizeof(header.lane)); /* little-endian */
    *at = header;
    add_part(vector, at, sizeof(*at), skip);
}

/* Of `skip` bytes those that are beyond so many others. */
static uint64_t beyond(uint64_t skip, uint64_t others)
{
    return skip > others ? skip - others : 0;
}

/* Of a stream in which the bytes of request `at` lie behind so many others, those from `from` to `to` went. */
static void sum_up(struct mc_outbound *outbound, size_t at, uint64_t others, uint64_t from, uint64_t to)
{
    const struct mc_transfer_item *item = &outbound->items[at];
    uint32_t *sum = &outbound->ours[at % MC_OUTBOUND_WINDOW];
    uint64_t first = beyond(from, others), end = beyond(to, others);
    end = end < item->length ? end : item->length;
    if (first == 0)
        *sum = 0;
    if (first < end)
        *sum = mc_crc32c(*sum, (const char *)item->local + first, (size_t)(end - first));
}

unsigned mc_outbound_window(const struct mc_outbound *outbound)
{
    return outbound->sums == MC_SUMS_ONLY ? SUMS_AT_ONCE : MC_OUTBOUND_WINDOW;
}

size_t mc_outbound_send_parts(struct mc_outbound *outbound, struct iovec parts[MC_OUTBOUND_PARTS])
{
    struct vector vector = {parts, 0, CALL_BYTES};
    uint64_t skip = outbound->sent_of_current;
    size_t end = outbound->done + mc_outbound_window(outbound);
    for (size_t at = outbound->sending; at < outbound->count && at < end && vector.room > 0; at++, skip = 0) {
        const struct mc_transfer_item *item = &outbound->items[at];
        const uint64_t header_size = head_size(outbound);
        const uint64_t payload = moves(outbound, MC_TRANSFER_WRITE) ? item->length : 0;
        const uint8_t version = outbound->has_status ? MC_TCP_OPCODE_VERSION_2 : 0;
        struct mc_tcp_header header = {
            .length = item->length, .address = item->remote, .opcode = (uint8_t)((unsigned)outbound->opcode | version)};
        if (header_size > 0)
            add_header(&vector, &outbound->headers[at % MC_OUTBOUND_WINDOW], header, outbound->lane, skip);
        if (payload > 0)
            add_part(&vector, item->local, payload, beyond(skip, header_size));
        if (outbound->sums != MC_SUMS_NONE)
            header.opcode = (uint8_t)(MC_TCP_SUM | version);
        else if (has_fences(outbound))
            header = (struct mc_tcp_header){.length = 1, .address = item->remote + item->length - 1};
        else
            continue;
        add_header(&vector, &outbound->fences[at % MC_OUTBOUND_WINDOW], header, outbound->lane,
                   beyond(skip, header_size + payload));
    }
    return vector.used;
}

void mc_outbound_sent(struct mc_outbound *outbound, size_t count)
{
    uint64_t before = outbound->sent_of_current, sent = before + count;
    for (; outbound->sending < outbound->count && sent > before; outbound->sending++, before = 0) {
        uint64_t size = bytes_to_send(outbound, outbound->sending);
        if (outbound->sums == MC_SUMS_TOO && outbound->opcode == MC_TRANSFER_WRITE)
            sum_up(outbound, outbound->sending, sizeof(struct mc_tcp_header), before, sent);
        if (sent < size)
            break;
        sent -= size;
        if (outbound->sums == MC_SUMS_ONLY) /* while the peer makes its own */
            sum_up(outbound, outbound->sending, 0, 0, UINT64_MAX);
    }
    outbound->sent_of_current = sent;
}

size_t mc_outbound_receive_parts(struct mc_outbound *outbound, struct iovec parts[MC_OUTBOUND_PARTS])
{
    struct vector vector = {parts, 0, CALL_BYTES};
    uint64_t skip = outbound->received_of_oldest;
    for (size_t at = outbound->done; at < outbound->sending && vector.room > 0; at++, skip = 0) {
        uint64_t size = word_size(outbound);
        add_part(&vector, &outbound->statuses[at % MC_OUTBOUND_WINDOW], size, skip);
        uint64_t payload = moves(outbound, MC_TRANSFER_READ) ? outbound->items[at].length : 0;
        if (payload > 0)
            add_part(&vector, outbound->items[at].local, payload, beyond(skip, size));
        if (outbound->sums != MC_SUMS_NONE)
            add_part(&vector, &outbound->theirs[at % MC_OUTBOUND_WINDOW], sizeof(struct mc_tcp_sum),
                     beyond(skip, size + payload));
    }
    return vector.used;
}

static int check_status(uint64_t status)
{
    if (status == MC_TCP_STATUS_OK)
        return 0;
    return status >> 32 == MC_TCP_STATUS_MAGIC ? MC_TRANSFER_ERR_ADDRESS_NOT_REGISTERED
                                               : MC_TRANSFER_ERR_REJECT_HANDSHAKE;
}

/* Of the answer to the oldest request the bytes from `before` to `received` came. */
static int check_oldest(struct mc_outbound *outbound, uint64_t before, uint64_t received)
{
    const uint64_t size = bytes_to_receive(outbound, outbound->done), head = word_size(outbound);
    const size_t place = outbound->done % MC_OUTBOUND_WINDOW;
    int rc = 0;
    if (outbound->has_status && before < head && received >= head)
        rc = check_status(outbound->statuses[place]);
    if (rc < 0 || outbound->sums == MC_SUMS_NONE)
        return rc;
    const uint64_t status_end = size - sizeof(outbound->theirs[place].sum);
    if (moves(outbound, MC_TRANSFER_READ))
        sum_up(outbound, outbound->done, head, before, received);
    if (before < status_end && received >= status_end)
        rc = check_status(outbound->theirs[place].status);
    if (rc == 0 && received >= size && outbound->theirs[place].sum != outbound->ours[place])
        rc = MC_TRANSFER_ERR_INVALID_ARGUMENT;
    return rc;
}

int mc_outbound_received(struct mc_outbound *outbound, size_t count)
{
    uint64_t before = outbound->received_of_oldest, received = before + count;
    while (outbound->done < outbound->sending) {
        int rc = check_oldest(outbound, before, received);
        if (rc < 0)
            return rc;
        if (received < bytes_to_receive(outbound, outbound->done))
            break;
        received -= bytes_to_receive(outbound, outbound->done);
        before = 0;
        outbound->done++;
    }
    outbound->received_of_oldest = received;
    return 0;
}
