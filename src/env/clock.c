/* Time and randomness, from the kernel. */
#include "env/clock.h"

#include "base/checksum.h"
#include "base/error.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

uint64_t mc_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t mc_clock_boot_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t mc_clock_wall_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

uint64_t mc_clock_wall_ms(void)
{
    return mc_clock_wall_ns() / 1000000;
}

uint64_t mc_random_u64(void)
{
    uint64_t value;
    mc_assert(getrandom(&value, sizeof(value), 0) == (ssize_t)sizeof(value)); /* up to 256 bytes are never cut short */
    return value;
}

struct mc_id mc_random_id(void)
{
    return (struct mc_id){mc_random_u64(), mc_random_u64()};
}

static bool boot_id_read(struct mc_id *id)
{
    char text[64];
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t length = read(fd, text, sizeof(text));
    int error = length < 0 ? errno : EIO;
    close(fd);
    errno = error;
    if (length < 32)
        return false;
    struct mc_hash hash = mc_hash(text, (size_t)length);
    *id = (struct mc_id){hash.low, hash.high};
    return true;
}

bool mc_host_id_read(struct mc_id *id)
{
    /* A machine that boots anew has no process of before, so what was read holds for this one, also when no descriptor
     * is left. No lock, which a fork could find taken: whoever reads it reads the same. */
    static _Atomic uint64_t low, high;
    static atomic_bool is_known;
    if (!atomic_load(&is_known)) {
        if (!boot_id_read(id))
            return false;
        atomic_store(&low, id->low);
        atomic_store(&high, id->high);
        atomic_store(&is_known, true);
    }
    *id = (struct mc_id){atomic_load(&low), atomic_load(&high)};
    return true;
}

struct mc_id mc_host_id(void)
{
    struct mc_id id;
    return mc_host_id_read(&id) ? id : mc_random_id();
}
