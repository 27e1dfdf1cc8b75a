/* Values in pieces (store/wire/stripe.h): what puts and gets do with them. MC_STORE_STRIPE_SIZE says which are put so;
 * all are read. Keys in this file are full (scope.h). */
#ifndef MC_STORE_STRIPES_H
#define MC_STORE_STRIPES_H

#include "store/client/get_inside.h"
#include "store/client/state.h"

#ifndef MC_STRIPE_BYTES_MIN
#define MC_STRIPE_BYTES_MIN (1u << 20)
#define MC_STRIPE_BYTES_UNIT (64u << 10) /* sizes are multiples of this */
#endif
#define MC_HEAD_BYTES_MAX 4096u

/* As the environment says it; 0: no value is put in pieces. */
uint64_t mc_stripe_bytes_set(void);
/* Is that value put in pieces? What is wished for its place, its pin or its group is wished of one object. */
bool mc_stripes_apply(const struct mc_store *store, uint64_t length, const struct mc_replicate_config *config,
                      size_t index);
/* Puts such values, at most MC_BATCH_MAX, and sets their results; MC_ERR_NOT_SUPPORTED: it is to be put as one object.
 */
void mc_stripes_put(struct mc_store *store, struct mc_put_item **items, size_t count,
                    const struct mc_replicate_config *config, bool replace, uint64_t deadline_ns);

/* The hash of the key under which the head of that key's value is stored. False: it has none. */
bool mc_stripes_head_hash(const struct mc_bytes *key, struct mc_hash *hash);
/* The head has been read: so is the value, or the range, by then. Its length, or negative. */
int64_t mc_stripes_read(struct mc_store *store, const struct get_one *one, uint64_t last_ns);

#endif
