/* What a run moves: requests between registered memory of two processes. */
#ifndef MC_RDMA_REQUEST_H
#define MC_RDMA_REQUEST_H

#include "rdma/rdma.h"

enum mc_rdma_opcode { MC_RDMA_READ, MC_RDMA_WRITE }; /* remote to local, local to remote */

struct mc_rdma_request {
    enum mc_rdma_opcode opcode;
    void *local;
    uint64_t remote;                                   /* address in the peer's process */
    uint64_t length;                                   /* 0: done at once */
    struct mc_rdma_chunks local_chunks, remote_chunks; /* that hold the two ranges; borrowed until the run ends */
    /* Out. 0: all bytes have arrived. MC_ERR_INVALID_PARAMS: outside the chunks, or the peer's device refused address
     * or key. MC_ERR_RPC_TIMEOUT: not by the deadline. MC_ERR_TRANSFER_FAIL: no pair (left) that has keys for it, or
     * retried too often. After an error a READ's target may hold anything. */
    int result;
    uint64_t cut, done; /* scratch of the run */
};

#endif
