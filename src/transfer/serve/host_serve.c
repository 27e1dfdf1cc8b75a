/* The owner's half of the path within one machine: the table of its regions, and the initiators that have it. */
#include "transfer/serve/service.h"
#include "transfer/state/engine.h"
#include "transfer/state/host_table.h"
#include "transfer/state/host_wire.h"
#include "transfer/serve/service_inside.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/log.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define SEALS_PAGE (F_SEAL_SHRINK | F_SEAL_GROW)

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

/* What a peer reads at welcome.proof_address to prove that the process it means is the one that answered. */
static struct mc_id proof_of_process;

/* Under the usual ptrace scope no other process reaches our memory unless we allow it, and we can allow it to all of
 * our user only, who may then do whatever a debugger may. So it is done when it is asked for; what was allocated with
 * the engine is mapped without it (host_map.c). */
static void allow_tracers(void)
{
    char scope = '0';
    int fd = open("/proc/sys/kernel/yama/ptrace_scope", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    if (read(fd, &scope, 1) == 1 && scope == '1' && prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0) != 0)
        mc_log(WARNING, "MC_SAME_HOST=ptrace: PR_SET_PTRACER is refused; peers of this machine will use tcp for memory "
                        "that they cannot map");
    close(fd);
}

int mc_host_table_create(struct mc_transfer_engine *engine)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (engine->settings.allow_tracers)
        pthread_once(&once, allow_tracers);
    size_t size = sizeof(struct mc_host_table);
    int fd = memfd_create("mooncake-transfer-regions", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -1;
    void *map = MAP_FAILED;
    if (fchmod(fd, 0600) == 0 && ftruncate(fd, (off_t)size) == 0)
        map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    /* From here on only this map can be written. */
    if (map == MAP_FAILED || madvise(map, size, MADV_DONTFORK) != 0 ||
        fcntl(fd, F_ADD_SEALS, SEALS_PAGE | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0) {
        if (map != MAP_FAILED)
            (void)munmap(map, size);
        close(fd);
        return -1;
    }
    mc_transfer_note_fd(fd);
    engine->host_table = map;
    engine->host_table_fd = fd;
    engine->host_table->magic = MC_HOST_MAGIC;
    if (mc_id_is_zero(proof_of_process))
        proof_of_process = mc_random_id();
    return 0;
}

void mc_host_table_destroy(struct mc_transfer_engine *engine)
{
    if (engine->host_table == NULL)
        return;
    (void)munmap(engine->host_table, sizeof(*engine->host_table));
    mc_transfer_close_fd(engine->host_table_fd);
    engine->host_table = NULL;
}

/* Maps what the initiator sent, if it cannot be taken away under our hands. */
static const struct mc_host_intents *map_intents(int fd)
{
    struct stat status;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd, &status) != 0 ||
        status.st_size < (off_t)sizeof(struct mc_host_intents))
        return NULL;
    void *map = mmap(NULL, sizeof(struct mc_host_intents), PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return NULL;
    (void)madvise(map, sizeof(struct mc_host_intents), MADV_DONTFORK);
    return map;
}

static bool take_hello(struct mc_service_connection *connection)
{
    struct mc_transfer_engine *engine = connection->service->engine;
    struct mc_host_hello hello;
    int fd = -1;
    size_t fd_count = 0;
    uint64_t now_ns = mc_clock_ns();
    int64_t received = mc_unix_receive_fds(connection->fd, &hello, sizeof(hello), &fd, 1, &fd_count, now_ns + 1000000);
    bool is_fine = received == (int64_t)sizeof(hello) && fd_count == 1 && hello.magic == MC_HOST_MAGIC &&
                   mc_id_equal(hello.owner, engine->id) && mc_unix_peer_uid(connection->fd) == (int64_t)geteuid();
    const struct mc_host_intents *intents = is_fine ? map_intents(fd) : NULL;
    if (fd_count == 1)
        close(fd);
    if (intents == NULL)
        return false;
    /* In the list before it has the table: no copy of it can be missed. */
    pthread_mutex_lock(&connection->service->initiators_lock);
    connection->intents = intents;
    connection->next_initiator = connection->service->initiators;
    connection->service->initiators = connection;
    pthread_mutex_unlock(&connection->service->initiators_lock);
    struct mc_host_welcome welcome = {MC_HOST_MAGIC, engine->id, (uintptr_t)&proof_of_process, proof_of_process};
    return mc_unix_send_fds(connection->fd, &welcome, sizeof(welcome), &engine->host_table_fd, 1,
                            mc_clock_ns() + 1000000) == 0;
}

void mc_host_serve(struct mc_service_connection *connection)
{
    /* After its hello an initiator says nothing: what comes is its end, or nonsense. */
    if (connection->intents != NULL || !take_hello(connection))
        mc_connection_drop(connection);
    else
        connection->deadline_ms = 0;
}

/* The initiator's end of file has been seen: its process copies no more. (Or it broke the rules, or we close, after
 * mc_memory_leave_all has made sure that nobody copies.) */
void mc_host_serve_end(struct mc_service_connection *connection)
{
    if (connection->intents == NULL)
        return;
    pthread_mutex_lock(&connection->service->initiators_lock);
    for (struct mc_service_connection **at = &connection->service->initiators; *at != NULL;
         at = &(*at)->next_initiator) {
        if (*at == connection) {
            *at = connection->next_initiator;
            break;
        }
    }
    pthread_mutex_unlock(&connection->service->initiators_lock);
    (void)munmap((void *)(uintptr_t)connection->intents, sizeof(*connection->intents));
    connection->intents = NULL;
}

bool mc_service_is_intended(struct mc_transfer_engine *engine, uint32_t slot)
{
    bool is_intended = false;
    pthread_mutex_lock(&engine->service->initiators_lock);
    for (const struct mc_service_connection *one = engine->service->initiators; one != NULL && !is_intended;
         one = one->next_initiator)
        is_intended = mc_host_is_intended(one->intents, slot);
    pthread_mutex_unlock(&engine->service->initiators_lock);
    return is_intended;
}
