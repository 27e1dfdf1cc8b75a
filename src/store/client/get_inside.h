/* Inside of get: get.c asks and reads (one slice of a call), get_call.c makes calls of slices. */
#ifndef MC_STORE_GET_INSIDE_H
#define MC_STORE_GET_INSIDE_H

#include "base/checksum.h"
#include "store/client/state.h"

#define MC_GET_PENDING INT64_MAX /* not a length: an object of one byte is a result like any other */

/* The ranges of a key in one call are of one version: the first that is read names it. */
struct get_pin {
    struct mc_hash hash;
    uint64_t version; /* 0: nothing was read yet */
    bool torn;        /* the key has another version by now: all its ranges are to be read again */
};

struct get_one {
    struct mc_bytes key;
    struct mc_hash hash;
    struct get_pin *pin; /* NULL: nothing else of this call is to be of the same version */
    const struct iovec *parts;
    size_t part_count;
    bool is_range;
    uint64_t offset, length; /* of the range; a whole object gets its length from the master */
    size_t index;            /* in the caller's batch, for allocate */
    struct iovec own_part;   /* what allocate gave, or the target of a range */
    uint64_t object_length;
    /* Of a value in pieces (stripes.h): all its bytes, 0 = it is none; object_length and the places are its head's. */
    uint64_t whole;
    struct mc_hash head_hash; /* of the key under which that is stored */
    struct iovec head_part;   /* its bytes, ours */
    uint64_t head_version;    /* of the head that was read */
    uint32_t copy_to;         /* the segment to which the master wants a copy, once it is read; 0: to none */
    uint64_t copy_epoch;      /* of that number */
    size_t first_place;
    uint8_t place_count, tried;
    int trouble;              /* our own, with the replica tried last; 0 = none */
    bool patient;             /* no replica answered soon: each has all its time, when all others have been read */
    bool reread;              /* the replica tried last had wrong bytes, once */
    bool rotten;              /* a replica had wrong bytes, twice */
    bool allocated;           /* own_part is from allocate */
    bool loaded;              /* it was not in memory, and is being brought from a disk for this call, or was */
    struct mc_hot_value *hot; /* a copy of our own, while this try lasts, */
    bool hot_begun;           /* which is being made */
    uint8_t proof;            /* else a byte of its owner's, which says that the copy is still good */
    struct iovec proof_part;
    int64_t code; /* PENDING, or the result */
};

/* Fills one for item `index` of the caller's batch; 0, or the item's code. */
typedef int fill_one(const void *items, size_t index, struct get_one *one);
typedef int64_t *result_of(void *items, size_t index);

struct get_call {
    struct mc_store *store;
    void *items;
    const struct mc_range_item *ranges; /* the items, when they are ranges */
    struct mc_bytes *keys; /* of the items, `stride` bytes apart, as users name them; NULL: they are full */
    size_t stride, count;
    fill_one *fill;
    result_of *result;
    mc_allocate *allocate;
    void *context;
    bool session;
    bool is_of_pieces; /* the ones are pieces of a value: they are counted with that */
    uint64_t last_ns;  /* of the whole call */
    struct get_one *ones;
    /* Of ranges: which pin is whose. */
    struct get_pin *pins;
    uint32_t *pin_of, *table; /* by item; by hash, 1 more, 0 = free */
    size_t pin_count, table_mask;
};

/* Reads ones[0..count), up to MC_BATCH_MAX with good keys, whose codes are MC_GET_PENDING, and counts them. Their order
 * may change. last_ns: the slice ends by then, however many bytes there are. */
void mc_get_slice(struct get_call *call, size_t count, uint64_t last_ns);

#endif
