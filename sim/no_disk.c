/* The room disk as a machine without disks has it: what an owner calls of it, and never gets anywhere. */
#include "store/client/disks.h"
#include "store/disk/disk.h"

#include "base/error.h"

const struct mc_disk_ports mc_disk_ports_system = {0};

int mc_disk_open(const struct mc_disk_config *config, struct mc_disk **disk, char *error, size_t error_size)
{
    (void)config, (void)disk;
    if (error_size > 0)
        error[0] = 0;
    return MC_ERR_NOT_SUPPORTED;
}

int mc_disks_of(const struct mc_store_config *config, const struct mc_disks_told *told, struct mc_disks *disks)
{
    (void)config, (void)told;
    *disks = (struct mc_disks){0};
    return 0;
}
void mc_disks_free(struct mc_disks *disks)
{
    (void)disks;
}

/* ---- of disks, which nobody has ---- */

void mc_disk_close(struct mc_disk *disk, uint32_t grace_ms)
{
    (void)grace_ms;
    mc_assert(disk == NULL);
}
void mc_disk_forked(struct mc_disk *disk)
{
    mc_assert(disk == NULL);
}
uint32_t mc_disk_slot_count(const struct mc_disk *disk)
{
    mc_assert(disk == NULL);
    return 0;
}
struct mc_id mc_disk_id(const struct mc_disk *disk)
{
    mc_assert(disk == NULL);
    return (struct mc_id){0, 0};
}
const char *mc_disk_directory(const struct mc_disk *disk)
{
    mc_assert(disk == NULL);
    return "";
}
struct mc_disk_mark mc_disk_marked(const struct mc_disk *disk)
{
    mc_assert(disk == NULL);
    return (struct mc_disk_mark){0};
}
uint8_t *mc_disk_lend(struct mc_disk *disk, uint64_t length, uint32_t key_length)
{
    (void)disk, (void)length, (void)key_length;
    return NULL;
}
void mc_disk_give_back(struct mc_disk *disk, uint8_t *buffer)
{
    (void)disk;
    mc_assert(buffer == NULL);
}
int mc_disk_store(struct mc_disk *disk, uint32_t slot, const struct mc_disk_entry *entry, uint8_t *buffer, bool was_hit,
                  mc_disk_stored *done, void *context)
{
    (void)disk, (void)slot, (void)entry, (void)buffer, (void)was_hit, (void)done, (void)context;
    return MC_ERR_NOT_SUPPORTED;
}
int mc_disk_read(struct mc_disk *disk, struct mc_disk_place place, uint64_t until_ns, mc_disk_was_read *done,
                 void *context)
{
    (void)disk, (void)place, (void)until_ns, (void)done, (void)context;
    return MC_ERR_NOT_SUPPORTED;
}
int mc_disk_clear(struct mc_disk *disk, const struct mc_disk_place *places, size_t count, bool is_removal,
                  mc_disk_done *done, void *context)
{
    (void)disk, (void)places, (void)count, (void)is_removal, (void)done, (void)context;
    return MC_ERR_NOT_SUPPORTED;
}
int mc_disk_set_mark(struct mc_disk *disk, const struct mc_disk_mark *mark, mc_disk_done *done, void *context)
{
    (void)disk, (void)mark, (void)done, (void)context;
    return MC_ERR_NOT_SUPPORTED;
}
int mc_disk_inventory(struct mc_disk *disk, uint64_t cursor, mc_disk_each *each, mc_disk_listed *done, void *context)
{
    (void)disk, (void)cursor, (void)each, (void)done, (void)context;
    return MC_ERR_NOT_SUPPORTED;
}
void mc_disk_statistics_read(struct mc_disk *disk, struct mc_disk_statistics *statistics)
{
    mc_assert(disk == NULL);
    *statistics = (struct mc_disk_statistics){0};
}
