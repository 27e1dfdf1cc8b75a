/* A real master and real store nodes for tests of the store client: each a process of its own. The test program is also
 * the node: main() calls node_main. */
#ifndef MC_TEST_STORE_RIG_H
#define MC_TEST_STORE_RIG_H

#include "env/clock.h"
#include "mooncake.h"

#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#pragma GCC diagnostic ignored "-Wunused-function" /* not every test uses all of it */

#define START_MS 20000

/* ---- processes ---- */

struct process {
    pid_t pid;
    int in, out; /* its standard input; its standard error or output */
};

static char self_path[PATH_MAX];

static struct process start(char *const arguments[], int out_of)
{
    int in[2], out[2];
    struct process process;
    assert_int_equal(pipe2(in, O_CLOEXEC), 0);
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    process.pid = fork();
    assert_true(process.pid >= 0);
    if (process.pid == 0) {
        dup2(in[0], STDIN_FILENO);
        dup2(out[1], out_of);
        execv(arguments[0], arguments);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    process.in = in[1];
    process.out = out[0];
    return process;
}

static void stop(struct process *process, int sig)
{
    if (process->pid <= 0)
        return;
    kill(process->pid, sig);
    close(process->in);
    close(process->out);
    assert_int_equal(waitpid(process->pid, NULL, 0), process->pid);
    process->pid = 0;
}

/* Reads what the process says until all of `words` were there; the numbers behind them. */
static void wait_for_numbers(struct process *process, const char *const *words, int *numbers, unsigned count)
{
    static char text[65536];
    size_t length = 0;
    uint64_t end_ns = mc_clock_ns() + START_MS * 1000000ull;
    while (mc_clock_ns() < end_ns && length < sizeof(text) - 1) {
        ssize_t got = read(process->out, text + length, sizeof(text) - 1 - length);
        if (got <= 0)
            break;
        length += (size_t)got;
        text[length] = 0;
        unsigned there = 0;
        for (unsigned i = 0; i < count; i++) {
            const char *found = strstr(text, words[i]);
            if (found == NULL || strchr(found, '\n') == NULL)
                continue;
            numbers[i] = atoi(found + strlen(words[i]));
            there++;
        }
        if (there == count)
            return;
    }
    fail_msg("\"%s\" never came; it said: %s", words[0], text);
}
static int wait_for_number(struct process *process, const char *words)
{
    int number = 0;
    wait_for_numbers(process, &words, &number, 1);
    return number;
}

static struct process master;
static int master_port;

static void start_master(int port)
{
    char path[1024], port_text[32];
    const char *build = getenv("MC_BUILD");
    stop(&master, SIGKILL); /* of a test that failed: it would keep our output open */
    snprintf(path, sizeof(path), "%s/mooncake_master", build == NULL ? "." : build);
    snprintf(port_text, sizeof(port_text), "--rpc_port=%d", port);
    master =
        start((char *[]){path, port_text, "--metrics_port=0", "--client_ttl=3", "--default_kv_lease_ttl=500", NULL},
              STDERR_FILENO);
    master_port = wait_for_number(&master, "Master service started on port ");
    /* Its later lines must not block it. */
    fcntl(master.out, F_SETFL, O_NONBLOCK);
}

static int node_main(const char *master_address, const char *bytes)
{
    struct mc_store_config config = {.local_hostname = "127.0.0.1",
                                     .master_server_addr = master_address,
                                     .global_segment_size = strtoull(bytes, NULL, 10)};
    struct mc_store *store;
    struct mc_store_statistics statistics;
    char byte;
    int rc = mc_store_open(&config, &store);
    if (rc < 0)
        return 1;
    do {
        usleep(1000);
        mc_store_statistics(store, &statistics);
    } while (statistics.segment_populated < statistics.segment_capacity);
    printf("node ready 1\n");
    fflush(stdout);
    while (read(STDIN_FILENO, &byte, 1) > 0)
        continue;
    mc_store_close(store);
    return 0;
}

static struct process start_node(uint64_t bytes)
{
    char address[64], size[32];
    snprintf(address, sizeof(address), "127.0.0.1:%d", master_port);
    snprintf(size, sizeof(size), "%llu", (unsigned long long)bytes);
    struct process node = start((char *[]){self_path, "node", address, size, NULL}, STDOUT_FILENO);
    wait_for_number(&node, "node ready ");
    return node;
}

/* ---- calls in one line ---- */

static struct mc_store *open_configured(struct mc_store_config config)
{
    char address[64];
    struct mc_store *store = NULL;
    snprintf(address, sizeof(address), "127.0.0.1:%d", master_port);
    config.local_hostname = "127.0.0.1";
    config.master_server_addr = address;
    assert_int_equal(mc_store_open(&config, &store), 0);
    return store;
}

static struct mc_store *open_client(const char *paths, uint64_t segment_bytes)
{
    return open_configured(
        (struct mc_store_config){.global_segment_size = segment_bytes, .local_buffer_size = 1, .paths = paths});
}

static struct mc_bytes key_of(const char *text)
{
    return (struct mc_bytes){text, strlen(text)};
}

static int put(struct mc_store *store, const char *key, const void *data, size_t length)
{
    struct iovec part = {(void *)(uintptr_t)data, length};
    struct mc_put_item item = {.key = key_of(key), .parts = &part, .part_count = 1};
    int rc = mc_store_put(store, &item, 1, NULL);
    assert_int_equal(rc, item.result);
    return rc;
}

static int64_t get(struct mc_store *store, const char *key, void *data, size_t length)
{
    struct iovec part = {data, length};
    struct mc_get_item item = {.key = key_of(key), .parts = &part, .part_count = 1};
    mc_store_get(store, &item, 1, NULL, NULL);
    return item.result;
}

static int exist(struct mc_store *store, const char *key)
{
    struct mc_bytes one = key_of(key);
    int result = -1;
    mc_store_exist(store, &one, 1, &result);
    return result;
}

static int remove_key(struct mc_store *store, const char *key, bool force)
{
    struct mc_bytes one = key_of(key);
    int result = 1;
    mc_store_remove(store, &one, 1, force, &result);
    return result;
}

static void fill(uint8_t *data, size_t length, uint64_t seed)
{
    for (size_t i = 0; i < length; i++)
        data[i] = (uint8_t)((i * 2654435761u + seed * 40503u + (i >> 12)) >> 7);
}

#endif
