/* An engine that moves bytes, and one that is moved from and to, in this process and over tcp. */
#ifndef MC_TESTS_TRANSFER_WORLD_H
#define MC_TESTS_TRANSFER_WORLD_H

#include "engines.h"
#include "silent_peer.h"

#include <stdlib.h>
#include <sys/mman.h>

#define MEMORY ((size_t)16 << 20)

enum { SILENT_NAME_MAX = 64 };

struct world {
    struct mc_transfer_engine *near, *far;
    /* Each is mapped twice: engines use the one, the test looks at the other. (What passes through the kernel is
     * ordered by it, but the thread sanitizer does not know that.) */
    uint8_t *near_memory, *far_memory, *near_seen, *far_seen;
    /* And, if is_beside, a peer that says nothing, and its name. */
    struct silent silent;
    char name[SILENT_NAME_MAX];
    bool is_beside;
};

static inline struct mc_transfer_engine *engine_open(void)
{
    struct mc_transfer_config config = {"127.0.0.1", "P2PHANDSHAKE", "tcp", ""};
    struct mc_transfer_engine *engine = NULL;
    assert_int_equal(mc_transfer_open(&config, &engine), 0);
    return engine;
}

static inline uint8_t *map(struct mc_transfer_engine *engine, uint8_t **seen)
{
    int fd = memfd_create("test", MFD_CLOEXEC);
    assert_true(fd >= 0 && ftruncate(fd, (off_t)MEMORY) == 0);
    *seen = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    uint8_t *memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(*seen != MAP_FAILED && memory != MAP_FAILED);
    close(fd);
    assert_int_equal(mc_transfer_register(engine, &(struct mc_transfer_range){(uintptr_t)memory, MEMORY}, 1), 0);
    return memory;
}

static inline void world_open(struct world *world)
{
    setenv("MC_FORCE_TCP", "1", 1);
    world->is_beside = false;
    world->near = engine_open();
    world->far = engine_open();
    world->near_memory = map(world->near, &world->near_seen);
    world->far_memory = map(world->far, &world->far_seen);
}

/* And a peer that says nothing; its name. */
static inline void world_open_beside(struct world *world, struct silent *silent, char name[SILENT_NAME_MAX])
{
    world_open(world);
    silent_open(silent, name, SILENT_NAME_MAX);
}

static inline void world_close(struct world *world)
{
    pair_close(world->near, world->near_memory, world->far, world->far_memory, MEMORY);
    munmap(world->near_seen, MEMORY);
    munmap(world->far_seen, MEMORY);
}

/* ---- around a test, which has the world for its state ---- */

static inline int set_up(void **state)
{
    static struct world world;
    world_open(&world);
    *state = &world;
    return 0;
}

static inline int set_up_beside(void **state)
{
    static struct world world;
    world_open_beside(&world, &world.silent, world.name);
    world.is_beside = true;
    *state = &world;
    return 0;
}

static inline int tear_down(void **state)
{
    struct world *world = *state;
    if (world->is_beside)
        silent_close(&world->silent);
    world_close(world);
    return 0;
}

#define TEST_OF_WORLD(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
#define TEST_BESIDE(test) cmocka_unit_test_setup_teardown(test, set_up_beside, tear_down)

static inline bool take(int fd, void *bytes, size_t size)
{
    for (size_t got = 0; got < size;) {
        int64_t more = mc_socket_receive(fd, (uint8_t *)bytes + got, size - got, mc_clock_ns() + 10 * SECOND_NS, NULL);
        if (more <= 0)
            return false;
        got += (size_t)more;
    }
    return true;
}

#endif
