/* TLS by OpenSSL, between two memories and a socket. */
#include "env/tls.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/log.h"
#include "env/openssl.h"
#include "env/socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

#define CONTEXTS_MAX 8u    /* sets of files in use in one process */
#define PIECE_BYTES 16384u /* at once from and to the socket; a record holds no more */

/* ---- contexts: what was read from one set of files ---- */

struct stamp {
    uint64_t device, inode, size;
    struct timespec changed;
};

static struct context {
    char authority[PATH_MAX], certificate[PATH_MAX], key[PATH_MAX];
    struct stamp stamps[3];
    struct ssl_ctx_st *ctx; /* NULL: this place is free */
} contexts[CONTEXTS_MAX];
static unsigned next_context;
static pthread_mutex_t contexts_lock = PTHREAD_MUTEX_INITIALIZER;

static const char *text_of(const char *text)
{
    return text == NULL ? "" : text;
}

static const char *key_of(const struct mc_tls_settings *settings)
{
    return text_of(settings->key)[0] != 0 ? settings->key : text_of(settings->certificate);
}

static struct stamp stamp_of(const char *path)
{
    struct stat found;
    if (path[0] == 0 || stat(path, &found) != 0)
        return (struct stamp){0};
    return (struct stamp){(uint64_t)found.st_dev, (uint64_t)found.st_ino, (uint64_t)found.st_size, found.st_mtim};
}

static void stamp_all(const struct mc_tls_settings *settings, struct stamp stamps[3])
{
    memset(stamps, 0, 3 * sizeof(*stamps)); /* with what lies between the members: they are compared as bytes */
    stamps[0] = stamp_of(text_of(settings->authority));
    stamps[1] = stamp_of(text_of(settings->certificate));
    stamps[2] = stamp_of(key_of(settings));
}

/* The machine must not be asked for a password, least of all at a terminal. */
static int no_password(char *buffer, int size, int is_writing, void *context)
{
    (void)buffer, (void)size, (void)is_writing, (void)context;
    return 0;
}

/* "MC_X=/a/file: cannot be used as ...: reason". */
static int bad_file(const struct mc_openssl *ssl, const char *setting, const char *path, const char *what, char *error,
                    size_t error_size)
{
    const char *reason = NULL;
    FILE *file = fopen(path, "re");
    if (file == NULL)
        reason = strerror(errno);
    else
        fclose(file);
    if (reason == NULL)
        reason = ssl->error_reason(ssl->error_next());
    snprintf(error, error_size, "%s%s%.300s: no %s in PEM can be read there: %s", text_of(setting),
             setting == NULL ? "" : "=", path, what, reason == NULL ? "it holds none" : reason);
    ssl->error_clear();
    return MC_ERR_INVALID_PARAMS;
}

static int load_files(const struct mc_openssl *ssl, const struct mc_tls_settings *settings, struct ssl_ctx_st *ctx,
                      char *error, size_t error_size)
{
    const char *authority = text_of(settings->authority), *certificate = text_of(settings->certificate),
               *key = key_of(settings);
    if (authority[0] != 0 ? ssl->ctx_trust_file(ctx, authority, NULL) != 1 : ssl->ctx_trust_machine(ctx) != 1)
        return bad_file(ssl, settings->authority_is, authority, "certificate of an authority", error, error_size);
    if (certificate[0] == 0 && key[0] == 0)
        return 0;
    if (certificate[0] == 0) {
        snprintf(error, error_size, "%s is set, and the certificate for that key is not: set %s",
                 text_of(settings->key_is), text_of(settings->certificate_is));
        return MC_ERR_INVALID_PARAMS;
    }
    if (ssl->ctx_use_chain(ctx, certificate) != 1)
        return bad_file(ssl, settings->certificate_is, certificate, "certificate", error, error_size);
    if (ssl->ctx_use_key(ctx, key, MC_OPENSSL_PEM) != 1) /* also when it is of another certificate */
        return bad_file(ssl, settings->key_is, key, "key without a password, of that certificate,", error, error_size);
    return 0;
}

static struct ssl_ctx_st *load(const struct mc_openssl *ssl, const struct mc_tls_settings *settings, char *error,
                               size_t error_size)
{
    ssl->error_clear();
    struct ssl_ctx_st *ctx = ssl->ctx_new(ssl->client_method());
    if (ctx == NULL) {
        snprintf(error, error_size, "OpenSSL has no memory");
        return NULL;
    }
    (void)ssl->ctx_ctrl(ctx, MC_OPENSSL_CTRL_LEAST_VERSION, MC_OPENSSL_TLS_1_2, NULL);
    (void)ssl->ctx_ctrl(ctx, MC_OPENSSL_CTRL_MODE, MC_OPENSSL_MODE_MOVING_WRITE, NULL);
    (void)ssl->ctx_set_options(ctx, MC_OPENSSL_NO_RENEGOTIATION);
    ssl->ctx_set_verify(ctx, MC_OPENSSL_VERIFY_PEER, NULL);
    ssl->ctx_set_password_function(ctx, no_password);
    if (load_files(ssl, settings, ctx, error, error_size) == 0)
        return ctx;
    ssl->ctx_free(ctx);
    return NULL;
}

static bool is_of(const struct context *context, const struct mc_tls_settings *settings)
{
    return context->ctx != NULL && strcmp(context->authority, text_of(settings->authority)) == 0 &&
           strcmp(context->certificate, text_of(settings->certificate)) == 0 &&
           strcmp(context->key, key_of(settings)) == 0;
}

/* The lock is held. */
static struct context *place_for(const struct mc_openssl *ssl, const struct mc_tls_settings *settings)
{
    for (size_t i = 0; i < CONTEXTS_MAX; i++)
        if (is_of(&contexts[i], settings))
            return &contexts[i];
    struct context *place = &contexts[next_context++ % CONTEXTS_MAX];
    if (place->ctx != NULL)
        ssl->ctx_free(place->ctx); /* connections that use it hold it */
    *place = (struct context){.ctx = NULL};
    return place;
}

/* The context of those files as they are now. The lock is held. */
static struct ssl_ctx_st *context_of(const struct mc_openssl *ssl, const struct mc_tls_settings *settings, char *error,
                                     size_t error_size)
{
    struct stamp stamps[3];
    if (strlen(text_of(settings->authority)) >= PATH_MAX || strlen(text_of(settings->certificate)) >= PATH_MAX ||
        strlen(key_of(settings)) >= PATH_MAX) {
        snprintf(error, error_size, "the name of a file for TLS is longer than %d bytes", PATH_MAX - 1);
        return NULL;
    }
    struct context *place = place_for(ssl, settings);
    stamp_all(settings, stamps); /* before they are read: what changes meanwhile is read again */
    if (place->ctx != NULL && memcmp(stamps, place->stamps, sizeof(stamps)) == 0)
        return place->ctx;
    struct ssl_ctx_st *ctx = load(ssl, settings, error, error_size);
    if (ctx == NULL && place->ctx != NULL)
        mc_log_limited(WARNING, "%s; what was read there before is used", error);
    if (ctx == NULL)
        return place->ctx;
    if (place->ctx != NULL)
        ssl->ctx_free(place->ctx);
    snprintf(place->authority, PATH_MAX, "%s", text_of(settings->authority));
    snprintf(place->certificate, PATH_MAX, "%s", text_of(settings->certificate));
    snprintf(place->key, PATH_MAX, "%s", key_of(settings));
    memcpy(place->stamps, stamps, sizeof(stamps));
    return place->ctx = ctx;
}

int mc_tls_check(const struct mc_tls_settings *settings, char *error, size_t error_size)
{
    const struct mc_openssl *ssl = mc_openssl_open(error, error_size);
    if (ssl == NULL)
        return MC_ERR_INVALID_PARAMS;
    pthread_mutex_lock(&contexts_lock);
    bool is_good = context_of(ssl, settings, error, error_size) != NULL;
    pthread_mutex_unlock(&contexts_lock);
    return is_good ? 0 : MC_ERR_INVALID_PARAMS;
}

/* ---- a connection ---- */

struct mc_tls {
    const struct mc_openssl *ssl;
    struct ssl_st *connection;
    struct bio_st *in, *out; /* owned by the connection */
    int fd;
    bool is_done, has_ended; /* the handshake; the peer's bytes */
    bool has_certificate;    /* to show */
    char address[MC_ADDRESS_MAX], name[MC_ADDRESS_MAX];
    char authority[300], certificate_is[64], key_is[64], authority_is[64], name_is[64]; /* for what is said */
    char problem[MC_TLS_PROBLEM_MAX];
};

/* Who it must be: an address is looked for among the addresses that the certificate names, a name among the names. */
static bool demand_name(struct mc_tls *tls)
{
    const struct mc_openssl *ssl = tls->ssl;
    unsigned char raw[sizeof(struct in6_addr)];
    struct X509_VERIFY_PARAM_st *param = ssl->get_param(tls->connection);
    ssl->param_set_host_flags(param, MC_OPENSSL_NO_PARTIAL_WILDCARDS | MC_OPENSSL_NEVER_THE_SUBJECT);
    if (inet_pton(AF_INET, tls->name, raw) == 1 || inet_pton(AF_INET6, tls->name, raw) == 1)
        return ssl->param_set_ip(param, tls->name) == 1;
    return ssl->set_host(tls->connection, tls->name) == 1 &&
           ssl->ctrl(tls->connection, MC_OPENSSL_CTRL_SERVER_NAME, 0, tls->name) == 1;
}

static bool attach(struct mc_tls *tls, struct ssl_ctx_st *ctx)
{
    const struct mc_openssl *ssl = tls->ssl;
    tls->connection = ssl->new_connection(ctx);
    tls->in = ssl->bio_new(ssl->bio_memory());
    tls->out = ssl->bio_new(ssl->bio_memory());
    if (tls->connection == NULL || tls->in == NULL || tls->out == NULL) {
        (void)ssl->bio_free(tls->in);
        (void)ssl->bio_free(tls->out);
        return false;
    }
    ssl->set_bio(tls->connection, tls->in, tls->out);
    ssl->set_connect_state(tls->connection);
    return demand_name(tls);
}

static void note_settings(struct mc_tls *tls, const struct mc_tls_settings *settings)
{
    tls->has_certificate = text_of(settings->certificate)[0] != 0;
    snprintf(tls->authority, sizeof(tls->authority), "%s", text_of(settings->authority));
    snprintf(tls->authority_is, sizeof(tls->authority_is), "%s", text_of(settings->authority_is));
    snprintf(tls->certificate_is, sizeof(tls->certificate_is), "%s", text_of(settings->certificate_is));
    snprintf(tls->key_is, sizeof(tls->key_is), "%s", text_of(settings->key_is));
    snprintf(tls->name_is, sizeof(tls->name_is), "%s", text_of(settings->name_is));
}

int mc_tls_begin(const struct mc_tls_settings *settings, const char *address, int fd, struct mc_tls **out, char *error,
                 size_t error_size)
{
    uint16_t port = 0;
    *out = NULL;
    const struct mc_openssl *ssl = mc_openssl_open(error, error_size);
    if (ssl == NULL)
        return MC_ERR_INVALID_PARAMS;
    struct mc_tls *tls = calloc(1, sizeof(*tls));
    if (tls == NULL)
        return MC_ERR_NO_MEMORY;
    tls->ssl = ssl;
    tls->fd = fd;
    snprintf(tls->address, sizeof(tls->address), "%s", address);
    note_settings(tls, settings);
    int rc = 0;
    if (text_of(settings->name)[0] != 0)
        snprintf(tls->name, sizeof(tls->name), "%s", settings->name);
    else
        rc = mc_address_split(address, tls->name, sizeof(tls->name), &port);
    pthread_mutex_lock(&contexts_lock);
    struct ssl_ctx_st *ctx = rc < 0 ? NULL : context_of(ssl, settings, error, error_size);
    bool is_attached = ctx != NULL && attach(tls, ctx);
    pthread_mutex_unlock(&contexts_lock);
    if (!is_attached) {
        if (rc < 0 || ctx != NULL)
            snprintf(error, error_size, "no TLS with %.200s: '%.200s' is no name that a certificate can hold", address,
                     tls->name);
        mc_tls_end(tls);
        return MC_ERR_INVALID_PARAMS;
    }
    *out = tls;
    return 0;
}

const char *mc_tls_problem(const struct mc_tls *tls)
{
    return tls->problem;
}

/* ---- what went wrong ---- */

static void say_not_verified(struct mc_tls *tls)
{
    char date[32] = "?";
    struct timespec now;
    struct tm parts;
    long result = tls->ssl->get_verify_result(tls->connection);
    const char *authority = tls->authority[0] == 0 ? "this machine" : tls->authority;
    clock_gettime(CLOCK_REALTIME, &now);
    if (gmtime_r(&now.tv_sec, &parts) != NULL)
        (void)strftime(date, sizeof(date), "%Y-%m-%d %H:%M", &parts);
    switch (result) {
    case MC_OPENSSL_EXPIRED:
    case MC_OPENSSL_NOT_YET_VALID:
        snprintf(tls->problem, sizeof(tls->problem),
                 "the certificate of %s, or of who signed it, %s: renew it there (unless the clock of this machine is "
                 "wrong, which says %s UTC)",
                 tls->address, result == MC_OPENSSL_EXPIRED ? "has expired" : "is not valid yet", date);
        break;
    case MC_OPENSSL_OTHER_HOST:
    case MC_OPENSSL_OTHER_IP:
        snprintf(tls->problem, sizeof(tls->problem),
                 "the certificate of %s is not for '%s': connect by a name or address that it holds, or give it that "
                 "one (subjectAltName)%s%s",
                 tls->address, tls->name, tls->name_is[0] == 0 ? "" : ", or set ", tls->name_is);
        break;
    case MC_OPENSSL_NO_ISSUER:
    case MC_OPENSSL_SELF_SIGNED:
    case MC_OPENSSL_SELF_SIGNED_IN_CHAIN:
    case MC_OPENSSL_NO_ISSUER_HERE:
    case MC_OPENSSL_NOT_SIGNED:
        snprintf(tls->problem, sizeof(tls->problem),
                 "the certificate of %s is signed by nobody whom %s trusts (%s): set %s to the certificate of the "
                 "authority that signed it",
                 tls->address, authority, tls->ssl->verify_text(result),
                 tls->authority_is[0] == 0 ? "SSL_CERT_FILE" : tls->authority_is);
        break;
    default:
        snprintf(tls->problem, sizeof(tls->problem), "the certificate of %s is not good: %s", tls->address,
                 tls->ssl->verify_text(result));
    }
}

/* The first error is the cause. */
static void say(struct mc_tls *tls)
{
    unsigned long number = tls->ssl->error_next();
    unsigned reason = MC_OPENSSL_REASON(number);
    unsigned alert = reason > MC_OPENSSL_REASON_ALERT ? reason - MC_OPENSSL_REASON_ALERT : 0;
    const char *words = number == 0 ? NULL : tls->ssl->error_reason(number);
    if (reason == MC_OPENSSL_REASON_NOT_VERIFIED)
        say_not_verified(tls);
    else if (!tls->is_done && (reason == MC_OPENSSL_REASON_NOT_TLS || reason == MC_OPENSSL_REASON_TOO_LONG))
        snprintf(tls->problem, sizeof(tls->problem),
                 "%s does not speak TLS: turn it on there, or use http:// (and no https://)", tls->address);
    else if (reason == MC_OPENSSL_REASON_OLD_PROTOCOL || alert == MC_OPENSSL_ALERT_PROTOCOL_VERSION)
        snprintf(tls->problem, sizeof(tls->problem), "%s has no TLS 1.2 or later: upgrade it", tls->address);
    else if ((alert >= MC_OPENSSL_ALERT_BAD_CERTIFICATE && alert <= MC_OPENSSL_ALERT_ACCESS_DENIED) ||
             alert == MC_OPENSSL_ALERT_CERTIFICATE_REQUIRED ||
             (alert == MC_OPENSSL_ALERT_FAILURE && !tls->has_certificate)) /* so TLS 1.2 says that one is required */
        snprintf(
            tls->problem, sizeof(tls->problem),
            "%s refuses the certificate of this side, or that it has none (%s): set %s and %s to one that it trusts",
            tls->address, words == NULL ? "" : words,
            tls->certificate_is[0] == 0 ? "a certificate" : tls->certificate_is,
            tls->key_is[0] == 0 ? "its key" : tls->key_is);
    else
        snprintf(tls->problem, sizeof(tls->problem), "TLS with %s has failed: %s", tls->address,
                 words == NULL ? "no reason is known" : words);
    tls->ssl->error_clear();
}

static int ended_early(struct mc_tls *tls)
{
    if (!tls->is_done && tls->problem[0] == 0)
        snprintf(tls->problem, sizeof(tls->problem),
                 "%s ended the connection in the middle of the handshake: is TLS turned on at that port?",
                 tls->address);
    return MC_ERR_RPC_FAIL;
}

/* ---- between the socket and the memories ---- */

static int flush(struct mc_tls *tls, uint64_t deadline_ns)
{
    char piece[PIECE_BYTES];
    while (tls->ssl->bio_pending(tls->out) > 0) {
        int got = tls->ssl->bio_read(tls->out, piece, sizeof(piece));
        struct iovec part = {piece, got > 0 ? (size_t)got : 0};
        int rc = got <= 0 ? MC_ERR_RPC_FAIL : mc_socket_send(tls->fd, &part, 1, deadline_ns);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* Takes what has arrived. 1: something; 0: nothing; negative: the end. */
static int take_arrived(struct mc_tls *tls)
{
    char piece[PIECE_BYTES];
    ssize_t got;
    if (tls->has_ended)
        return MC_ERR_RPC_FAIL;
    do
        got = recv(tls->fd, piece, sizeof(piece), MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    if (got < 0 && errno == EAGAIN)
        return 0;
    if (got <= 0) {
        tls->has_ended = true;
        return MC_ERR_RPC_FAIL;
    }
    return tls->ssl->bio_write(tls->in, piece, (int)got) == (int)got ? 1 : MC_ERR_NO_MEMORY;
}

/* What OpenSSL's answer means. 1: it has done it; 0: more must arrive; negative: it is over. */
static int outcome_of(struct mc_tls *tls, int result)
{
    if (result > 0)
        return 1;
    int error = tls->ssl->get_error(tls->connection, result);
    if (error == MC_OPENSSL_ERROR_WANT_READ || error == MC_OPENSSL_ERROR_WANT_WRITE)
        return 0;
    if (error != MC_OPENSSL_ERROR_CLOSED)
        say(tls);
    return MC_ERR_RPC_FAIL;
}

int mc_tls_shake(struct mc_tls *tls, uint64_t deadline_ns)
{
    for (;;) {
        tls->ssl->error_clear();
        int done = outcome_of(tls, tls->ssl->do_handshake(tls->connection));
        int rc = flush(tls, deadline_ns); /* an alert, too */
        if (done == 1)
            tls->is_done = true;
        if (done != 0 || rc < 0)
            return done < 0 ? done : rc < 0 ? rc : done;
        rc = take_arrived(tls);
        if (rc <= 0)
            return rc < 0 ? ended_early(tls) : 0;
    }
}

int mc_tls_handshake(struct mc_tls *tls, uint64_t deadline_ns)
{
    int rc;
    while ((rc = mc_tls_shake(tls, deadline_ns)) == 0) {
        rc = mc_socket_wait_read(tls->fd, deadline_ns, NULL);
        if (rc < 0)
            return rc;
    }
    return rc == 1 ? 0 : rc;
}

int mc_tls_send(struct mc_tls *tls, const struct iovec *parts, size_t part_count, uint64_t deadline_ns)
{
    for (size_t i = 0; i < part_count; i++) {
        const char *at = parts[i].iov_base;
        for (size_t left = parts[i].iov_len; left > 0;) {
            int size = left < PIECE_BYTES ? (int)left : (int)PIECE_BYTES;
            tls->ssl->error_clear();
            int done = outcome_of(tls, tls->ssl->write(tls->connection, at, size));
            int rc = done == 1 ? flush(tls, deadline_ns) : MC_ERR_RPC_FAIL; /* a memory takes all */
            if (rc < 0)
                return rc;
            at += size;
            left -= (size_t)size;
        }
    }
    return 0;
}

int64_t mc_tls_receive(struct mc_tls *tls, void *data, size_t size, uint64_t deadline_ns)
{
    for (;;) {
        tls->ssl->error_clear();
        int got = tls->ssl->read(tls->connection, data, size < INT_MAX ? (int)size : INT_MAX);
        int done = outcome_of(tls, got);
        int rc = flush(tls, deadline_ns); /* keys that change, an alert */
        if (done != 0)
            return done < 0 ? done : got;
        if (rc == 0)
            rc = take_arrived(tls);
        if (rc == 0)
            rc = mc_socket_wait_read(tls->fd, deadline_ns, NULL);
        if (rc < 0)
            return rc;
    }
}

bool mc_tls_is_ready(struct mc_tls *tls)
{
    char byte;
    for (;;) {
        tls->ssl->error_clear();
        int done = outcome_of(tls, tls->ssl->peek(tls->connection, &byte, 1));
        if (done != 0)
            return true;
        int rc = take_arrived(tls);
        if (rc <= 0)
            return rc < 0;
    }
}

void mc_tls_end(struct mc_tls *tls)
{
    if (tls == NULL)
        return;
    if (tls->connection != NULL) {
        tls->ssl->error_clear();
        if (tls->is_done && !tls->has_ended && tls->problem[0] == 0) {
            (void)tls->ssl->end(tls->connection);
            (void)flush(tls, 0);
        }
        tls->ssl->free_connection(tls->connection);
        tls->ssl->error_clear();
    }
    free(tls);
}
