/* What strangers send to a master, byte by byte to its real ports. The first byte chooses: 0 the admin port, 1 the
 * metadata server's, else that of calls. */
#include "base/error.h"
#include "env/log.h"
#include "env/socket.h"
#include "store/master/http_server.h"
#include "store/master/options.h"
#include "store/master/server.h"

#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define INPUT_MAX 65536u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct {
    struct mc_server *server;
    struct mc_http_server *http;
    struct mc_master_config config;
    pthread_t thread;
    uint16_t ports[3];
} master;

static void *run(void *unused)
{
    (void)mc_server_run(master.server);
    return unused;
}

/* One that was free a moment ago. */
static uint16_t free_port(void)
{
    uint16_t port = 0;
    int fd = mc_tcp_bind("127.0.0.1", &port);
    mc_assert(fd >= 0);
    close(fd);
    return port;
}

static void begin(void)
{
    char error[MC_OPTION_ERROR_MAX] = "", texts[2][64];
    struct mc_buffer text = {0};
    for (int i = 0; i < 2; i++)
        snprintf(texts[i], sizeof(texts[i]), i == 0 ? "--metrics_port=%u" : "--http_metadata_server_port=%u",
                 (unsigned)(master.ports[i] = free_port()));
    char *arguments[] = {"fuzz_master",
                         "--rpc_port=0",
                         "--rpc_address=127.0.0.1",
                         "--metrics_host=127.0.0.1",
                         "--http_metadata_server_host=127.0.0.1",
                         "--enable_metric_reporting=false",
                         "--minloglevel=2",
                         texts[0],
                         texts[1]};
    (void)signal(SIGPIPE, SIG_IGN);
    mc_assert(mc_master_config_load((int)(sizeof(arguments) / sizeof(arguments[0])), arguments, &master.config, &text,
                                    error, sizeof(error)) == 0);
    mc_buffer_free(&text);
    master.config.state_dir[0] = 0;
    mc_log_set_level(MC_LOG_ERROR);
    mc_assert(mc_server_create(&master.config, &master.server, error, sizeof(error)) == 0);
    mc_assert(mc_http_create(master.server, &master.config, &master.http, error, sizeof(error)) == 0);
    mc_assert(mc_http_start(master.http) == 0);
    mc_assert(pthread_create(&master.thread, NULL, run, NULL) == 0);
    master.ports[2] = mc_server_port(master.server);
}

static int open_port(uint16_t port)
{
    const struct timeval patience = {60, 0}; /* a fuzzer has its own */
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = -1;
    for (unsigned tries = 0; fd < 0; tries++) {
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        mc_assert(fd >= 0);
        if (connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0)
            break;
        /* All local ports rest after so many connections; or a timer of the fuzzer. */
        mc_assert((errno == EADDRNOTAVAIL || errno == EINTR) && tries < 6000);
        close(fd);
        fd = -1;
        usleep(10000);
    }
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    return fd;
}

/* What comes back is not looked at, but its end must come: nobody keeps a caller who has said all. */
static void say(uint16_t port, const uint8_t *data, size_t size)
{
    char answer[16384];
    ssize_t got;
    int fd = open_port(port);
    (void)send(fd, data, size, MSG_NOSIGNAL); /* it may be cut off in the middle */
    (void)shutdown(fd, SHUT_WR);
    do
        got = recv(fd, answer, sizeof(answer), 0);
    while (got > 0 || (got < 0 && errno == EINTR)); /* a fuzzer has timers */
    mc_assert(got == 0 || errno == ECONNRESET || errno == ENOTCONN);
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0 || size > INPUT_MAX)
        return 0;
    if (master.server == NULL)
        begin();
    say(master.ports[data[0] < 2 ? data[0] : 2], data + 1, size - 1);
    return 0;
}
