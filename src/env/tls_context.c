/* What was read from sets of files for TLS, and reading it again. */
#include "env/tls_context.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/log.h"
#include "env/watch.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CONTEXTS_MAX 8u          /* sets of files in use in one process */
#define AHEAD_BYTES (4 * 16640u) /* received at once: four records; given back when all are read */
#define WORD_MAX 64              /* bytes of a setting's name, with its zero */
#define RETRY_NS 60000000000ull  /* what could not be read is tried again then, though it has not changed */
#define READERS_S 1              /* a fork, and the end of the process, wait for who reads, and no longer */

struct stamp {
    uint64_t device, inode, size;
    struct timespec written, changed;
};

struct files {
    char authority[PATH_MAX], certificate[PATH_MAX], key[PATH_MAX];
    char authority_is[WORD_MAX], certificate_is[WORD_MAX], key_is[WORD_MAX];
    bool is_server, is_strict, lets_unknown, trusts_machine;
};

static struct tls_place {
    struct mc_tls_context context; /* ctx NULL: this place is free */
    struct files files;
    struct stamp stamps[3]; /* when they were read, or could not be */
    uint64_t retry_ns;      /* UINT64_MAX: they could */
    uint64_t number;        /* of the set that lies here, never of another */
} places[CONTEXTS_MAX];
static uint64_t last_number;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of these; never held over a file */

/* Held for reading by who has OpenSSL read files. They were read once before, without it, so that who hangs for the
 * sake of their file system hangs there. Taken before the other lock. */
static pthread_rwlock_t reading = PTHREAD_RWLOCK_INITIALIZER;
static bool has_waited; /* until nobody was reading; guarded by the lock */
static atomic_bool is_ending;

/* ---- where they stand still ---- */

/* True: nobody reads, and nobody begins to. */
static bool readers_stop(void)
{
    uint64_t until_ns = mc_clock_ns() + READERS_S * UINT64_C(1000000000);
    while (pthread_rwlock_trywrlock(&reading) != 0) { /* a wait with a limit would be one by the wall clock */
        if (mc_clock_ns() >= until_ns)
            return false;
        (void)usleep(1000);
    }
    return true;
}

/* A child that is forked while another thread reads files has them whole, no lock that nobody gives back, and no half
 * of what OpenSSL was doing. Where a file system does not answer OpenSSL, though it did when the file was read before,
 * the child is made all the same: OpenSSL holds locks of its own for moments, and none over these files.
 * Whoever holds these two locks waits for no other of ours, so of all that are taken before a fork they must be the
 * last: those that are registered first are called last. */
static void before_fork(void)
{
    bool have_stopped = readers_stop();
    pthread_mutex_lock(&lock);
    has_waited = have_stopped;
}

static void after_fork_parent(void)
{
    bool have_stopped = has_waited;
    pthread_mutex_unlock(&lock);
    if (have_stopped)
        pthread_rwlock_unlock(&reading);
}

static void after_fork_child(void)
{
    pthread_rwlock_init(&reading, NULL); /* who reads is not here, and this thread is not who has locked it */
    pthread_mutex_unlock(&lock);
}

__attribute__((constructor)) static void fork_handlers_install(void)
{
    (void)pthread_atfork(before_fork, after_fork_parent, after_fork_child); /* fails for want of memory only */
}

/* The thread that looks at files is still there when OpenSSL gives its memory back. */
static void before_exit(void)
{
    atomic_store(&is_ending, true);
    if (readers_stop())
        pthread_rwlock_unlock(&reading);
}

/* Once OpenSSL has been used, so that this is called before what it has registered itself. */
static void exit_handler_install(void)
{
    (void)atexit(before_exit);
}

/* ---- files ---- */

static const char *key_of(const struct mc_tls_settings *settings)
{
    return mc_tls_text(settings->key)[0] != 0 ? settings->key : mc_tls_text(settings->certificate);
}

static struct stamp stamp_of(const char *path)
{
    struct stat found;
    if (path[0] == 0 || stat(path, &found) != 0)
        return (struct stamp){0};
    struct stamp stamp = {.device = (uint64_t)found.st_dev, .inode = (uint64_t)found.st_ino};
    if (!S_ISREG(found.st_mode)) /* can be read once only, and changes by that */
        return stamp;
    stamp.size = (uint64_t)found.st_size;
    stamp.written = found.st_mtim;
    stamp.changed = found.st_ctim; /* also when who may read it has changed */
    return stamp;
}

static void stamp_all(const struct mc_tls_settings *settings, struct stamp stamps[3])
{
    memset(stamps, 0, 3 * sizeof(*stamps)); /* with what lies between the members: they are compared as bytes */
    stamps[0] = stamp_of(mc_tls_text(settings->authority));
    stamps[1] = stamp_of(mc_tls_text(settings->certificate));
    stamps[2] = stamp_of(key_of(settings));
}

static void file_touch(const char *path)
{
    struct stat found;
    char thrown_away[4096];
    /* What is no file proper can be read once only. */
    int fd = stat(path, &found) == 0 && S_ISREG(found.st_mode) ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    while (fd >= 0 && read(fd, thrown_away, sizeof(thrown_away)) > 0)
        continue;
    explicit_bzero(thrown_away, sizeof(thrown_away)); /* it may be a key */
    if (fd >= 0)
        close(fd);
}

/* Reads them once: what OpenSSL reads after that lies in memory. */
static void files_touch(const struct mc_tls_settings *settings)
{
    file_touch(mc_tls_text(settings->authority));
    file_touch(mc_tls_text(settings->certificate));
    file_touch(key_of(settings));
}

/* ---- what OpenSSL makes of them ---- */

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
    snprintf(error, error_size, "%s%s%.300s: no %s in PEM can be read there: %s", mc_tls_text(setting),
             mc_tls_text(setting)[0] == 0 ? "" : "=", path, what, reason == NULL ? "it holds none" : reason);
    ssl->error_clear();
    return MC_ERR_INVALID_PARAMS;
}

static int load_files(const struct mc_openssl *ssl, const struct mc_tls_settings *settings, struct ssl_ctx_st *ctx,
                      char *error, size_t error_size)
{
    const char *authority = mc_tls_text(settings->authority), *certificate = mc_tls_text(settings->certificate),
               *key = key_of(settings);
    bool is_trusted = authority[0] == 0 || ssl->ctx_trust_file(ctx, authority, NULL) == 1;
    if (is_trusted && (authority[0] == 0 ? !settings->is_server : settings->trusts_machine))
        is_trusted = ssl->ctx_trust_machine(ctx) == 1;
    if (!is_trusted)
        return bad_file(ssl, settings->authority_is, authority, "certificate of an authority", error, error_size);
    if (certificate[0] == 0 && key[0] == 0 && !settings->is_server)
        return 0;
    if (certificate[0] == 0 && key[0] == 0) {
        snprintf(error, error_size, "who serves TLS needs a certificate and its key: set %s and %s",
                 mc_tls_text(settings->certificate_is), mc_tls_text(settings->key_is));
        return MC_ERR_INVALID_PARAMS;
    }
    if (certificate[0] == 0) {
        snprintf(error, error_size, "%s is set, and the certificate for that key is not: set %s",
                 mc_tls_text(settings->key_is), mc_tls_text(settings->certificate_is));
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
    struct ssl_ctx_st *ctx = ssl->ctx_new(settings->is_server ? ssl->server_method() : ssl->client_method());
    if (ctx == NULL) {
        snprintf(error, error_size, "OpenSSL has no memory");
        return NULL;
    }
    bool is_strict = settings->is_server || settings->is_strict;
    (void)ssl->ctx_ctrl(ctx, MC_OPENSSL_CTRL_LEAST_VERSION, is_strict ? MC_OPENSSL_TLS_1_3 : MC_OPENSSL_TLS_1_2, NULL);
    (void)ssl->ctx_ctrl(ctx, MC_OPENSSL_CTRL_MODE, MC_OPENSSL_MODE_MOVING_WRITE | MC_OPENSSL_MODE_RELEASE_BUFFERS,
                        NULL);
    (void)ssl->ctx_ctrl(ctx, MC_OPENSSL_CTRL_READ_AHEAD, 1, NULL);
    ssl->ctx_set_read_buffer(ctx, AHEAD_BYTES);
    (void)ssl->ctx_ctrl(ctx, MC_OPENSSL_CTRL_SESSION_CACHE, 0, NULL);
    (void)ssl->ctx_set_tickets(ctx, 0);
    (void)ssl->ctx_set_options(ctx, MC_OPENSSL_NO_RENEGOTIATION);
    if (!settings->is_server)
        ssl->ctx_set_verify(ctx, MC_OPENSSL_VERIFY_PEER, NULL);
    else if (mc_tls_text(settings->authority)[0] != 0)
        ssl->ctx_set_verify(
            ctx, settings->lets_unknown ? MC_OPENSSL_VERIFY_PEER : MC_OPENSSL_VERIFY_PEER | MC_OPENSSL_VERIFY_DEMAND,
            NULL);
    ssl->ctx_set_password_function(ctx, no_password);
    if (load_files(ssl, settings, ctx, error, error_size) < 0) {
        ssl->ctx_free(ctx);
        return NULL;
    }
    if (settings->is_server && !settings->lets_unknown) /* a ticket says that its holder is known */
        mc_resume_serve(ssl, ctx, mc_tls_text(settings->authority), settings->certificate, key_of(settings));
    else if (!settings->is_server && settings->is_strict)
        mc_resume_call(ssl, ctx, mc_tls_on_ticket);
    return ctx;
}

/* ---- places, and the lock is held ---- */

static bool is_of(const struct tls_place *place, const struct mc_tls_settings *settings)
{
    const struct files *files = &place->files;
    return place->context.ctx != NULL && files->is_server == settings->is_server &&
           files->is_strict == settings->is_strict && files->lets_unknown == settings->lets_unknown &&
           files->trusts_machine == settings->trusts_machine &&
           strcmp(files->authority, mc_tls_text(settings->authority)) == 0 &&
           strcmp(files->certificate, mc_tls_text(settings->certificate)) == 0 &&
           strcmp(files->key, key_of(settings)) == 0;
}

static struct tls_place *place_of(const struct mc_tls_settings *settings)
{
    for (size_t i = 0; i < CONTEXTS_MAX; i++)
        if (is_of(&places[i], settings))
            return &places[i];
    return NULL;
}

/* Connections that were made of the one before hold it. */
static void place_put(const struct mc_openssl *ssl, struct tls_place *place, struct ssl_ctx_st *ctx)
{
    if (place->context.ctx != NULL)
        ssl->ctx_free(place->context.ctx);
    mc_resume_free(ssl, place->context.resume);
    place->context = (struct mc_tls_context){ctx, NULL};
}

static struct tls_place *place_fill(const struct mc_openssl *ssl, const struct mc_tls_settings *settings,
                                    const struct stamp stamps[3], struct ssl_ctx_st *ctx)
{
    struct tls_place *place = &places[last_number++ % CONTEXTS_MAX];
    struct files *files = &place->files;
    place_put(ssl, place, ctx);
    snprintf(files->authority, PATH_MAX, "%s", mc_tls_text(settings->authority));
    snprintf(files->certificate, PATH_MAX, "%s", mc_tls_text(settings->certificate));
    snprintf(files->key, PATH_MAX, "%s", key_of(settings));
    snprintf(files->authority_is, WORD_MAX, "%s", mc_tls_text(settings->authority_is));
    snprintf(files->certificate_is, WORD_MAX, "%s", mc_tls_text(settings->certificate_is));
    snprintf(files->key_is, WORD_MAX, "%s", mc_tls_text(settings->key_is));
    files->is_server = settings->is_server;
    files->is_strict = settings->is_strict;
    files->lets_unknown = settings->lets_unknown;
    files->trusts_machine = settings->trusts_machine;
    memcpy(place->stamps, stamps, sizeof(place->stamps));
    place->retry_ns = UINT64_MAX;
    place->number = last_number;
    return place;
}

/* ---- looking at the files again ---- */

/* What was there before, for the thread that looks. False: the place is free. */
static bool place_read(struct tls_place *place, struct files *files, struct stamp stamps[3], uint64_t *number,
                       uint64_t *retry_ns)
{
    pthread_mutex_lock(&lock);
    bool is_used = place->context.ctx != NULL;
    if (is_used)
        memcpy(files, &place->files, sizeof(*files));
    memcpy(stamps, place->stamps, sizeof(place->stamps));
    *number = place->number;
    *retry_ns = place->retry_ns;
    pthread_mutex_unlock(&lock);
    return is_used;
}

/* ctx NULL: they cannot be read, and what was read before stays. */
static void place_renew(const struct mc_openssl *ssl, struct tls_place *place, uint64_t number,
                        const struct stamp stamps[3], struct ssl_ctx_st *ctx)
{
    pthread_mutex_lock(&lock);
    bool is_same = place->number == number;
    if (is_same) {
        memcpy(place->stamps, stamps, sizeof(place->stamps));
        place->retry_ns = ctx == NULL ? mc_clock_ns() + RETRY_NS : UINT64_MAX;
    }
    if (is_same && ctx != NULL)
        place_put(ssl, place, ctx);
    pthread_mutex_unlock(&lock);
    if (!is_same && ctx != NULL)
        ssl->ctx_free(ctx);
}

static void place_look(const struct mc_openssl *ssl, struct tls_place *place)
{
    static struct files files; /* of the one thread that looks */
    struct stamp before[3], now[3];
    uint64_t number, retry_ns;
    char error[MC_TLS_PROBLEM_MAX];
    if (!place_read(place, &files, before, &number, &retry_ns))
        return;
    const struct mc_tls_settings settings = {.authority = files.authority,
                                             .certificate = files.certificate,
                                             .key = files.key,
                                             .authority_is = files.authority_is,
                                             .certificate_is = files.certificate_is,
                                             .key_is = files.key_is,
                                             .is_server = files.is_server,
                                             .is_strict = files.is_strict,
                                             .lets_unknown = files.lets_unknown,
                                             .trusts_machine = files.trusts_machine};
    stamp_all(&settings, now); /* before they are read: what changes meanwhile is read again */
    if (memcmp(now, before, sizeof(now)) == 0 && mc_clock_ns() < retry_ns)
        return;
    files_touch(&settings);
    pthread_rwlock_rdlock(&reading);
    struct ssl_ctx_st *ctx = NULL;
    bool is_asked = !atomic_load(&is_ending);
    if (is_asked) {
        ctx = load(ssl, &settings, error, sizeof(error));
        place_renew(ssl, place, number, now, ctx);
    }
    pthread_rwlock_unlock(&reading);
    if (is_asked && ctx == NULL)
        mc_log_limited(WARNING, "%s; what was read there before is used", error);
}

static void look_again(void)
{
    const struct mc_openssl *ssl = mc_openssl_open(NULL, 0);
    for (size_t i = 0; ssl != NULL && i < CONTEXTS_MAX; i++)
        place_look(ssl, &places[i]);
}

/* ---- whoever needs one ---- */

/* The lock is held if there is one. */
static struct tls_place *first_use(const struct mc_openssl *ssl, const struct mc_tls_settings *settings, char *error,
                                   size_t error_size)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct stamp stamps[3];
    stamp_all(settings, stamps);
    files_touch(settings);
    pthread_rwlock_rdlock(&reading);
    struct tls_place *place = NULL;
    struct ssl_ctx_st *ctx = load(ssl, settings, error, error_size);
    if (ctx != NULL) {
        pthread_once(&once, exit_handler_install);
        pthread_mutex_lock(&lock);
        place = place_of(settings); /* another thread may have been here meanwhile */
        if (place != NULL)
            ssl->ctx_free(ctx);
        else
            place = place_fill(ssl, settings, stamps, ctx);
    }
    pthread_rwlock_unlock(&reading);
    return place;
}

struct mc_tls_context *mc_tls_context_hold(const struct mc_openssl *ssl, const struct mc_tls_settings *settings,
                                           char *error, size_t error_size)
{
    if (strlen(mc_tls_text(settings->authority)) >= PATH_MAX ||
        strlen(mc_tls_text(settings->certificate)) >= PATH_MAX || strlen(key_of(settings)) >= PATH_MAX) {
        snprintf(error, error_size, "the name of a file for TLS is longer than %d bytes", PATH_MAX - 1);
        return NULL;
    }
    pthread_mutex_lock(&lock);
    struct tls_place *place = place_of(settings);
    if (place == NULL) {
        pthread_mutex_unlock(&lock);
        place = first_use(ssl, settings, error, error_size);
    }
    if (place == NULL)
        return NULL;
    mc_watch("mc-tls", look_again);
    return &place->context;
}

struct mc_tls_context *mc_tls_context_hold_of(const struct ssl_ctx_st *ctx)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < CONTEXTS_MAX; i++)
        if (places[i].context.ctx == ctx)
            return &places[i].context;
    pthread_mutex_unlock(&lock);
    return NULL;
}

void mc_tls_context_release(void)
{
    pthread_mutex_unlock(&lock);
}
