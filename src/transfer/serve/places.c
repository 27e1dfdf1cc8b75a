/* Who has how many connections to an engine, and which one makes room when all places are taken: the oldest of those
 * that have asked nothing and say nothing, else of the address that has most the one that has rested for longest, or
 * that is slow in the middle of something. Peers whose connection is closed while it rests come again. */
#include "transfer/serve/service_inside.h"

#include "env/clock.h"
#include "env/limits.h"
#include "env/socket.h"

#include <poll.h>

#define LOOKS 64u /* connections that are looked at for one that has to go */

/* ---- lines ---- */

static void line_leave(struct mc_service_connection *connection)
{
    struct mc_service_line *line = connection->line;
    if (line == NULL)
        return;
    *(connection->before == NULL ? &line->first : &connection->before->behind) = connection->behind;
    *(connection->behind == NULL ? &line->last : &connection->behind->before) = connection->before;
    connection->before = connection->behind = NULL;
    connection->line = NULL;
}

/* Behind all others there; NULL: in none. */
static void line_enter(struct mc_service_connection *connection, struct mc_service_line *line)
{
    line_leave(connection);
    if (line == NULL)
        return;
    connection->line = line;
    connection->before = line->last;
    *(line->last == NULL ? &line->first : &line->last->behind) = connection;
    line->last = connection;
}

void mc_places_enter(struct mc_service_connection *connection, uint32_t share)
{
    struct mc_service *service = connection->service;
    connection->share = share;
    service->shares[share]++;
    service->connection_count++;
    mc_tempo_begin(&connection->tempo, mc_clock_ms(), MC_SERVICE_GRACE_MS);
    line_enter(connection, connection->kind == MC_CONNECTION_HOST ? NULL : &service->strangers);
}

void mc_places_leave(struct mc_service_connection *connection)
{
    line_leave(connection);
    connection->service->shares[connection->share]--;
    connection->service->connection_count--;
}

void mc_places_asked(struct mc_service_connection *connection)
{
    if (connection->line == &connection->service->strangers)
        line_leave(connection);
}

void mc_places_turn(struct mc_service_connection *connection, bool rests)
{
    struct mc_service *service = connection->service;
    struct mc_service_line *idle = &service->idle[connection->share], *busy = &service->busy[connection->share];
    uint64_t now_ms = mc_clock_ms(), rested_ms = connection->line == idle ? now_ms - connection->idle_ms : 0;
    if (!connection->has_asked)
        return;
    if (rested_ms > MC_SERVICE_REST_MS) /* it might have gone meanwhile */
        mc_tempo_rest(&connection->tempo, rested_ms - MC_SERVICE_REST_MS, now_ms, MC_SERVICE_GRACE_MS);
    connection->idle_ms = now_ms;
    if (rests || connection->line != busy)
        line_enter(connection, rests ? idle : busy);
}

void mc_places_moved(struct mc_service_connection *connection, uint64_t bytes)
{
    mc_tempo_move(&connection->tempo, bytes, mc_clock_ms(), MC_SERVICE_GRACE_MS);
}

/* ---- who goes ---- */

static bool silent_stranger_goes(struct mc_service *service, uint32_t share)
{
    struct mc_service_connection *one = service->strangers.first;
    for (unsigned looks = 0; one != NULL && looks < LOOKS; one = one->behind, looks++) {
        if ((share != MC_SERVICE_SHARES && one->share != share) || !mc_socket_is_silent(one->fd))
            continue;
        mc_connection_abort(one);
        return true;
    }
    return false;
}

/* Of those of whose connections one could go. */
static uint32_t greediest(const struct mc_service *service)
{
    uint32_t most = 0, count = 0;
    for (uint32_t i = 0; i < MC_SERVICE_SHARES; i++) {
        bool has_any = service->idle[i].first != NULL || service->busy[i].first != NULL;
        if (has_any && service->shares[i] > count) {
            most = i;
            count = service->shares[i];
        }
    }
    return most;
}

static bool idle_goes(struct mc_service *service, uint32_t share)
{
    uint64_t now_ms = mc_clock_ms();
    struct mc_service_connection *one = service->idle[share].first;
    for (unsigned looks = 0; one != NULL && looks < LOOKS; one = one->behind, looks++) {
        if (now_ms - one->idle_ms < MC_SERVICE_REST_MS)
            break; /* and so have all behind it */
        if (!mc_socket_is_silent(one->fd))
            continue;
        mc_connection_drop(one);
        return true;
    }
    return false;
}

/* Is it the peer that something waits for? */
static bool is_waited_for(const struct mc_service_connection *connection)
{
    struct pollfd room = {.fd = connection->fd, .events = POLLOUT};
    return connection->data->count > 0 ? poll(&room, 1, 0) == 0 : mc_socket_is_silent(connection->fd);
}

/* Those that were looked at are behind the others then, so all have their turn. */
static bool slow_goes(struct mc_service *service, uint32_t share)
{
    uint64_t now_ms = mc_clock_ms();
    struct mc_service_line *busy = &service->busy[share];
    struct mc_service_connection *last = busy->last, *one;
    for (unsigned looks = 0; (one = busy->first) != NULL && looks < LOOKS; looks++) {
        if (mc_tempo_is_slow(&one->tempo, now_ms) && is_waited_for(one)) {
            mc_connection_abort(one);
            return true;
        }
        line_enter(one, busy);
        if (one == last)
            break;
    }
    return false;
}

/* Of that counter, or (MC_SERVICE_SHARES) of any, for one of another counter; MC_SERVICE_SHARES: not known which. */
static bool make_room(struct mc_service *service, uint32_t share, uint32_t newcomer)
{
    if (silent_stranger_goes(service, share))
        return true;
    uint32_t from = share == MC_SERVICE_SHARES ? greediest(service) : share;
    bool is_known = newcomer != MC_SERVICE_SHARES, is_own = is_known && from == newcomer;
    bool is_greedier = is_known && service->shares[from] > service->shares[newcomer] + 1u;
    return idle_goes(service, from) || ((is_greedier || is_own) && slow_goes(service, from));
}

bool mc_places_make_room(struct mc_service *service)
{
    return make_room(service, MC_SERVICE_SHARES, MC_SERVICE_SHARES);
}

bool mc_places_has_one(struct mc_service *service, uint32_t share)
{
    uint64_t parts = mc_file_limit() / 4 * 3;
    uint32_t most = parts < MC_SERVICE_CONNECTIONS_MAX ? (uint32_t)parts : MC_SERVICE_CONNECTIONS_MAX;
    uint32_t of_one = most - most / MC_SERVICE_SHARE_PARTS;
    return (service->shares[share] < of_one || make_room(service, share, share)) &&
           (service->connection_count < most || make_room(service, MC_SERVICE_SHARES, share));
}
