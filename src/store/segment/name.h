/* What file.c and name.c share. Not for others. */
#ifndef MC_SEGMENT_NAME_H
#define MC_SEGMENT_NAME_H

#include "store/segment/file.h"

/* Sizes for a capacity, nothing open. 0 or MC_ERR_INVALID_PARAMS. */
int mc_segment_file_init(struct mc_segment_file *file, uint64_t capacity);
/* Maps all three; the index from a writable descriptor. 0 or MC_ERR_NO_MEMORY with errno; free takes back. */
int mc_segment_file_map(struct mc_segment_file *file, int index_fd);
uint64_t mc_index_header_checksum(const struct mc_index_header *header);
/* Of a new segment. */
void mc_index_header_fill(struct mc_segment_file *file);

#endif
