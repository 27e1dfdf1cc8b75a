/* What of a file is on its disk: what was written and not synced may be lost, page by page, when the machine loses its
 * power. */
#ifndef SIM_PAGES_H
#define SIM_PAGES_H

#include <stdint.h>

struct sim_pages;

void sim_pages_reset(void);
struct sim_pages *sim_pages_make(void);
/* These bytes of the file, which is so large, are about to be written. */
void sim_pages_write(struct sim_pages *pages, const uint8_t *bytes, uint64_t size, uint64_t offset, uint64_t length);
/* The file was cut. */
void sim_pages_cut(struct sim_pages *pages, uint64_t size);
/* A sync begins; what it covers. */
struct sim_sync {
    uint64_t serial, size;
};
struct sim_sync sim_pages_sync_begin(struct sim_pages *pages, uint64_t size);
void sim_pages_sync_end(struct sim_pages *pages, struct sim_sync sync);
void sim_pages_sync_drop(struct sim_pages *pages); /* it failed, or nobody was there any more at its end */
/* The power is lost. The bytes become what is found afterwards; the size of the file then. */
uint64_t sim_pages_lose(struct sim_pages *pages, const char *name, uint8_t *bytes, uint64_t size);

#endif
