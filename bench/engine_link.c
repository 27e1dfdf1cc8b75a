/* A link with delay and loss between two network namespaces, where the kernel has no netem: two TUN devices, and this
 * process carries packets from one to the other, late, and some not at all. For bench/engine_link.py.
 *
 *     engine_link /run/netns/A /run/netns/B DELAY_US LOSS_PER_MILLION
 * Devices are called "link0"; says "ready" when both are there. As netem's default, 1000 packets wait for each side. */
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/signal.h>
#include <time.h>
#include <unistd.h>

#define PACKET_MAX 65536
#define WAITING_MAX 1000

struct packet {
    uint64_t due_ns;
    size_t length;
    uint8_t *bytes;
};

struct side { /* packets that wait to be written to it: a ring */
    int fd;
    struct packet waiting[WAITING_MAX];
    size_t first, count;
};

static struct side sides[2];
static uint64_t random_state = 0x9e3779b97f4a7c15u;

static uint64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t next_random(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static int open_tun(const char *name_space)
{
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI};
    int space = open(name_space, O_RDONLY | O_CLOEXEC);
    if (space < 0 || setns(space, CLONE_NEWNET) != 0)
        return -1;
    close(space);
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    snprintf(request.ifr_name, sizeof(request.ifr_name), "link0");
    return fd >= 0 && ioctl(fd, TUNSETIFF, &request) == 0 ? fd : -1;
}

/* All that has come in at one side waits for the other, or is lost. */
static void take(struct side *from, struct side *to, uint64_t delay_ns, uint64_t loss_per_million)
{
    static uint8_t bytes[PACKET_MAX];
    ssize_t length;
    while ((length = read(from->fd, bytes, sizeof(bytes))) > 0) {
        if (to->count == WAITING_MAX || next_random() % 1000000 < loss_per_million)
            continue;
        struct packet *packet = &to->waiting[(to->first + to->count) % WAITING_MAX];
        packet->bytes = malloc((size_t)length);
        if (packet->bytes == NULL)
            continue;
        memcpy(packet->bytes, bytes, (size_t)length);
        packet->length = (size_t)length;
        packet->due_ns = clock_ns() + delay_ns;
        to->count++;
    }
}

/* Writes what is due. When the next one is, or UINT64_MAX. */
static uint64_t give(struct side *to)
{
    while (to->count > 0) {
        struct packet *packet = &to->waiting[to->first];
        if (packet->due_ns > clock_ns())
            return packet->due_ns;
        (void)!write(to->fd, packet->bytes, packet->length); /* a device that is full loses it, as a link would */
        free(packet->bytes);
        to->first = (to->first + 1) % WAITING_MAX;
        to->count--;
    }
    return UINT64_MAX;
}

int main(int count, char **words)
{
    if (count != 5)
        return 2;
    uint64_t delay_ns = strtoull(words[3], NULL, 10) * 1000, loss = strtoull(words[4], NULL, 10);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_TIMERSLACK, 1000ul);
    for (int i = 0; i < 2; i++) {
        sides[i].fd = open_tun(words[1 + i]);
        if (sides[i].fd < 0) {
            fprintf(stderr, "%s: no TUN device: %s\n", words[1 + i], strerror(errno));
            return 1;
        }
    }
    printf("ready\n");
    fflush(stdout);
    for (;;) {
        struct pollfd fds[2] = {{sides[0].fd, POLLIN, 0}, {sides[1].fd, POLLIN, 0}};
        uint64_t first = give(&sides[0]), second = give(&sides[1]), due = first < second ? first : second;
        uint64_t now = clock_ns(), wait = due == UINT64_MAX ? 1000000000u : due > now ? due - now : 0;
        struct timespec time = {(time_t)(wait / 1000000000u), (long)(wait % 1000000000u)};
        if (ppoll(fds, 2, &time, NULL) < 0 && errno != EINTR)
            return 1;
        take(&sides[0], &sides[1], delay_ns, loss);
        take(&sides[1], &sides[0], delay_ns, loss);
    }
}
