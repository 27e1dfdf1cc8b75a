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

/* Puts an object of its own until that is done by all of these devices (bits) at once, with none cut off. The objects
 * of the test and its generations stay as they are; the last 4 MiB of the segment are written. Not in place, so the
 * devices must be near. */
static inline void rig_wait_for_pairs(struct rig *rig, unsigned devices)
{
    static uint8_t bytes[RIG_PAIRS_BYTES];
    static uint64_t generations;
    struct iovec part = {bytes, sizeof(bytes)};
    struct mc_transfer transfer =
        rig_transfer(MC_TRANSFER_WRITE, RIG_PAIRS_SLOT, 0, rig->endpoint.capacity - 4 * RIG_PAIRS_BYTES, sizeof(bytes),
                     "pairs", &part, 1);
    for (unsigned wait = 0, seen = 0; (seen & devices) != devices; wait++) {
        struct fake_counts before = fake_counts();
        assert_true(wait < 20000);
        if (wait > 0)
            usleep(1000);
        transfer.place.generation = rig->generation + 1000 * ++generations;
        transfer.result = 0;
        bool is_done = rig_run_one(rig, &transfer, 20000) == 0;
        rig_reopen(rig);
        struct fake_counts after = fake_counts();
        seen = 0;
        for (unsigned i = 0; i < FAKE_DEVICES_MAX && is_done; i++)
            seen |= after.bytes[i] > before.bytes[i] ? 1u << i : 0;
    }
}

#endif
