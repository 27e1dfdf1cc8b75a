/* How other threads ask the thread that owns the core: a mailbox with room for a question of each. One is answered in a
 * turn of the owner's, the one that was asked first before others.
 * Invariant: a question's argument is touched by the owner only between ask's begin and end. */
#ifndef MC_MASTER_MAILBOX_H
#define MC_MASTER_MAILBOX_H

#include "store/core/core.h"

struct mc_mailbox;

/* Takes less than 1 ms. */
typedef void mc_question(struct mc_core *core, void *argument);

struct mc_mailbox *mc_mailbox_create(void); /* NULL: no memory or descriptors */
void mc_mailbox_destroy(struct mc_mailbox *mailbox);

/* An asker. 0; MC_ERR_RPC_TIMEOUT when the question was not begun in time,
 * MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS when it was refused or the mailbox is closed: it is then never run. */
int mc_mailbox_ask(struct mc_mailbox *mailbox, mc_question *function, void *argument, uint64_t timeout_ms);
/* The same before all others that wait. */
int mc_mailbox_ask_first(struct mc_mailbox *mailbox, mc_question *function, void *argument, uint64_t timeout_ms);

/* How many wait. */
size_t mc_mailbox_waiting(struct mc_mailbox *mailbox);

/* The owner. The descriptor is readable when serve should be called. */
int mc_mailbox_fd(const struct mc_mailbox *mailbox);
void mc_mailbox_serve(struct mc_mailbox *mailbox, struct mc_core *core);
/* Refuses the questions that wait: there is no core to ask now. */
void mc_mailbox_refuse(struct mc_mailbox *mailbox);
/* Refuses the questions that wait and all later ones. */
void mc_mailbox_close(struct mc_mailbox *mailbox);

#endif
