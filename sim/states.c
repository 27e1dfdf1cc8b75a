/* What a run is judged by beside its calls: the whole state of the master's core, of what it offers, and of the owners'
 * indexes. */
#include "states.h"

#include "../tests/core_check.h"
#include "members.h"
#include "jobs.h"
#include "kept.h"
#include "quotas.h"
#include "watch.h"

#include "base/checksum.h"
#include "store/segment/layout.h"
#include "store/core/state.h"

#include <stdlib.h>

#define INDEX_SLOTS_AT 4096u

static uint32_t checks; /* of indexes so far */

void oracle_states_reset(void)
{
    checks = 0;
}

void oracle_check_masters(void)
{
    const struct sim_process *master = sim_master();
    const char *wrong = master->alive && master->core != NULL ? mc_core_check(master->core) : NULL;
    if (wrong != NULL)
        sim_fail("core: %s", wrong);
    if (master->alive && master->core != NULL && (sim_plan->has_pins || sim_plan->has_groups))
        oracle_check_wishes(master->core);
    if (master->alive && master->core != NULL && sim_plan->has_quotas)
        oracle_check_usage(master->core);
    if (master->alive && master->core != NULL && sim_plan->has_drains)
        oracle_check_drains(master->core);
    if (!sim_has_fault(SIM_FAULT_flip)) /* who finds a rotten slot clears it before the master knows */
        oracle_check_offers();
}

static int by_offset(const void *a, const void *b)
{
    const struct mc_slot *const *left = a, *const *right = b;
    return (*left)->offset < (*right)->offset ? -1 : (*left)->offset > (*right)->offset;
}

/* Nobody may write where something live lies. */
static void check_bytes(const char *owner, const struct mc_slot *slot, const uint8_t *data, uint64_t data_size)
{
    if (slot->length >= 65536 || slot->offset + slot->length > data_size)
        return;
    uint32_t crc = mc_crc32c(0, data + slot->offset, slot->length);
    if (crc != slot->crc)
        sim_fail("changed: bytes of a live object of %s at %llu are not those that were put (generation %llx)", owner,
                 (unsigned long long)slot->offset, (unsigned long long)slot->generation);
}

static void check_segment(const char *owner, const uint8_t *index, uint64_t size, const uint8_t *data,
                          uint64_t data_size)
{
    static const struct mc_slot *live[8192];
    size_t count = 0;
    const struct mc_slot *slots = (const struct mc_slot *)(const void *)(index + INDEX_SLOTS_AT);
    uint64_t slot_count = (size - INDEX_SLOTS_AT) / sizeof(*slots);
    /* Whether nothing lives beyond what the owner says is in use is looked at now and then. */
    if (checks % 16 != 0) {
        uint64_t top = ((const struct mc_index_header *)(const void *)index)->slot_top & UINT32_MAX;
        slot_count = top < slot_count ? top : slot_count;
    }
    for (uint64_t i = 0; i < slot_count && count < 8192; i++) {
        if (slots[i].state == MC_SLOT_LIVE && slots[i].block_shift >= MC_BLOCK_SHIFT_MIN && slots[i].key_length > 0)
            live[count++] = &slots[i];
    }
    qsort(live, count, sizeof(live[0]), by_offset);
    for (size_t i = 0; i < count; i++) {
        uint64_t end = i == 0 ? 0 : live[i - 1]->offset + mc_extent_size(live[i - 1]->length, live[i - 1]->key_length);
        if (end > live[i]->offset)
            sim_fail("overlap: two live objects of %s share bytes from %llu: generations %llx and %llx", owner,
                     (unsigned long long)live[i]->offset, (unsigned long long)live[i - 1]->generation,
                     (unsigned long long)live[i]->generation);
        if (!sim_has_fault(SIM_FAULT_flip))
            check_bytes(owner, live[i], data, data_size);
    }
}

void oracle_check_indexes(void)
{
    sim_each_segment(check_segment);
    checks++;
}
