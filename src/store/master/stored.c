/* What peers have sent that was not taken yet.
 *
 * What waits for its peer, for the rest of a frame or to take answers before more is made, is a part: it costs its
 * sender nothing but patience, so all parts together have a limit, and the connection goes whose part stands longest.
 * Parts are in a list by when they began, so that whose turn it is to go is known at once, however many there are. What
 * waits for us goes soon: while there is much of it, no more is read. */
#include "store/master/connections.h"

#include "base/error.h"
#include "env/log.h"
#include "env/socket.h"

static void part_add(struct connection *connection)
{
    struct mc_server *server = connection->server;
    connection->before = server->parts.newest;
    if (connection->before != NULL)
        connection->before->behind = connection;
    else
        server->parts.oldest = connection;
    server->parts.newest = connection;
    connection->is_part = true;
    connection->since_ms = server->now_ms;
}

static void part_remove(struct connection *connection)
{
    struct mc_server *server = connection->server;
    if (!connection->is_part)
        return;
    connection->is_part = false;
    server->parts.bytes -= connection->stored;
    if (connection->before != NULL)
        connection->before->behind = connection->behind;
    else
        server->parts.oldest = connection->behind;
    if (connection->behind != NULL)
        connection->behind->before = connection->before;
    else
        server->parts.newest = connection->before;
    connection->before = connection->behind = NULL;
}

void mc_stored_drop(struct connection *connection)
{
    part_remove(connection);
    connection->server->stored -= connection->stored;
    connection->stored = 0;
    connection->has_frames = false;
    mc_buffer_free(&connection->in);
}

/* The oldest may have ended already, and wait for the end of the turn. */
static void parts_limit(struct mc_server *server)
{
    char address[MC_ADDRESS_MAX];
    while (server->parts.bytes > server->stored_max) {
        struct connection *oldest = server->parts.oldest;
        mc_assert(oldest != NULL); /* all the bytes are of those that stand in the list */
        mc_socket_peer_text(oldest->fd, address);
        if (!oldest->is_dead)
            mc_log_limited(WARNING,
                           "%s is let go: %u MiB of frames that are not whole wait here, and its has for longest",
                           address, (unsigned)(server->parts.bytes >> 20));
        mc_stored_drop(oldest);
        mc_connection_die(oldest);
    }
}

void mc_stored_count(struct connection *connection, bool has_begun)
{
    struct mc_server *server = connection->server;
    bool is_part = connection->in.length > 0 && !connection->is_ready;
    if (!is_part || has_begun)
        part_remove(connection);
    if (connection->is_part)
        server->parts.bytes -= connection->stored;
    server->stored += connection->in.length - connection->stored;
    connection->stored = connection->in.length;
    if (!is_part)
        return;
    if (!connection->is_part)
        part_add(connection);
    server->parts.bytes += connection->stored;
    parts_limit(server);
}

bool mc_stored_is_full(const struct mc_server *server)
{
    return server->stored - server->parts.bytes > server->stored_max;
}
