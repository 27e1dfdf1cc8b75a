/* The disk: opening and closing, the calls of other threads, and the loop of its own. */
#include "store/disk/inside.h"

#include "env/clock.h"
#include "env/log.h"
#include "env/thread.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define WAIT_MS_MAX 1000 /* a turn looks at the clock so often at least */
#define STOP_WAIT_MS 10
#define CLOSE_WAIT_NS 100000000u /* what ends at the end of its grace still closes its files */

uint64_t mc_disk_wall_ms(void)
{
    struct timespec now = {0};
    (void)clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* ---- calls ---- */

struct refusal {
    int code; /* 0: none */
    enum mc_store_disk_reason reason;
};

static struct refusal refusal_of(const struct mc_disk *disk, enum mc_disk_task_kind kind)
{
    enum mc_disk_health health = disk->told;
    bool is_store = kind == MC_DISK_TASK_STORE, is_slow_one = is_store || kind == MC_DISK_TASK_READ;
    if (disk->is_stopping || health == MC_DISK_RECOVERING || health == MC_DISK_CLOSED)
        return (struct refusal){MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS, MC_STORE_DISK_CLOSED};
    if (is_store && health == MC_DISK_READ_ONLY)
        return (struct refusal){MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS, MC_STORE_DISK_READ_ONLY};
    if (is_slow_one && health == MC_DISK_SLOW)
        return (struct refusal){MC_ERR_BUSY, MC_STORE_DISK_SLOW};
    if (disk->free_tasks.count == 0)
        return (struct refusal){MC_ERR_BUSY, MC_STORE_DISK_BUSY};
    return (struct refusal){0};
}

/* Within the lock. */
static void day_turn(struct mc_disk *disk)
{
    uint64_t now_ns = mc_disk_now(disk);
    if (now_ns < disk->day_end_ns)
        return;
    disk->day_end_ns = now_ns + MC_DISK_DAY_NS;
    disk->day_bytes = 0;
}

void mc_disk_day_count(struct mc_disk *disk, uint64_t bytes)
{
    pthread_mutex_lock(&disk->lock);
    day_turn(disk);
    disk->day_bytes += bytes;
    pthread_mutex_unlock(&disk->lock);
}

/* Within the lock. The day's bytes are counted when they are taken. */
static struct refusal store_admit(struct mc_disk *disk, const struct mc_disk_task *task, bool was_hit)
{
    if (task->entry.generation < disk->marked.floor)
        return (struct refusal){MC_ERR_STALE, MC_STORE_DISK_STALE};
    day_turn(disk);
    if (disk->config.budget_bytes > 0 && !was_hit && disk->day_bytes + task->bytes > disk->config.budget_bytes)
        return (struct refusal){MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS, MC_STORE_DISK_BUDGET};
    disk->day_bytes += task->bytes;
    return (struct refusal){0};
}

/* A copy of *task goes to the disk's thread. */
static int task_submit(struct mc_disk *disk, const struct mc_disk_task *wanted, bool was_hit)
{
    pthread_mutex_lock(&disk->lock);
    struct refusal refusal = refusal_of(disk, wanted->kind);
    if (refusal.code == 0 && wanted->kind == MC_DISK_TASK_STORE)
        refusal = store_admit(disk, wanted, was_hit);
    if (refusal.code == 0) {
        struct mc_disk_task *task = mc_disk_queue_take(&disk->free_tasks);
        *task = *wanted;
        task->is_used = true;
        mc_disk_queue_add(&disk->inbox, task);
    }
    pthread_mutex_unlock(&disk->lock);
    if (refusal.code == 0) {
        disk->config.ports->wake(disk->io);
        return 0;
    }
    atomic_fetch_add_explicit(&disk->refused, 1, memory_order_relaxed);
    if (wanted->kind == MC_DISK_TASK_STORE)
        mc_disk_not_stored(disk, refusal.reason);
    return refusal.code;
}

uint64_t mc_disk_object_max(const struct mc_disk *disk, uint32_t key_length)
{
    uint64_t low = 0, high = disk->region_bytes; /* the largest that is sane lies in [low, high) */
    struct mc_disk_entry entry = {.generation = 1, .key_length = (uint16_t)key_length};
    while (high - low > 1) {
        uint64_t length = low + (high - low) / 2;
        entry.length = (uint32_t)length; /* below the size of a region */
        entry.block_shift = mc_block_shift(length);
        *(mc_disk_entry_is_sane(&entry, disk->region_bytes) ? &low : &high) = length;
    }
    return low;
}

uint8_t *mc_disk_lend(struct mc_disk *disk, uint64_t length, uint32_t key_length)
{
    if (length == 0 || length >= disk->region_bytes || key_length > MC_KEY_LENGTH_MAX)
        return NULL;
    uint8_t *buffer = NULL;
    if (!atomic_load(
            &disk->is_buffer_wanted)) /* what comes back is for reads: small stores would take it piece by piece */
        buffer = mc_disk_buffers_lend(&disk->buffers, mc_disk_extent_bytes(length, key_length),
                                      disk->config.buffer_bytes / MC_DISK_STORE_PART);
    if (buffer == NULL)
        mc_disk_not_stored(disk, MC_STORE_DISK_BUFFERS);
    return buffer;
}

void mc_disk_give_back(struct mc_disk *disk, uint8_t *buffer)
{
    mc_disk_buffers_give_back(&disk->buffers, buffer);
    if (atomic_load(&disk->is_buffer_wanted))
        disk->config.ports->wake(disk->io);
}

int mc_disk_store(struct mc_disk *disk, uint32_t slot, const struct mc_disk_entry *entry, uint8_t *buffer, bool was_hit,
                  mc_disk_stored *done, void *context)
{
    if (slot >= disk->slot_count || !mc_disk_entry_is_sane(entry, disk->region_bytes))
        return MC_ERR_INVALID_PARAMS;
    struct mc_hash hash = mc_hash(buffer + mc_key_offset(entry->length), entry->key_length);
    if (hash.low != entry->hash.low || hash.high != entry->hash.high) /* no one could find it again */
        return MC_ERR_INVALID_PARAMS;
    struct mc_disk_task task = {.kind = MC_DISK_TASK_STORE,
                                .slot = slot,
                                .entry = *entry,
                                .bytes = mc_disk_extent_bytes(entry->length, entry->key_length),
                                .buffer = buffer,
                                .since_ns = mc_disk_now(disk),
                                .answer.stored = done,
                                .context = context};
    return task_submit(disk, &task, was_hit);
}

int mc_disk_read(struct mc_disk *disk, struct mc_disk_place place, uint64_t until_ns, mc_disk_was_read *done,
                 void *context)
{
    struct mc_disk_task task = {.kind = MC_DISK_TASK_READ,
                                .slot = place.slot,
                                .entry.generation = place.generation,
                                .since_ns = mc_disk_now(disk),
                                .until_ns = until_ns,
                                .answer.was_read = done,
                                .context = context};
    return task_submit(disk, &task, false);
}

int mc_disk_clear(struct mc_disk *disk, const struct mc_disk_place *places, size_t count, bool is_removal,
                  mc_disk_done *done, void *context)
{
    struct mc_disk_task task = {.kind = MC_DISK_TASK_CLEAR,
                                .is_removal = is_removal,
                                .places = places,
                                .count = count,
                                .answer.done = done,
                                .context = context};
    return task_submit(disk, &task, false);
}

int mc_disk_set_mark(struct mc_disk *disk, const struct mc_disk_mark *mark, mc_disk_done *done, void *context)
{
    struct mc_disk_task task = {.kind = MC_DISK_TASK_MARK, .mark = *mark, .answer.done = done, .context = context};
    return task_submit(disk, &task, false);
}

int mc_disk_inventory(struct mc_disk *disk, uint64_t cursor, mc_disk_each *each, mc_disk_listed *done, void *context)
{
    struct mc_disk_task task = {
        .kind = MC_DISK_TASK_INVENTORY, .cursor = cursor, .each = each, .answer.listed = done, .context = context};
    return task_submit(disk, &task, false);
}

void mc_disk_forked(struct mc_disk *disk)
{
    for (uint32_t i = 0; i < disk->volume_count; i++)
        if (disk->volume_fds[i] >= 0)
            close(disk->volume_fds[i]);
    if (disk->append.growing_fd >= 0)
        close(disk->append.growing_fd);
    mc_disk_directory_close(&disk->directory);
    disk->config.ports->close(disk->io); /* it sees that it is the child's copy */
}

uint32_t mc_disk_slot_count(const struct mc_disk *disk)
{
    return disk->slot_count;
}

struct mc_id mc_disk_id(const struct mc_disk *disk)
{
    return disk->directory.super.segment_id;
}

const char *mc_disk_directory(const struct mc_disk *disk)
{
    return disk->directory.path;
}

struct mc_disk_mark mc_disk_marked(const struct mc_disk *disk)
{
    struct mc_disk *changeable = (struct mc_disk *)disk; /* only its lock */
    pthread_mutex_lock(&changeable->lock);
    struct mc_disk_mark mark = disk->marked;
    pthread_mutex_unlock(&changeable->lock);
    return mark;
}

/* ---- marks ---- */

static void mark_ended(struct mc_disk_flight *flight, int64_t result)
{
    struct mc_disk *disk = flight->disk;
    if (result >= 0 && !disk->mark_is_syncing) {
        disk->mark_is_syncing = true;
        mc_disk_flight_start(disk, flight, MC_DISK_SYNC, disk->directory.identity_fd, NULL, 0, 0, mark_ended);
        return;
    }
    disk->mark_is_busy = false;
    pthread_mutex_lock(&disk->lock);
    if (result >= 0)
        disk->marked = disk->directory.super.mark;
    pthread_mutex_unlock(&disk->lock);
    if (result < 0)
        disk->directory.super.sequence--; /* the next goes to that place again, and not to that of the valid one */
    for (; disk->marks_written > 0; disk->marks_written--) {
        struct mc_disk_task *task = mc_disk_queue_take(&disk->marks);
        mc_disk_task_answer(task, result < 0 ? MC_ERR_FILE_WRITE_FAIL : 0);
        mc_disk_task_free(disk, task);
    }
}

/* The two superblocks in turn: the one that is valid and later is not touched. Of several marks that wait the last
 * stands for all: a disk that has hung for long is not kept busy with what was true then. */
static void marks_turn(struct mc_disk *disk)
{
    struct mc_disk_super *super = &disk->directory.super;
    if (disk->mark_is_busy || disk->marks.count == 0)
        return;
    disk->mark_is_busy = true;
    disk->mark_is_syncing = false;
    disk->marks_written = disk->marks.count;
    super->mark = disk->marks.last->mark;
    super->sequence++;
    mc_disk_super_put(disk->mark_page, super);
    mc_disk_flight_start(disk, &disk->mark_flight, MC_DISK_WRITE, disk->directory.identity_fd, disk->mark_page,
                         MC_DISK_PAGE, super->sequence % MC_DISK_SUPER_COUNT * MC_DISK_PAGE, mark_ended);
}

/* ---- the loop ---- */

void mc_disk_ready(struct mc_disk *disk, int code)
{
    mc_disk_statistics_show(disk,
                            true); /* before anybody who is told calls: what lies there decides how it is mounted */
    if (disk->config.ready != NULL)
        disk->config.ready(disk->config.context, code, disk->index.count);
}

static void task_dispatch(struct mc_disk *disk, struct mc_disk_task *task)
{
    bool is_slow = disk->health == MC_DISK_SLOW;
    if ((task->kind == MC_DISK_TASK_STORE && disk->health != MC_DISK_WELL) ||
        (task->kind == MC_DISK_TASK_READ && is_slow)) { /* it was well when the call was taken */
        if (task->kind == MC_DISK_TASK_STORE)
            mc_disk_not_stored(disk, is_slow ? MC_STORE_DISK_SLOW : MC_STORE_DISK_READ_ONLY);
        mc_disk_task_answer(task, is_slow ? MC_ERR_BUSY : MC_ERR_FILE_WRITE_FAIL);
        mc_disk_task_free(disk, task);
        return;
    }
    switch (task->kind) {
    case MC_DISK_TASK_STORE:
        mc_disk_pending_add(disk, task);
        break;
    case MC_DISK_TASK_READ:
        mc_disk_read_start(disk, task);
        break;
    case MC_DISK_TASK_CLEAR:
        mc_disk_journal_clear(disk, task);
        break;
    case MC_DISK_TASK_MARK:
        mc_disk_queue_add(&disk->marks, task);
        break;
    case MC_DISK_TASK_INVENTORY:
        mc_disk_inventory_start(disk, task);
        break;
    case MC_DISK_TASK_REWRITE:
        break;
    }
}

static void inbox_take(struct mc_disk *disk)
{
    pthread_mutex_lock(&disk->lock);
    struct mc_disk_queue inbox = disk->inbox;
    disk->inbox = (struct mc_disk_queue){0};
    pthread_mutex_unlock(&disk->lock);
    while (inbox.count > 0)
        task_dispatch(disk, mc_disk_queue_take(&inbox));
}

static int until_ms(uint64_t now_ns, uint64_t at_ns, int most)
{
    if (at_ns <= now_ns)
        return 0;
    uint64_t ms = (at_ns - now_ns + 999999) / 1000000;
    return ms < (uint64_t)most ? (int)ms : most;
}

/* When there is something to do though nothing ends. */
static int wait_ms(const struct mc_disk *disk, uint64_t now_ns, int most)
{
    int ms = until_ms(now_ns, disk->deadline_ns, most);
    if (disk->pending.count > 0 && disk->groups_used > 0 && disk->groups_used < MC_DISK_GROUPS_MAX) {
        uint64_t linger_ns = disk->pending.first->since_ns + disk->config.linger_ms * 1000000ull;
        if (linger_ns > now_ns) /* else it waits for a region */
            ms = until_ms(now_ns, linger_ns, ms);
    }
    if (disk->journal.gathered_count > 0 && disk->journal.stage == MC_DISK_JOURNAL_IDLE)
        ms = until_ms(now_ns, disk->journal.gathered_ns + MC_DISK_CLEARS_WAIT_NS, ms);
    if (disk->journal.again_ns != 0)
        ms = until_ms(now_ns, disk->journal.again_ns, ms);
    uint64_t slow_at_ns = mc_disk_slow_at_ns(disk);
    if (slow_at_ns != UINT64_MAX && disk->health == MC_DISK_WELL)
        ms = until_ms(now_ns, slow_at_ns + 1, ms);
    return ms;
}

void mc_disk_turn(struct mc_disk *disk, int timeout_ms)
{
    if (disk->is_dead) {
        (void)disk->config.ports->collect(disk->io, timeout_ms);
        return;
    }
    uint64_t now_ns = mc_disk_now(disk);
    inbox_take(disk);
    mc_disk_deadlines_turn(disk, now_ns);
    if (disk->health != MC_DISK_RECOVERING && disk->health != MC_DISK_CLOSED) {
        mc_disk_health_turn(disk, now_ns);
        mc_disk_reads_turn(disk);
        mc_disk_groups_turn(disk, now_ns);
        mc_disk_region_turn(disk);
        mc_disk_victim_turn(disk);
        mc_disk_journal_turn(disk, now_ns);
        marks_turn(disk);
    }
    mc_disk_statistics_show(disk, false);
    (void)disk->config.ports->collect(disk->io, wait_ms(disk, now_ns, timeout_ms));
}

/* ---- the end ---- */

static void final_sync_ended(struct mc_disk_flight *flight, int64_t result)
{
    (void)result; /* an object that is lost by it does not prove itself */
    flight->disk->final_syncs--;
}

/* Nothing is under way and nobody waits. True: what was written is synced, too. */
static bool is_finished(struct mc_disk *disk)
{
    pthread_mutex_lock(&disk->lock);
    bool is_empty = disk->free_tasks.count == MC_DISK_TASKS_MAX;
    pthread_mutex_unlock(&disk->lock);
    if (disk->health == MC_DISK_RECOVERING)
        return false;
    if (disk->health == MC_DISK_CLOSED)
        return disk->flights == 0;
    if (!is_empty || !mc_disk_journal_is_idle(disk) || disk->victim.rewrites > 0)
        return false;
    if (disk->final_syncs == 0 && disk->append.open != MC_DISK_NO_REGION) {
        disk->final_syncs = 2;
        mc_disk_flight_start(disk, &disk->walk_flight, MC_DISK_SYNC, mc_disk_region_fd(disk, disk->append.open), NULL,
                             0, 0, final_sync_ended);
    }
    return disk->flights == 0;
}

/* The grace is over: all that waits is answered, and what is under way is only waited for. */
static void all_abandon(struct mc_disk *disk)
{
    disk->is_dead = true;
    for (uint32_t i = 0; i < MC_DISK_TASKS_MAX; i++) {
        struct mc_disk_task *task = &disk->tasks[i];
        if (task->is_used)
            mc_disk_task_answer(task, MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS);
    }
}

/* May wait for a file system that does not answer: buffered files are written by it. */
static void files_close(struct mc_disk *disk)
{
    for (uint32_t i = 0; disk->volume_fds != NULL && i < disk->volume_count; i++) {
        if (disk->volume_fds[i] >= 0)
            close(disk->volume_fds[i]);
    }
    if (disk->append.growing_fd >= 0)
        close(disk->append.growing_fd);
    mc_disk_directory_release(&disk->directory);
}

static void disk_free(struct mc_disk *disk)
{
    mc_disk_recovery_free(disk);
    mc_disk_journal_free(disk);
    mc_disk_index_free(&disk->index);
    mc_disk_buffers_free(&disk->buffers);
    for (uint32_t i = 0; disk->groups != NULL && i < MC_DISK_GROUPS_MAX; i++)
        free(disk->groups[i].buffer);
    free(disk->groups);
    free(disk->append.footers[1].bytes);
    free(disk->append.footers[0].bytes);
    free(disk->append.header_page);
    free(disk->page_slots);
    free(disk->walk_bytes);
    free(disk->mark_page);
    free(disk->volume_fds);
    free(disk->regions);
    free(disk->tasks);
    pthread_mutex_destroy(&disk->shown_lock);
    mc_monitor_destroy(&disk->lock, &disk->changed);
    free(disk);
}

/* Nobody else has the disk any more: until then others may wake its io. */
static void disk_end(struct mc_disk *disk)
{
    disk->config.ports->close(disk->io);
    disk_free(disk);
}

static void io_drain(struct mc_disk *disk)
{
    while (disk->flights > 0)
        (void)disk->config.ports->collect(disk->io, WAIT_MS_MAX);
}

/* Turns until it is stopped and finished, or its grace is over. */
static void turn_to_the_end(struct mc_disk *disk)
{
    for (;;) {
        pthread_mutex_lock(&disk->lock);
        bool is_stopping = disk->is_stopping;
        uint64_t end_ns = disk->grace_end_ns, now_ns = mc_disk_now(disk);
        pthread_mutex_unlock(&disk->lock);
        if (is_stopping && (now_ns >= end_ns || is_finished(disk)))
            break;
        mc_disk_turn(disk, is_stopping ? until_ms(now_ns, end_ns, STOP_WAIT_MS) : WAIT_MS_MAX);
    }
    all_abandon(disk);
}

static void *disk_run(void *argument)
{
    struct mc_disk *disk = argument;
    turn_to_the_end(disk);
    pthread_mutex_lock(&disk->lock);
    disk->is_answered = true;
    pthread_cond_signal(&disk->changed);
    pthread_mutex_unlock(&disk->lock);
    if (disk->flights > 0)
        mc_log(WARNING, "the disk %s does not end what it began; a thread waits for it", disk->directory.path);
    io_drain(disk);
    files_close(disk);
    pthread_mutex_lock(&disk->lock);
    disk->is_over = true;
    bool is_abandoned = disk->is_abandoned;
    pthread_cond_signal(&disk->changed);
    pthread_mutex_unlock(&disk->lock);
    if (is_abandoned) {                          /* the closer has gone, and the disk is this thread's */
        while (!atomic_load(&disk->closer_left)) /* a few instructions; in its way out it still holds the lock */
            sched_yield();
        disk_end(disk);
    }
    return NULL;
}

void mc_disk_stop(struct mc_disk *disk, uint32_t grace_ms)
{
    pthread_mutex_lock(&disk->lock);
    if (!disk->is_stopping)
        disk->grace_end_ns = mc_disk_now(disk) + grace_ms * 1000000ull;
    disk->is_stopping = true;
    pthread_mutex_unlock(&disk->lock);
    disk->config.ports->wake(disk->io);
}

void mc_disk_close(struct mc_disk *disk, uint32_t grace_ms)
{
    mc_disk_stop(disk, grace_ms);
    if (disk->config.has_no_thread) {
        turn_to_the_end(disk);
        io_drain(disk);
        files_close(disk);
        disk_end(disk);
        return;
    }
    pthread_t thread = disk->thread;
    pthread_mutex_lock(&disk->lock);
    while (!disk->is_answered)
        pthread_cond_wait(&disk->changed, &disk->lock);
    uint64_t until_ns = disk->grace_end_ns, least_ns = mc_disk_now(disk) + CLOSE_WAIT_NS;
    until_ns = until_ns < least_ns ? least_ns : until_ns;
    while (!disk->is_over && mc_monitor_wait(&disk->lock, &disk->changed, until_ns) == 0)
        continue;
    bool is_abandoned = disk->is_abandoned = !disk->is_over;
    pthread_mutex_unlock(&disk->lock);
    if (is_abandoned) {
        pthread_detach(thread);
        atomic_store(&disk->closer_left, true);
        return;
    }
    pthread_join(thread, NULL);
    disk_end(disk);
}

/* ---- opening ---- */

/* Large ones waste less behind their last object and take larger ones; of many, one given up is a small part. */
static uint64_t region_bytes_for(uint64_t capacity)
{
    uint64_t bytes = MC_DISK_REGION_BYTES;
    while (bytes < MC_DISK_REGION_BYTES_GOOD && capacity / (2 * bytes) >= MC_DISK_REGIONS_GOOD)
        bytes *= 2;
    return bytes;
}

static int config_check(struct mc_disk_config *config, char *error, size_t error_size)
{
    uint64_t bytes = config->region_bytes == 0 ? region_bytes_for(config->capacity) : config->region_bytes;
    config->region_bytes = bytes;
    config->linger_ms = config->linger_ms == 0 ? MC_DISK_LINGER_MS : config->linger_ms;
    config->slow_ms = config->slow_ms == 0 ? MC_DISK_SLOW_MS : config->slow_ms;
    config->clock_ns = config->clock_ns == NULL ? mc_clock_ns : config->clock_ns;
    const char *what = NULL;
    if (config->capacity / bytes < MC_DISK_REGIONS_MIN) {
        (void)snprintf(error, error_size,
                       "the disk %s: it may take %" PRIu64 " bytes, and needs at least %u regions of %" PRIu64 " bytes",
                       config->path, config->capacity, MC_DISK_REGIONS_MIN, bytes);
        return MC_ERR_INVALID_PARAMS;
    }
    if (bytes < MC_DISK_REGION_BYTES_MIN || bytes > MC_DISK_REGION_BYTES_MAX || (bytes & (bytes - 1)) != 0)
        what = "the size of a region must be a power of two between 1 MiB and 1 GiB";
    else if (config->capacity / bytes > MC_DISK_REGIONS_MAX)
        what = "the capacity must be at most 1048576 regions";
    else if (config->objects_max > MC_DISK_OBJECTS_MAX)
        what = "at most 16777216 objects";
    if (what == NULL)
        return 0;
    (void)snprintf(error, error_size, "the disk %s: %s", config->path, what);
    return MC_ERR_INVALID_PARAMS;
}

/* Volumes that begin beyond the capacity are emptied. */
static int volumes_cut(struct mc_disk *disk)
{
    for (uint32_t number = disk->volume_count;; number++) {
        int fd = mc_disk_directory_volume(&disk->directory, number, false);
        if (fd < 0)
            return errno == ENOENT ? 0 : MC_ERR_FILE_OPEN_FAIL;
        mc_disk_file_settle(fd);
        bool is_cut = ftruncate(fd, 0) == 0 && fdatasync(fd) == 0;
        close(fd);
        if (!is_cut)
            return MC_ERR_FILE_OPEN_FAIL;
    }
}

/* What is there already. Regions beyond the capacity are cut off: they must not be found by a later, larger one. */
static int volumes_open(struct mc_disk *disk)
{
    for (uint32_t number = 0; number < disk->volume_count; number++) {
        struct stat status;
        int fd = disk->volume_fds[number] = mc_disk_directory_volume(&disk->directory, number, false);
        if (fd < 0 && errno == ENOENT)
            continue;
        if (fd < 0)
            return MC_ERR_FILE_OPEN_FAIL;
        mc_disk_file_settle(fd);
        if (fstat(fd, &status) != 0)
            return MC_ERR_FILE_OPEN_FAIL;
        uint32_t first = number * MC_DISK_VOLUME_REGIONS, most = disk->region_count - first;
        uint64_t there = (uint64_t)status.st_size / disk->region_bytes;
        most = most > MC_DISK_VOLUME_REGIONS ? MC_DISK_VOLUME_REGIONS : most;
        if (there > most && ftruncate(fd, (off_t)(most * disk->region_bytes)) != 0)
            return MC_ERR_FILE_OPEN_FAIL;
        for (uint32_t i = 0; i < most && i < there; i++) {
            disk->regions[first + i].state = MC_DISK_REGION_SEALING; /* until it was looked at */
            disk->regions_there++;
        }
    }
    return volumes_cut(disk);
}

static uint8_t *pages_allocate(uint64_t bytes)
{
    return aligned_alloc(MC_DISK_IO_ALIGNMENT, mc_disk_page_up(bytes));
}

static int tables_allocate(struct mc_disk *disk)
{
    uint32_t footer = mc_disk_footer_max(disk->region_bytes) + 2 * MC_DISK_PAGE;
    uint64_t objects = disk->config.capacity / MC_DISK_OBJECT_BYTES;
    uint64_t most = disk->config.capacity / MC_DISK_PAGE; /* what is found may be more than is stored now */
    objects = objects > MC_DISK_OBJECTS_MAX ? MC_DISK_OBJECTS_MAX : objects;
    disk->objects_max = disk->config.objects_max != 0 ? disk->config.objects_max : (uint32_t)objects;
    disk->slot_count = disk->objects_max;
    disk->region_objects_max = disk->objects_max / 8 + 1; /* what goes at once, when objects are few or small */
    if (disk->region_objects_max < disk->objects_max / disk->region_count * 2)
        disk->region_objects_max = disk->objects_max / disk->region_count * 2;
    most = most > 4ull * MC_DISK_OBJECTS_MAX ? 4ull * MC_DISK_OBJECTS_MAX : most;
    most = most < disk->objects_max ? disk->objects_max : most;
    disk->group_buffer_bytes = (uint32_t)(disk->region_bytes / 4);
    if (disk->group_buffer_bytes > MC_DISK_GROUP_BUFFER_MAX)
        disk->group_buffer_bytes = MC_DISK_GROUP_BUFFER_MAX;
    disk->tasks = calloc(MC_DISK_TASKS_MAX + MC_DISK_REWRITES_MAX, sizeof(*disk->tasks));
    disk->regions = calloc(disk->region_count, sizeof(*disk->regions));
    disk->volume_fds = malloc(disk->volume_count * sizeof(*disk->volume_fds));
    if (disk->volume_fds != NULL)
        memset(disk->volume_fds, 0xff, disk->volume_count * sizeof(*disk->volume_fds)); /* -1 */
    disk->groups = calloc(MC_DISK_GROUPS_MAX, sizeof(*disk->groups));
    disk->append.header_page = pages_allocate(MC_DISK_PAGE);
    disk->append.footers[0].bytes = pages_allocate(footer);
    disk->append.footers[1].bytes = pages_allocate(footer);
    disk->mark_page = pages_allocate(MC_DISK_PAGE);
    disk->walk_bytes = pages_allocate(mc_disk_walk_bytes(disk->region_bytes));
    disk->page_slots = calloc(disk->region_bytes / MC_DISK_PAGE, sizeof(*disk->page_slots));
    if (disk->tasks == NULL || disk->regions == NULL || disk->volume_fds == NULL || disk->groups == NULL ||
        disk->append.header_page == NULL || disk->append.footers[0].bytes == NULL ||
        disk->append.footers[1].bytes == NULL || disk->mark_page == NULL || disk->walk_bytes == NULL ||
        disk->page_slots == NULL)
        return MC_ERR_NO_MEMORY;
    for (uint32_t i = 0; i < disk->region_count; i++)
        disk->regions[i].first = MC_DISK_NO_SLOT;
    mc_disk_pieces_init(disk);
    for (uint32_t i = 0; i < MC_DISK_TASKS_MAX; i++)
        mc_disk_queue_add(&disk->free_tasks, &disk->tasks[i]);
    for (uint32_t i = 0; i < MC_DISK_GROUPS_MAX; i++) {
        disk->groups[i].buffer = pages_allocate(disk->group_buffer_bytes);
        if (disk->groups[i].buffer == NULL)
            return MC_ERR_NO_MEMORY;
    }
    int rc = mc_disk_index_init(&disk->index, (uint32_t)most);
    if (rc == 0)
        rc = mc_disk_buffers_init(&disk->buffers, disk->config.buffer_bytes);
    return rc < 0 ? rc : mc_disk_journal_init(disk);
}

static void nobody_hears(void *context, const struct mc_disk_place *places, size_t count)
{
    (void)context, (void)places, (void)count;
}

static void disk_init(struct mc_disk *disk, const struct mc_disk_config *config)
{
    disk->config = *config;
    if (config->lost == NULL)
        disk->config.lost = nobody_hears;
    disk->health = disk->told = disk->shown.health = MC_DISK_RECOVERING;
    disk->region_bytes = disk->directory.super.region_bytes;
    disk->region_count = (uint32_t)(config->capacity / disk->region_bytes);
    disk->volume_count = (disk->region_count + MC_DISK_VOLUME_REGIONS - 1) / MC_DISK_VOLUME_REGIONS;
    disk->append.open = disk->append.sealing = disk->append.growing = disk->victim.region = disk->victim.unread =
        MC_DISK_NO_REGION;
    disk->append.growing_fd = -1;
    disk->victim.next = MC_DISK_NO_SLOT;
    disk->deadline_ns = UINT64_MAX;
    disk->marked = disk->directory.super.mark;
    disk->day_end_ns = mc_disk_now(disk) + MC_DISK_DAY_NS;
}

int mc_disk_open(const struct mc_disk_config *wanted, struct mc_disk **opened, char *error, size_t error_size)
{
    struct mc_disk_config config = *wanted;
    struct mc_disk *disk = calloc(1, sizeof(*disk));
    int rc = disk == NULL ? MC_ERR_NO_MEMORY : config_check(&config, error, error_size);
    if (rc < 0)
        goto fail;
    rc = mc_disk_directory_open(&disk->directory, &config, error, error_size);
    if (rc < 0)
        goto fail;
    if (config.buffer_bytes == 0) /* the size of a region is that of the directory now */
        config.buffer_bytes = 2 * disk->directory.super.region_bytes > MC_DISK_BUFFER_BYTES
                                  ? 2 * disk->directory.super.region_bytes
                                  : MC_DISK_BUFFER_BYTES;
    mc_monitor_init(&disk->lock, &disk->changed);
    pthread_mutex_init(&disk->shown_lock, NULL);
    disk_init(disk, &config);
    const char *why = "its buffers must hold two regions, its capacity four";
    rc = disk->region_count < MC_DISK_REGIONS_MIN || config.buffer_bytes < 2 * disk->region_bytes
             ? MC_ERR_INVALID_PARAMS
             : 0;
    if (rc == 0) {
        why = "no memory, or its volumes cannot be opened";
        rc = tables_allocate(disk);
    }
    if (rc == 0)
        rc = volumes_open(disk);
    if (rc < 0)
        goto fail_open;
    why = "no queue of operations";
    if (config.ports->open(config.io_kind, MC_DISK_IO_DEPTH_MAX, &disk->io) != 0) {
        rc = MC_ERR_NO_MEMORY;
        goto fail_open;
    }
    rc = mc_disk_recovery_start(disk);
    why = "no memory, or no thread";
    if (rc == 0 && !config.has_no_thread && mc_thread_start(&disk->thread, "mc-disk", disk_run, disk) != 0)
        rc = MC_ERR_NO_MEMORY;
    if (rc < 0)
        goto fail_io;
    *opened = disk;
    return 0;
fail_io:
    disk->is_dead = true;
    io_drain(disk);
    disk->config.ports->close(disk->io);
fail_open:
    (void)snprintf(error, error_size, "the disk %s: %s", disk->directory.path, why);
    files_close(disk);
    disk_free(disk);
    return rc;
fail:
    free(disk);
    return rc;
}
