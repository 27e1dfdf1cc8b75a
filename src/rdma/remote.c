/* The RDMA part of a document: {"devices":[...],"memory":[[[address,length,valid,preferred,key,...],...],...]}: a list
 * for each region, in it one for each piece, with a key for each device up to the last that is valid. */
#include "rdma/remote.h"

#include "base/error.h"
#include "env/json.h"

#include <inttypes.h>
#include <stdlib.h>

#define CHUNKS_MAX (1u << 20)

static int next_number(struct mc_json_cursor *element, uint64_t most, uint64_t *number)
{
    return mc_json_next(element) == 1 && mc_json_number(element, number) == 0 && *number <= most ? 0 : MC_ERR_PROTOCOL;
}

static int read_chunk(struct mc_span text, struct mc_rdma_chunk *chunk)
{
    struct mc_json_cursor element;
    uint64_t number[4], key = 0;
    int rc = mc_json_open(text, '[', &element);
    for (unsigned i = 0; rc == 0 && i < 4; i++)
        rc = next_number(&element, i < 2 ? UINT64_MAX : (1u << MC_RDMA_DEVICES_MAX) - 1, &number[i]);
    if (rc < 0)
        return rc;
    *chunk = (struct mc_rdma_chunk){
        .address = number[0], .length = number[1], .valid = (uint32_t)number[2], .preferred = (uint32_t)number[3]};
    for (unsigned i = 0; rc == 0 && chunk->valid >> i != 0; i++) {
        rc = next_number(&element, UINT32_MAX, &key);
        chunk->keys[i] = (uint32_t)key;
    }
    bool is_whole = rc == 0 && mc_json_next(&element) == 0 && chunk->address != 0 && chunk->length != 0 &&
                    chunk->valid != 0 && chunk->length - 1 <= UINT64_MAX - chunk->address;
    return is_whole ? 0 : MC_ERR_PROTOCOL;
}

static int add_chunk(struct mc_rdma_remote *remote, const struct mc_rdma_chunk *chunk, uint32_t region)
{
    if (remote->chunk_count == remote->capacity) {
        uint32_t capacity = remote->capacity == 0 ? 16 : remote->capacity * 2;
        struct mc_rdma_chunk *chunks =
            capacity > CHUNKS_MAX ? NULL : realloc(remote->chunks, capacity * sizeof(*remote->chunks));
        if (chunks == NULL)
            return MC_ERR_NO_MEMORY;
        remote->chunks = chunks;
        uint32_t *regions = realloc(remote->regions, capacity * sizeof(*remote->regions));
        if (regions == NULL)
            return MC_ERR_NO_MEMORY;
        remote->regions = regions;
        remote->capacity = capacity;
    }
    remote->chunks[remote->chunk_count] = *chunk;
    remote->regions[remote->chunk_count++] = region;
    return 0;
}

static int read_region(struct mc_span text, struct mc_rdma_remote *remote, uint32_t region)
{
    struct mc_json_cursor element;
    struct mc_rdma_chunk chunk = {0};
    uint64_t end = 0;
    bool is_first = true;
    int rc = mc_json_open(text, '[', &element);
    for (; rc == 0 && (rc = mc_json_next(&element)) == 1; is_first = false) {
        rc = read_chunk(element.value, &chunk); /* whose address is not 0 */
        if (rc == 0 && !is_first && chunk.address != end)
            rc = MC_ERR_PROTOCOL;
        if (rc == 0)
            rc = add_chunk(remote, &chunk, region);
        end = chunk.address + chunk.length; /* 0 at the end of the address space: nothing follows there */
    }
    return rc;
}

struct order { /* of a chunk */
    struct mc_rdma_chunk chunk;
    uint32_t region;
};

static int by_address(const void *left, const void *right)
{
    uint64_t a = ((const struct order *)left)->chunk.address, b = ((const struct order *)right)->chunk.address;
    return a < b ? -1 : a > b;
}

/* Regions stand in the order of their registration. */
static int sort(struct mc_rdma_remote *remote)
{
    struct order *all = malloc((remote->chunk_count + 1) * sizeof(*all));
    if (all == NULL)
        return MC_ERR_NO_MEMORY;
    for (uint32_t i = 0; i < remote->chunk_count; i++)
        all[i] = (struct order){remote->chunks[i], remote->regions[i]};
    qsort(all, remote->chunk_count, sizeof(*all), by_address);
    int rc = 0;
    for (uint32_t i = 0; i < remote->chunk_count; i++) {
        if (i > 0 && all[i - 1].chunk.length > all[i].chunk.address - all[i - 1].chunk.address)
            rc = MC_ERR_PROTOCOL;
        remote->chunks[i] = all[i].chunk;
        remote->regions[i] = all[i].region;
    }
    free(all);
    return rc;
}

static int read_memory(struct mc_span text, struct mc_rdma_remote *remote)
{
    struct mc_json_cursor element;
    uint32_t region = 0;
    int rc = remote->chunk_count > 0 ? MC_ERR_PROTOCOL : mc_json_open(text, '[', &element); /* twice */
    while (rc == 0 && (rc = mc_json_next(&element)) == 1)
        rc = read_region(element.value, remote, region++);
    return rc == 0 ? sort(remote) : rc;
}

int mc_rdma_remote_read(struct mc_span text, struct mc_rdma_remote **out)
{
    struct mc_json_cursor member;
    struct mc_rdma_remote *remote = calloc(1, sizeof(*remote));
    if (remote == NULL)
        return MC_ERR_NO_MEMORY;
    remote->references = 1;
    int rc = mc_json_open(text, '{', &member);
    while (rc == 0 && (rc = mc_json_next(&member)) == 1) {
        rc = 0;
        if (mc_json_is(member.name, "devices")) {
            int count = mc_rdma_parse_devices(member.value, remote->devices, MC_RDMA_DEVICES_MAX);
            remote->device_count = count < 0 ? 0 : (uint32_t)count;
            rc = count < 0 ? count : 0;
        } else if (mc_json_is(member.name, "memory")) {
            rc = read_memory(member.value, remote);
        }
    }
    if (rc < 0) {
        mc_rdma_remote_release(remote);
        return rc;
    }
    *out = remote;
    return 0;
}

struct mc_rdma_remote *mc_rdma_remote_hold(struct mc_rdma_remote *remote)
{
    if (remote != NULL)
        atomic_fetch_add(&remote->references, 1);
    return remote;
}

void mc_rdma_remote_release(struct mc_rdma_remote *remote)
{
    if (remote == NULL || atomic_fetch_sub(&remote->references, 1) != 1)
        return;
    free(remote->chunks);
    free(remote->regions);
    free(remote);
}

bool mc_rdma_remote_find(const struct mc_rdma_remote *remote, uint64_t address, uint64_t length,
                         struct mc_rdma_chunks *chunks)
{
    uint32_t low = 0, high = remote->chunk_count;
    while (low < high) { /* the first that begins above the address */
        uint32_t middle = low + (high - low) / 2;
        if (remote->chunks[middle].address > address)
            high = middle;
        else
            low = middle + 1;
    }
    if (low == 0 || length == 0)
        return false;
    uint32_t first = low - 1, last = first;
    const struct mc_rdma_chunk *chunk = &remote->chunks[first];
    uint64_t inside = address - chunk->address;
    if (inside >= chunk->length)
        return false;
    uint64_t have = chunk->length - inside;
    while (have < length) {
        if (++last == remote->chunk_count || remote->regions[last] != remote->regions[first])
            return false;
        have += remote->chunks[last].length; /* no overflow: pieces of one region are adjacent */
    }
    *chunks = (struct mc_rdma_chunks){chunk, last - first + 1};
    return true;
}

/* ---- writing ---- */

static void separate(struct mc_buffer *out)
{
    if (out->data[out->length - 1] == ']')
        mc_buffer_append(out, ",", 1);
}

void mc_rdma_remote_begin(struct mc_buffer *out, struct mc_span devices)
{
    mc_buffer_printf(out, "{\"devices\":");
    mc_buffer_append(out, devices.data, devices.length);
    mc_buffer_printf(out, ",\"memory\":[");
}

void mc_rdma_remote_region(struct mc_buffer *out, struct mc_rdma_chunks chunks)
{
    separate(out);
    mc_buffer_append(out, "[", 1);
    for (uint32_t i = 0; i < chunks.count; i++) {
        const struct mc_rdma_chunk *chunk = &chunks.list[i];
        mc_buffer_printf(out, "%s[%" PRIu64 ",%" PRIu64 ",%" PRIu32 ",%" PRIu32, i == 0 ? "" : ",", chunk->address,
                         chunk->length, chunk->valid, chunk->preferred);
        for (unsigned device = 0; chunk->valid >> device != 0; device++)
            mc_buffer_printf(out, ",%" PRIu32, chunk->keys[device]);
        mc_buffer_append(out, "]", 1);
    }
    mc_buffer_append(out, "]", 1);
}

void mc_rdma_remote_end(struct mc_buffer *out)
{
    mc_buffer_append(out, "]}", 2);
}
