/* A batch to another process: by the first path that works. */
#include "transfer/peer/host_path.h"
#include "transfer/run/run.h"

int mc_run_far(struct mc_peer *peer, enum mc_transfer_opcode opcode, const struct mc_transfer_item *items, size_t count,
               bool is_staged, struct mc_sum_check *check, uint64_t deadline_ns, struct mc_parking *parking, int *path)
{
    *path = MC_TRANSFER_PATH_HOST;
    int rc = mc_run_host(peer, opcode, items, count, check, deadline_ns);
    if (rc == 2) { /* who had that name is gone, and its ports may be somebody else's: ask who has the name now */
        rc = mc_peer_refresh(peer, deadline_ns);
        if (rc >= 0)
            rc = mc_run_host(peer, opcode, items, count, check, deadline_ns);
    }
    if (rc <= 0)
        return rc;
    *path = MC_TRANSFER_PATH_RDMA;
    rc = is_staged ? 1 : mc_run_rdma(peer, opcode, items, count, check, deadline_ns);
    if (rc != 1)
        return rc;
    *path = MC_TRANSFER_PATH_TCP;
    return mc_run_tcp(peer, opcode, items, count, check, deadline_ns, parking);
}
