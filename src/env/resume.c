/* Tickets: keys of a server, and a ring of a caller's. */
#include "env/resume.h"

#include "env/file.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIGEST_BYTES 32u
#define KEY_BYTES 80u /* name, MAC and cipher, as OpenSSL wants them */
#define TICKETS 2u    /* of a whole handshake; one that is resumed gives one */
#define LABEL "mooncake tickets"

/* ---- until when ---- */

static time_t end_of(const struct mc_openssl *ssl, const struct x509_st *certificate)
{
    struct tm parts;
    memset(&parts, 0, sizeof(parts));
    if (ssl->time_to_tm(ssl->get_not_after(certificate), &parts) != 1)
        return 0;
    return timegm(&parts);
}

time_t mc_resume_until(const struct mc_openssl *ssl, const struct ssl_st *connection)
{
    time_t until = time(NULL) + MC_RESUME_S;
    const struct stack_st *chain = ssl->get_verified_chain(connection); /* NULL: callers are asked for nothing */
    int count = chain == NULL ? 0 : ssl->stack_count(chain);
    for (int i = 0; i < count; i++) {
        time_t end = end_of(ssl, ssl->stack_get(chain, i));
        until = end < until ? end : until;
    }
    return until;
}

/* ---- a server ---- */

/* Each ticket carries it. The renewed one of a connection that was resumed has the first one's. */
static int put_until(struct ssl_st *connection, void *context)
{
    const struct mc_openssl *ssl = context;
    struct ssl_session_st *session = ssl->get_session(connection);
    void *had = NULL;
    size_t length = 0;
    if (ssl->session_get_data(session, &had, &length) == 1 && length == sizeof(time_t))
        return 1;
    time_t until = mc_resume_until(ssl, connection);
    return ssl->session_set_data(session, &until, sizeof(until));
}

static int look_at_until(struct ssl_st *connection, struct ssl_session_st *session, const unsigned char *name,
                         size_t name_length, int status, void *context)
{
    const struct mc_openssl *ssl = context;
    void *had = NULL;
    size_t length = 0;
    time_t until = 0;
    (void)connection, (void)name, (void)name_length;
    if (status != MC_OPENSSL_TICKET_GOOD && status != MC_OPENSSL_TICKET_GOOD_RENEW)
        return MC_OPENSSL_TICKET_IGNORE;
    if (ssl->session_get_data(session, &had, &length) == 1 && length == sizeof(until))
        memcpy(&until, had, sizeof(until));
    return until > time(NULL) ? MC_OPENSSL_TICKET_USE : MC_OPENSSL_TICKET_IGNORE;
}

/* digest = HMAC(digest, the file). A file that is none ("") counts as empty. */
static bool mix_file(const struct mc_openssl *ssl, unsigned char digest[DIGEST_BYTES], const char *path)
{
    char error[256];
    size_t length = 0;
    unsigned char mixed[DIGEST_BYTES];
    char *text = path[0] == 0 ? calloc(1, 1) : mc_file_read(NULL, path, &length, error, sizeof(error));
    bool is_done = text != NULL && ssl->hmac(ssl->sha256(), digest, (int)DIGEST_BYTES, (const unsigned char *)text,
                                             length, mixed, NULL) != NULL;
    if (is_done)
        memcpy(digest, mixed, DIGEST_BYTES);
    if (text != NULL)
        explicit_bzero(text, length);
    free(text);
    return is_done;
}

static bool make_keys(const struct mc_openssl *ssl, const char *const files[3], unsigned char keys[KEY_BYTES])
{
    unsigned char secret[DIGEST_BYTES] = LABEL, all[3 * DIGEST_BYTES];
    bool is_done = true;
    for (unsigned i = 0; i < 3 && is_done; i++)
        is_done = mix_file(ssl, secret, files[i]);
    for (unsigned char i = 0; i < 3 && is_done; i++)
        is_done = ssl->hmac(ssl->sha256(), secret, (int)DIGEST_BYTES, &i, 1, all + i * DIGEST_BYTES, NULL) != NULL;
    memcpy(keys, all, KEY_BYTES);
    explicit_bzero(secret, sizeof(secret));
    explicit_bzero(all, sizeof(all));
    return is_done;
}

void mc_resume_serve(const struct mc_openssl *ssl, struct ssl_ctx_st *ctx, const char *authority,
                     const char *certificate, const char *key)
{
    const char *const files[] = {key, certificate, authority};
    unsigned char keys[KEY_BYTES];
    if (make_keys(ssl, files, keys)) /* without: keys of OpenSSL's own, drawn for this context */
        (void)ssl->ctx_ctrl(ctx, MC_OPENSSL_CTRL_TICKET_KEYS, KEY_BYTES, keys);
    explicit_bzero(keys, sizeof(keys));
    ssl->error_clear();
    (void)ssl->ctx_set_session_context(ctx, (const unsigned char *)LABEL, sizeof(LABEL) - 1);
    (void)ssl->ctx_set_timeout(ctx, MC_RESUME_S);
    bool is_set = ssl->ctx_set_ticket_functions(ctx, put_until, look_at_until, (void *)(uintptr_t)ssl) == 1;
    (void)ssl->ctx_set_tickets(ctx, is_set ? TICKETS : 0);
}

/* ---- a caller ---- */

struct kept {
    struct ssl_session_st *session; /* NULL: the place is free */
    char *name, *address;
    time_t until;
};

struct mc_resume {
    struct kept places[MC_RESUME_KEPT_MAX];
    unsigned next; /* the place of the oldest one */
};

void mc_resume_call(const struct mc_openssl *ssl, struct ssl_ctx_st *ctx,
                    int (*has_come)(struct ssl_st *connection, struct ssl_session_st *session))
{
    (void)ssl->ctx_ctrl(ctx, MC_OPENSSL_CTRL_SESSION_CACHE, MC_OPENSSL_SESSIONS_ARE_TOLD, NULL);
    ssl->ctx_set_new_session_function(ctx, has_come);
}

static void empty(const struct mc_openssl *ssl, struct kept *place)
{
    if (place->session != NULL)
        ssl->free_session(place->session);
    free(place->name);
    free(place->address);
    *place = (struct kept){.session = NULL};
}

void mc_resume_free(const struct mc_openssl *ssl, struct mc_resume *resume)
{
    for (unsigned i = 0; resume != NULL && i < MC_RESUME_KEPT_MAX; i++)
        empty(ssl, &resume->places[i]);
    free(resume);
}

void mc_resume_keep(const struct mc_openssl *ssl, struct mc_resume **resume, struct ssl_session_st *session,
                    const char *name, const char *address, time_t until)
{
    struct kept kept = {session, strdup(name), strdup(address), until};
    if (*resume == NULL)
        *resume = calloc(1, sizeof(**resume));
    if (*resume == NULL || kept.name == NULL || kept.address == NULL) {
        empty(ssl, &kept);
        return;
    }
    struct kept *place = &(*resume)->places[(*resume)->next++ % MC_RESUME_KEPT_MAX];
    empty(ssl, place);
    *place = kept;
}

struct ssl_session_st *mc_resume_take(const struct mc_openssl *ssl, struct mc_resume *resume, const char *name,
                                      const char *address, time_t *until)
{
    struct kept *found = NULL;
    bool is_near = false;
    for (unsigned i = 1; resume != NULL && !is_near && i <= MC_RESUME_KEPT_MAX; i++) { /* the newest first */
        struct kept *at = &resume->places[(resume->next - i) % MC_RESUME_KEPT_MAX];
        if (at->session != NULL && at->until <= time(NULL)) {
            empty(ssl, at);
            continue;
        }
        if (at->session == NULL || strcmp(at->name, name) != 0)
            continue;
        is_near = strcmp(at->address, address) == 0;
        found = is_near || found == NULL ? at : found;
    }
    if (found == NULL)
        return NULL;
    struct ssl_session_st *session = found->session;
    *until = found->until;
    found->session = NULL; /* it is used once */
    empty(ssl, found);
    return session;
}
