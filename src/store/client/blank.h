/* Places that the master has granted a link ahead (docs/ordering.md, B1 to B5). A put that fits uses that of the link
 * it borrows, and hears of the next one with its answer. On the calling threads; a blank is the link's borrower's. */
#ifndef MC_STORE_BLANK_H
#define MC_STORE_BLANK_H

#include "store/client/link.h"

#define MC_BLANK_FRESH_MS                                                                                              \
    1000u                 /* so long it is used after the master's last word on that link; the master cuts later */
#define MC_BLANK_REST 32u /* puts without one after one was refused: perhaps what is put is there already */

/* Are they to be used at all (MC_STORE_BLANK_PLACES)? As the process began. */
bool mc_blanks_are_wanted(void);
/* An idle link that has a blank for that key and length, borrowed; or NULL. `avoid`: segments that are not to be used.
 */
struct mc_master_link *mc_blank_borrow(struct mc_store *store, uint64_t length, size_t key_length,
                                       const uint32_t *avoid, size_t avoid_count);
/* PUT_BLANKS has come. */
void mc_blank_take(struct mc_master_link *link, struct mc_span body);
/* One was refused. */
void mc_blank_refused(struct mc_store *store);
/* May the next put ask for one? Counts it. */
bool mc_blank_may_ask(struct mc_store *store);

#endif
