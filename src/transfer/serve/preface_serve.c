/* Connections of who has not proved a key yet, where keys are wanted. */
#include "transfer/serve/service_inside.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/log.h"
#include "env/socket.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>

/* The word of refusal must arrive: a close with input unread would take it back. */
static void refuse(struct mc_service_connection *connection, const char *why)
{
    char where[MC_ADDRESS_MAX];
    mc_socket_peer_text(connection->fd, where);
    mc_log_limited(WARNING, "a peer at %s is refused: %s", where, why);
    (void)shutdown(connection->fd, SHUT_WR);
    connection->is_draining = true;
    connection->deadline_ms = mc_clock_ms() + MC_SERVICE_DRAIN_MS;
}

/* The kernel of a fresh connection has room for it. */
static bool send_challenge(const struct mc_service_connection *connection)
{
    const struct mc_preface_challenge *challenge = &connection->preface->challenge;
    return mc_socket_sends(connection->fd, challenge, sizeof(*challenge)) == (ssize_t)sizeof(*challenge);
}

static bool still_counts(struct mc_key_proved *proved)
{
    struct mc_key key;
    bool counts = mc_keys_find(mc_span_string(proved->id), &key) && mc_preface_is_of_ours(&key); /* ours may be new */
    explicit_bzero(key.secret, sizeof(key.secret));
    return counts && mc_key_holds(proved);
}

/* A process of this machine copies to and from our memory by itself, whatever is asked of it. */
static const unsigned both = MC_RIGHT_READ | MC_RIGHT_WRITE;

static void open_up(struct mc_service_connection *connection)
{
    enum mc_preface_port port = connection->preface->port;
    connection->rights = connection->preface->key.rights;
    if (!still_counts(&connection->preface->proved)) { /* it may have changed in the middle of the proof */
        refuse(connection, "its key is not what it was any more");
        return;
    }
    if (port == MC_PREFACE_HOST && (connection->rights & both) != both) {
        refuse(connection, "its key has not both rights, to read and to write, so it has to go by tcp");
        return;
    }
    connection->proved = malloc(sizeof(*connection->proved));
    if (connection->proved != NULL)
        *connection->proved = connection->preface->proved;
    free(connection->preface);
    connection->preface = NULL;
    if (connection->proved == NULL || !mc_connection_begin(connection, port == MC_PREFACE_HOST   ? MC_CONNECTION_HOST
                                                                       : port == MC_PREFACE_DATA ? MC_CONNECTION_DATA
                                                                                                 : MC_CONNECTION_RPC))
        mc_connection_drop(connection);
}

static void drain(struct mc_service_connection *connection)
{
    char thrown_away[4096];
    ssize_t received = recv(connection->fd, thrown_away, sizeof(thrown_away), MSG_DONTWAIT);
    if (received == 0 || (received < 0 && errno != EAGAIN && errno != EINTR))
        mc_connection_drop(connection);
}

/* Not a process of this machine: it may be in the middle of a copy, which we would know nothing of any more, and the
 * kernel lets it copy whatever we think of its key. */
void mc_preface_revoke(struct mc_service *service)
{
    unsigned version = mc_keys_version();
    if (service->keys_version == version)
        return;
    service->keys_version = version;
    for (struct mc_service_connection *one = service->connections, *next; one != NULL; one = next) {
        next = one->next;
        if (one->proved == NULL || one->kind == MC_CONNECTION_HOST || still_counts(one->proved))
            continue;
        mc_log_limited(WARNING, "a peer is let go: its key, %s, is not what it was any more", one->proved->id);
        mc_connection_drop(one);
    }
}

void mc_preface_serve(struct mc_service_connection *connection)
{
    uint8_t *at;
    if (connection->is_draining) {
        drain(connection);
        return;
    }
    size_t room = mc_preface_window(connection->preface, &at);
    ssize_t received = mc_socket_recv(connection->fd, at, room);
    if (received < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    int rc = received <= 0 ? MC_ERR_RPC_FAIL : mc_preface_received(connection->preface, (size_t)received);
    bool is_sent = connection->preface->challenge.magic == 0 || rc == 0 || rc == 2 || send_challenge(connection);
    if (!is_sent || rc == MC_ERR_RPC_FAIL)
        mc_connection_drop(connection);
    else if (rc < 0)
        refuse(connection, mc_preface_fault(connection->preface, rc));
    else if (rc == 2)
        open_up(connection);
}
