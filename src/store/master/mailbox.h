/* How one other thread asks the thread that owns the core: a mailbox with room for one question.
 * Invariant: a question's argument is touched by the owner only between ask's begin and end. */
#ifndef MC_MASTER_MAILBOX_H
#define MC_MASTER_MAILBOX_H

#include "store/core/core.h"

struct mc_mailbox;

/* Takes less than 1 ms. */
typedef void mc_question(struct mc_core *core, void *argument);

struct mc_mailbox *mc_mailbox_create(void); /* NULL: no memory or descriptors */
void mc_mailbox_destroy(struct mc_mailbox *mailbox);

/* The asker; one at a time. 0; MC_ERR_RPC_TIMEOUT when the question was not begun in time,
 * MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS when it was refused or the mailbox is closed: it is then never run. */
int mc_mailbox_ask(struct mc_mailbox *mailbox, mc_question *function, void *argument, uint64_t timeout_ms);

/* The owner. The descriptor is readable when serve should be called. */
int mc_mailbox_fd(const struct mc_mailbox *mailbox);
void mc_mailbox_serve(struct mc_mailbox *mailbox, struct mc_core *core);
/* Refuses the question that waits, if any: there is no core to ask now. */
void mc_mailbox_refuse(struct mc_mailbox *mailbox);
/* Refuses the question that waits and all later ones. */
void mc_mailbox_close(struct mc_mailbox *mailbox);

#endif
