/* The room rdma as a machine without devices has it: what the product calls of it, and never gets anywhere. */
#include "base/error.h"
#include "store/path/path.h"
#include "store/path/paths.h"
#include "store/path/rdma_buffers.h"
#include "store/path/rdma_stage.h"
#include "rdma/link.h"
#include "rdma/remote.h"

static int rdma_open(struct mc_paths *paths, const struct mc_endpoint *endpoint, const struct mc_patience *patience,
                     struct mc_path **path)
{
    (void)paths, (void)endpoint, (void)patience, (void)path;
    return MC_ERR_UNAVAILABLE_IN_CURRENT_MODE;
}
const struct mc_transport mc_transport_rdma = {"rdma", 3,    false, rdma_open, NULL, NULL, NULL,
                                               NULL,   NULL, false, false,     NULL, NULL};

int mc_rdma_open(const struct mc_rdma_options *options, struct mc_rdma **rdma)
{
    (void)options, (void)rdma;
    return MC_ERR_UNAVAILABLE_IN_CURRENT_MODE;
}
void mc_rdma_close(struct mc_rdma *rdma)
{
    mc_assert(rdma == NULL);
}
struct mc_rdma_stages *mc_rdma_stages_create(struct mc_rdma *rdma)
{
    (void)rdma;
    return NULL;
}
void mc_rdma_stages_prepare(struct mc_rdma_stages *stages)
{
    (void)stages;
    mc_assert(false);
}
bool mc_rdma_stages_exist(struct mc_rdma_stages *stages, uint64_t deadline_ns)
{
    (void)stages, (void)deadline_ns;
    mc_assert(false);
    return false;
}
void mc_rdma_stages_free(struct mc_rdma_stages *stages)
{
    mc_assert(stages == NULL);
}
struct mc_rdma_buffers *mc_rdma_buffers_create(struct mc_rdma *rdma)
{
    (void)rdma;
    return NULL;
}
void mc_rdma_buffers_free(struct mc_rdma_buffers *buffers)
{
    mc_assert(buffers == NULL);
}
int mc_rdma_buffers_add(struct mc_rdma_buffers *buffers, struct mc_paths *paths, void *base, uint64_t size)
{
    (void)buffers, (void)paths, (void)base, (void)size;
    mc_assert(false);
    return 0;
}
int mc_rdma_buffers_remove(struct mc_rdma_buffers *buffers, const void *base)
{
    (void)base;
    mc_assert(buffers == NULL);
    return 0;
}

/* ---- of devices, which nobody has ---- */

int mc_rdma_link_answer(struct mc_rdma *rdma, struct mc_rdma_link **link, struct mc_span offer,
                        struct mc_buffer *answer)
{
    (void)rdma, (void)link, (void)offer, (void)answer;
    mc_assert(false);
    return 0;
}
void mc_rdma_link_close(struct mc_rdma_link *link)
{
    mc_assert(link == NULL);
}
int mc_rdma_memory_register(struct mc_rdma *rdma, const struct mc_rdma_range *range, struct mc_rdma_memory **memory)
{
    (void)rdma, (void)range, (void)memory;
    mc_assert(false);
    return 0;
}
int mc_rdma_memory_unregister(struct mc_rdma_memory *memory)
{
    mc_assert(memory == NULL);
    return 0;
}
struct mc_rdma_chunks mc_rdma_memory_remote(const struct mc_rdma_memory *memory)
{
    mc_assert(memory == NULL);
    return (struct mc_rdma_chunks){0};
}
void mc_rdma_put_devices(const struct mc_rdma *rdma, struct mc_buffer *out)
{
    (void)out;
    mc_assert(rdma == NULL);
}
void mc_rdma_remote_begin(struct mc_buffer *out, struct mc_span devices)
{
    (void)out, (void)devices;
}
void mc_rdma_remote_region(struct mc_buffer *out, struct mc_rdma_chunks chunks)
{
    (void)out, (void)chunks;
}
void mc_rdma_remote_end(struct mc_buffer *out)
{
    (void)out;
}
