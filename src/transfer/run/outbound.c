/* The requests of one lane. */
#include "transfer/run/outbound.h"

#include "base/error.h"

#include <string.h>

#define CALL_BYTES ((uint64_t)1 << 20)

void mc_outbound_init(struct mc_outbound *outbound, enum mc_transfer_opcode opcode, unsigned version,
                      const struct mc_transfer_item *items, size_t count)
{
    outbound->items = items;
    outbound->count = count;
    outbound->done = outbound->sending = 0;
    outbound->opcode = opcode;
    outbound->has_status = version >= 2;
    outbound->lane = 0;
    outbound->sent_of_current = outbound->received_of_oldest = 0;
}

void mc_outbound_restart(struct mc_outbound *outbound)
{
    outbound->sending = outbound->done;
    outbound->sent_of_current = outbound->received_of_oldest = 0;
}

void mc_outbound_again(struct mc_outbound *outbound, unsigned version)
{
    outbound->has_status = version >= 2;
    outbound->done = 0;
    mc_outbound_restart(outbound);
}

static bool has_fences(const struct mc_outbound *outbound)
{
    return !outbound->has_status && outbound->opcode == MC_TRANSFER_WRITE;
}

static uint64_t bytes_to_send(const struct mc_outbound *outbound, size_t at)
{
    return sizeof(struct mc_tcp_header) + (outbound->opcode == MC_TRANSFER_WRITE ? outbound->items[at].length : 0) +
           (has_fences(outbound) ? sizeof(struct mc_tcp_header) : 0);
}

/* Of a status, or of the byte that a fence brings. */
static uint64_t word_size(const struct mc_outbound *outbound)
{
    return outbound->has_status ? sizeof(uint64_t) : has_fences(outbound) ? 1 : 0;
}

static uint64_t bytes_to_receive(const struct mc_outbound *outbound, size_t at)
{
    return word_size(outbound) + (outbound->opcode == MC_TRANSFER_READ ? outbound->items[at].length : 0);
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

size_t mc_outbound_send_parts(struct mc_outbound *outbound, struct iovec parts[MC_OUTBOUND_PARTS])
{
    struct vector vector = {parts, 0, CALL_BYTES};
    uint64_t skip = outbound->sent_of_current;
    size_t end = outbound->done + MC_OUTBOUND_WINDOW;
    for (size_t at = outbound->sending; at < outbound->count && at < end && vector.room > 0; at++, skip = 0) {
        const struct mc_transfer_item *item = &outbound->items[at];
        const uint64_t header_size = sizeof(struct mc_tcp_header);
        struct mc_tcp_header header = {
            .length = item->length,
            .address = item->remote,
            .opcode = (uint8_t)((unsigned)outbound->opcode | (outbound->has_status ? MC_TCP_OPCODE_VERSION_2 : 0u))};
        add_header(&vector, &outbound->headers[at % MC_OUTBOUND_WINDOW], header, outbound->lane, skip);
        if (outbound->opcode == MC_TRANSFER_WRITE)
            add_part(&vector, item->local, item->length, beyond(skip, header_size));
        header = (struct mc_tcp_header){.length = 1, .address = item->remote + item->length - 1};
        if (has_fences(outbound))
            add_header(&vector, &outbound->fences[at % MC_OUTBOUND_WINDOW], header, outbound->lane,
                       beyond(skip, header_size + item->length));
    }
    return vector.used;
}

void mc_outbound_sent(struct mc_outbound *outbound, size_t count)
{
    uint64_t sent = outbound->sent_of_current + count;
    while (outbound->sending < outbound->count && sent >= bytes_to_send(outbound, outbound->sending)) {
        sent -= bytes_to_send(outbound, outbound->sending);
        outbound->sending++;
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
        if (outbound->opcode == MC_TRANSFER_READ)
            add_part(&vector, outbound->items[at].local, outbound->items[at].length, beyond(skip, size));
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

int mc_outbound_received(struct mc_outbound *outbound, size_t count)
{
    uint64_t before = outbound->received_of_oldest, received = before + count;
    while (outbound->done < outbound->sending) {
        if (outbound->has_status && before < sizeof(uint64_t) && received >= sizeof(uint64_t)) {
            int rc = check_status(outbound->statuses[outbound->done % MC_OUTBOUND_WINDOW]);
            if (rc < 0)
                return rc;
        }
        if (received < bytes_to_receive(outbound, outbound->done))
            break;
        received -= bytes_to_receive(outbound, outbound->done);
        before = 0;
        outbound->done++;
    }
    outbound->received_of_oldest = received;
    return 0;
}
