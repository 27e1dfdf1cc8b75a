/* The disks of nodes: what lies below the product's own room disk, and what can happen to it. */
#ifndef SIM_DISK_H
#define SIM_DISK_H

#include "sim.h"

#define SIM_DISK_PATH "/ssd" /* each machine has one; its nodes share it */

void sim_disks_reset(void);
/* Its process has ended: of what was being written each page is there or not. */
void sim_disks_end(struct sim_process *process);
/* The disk of a machine, until then: answers after up to so many ms; fails, or is full: one of `in` operations of
 * that part. */
enum sim_disk_part { SIM_DISK_ALL, SIM_DISK_JOURNALS, SIM_DISK_WRITES }; /* those but ALL: what is read there is well */
void sim_disk_slow(uint32_t machine, uint32_t most_ms, uint64_t until_ns);
void sim_disk_fail(uint32_t machine, int error, uint32_t in, enum sim_disk_part part, uint64_t until_ns);
/* Does it fail so just now? */
bool sim_disk_fails(uint32_t machine, int error);
/* All disks are well again. */
void sim_disks_well(void);

/* files.c, for disk.c: the file of that descriptor, or NULL. */
struct sim_memory;
struct sim_memory *sim_memory_of(int fd);
const char *sim_memory_name(const struct sim_memory *memory);
uint32_t sim_memory_read_at(const struct sim_memory *memory, uint8_t *bytes, uint32_t length, uint64_t offset);
/* 0 or ENOSPC. */
int sim_memory_write_at(struct sim_memory *memory, const uint8_t *bytes, uint32_t length, uint64_t offset);
struct sim_pages *sim_memory_pages(struct sim_memory *memory, uint64_t *size);

#endif
