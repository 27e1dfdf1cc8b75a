/* Memory of the caller's that is registered at the RDMA devices (register_buffer): what lies there is read and written
 * in place. Only our own device requests use it; no peer is told a key.
 *
 * Invariant: memory that is held stays registered. Any thread. */
#ifndef MC_PATH_RDMA_BUFFERS_H
#define MC_PATH_RDMA_BUFFERS_H

#include "rdma/rdma.h"

#include <sys/uio.h>

struct mc_paths;
struct mc_rdma_buffers;

struct mc_rdma_buffer { /* to be read while it is held */
    uintptr_t start, end;
    struct mc_rdma_memory *memory;
    uint32_t users;  /* guarded by the list's lock */
    bool is_leaving; /* nobody holds it any more; guarded as well */
    bool is_gpu;
    uint64_t gpu_allocation; /* mc_gpu_allocation of its start, when it was registered */
    uintptr_t reach;         /* the greatest end of this one and of all before it in the list; guarded as well */
};

struct mc_rdma_buffers *mc_rdma_buffers_create(struct mc_rdma *rdma); /* NULL: out of memory */
void mc_rdma_buffers_free(struct mc_rdma_buffers *buffers);           /* nothing is held; NULL is allowed */
/* Registers it: a second for 4 GiB that nobody has touched yet. The base is not there yet. paths: closes in a forked
 * child what is open meanwhile. 0, also of managed memory of a GPU, which is never registered; MC_ERR_NO_MEMORY,
 * MC_ERR_TRANSFER_FAIL, MC_ERR_NOT_SUPPORTED as mc_rdma_memory_register, or (TRANSFER_FAIL) a device that is there did
 * not take it: the log says why, and such memory is copied from and to. */
int mc_rdma_buffers_add(struct mc_rdma_buffers *buffers, struct mc_paths *paths, void *base, uint64_t size);
/* Does each of these parts lie in a GPU's memory that is registered? Not where that was freed, and its address is
 * another allocation's now: devices would reach what was there before. buffers: NULL is allowed. */
bool mc_rdma_buffers_reach(struct mc_rdma_buffers *buffers, const struct iovec *parts, size_t count);
/* Waits until nobody holds it: groups that use it end by their calls' deadlines. Does nothing without one. One base is
 * removed by one thread. 0, or as mc_rdma_memory_unregister: then it is in the list still, and held no more. */
int mc_rdma_buffers_remove(struct mc_rdma_buffers *buffers, const void *base);
/* The memory that holds the whole range, or NULL. */
struct mc_rdma_buffer *mc_rdma_buffers_hold(struct mc_rdma_buffers *buffers, const void *address, uint64_t length);
void mc_rdma_buffers_give(struct mc_rdma_buffers *buffers, struct mc_rdma_buffer **held, size_t count);

#endif
