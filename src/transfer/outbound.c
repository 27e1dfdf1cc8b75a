/* The requests of one lane. */
#include "transfer/outbound.h"

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

void mc_outbound_again(struct mc_outbound *outbound)
{
    outbound->done = 0;
    mc_outbound_restart(outbound);
}

static uint64_t bytes_to_send(const struct mc_outbound *outbound, size_t at)
{
    return sizeof(struct mc_tcp_header) + (outbound->opcode == MC_TRANSFER_WRITE ? outbound->items[at].length : 0);
}

static uint64_t bytes_to_receive(const struct mc_outbound *outbound, size_t at)
{
    return (outbound->has_status ? sizeof(uint64_t) : 0) +
           (outbound->opcode == MC_TRANSFER_READ ? outbound->items[at].length : 0);
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

size_t mc_outbound_send_parts(struct mc_outbound *outbound, struct iovec parts[MC_OUTBOUND_PARTS])
{
    struct vector vector = {parts, 0, CALL_BYTES};
    uint64_t skip = outbound->sent_of_current;
    size_t end = outbound->done + MC_OUTBOUND_WINDOW;
    for (size_t at = outbound->sending; at < outbound->count && at < end && vector.room > 0; at++, skip = 0) {
        const struct mc_transfer_item *item = &outbound->items[at];
        struct mc_tcp_header *header = &outbound->headers[at % MC_OUTBOUND_WINDOW];
        *header = (struct mc_tcp_header){
            .length = item->length,
            .address = item->remote,
            .opcode = (uint8_t)((unsigned)outbound->opcode | (outbound->has_status ? MC_TCP_OPCODE_VERSION_2 : 0u))};
        memcpy(header->lane, &outbound->lane, sizeof(header->lane)); /* little-endian */
        add_part(&vector, header, sizeof(*header), skip);
        if (outbound->opcode == MC_TRANSFER_WRITE)
            add_part(&vector, item->local, item->length, skip > sizeof(*header) ? skip - sizeof(*header) : 0);
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
    /* What has no answer is done when it has gone. */
    if (!outbound->has_status && outbound->opcode == MC_TRANSFER_WRITE)
        outbound->done = outbound->sending;
}

size_t mc_outbound_receive_parts(struct mc_outbound *outbound, struct iovec parts[MC_OUTBOUND_PARTS])
{
    struct vector vector = {parts, 0, CALL_BYTES};
    uint64_t skip = outbound->received_of_oldest;
    for (size_t at = outbound->done; at < outbound->sending && vector.room > 0; at++, skip = 0) {
        uint64_t *status = &outbound->statuses[at % MC_OUTBOUND_WINDOW];
        uint64_t status_size = outbound->has_status ? sizeof(*status) : 0;
        add_part(&vector, status, status_size, skip);
        if (outbound->opcode == MC_TRANSFER_READ)
            add_part(&vector, outbound->items[at].local, outbound->items[at].length,
                     skip > status_size ? skip - status_size : 0);
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
