/* Lanes on their way to one owner. A lost SYN is sent again only after a second, so one that is slow to connect or to
 * answer the hello gets company. */
#ifndef MC_PATH_TCP_OPEN_H
#define MC_PATH_TCP_OPEN_H

#include "store/path/tcp_lane.h"

#include <poll.h>

#define MC_TCP_OPENINGS_MAX 6u /* at a time */

struct mc_tcp_opener {
    struct mc_paths *paths;
    const struct mc_endpoint *endpoint;
    const struct mc_tcp_address *peers;
    size_t peer_count;
    struct mc_pace *pace;
    struct mc_tcp_lane *lanes[MC_TCP_OPENINGS_MAX];
    size_t count;
    uint32_t begun;    /* for the present need */
    uint64_t begun_ns; /* the last of them */
    uint64_t later_ns; /* no other one before, as it cannot be paid for */
    uint32_t refused;  /* since the last that succeeded: nobody listens there */
    int error;         /* of the last that failed */
};

/* Begins one. 0 or negative; MC_ERR_BUSY as well when enough have been begun. */
int mc_tcp_opener_begin(struct mc_tcp_opener *opener);
/* When another one is to be begun, as these take too long; UINT64_MAX: never. */
uint64_t mc_tcp_opener_due_ns(const struct mc_tcp_opener *opener);
/* It is due: begins another one, if it may. It is paid for out of one credit for all owners, since each connection
 * takes a place at an owner that may be slow because so many come. Free is the first at each address; and one now and
 * then while no host has answered at all: then packets are lost, and it takes no place. */
void mc_tcp_opener_more(struct mc_tcp_opener *opener);
/* Fills one entry for each lane. */
void mc_tcp_opener_poll(const struct mc_tcp_opener *opener, struct pollfd *fds);
/* After a poll of these entries. A lane that is ready now, which is the caller's, or NULL. */
struct mc_tcp_lane *mc_tcp_opener_step(struct mc_tcp_opener *opener, const struct pollfd *fds);
/* Nobody listens at any of the addresses, though some on their way may not have heard it. */
bool mc_tcp_opener_is_refused(const struct mc_tcp_opener *opener);
/* Closes those under way. */
void mc_tcp_opener_end(struct mc_tcp_opener *opener);
/* How long who opens a path waits: a lost packet must not be the end. */
uint64_t mc_tcp_open_until(const struct mc_patience *patience);
/* Until one is ready. 0 or negative. */
int mc_tcp_opener_wait(struct mc_tcp_opener *opener, uint64_t until_ns, struct mc_tcp_lane **lane);

#endif
