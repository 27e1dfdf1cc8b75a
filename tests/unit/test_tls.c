/* env/tls: against peers of another make (tls_peer.py): good, slow, cut, lying, silent; files that cannot be used, and
 * that change. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/error.h"
#include "env/clock.h"
#include "env/socket.h"
#include "env/tls.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define SECOND 1000000000ull
#define LONG (60 * SECOND) /* nothing is judged by it */
#define KINDS_MAX 32

static char folder[64], authority[128], other[128], client[128], client_key[128];
static struct {
    char name[32];
    unsigned port;
} kinds[KINDS_MAX];
static size_t kind_count;
static pid_t peer;
static int peer_in;

static const char *in_folder(const char *name)
{
    static char paths[8][128];
    static unsigned turn;
    char *path = paths[turn++ % 8];
    snprintf(path, sizeof(paths[0]), "%s/%s", folder, name);
    return path;
}

static int begin_peers(void **state)
{
    char script[512], line[128];
    int in[2], out[2];
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/mc-tls-XXXXXX");
    assert_non_null(mkdtemp(folder));
    const char *source = getenv("MC_SOURCE");
    snprintf(script, sizeof(script), "%s/tests/unit/tls_peer.py", source == NULL ? "." : source);
    assert_true(pipe(in) == 0 && pipe(out) == 0);
    peer = fork();
    assert_true(peer >= 0);
    if (peer == 0) {
        dup2(in[0], 0);
        dup2(out[1], 1);
        for (int fd = 3; fd < 64; fd++)
            close(fd);
        execlp("python3", "python3", "-B", script, folder, (char *)NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    peer_in = in[1];
    FILE *said = fdopen(out[0], "r");
    while (fgets(line, sizeof(line), said) != NULL && strcmp(line, "ready\n") != 0) {
        assert_true(kind_count < KINDS_MAX);
        assert_int_equal(sscanf(line, "%31s %u", kinds[kind_count].name, &kinds[kind_count].port), 2);
        kind_count++;
    }
    assert_string_equal(line, "ready\n");
    fclose(said);
    snprintf(authority, sizeof(authority), "%s", in_folder("ca.pem"));
    snprintf(other, sizeof(other), "%s", in_folder("other.pem"));
    snprintf(client, sizeof(client), "%s", in_folder("client.pem"));
    snprintf(client_key, sizeof(client_key), "%s", in_folder("client.key"));
    return 0;
}

static int end_peers(void **state)
{
    char command[128];
    (void)state;
    close(peer_in);
    waitpid(peer, NULL, 0);
    snprintf(command, sizeof(command), "rm -r %s", folder);
    return system(command);
}

static _Atomic bool is_hung; /* a file system that is asked for a file */
static _Atomic unsigned hanging, looks;
#define LOOKED_AT "/changing.pem" /* looks are counted of this file */

int stat(const char *restrict path, struct stat *restrict found)
{
    looks += strstr(path, LOOKED_AT) != NULL;
    hanging += is_hung;
    while (is_hung)
        usleep(1000);
    return fstatat(AT_FDCWD, path, found, 0);
}

static const struct mc_tls_settings *good(void)
{
    static struct mc_tls_settings settings;
    settings = (struct mc_tls_settings){.authority = authority,
                                        .authority_is = "CA_SET",
                                        .certificate_is = "CERT_SET",
                                        .key_is = "KEY_SET",
                                        .name_is = "NAME_SET"};
    return &settings;
}

/* A connection to a kind of peer under a host's name. Its descriptor. */
static int reach(const char *kind, const char *host, char address[MC_ADDRESS_MAX])
{
    char real[64];
    for (size_t i = 0; i < kind_count; i++) {
        if (strcmp(kinds[i].name, kind) != 0)
            continue;
        snprintf(address, MC_ADDRESS_MAX, "%s:%u", host, kinds[i].port);
        snprintf(real, sizeof(real), "127.0.0.1:%u", kinds[i].port);
        int fd = mc_tcp_connect(real, mc_clock_ns() + LONG);
        assert_true(fd >= 0);
        return fd;
    }
    fail_msg("no peer %s", kind);
    return -1;
}

static int begin(const struct mc_tls_settings *settings, const char *kind, const char *host, struct mc_tls **tls,
                 int *fd)
{
    char address[MC_ADDRESS_MAX], error[MC_TLS_PROBLEM_MAX] = "";
    *fd = reach(kind, host, address);
    int rc = mc_tls_begin(settings, address, *fd, tls, error, sizeof(error));
    if (rc < 0)
        print_message("%s\n", error);
    return rc;
}

static void end(struct mc_tls *tls, int fd)
{
    mc_tls_end(tls);
    close(fd);
}

static void receive_all(struct mc_tls *tls, char *into, size_t size)
{
    for (size_t at = 0; at < size;) {
        int64_t got = mc_tls_receive(tls, into + at, size - at, mc_clock_ns() + LONG);
        assert_true(got > 0);
        at += (size_t)got;
    }
}

static void echo_of(struct mc_tls *tls, size_t size)
{
    char *sent = malloc(size + 1), *back = malloc(size + 1);
    for (size_t i = 0; i < size; i++)
        sent[i] = (char)(i * 31 + size);
    struct iovec parts[3] = {{sent, size / 3}, {sent, 0}, {sent + size / 3, size - size / 3}};
    assert_int_equal(mc_tls_send(tls, parts, 3, mc_clock_ns() + LONG), 0);
    receive_all(tls, back, size);
    assert_memory_equal(sent, back, size);
    free(sent);
    free(back);
}

/* Every size around a record's; by both versions; by a name and by an address; in single bytes; with a certificate. */
static void bytes_come_back(void **state)
{
    static const struct {
        const char *kind, *host;
        bool shows_certificate, is_slow;
    } rows[] = {{"echo", "127.0.0.1", false, false},    {"echo", "localhost", false, false},
                {"echo12", "127.0.0.1", false, false},  {"mutual", "localhost", true, false},
                {"mutual12", "localhost", true, false}, {"bytes", "127.0.0.1", false, true},
                {"late", "127.0.0.1", false, true},     {"named", "a.example.org", false, false}};
    static const size_t sizes[] = {1, 2, 4095, 16383, 16384, 16385, 70000};
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct mc_tls_settings settings = *good();
        struct mc_tls *tls;
        int fd;
        if (rows[i].shows_certificate) {
            settings.certificate = client;
            settings.key = client_key;
        }
        assert_int_equal(begin(&settings, rows[i].kind, rows[i].host, &tls, &fd), 0);
        assert_int_equal(mc_tls_handshake(tls, mc_clock_ns() + LONG), 0);
        for (size_t k = 0; k < (rows[i].is_slow ? 3 : sizeof(sizes) / sizeof(sizes[0])); k++)
            echo_of(tls, sizes[k]);
        assert_string_equal(mc_tls_problem(tls), "");
        end(tls, fd);
    }
}

/* Who is not who it should be gets no byte, and the line says what to change and where. */
static void wrong_peers_are_refused(void **state)
{
    static const struct {
        const char *kind, *host, *words;
    } rows[] = {
        {"expired", "127.0.0.1", "has expired: renew it there"},
        {"unknown", "127.0.0.1", "set CA_SET to the certificate of the authority"},
        {"named", "127.0.0.1", "is not for '127.0.0.1'"},
        {"named", "example.org", "is not for 'example.org'"},
        {"named", "a.b.example.org", "give it that one (subjectAltName), or set NAME_SET"},
        {"echo", "otherhost", "is not for 'otherhost'"},
        {"subject", "127.0.0.1", "is not for '127.0.0.1'"},
        {"old", "127.0.0.1", "has no TLS 1.2 or later: upgrade it"},
        {"plain", "127.0.0.1", "does not speak TLS: turn it on there, or use http://"},
        {"leave", "127.0.0.1", "in the middle of the handshake: is TLS turned on at that port?"},
        {"reset", "127.0.0.1", "in the middle of the handshake"},
        {"cut", "127.0.0.1", "in the middle of the handshake"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct mc_tls *tls;
        int fd;
        assert_int_equal(begin(good(), rows[i].kind, rows[i].host, &tls, &fd), 0);
        assert_int_equal(mc_tls_handshake(tls, mc_clock_ns() + LONG), MC_ERR_RPC_FAIL);
        if (strstr(mc_tls_problem(tls), rows[i].words) == NULL)
            fail_msg("%s as %s: '%s' says nothing of '%s'", rows[i].kind, rows[i].host, mc_tls_problem(tls),
                     rows[i].words);
        assert_non_null(strstr(mc_tls_problem(tls), rows[i].host));
        end(tls, fd);
    }
}

/* A server that wants a certificate says so in TLS 1.3 only when it is read from. */
static void a_certificate_that_is_missing_or_foreign_is_named(void **state)
{
    static const char *const names[] = {"mutual", "mutual12"};
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        struct mc_tls_settings settings = *good();
        struct mc_tls *tls;
        char byte;
        int fd;
        if (i >= 2) { /* signed by another */
            settings.certificate = in_folder("unknown.pem");
            settings.key = in_folder("unknown.key");
        }
        assert_int_equal(begin(&settings, names[i % 2], "127.0.0.1", &tls, &fd), 0);
        int64_t rc = mc_tls_handshake(tls, mc_clock_ns() + LONG);
        if (rc == 0)
            rc = mc_tls_receive(tls, &byte, 1, mc_clock_ns() + LONG);
        assert_int_equal(rc, MC_ERR_RPC_FAIL);
        if (strstr(mc_tls_problem(tls), "set CERT_SET and KEY_SET") == NULL)
            fail_msg("'%s'", mc_tls_problem(tls));
        end(tls, fd);
    }
}

static void the_name_may_be_said(void **state)
{
    struct mc_tls_settings settings = *good();
    struct mc_tls *tls;
    int fd;
    (void)state;
    settings.name = "b.example.org";
    assert_int_equal(begin(&settings, "named", "127.0.0.1", &tls, &fd), 0);
    assert_int_equal(mc_tls_handshake(tls, mc_clock_ns() + LONG), 0);
    end(tls, fd);
}

/* Nobody waits for longer than was said, whether nothing comes or too little. */
static void deadlines_are_met(void **state)
{
    static const char *const silent[] = {"hang", "late"};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct mc_tls *tls;
        int fd;
        assert_int_equal(begin(good(), silent[i], "127.0.0.1", &tls, &fd), 0);
        uint64_t start_ns = mc_clock_ns();
        assert_int_equal(mc_tls_handshake(tls, start_ns + SECOND / 10), MC_ERR_RPC_TIMEOUT);
        assert_true(mc_clock_ns() - start_ns >= SECOND / 10);
        if (i == 1) { /* and it may go on later */
            assert_int_equal(mc_tls_handshake(tls, mc_clock_ns() + LONG), 0);
            echo_of(tls, 100);
            start_ns = mc_clock_ns();
            char byte;
            assert_int_equal(mc_tls_receive(tls, &byte, 1, start_ns + SECOND / 10), MC_ERR_RPC_TIMEOUT);
            assert_true(mc_clock_ns() - start_ns >= SECOND / 10);
            echo_of(tls, 100);
        }
        end(tls, fd);
    }
}

/* An end, with or without a goodbye, half a record, and bytes without a key are each an error and never data. */
static void what_is_cut_is_no_data(void **state)
{
    static const struct {
        const char *kind;
        size_t before;
    } rows[] = {{"bye", 5}, {"half", 5}, {"garbage", 0}};
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct mc_tls *tls;
        char text[64];
        int fd;
        assert_int_equal(begin(good(), rows[i].kind, "127.0.0.1", &tls, &fd), 0);
        assert_int_equal(mc_tls_handshake(tls, mc_clock_ns() + LONG), 0);
        struct iovec part = {(void *)(uintptr_t) "x", 1};
        assert_int_equal(mc_tls_send(tls, &part, 1, mc_clock_ns() + LONG), 0);
        receive_all(tls, text, rows[i].before);
        assert_memory_equal(text, "hello", rows[i].before);
        for (int again = 0; again < 2; again++)
            assert_int_equal(mc_tls_receive(tls, text, sizeof(text), mc_clock_ns() + LONG), MC_ERR_RPC_FAIL);
        assert_true(mc_tls_is_ready(tls));
        end(tls, fd);
    }
}

/* Tickets, and parts of a record, make the socket readable, and are nothing for the caller. */
static void ready_means_data(void **state)
{
    struct mc_tls *tls;
    char byte;
    int fd;
    (void)state;
    assert_int_equal(begin(good(), "echo", "127.0.0.1", &tls, &fd), 0);
    assert_int_equal(mc_tls_handshake(tls, mc_clock_ns() + LONG), 0);
    assert_int_equal(mc_socket_wait_read(fd, mc_clock_ns() + LONG, NULL), 0); /* the server's tickets */
    assert_false(mc_tls_is_ready(tls));
    struct iovec part = {(void *)(uintptr_t) "y", 1};
    assert_int_equal(mc_tls_send(tls, &part, 1, mc_clock_ns() + LONG), 0);
    while (!mc_tls_is_ready(tls))
        assert_int_equal(mc_socket_wait_read(fd, mc_clock_ns() + LONG, NULL), 0);
    assert_int_equal(mc_tls_receive(tls, &byte, 1, mc_clock_ns()), 1);
    assert_int_equal(byte, 'y');
    assert_false(mc_tls_is_ready(tls));
    end(tls, fd);
}

/* A peer that has gone costs no signal: the process is not ours. */
static void writing_to_a_dead_peer_is_an_error(void **state)
{
    struct mc_tls *tls;
    int fd, rc = 0;
    (void)state;
    signal(SIGPIPE, SIG_DFL);
    assert_int_equal(begin(good(), "bye", "127.0.0.1", &tls, &fd), 0);
    assert_int_equal(mc_tls_handshake(tls, mc_clock_ns() + LONG), 0);
    uint64_t end_ns = mc_clock_ns() + LONG;
    while (rc == 0 && mc_clock_ns() < end_ns) {
        struct iovec part = {(void *)(uintptr_t) "x", 1};
        rc = mc_tls_send(tls, &part, 1, mc_clock_ns() + LONG);
        usleep(1000);
    }
    assert_int_equal(rc, MC_ERR_RPC_FAIL);
    end(tls, fd);
}

static void files_that_cannot_be_used_are_named(void **state)
{
    const char *missing = in_folder("missing.pem"), *empty = in_folder("empty.pem");
    close(open(empty, O_CREAT | O_WRONLY, 0600));
    const struct {
        struct mc_tls_settings settings;
        const char *words;
    } rows[] = {
        {{.authority = missing, .authority_is = "CA_SET"}, "CA_SET="},
        {{.authority = missing, .authority_is = "CA_SET"}, "No such file"},
        {{.authority = empty, .authority_is = "CA_SET"}, "no certificate of an authority in PEM can be read there"},
        {{.authority = client_key}, "no certificate of an authority"},
        {{.authority = authority, .certificate = missing, .certificate_is = "CERT_SET"}, "CERT_SET="},
        {{.authority = authority, .certificate = client, .key = empty, .key_is = "KEY_SET"}, "KEY_SET="},
        {{.authority = authority, .certificate = client, .key = in_folder("locked.key")}, "no key without a password"},
        {{.authority = authority, .certificate = client, .key = in_folder("other.key")}, "of that certificate"},
        {{.authority = authority, .certificate = client}, "no key without a password"},
        {{.authority = authority, .key = client_key, .key_is = "KEY_SET", .certificate_is = "CERT_SET"},
         "set CERT_SET"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char error[MC_TLS_PROBLEM_MAX] = "";
        assert_int_equal(mc_tls_check(&rows[i].settings, error, sizeof(error)), MC_ERR_INVALID_PARAMS);
        if (strstr(error, rows[i].words) == NULL)
            fail_msg("%zu: '%s' says nothing of '%s'", i, error, rows[i].words);
        assert_null(strchr(error, '\n'));
    }
    char error[MC_TLS_PROBLEM_MAX] = "";
    assert_int_equal(mc_tls_check(good(), error, sizeof(error)), 0);
    assert_int_equal(mc_tls_check(&(struct mc_tls_settings){.authority = NULL}, error, sizeof(error)), 0);
}

static void *reads_files(void *argument)
{
    atomic_bool *stops = argument;
    char error[MC_TLS_PROBLEM_MAX] = "", path[512];
    struct mc_tls_settings settings = {.authority = path};
    for (unsigned turn = 0; !atomic_load(stops); turn++) { /* more names of them than are kept */
        snprintf(path, sizeof(path), "%s%.*s/ca.pem", folder, (int)(2 + 2 * (turn % 16)),
                 "/././././././././././././././././.");
        (void)mc_tls_check(&settings, error, sizeof(error));
    }
    return NULL;
}

/* TSan ends a child that starts threads. */
static void skip_under_tsan(void)
{
#ifdef __SANITIZE_THREAD__
    skip();
#endif
}

/* Another thread is reading them most of the time when the child is made. */
static void a_child_can_read_files(void **state)
{
    atomic_bool stops = false;
    pthread_t thread;
    char error[MC_TLS_PROBLEM_MAX] = "";
    int status;
    (void)state;
    skip_under_tsan();
    assert_int_equal(pthread_create(&thread, NULL, reads_files, &stops), 0);
    for (unsigned i = 0; i < 50; i++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(30);
            _exit(mc_tls_check(good(), error, sizeof(error)) == 0 ? 0 : 1);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
    }
    atomic_store(&stops, true);
    pthread_join(thread, NULL);
}

static void *reads_once(void *unused)
{
    char error[512];
    return mc_tls_check(good(), error, sizeof(error)) == 0 ? unused : NULL;
}

/* A process can fork although a file system does not answer. */
static void forks_while_files_hang(void **state)
{
    pthread_t thread;
    int status = -1;
    void *ended = NULL;
    (void)state;
    is_hung = true;
    assert_int_equal(pthread_create(&thread, NULL, reads_once, &status), 0);
    while (hanging == 0)
        usleep(1000);
    alarm(30);
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    alarm(0);
    is_hung = false;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    pthread_join(thread, &ended);
    assert_ptr_equal(ended, &status);
}

static void copy(const char *from, const char *to)
{
    char command[512];
    snprintf(command, sizeof(command), "cp %s %s.new && mv %s.new %s", from, to, to, to);
    assert_int_equal(system(command), 0);
}

static int try_once(const struct mc_tls_settings *settings)
{
    struct mc_tls *tls;
    int fd;
    assert_int_equal(begin(settings, "echo", "127.0.0.1", &tls, &fd), 0);
    int rc = mc_tls_handshake(tls, mc_clock_ns() + LONG);
    end(tls, fd);
    return rc;
}

/* As a look at the files takes a while. */
static int try_until(const struct mc_tls_settings *settings, int wanted)
{
    uint64_t end_ns = mc_clock_ns() + LONG;
    int rc;
    while ((rc = try_once(settings)) != wanted && mc_clock_ns() < end_ns)
        usleep(10000);
    return rc;
}

static void await_count(const _Atomic unsigned *count, unsigned wanted)
{
    uint64_t end_ns = mc_clock_ns() + LONG;
    while (*count < wanted && mc_clock_ns() < end_ns)
        usleep(1000);
    assert_true(*count >= wanted);
}

/* Until what the file is now was looked at, and read if that was to be. */
static void await_looks(void)
{
    looks = 0;
    await_count(&looks, 4); /* one may have begun before, and who reads a file looks at it twice */
}

static struct mc_tls_settings believes(const char *file)
{
    struct mc_tls_settings settings = *good();
    settings.authority = file;
    return settings;
}

/* What is renewed counts soon, for connections that begin then; what is spoiled does not replace what was good. */
static void files_are_read_again_when_they_change(void **state)
{
    const char *file = in_folder(&LOOKED_AT[1]);
    struct mc_tls_settings settings = believes(file);
    (void)state;
    copy(other, file);
    assert_int_equal(try_once(&settings), MC_ERR_RPC_FAIL);
    copy(authority, file);
    assert_int_equal(try_until(&settings, 0), 0);
    copy(in_folder("empty.pem"), file);
    await_looks();
    assert_int_equal(try_once(&settings), 0);
    assert_int_equal(unlink(file), 0);
    await_looks();
    assert_int_equal(try_once(&settings), 0);
    copy(other, file);
    assert_int_equal(try_until(&settings, MC_ERR_RPC_FAIL), MC_ERR_RPC_FAIL);
    for (unsigned i = 0; i < 12; i++) { /* more sets of files than are kept */
        char name[32];
        snprintf(name, sizeof(name), "set%u.pem", i);
        settings.authority = in_folder(name);
        copy(authority, settings.authority);
        assert_int_equal(try_once(&settings), 0);
    }
}

/* Who connects, or takes a connection, needs what was read before, and never waits for a file. */
static void connections_go_on_while_files_hang(void **state)
{
    const char *file = in_folder("hanging.pem");
    const struct mc_tls_settings settings = believes(file);
    (void)state;
    copy(authority, file);
    assert_int_equal(try_once(&settings), 0);
    hanging = 0;
    is_hung = true;
    alarm(120);
    assert_int_equal(try_once(&settings), 0);
    await_count(&hanging, 1);
    copy(other, file);
    assert_int_equal(try_once(&settings), 0);
    is_hung = false;
    alarm(0);
    assert_int_equal(try_until(&settings, MC_ERR_RPC_FAIL), MC_ERR_RPC_FAIL);
}

/* A child has what its parent has read, and looks at the files by itself, whatever its parent waits for. */
static void a_child_looks_at_files(void **state)
{
    const char *file = in_folder("inherited.pem");
    const struct mc_tls_settings settings = believes(file);
    int status;
    (void)state;
    skip_under_tsan();
    copy(authority, file);
    assert_int_equal(try_once(&settings), 0);
    hanging = 0;
    is_hung = true;
    await_count(&hanging, 1);
    pid_t child = fork();
    if (child == 0) {
        alarm(120);
        is_hung = false;
        if (try_once(&settings) != 0)
            _exit(1);
        copy(other, file);
        _exit(try_until(&settings, MC_ERR_RPC_FAIL) == MC_ERR_RPC_FAIL ? 0 : 2);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    is_hung = false;
    assert_int_equal(status, 0);
    assert_int_equal(try_until(&settings, MC_ERR_RPC_FAIL), MC_ERR_RPC_FAIL);
}

/* A file system that answers once and no more holds up who has OpenSSL read there; a fork for a moment only. */
static void forks_while_openssl_hangs(void **state)
{
    const char *file = in_folder("fading.pem"), *pipe_name = in_folder("pipe");
    const struct mc_tls_settings settings = believes(file), another = believes(in_folder("another.pem"));
    char error[MC_TLS_PROBLEM_MAX];
    int status, fd;
    (void)state;
    skip_under_tsan();
    copy(authority, file);
    copy(authority, another.authority);
    assert_int_equal(try_once(&settings), 0);
    assert_int_equal(mkfifo(pipe_name, 0600), 0);
    assert_int_equal(rename(pipe_name, file), 0);
    alarm(120);
    while ((fd = open(file, O_WRONLY | O_NONBLOCK | O_CLOEXEC)) < 0) /* until it is opened, and so read */
        usleep(1000);
    pid_t child = fork();
    if (child == 0) {
        alarm(120);
        _exit(try_once(&settings) == 0 && mc_tls_check(&another, error, sizeof(error)) == 0 ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(try_once(&settings), 0);
    assert_int_equal(mc_tls_check(&another, error, sizeof(error)), 0);
    copy(other, file);
    close(fd);
    alarm(0);
    assert_int_equal(try_until(&settings, MC_ERR_RPC_FAIL), MC_ERR_RPC_FAIL);
}

static void *checks_once(void *settings)
{
    char error[MC_TLS_PROBLEM_MAX];
    return mc_tls_check(settings, error, sizeof(error)) == 0 ? settings : NULL;
}

/* Several threads find at the same time that nobody has read those files yet. */
static void the_first_use_may_be_of_many(void **state)
{
    struct mc_tls_settings settings = believes(in_folder("many.pem"));
    pthread_t threads[8];
    (void)state;
    copy(authority, settings.authority);
    for (size_t i = 0; i < sizeof(threads) / sizeof(threads[0]); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, checks_once, &settings), 0);
    for (size_t i = 0; i < sizeof(threads) / sizeof(threads[0]); i++) {
        void *done;
        pthread_join(threads[i], &done);
        assert_ptr_equal(done, &settings);
    }
    assert_int_equal(try_once(&settings), 0);
}

static bool has_thread(const char *name)
{
    char path[300], said[32];
    bool has = false;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task; !has && (task = readdir(tasks)) != NULL;) {
        snprintf(path, sizeof(path), "/proc/self/task/%s/comm", task->d_name);
        FILE *file = task->d_name[0] == '.' ? NULL : fopen(path, "r");
        has = file != NULL && fscanf(file, "%31s", said) == 1 && strcmp(said, name) == 0;
        if (file != NULL)
            fclose(file);
    }
    closedir(tasks);
    return has;
}

/* Who uses no TLS has no thread for its files. */
static void a_thread_looks_from_the_first_use_on(void **state)
{
    char error[MC_TLS_PROBLEM_MAX];
    (void)state;
    assert_false(has_thread("mc-tls"));
    assert_int_equal(mc_tls_check(good(), error, sizeof(error)), 0);
    assert_true(has_thread("mc-tls"));
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thread_looks_from_the_first_use_on),
        cmocka_unit_test(bytes_come_back),
        cmocka_unit_test(wrong_peers_are_refused),
        cmocka_unit_test(a_certificate_that_is_missing_or_foreign_is_named),
        cmocka_unit_test(the_name_may_be_said),
        cmocka_unit_test(deadlines_are_met),
        cmocka_unit_test(what_is_cut_is_no_data),
        cmocka_unit_test(ready_means_data),
        cmocka_unit_test(writing_to_a_dead_peer_is_an_error),
        cmocka_unit_test(files_that_cannot_be_used_are_named),
        cmocka_unit_test(a_child_can_read_files),
        cmocka_unit_test(forks_while_files_hang),
        cmocka_unit_test(files_are_read_again_when_they_change),
        cmocka_unit_test(connections_go_on_while_files_hang),
        cmocka_unit_test(a_child_looks_at_files),
        cmocka_unit_test(forks_while_openssl_hangs),
        cmocka_unit_test(the_first_use_may_be_of_many),
    };
    return cmocka_run_group_tests(tests, begin_peers, end_peers);
}
