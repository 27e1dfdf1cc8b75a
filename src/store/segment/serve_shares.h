/* Who has how many of an owner's data connections, which of them rest, and which one makes room when all places are
 * taken. No socket, no clock.
 *
 * A party is a node (peer) or a host; its share is the number of places divided by the number of parties that have
 * any. Invariants: of those that rest, one of a party with more than its share goes first; who has its share gets only
 * places of its own (a host's nodes: of their host), but a host with less than its share also those of one with more,
 * however many nodes that says to be; a connection in use is never taken, unless it is found too slow. */
#ifndef MC_SEGMENT_SERVE_SHARES_H
#define MC_SEGMENT_SERVE_SHARES_H

#include "base/bytes.h"

#include <stdbool.h>

#define MC_SHARES_BUCKETS 1024u
#define MC_SHARES_LOOKS 1024u    /* resting connections that are looked at for one that has to go, at most */
#define MC_SHARES_LEAST_MS 100u  /* one that rests for less is in use */
#define MC_SHARES_SPARE_MS 1000u /* one that rests for less is not taken from who has no more than its share */

struct mc_party {
    struct mc_id id;
    uint32_t count; /* connections */
    struct mc_party *next;
};

struct mc_parties {
    struct mc_party *buckets[MC_SHARES_BUCKETS];
    uint32_t count;
};

enum mc_serve_rest { MC_REST_NOT, MC_REST_FRESH, MC_REST_SETTLED };

struct mc_guest {                 /* part of a connection */
    struct mc_party *peer, *host; /* NULL: has no place */
    struct mc_guest *older, *newer;
    uint64_t since_ms; /* of its rest */
    enum mc_serve_rest rest;
};

struct mc_guests { /* by since_ms */
    struct mc_guest *oldest, *newest;
};

struct mc_shares {
    uint32_t limit, count;
    struct mc_parties peers, hosts;
    struct mc_guests fresh, settled; /* all that rest; those that have rested for longer are settled */
};

/* Is there a place for one more of that peer and host? True: yes, after *victim, if there is one, has left. */
bool mc_shares_ask(struct mc_shares *shares, struct mc_id peer, struct mc_id host, uint64_t now_ms,
                   struct mc_guest **victim);
/* May one more of that peer and host have the place of `guest`, which does not rest, but is too slow? It is of a host
 * with more than its share, or of the same host. */
bool mc_shares_may_take(struct mc_shares *shares, struct mc_id peer, struct mc_id host, const struct mc_guest *guest);
/* Takes the place. 0 or MC_ERR_NO_MEMORY. */
int mc_shares_enter(struct mc_shares *shares, struct mc_guest *guest, struct mc_id peer, struct mc_id host);
/* One that has no place may leave, too. */
void mc_shares_leave(struct mc_shares *shares, struct mc_guest *guest);
/* It has nothing to do from now on. Times never fall from one call to the next. */
void mc_shares_rest(struct mc_shares *shares, struct mc_guest *guest, uint64_t now_ms);
/* From fresh to settled. */
void mc_shares_settle(struct mc_shares *shares, struct mc_guest *guest);
void mc_shares_wake(struct mc_shares *shares, struct mc_guest *guest);
/* The longest-resting one of all, or NULL. */
struct mc_guest *mc_shares_oldest(const struct mc_shares *shares);

#endif
