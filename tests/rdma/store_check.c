/* A store without memory of its own puts and gets objects of many sizes by RDMA, whose bytes lie in registered memory:
 * each byte is compared, and the store's counters must show that none was copied. Then the same from memory that is
 * not registered: all are.
 *
 * usage: store_check MASTER DEVICES */
#include "mooncake.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ROOM ((size_t)40 << 20) /* the upper half is read into */
#define WAIT_S 120u

static struct mc_store *store;
static uint8_t *room;

static void demand(bool is_so, const char *what, uint64_t size)
{
    if (is_so)
        return;
    printf("store_check: %s at %" PRIu64 " bytes\n", what, size);
    exit(1);
}

static struct mc_store_statistics statistics(void)
{
    struct mc_store_statistics now;
    mc_store_statistics(store, &now);
    return now;
}

static int put(const char *key, const struct iovec *parts, size_t count)
{
    struct mc_put_item item = {.key = {key, strlen(key)}, .parts = parts, .part_count = count};
    return mc_store_put(store, &item, 1, NULL);
}

static void drop(const char *key)
{
    struct mc_bytes name = {key, strlen(key)};
    int result;
    (void)mc_store_remove(store, &name, 1, true, &result);
}

/* Until its segment is populated and registered an owner is reached by tcp. */
static bool wait_for_rdma(void)
{
    for (unsigned i = 0; i < WAIT_S * 10; i++) {
        struct iovec part = {room, 65536};
        (void)put("warm up", &part, 1);
        drop("warm up");
        if (statistics().path_bytes[3] > 0)
            return true;
        usleep(100000);
    }
    return false;
}

static void there_and_back(uint64_t size, uint64_t seed)
{
    uint8_t *from = room + 5, *to = room + ROOM / 2 + 3;
    for (uint64_t i = 0; i < size; i++)
        from[i] = (uint8_t)((i * 31 + (i >> 12) + seed) ^ (i >> 20));
    memset(to, 0, size);
    struct iovec out[] = {{from, size / 3}, {from + size / 3, size - size / 3}},
                 in[] = {{to, size / 2}, {to + size / 2, size - size / 2}};
    demand(put("there", out, 2) == 0, "the put failed", size);
    struct mc_get_item item = {.key = {"there", 5}, .parts = in, .part_count = 2};
    demand(mc_store_get(store, &item, 1, NULL, NULL) == 0 && item.result == (int64_t)size, "the get failed", size);
    demand(memcmp(from, to, size) == 0, "wrong bytes", size);
    drop("there");
}

int main(int count, char **arguments)
{
    /* What is left of a get behind its last 4 MiB is as large as a part must be. */
    static const uint64_t sizes[] = {12288, 12289, 65536, 100003, 1 << 20, (4 << 20) + 12289, 16 << 20};
    if (count != 3)
        return 2;
    struct mc_store_config config = {.local_hostname = "127.0.0.1",
                                     .master_server_addr = arguments[1],
                                     .protocol = "rdma",
                                     .rdma_devices = arguments[2],
                                     .paths = "rdma,tcp",
                                     .local_buffer_size = 1 << 20};
    room = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    demand(room != MAP_FAILED && mc_store_open(&config, &store) == 0, "no store", 0);
    demand(wait_for_rdma(), "no RDMA", 0);
    for (unsigned turn = 0; turn < 2; turn++) {
        demand(turn == 1 || mc_store_register_buffer(store, room, ROOM) == 0, "not registered", ROOM);
        struct mc_store_statistics before = statistics();
        uint64_t expected = 0;
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            there_and_back(sizes[i], i);
            expected += 2 * sizes[i];
        }
        struct mc_store_statistics after = statistics();
        uint64_t moved = after.path_bytes[3] - before.path_bytes[3],
                 copied = after.rdma_copied_bytes - before.rdma_copied_bytes;
        printf("store_check: %" PRIu64 " bytes by RDMA, %" PRIu64 " of them copied\n", moved, copied);
        demand(moved == expected, "not all by RDMA", expected - moved);
        demand(copied == (turn == 0 ? 0 : expected), "not copied as said", copied);
        demand(turn == 1 || mc_store_unregister_buffer(store, room) == 0, "still registered", ROOM);
    }
    (void)mc_store_close(store);
    puts("store_check: good");
    return 0;
}
