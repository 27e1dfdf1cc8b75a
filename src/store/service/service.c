/* The life of a store service. */
#include "store/service/service.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/exposed.h"
#include "env/log.h"
#include "env/secure.h"
#include "env/socket.h"
#include "env/spans.h"
#include "env/thread.h"
#include "env/unread.h"
#include "store/service/rest.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define RETRY_MS 1000u
#define ERROR_MAX 512
#define BACKLOG 128
#define LEAVE_LOG_MS 1000
#define NO_DESCRIPTORS_MS 20 /* who waits at a port for one would wake its thread again at once */

enum { AT_REST, AT_HEALTH, AT_DUMMY, LISTENERS };

struct service {
    struct mc_service_config config;
    struct mc_rest rest;
    struct mc_web *web;
    int listeners[LISTENERS];
    int signal_fd;
    bool is_hurried; /* a second signal has come */
};

/* ---- joining ---- */

/* One thread tries, so that a signal is heard meanwhile. */
struct join {
    const struct mc_service_config *config;
    char host[MC_SERVICE_TEXT_MAX]; /* local_hostname, when its port cannot be had */
    struct mc_store_config store_config;
    struct mc_store *store;
    int rc;
    int done_fd;
};

/* Is it worth another try? A bad setting stays one. */
static bool may_pass(int rc)
{
    return rc == MC_ERR_RPC_FAIL || rc == MC_ERR_RPC_TIMEOUT || rc == MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS ||
           rc == MC_ERR_BUSY || rc == MC_ERR_ETCD_OPERATION_ERROR;
}

/* Processes that share a file may share its local_hostname: the first has its port, the others take one of their own.
 */
static void avoid_used_port(struct join *join)
{
    uint16_t port = 0;
    const char *wanted = join->config->local_hostname;
    if (mc_address_split(wanted, join->host, sizeof(join->host), &port) < 0 || port == 0)
        return;
    int fd = mc_tcp_listen(mc_tcp_listen_host(join->host), &port);
    if (fd >= 0) {
        close(fd);
    } else if (errno == EADDRINUSE && join->store_config.local_hostname != join->host) {
        mc_log(WARNING, "local_hostname %s is in use by another process: the kernel chooses another port", wanted);
        join->store_config.local_hostname = join->host;
    }
}

static void *run_join(void *argument)
{
    struct join *join = argument;
    const char *master = join->config->master_server_address;
    uint64_t start_ms = mc_clock_ms(), wait_ms = (uint64_t)(join->config->max_wait_s * 1000), one = 1;
    for (;;) {
        avoid_used_port(join);
        join->rc = mc_store_open(&join->store_config, &join->store);
        uint64_t elapsed_ms = mc_clock_ms() - start_ms;
        if (join->rc == 0 || !may_pass(join->rc) || elapsed_ms >= wait_ms)
            break;
        uint64_t left_ms = wait_ms - elapsed_ms;
        mc_log(WARNING, "not joined yet (%s): trying %s again, for %.0f s more", mc_error_name(join->rc), master,
               (double)left_ms / 1000);
        usleep((useconds_t)((left_ms < RETRY_MS ? left_ms : RETRY_MS) * 1000));
    }
    mc_assert(write(join->done_fd, &one, sizeof(one)) == (ssize_t)sizeof(one));
    return NULL;
}

/* Is a signal there? It is taken. */
static bool take_signal(int signal_fd)
{
    struct signalfd_siginfo info;
    if (read(signal_fd, &info, sizeof(info)) != (ssize_t)sizeof(info))
        return false;
    if (info.ssi_signo == SIGHUP) {
        mc_unread_hangup();
        return false;
    }
    mc_log(INFO, "Received signal %u, shutting down", info.ssi_signo);
    return true;
}

/* 0 joined; 1 a signal came first; negative. */
static int join_cluster(struct service *service, const struct mc_store_config *store_config)
{
    struct join *join = calloc(1, sizeof(*join));
    pthread_t thread;
    if (join == NULL)
        return MC_ERR_NO_MEMORY;
    *join = (struct join){.config = &service->config, .store_config = *store_config};
    join->done_fd = eventfd(0, EFD_CLOEXEC);
    if (join->done_fd < 0 || mc_thread_start(&thread, "mc-join", run_join, join) != 0) {
        mc_fd_close(join->done_fd);
        free(join);
        return MC_ERR_INTERNAL_ERROR;
    }
    struct pollfd waited[2] = {{.fd = service->signal_fd, .events = POLLIN}, {.fd = join->done_fd, .events = POLLIN}};
    do {
        (void)poll(waited, 2, -1); /* EINTR: look again */
        if (waited[0].revents != 0 && take_signal(service->signal_fd))
            return 1; /* the thread goes on until the process ends, which is at once */
    } while (waited[1].revents == 0);
    pthread_join(thread, NULL);
    int rc = join->rc;
    service->rest.store = join->store;
    close(join->done_fd);
    free(join);
    return rc;
}

/* ---- serving ---- */

static int bind_ports(struct service *service, char *error, size_t error_size)
{
    struct mc_service_config *config = &service->config;
    char reason[ERROR_MAX];
    if (config->has_rest) {
        int fd = mc_web_bind(config->rest_host, &config->rest_port, "port", error, error_size);
        if (fd < 0)
            return fd;
        service->listeners[AT_REST] = fd;
    }
    if (!config->has_rest) { /* several on one machine say the same */
        service->listeners[AT_DUMMY] = mc_web_bind("0.0.0.0", &config->dummy_port, "port", reason, sizeof(reason));
        if (service->listeners[AT_DUMMY] < 0)
            mc_log(WARNING, "setup_dummy cannot ask here: %s", reason);
    }
    if (!config->enable_client_http_server)
        return 0;
    /* Only a look from outside: a node that lends memory is worth more than its health page. */
    service->listeners[AT_HEALTH] =
        mc_web_bind("0.0.0.0", &config->client_http_port, config->has_rest ? "client_http_port" : "http_port", reason,
                    sizeof(reason));
    if (service->listeners[AT_HEALTH] < 0)
        mc_log(WARNING, "there will be no health page: %s", reason);
    return 0;
}

static int open_port(struct service *service, int which)
{
    static mc_web_handler *const handlers[AT_DUMMY] = {mc_rest_handle, mc_rest_handle_health};
    static const enum mc_exposed exposed[LISTENERS] = {MC_EXPOSED_REST, MC_EXPOSED_HEALTH, MC_EXPOSED_DUMMY};
    int fd = service->listeners[which];
    if (fd < 0)
        return 0;
    mc_exposed_say(exposed[which], fd);
    if (which == AT_DUMMY)
        return listen(fd, BACKLOG) != 0 ? MC_ERR_RPC_FAIL : 0;
    return mc_web_serve(service->web, fd, handlers[which], mc_rest_is_quick, &service->rest);
}

static int open_ports(struct service *service, char *error, size_t error_size)
{
    for (int i = 0; i < LISTENERS; i++) {
        int rc = open_port(service, i);
        if (rc < 0) {
            snprintf(error, error_size, "cannot listen on port %u: %s",
                     (unsigned)(i == AT_REST     ? service->config.rest_port
                                : i == AT_HEALTH ? service->config.client_http_port
                                                 : service->config.dummy_port),
                     strerror(errno));
            return rc;
        }
    }
    if (service->listeners[AT_REST] >= 0)
        mc_log(INFO, "REST API started on port %u", (unsigned)service->config.rest_port);
    if (service->listeners[AT_HEALTH] >= 0)
        mc_log(INFO, "Client HTTP server started on port %u", (unsigned)service->config.client_http_port);
    if (service->listeners[AT_DUMMY] >= 0)
        mc_log(INFO, "setup_dummy is answered on port %u", (unsigned)service->config.dummy_port);
    mc_log(INFO, "Mooncake Store Service is running as %s", mc_store_hostname(service->rest.store));
    return 0;
}

/* One line to whoever comes, and nothing is read: which master this node uses. False: there is no descriptor for it. */
static bool tell_master(const struct service *service)
{
    char line[MC_SERVICE_TEXT_MAX + 32];
    int length = snprintf(line, sizeof(line), "mooncake_client %s\n", service->config.master_server_address);
    int fd = accept4(service->listeners[AT_DUMMY], NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0)
        return errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM;
    /* A new connection has room for a line; who does not get it asks again. */
    if (send(fd, line, (size_t)length, MSG_NOSIGNAL) != length)
        mc_log(DEBUG, "setup_dummy: a connection was gone at once");
    close(fd);
    return true;
}

/* Until a signal comes; requests are served beside. */
static void serve(struct service *service)
{
    struct pollfd waited[2] = {{.fd = service->listeners[AT_DUMMY], .events = POLLIN}, /* -1 is passed over */
                               {.fd = service->signal_fd, .events = POLLIN}};
    for (;;) {
        if (poll(waited, 2, -1) < 0)
            continue;
        if (waited[1].revents != 0 && take_signal(service->signal_fd))
            return;
        if (waited[0].revents != 0 && !tell_master(service))
            (void)poll(&waited[1], 1, NO_DESCRIPTORS_MS);
    }
}

/* A second signal: whoever sent it has no time. */
static bool is_hurried(void *context)
{
    struct service *service = context;
    service->is_hurried = service->is_hurried || take_signal(service->signal_fd);
    return service->is_hurried;
}

/* What lies in memory only is saved, while others still read it. The grace began with the signal. */
static void retire(struct service *service, uint64_t signal_ms)
{
    const struct mc_service_config *config = &service->config;
    uint64_t passed_ms = mc_clock_ms() - signal_ms, grace_ms = (uint64_t)config->exit_grace_s * 1000;
    (void)mc_store_retire(service->rest.store, config->drain_on_exit ? MC_RETIRE_DRAIN : 0,
                          grace_ms > passed_ms ? grace_ms - passed_ms : 0, is_hurried,
                          service); /* what was left stands in the log */
}

/* ---- life ---- */

static int watch_signals(struct service *service)
{
    sigset_t wanted;
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGTERM);
    sigaddset(&wanted, SIGINT);
    sigaddset(&wanted, SIGHUP);
    (void)signal(SIGPIPE, SIG_IGN);
    if (pthread_sigmask(SIG_BLOCK, &wanted, NULL) != 0) /* before any thread: all inherit it */
        return MC_ERR_INTERNAL_ERROR;
    service->signal_fd = signalfd(-1, &wanted, SFD_NONBLOCK | SFD_CLOEXEC);
    return service->signal_fd < 0 ? MC_ERR_INTERNAL_ERROR : 0;
}

static void close_all(struct service *service)
{
    for (int i = 0; i < LISTENERS; i++)
        mc_fd_close(service->listeners[i]);
    mc_web_destroy(service->web);
    if (service->rest.store != NULL) {
        (void)mc_store_close(service->rest.store); /* always 0 */
        mc_log(INFO, "Mooncake service stopped");
    }
    mc_spans_end();
    mc_fd_close(service->signal_fd);
}

/* Without the end of what other threads have begun. */
_Noreturn static void leave(void)
{
    (void)mc_log_flush(LEAVE_LOG_MS);
    _exit(0);
}

static int run(struct service *service, char *error, size_t error_size)
{
    const struct mc_service_config *config = &service->config;
    struct mc_store_config store_config = {
        .local_hostname = config->local_hostname,
        .metadata_server = config->metadata_server,
        .protocol = config->protocol,
        .rdma_devices = config->device_name,
        .master_server_addr = config->master_server_address,
        .global_segment_size = config->global_segment_size,
        .local_buffer_size = config->local_buffer_size,
        .tenant = config->tenant_id,
        .stamp = config->stamp,
        .disk_paths = config->enable_ssd_offload && config->ssd_offload_path[0] != 0 ? config->ssd_offload_path : NULL};
    int rc = mc_secure_check(true, error, error_size);
    if (rc == 0)
        rc = watch_signals(service);
    if (rc == 0)
        mc_spans_start("mooncake_client"); /* for all tries to join */
    if (rc == 0)
        rc = bind_ports(service, error, error_size);
    if (rc < 0)
        return rc;
    service->web = mc_web_create(MC_REST_HEAD_MAX);
    if (service->web == NULL)
        return MC_ERR_NO_MEMORY;
    uint64_t begun_ms = mc_clock_ms();
    rc = join_cluster(service, &store_config);
    if (rc > 0)
        leave(); /* what was begun ends with the process, as the master sees by its sockets */
    if (rc < 0) {
        char within[64] = ""; /* what else there is comes at once */
        bool is_away = rc == MC_ERR_RPC_FAIL || rc == MC_ERR_RPC_TIMEOUT;
        if (is_away)
            snprintf(within, sizeof(within), " within %.1f s (max_wait_time is %g s)",
                     (double)(mc_clock_ms() - begun_ms) / 1e3, config->max_wait_s);
        snprintf(error, error_size, "the store could not join the cluster at %.200s%s: %s%s",
                 config->master_server_address, within, mc_error_text(rc),
                 is_away ? "; mooncake_doctor --master tries it from here" : "");
        return rc;
    }
    rc = open_ports(service, error, error_size);
    if (rc < 0)
        return rc;
    serve(service);
    uint64_t signal_ms = mc_clock_ms();
    bool is_answered = mc_web_stop(service->web, MC_REST_STOP_MS);
    retire(service, signal_ms);
    if (!is_answered)
        mc_log(WARNING, "some requests are still under way: not waiting for them");
    if (!is_answered || service->is_hurried)
        leave();
    return 0;
}

int mc_service_main(enum mc_service_command command, int argc, char **argv)
{
    struct service *service = calloc(1, sizeof(*service));
    struct mc_buffer text = {0};
    char error[ERROR_MAX] = "";
    const char *name = command == MC_SERVICE_REST ? "mc_store_rest_server" : "mooncake_client";
    if (service == NULL)
        return 1;
    service->signal_fd = -1;
    for (int i = 0; i < LISTENERS; i++)
        service->listeners[i] = -1;
    int rc = mc_service_config_load(command, argc, argv, &service->config, &text, error, sizeof(error));
    if (rc > 0) {
        bool is_written = fwrite(text.data, 1, text.length, stdout) == text.length && fflush(stdout) == 0;
        rc = is_written ? 0 : MC_ERR_WRITE_FAIL;
    } else if (rc == 0) {
        rc = run(service, error, sizeof(error));
    }
    close_all(service);
    if (rc < 0)
        fprintf(stderr, "%s: %s\n", name, error[0] != 0 ? error : mc_error_text(rc));
    mc_buffer_free(&text);
    free(service);
    return rc < 0 ? 1 : 0;
}
