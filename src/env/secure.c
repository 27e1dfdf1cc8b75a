/* TLS of own connections, by their descriptors. */
#include "env/secure.h"

#include "base/error.h"
#include "base/variables.h"
#include "env/log.h"
#include "env/socket.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

mc_secure_entry *_Atomic mc_secure_table;
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- what the environment says ---- */

static bool is_set(const char *value)
{
    return value != NULL && value[0] != 0;
}

struct mc_tls_settings mc_secure_calls(void)
{
    return (struct mc_tls_settings){.authority = mc_variable(MC_TLS_CA_CERT),
                                    .certificate = mc_variable(MC_TLS_CERT),
                                    .key = mc_variable(MC_TLS_KEY),
                                    .name = mc_variable(MC_TLS_SERVER_NAME),
                                    .is_strict = true,
                                    .authority_is = "MC_TLS_CA_CERT",
                                    .certificate_is = "MC_TLS_CERT",
                                    .key_is = "MC_TLS_KEY",
                                    .name_is = "MC_TLS_SERVER_NAME",
                                    .off = "unset MC_TLS_CA_CERT and MC_TLS_CERT here"};
}

struct mc_tls_settings mc_secure_serves(void)
{
    return (struct mc_tls_settings){.authority = mc_variable(MC_TLS_CLIENT_CA_CERT),
                                    .certificate = mc_variable(MC_TLS_CERT),
                                    .key = mc_variable(MC_TLS_KEY),
                                    .is_server = true,
                                    .authority_is = "MC_TLS_CLIENT_CA_CERT",
                                    .certificate_is = "MC_TLS_CERT",
                                    .key_is = "MC_TLS_KEY",
                                    .peer_is = "MC_TLS_CA_CERT"};
}

struct mc_tls_settings mc_secure_serves_http(void)
{
    struct mc_tls_settings settings = mc_secure_serves();
    settings.lets_unknown = true;
    settings.peer_is = "https://";
    return settings;
}

bool mc_secure_is_called(void)
{
    return is_set(mc_variable(MC_TLS_CA_CERT)) || is_set(mc_variable(MC_TLS_CERT));
}

bool mc_secure_is_served(void)
{
    return is_set(mc_variable(MC_TLS_CERT));
}

int mc_secure_check(bool serves, char *error, size_t error_size)
{
    const struct mc_tls_settings calls = mc_secure_calls(), server = mc_secure_serves(), http = mc_secure_serves_http();
    bool is_on = mc_secure_is_called() || is_set(calls.key) || is_set(server.authority);
    if (!is_on)
        return 0;
    int rc = mc_tls_check(&calls, error, error_size);
    if (rc == 0 && serves)
        rc = mc_tls_check(&server, error, error_size);
    /* Of ports of HTTP, too, if there are any: the first one who asks there waits for no file. */
    return rc < 0 || !serves ? rc : mc_tls_check(&http, error, error_size);
}

/* ---- the table ---- */

/* The parent goes on with these connections: what is sent or read here would spoil them there. Their memory is left. */
static void on_forked(void)
{
    atomic_store_explicit(&mc_secure_table, NULL, memory_order_release);
}

static mc_secure_entry *table_get(void)
{
    static bool has_handler;
    pthread_mutex_lock(&table_lock);
    mc_secure_entry *table = atomic_load_explicit(&mc_secure_table, memory_order_acquire);
    if (table == NULL && (has_handler || pthread_atfork(NULL, NULL, on_forked) == 0)) {
        has_handler = true;
        table = calloc(MC_SECURE_FDS_MAX, sizeof(*table)); /* pages that nobody touches are not there */
        atomic_store_explicit(&mc_secure_table, table, memory_order_release);
    }
    pthread_mutex_unlock(&table_lock);
    return table;
}

void mc_secure_forget_entry(int fd)
{
    mc_secure_entry *table = atomic_load_explicit(&mc_secure_table, memory_order_acquire);
    struct mc_tls *tls = table == NULL ? NULL : atomic_exchange(&table[fd], NULL);
    if (tls != NULL)
        mc_tls_drop(tls); /* without a goodbye: our frames say where they end */
}

static int attach(const struct mc_tls_settings *settings, int fd, const char *address)
{
    char error[MC_TLS_PROBLEM_MAX];
    struct mc_tls *tls;
    mc_secure_entry *table = (unsigned)fd < MC_SECURE_FDS_MAX ? table_get() : NULL;
    if (table == NULL) {
        mc_log_limited(ERROR, "no TLS with %s: there is no memory, or too many files are open", address);
        return MC_ERR_NO_MEMORY;
    }
    mc_secure_forget(fd);
    int rc = mc_tls_begin(settings, address, fd, &tls, error, sizeof(error));
    if (rc < 0) {
        mc_log_limited(ERROR, "%s", rc == MC_ERR_NO_MEMORY ? "no memory for TLS" : error);
        return rc;
    }
    atomic_store(&table[fd], tls);
    return 0;
}

int mc_secure_call(int fd, const char *address)
{
    const struct mc_tls_settings settings = mc_secure_calls();
    return mc_secure_is_called() ? attach(&settings, fd, address) : 0;
}

int mc_secure_call_like(int fd, int other)
{
    const struct mc_tls *tls = mc_secure_of(other);
    return tls == NULL ? 0 : mc_secure_call(fd, mc_tls_address(tls));
}

/* By the socket itself: a connection that was reset has no address any more, and may hold bytes all the same. */
static bool is_unix(int fd)
{
    int domain = AF_UNSPEC;
    socklen_t size = sizeof(domain);
    return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain == AF_UNIX;
}

static int accepted(int fd, struct mc_tls_settings (*serves)(void))
{
    char address[MC_ADDRESS_MAX];
    if (!mc_secure_is_served() || is_unix(fd)) /* what stays within the machine needs none */
        return 0;
    const struct mc_tls_settings settings = serves();
    mc_socket_peer_text(fd, address);
    return attach(&settings, fd, address);
}

int mc_secure_accept(int fd)
{
    return accepted(fd, mc_secure_serves);
}

int mc_secure_accept_http(int fd)
{
    return accepted(fd, mc_secure_serves_http);
}

bool mc_secure_is_known(int fd)
{
    struct mc_tls *tls = mc_secure_of(fd);
    return tls == NULL || mc_tls_is_known(tls);
}

/* ---- what goes wrong ---- */

static void say(const struct mc_tls *tls)
{
    if (mc_tls_problem(tls)[0] != 0)
        mc_log_limited(WARNING, "%s", mc_tls_problem(tls));
}

void mc_secure_note(int fd, const void *data, size_t length, bool serves)
{
    char who[MC_ADDRESS_MAX];
    bool is_hello = serves && mc_tls_is_hello(data, length), is_alert = !serves && mc_tls_is_alert(data, length);
    if (mc_secure_of(fd) != NULL || (!is_hello && !is_alert))
        return;
    mc_socket_peer_text(fd, who);
    if (is_hello)
        mc_log_limited(WARNING,
                       "%s speaks TLS, and this port does not: set MC_TLS_CERT and MC_TLS_KEY here, or unset "
                       "MC_TLS_CA_CERT and MC_TLS_CERT there",
                       who);
    else
        mc_log_limited(WARNING,
                       "%s speaks TLS and nothing else: set MC_TLS_CA_CERT here to the certificate of the authority "
                       "that signed its own, or unset MC_TLS_CERT there",
                       who);
}

/* ---- a connection ---- */

int mc_secure_shake(int fd)
{
    struct mc_tls *tls = mc_secure_of(fd);
    int rc = tls == NULL ? 1 : mc_tls_shake(tls, 0);
    if (rc < 0)
        say(tls);
    return rc == MC_ERR_RPC_TIMEOUT ? MC_ERR_RPC_FAIL : rc; /* what begins a connection its socket takes at once */
}

int mc_secure_connect_by(const struct mc_tls_settings *settings, int fd, const char *address, uint64_t deadline_ns)
{
    int rc = attach(settings, fd, address);
    if (rc < 0)
        return rc;
    struct mc_tls *tls = mc_secure_of(fd);
    rc = mc_tls_handshake(tls, deadline_ns);
    if (rc < 0)
        say(tls);
    return rc;
}

int mc_secure_connect(int fd, const char *address, uint64_t deadline_ns)
{
    const struct mc_tls_settings settings = mc_secure_calls();
    return mc_secure_is_called() ? mc_secure_connect_by(&settings, fd, address, deadline_ns) : 0;
}

static ssize_t result_of(const struct mc_tls *tls, int64_t moved)
{
    if (moved > 0)
        return (ssize_t)moved;
    if (moved < 0)
        say(tls);
    errno = moved < 0 ? mc_tls_error(tls) : EAGAIN;
    return -1;
}

ssize_t mc_secure_recv(struct mc_tls *tls, const struct iovec *parts, size_t part_count)
{
    int64_t moved = 0;
    for (size_t i = 0; i < part_count; i++) {
        int64_t got = parts[i].iov_len == 0 ? 0 : mc_tls_read(tls, parts[i].iov_base, parts[i].iov_len);
        if (got < 0 && moved == 0)
            return result_of(tls, got);
        moved += got > 0 ? got : 0;
        if (got < (int64_t)parts[i].iov_len)
            break;
    }
    return result_of(tls, moved);
}

ssize_t mc_secure_send(struct mc_tls *tls, const struct iovec *parts, size_t part_count)
{
    return result_of(tls, mc_tls_write(tls, parts, part_count));
}
