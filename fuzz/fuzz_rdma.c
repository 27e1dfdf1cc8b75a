/* What peers say to set up RDMA. The first byte chooses: even an offer or an answer, odd a list of devices. */
#include "rdma/link_text.h"

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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    struct mc_span text = mc_span(data + 1, size - 1);
    if (data[0] % 2 == 0)
        message(text);
    else
        devices(text);
    return 0;
}
