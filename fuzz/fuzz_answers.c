/* What a hostile server answers to whom asks it: etcd, Kubernetes and metadata servers (HTTP, JSON) and Redis. The
 * first byte chooses: 0 an HTTP answer and what is looked for in its body, else Redis's. */
#include "base/error.h"
#include "env/clock.h"
#include "env/http.h"
#include "env/json.h"
#include "env/redis.h"

#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define PATIENCE_NS 2000000000u
#define INPUT_MAX 65536u /* fits into the buffers of a pair of sockets */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void look_into(struct mc_span json)
{
    struct mc_span value;
    uint64_t number;
    int rc = mc_json_find(json, "kvs", &value);
    mc_assert(rc <= 1);
    if (rc == 1)
        mc_assert((const uint8_t *)value.data >= (const uint8_t *)json.data &&
                  (const uint8_t *)value.data + value.length <= (const uint8_t *)json.data + json.length);
    (void)mc_json_find_number(json, "revision", &number); /* either is possible */
}

static void http(const uint8_t *data, size_t size)
{
    int ends[2];
    struct mc_buffer reply = {0};
    mc_assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    mc_assert(send(ends[1], data, size, 0) == (ssize_t)size || size == 0);
    (void)shutdown(ends[1], SHUT_WR);
    struct mc_http client = {.fd = ends[0], .address = "server:1"};
    int status = mc_http_answer(&client, mc_clock_ns() + PATIENCE_NS, &reply);
    mc_assert((status >= 200 && status < 600) || status == MC_ERR_PROTOCOL || status == MC_ERR_RPC_FAIL);
    if (status >= 200)
        look_into(mc_span(reply.data, reply.length));
    mc_http_free(&client);
    mc_buffer_free(&reply);
    close(ends[1]);
}

/* ---- Redis: a connection for each command, so there must be a server ---- */

static struct {
    int listener;
    char address[MC_ADDRESS_MAX];
    pthread_t thread;
    pthread_mutex_t lock; /* over what it answers: a call may return while it is still being sent */
    uint8_t data[INPUT_MAX];
    size_t size;
} server = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void *serve(void *unused)
{
    char dropped[4096];
    for (;;) {
        struct pollfd waited = {.fd = server.listener, .events = POLLIN};
        int fd = poll(&waited, 1, -1) == 1 ? accept(server.listener, NULL, NULL) : -1;
        if (fd < 0)
            continue;
        pthread_mutex_lock(&server.lock);
        (void)send(fd, server.data, server.size, MSG_NOSIGNAL); /* it fits, or the rest is cut */
        pthread_mutex_unlock(&server.lock);
        (void)shutdown(fd, SHUT_WR);
        while (recv(fd, dropped, sizeof(dropped), 0) > 0)
            continue;
        close(fd);
    }
    return unused;
}

static void begin(void)
{
    uint16_t port = 0;
    server.listener = mc_tcp_listen("127.0.0.1", &port);
    mc_assert(server.listener >= 0);
    mc_address_join(server.address, sizeof(server.address), "127.0.0.1", port);
    mc_assert(pthread_create(&server.thread, NULL, serve, NULL) == 0);
}

static void redis(const uint8_t *data, size_t size)
{
    struct mc_buffer reply = {0};
    const struct mc_span words[] = {mc_span_string("GET"), mc_span_string("key")};
    if (server.address[0] == 0)
        begin();
    pthread_mutex_lock(&server.lock);
    memcpy(server.data, data, size);
    server.size = size;
    pthread_mutex_unlock(&server.lock);
    const struct mc_redis_login login = {.address = server.address, .password = "x", .database = size % 2};
    int rc = mc_redis_call(&login, words, 2, mc_clock_ns() + PATIENCE_NS, &reply);
    mc_assert(rc <= 1 && rc != MC_ERR_RPC_TIMEOUT);
    mc_buffer_free(&reply);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0 || size > INPUT_MAX)
        return 0;
    if (data[0] == 0)
        http(data + 1, size - 1);
    else
        redis(data + 1, size - 1);
    return 0;
}
