/* Connecting without holding up a loop. */
#include "store/owner/connector.h"

#include "env/clock.h"
#include "env/log.h"
#include "env/thread.h"
#include "store/owner/master_address.h"
#include "store/wire/proof.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct mc_connector { /* freed by the posted function, or by the thread when it was abandoned before it posted */
    pthread_mutex_t lock;
    struct mc_serve *serve;        /* NULL: abandoned */
    char near[MC_MASTER_UNIX_MAX]; /* "": none */
    char address[MC_MASTER_ADDRESS_MAX];
    uint32_t timeout_ms;
    int fd, error;
    void (*done)(void *context, int fd);
    void *context;
};

static void connector_free(struct mc_connector *connector)
{
    pthread_mutex_destroy(&connector->lock);
    free(connector);
}

static void on_result(void *argument)
{
    struct mc_connector *connector = argument;
    pthread_mutex_lock(&connector->lock); /* the thread that posted holds it until it is done with the connector */
    bool abandoned = connector->serve == NULL;
    int fd = connector->fd, error = connector->error;
    void (*done)(void *context, int fd) = connector->done;
    void *context = connector->context;
    pthread_mutex_unlock(&connector->lock);
    connector_free(connector);
    mc_socket_way_end(fd);
    errno = error;
    if (!abandoned)
        done(context, fd);
    else
        mc_fd_close(fd);
}

/* Takes fd; gives it back, on its way still, once both ends have proved the key. */
static int prove(const struct mc_connector *connector, int fd, uint64_t deadline_ns)
{
    char why[MC_PROOF_TEXT_MAX];
    mc_socket_way_begin(fd); /* a child that is forked meanwhile must not hold it */
    int rc = mc_prove_own(fd, deadline_ns, why);
    if (rc == 0)
        return fd;
    mc_socket_way_end(fd);
    mc_fd_close(fd);
    if (why[0] != 0)
        mc_log_limited(WARNING, "the master at %s and this node do not agree: %s: %s", connector->address,
                       mc_error_name(rc), why);
    errno = EPROTO; /* as when TLS does not stand */
    return rc;
}

static void *connector_run(void *argument)
{
    struct mc_connector *connector = argument;
    uint64_t now_ns = mc_clock_ns(), whole_ns = connector->timeout_ms * 1000000ull;
    int fd = connector->near[0] == 0 ? MC_ERR_RPC_FAIL : mc_unix_connect(connector->near, now_ns + whole_ns / 4);
    fd = fd < 0 ? fd : prove(connector, fd, now_ns + whole_ns / 4);
    if (fd < 0) { /* it has ended, or another has its name */
        errno = 0;
        fd = mc_master_connect(connector->address, now_ns + whole_ns, NULL);
        fd = fd < 0 ? fd : prove(connector, fd, now_ns + whole_ns);
    }
    int error = errno;
    pthread_mutex_lock(&connector->lock);
    bool abandoned = connector->serve == NULL;
    connector->fd = fd;
    connector->error = error;
    if (!abandoned)
        mc_serve_post(connector->serve, on_result, connector);
    pthread_mutex_unlock(&connector->lock);
    if (abandoned) {
        mc_socket_way_end(fd);
        mc_fd_close(fd);
        connector_free(connector);
    }
    return NULL;
}

struct mc_connector *mc_connector_start(struct mc_serve *serve, const char *near, const char *address,
                                        uint32_t timeout_ms, void (*done)(void *context, int fd), void *context)
{
    struct mc_connector *connector = malloc(sizeof(*connector));
    if (connector == NULL)
        return NULL;
    *connector =
        (struct mc_connector){.serve = serve, .timeout_ms = timeout_ms, .fd = -1, .done = done, .context = context};
    snprintf(connector->address, sizeof(connector->address), "%s", address);
    snprintf(connector->near, sizeof(connector->near), "%s", near == NULL ? "" : near);
    pthread_mutex_init(&connector->lock, NULL);
    if (mc_thread_start(NULL, "mc-connect", connector_run, connector) != 0) {
        connector_free(connector);
        return NULL;
    }
    return connector;
}

void mc_connector_abandon(struct mc_connector *connector)
{
    pthread_mutex_lock(&connector->lock);
    connector->serve = NULL;
    pthread_mutex_unlock(&connector->lock);
}
