/* TLS by OpenSSL, which reads and writes by two functions of ours. */
#include "env/tls.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/log.h"
#include "env/openssl.h"
#include "env/resume.h"
#include "env/socket.h"
#include "env/tls_context.h"

#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define HANDSHAKE_RECORD 0x16 /* what TLS begins with */
#define RECORD_BYTES 16384u   /* a record holds no more */

int mc_tls_check(const struct mc_tls_settings *settings, char *error, size_t error_size)
{
    const struct mc_openssl *ssl = mc_openssl_open(error, error_size);
    if (ssl == NULL || mc_tls_context_hold(ssl, settings, error, error_size) == NULL)
        return MC_ERR_INVALID_PARAMS;
    mc_tls_context_release();
    return 0;
}

int mc_tls_certificate_until(const struct mc_tls_settings *settings, time_t *until, char *error, size_t error_size)
{
    const struct mc_openssl *ssl = mc_openssl_open(error, error_size);
    struct mc_tls_context *context = ssl == NULL ? NULL : mc_tls_context_hold(ssl, settings, error, error_size);
    struct tm parts;
    *until = 0;
    if (context == NULL)
        return MC_ERR_INVALID_PARAMS;
    const struct x509_st *certificate = ssl->ctx_get_certificate(context->ctx);
    if (certificate != NULL && ssl->time_to_tm(ssl->get_not_after(certificate), &parts) == 1)
        *until = timegm(&parts);
    mc_tls_context_release();
    return 0;
}

/* ---- a connection ---- */

struct mc_tls {
    const struct mc_openssl *ssl;
    struct ssl_st *connection;
    struct mc_tls_carrier carrier;
    int fd;                  /* of the carrier; -1: it has none */
    bool is_server, is_http; /* of a port of HTTP */
    bool is_done, has_ended; /* the handshake; the peer's bytes */
    bool is_broken;          /* nothing can be sent any more */
    bool has_finished;       /* the peer has said so */
    bool is_refused;         /* by a server, for what we showed */
    time_t until;            /* of a session that is to be resumed: see resume.h */
    bool has_certificate;    /* to show */
    bool is_strict;          /* TLS 1.3 and nothing before */
    bool has_heard;          /* anything */
    bool only_held;          /* nothing is taken from the carrier */
    bool hears_no_tls;       /* what came first is no TLS */
    int error;               /* of the carrier, by which it ended; 0: in order, or it has not */
    bool has_more;           /* another record follows at once: the kernel need not send a short packet before it */
    int unsent;              /* bytes of the caller that are in a record which has not gone out whole */
    char address[MC_ADDRESS_MAX], name[MC_ADDRESS_MAX];
    char authority[300], certificate_is[64], key_is[64], authority_is[64], name_is[64], peer_is[64],
        off[64]; /* words */
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

/* ---- between OpenSSL and the carrier ---- */

static ssize_t socket_take(void *context, void *data, size_t size)
{
    return recv(((struct mc_tls *)context)->fd, data, size, MSG_DONTWAIT);
}

static ssize_t socket_give(void *context, const void *data, size_t size)
{
    const struct mc_tls *tls = context;
    return send(tls->fd, data, size, MSG_DONTWAIT | MSG_NOSIGNAL | (tls->has_more ? MSG_MORE : 0));
}

/* An end is told as nothing yet: who asks OpenSSL looks at has_ended. */
static int bio_take(struct bio_st *bio, char *data, int size)
{
    struct mc_tls *tls = mc_openssl_open(NULL, 0)->bio_get_data(bio);
    ssize_t got;
    tls->ssl->bio_clear_flags(bio, MC_OPENSSL_BIO_FLAGS);
    if (tls->only_held) {
        tls->ssl->bio_set_flags(bio, MC_OPENSSL_BIO_READ_LATER);
        return -1;
    }
    do
        got = tls->has_ended ? 0 : tls->carrier.take(tls->carrier.context, data, (size_t)size);
    while (got < 0 && errno == EINTR);
    if (got > 0) {
        tls->hears_no_tls |= !tls->has_heard && data[0] != HANDSHAKE_RECORD;
        tls->has_heard = true;
        return (int)got;
    }
    if (got < 0 && errno != EAGAIN && !tls->has_ended)
        tls->error = errno;
    tls->has_ended |= got == 0 || errno != EAGAIN;
    tls->ssl->bio_set_flags(bio, MC_OPENSSL_BIO_READ_LATER);
    return -1;
}

static int bio_give(struct bio_st *bio, const char *data, int size)
{
    struct mc_tls *tls = mc_openssl_open(NULL, 0)->bio_get_data(bio);
    ssize_t gone;
    tls->ssl->bio_clear_flags(bio, MC_OPENSSL_BIO_FLAGS);
    do
        gone = tls->is_broken ? 0 : tls->carrier.give(tls->carrier.context, data, (size_t)size);
    while (gone < 0 && errno == EINTR);
    if (gone > 0)
        return (int)gone;
    if (gone < 0 && errno != EAGAIN && !tls->is_broken)
        tls->error = errno;
    tls->is_broken |= gone == 0 || errno != EAGAIN;
    tls->ssl->bio_set_flags(bio, MC_OPENSSL_BIO_WRITE_LATER);
    return -1;
}

static long bio_control(struct bio_st *bio, int command, long number, void *pointer)
{
    (void)bio, (void)number, (void)pointer;
    return command == MC_OPENSSL_BIO_FLUSH ? 1 : 0;
}

/* A context is held, so one at a time. NULL: no memory. */
static struct bio_st *bio_of(const struct mc_openssl *ssl, struct mc_tls *tls)
{
    static struct bio_method_st *method; /* for the life of the process */
    if (method == NULL && (method = ssl->bio_method_new(MC_OPENSSL_BIO_TYPE, "mooncake")) != NULL) {
        (void)ssl->bio_method_set_read(method, bio_take);
        (void)ssl->bio_method_set_write(method, bio_give);
        (void)ssl->bio_method_set_ctrl(method, bio_control);
    }
    struct bio_st *bio = method == NULL ? NULL : ssl->bio_new(method);
    if (bio == NULL)
        return NULL;
    ssl->bio_set_data(bio, tls);
    ssl->bio_set_init(bio, 1);
    return bio;
}

/* ---- tickets ---- */

static _Atomic uint64_t counts[2][2]; /* by who is called, and whether it was by a ticket */

struct mc_tls_counts mc_tls_counts(void)
{
    return (struct mc_tls_counts){counts[1][0] + counts[1][1], counts[1][1], counts[0][0] + counts[0][1], counts[0][1]};
}

/* What a server has sent, to be resumed by another connection. 1: it is ours. */
int mc_tls_on_ticket(struct ssl_st *connection, struct ssl_session_st *session)
{
    const struct mc_openssl *ssl = mc_openssl_open(NULL, 0);
    const struct mc_tls *tls = ssl->get_data(connection, 0);
    if (ssl->session_is_usable(session) != 1)
        return 0;
    time_t until = ssl->is_resumed(connection) ? tls->until : mc_resume_until(ssl, connection);
    struct mc_tls_context *context = mc_tls_context_hold_of(ssl->get_ctx(connection));
    if (context == NULL)
        return 0;
    mc_resume_keep(ssl, &context->resume, session, tls->name, tls->address, until);
    mc_tls_context_release();
    return 1;
}

static void resume(struct mc_tls *tls, struct mc_tls_context *context)
{
    struct ssl_session_st *session = mc_resume_take(tls->ssl, context->resume, tls->name, tls->address, &tls->until);
    if (session == NULL)
        return;
    (void)tls->ssl->set_session(tls->connection, session); /* without, it is a whole handshake */
    tls->ssl->free_session(session);
}

/* The context is held. */
static int attach(struct mc_tls *tls, struct mc_tls_context *context)
{
    const struct mc_openssl *ssl = tls->ssl;
    struct bio_st *bio = bio_of(ssl, tls);
    tls->connection = bio == NULL ? NULL : ssl->new_connection(context->ctx);
    if (tls->connection == NULL) {
        (void)ssl->bio_free(bio);
        return MC_ERR_NO_MEMORY;
    }
    ssl->set_bio(tls->connection, bio, bio); /* one for both, and owned by the connection */
    (void)ssl->set_data(tls->connection, 0, tls);
    if (tls->is_server)
        ssl->set_accept_state(tls->connection);
    else
        ssl->set_connect_state(tls->connection);
    if (tls->is_server)
        return 0;
    if (!demand_name(tls))
        return MC_ERR_INVALID_PARAMS;
    resume(tls, context);
    return 0;
}

static void note_settings(struct mc_tls *tls, const struct mc_tls_settings *settings)
{
    tls->is_server = settings->is_server;
    tls->is_http = settings->lets_unknown;
    tls->is_strict = settings->is_strict || settings->is_server;
    tls->has_certificate = mc_tls_text(settings->certificate)[0] != 0;
    snprintf(tls->authority, sizeof(tls->authority), "%s", mc_tls_text(settings->authority));
    snprintf(tls->authority_is, sizeof(tls->authority_is), "%s", mc_tls_text(settings->authority_is));
    snprintf(tls->certificate_is, sizeof(tls->certificate_is), "%s", mc_tls_text(settings->certificate_is));
    snprintf(tls->key_is, sizeof(tls->key_is), "%s", mc_tls_text(settings->key_is));
    snprintf(tls->name_is, sizeof(tls->name_is), "%s", mc_tls_text(settings->name_is));
    snprintf(tls->peer_is, sizeof(tls->peer_is), "%s", mc_tls_text(settings->peer_is));
    snprintf(tls->off, sizeof(tls->off), "%s", mc_tls_text(settings->off));
}

/* 0, or MC_ERR_INVALID_PARAMS with a line in error. */
static int find_name(struct mc_tls *tls, const struct mc_tls_settings *settings, char *error, size_t error_size)
{
    uint16_t port = 0;
    bool is_said = mc_tls_text(settings->name)[0] != 0;
    if (is_said)
        snprintf(tls->name, sizeof(tls->name), "%s", settings->name);
    else if (!tls->is_server && mc_address_split(tls->address, tls->name, sizeof(tls->name), &port) < 0) {
        snprintf(error, error_size, "no TLS with %.200s: that is no address", tls->address);
        return MC_ERR_INVALID_PARAMS;
    }
    return 0;
}

static int tls_make(const struct mc_tls_settings *settings, const char *address, struct mc_tls **out, char *error,
                    size_t error_size)
{
    *out = NULL;
    const struct mc_openssl *ssl = mc_openssl_open(error, error_size);
    if (ssl == NULL)
        return MC_ERR_INVALID_PARAMS;
    struct mc_tls *tls = calloc(1, sizeof(*tls));
    if (tls == NULL)
        return MC_ERR_NO_MEMORY;
    tls->ssl = ssl;
    snprintf(tls->address, sizeof(tls->address), "%s", address);
    note_settings(tls, settings);
    int rc = find_name(tls, settings, error, error_size);
    struct mc_tls_context *context = rc < 0 ? NULL : mc_tls_context_hold(ssl, settings, error, error_size);
    if (rc == 0)
        rc = context == NULL ? MC_ERR_INVALID_PARAMS : attach(tls, context);
    if (context != NULL)
        mc_tls_context_release();
    if (rc < 0) {
        if (context != NULL && rc == MC_ERR_INVALID_PARAMS)
            snprintf(error, error_size, "no TLS with %.200s: '%.200s' is no name that a certificate can hold", address,
                     tls->name);
        mc_tls_end(tls);
        return rc;
    }
    *out = tls;
    return 0;
}

int mc_tls_begin(const struct mc_tls_settings *settings, const char *address, int fd, struct mc_tls **out, char *error,
                 size_t error_size)
{
    int rc = tls_make(settings, address, out, error, error_size);
    if (rc < 0)
        return rc;
    (*out)->fd = fd;
    (*out)->carrier = (struct mc_tls_carrier){*out, socket_take, socket_give};
    return 0;
}

int mc_tls_begin_over(const struct mc_tls_settings *settings, const char *address, const struct mc_tls_carrier *carrier,
                      struct mc_tls **out, char *error, size_t error_size)
{
    int rc = tls_make(settings, address, out, error, error_size);
    if (rc < 0)
        return rc;
    (*out)->fd = -1;
    (*out)->carrier = *carrier;
    return 0;
}

const char *mc_tls_address(const struct mc_tls *tls)
{
    return tls->address;
}

int mc_tls_error(const struct mc_tls *tls)
{
    return tls->error != 0 ? tls->error : tls->has_ended ? ECONNRESET : EPROTO;
}

const char *mc_tls_problem(const struct mc_tls *tls)
{
    return tls->problem;
}

/* ---- what went wrong ---- */

static void date_of_today(char date[32])
{
    struct timespec now;
    struct tm parts;
    snprintf(date, 32, "?");
    clock_gettime(CLOCK_REALTIME, &now);
    if (gmtime_r(&now.tv_sec, &parts) != NULL)
        (void)strftime(date, 32, "%Y-%m-%d %H:%M", &parts);
}

/* A setting's name, or what it is when it has none. */
static const char *setting(const char *name, const char *other)
{
    return name[0] == 0 ? other : name;
}

static void say_not_verified(struct mc_tls *tls)
{
    char date[32];
    long result = tls->ssl->get_verify_result(tls->connection);
    const char *authority = tls->authority[0] == 0 ? "this machine" : tls->authority;
    date_of_today(date);
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
                 "the certificate of %s is signed by nobody whom %s trusts (%s): set %s%s to the certificate of the "
                 "authority that signed it",
                 tls->address, authority, tls->ssl->verify_text(result), tls->is_server ? "here " : "",
                 setting(tls->authority_is, "SSL_CERT_FILE"));
        break;
    default:
        snprintf(tls->problem, sizeof(tls->problem), "the certificate of %s is not good: %s", tls->address,
                 tls->ssl->verify_text(result));
    }
}

static bool is_of_certificates(unsigned alert)
{
    return (alert >= MC_OPENSSL_ALERT_BAD_CERTIFICATE && alert < MC_OPENSSL_ALERT_ACCESS_DENIED) ||
           alert == MC_OPENSSL_ALERT_CERTIFICATE_REQUIRED;
}

/* A caller is not let in: what is to be changed, here or there. */
static void say_of_caller(struct mc_tls *tls, unsigned reason, unsigned alert, const char *words)
{
    if (tls->hears_no_tls)
        snprintf(tls->problem, sizeof(tls->problem),
                 "%s speaks no TLS, and this port nothing else: turn TLS on there (%s)", tls->address,
                 setting(tls->peer_is, "https://"));
    else if (reason == MC_OPENSSL_REASON_NO_CERTIFICATE)
        snprintf(tls->problem, sizeof(tls->problem),
                 "%s shows no certificate, and this side asks for one (%s): set %s and %s there", tls->address,
                 setting(tls->authority_is, "its authority"), setting(tls->certificate_is, "a certificate"),
                 setting(tls->key_is, "its key"));
    else if (reason == MC_OPENSSL_REASON_OLD_PROTOCOL || alert == MC_OPENSSL_ALERT_PROTOCOL_VERSION)
        snprintf(tls->problem, sizeof(tls->problem), "%s has no TLS 1.3: upgrade it", tls->address);
    else if (is_of_certificates(alert))
        snprintf(tls->problem, sizeof(tls->problem),
                 "%s refuses the certificate of this side (%s): its own log says why; here %s is to be one that is "
                 "valid, for the name or address by which it is called, or there its authority is to be set (%s)",
                 tls->address, words == NULL ? "" : words, setting(tls->certificate_is, "the certificate"),
                 setting(tls->peer_is, "a setting of its own"));
    else
        snprintf(tls->problem, sizeof(tls->problem), "TLS with %s has failed: %s", tls->address,
                 words == NULL ? "no reason is known" : words);
}

static void say_of_server(struct mc_tls *tls, unsigned reason, unsigned alert, const char *words)
{
    if (!tls->is_done && (reason == MC_OPENSSL_REASON_NOT_TLS || reason == MC_OPENSSL_REASON_TOO_LONG))
        snprintf(tls->problem, sizeof(tls->problem), "%s does not speak TLS: turn it on there, or %s", tls->address,
                 setting(tls->off, "use http:// (and no https://)"));
    else if (reason == MC_OPENSSL_REASON_OLD_PROTOCOL || alert == MC_OPENSSL_ALERT_PROTOCOL_VERSION)
        snprintf(tls->problem, sizeof(tls->problem), "%s has no TLS %s: upgrade it", tls->address,
                 tls->is_strict ? "1.3" : "1.2 or later");
    else if (is_of_certificates(alert) || alert == MC_OPENSSL_ALERT_ACCESS_DENIED ||
             (alert == MC_OPENSSL_ALERT_FAILURE && !tls->has_certificate)) { /* so TLS 1.2 says that one is required */
        tls->is_refused = true;
        snprintf(
            tls->problem, sizeof(tls->problem),
            "%s refuses the certificate of this side, or that it has none (%s): set %s and %s to one that it trusts",
            tls->address, words == NULL ? "" : words, setting(tls->certificate_is, "a certificate"),
            setting(tls->key_is, "its key"));
    } else
        snprintf(tls->problem, sizeof(tls->problem), "TLS with %s has failed: %s", tls->address,
                 words == NULL ? "no reason is known" : words);
}

/* Who speaks no TLS is told in TLS all the same: an alert, by which ours know what to say (mc_tls_is_alert). A port of
 * HTTP says it as HTTP does. */
static void tell_no_tls(struct mc_tls *tls)
{
    static const char text[] = "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: 69\r\n"
                               "Connection: close\r\n\r\n"
                               "an HTTP request to an HTTPS server: write https:// before its address";
    static const uint8_t alert[] = {0x15, 0x03, 0x03, 0x00, 0x02, 0x02, MC_OPENSSL_ALERT_PROTOCOL_VERSION};
    /* It is let go, whether it hears that or not. */
    if (tls->is_http)
        (void)tls->carrier.give(tls->carrier.context, text, sizeof(text) - 1);
    else
        (void)tls->carrier.give(tls->carrier.context, alert, sizeof(alert));
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
    else if (tls->is_server)
        say_of_caller(tls, reason, alert, words);
    else
        say_of_server(tls, reason, alert, words);
    if (tls->is_server && tls->hears_no_tls && !tls->is_done)
        tell_no_tls(tls);
    tls->ssl->error_clear();
}

static int ended_early(struct mc_tls *tls)
{
    if (!tls->is_done && tls->problem[0] == 0 && !tls->is_server)
        snprintf(tls->problem, sizeof(tls->problem),
                 "%s ended the connection in the middle of the handshake: is TLS turned on at that port?",
                 tls->address);
    return MC_ERR_RPC_FAIL;
}

bool mc_tls_has_finished(const struct mc_tls *tls)
{
    return tls->has_finished;
}

bool mc_tls_is_refused(const struct mc_tls *tls)
{
    return tls->is_refused;
}

bool mc_tls_is_known(struct mc_tls *tls)
{
    int signature = 0;
    return tls->authority[0] == 0 ||
           tls->ssl->ctrl(tls->connection, MC_OPENSSL_CTRL_PEER_SIGNATURE, 0, &signature) == 1;
}

bool mc_tls_is_alert(const void *data, size_t length)
{
    return length >= 2 && memcmp(data, "\x15\x03", 2) == 0;
}

bool mc_tls_is_hello(const void *data, size_t length)
{
    return length >= 2 && memcmp(data, "\x16\x03", 2) == 0;
}

/* ---- moving bytes ---- */

enum { OUTCOME_DONE = 1, OUTCOME_TO_READ = 2, OUTCOME_TO_WRITE = 3 };

/* What OpenSSL's answer means: one of these, or negative: it is over. */
static int outcome_of(struct mc_tls *tls, int result)
{
    if (result > 0)
        return OUTCOME_DONE;
    int error = tls->ssl->get_error(tls->connection, result);
    if (error == MC_OPENSSL_ERROR_WANT_READ && !tls->has_ended)
        return OUTCOME_TO_READ;
    if (error == MC_OPENSSL_ERROR_WANT_WRITE && !tls->is_broken)
        return OUTCOME_TO_WRITE;
    tls->has_finished |= error == MC_OPENSSL_ERROR_CLOSED;
    if (error == MC_OPENSSL_ERROR_SSL)
        say(tls);
    return tls->is_done ? MC_ERR_RPC_FAIL : ended_early(tls);
}

/* Until the carrier's socket may go on. */
static int await(const struct mc_tls *tls, int outcome, uint64_t deadline_ns)
{
    return tls->fd < 0                   ? MC_ERR_RPC_TIMEOUT
           : outcome == OUTCOME_TO_WRITE ? mc_socket_wait_write(tls->fd, deadline_ns)
                                         : mc_socket_wait_read(tls->fd, deadline_ns, NULL);
}

/* As far as it goes. As outcome_of. */
static int go_on(struct mc_tls *tls)
{
    tls->ssl->error_clear();
    int outcome = outcome_of(tls, tls->ssl->do_handshake(tls->connection));
    if (outcome == OUTCOME_DONE && !tls->is_done && tls->is_strict && !tls->is_http)
        counts[tls->is_server][tls->ssl->is_resumed(tls->connection) == 1]++;
    tls->is_done |= outcome == OUTCOME_DONE;
    return outcome;
}

int mc_tls_shake(struct mc_tls *tls, uint64_t deadline_ns)
{
    for (;;) {
        int outcome = go_on(tls);
        if (outcome <= OUTCOME_DONE)
            return outcome;
        if (outcome == OUTCOME_TO_READ || tls->fd < 0)
            return 0;
        int rc = await(tls, outcome, deadline_ns);
        if (rc < 0)
            return rc;
    }
}

int mc_tls_handshake(struct mc_tls *tls, uint64_t deadline_ns)
{
    int rc;
    while ((rc = mc_tls_shake(tls, deadline_ns)) == 0) {
        rc = await(tls, OUTCOME_TO_READ, deadline_ns);
        if (rc < 0)
            return rc;
    }
    return rc == 1 ? 0 : rc;
}

/* A handshake that is not done goes on first. OUTCOME_DONE, or what outcome_of says. */
static int ensure_done(struct mc_tls *tls)
{
    return tls->is_done ? OUTCOME_DONE : go_on(tls);
}

/* One record, of bytes that lie in several parts. As outcome_of; *length: the caller's bytes in it. */
static int write_record(struct mc_tls *tls, const struct iovec *parts, size_t part_count, size_t skip, int *length)
{
    uint8_t gathered[RECORD_BYTES];
    const void *data = gathered;
    size_t used = 0;
    if (tls->unsent == 0 && parts[0].iov_len - skip >= RECORD_BYTES) {
        data = (const uint8_t *)parts[0].iov_base + skip;
        used = RECORD_BYTES;
    } else if (tls->unsent == 0) {
        for (size_t i = 0; i < part_count && used < RECORD_BYTES; i++, skip = 0) {
            size_t left = parts[i].iov_len - skip, take = left < RECORD_BYTES - used ? left : RECORD_BYTES - used;
            if (take > 0)
                memcpy(gathered + used, (const uint8_t *)parts[i].iov_base + skip, take);
            used += take;
        }
    }
    /* A record that has not gone out whole is made already: OpenSSL looks at nothing but its length. */
    *length = tls->unsent > 0 ? tls->unsent : (int)used;
    int outcome = outcome_of(tls, tls->ssl->write(tls->connection, data, *length));
    tls->unsent = outcome == OUTCOME_TO_WRITE ? *length : 0;
    return outcome;
}

/* Where in parts the byte `at` is. */
static void parts_skip(const struct iovec **parts, size_t *part_count, size_t *skip, size_t length)
{
    *skip += length;
    while (*part_count > 0 && *skip >= (*parts)->iov_len) {
        *skip -= (*parts)->iov_len;
        ++*parts;
        --*part_count;
    }
}

/* Is there more than one record's? */
static bool is_longer(const struct iovec *parts, size_t part_count, size_t skip)
{
    size_t length = 0;
    for (size_t i = 0; i < part_count && length <= RECORD_BYTES + skip; i++)
        length += parts[i].iov_len;
    return length > RECORD_BYTES + skip;
}

/* Writes what goes without waiting; *done: how much of it that is. OUTCOME_DONE: all of it, or as outcome_of. */
static int write_parts(struct mc_tls *tls, const struct iovec **parts, size_t *part_count, size_t *skip, size_t *done)
{
    int outcome = ensure_done(tls);
    parts_skip(parts, part_count, skip, 0);
    tls->ssl->error_clear(); /* once: what succeeds leaves no errors */
    while (outcome == OUTCOME_DONE && *part_count > 0) {
        int length;
        tls->has_more = tls->unsent == 0 && is_longer(*parts, *part_count, *skip);
        outcome = write_record(tls, *parts, *part_count, *skip, &length);
        if (outcome != OUTCOME_DONE)
            break;
        *done += (size_t)length;
        parts_skip(parts, part_count, skip, (size_t)length);
    }
    return outcome;
}

int64_t mc_tls_write(struct mc_tls *tls, const struct iovec *parts, size_t part_count)
{
    size_t skip = 0, done = 0;
    int outcome = write_parts(tls, &parts, &part_count, &skip, &done);
    return done > 0 || outcome > 0 ? (int64_t)done : outcome;
}

int mc_tls_send(struct mc_tls *tls, const struct iovec *parts, size_t part_count, uint64_t deadline_ns)
{
    size_t skip = 0, done = 0;
    for (;;) {
        int outcome = write_parts(tls, &parts, &part_count, &skip, &done);
        if (outcome <= OUTCOME_DONE)
            return outcome < 0 ? outcome : 0;
        int rc = await(tls, outcome, deadline_ns);
        if (rc < 0)
            return rc;
    }
}

/* What is there, as far as it fits. As outcome_of; *length: how much. */
static int read_all(struct mc_tls *tls, uint8_t *data, size_t size, size_t *length)
{
    int outcome = ensure_done(tls);
    tls->ssl->error_clear(); /* once: what succeeds leaves no errors */
    for (*length = 0; outcome == OUTCOME_DONE && *length < size;) {
        size_t left = size - *length;
        int got = tls->ssl->read(tls->connection, data + *length, left < INT_MAX ? (int)left : INT_MAX);
        outcome = outcome_of(tls, got);
        *length += got > 0 ? (size_t)got : 0;
    }
    return outcome;
}

int64_t mc_tls_read(struct mc_tls *tls, void *data, size_t size)
{
    size_t length;
    int outcome = read_all(tls, data, size, &length);
    return length > 0 || outcome > 0 ? (int64_t)length : outcome;
}

int64_t mc_tls_receive(struct mc_tls *tls, void *data, size_t size, uint64_t deadline_ns)
{
    for (;;) {
        size_t length;
        int outcome = read_all(tls, data, size, &length);
        if (length > 0 || outcome < 0)
            return length > 0 ? (int64_t)length : outcome;
        int rc = await(tls, outcome, deadline_ns);
        if (rc < 0)
            return rc;
    }
}

void mc_tls_hold(struct mc_tls *tls, bool only_held)
{
    tls->only_held = only_held;
}

bool mc_tls_holds(struct mc_tls *tls)
{
    return tls->ssl->has_pending(tls->connection) == 1;
}

bool mc_tls_is_ready(struct mc_tls *tls)
{
    char byte;
    tls->ssl->error_clear();
    int outcome = outcome_of(tls, tls->ssl->peek(tls->connection, &byte, 1));
    return outcome == OUTCOME_DONE || outcome < 0;
}

void mc_tls_finish(struct mc_tls *tls)
{
    tls->ssl->error_clear();
    if (tls->is_done && !tls->has_ended && !tls->is_broken && tls->unsent == 0 && tls->problem[0] == 0)
        (void)tls->ssl->end(tls->connection);
    tls->ssl->error_clear();
}

void mc_tls_end(struct mc_tls *tls)
{
    if (tls == NULL)
        return;
    if (tls->connection != NULL) {
        mc_tls_finish(tls);
        mc_tls_drop(tls);
        return;
    }
    free(tls);
}

void mc_tls_drop(struct mc_tls *tls)
{
    tls->is_broken = tls->has_ended = true; /* the carrier is not asked any more */
    /* That it ends so says nothing of its tickets: else OpenSSL would take them for bad ones. */
    tls->ssl->set_ends(tls->connection, MC_OPENSSL_ENDS_BOTH);
    tls->ssl->free_connection(tls->connection);
    tls->ssl->error_clear();
    free(tls);
}
