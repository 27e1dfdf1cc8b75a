/* Aligned memory that is lent in pieces, from any thread. All of it is mapped once, and the machine gives it pages when
 * they are first used. */
#ifndef MC_DISK_BUFFERS_H
#define MC_DISK_BUFFERS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define MC_DISK_BUFFER_UNIT 16384u

struct mc_disk_buffers {
    pthread_mutex_t lock;
    uint8_t *base;
    uint64_t *taken;   /* a bit for each unit */
    uint32_t *lengths; /* units of the piece that begins there */
    uint32_t units;
    _Atomic uint32_t units_lent; /* changed under the lock */
    uint32_t lowest;             /* all units below it are lent */
};

/* 0 or MC_ERR_NO_MEMORY. */
int mc_disk_buffers_init(struct mc_disk_buffers *buffers, uint64_t bytes);
void mc_disk_buffers_free(struct mc_disk_buffers *buffers);
/* NULL: no so long a piece is free, or less than `left` would be; one is lent in any case. */
uint8_t *mc_disk_buffers_lend(struct mc_disk_buffers *buffers, uint64_t bytes, uint64_t left);
void mc_disk_buffers_give_back(struct mc_disk_buffers *buffers, uint8_t *buffer);
/* Bytes; takes no lock. */
uint64_t mc_disk_buffers_lent(struct mc_disk_buffers *buffers);

#endif
