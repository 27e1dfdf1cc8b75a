/* For tests that need a link with all its pairs: one works with the first that stands, and others come later. */
#ifndef MC_TEST_RDMA_RIG_H
#define MC_TEST_RDMA_RIG_H

#include "transport_rig.h"

#include "store/path/path.h"
#include "fake_verbs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#define RIG_PAIRS_SLOT 9u
#define RIG_PAIRS_BYTES (1u << 20)

/* A path that has failed is opened anew. */
static inline void rig_reopen(struct rig *rig)
{
    if (!atomic_load(&rig->path->broken))
        return;
    mc_path_drop(rig->path);
    mc_path_release(rig->path);
    assert_int_equal(mc_path_get(rig->paths, &rig->endpoint, rig_deadline(20000), &rig->path), 0);
}

/* Moves an object of its own until each of these devices (bits) has brought some of it. The objects of the test and its
 * generations stay as they are; the last 4 MiB of the segment are written. Not in place, so the devices must
 * be near. */
static inline void rig_wait_for_pairs(struct rig *rig, unsigned devices)
{
    static uint8_t bytes[RIG_PAIRS_BYTES];
    static uint64_t generations;
    struct iovec part = {bytes, sizeof(bytes)};
    struct fake_counts before = fake_counts();
    struct mc_transfer transfer =
        rig_transfer(MC_TRANSFER_WRITE, RIG_PAIRS_SLOT, 0, rig->endpoint.capacity - 4 * RIG_PAIRS_BYTES, sizeof(bytes),
                     "pairs", &part, 1);
    unsigned seen = 0;
    for (unsigned wait = 0; (seen & devices) != devices; wait++) {
        assert_true(wait < 20000);
        transfer.place.generation = rig->generation + 1000 * ++generations;
        transfer.result = 0;
        (void)rig_run_one(rig, &transfer, 20000);
        rig_reopen(rig);
        for (unsigned i = 0; i < FAKE_DEVICES_MAX; i++)
            seen |= fake_counts().bytes[i] > before.bytes[i] ? 1u << i : 0;
        if ((seen & devices) != devices)
            usleep(1000);
    }
}

#endif
