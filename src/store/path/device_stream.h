/* Bytes of a device's memory as a source (transport.h): copied by the driver into the two units of a lane, one ahead of
 * the other, so that who takes them seldom waits. Parts of the host's memory in between are copied too. */
#ifndef MC_PATH_DEVICE_STREAM_H
#define MC_PATH_DEVICE_STREAM_H

#include "gpu/gpu.h"
#include "store/path/gather.h"

#define MC_DEVICE_REFUSED MC_ERR_INVALID_PARAMS /* the caller's memory; the peer is not to blame */

struct mc_device_stream {
    struct mc_source source; /* first */
    struct mc_gpu_finder *finder;
    int device;
    struct mc_gpu_lane *lane; /* nothing else is under way on it. NULL: one is taken when the first bytes are */
    struct mc_cursor cursor;
    uint64_t left;  /* not yet asked of the device */
    size_t at_once; /* bytes of a copy, MC_SOURCE_HELD_BYTES at least; at most a unit's */
    unsigned current;
    bool begun, refill; /* refill: the other unit is used up, but may still be in a transport's hands */
    size_t at, lengths[2];
};

/* `length` bytes from the cursor on. The lane may be NULL. */
struct mc_device_stream mc_device_stream(struct mc_gpu_finder *finder, int device, struct mc_gpu_lane *lane,
                                         struct mc_cursor cursor, uint64_t length);
/* Waits for the copies that are under way; a lane of its own (`lane` was NULL) is given back. */
void mc_device_stream_end(struct mc_device_stream *stream, bool is_own_lane);

/* Between a stream of host memory and what lies at the cursor; copies are under way then. 0 or MC_DEVICE_REFUSED. */
int mc_device_copy_parts(struct mc_gpu_finder *finder, struct mc_gpu_lane *lane, struct mc_cursor *cursor,
                         uint8_t *host, uint64_t length, bool to_parts);

#endif
