/* What peers say to set up RDMA. The first byte chooses: an offer or an answer, a list of devices, or what a process
 * tells of its RDMA and of its regions (rdma/remote.h). */
#include "rdma/link_text.h"
#include "rdma/remote.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What was understood is understood again after it was written. */
static void message(struct mc_span text)
{
    struct mc_rdma_message *first = calloc(2, sizeof(*first)), *second = first + 1;
    struct mc_buffer out = {0};
    if (first == NULL)
        return;
    if (mc_rdma_message_parse(text, first) == 0) {
        mc_rdma_message_put(first, &out);
        mc_assert(out.length <= MC_RDMA_TEXT_MAX);
        int rc = mc_rdma_message_parse(mc_span(out.data, out.length), second);
        mc_assert(rc == 0 && second->link == first->link && second->count == first->count);
        for (uint32_t i = 0; i < first->count; i++) {
            const struct mc_rdma_tell *a = &first->pairs[i], *b = &second->pairs[i];
            mc_assert(a->pair == b->pair && strcmp(a->device, b->device) == 0 && strcmp(a->error, b->error) == 0);
            mc_assert(a->error[0] != 0 || (a->qpn == b->qpn && a->psn == b->psn && a->lid == b->lid &&
                                           memcmp(a->gid, b->gid, MC_GID_BYTES) == 0 && a->is_cm == b->is_cm));
        }
    }
    mc_buffer_free(&out);
    free(first);
}

static void devices(struct mc_span text)
{
    struct mc_rdma_peer_device list[MC_RDMA_DEVICES_MAX];
    struct mc_gid_row row = {.type = MC_GID_ROCE_V2, .gid = {[10] = 0xff, 0xff, 10, 0, 0, 1}, .is_here = true};
    struct mc_rdma_local_device local = {"mlx5_0", 0, MC_RDMA_ROCE, &row, 1, -1};
    int count = mc_rdma_parse_devices(text, list, MC_RDMA_DEVICES_MAX);
    mc_assert(count <= (int)MC_RDMA_DEVICES_MAX);
    for (uint32_t rank = 0; count >= 0 && rank < 20; rank++)
        mc_assert(mc_rdma_choose_peer(&local, list, (uint32_t)count, 0, rank) < count);
}

/* What the header promises of what was accepted: in ascending order, no overlaps, the pieces of a region adjacent. */
static void check_regions(const struct mc_rdma_remote *remote)
{
    mc_assert(remote->device_count <= MC_RDMA_DEVICES_MAX);
    for (uint32_t i = 0; i < remote->chunk_count; i++) {
        const struct mc_rdma_chunk *chunk = &remote->chunks[i], *before = chunk - 1;
        mc_assert(chunk->length > 0 && chunk->length - 1 <= UINT64_MAX - chunk->address && chunk->valid != 0 &&
                  chunk->valid >> MC_RDMA_DEVICES_MAX == 0);
        mc_assert(i == 0 || chunk->address - before->address >= before->length);
        mc_assert(i == 0 || remote->regions[i] != remote->regions[i - 1] ||
                  before->address + before->length == chunk->address);
    }
}

/* Whatever is found lies in the pieces that are named. */
static void find(const struct mc_rdma_remote *remote, uint64_t address, uint64_t length)
{
    struct mc_rdma_chunks found;
    if (!mc_rdma_remote_find(remote, address, length, &found))
        return;
    mc_assert(found.count > 0 && found.list >= remote->chunks &&
              found.list + found.count <= remote->chunks + remote->chunk_count);
    const struct mc_rdma_chunk *last = &found.list[found.count - 1];
    mc_assert(address - found.list->address < found.list->length);
    mc_assert(address + (length - 1) - last->address < last->length);
}

static void remote(struct mc_span text)
{
    struct mc_rdma_remote *remote, *again;
    struct mc_buffer out = {0};
    if (mc_rdma_remote_read(text, &remote) < 0)
        return;
    check_regions(remote);
    for (uint32_t i = 0; i < remote->chunk_count; i++) {
        const struct mc_rdma_chunk *chunk = &remote->chunks[i];
        find(remote, chunk->address, chunk->length);
        find(remote, chunk->address + chunk->length / 2, UINT64_MAX);
        find(remote, chunk->address + chunk->length / 2, chunk->length);
        find(remote, chunk->address - 1, 2);
    }
    mc_rdma_remote_begin(&out, mc_span_string("[]"));
    for (uint32_t i = 0, next; i < remote->chunk_count; i = next) {
        for (next = i + 1; next < remote->chunk_count && remote->regions[next] == remote->regions[i];)
            next++;
        mc_rdma_remote_region(&out, (struct mc_rdma_chunks){&remote->chunks[i], next - i});
    }
    mc_rdma_remote_end(&out);
    int rc = mc_rdma_remote_read(mc_span(out.data, out.length), &again); /* what was understood, written, is so again */
    mc_assert(rc == 0 && again->chunk_count == remote->chunk_count);
    for (uint32_t i = 0; i < again->chunk_count; i++)
        mc_assert(again->chunks[i].address == remote->chunks[i].address &&
                  again->chunks[i].length == remote->chunks[i].length &&
                  again->chunks[i].valid == remote->chunks[i].valid);
    mc_rdma_remote_release(again);
    mc_buffer_free(&out);
    mc_rdma_remote_release(remote);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    struct mc_span text = mc_span(data + 1, size - 1);
    switch (data[0] % 4) {
    case 0:
        message(text);
        break;
    case 2:
        remote(text);
        break;
    default:
        devices(text);
    }
    return 0;
}
