/* Names of hosts. */
#include "env/resolve.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/log.h"
#include "env/thread.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdlib.h>

struct host_name {          /* guarded by the lock */
    struct host_name *next; /* of its bucket */
    struct host_name *next_asked;
    bool is_asked;                          /* waits for a thread, or one looks it up */
    uint32_t users;                         /* callers that hold it */
    uint64_t lookups;                       /* that have ended */
    uint64_t begun_ms;                      /* the lookup that found it: what it says may be as old; 0: never found */
    uint64_t found_ms;                      /* and when that had ended: since then connections go there */
    uint64_t looked_ms, failed_ms, used_ms; /* looked_ms: a lookup ended last */
    int failure;                            /* of getaddrinfo, the last time; 0: it was found */
    struct mc_tcp_address addresses[MC_RESOLVE_ADDRESSES_MAX]; /* with port 0 */
    uint32_t count;
    char host[];
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a lookup has ended */
    struct host_name *buckets[MC_RESOLVE_BUCKETS];
    uint32_t count, threads;
    struct host_name *asked, **asked_end;
} resolver;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void resolver_begin(void)
{
    mc_monitor_init(&resolver.lock, &resolver.changed);
    resolver.asked_end = &resolver.asked;
}

/* In a forked child: the threads are not there, and who held the lock is not either. */
static void on_forked(void)
{
    memset(&resolver, 0, sizeof(resolver));
    resolver_begin();
}

static void resolver_init(void)
{
    resolver_begin();
    (void)pthread_atfork(NULL, NULL, on_forked); /* fails for want of memory only */
}

/* ---- looking up ---- */

struct found {
    struct mc_tcp_address addresses[MC_RESOLVE_ADDRESSES_MAX];
    uint32_t count;
    int failure;
};

static void look_up(const char *host, struct found *found)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *list = NULL;
    found->count = 0;
    found->failure = getaddrinfo(host, "1", &hints, &list);
    if (found->failure != 0)
        return;
    for (struct addrinfo *one = list; one != NULL && found->count < MC_RESOLVE_ADDRESSES_MAX; one = one->ai_next) {
        struct mc_tcp_address *address = &found->addresses[found->count];
        if (one->ai_addrlen > sizeof(address->address))
            continue;
        memset(address, 0, sizeof(*address));
        memcpy(&address->address, one->ai_addr, one->ai_addrlen);
        address->length = one->ai_addrlen;
        found->count++;
    }
    freeaddrinfo(list);
    if (found->count == 0)
        found->failure = EAI_NONAME;
}

/* Locked. The lookup began at begun_ms: what a name server was asked then, it may have answered then, however long that
 * took to get here. */
static void name_learn(struct host_name *name, const struct found *found, uint64_t begun_ms)
{
    uint64_t now_ms = mc_clock_ms();
    name->is_asked = false;
    name->lookups++;
    name->looked_ms = now_ms;
    name->failure = found->failure;
    if (found->failure == 0) {
        memcpy(name->addresses, found->addresses, sizeof(name->addresses));
        name->count = found->count;
        name->begun_ms = begun_ms;
        name->found_ms = now_ms;
    } else {
        name->failed_ms = now_ms;
        mc_log_limited(WARNING, "the name \"%s\" cannot be resolved: %s%s", name->host, gai_strerror(found->failure),
                       name->found_ms != 0 ? "; its last addresses are used" : "");
    }
    pthread_cond_broadcast(&resolver.changed);
}

/* Looks up what is asked for, and ends. */
static void *resolver_run(void *argument)
{
    (void)argument;
    struct found found;
    pthread_mutex_lock(&resolver.lock);
    while (resolver.asked != NULL) {
        struct host_name *name = resolver.asked;
        resolver.asked = name->next_asked;
        if (resolver.asked == NULL)
            resolver.asked_end = &resolver.asked;
        name->users++;
        pthread_mutex_unlock(&resolver.lock);
        uint64_t begun_ms = mc_clock_ms();
        look_up(name->host, &found); /* the host's name does not change */
        pthread_mutex_lock(&resolver.lock);
        name->users--;
        name_learn(name, &found, begun_ms);
    }
    resolver.threads--;
    pthread_mutex_unlock(&resolver.lock);
    return NULL;
}

/* Locked. */
static void name_ask(struct host_name *name)
{
    if (!name->is_asked) {
        name->is_asked = true;
        name->next_asked = NULL;
        *resolver.asked_end = name;
        resolver.asked_end = &name->next_asked;
    }
    if (resolver.asked == NULL || resolver.threads == MC_RESOLVE_THREADS_MAX)
        return;
    resolver.threads++;
    if (mc_thread_start(NULL, "mc-resolve", resolver_run, NULL) != 0)
        resolver.threads--; /* a thread that there is sees to it, or the next call */
}

/* Locked. Not more often than makes sense. */
static void name_ask_again(struct host_name *name, uint64_t now_ms)
{
    if (now_ms - name->looked_ms >= MC_RESOLVE_AGAIN_MS)
        name_ask(name);
}

/* ---- what is remembered ---- */

static uint32_t bucket_of(const char *host)
{
    uint32_t sum = 2166136261u;
    for (; *host != 0; host++)
        sum = (sum ^ (uint8_t)*host) * 16777619u;
    return sum % MC_RESOLVE_BUCKETS;
}

/* Locked. Looks at all: only a process that uses more than MC_RESOLVE_NAMES_MAX names comes here. */
static void oldest_forget(void)
{
    struct host_name **oldest = NULL;
    for (uint32_t i = 0; i < MC_RESOLVE_BUCKETS; i++) {
        for (struct host_name **at = &resolver.buckets[i]; *at != NULL; at = &(*at)->next) {
            if ((*at)->users == 0 && !(*at)->is_asked && (oldest == NULL || (*at)->used_ms < (*oldest)->used_ms))
                oldest = at;
        }
    }
    if (oldest == NULL)
        return;
    struct host_name *name = *oldest;
    *oldest = name->next;
    resolver.count--;
    free(name);
}

/* Locked. NULL: out of memory. */
static struct host_name *name_get(const char *host)
{
    struct host_name **bucket = &resolver.buckets[bucket_of(host)], *name = *bucket;
    while (name != NULL && strcmp(name->host, host) != 0)
        name = name->next;
    if (name != NULL)
        return name;
    if (resolver.count >= MC_RESOLVE_NAMES_MAX)
        oldest_forget();
    size_t size = strlen(host) + 1;
    name = calloc(1, sizeof(*name) + size);
    if (name == NULL)
        return NULL;
    memcpy(name->host, host, size);
    name->next = *bucket;
    *bucket = name;
    resolver.count++;
    return name;
}

static void ports_set(struct mc_resolved *resolved, uint16_t port)
{
    for (uint32_t i = 0; i < resolved->count; i++) {
        struct mc_tcp_address *one = &resolved->addresses[i];
        if (one->address.any.sa_family == AF_INET6)
            one->address.v6.sin6_port = htons(port);
        else
            one->address.v4.sin_port = htons(port);
    }
}

/* Locked. */
static void name_copy(const struct host_name *name, uint64_t now_ms, struct mc_resolved *resolved)
{
    resolved->is_old = now_ms - name->begun_ms >= MC_RESOLVE_TRUST_MS;
    memcpy(resolved->addresses, name->addresses, sizeof(resolved->addresses));
    resolved->count = name->count;
}

/* Locked; unlocks while it waits. 0, or why there is nothing new. */
static int name_wait(struct host_name *name, uint64_t deadline_ns)
{
    uint64_t lookups = name->lookups;
    int rc = 0;
    while (name->lookups == lookups && rc == 0) {
        name_ask(name);
        rc = mc_monitor_wait(&resolver.lock, &resolver.changed, deadline_ns);
    }
    if (name->lookups == lookups)
        return MC_ERR_RPC_TIMEOUT;
    return name->failure == 0 ? 0 : name->failure == EAI_MEMORY ? MC_ERR_NO_MEMORY : MC_ERR_RPC_FAIL;
}

/* Locked; unlocks while it waits. */
static int name_resolve(struct host_name *name, uint64_t deadline_ns, struct mc_resolved *resolved)
{
    uint64_t now_ms = mc_clock_ms();
    name->used_ms = now_ms;
    if (name->found_ms != 0) {
        if (now_ms - name->begun_ms >= MC_RESOLVE_FRESH_MS)
            name_ask_again(name, now_ms);
        name_copy(name, now_ms, resolved);
        return 0;
    }
    bool has_failed = name->failure != 0 && now_ms - name->failed_ms < MC_RESOLVE_AGAIN_MS;
    int rc = has_failed ? MC_ERR_RPC_FAIL : name_wait(name, deadline_ns);
    resolved->is_denied = rc == MC_ERR_RPC_FAIL && (name->failure == EAI_NONAME || name->failure == EAI_NODATA);
    if (rc == 0)
        name_copy(name, mc_clock_ms(), resolved);
    return rc;
}

/* True: an address, which needs nobody's answer. */
static bool is_numeric(const char *host, struct mc_resolved *resolved)
{
    struct mc_tcp_address *one = &resolved->addresses[0];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV}, *found = NULL;
    memset(one, 0, sizeof(*one));
    resolved->count = 1;
    if (inet_pton(AF_INET, host, &one->address.v4.sin_addr) == 1) {
        one->address.v4.sin_family = AF_INET;
        one->length = sizeof(one->address.v4);
        return true;
    }
    if (strchr(host, ':') == NULL || getaddrinfo(host, "1", &hints, &found) != 0) /* which knows of fe80::1%eth0 */
        return false;
    bool fits = found->ai_addrlen <= sizeof(one->address);
    if (fits) {
        memcpy(&one->address, found->ai_addr, found->ai_addrlen);
        one->length = found->ai_addrlen;
    }
    freeaddrinfo(found);
    return fits;
}

int mc_resolve(const char *host, uint16_t port, uint64_t deadline_ns, struct mc_resolved *resolved)
{
    resolved->is_old = resolved->is_denied = false;
    if (is_numeric(host, resolved)) {
        ports_set(resolved, port);
        return 0;
    }
    int rc = MC_ERR_NO_MEMORY;
    pthread_once(&once, resolver_init);
    pthread_mutex_lock(&resolver.lock);
    struct host_name *name = name_get(host);
    if (name != NULL) {
        name->users++;
        rc = name_resolve(name, deadline_ns, resolved);
        name->users--;
    }
    pthread_mutex_unlock(&resolver.lock);
    if (rc == 0)
        ports_set(resolved, port);
    errno = rc == 0 ? 0 : rc == MC_ERR_NO_MEMORY ? ENOMEM : rc == MC_ERR_RPC_TIMEOUT ? ETIMEDOUT : ENONET;
    return rc;
}

uint64_t mc_resolve_age_ms(const char *host, uint64_t since_ms)
{
    struct mc_resolved ignored;
    if (is_numeric(host, &ignored))
        return UINT64_MAX;
    uint64_t age_ms = 0;
    pthread_once(&once, resolver_init);
    pthread_mutex_lock(&resolver.lock);
    uint64_t now_ms = mc_clock_ms(); /* not before what is noted under the lock */
    struct host_name *name = resolver.buckets[bucket_of(host)];
    while (name != NULL && strcmp(name->host, host) != 0)
        name = name->next;
    if (name != NULL && name->begun_ms > since_ms)
        age_ms = now_ms - name->found_ms;
    else if (name != NULL)
        name_ask_again(name, now_ms);
    pthread_mutex_unlock(&resolver.lock);
    return age_ms;
}

void mc_resolve_doubt(const char *host)
{
    (void)mc_resolve_age_ms(host, UINT64_MAX - 1);
}
