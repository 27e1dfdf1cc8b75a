/* A user of the original's C interface: one engine writes to another and reads back. Exits 0 when the bytes are right.
 */
#include "transfer_engine_c.h"

#include <stdio.h>
#include <string.h>

static char source[4096] = "hello", target[4096], back[4096];

static int move(transfer_engine_t engine, segment_id_t segment, int opcode, void *local)
{
    struct transfer_request request = {opcode, local, segment, (uintptr_t)target, sizeof(target)};
    struct transfer_status status = {STATUS_WAITING, 0};
    batch_id_t batch = allocateBatchID(engine, 1);
    if (batch == INVALID_BATCH || submitTransfer(engine, batch, &request, 1) != 0)
        return -1;
    while (status.status == STATUS_WAITING)
        if (getTransferStatus(engine, batch, 0, &status) != 0)
            return -1;
    return freeBatchID(engine, batch) == 0 && status.status == STATUS_COMPLETED ? 0 : -1;
}

int main(void)
{
    char name[64];
    transfer_engine_t near = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "127.0.0.1", 0, 1);
    transfer_engine_t far = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "127.0.0.1", 0, 1);
    if (near == NULL || far == NULL || registerLocalMemory(far, target, sizeof(target), "*", 1) != 0 ||
        getLocalIpAndPort(far, name, sizeof(name)) != 0)
        return 1;
    segment_id_t segment = openSegment(near, name);
    int rc = segment < 0 || move(near, segment, OPCODE_WRITE, source) != 0 ||
             move(near, segment, OPCODE_READ, back) != 0 || memcmp(source, target, sizeof(source)) != 0 ||
             memcmp(source, back, sizeof(source)) != 0;
    printf("C interface: %s wrote and read %zu bytes: %s\n", name, sizeof(source), rc == 0 ? "right" : "WRONG");
    if (unregisterLocalMemory(far, target) != 0)
        rc = 1;
    destroyTransferEngine(near);
    destroyTransferEngine(far);
    return rc;
}
