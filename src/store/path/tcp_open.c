/* Opening lanes, several at a time when the first is slow. */
#include "store/path/tcp_open.h"

#include "env/clock.h"

/* LATER: between those after the third, and until it is asked again whether one may be begun. FREE: between those that
 * nobody pays for. */
#define LATER_NS 100000000ull
#define FREE_NS 250000000ull

int mc_tcp_opener_begin(struct mc_tcp_opener *opener)
{
    if (opener->count == MC_TCP_OPENINGS_MAX || opener->begun >= MC_TCP_OPENINGS_MAX + opener->peer_count)
        return MC_ERR_BUSY;
    const struct mc_tcp_address *peer = &opener->peers[opener->begun % opener->peer_count];
    int rc = mc_tcp_lane_begin(opener->paths, peer, &opener->lanes[opener->count]);
    opener->begun++;
    opener->begun_ns = mc_clock_ns();
    if (rc == 0)
        opener->count++;
    else
        opener->error = rc;
    return rc;
}

uint64_t mc_tcp_opener_due_ns(const struct mc_tcp_opener *opener)
{
    uint64_t late_ns = mc_pace_late_ns(opener->pace);
    if (opener->count == 0 || opener->count == MC_TCP_OPENINGS_MAX)
        return UINT64_MAX;
    uint64_t due_ns = opener->begun_ns + (opener->begun <= 2 ? late_ns * opener->begun : LATER_NS + late_ns);
    return due_ns > opener->later_ns ? due_ns : opener->later_ns;
}

/* Has any host answered, be it with a refusal? The kernel is asked: where this thread did not run for a while, it may
 * know more than we have looked at. */
static bool is_any_answered(const struct mc_tcp_opener *opener)
{
    struct pollfd fds[MC_TCP_OPENINGS_MAX];
    for (size_t i = 0; i < opener->count; i++) {
        if (opener->lanes[i]->state != MC_TCP_CONNECTING)
            return true;
    }
    mc_tcp_opener_poll(opener, fds);
    return poll(fds, (nfds_t)opener->count, 0) > 0;
}

void mc_tcp_opener_more(struct mc_tcp_opener *opener)
{
    uint64_t now_ns = mc_clock_ns();
    bool is_free =
        opener->begun < opener->peer_count || (now_ns >= opener->begun_ns + FREE_NS && !is_any_answered(opener));
    if ((!is_free && !mc_pace_pay(&opener->paths->openings)) || mc_tcp_opener_begin(opener) < 0)
        opener->later_ns = now_ns + LATER_NS;
}

void mc_tcp_opener_poll(const struct mc_tcp_opener *opener, struct pollfd *fds)
{
    for (size_t i = 0; i < opener->count; i++)
        fds[i] = (struct pollfd){.fd = opener->lanes[i]->fd,
                                 .events = opener->lanes[i]->state == MC_TCP_CONNECTING ? POLLOUT : POLLIN};
}

static struct mc_tcp_lane *take_out(struct mc_tcp_opener *opener, size_t index)
{
    struct mc_tcp_lane *lane = opener->lanes[index];
    opener->lanes[index] = opener->lanes[--opener->count];
    return lane;
}

struct mc_tcp_lane *mc_tcp_opener_step(struct mc_tcp_opener *opener, const struct pollfd *fds)
{
    for (size_t i = opener->count; i > 0; i--) { /* backwards: what is taken out leaves a hole for one seen already */
        struct mc_tcp_lane *lane = opener->lanes[i - 1];
        if (fds[i - 1].revents == 0)
            continue;
        uint64_t now_ns = mc_clock_ns();
        bool connects = lane->state == MC_TCP_CONNECTING;
        int rc = mc_tcp_lane_step(opener->paths, opener->endpoint, lane);
        if (rc >= 0) {
            mc_pace_sample(opener->pace, now_ns - lane->progress_ns);
            mc_pace_sample(&opener->paths->openings, now_ns - lane->progress_ns);
        }
        lane->progress_ns = now_ns;
        if (rc == 0)
            continue;
        (void)take_out(opener, i - 1);
        if (rc > 0) {
            opener->begun = (uint32_t)opener->count;
            opener->refused = 0;
            return lane;
        }
        opener->error = rc;
        opener->refused += connects && rc == MC_ERR_RPC_FAIL;
        mc_tcp_lane_close(opener->paths, lane, false);
        if (opener->begun < opener->peer_count)
            (void)mc_tcp_opener_begin(opener); /* the owner's next address */
    }
    return NULL;
}

bool mc_tcp_opener_is_refused(const struct mc_tcp_opener *opener)
{
    /* Which of several it was is not kept: as often as they take turns. */
    return opener->refused >= (opener->peer_count == 1 ? 1 : 2 * opener->peer_count);
}

void mc_tcp_opener_end(struct mc_tcp_opener *opener)
{
    while (opener->count > 0)
        mc_tcp_lane_close(opener->paths, take_out(opener, 0), false);
}

uint64_t mc_tcp_open_until(const struct mc_patience *patience)
{
    uint64_t until_ns = mc_clock_ns() + MC_STALL_NS;
    until_ns = until_ns > patience->soon_ns ? until_ns : patience->soon_ns;
    return until_ns < patience->deadline_ns ? until_ns : patience->deadline_ns;
}

int mc_tcp_opener_wait(struct mc_tcp_opener *opener, uint64_t until_ns, struct mc_tcp_lane **lane)
{
    struct pollfd fds[MC_TCP_OPENINGS_MAX];
    int rc = mc_tcp_opener_begin(opener);
    for (*lane = NULL; (rc == 0 || opener->count > 0) && !mc_tcp_opener_is_refused(opener);) {
        uint64_t now_ns = mc_clock_ns(), due_ns = mc_tcp_opener_due_ns(opener);
        if (now_ns >= due_ns && now_ns < until_ns) {
            mc_tcp_opener_more(opener);
            due_ns = mc_tcp_opener_due_ns(opener);
        }
        due_ns = due_ns < until_ns ? due_ns : until_ns;
        uint64_t left_ns = due_ns > now_ns ? due_ns - now_ns : 0;
        struct timespec left = {.tv_sec = (time_t)(left_ns / 1000000000u), .tv_nsec = (long)(left_ns % 1000000000u)};
        mc_tcp_opener_poll(opener, fds);
        if (ppoll(fds, (nfds_t)opener->count, &left, NULL) <= 0) {
            if (now_ns >= until_ns) /* and it has been looked at once more, as it may be us who did not run */
                return MC_ERR_RPC_TIMEOUT;
            continue;
        }
        *lane = mc_tcp_opener_step(opener, fds);
        if (*lane != NULL)
            return 0;
        rc = opener->error;
    }
    return opener->error;
}

int mc_tcp_lane_open(struct mc_paths *paths, const struct mc_endpoint *endpoint, const struct mc_patience *patience,
                     struct mc_tcp_lane **lane)
{
    struct mc_tcp_address peers[MC_TCP_PEERS_MAX];
    struct mc_pace pace = {0};
    struct mc_tcp_opener opener = {.paths = paths, .endpoint = endpoint, .peers = peers, .pace = &pace};
    int rc = mc_tcp_resolve(endpoint->tcp_address, mc_tcp_open_until(patience), peers, MC_TCP_PEERS_MAX);
    if (rc < 0)
        return rc;
    opener.peer_count = (size_t)rc;
    rc = mc_tcp_opener_wait(&opener, mc_tcp_open_until(patience), lane);
    mc_tcp_opener_end(&opener);
    return rc;
}
