/* What a process says of its RDMA to peers: its devices, and of every region that they may reach the pieces with their
 * keys. The faces carry it in their own documents. Pure.
 *
 * Invariant: what mc_rdma_remote_read accepts has its pieces in ascending order without overlaps, each of at least one
 * byte, the pieces of a region adjacent. It does not change any more; who uses it holds a reference. */
#ifndef MC_RDMA_REMOTE_H
#define MC_RDMA_REMOTE_H

#include "base/bytes.h"
#include "rdma/rdma.h"

#include <stdatomic.h>

struct mc_rdma_remote {
    _Atomic uint32_t references;
    struct mc_rdma_peer_device devices[MC_RDMA_DEVICES_MAX];
    uint32_t device_count;
    struct mc_rdma_chunk *chunks;
    uint32_t *regions; /* of each chunk: the number of its region */
    uint32_t chunk_count, capacity;
};

/* 0 and *remote with one reference; MC_ERR_PROTOCOL, MC_ERR_NO_MEMORY. */
int mc_rdma_remote_read(struct mc_span text, struct mc_rdma_remote **remote);
struct mc_rdma_remote *mc_rdma_remote_hold(struct mc_rdma_remote *remote); /* NULL is allowed */
void mc_rdma_remote_release(struct mc_rdma_remote *remote);                /* NULL is allowed */
/* The pieces that hold the range, all of one region; false: it is not there. */
bool mc_rdma_remote_find(const struct mc_rdma_remote *remote, uint64_t address, uint64_t length,
                         struct mc_rdma_chunks *chunks);

/* The writing half: begin, a region for each registered memory, end. devices: from mc_rdma_put_devices. */
void mc_rdma_remote_begin(struct mc_buffer *out, struct mc_span devices);
void mc_rdma_remote_region(struct mc_buffer *out, struct mc_rdma_chunks chunks);
void mc_rdma_remote_end(struct mc_buffer *out);

#endif
