/* The network of a laboratory: carries packets between hosts, which are network namespaces with a TUN device each, and
 * delays, loses, reorders, limits and cuts them, for each pair of hosts and direction as it was told. For switch.py.
 *
 *     lab_switch SOCKET SEED
 * listens on a SOCK_SEQPACKET at SOCKET. One message is one command, and has one answer, "ok", "error: ...", or text:
 *     host N PATH DEVICE    host N (1 to 254; its IPv4 address ends with it) is the network namespace at PATH
 *     gone N                it is not there any more
 *     set FROM TO NAME VALUE [NAME VALUE ...]    of the packets from FROM to TO; * is every host but the observer, 254:
 *         delay_us, loss_ppm, reorder_ppm (held back by reorder_us more), cut (0 or 1), rate (bytes a second; 0: no
 *         limit), queue_us (so long a queue before the rate at most)
 *     port N NAME VALUE [...]    of all that host N sends and of all that it receives: rate, queue_us, cut
 *     stats                 a line for each pair that was used, or "none": from to packets bytes lost overflowed
 *                           reordered cut
 *
 * What happens to the n-th packet of a pair is a function of SEED, the pair and n; when it comes is not. A packet that
 * the observer sends or receives is never touched unless it is named. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define HOSTS_MAX 255 /* numbers 1 to 254 */
#define OBSERVER 254
#define PACKET_MAX 65536
#define WAITING_MAX (1u << 17) /* packets on their way; more are lost */
#define BURST 64               /* packets of one host before others have their turn */
#define EVENTS_MAX 64
#define COMMAND_MAX 1024
#define ANSWER_MAX 65536
#define WORDS_MAX 32
#define MILLION 1000000u
#define QUEUE_BYTES_MIN 65536u /* any queue holds that much, however slow */
#define CONTROL 0x10000        /* event: a control connection, or the listener, not a host */

struct shaper { /* a queue before a line of this rate, kept as the time at which the line is free */
    uint64_t rate, queue_us, free_ns;
};

struct pair {
    uint64_t delay_us, loss_ppm, reorder_ppm, reorder_us, cut;
    struct shaper line;
    uint64_t number, bytes, lost, overflowed, reordered, cut_count;
};

struct host {
    int fd; /* 0: not there */
    uint64_t cut;
    struct shaper up, down;
};

struct packet {
    uint32_t length;
    uint8_t to;
    uint8_t bytes[];
};

struct waiting { /* an entry of the heap */
    uint64_t due_ns, order;
    struct packet *packet;
};

static struct host hosts[HOSTS_MAX];
static struct pair pairs[HOSTS_MAX][HOSTS_MAX];
static struct waiting heap[WAITING_MAX];
static size_t heap_count;
static uint64_t order, seed;
static int poller;

static uint64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t mix(uint64_t value) /* splitmix64 */
{
    value += 0x9e3779b97f4a7c15u;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
}

/* ---- packets on their way: a heap by time, then by order of arrival ---- */

static bool before(const struct waiting *a, const struct waiting *b)
{
    return a->due_ns != b->due_ns ? a->due_ns < b->due_ns : a->order < b->order;
}

static void heap_push(struct waiting entry)
{
    size_t at = heap_count++;
    while (at > 0 && before(&entry, &heap[(at - 1) / 2])) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = entry;
}

static struct packet *heap_pop(void)
{
    struct packet *first = heap[0].packet;
    struct waiting last = heap[--heap_count];
    size_t at = 0;
    for (size_t child = 1; child < heap_count; child = 2 * at + 1) {
        if (child + 1 < heap_count && before(&heap[child + 1], &heap[child]))
            child++;
        if (before(&last, &heap[child]))
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = last;
    return first;
}

/* When a packet that reaches this queue at `at_ns` has left it; UINT64_MAX: there is no room, it is lost. */
static uint64_t pass(struct shaper *shaper, uint64_t at_ns, size_t bytes)
{
    if (shaper->rate == 0 || at_ns == UINT64_MAX)
        return at_ns;
    uint64_t start = shaper->free_ns > at_ns ? shaper->free_ns : at_ns;
    uint64_t queue_ns = shaper->queue_us * 1000, least_ns = QUEUE_BYTES_MIN * UINT64_C(1000000000) / shaper->rate;
    if (start - at_ns > (queue_ns > least_ns ? queue_ns : least_ns))
        return UINT64_MAX;
    shaper->free_ns = start + bytes * UINT64_C(1000000000) / shaper->rate;
    return shaper->free_ns;
}

/* Decides on a packet: it waits until it is due, or is lost. */
static void carry(unsigned from, const uint8_t *bytes, size_t length)
{
    /* IPv4 alone, to hosts alone. */
    unsigned to = length >= 20 && bytes[0] >> 4 == 4 ? bytes[19] : 0;
    if (to == 0 || to >= HOSTS_MAX || hosts[to].fd == 0)
        return;
    struct pair *pair = &pairs[from][to];
    uint64_t number = pair->number++, now_ns = clock_ns();
    uint64_t chance = mix(seed ^ mix((uint64_t)from << 56 | (uint64_t)to << 48 | number));
    pair->bytes += length;
    if (pair->cut || hosts[from].cut || hosts[to].cut) {
        pair->cut_count++;
        return;
    }
    uint64_t at_ns = pass(&hosts[from].up, now_ns, length);
    at_ns = pass(&pair->line, at_ns, length);
    at_ns = pass(&hosts[to].down, at_ns, length);
    if (at_ns == UINT64_MAX || heap_count == WAITING_MAX) {
        pair->overflowed++;
        return;
    }
    if (chance % MILLION < pair->loss_ppm) {
        pair->lost++;
        return;
    }
    at_ns += pair->delay_us * 1000;
    if (mix(chance) % MILLION < pair->reorder_ppm) {
        pair->reordered++;
        at_ns += pair->reorder_us * 1000;
    }
    struct packet *packet = malloc(sizeof(*packet) + length);
    if (packet == NULL) {
        pair->overflowed++;
        return;
    }
    packet->length = (uint32_t)length;
    packet->to = (uint8_t)to;
    memcpy(packet->bytes, bytes, length);
    heap_push((struct waiting){at_ns, order++, packet});
}

static void take(unsigned from)
{
    static uint8_t bytes[PACKET_MAX];
    for (int i = 0; i < BURST; i++) {
        ssize_t length = read(hosts[from].fd, bytes, sizeof(bytes));
        if (length <= 0)
            return;
        carry(from, bytes, (size_t)length);
    }
}

/* Writes what is due. How long until the next one is, at most a second. */
static uint64_t deliver(void)
{
    uint64_t now_ns = clock_ns();
    while (heap_count > 0) {
        if (heap[0].due_ns > now_ns && heap[0].due_ns > (now_ns = clock_ns()))
            return heap[0].due_ns - now_ns < 1000000000u ? heap[0].due_ns - now_ns : 1000000000u;
        struct packet *packet = heap_pop();
        if (hosts[packet->to].fd != 0)
            (void)!write(hosts[packet->to].fd, packet->bytes, packet->length); /* a host that is full loses it */
        free(packet);
    }
    return 1000000000u;
}

/* ---- commands ---- */

static const char *host_add(unsigned number, const char *path, const char *device)
{
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI};
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = number};
    const char *wrong = NULL;
    int own = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC), space = open(path, O_RDONLY | O_CLOEXEC), fd = -1;
    if (own < 0 || space < 0 || setns(space, CLONE_NEWNET) != 0) {
        wrong = "cannot enter the namespace";
        goto close_spaces;
    }
    fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", device);
    if (fd < 0 || ioctl(fd, TUNSETIFF, &request) != 0 || epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event) != 0) {
        wrong = "no TUN device";
        if (fd >= 0)
            close(fd);
    } else {
        hosts[number] = (struct host){.fd = fd};
    }
    if (setns(own, CLONE_NEWNET) != 0)
        abort();
close_spaces:
    if (space >= 0)
        close(space);
    if (own >= 0)
        close(own);
    return wrong;
}

/* The field of that name, or NULL. */
static uint64_t *field_of_shaper(struct shaper *shaper, const char *name)
{
    return strcmp(name, "rate") == 0 ? &shaper->rate : strcmp(name, "queue_us") == 0 ? &shaper->queue_us : NULL;
}

static uint64_t *field_of_pair(struct pair *pair, const char *name)
{
    const struct {
        const char *name;
        uint64_t *field;
    } fields[] = {{"delay_us", &pair->delay_us},
                  {"loss_ppm", &pair->loss_ppm},
                  {"reorder_ppm", &pair->reorder_ppm},
                  {"reorder_us", &pair->reorder_us},
                  {"cut", &pair->cut}};
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
        if (strcmp(fields[i].name, name) == 0)
            return fields[i].field;
    return field_of_shaper(&pair->line, name);
}

static bool number_of(const char *word, uint64_t *value)
{
    char *end;
    errno = 0;
    *value = strtoull(word, &end, 10);
    return errno == 0 && end != word && *end == '\0' && word[0] != '-';
}

/* A host's number, or with `all` also "*", which is 0. */
static bool host_of(const char *word, bool all, unsigned *host)
{
    uint64_t number;
    *host = 0;
    if (all && strcmp(word, "*") == 0)
        return true;
    if (!number_of(word, &number) || number == 0 || number >= HOSTS_MAX)
        return false;
    *host = (unsigned)number;
    return true;
}

static const char *set_pairs(unsigned from, unsigned to, const char *name, uint64_t value)
{
    for (unsigned i = from ? from : 1; i <= (from ? from : OBSERVER - 1); i++)
        for (unsigned j = to ? to : 1; j <= (to ? to : OBSERVER - 1); j++) {
            uint64_t *field = field_of_pair(&pairs[i][j], name);
            if (field == NULL)
                return "no such name";
            *field = value;
        }
    return NULL;
}

static const char *set_port(unsigned number, const char *name, uint64_t value)
{
    struct host *host = &hosts[number];
    if (strcmp(name, "cut") == 0) {
        host->cut = value;
        return NULL;
    }
    uint64_t *up = field_of_shaper(&host->up, name), *down = field_of_shaper(&host->down, name);
    if (up == NULL)
        return "no such name";
    *up = *down = value;
    return NULL;
}

static void show(char *text, size_t size)
{
    size_t length = 0;
    strcpy(text, "none\n");
    for (unsigned i = 1; i < HOSTS_MAX; i++)
        for (unsigned j = 1; j < HOSTS_MAX; j++) {
            const struct pair *pair = &pairs[i][j];
            if (pair->number == 0 || length + 256 > size)
                continue;
            length += (size_t)snprintf(text + length, size - length, "%u %u %llu %llu %llu %llu %llu %llu\n", i, j,
                                       (unsigned long long)pair->number, (unsigned long long)pair->bytes,
                                       (unsigned long long)pair->lost, (unsigned long long)pair->overflowed,
                                       (unsigned long long)pair->reordered, (unsigned long long)pair->cut_count);
        }
}

static const char *obey_set(char **words, unsigned count)
{
    bool is_port = strcmp(words[0], "port") == 0;
    unsigned from, to = 0, first = is_port ? 2 : 3;
    if (count < first + 2 || (count - first) % 2 != 0)
        return "expected pairs of NAME VALUE";
    if (!host_of(words[1], !is_port, &from) || (!is_port && !host_of(words[2], true, &to)))
        return "no such host";
    for (unsigned i = first; i < count; i += 2) {
        uint64_t value;
        if (!number_of(words[i + 1], &value))
            return "not a number";
        const char *wrong = is_port ? set_port(from, words[i], value) : set_pairs(from, to, words[i], value);
        if (wrong != NULL)
            return wrong;
    }
    return NULL;
}

/* Does what was asked; NULL, or what is wrong. `answer` may get text instead of "ok". */
static const char *obey(char **words, unsigned count, char *answer)
{
    unsigned number;
    if (count == 4 && strcmp(words[0], "host") == 0) {
        if (!host_of(words[1], false, &number) || hosts[number].fd != 0)
            return "no such number, or taken";
        return host_add(number, words[2], words[3]);
    }
    if (count == 2 && strcmp(words[0], "gone") == 0) {
        if (!host_of(words[1], false, &number) || hosts[number].fd == 0)
            return "no such host";
        close(hosts[number].fd);
        hosts[number] = (struct host){0};
        return NULL;
    }
    if (count > 0 && (strcmp(words[0], "set") == 0 || strcmp(words[0], "port") == 0))
        return obey_set(words, count);
    if (count == 1 && strcmp(words[0], "stats") == 0) {
        show(answer, ANSWER_MAX);
        return NULL;
    }
    return "no such command";
}

static void serve(int fd)
{
    static char command[COMMAND_MAX + 1], answer[ANSWER_MAX + 1];
    char *words[WORDS_MAX], *rest = command, *word;
    unsigned count = 0;
    ssize_t length = recv(fd, command, COMMAND_MAX, 0);
    if (length <= 0) {
        close(fd);
        return;
    }
    command[length] = '\0';
    while (count < WORDS_MAX && (word = strsep(&rest, " \n")) != NULL)
        if (word[0] != '\0')
            words[count++] = word;
    strcpy(answer, "ok");
    const char *wrong = obey(words, count, answer);
    if (wrong != NULL)
        snprintf(answer, sizeof(answer), "error: %s", wrong);
    (void)!send(fd, answer, strlen(answer), MSG_NOSIGNAL);
}

static int listen_at(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = CONTROL};
    if (strlen(path) >= sizeof(address.sun_path))
        return -1;
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) != 0 || listen(fd, 16) != 0 ||
        epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event) != 0)
        return -1;
    return fd;
}

static void accept_one(int listener)
{
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = CONTROL | (uint32_t)fd};
    if (fd >= 0 && (fd >= CONTROL || epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event) != 0))
        close(fd);
}

int main(int count, char **words)
{
    struct epoll_event events[EVENTS_MAX];
    if (count != 3 || !number_of(words[2], &seed)) {
        fprintf(stderr, "usage: lab_switch SOCKET SEED\n");
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_TIMERSLACK, 1000ul);
    (void)!setpriority(PRIO_PROCESS, 0, -15); /* late packets are ours, not the network's */
    poller = epoll_create1(EPOLL_CLOEXEC);
    int listener = listen_at(words[1]);
    if (poller < 0 || listener < 0) {
        fprintf(stderr, "%s: %s\n", words[1], strerror(errno));
        return 1;
    }
    printf("ready\n");
    fflush(stdout);
    for (;;) {
        uint64_t wait_ns = deliver();
        struct timespec time = {(time_t)(wait_ns / 1000000000u), (long)(wait_ns % 1000000000u)};
        int ready = epoll_pwait2(poller, events, EVENTS_MAX, &time, NULL);
        if (ready < 0 && errno != EINTR)
            return 1;
        for (int i = 0; i < ready; i++) {
            uint32_t which = events[i].data.u32;
            if (which == CONTROL)
                accept_one(listener);
            else if (which & CONTROL)
                serve((int)(which & ~(uint32_t)CONTROL));
            else if (hosts[which].fd != 0)
                take(which);
        }
    }
}
