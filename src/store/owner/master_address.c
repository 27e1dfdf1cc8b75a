/* Finding the master and connecting to it, by a deadline. */
#include "store/owner/master_address.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/leader.h"
#include "env/log.h"
#include "env/resolve.h"
#include "env/thread.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define SEEKERS_MAX 32u /* threads of the process that wait for an election */
#define SEEK_SOONER_NS 5000000u
#define WAIT_STEP_US 2000u  /* between looks at what another thread does */
#define FAILED_SHARED_MS 20 /* an election that failed so lately is not asked again by the next thread */

/* Takes fd, which may be an error; gives it back when TLS, if it is wanted, stands. */
static int secured(int fd, const char *address, uint64_t deadline_ns)
{
    if (fd < 0)
        return fd;
    mc_socket_way_begin(fd); /* a child that is forked meanwhile must not hold it */
    int rc = mc_secure_connect(fd, address, deadline_ns);
    mc_socket_way_end(fd);
    if (rc == 0)
        return fd;
    mc_fd_close(fd);
    errno = EPROTO; /* the log has said more. Connecting does not set it: somebody took the connection */
    return rc;
}

int mc_master_connect(const char *configured, uint64_t deadline_ns, char used[MC_ADDRESS_MAX])
{
    char leader[MC_ADDRESS_MAX] = "";
    const char *address = configured;
    if (used != NULL)
        used[0] = 0;
    if (mc_leader_is_election(configured)) {
        int rc = mc_leader_find(configured, deadline_ns, leader, sizeof(leader));
        if (rc < 0)
            return rc;
        address = leader;
    }
    if (strlen(address) >= MC_ADDRESS_MAX)
        return MC_ERR_INVALID_PARAMS;
    if (used != NULL)
        snprintf(used, MC_ADDRESS_MAX, "%s", address);
    return secured(mc_tcp_connect(address, deadline_ns), address, deadline_ns);
}

/* ---- the same by a deadline, whatever the election does ---- */

struct seeker { /* shared by the thread that seeks and the one that waits; the last one out frees it */
    pthread_mutex_t lock;
    pthread_cond_t found;
    bool done, abandoned;
    uint64_t deadline_ns;
    int result, error;
    char configured[MC_MASTER_ADDRESS_MAX], used[MC_ADDRESS_MAX];
};

static _Atomic unsigned seekers;

static void seeker_free(struct seeker *seeker)
{
    mc_monitor_destroy(&seeker->lock, &seeker->found);
    free(seeker);
    atomic_fetch_sub(&seekers, 1);
}

static void *seeker_run(void *argument)
{
    struct seeker *seeker = argument;
    char used[MC_ADDRESS_MAX];
    int result = mc_master_connect(seeker->configured, seeker->deadline_ns, used);
    int error = errno;
    pthread_mutex_lock(&seeker->lock);
    seeker->result = result;
    seeker->error = error;
    memcpy(seeker->used, used, sizeof(used));
    seeker->done = true;
    bool abandoned = seeker->abandoned;
    pthread_cond_signal(&seeker->found);
    pthread_mutex_unlock(&seeker->lock);
    if (abandoned) {
        mc_fd_close(result);
        seeker_free(seeker);
    }
    return NULL;
}

/* A place among the SEEKERS_MAX; false when none came free in time. */
static bool seeker_admit(uint64_t deadline_ns)
{
    for (;;) {
        unsigned count = atomic_load(&seekers);
        if (count < SEEKERS_MAX) {
            if (atomic_compare_exchange_weak(&seekers, &count, count + 1))
                return true;
            continue;
        }
        if (mc_clock_ns() >= deadline_ns)
            return false;
        usleep(WAIT_STEP_US);
    }
}

static struct seeker *seeker_start(const char *configured, uint64_t deadline_ns)
{
    struct seeker *seeker = calloc(1, sizeof(*seeker));
    if (seeker == NULL) {
        atomic_fetch_sub(&seekers, 1);
        return NULL;
    }
    seeker->deadline_ns = deadline_ns - SEEK_SOONER_NS; /* so that its word is still heard */
    snprintf(seeker->configured, sizeof(seeker->configured), "%s", configured);
    mc_monitor_init(&seeker->lock, &seeker->found);
    if (mc_thread_start(NULL, "mc-find", seeker_run, seeker) != 0) {
        seeker_free(seeker);
        return NULL;
    }
    return seeker;
}

static int seek(const char *configured, uint64_t deadline_ns, char used[MC_ADDRESS_MAX])
{
    used[0] = 0;
    if (!seeker_admit(deadline_ns))
        return MC_ERR_RPC_TIMEOUT;
    struct seeker *seeker = seeker_start(configured, deadline_ns);
    if (seeker == NULL)
        return MC_ERR_RPC_FAIL; /* no memory, no thread: as good as no master, and tried again like that */
    pthread_mutex_lock(&seeker->lock);
    while (!seeker->done && mc_monitor_wait(&seeker->lock, &seeker->found, deadline_ns) == 0)
        continue;
    bool done = seeker->done;
    seeker->abandoned = !done;
    pthread_mutex_unlock(&seeker->lock);
    if (!done)
        return MC_ERR_RPC_TIMEOUT;
    int result = seeker->result;
    errno = seeker->error;
    memcpy(used, seeker->used, MC_ADDRESS_MAX);
    seeker_free(seeker);
    return result;
}

int mc_master_open_hint(const char *address, uint64_t deadline_ns)
{
    char used[MC_ADDRESS_MAX];
    if (mc_leader_is_election(address))
        return MC_ERR_INVALID_PARAMS;
    return mc_master_connect(address, deadline_ns, used);
}

#define MOVE_MS 2000u /* longer than what has connected to an address that was replaced waits for its answer */

bool mc_master_may_move(struct mc_master_move *move, const char *configured, struct mc_id cluster)
{
    char host[MC_ADDRESS_MAX];
    uint16_t port;
    if (!mc_id_equal(move->cluster, cluster))
        *move = (struct mc_master_move){cluster, mc_clock_ms()};
    if (mc_leader_is_election(configured))
        return mc_leader_age_ms(configured, move->since_ms) >= MOVE_MS;
    if (mc_address_split(configured, host, sizeof(host), &port) < 0)
        return true;
    return mc_resolve_age_ms(host, move->since_ms) >= MOVE_MS;
}

/* ---- what a store remembers ---- */

int mc_master_address_init(struct mc_master_address *master, const char *configured)
{
    char host[MC_ADDRESS_MAX];
    uint16_t port = 50051;
    *master = (struct mc_master_address){.looking = false};
    pthread_mutex_init(&master->lock, NULL);
    if (configured == NULL || configured[0] == 0)
        configured = "127.0.0.1:50051";
    master->is_election = mc_leader_is_election(configured);
    if (master->is_election) {
        if (strlen(configured) < sizeof(master->configured)) {
            snprintf(master->configured, sizeof(master->configured), "%s", configured);
            return 0;
        }
        mc_log(ERROR, "master_server_addr is longer than %d bytes", MC_MASTER_ADDRESS_MAX - 1);
    } else if (mc_address_split(configured, host, sizeof(host), &port) == 0 && port != 0) {
        mc_address_join(master->configured, MC_ADDRESS_MAX, host, port);
        return 0;
    } else {
        mc_log(ERROR,
               "master_server_addr \"%s\" is neither host:port nor etcd://host:port,... nor k8s://namespace/lease",
               configured);
    }
    return MC_ERR_INVALID_PARAMS;
}

void mc_master_address_free(struct mc_master_address *master)
{
    pthread_mutex_destroy(&master->lock);
}

/* Locked. Waits while another thread asks; 0 when `leader` is known or this thread is to ask, else why not. */
static int look_or_wait(struct mc_master_address *master, uint64_t deadline_ns)
{
    bool waited = false;
    while (master->looking) {
        if (mc_clock_ns() >= deadline_ns)
            return MC_ERR_RPC_TIMEOUT;
        pthread_mutex_unlock(&master->lock);
        usleep(WAIT_STEP_US);
        pthread_mutex_lock(&master->lock);
        waited = true;
    }
    if (master->leader[0] != 0)
        return 0;
    if (waited && master->failed_code < 0 && mc_clock_ns() - master->failed_ns < FAILED_SHARED_MS * 1000000ull)
        return master->failed_code;
    master->looking = true;
    return 0;
}

/* A firewall refuses in the name of a master that runs; it lets no one hear that a process has ended. A master that ran
 * in between, longer than the break, could have acted. */
static void refused(struct mc_master_address *master)
{
    if (!atomic_load(&master->has_ended))
        return;
    uint64_t now_ns = mc_clock_boot_ns(), before_ns = atomic_load(&master->refused_ns);
    if (before_ns == 0 || now_ns - before_ns >= MC_LOCATIONS_TRUST_MS * 1000000ull)
        atomic_store(&master->refusing_ns, now_ns);
    atomic_store(&master->refused_ns, now_ns);
}

int mc_master_open(struct mc_master_address *master, uint64_t deadline_ns, char used[MC_ADDRESS_MAX])
{
    used[0] = 0;
    if (!master->is_election) {
        snprintf(used, MC_ADDRESS_MAX, "%.*s", MC_ADDRESS_MAX - 1, master->configured);
        errno = 0; /* a name that is not found in time leaves it as it was */
        int fd = mc_master_open_hint(used, deadline_ns);
        if (fd == MC_ERR_RPC_FAIL && errno == ECONNREFUSED)
            refused(master);
        return fd;
    }
    pthread_mutex_lock(&master->lock);
    int rc = look_or_wait(master, deadline_ns);
    if (rc == 0)
        memcpy(used, master->leader, MC_ADDRESS_MAX);
    pthread_mutex_unlock(&master->lock);
    if (rc < 0)
        return rc;
    if (used[0] != 0) {
        rc = mc_master_open_hint(used, deadline_ns);
        if (rc < 0)
            mc_master_forget(master, used);
        return rc;
    }
    rc = seek(master->configured, deadline_ns, used);
    pthread_mutex_lock(&master->lock);
    master->looking = false;
    master->failed_code = rc < 0 ? rc : 0;
    master->failed_ns = mc_clock_ns();
    if (rc >= 0)
        memcpy(master->leader, used, MC_ADDRESS_MAX);
    pthread_mutex_unlock(&master->lock);
    return rc;
}

void mc_master_forget(struct mc_master_address *master, const char *used)
{
    pthread_mutex_lock(&master->lock);
    char *leader = master->leader; /* not in place: gcc 12 with UBSan then believes its size to be 0 */
    if (used == NULL || strcmp(leader, used) == 0)
        leader[0] = 0;
    pthread_mutex_unlock(&master->lock);
}

void mc_master_remember(struct mc_master_address *master, const char *used)
{
    pthread_mutex_lock(&master->lock);
    if (master->is_election && strlen(used) < sizeof(master->leader))
        snprintf(master->leader, sizeof(master->leader), "%s", used);
    pthread_mutex_unlock(&master->lock);
}
