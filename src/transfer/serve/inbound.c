/* The parser of data connections. */
#include "transfer/serve/inbound.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/keys.h"

#include <string.h>

#define SUMMED_MAX (2 * MC_TCP_SUM_MAX) /* in one turn, and one more; others have theirs, too */
#define PART_MAX ((size_t)1 << 20)      /* of one part: a call has a bounded length, and the sum of a vector is small */

void mc_inbound_init(struct mc_inbound *inbound, const struct mc_inbound_hooks *hooks)
{
    memset(inbound, 0, offsetof(struct mc_inbound, replies));
    inbound->hooks = hooks;
    inbound->rights = MC_RIGHTS_ALL;
    inbound->first = inbound->count = 0;
    inbound->stash_at = inbound->stash_end = 0;
    inbound->bytes = inbound->refused = 0;
}

static void release(struct mc_inbound *inbound, struct mc_region **region)
{
    if (*region != NULL)
        inbound->hooks->release(inbound->hooks->context, *region);
    *region = NULL;
}

void mc_inbound_end(struct mc_inbound *inbound)
{
    release(inbound, &inbound->region);
    for (; inbound->count > 0; inbound->count--, inbound->first++)
        release(inbound, &inbound->replies[inbound->first % MC_INBOUND_REPLIES].region);
    inbound->is_over = true;
}

static struct mc_inbound_reply *add_reply(struct mc_inbound *inbound)
{
    mc_assert(inbound->count < MC_INBOUND_REPLIES);
    struct mc_inbound_reply *reply = &inbound->replies[(inbound->first + inbound->count++) % MC_INBOUND_REPLIES];
    *reply = (struct mc_inbound_reply){0};
    return reply;
}

static void add_status(struct mc_inbound *inbound, uint64_t status)
{
    struct mc_inbound_reply *reply = add_reply(inbound);
    reply->status = status;
    reply->word_size = reply->word_left = sizeof(status);
}

static void refuse(struct mc_inbound *inbound, bool wants_status)
{
    inbound->refused++;
    if (wants_status)
        add_status(inbound, MC_TCP_STATUS_REFUSED);
    inbound->is_over = true;
}

/* May who asks know the sum of that range? */
static bool may_sum(const struct mc_inbound *inbound, const struct mc_tcp_header *header)
{
    bool is_own = inbound->written_length > 0 && header->address == inbound->written_address &&
                  header->length == inbound->written_length;
    return header->length <= MC_TCP_SUM_MAX && ((inbound->rights & MC_RIGHT_READ) != 0 || is_own);
}

/* Before anything behind it: a write that comes next may be to the same memory. False: not yet. */
static bool take_sum(struct mc_inbound *inbound, const struct mc_tcp_header *header)
{
    uint32_t sum = 0;
    uint64_t since_ns = inbound->sum_since_ns == 0 ? mc_clock_ns() : inbound->sum_since_ns;
    int rc = may_sum(inbound, header)
                 ? inbound->hooks->sum(inbound->hooks->context, header->address, header->length, since_ns, &sum)
                 : 0;
    inbound->sum_since_ns = rc == MC_INBOUND_LATER ? since_ns : 0;
    if (rc == MC_INBOUND_LATER)
        return false;
    inbound->written_length = 0;
    inbound->summed += header->length;
    if (rc == 0) {
        refuse(inbound, true);
    } else if (rc > 0) {
        add_status(inbound, MC_TCP_STATUS_OK);
        struct mc_inbound_reply *reply = &inbound->replies[(inbound->first + inbound->count - 1) % MC_INBOUND_REPLIES];
        reply->address = sum;
        reply->word_size = reply->word_left = sizeof(struct mc_tcp_sum);
    } else {
        inbound->is_over = true; /* as when what is to be read is not there */
    }
    return true;
}

static bool may_touch(struct mc_inbound *inbound, const struct mc_region *region, uint64_t since_ns)
{
    return region->place.kind == MC_GPU_HOST || inbound->hooks->may_touch(inbound->hooks->context, region, since_ns);
}

static void take_request(struct mc_inbound *inbound, const struct mc_tcp_header *header, uint8_t opcode,
                         bool wants_status)
{
    unsigned needed = opcode == MC_TRANSFER_WRITE ? MC_RIGHT_WRITE : MC_RIGHT_READ;
    struct mc_region *region = (inbound->rights & needed) == 0
                                   ? NULL
                                   : inbound->hooks->hold(inbound->hooks->context, header->address, header->length);
    uint64_t since_ns = region != NULL && region->place.kind != MC_GPU_HOST ? mc_clock_ns() : 0;
    if (region == NULL) {
        refuse(inbound, wants_status);
    } else if (opcode == MC_TRANSFER_WRITE) {
        inbound->region = region;
        inbound->address = header->address;
        inbound->left = header->length;
        inbound->since_ns = since_ns;
        inbound->written_address = header->address;
        inbound->written_length = header->length;
        inbound->wants_status = wants_status;
    } else {
        struct mc_inbound_reply *reply = add_reply(inbound);
        reply->status = MC_TCP_STATUS_OK;
        reply->word_size = reply->word_left = wants_status ? sizeof(reply->status) : 0;
        reply->region = region;
        reply->since_ns = since_ns;
        reply->address = header->address;
        reply->left = header->length;
    }
}

/* False: it is to be looked at again, as it must wait. */
static bool take_header(struct mc_inbound *inbound)
{
    struct mc_tcp_header header;
    memcpy(&header, inbound->header, sizeof(header));
    if (header.opcode == MC_TCP_WHO) {
        struct mc_id meant = {.high = header.length, .low = header.address};
        inbound->is_over = !mc_id_equal(meant, inbound->id);
        return true;
    }
    uint8_t opcode = header.opcode & (uint8_t)~MC_TCP_OPCODE_VERSION_2;
    bool wants_status = opcode != header.opcode;
    if (opcode > (wants_status ? (uint8_t)MC_TCP_SUM : (uint8_t)MC_TRANSFER_WRITE)) {
        inbound->is_over = true; /* not this protocol */
        return true;
    }
    bool is_first = inbound->lane == 0;
    memcpy(&inbound->lane, header.lane, sizeof(header.lane));
    if (is_first && inbound->lane != 0 && inbound->hooks->is_cut != NULL &&
        inbound->hooks->is_cut(inbound->hooks->context, inbound->lane)) {
        inbound->is_over = true; /* nobody waits for an answer */
        return true;
    }
    if (opcode == MC_TCP_SUM)
        return take_sum(inbound, &header);
    take_request(inbound, &header, opcode, wants_status);
    return true;
}

static void payload_came(struct mc_inbound *inbound, uint64_t count)
{
    inbound->address += count;
    inbound->left -= count;
    inbound->bytes += count;
    if (inbound->left > 0)
        return;
    release(inbound, &inbound->region);
    if (inbound->wants_status)
        add_status(inbound, MC_TCP_STATUS_OK);
}

/* Parses the stash as far as there is room for replies. */
static void parse(struct mc_inbound *inbound)
{
    inbound->summed = 0;
    while (!inbound->is_over && inbound->stash_at < inbound->stash_end && inbound->count < MC_INBOUND_REPLIES &&
           inbound->summed < SUMMED_MAX) {
        const uint8_t *at = inbound->stash + inbound->stash_at;
        size_t left = inbound->stash_end - inbound->stash_at, used;
        if (inbound->region != NULL && !may_touch(inbound, inbound->region, inbound->since_ns)) {
            inbound->holds_in = true;
            break;
        }
        if (inbound->region != NULL) {
            used = left < inbound->left ? left : (size_t)inbound->left;
            if (inbound->hooks->copy(inbound->hooks->context, inbound->address, at, used))
                payload_came(inbound, used);
            else
                inbound->is_over = true; /* what was announced cannot be answered: hang up */
        } else {
            used = sizeof(struct mc_tcp_header) - inbound->header_used;
            used = left < used ? left : used;
            memcpy(inbound->header + inbound->header_used, at, used);
            inbound->header_used += used;
            bool is_whole = inbound->header_used == sizeof(struct mc_tcp_header);
            if (is_whole && !take_header(inbound)) {
                inbound->header_used -= used; /* it is taken again */
                inbound->holds_in = true;
                break;
            }
            if (is_whole)
                inbound->header_used = 0;
        }
        inbound->stash_at += used;
    }
    if (inbound->is_over || inbound->stash_at == inbound->stash_end)
        inbound->stash_at = inbound->stash_end = 0;
}

/* By way of the stash. */
static bool has_detour(const struct mc_inbound *inbound)
{
    return inbound->is_careful && inbound->region->place.kind == MC_GPU_HOST;
}

size_t mc_inbound_window(struct mc_inbound *inbound, struct iovec parts[2])
{
    size_t count = 0;
    if (inbound->is_over || inbound->stash_end > 0 || inbound->count == MC_INBOUND_REPLIES)
        return 0;
    size_t direct = inbound->region == NULL || has_detour(inbound) ? 0
                    : inbound->left < PART_MAX                     ? (size_t)inbound->left
                                                                   : PART_MAX;
    void *at = (void *)(uintptr_t)inbound->address;
    if (direct > 0 && !may_touch(inbound, inbound->region, inbound->since_ns)) {
        inbound->holds_in = true;
        return 0;
    }
    if (direct > 0 && inbound->region->place.kind != MC_GPU_HOST) {
        at = inbound->bounce = inbound->hooks->receive_at(inbound->hooks->context, inbound->region, &direct);
        direct = inbound->bounce_size = at == NULL ? 0 : direct;
    }
    if (direct > 0)
        parts[count++] = (struct iovec){at, direct};
    if (direct == 0 || direct == inbound->left)
        parts[count++] = (struct iovec){inbound->stash, sizeof(inbound->stash)};
    return count;
}

void mc_inbound_received(struct mc_inbound *inbound, size_t count)
{
    size_t direct = 0;
    if (inbound->region != NULL && inbound->region->place.kind != MC_GPU_HOST) {
        direct = count < inbound->bounce_size ? count : inbound->bounce_size;
        if (direct > 0 && !inbound->hooks->copy(inbound->hooks->context, inbound->address, inbound->bounce, direct)) {
            inbound->is_over = true; /* as in parse */
            return;
        }
        if (direct > 0)
            payload_came(inbound, direct);
    } else if (inbound->region != NULL && !has_detour(inbound)) {
        direct = count < inbound->left ? count : (size_t)inbound->left;
        payload_came(inbound, direct);
    }
    mc_assert(count - direct <= sizeof(inbound->stash));
    inbound->stash_end = count - direct;
    parse(inbound);
}

size_t mc_inbound_replies(struct mc_inbound *inbound, struct iovec *parts, size_t most)
{
    size_t used = 0;
    for (uint32_t i = 0; i < inbound->count && used + 2 <= most; i++) {
        struct mc_inbound_reply *reply = &inbound->replies[(inbound->first + i) % MC_INBOUND_REPLIES];
        if (reply->word_left > 0)
            parts[used++] =
                (struct iovec){(char *)(uintptr_t)reply + reply->word_size - reply->word_left, reply->word_left};
        size_t size = reply->left < PART_MAX ? (size_t)reply->left : PART_MAX;
        const void *at = (const void *)(uintptr_t)reply->address;
        if (size > 0 && !may_touch(inbound, reply->region, reply->since_ns)) {
            inbound->holds_out = used == 0; /* else it goes on when that has gone */
            break;
        }
        if (size > 0 && reply->region->place.kind != MC_GPU_HOST) {
            at = inbound->hooks->send_from(inbound->hooks->context, reply->region, reply->address, &size);
            size = at == NULL ? 0 : size;
        }
        if (size > 0)
            parts[used++] = (struct iovec){(void *)(uintptr_t)at, size};
        if (size < reply->left)
            break; /* the rest of it comes before the next */
    }
    return used;
}

void mc_inbound_sent(struct mc_inbound *inbound, size_t count)
{
    while (count > 0) {
        mc_assert(inbound->count > 0);
        struct mc_inbound_reply *reply = &inbound->replies[inbound->first % MC_INBOUND_REPLIES];
        uint32_t word = count < reply->word_left ? (uint32_t)count : reply->word_left;
        reply->word_left -= word;
        count -= word;
        uint64_t data = count < reply->left ? count : reply->left;
        reply->address += data;
        reply->left -= data;
        inbound->bytes += data;
        count -= (size_t)data;
        if (reply->word_left > 0 || reply->left > 0)
            break;
        release(inbound, &reply->region);
        inbound->first++;
        inbound->count--;
    }
    mc_assert(count == 0);
    parse(inbound);
}

void mc_inbound_go_on(struct mc_inbound *inbound)
{
    inbound->holds_in = inbound->holds_out = false;
    parse(inbound);
}

bool mc_inbound_holds_leaving(const struct mc_inbound *inbound)
{
    bool holds = inbound->region != NULL && inbound->region->is_leaving;
    for (uint32_t i = 0; !holds && i < inbound->count; i++) {
        const struct mc_region *region = inbound->replies[(inbound->first + i) % MC_INBOUND_REPLIES].region;
        holds = region != NULL && region->is_leaving;
    }
    return holds;
}
