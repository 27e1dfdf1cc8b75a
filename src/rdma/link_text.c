/* Offers, answers and lists of devices as text; who is paired with whom. */
#include "rdma/link_text.h"

#include "env/json.h"

#include <stdio.h>

#define VERSION 1u

/* ---- writing ---- */

static void put_tell(const struct mc_rdma_tell *tell, struct mc_buffer *out)
{
    char gid[MC_GID_TEXT_MAX];
    mc_gid_format(tell->gid, gid, sizeof(gid));
    mc_buffer_printf(out, "{\"pair\":%u,\"device\":", (unsigned)tell->pair);
    mc_json_put_text(out, tell->device);
    if (tell->error[0] != 0) {
        mc_buffer_printf(out, ",\"error\":");
        mc_json_put_text(out, tell->error);
        mc_buffer_printf(out, tell->is_pending ? ",\"pending\":true}" : "}");
        return;
    }
    if (tell->peer[0] != 0) {
        mc_buffer_printf(out, ",\"peer\":");
        mc_json_put_text(out, tell->peer);
    }
    if (tell->is_cm) {
        mc_buffer_printf(out, ",\"cm\":");
        mc_json_put_text(out, tell->cm_address);
        mc_buffer_printf(out, ",\"token\":%llu", (unsigned long long)tell->token);
    }
    mc_buffer_printf(out, ",\"lid\":%u,\"gid\":\"%s\",\"qpn\":%u,\"psn\":%u,\"mtu\":%u,\"reads\":%u%s}", tell->lid, gid,
                     (unsigned)tell->qpn, (unsigned)tell->psn, (unsigned)tell->mtu_bytes, (unsigned)tell->reads,
                     tell->needs_grh ? ",\"grh\":true" : "");
}

void mc_rdma_message_put(const struct mc_rdma_message *message, struct mc_buffer *out)
{
    mc_buffer_printf(out, "{\"version\":%u,\"link\":%llu,", VERSION, (unsigned long long)message->link);
    if (message->wait_ms != 0)
        mc_buffer_printf(out, "\"wait\":%llu,", (unsigned long long)message->wait_ms);
    mc_buffer_printf(out, "\"pairs\":[");
    for (uint32_t i = 0; i < message->count; i++) {
        if (i > 0)
            mc_buffer_printf(out, ",");
        put_tell(&message->pairs[i], out);
    }
    mc_buffer_printf(out, "]}");
}

static const char *const fabrics[] = {"infiniband", "roce", "iwarp"}; /* in the order of enum mc_rdma_fabric */

void mc_rdma_put_peer_device(const struct mc_rdma_peer_device *device, uint32_t mtu_bytes, struct mc_buffer *out)
{
    char gid[MC_GID_TEXT_MAX];
    mc_gid_format(device->gid, gid, sizeof(gid));
    mc_buffer_printf(out, "{\"name\":");
    mc_json_put_text(out, device->name);
    mc_buffer_printf(out, ",\"lid\":%u,\"gid\":\"%s\",\"fabric\":\"%s\",\"up\":%s,\"mbps\":%u,\"mtu\":%u}", device->lid,
                     gid, fabrics[device->fabric], device->is_up ? "true" : "false", (unsigned)device->speed_mbps,
                     (unsigned)mtu_bytes);
}

/* ---- reading ---- */

/* A member that is a number of at most `most`. False: it is not. */
static bool read_number(const struct mc_json_cursor *cursor, uint64_t most, uint64_t *number)
{
    return mc_json_number(cursor, number) == 0 && *number <= most;
}

static bool read_u32(const struct mc_json_cursor *cursor, uint32_t most, uint32_t *field)
{
    uint64_t number;
    bool is_good = read_number(cursor, most, &number);
    *field = is_good ? (uint32_t)number : 0;
    return is_good;
}

static bool read_lid(const struct mc_json_cursor *cursor, uint16_t *lid)
{
    uint32_t number;
    bool is_good = read_u32(cursor, UINT16_MAX, &number);
    *lid = (uint16_t)number;
    return is_good;
}

static bool read_gid(const struct mc_json_cursor *cursor, uint8_t *gid)
{
    char text[MC_GID_TEXT_MAX];
    return mc_json_text(cursor, text, sizeof(text)) == 0 && mc_gid_parse(text, gid) == 0;
}

/* A long reason is still a reason. */
static bool read_error(const struct mc_json_cursor *cursor, char *error, size_t size)
{
    int rc = mc_json_text(cursor, error, size);
    if (rc == MC_ERR_BUFFER_OVERFLOW || (rc == 0 && error[0] == 0))
        snprintf(error, size, "the peer's reason cannot be told");
    return rc == 0 || rc == MC_ERR_BUFFER_OVERFLOW;
}

static int parse_tell(struct mc_span text, struct mc_rdma_tell *tell)
{
    struct mc_json_cursor cursor;
    bool is_good = true, has_pair = false;
    int rc = mc_json_open(text, '{', &cursor);
    if (rc < 0)
        return rc;
    memset(tell, 0, sizeof(*tell));
    while (is_good && (rc = mc_json_next(&cursor)) == 1) {
        if (mc_json_is(cursor.name, "pair"))
            is_good = has_pair = read_u32(&cursor, MC_RDMA_PAIRS_MAX - 1, &tell->pair);
        else if (mc_json_is(cursor.name, "device"))
            is_good = mc_json_text(&cursor, tell->device, sizeof(tell->device)) == 0;
        else if (mc_json_is(cursor.name, "peer"))
            is_good = mc_json_text(&cursor, tell->peer, sizeof(tell->peer)) == 0;
        else if (mc_json_is(cursor.name, "error"))
            is_good = read_error(&cursor, tell->error, sizeof(tell->error));
        else if (mc_json_is(cursor.name, "grh"))
            tell->needs_grh = cursor.kind == 't';
        else if (mc_json_is(cursor.name, "pending"))
            tell->is_pending = cursor.kind == 't';
        else if (mc_json_is(cursor.name, "cm"))
            is_good = tell->is_cm = mc_json_text(&cursor, tell->cm_address, sizeof(tell->cm_address)) == 0;
        else if (mc_json_is(cursor.name, "token"))
            is_good = read_number(&cursor, UINT64_MAX, &tell->token);
        else if (mc_json_is(cursor.name, "lid"))
            is_good = read_lid(&cursor, &tell->lid);
        else if (mc_json_is(cursor.name, "gid"))
            is_good = read_gid(&cursor, tell->gid);
        else if (mc_json_is(cursor.name, "qpn"))
            is_good = read_u32(&cursor, 0xffffff, &tell->qpn);
        else if (mc_json_is(cursor.name, "psn"))
            is_good = read_u32(&cursor, 0xffffff, &tell->psn);
        else if (mc_json_is(cursor.name, "mtu"))
            is_good = read_u32(&cursor, 65536, &tell->mtu_bytes);
        else if (mc_json_is(cursor.name, "reads"))
            is_good = read_u32(&cursor, 255, &tell->reads);
    }
    return is_good && has_pair && rc == 0 ? 0 : MC_ERR_PROTOCOL;
}

static int parse_tells(struct mc_span text, struct mc_rdma_message *message)
{
    struct mc_json_cursor cursor;
    uint32_t seen = 0;
    int rc = mc_json_open(text, '[', &cursor);
    while (rc >= 0 && (rc = mc_json_next(&cursor)) == 1) {
        if (message->count == MC_RDMA_PAIRS_MAX)
            return MC_ERR_PROTOCOL;
        struct mc_rdma_tell *tell = &message->pairs[message->count++];
        rc = parse_tell(cursor.value, tell);
        if (rc == 0 && (seen >> tell->pair & 1) != 0)
            rc = MC_ERR_PROTOCOL;
        seen |= rc == 0 ? 1u << tell->pair : 0;
    }
    return rc;
}

int mc_rdma_message_parse(struct mc_span text, struct mc_rdma_message *message)
{
    struct mc_json_cursor cursor;
    uint64_t version = 0;
    bool has_link = false, has_pairs = false;
    message->link = message->wait_ms = 0;
    message->count = 0;
    if (text.length > MC_RDMA_TEXT_MAX)
        return MC_ERR_PROTOCOL;
    int rc = mc_json_open(text, '{', &cursor);
    while (rc >= 0 && (rc = mc_json_next(&cursor)) == 1) {
        if (mc_json_is(cursor.name, "version")) {
            rc = mc_json_number(&cursor, &version);
        } else if (mc_json_is(cursor.name, "link")) {
            rc = mc_json_number(&cursor, &message->link);
            has_link = true;
        } else if (mc_json_is(cursor.name, "wait")) {
            rc = mc_json_number(&cursor, &message->wait_ms);
        } else if (mc_json_is(cursor.name, "pairs")) {
            rc = has_pairs ? MC_ERR_PROTOCOL : parse_tells(cursor.value, message);
            has_pairs = true;
        }
    }
    return rc == 0 && has_link && has_pairs && version == VERSION ? 0 : MC_ERR_PROTOCOL;
}

static int parse_device(struct mc_span text, struct mc_rdma_peer_device *device)
{
    struct mc_json_cursor cursor;
    bool is_good = true, has_fabric = false;
    char word[16];
    int rc = mc_json_open(text, '{', &cursor);
    if (rc < 0)
        return rc;
    *device = (struct mc_rdma_peer_device){.is_up = true};
    while (is_good && (rc = mc_json_next(&cursor)) == 1) {
        if (mc_json_is(cursor.name, "name")) {
            is_good = mc_json_text(&cursor, device->name, sizeof(device->name)) == 0;
        } else if (mc_json_is(cursor.name, "lid")) {
            is_good = read_lid(&cursor, &device->lid);
        } else if (mc_json_is(cursor.name, "gid")) {
            is_good = read_gid(&cursor, device->gid);
        } else if (mc_json_is(cursor.name, "up")) {
            device->is_up = cursor.kind == 't';
        } else if (mc_json_is(cursor.name, "mbps")) {
            is_good = read_u32(&cursor, UINT32_MAX, &device->speed_mbps);
        } else if (mc_json_is(cursor.name, "fabric") && mc_json_text(&cursor, word, sizeof(word)) == 0) {
            for (unsigned i = 0; i < 3; i++)
                if (strcmp(word, fabrics[i]) == 0) {
                    device->fabric = (enum mc_rdma_fabric)i;
                    has_fabric = true;
                }
        }
    }
    if (!has_fabric)
        device->fabric = device->lid != 0 ? MC_RDMA_INFINIBAND : MC_RDMA_ROCE;
    return is_good && rc == 0 && device->name[0] != 0 ? 0 : MC_ERR_PROTOCOL;
}

int mc_rdma_parse_devices(struct mc_span json, struct mc_rdma_peer_device *devices, size_t capacity)
{
    struct mc_json_cursor cursor;
    size_t count = 0;
    if (json.length > MC_RDMA_TEXT_MAX)
        return MC_ERR_PROTOCOL;
    int rc = mc_json_open(json, '[', &cursor);
    while (rc >= 0 && (rc = mc_json_next(&cursor)) == 1) {
        rc = count == capacity ? MC_ERR_PROTOCOL : parse_device(cursor.value, &devices[count]);
        for (size_t i = 0; rc == 0 && i < count; i++)
            if (strcmp(devices[i].name, devices[count].name) == 0)
                rc = MC_ERR_PROTOCOL;
        count++;
    }
    return rc < 0 ? rc : (int)count;
}

/* ---- who with whom ---- */

/* -1: the two cannot talk. Greater is better; no two peers have the same number. */
static int64_t fitness(const struct mc_rdma_local_device *local, const struct mc_rdma_peer_device *peer,
                       uint32_t number, uint32_t count)
{
    char reason[MC_RDMA_REASON_MAX];
    bool is_same_subnet = false;
    if (local->fabric != peer->fabric)
        return -1;
    if (local->fabric == MC_RDMA_ROCE) {
        int row = mc_gid_choose(local->rows, local->row_count, local->fabric, local->gid_index, peer->gid, 0, reason,
                                sizeof(reason));
        if (row < 0)
            return -1;
        unsigned bits = local->rows[row].prefix_length;
        is_same_subnet = mc_gid_same_subnet(local->rows[row].gid, peer->gid,
                                            bits != 0                 ? bits
                                            : mc_gid_is_v4(peer->gid) ? 24
                                                                      : 64);
    } else if (local->fabric == MC_RDMA_INFINIBAND && local->row_count > 0) {
        is_same_subnet = memcmp(local->rows[0].gid, peer->gid, 8) == 0;
    }
    uint32_t distance = (number + count - local->number % count) % count;
    return ((int64_t)peer->is_up << 24) + ((int64_t)is_same_subnet << 16) +
           ((int64_t)(strcmp(local->name, peer->name) == 0) << 8) + (count - distance);
}

int mc_rdma_choose_peer(const struct mc_rdma_local_device *local, const struct mc_rdma_peer_device *peers,
                        uint32_t count, uint32_t mask, uint32_t rank)
{
    int64_t numbers[MC_RDMA_DEVICES_MAX];
    uint32_t fitting = 0;
    count = count < MC_RDMA_DEVICES_MAX ? count : MC_RDMA_DEVICES_MAX;
    for (uint32_t i = 0; i < count; i++) {
        numbers[i] = mask == 0 || (mask >> i & 1) != 0 ? fitness(local, &peers[i], i, count) : -1;
        fitting += numbers[i] >= 0;
    }
    if (fitting == 0)
        return -1;
    for (rank %= fitting;; rank--) {
        uint32_t best = 0;
        for (uint32_t i = 1; i < count; i++)
            if (numbers[i] > numbers[best])
                best = i;
        if (rank == 0)
            return (int)best;
        numbers[best] = -1;
    }
}
