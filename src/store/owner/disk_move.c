/* The mover: copies what is to be stored out of the memory segment, verified, and what was loaded into it. */
#include "store/owner/inside.h"

#include "base/checksum.h"
#include "base/error.h"
#include "env/clock.h"
#include "env/log.h"
#include "env/thread.h"
#include "store/segment/pin.h"

#include <stdlib.h>
#include <string.h>

#define WRITE_MS 1000u /* to find a place among those who announce copies */
#define SHORT_MS 2u    /* until a store is tried again when the disk has no buffer free, */
#define BUSY_MS 50u    /* and when it takes nothing now */

struct mc_mover {
    struct mc_owner *owner;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct mc_move *first, *last;
    struct mc_move *stores, **stores_end; /* apart: one that waits for its disk holds up no load */
    bool stop;
};

void mc_owner_move_check(const struct mc_move *move)
{
    struct mc_owner *owner = move->disk->owner;
    if (move->code == MC_ERR_CHECKSUM_MISMATCH && move->memory == owner->memory)
        (void)mc_scrub_check(owner->scrub, move->memory_slot, move->memory_generation); /* else it looks in its turn */
}

static void on_ended(void *argument)
{
    mc_owner_move_ended(argument);
}

/* From any thread: the move goes back to the serve thread, without its buffer: by then the disk may be closed. */
static void end_move(struct mc_move *move, int code)
{
    if (move->buffer != NULL)
        mc_disk_give_back(move->files, move->buffer);
    move->buffer = NULL;
    move->code = code;
    mc_serve_post(move->disk->owner->serve, on_ended, move);
}

/* ---- storing ---- */

/* The bytes that were copied are those of the slot: every block matches its sum. */
static bool is_sound(const uint8_t *bytes, const struct mc_slot *slot)
{
    uint32_t table_length = mc_table_length(slot->length, slot->block_shift);
    const uint8_t *table = bytes + mc_table_offset(slot->length);
    uint64_t block = 1ull << slot->block_shift;
    if (table_length == 0)
        return mc_crc32c(0, bytes, slot->length) == slot->crc;
    if (mc_crc32c(0, table, table_length) != slot->crc)
        return false;
    for (uint64_t at = 0, i = 0; at < slot->length; at += block, i++) {
        uint64_t length = slot->length - at < block ? slot->length - at : block;
        uint32_t sum;
        memcpy(&sum, table + i * sizeof(sum), sizeof(sum));
        if (mc_crc32c(0, bytes + at, length) != sum)
            return false;
    }
    return true;
}

/* 0 and the move's entry and buffer, which are of one generation and sound. */
static int copy_out(struct mc_move *move)
{
    struct mc_segment_memory *memory = move->memory;
    struct mc_slot copy;
    if (move->memory_slot >= mc_segment_memory_slot_count(memory))
        return MC_ERR_INVALID_PARAMS;
    const struct mc_slot *slot = &mc_segment_memory_slots(memory)[move->memory_slot];
    if (!mc_slot_read(slot, move->memory_generation, &copy))
        return MC_ERR_REPLICA_IS_GONE;
    uint64_t bytes = mc_key_offset(copy.length) + copy.key_length;
    if (copy.length > UINT32_MAX)
        return MC_ERR_INVALID_PARAMS; /* no disk takes it */
    if (copy.offset > mc_segment_memory_data_size(memory) ||
        bytes > mc_segment_memory_data_size(memory) - copy.offset || copy.block_shift != mc_block_shift(copy.length))
        return MC_ERR_REPLICA_IS_GONE;
    move->buffer = mc_disk_lend(move->files, copy.length, copy.key_length);
    if (move->buffer == NULL)
        return MC_ERR_BUSY;
    memcpy(move->buffer, mc_segment_memory_data(memory) + copy.offset, bytes);
    if (!mc_slot_unchanged(slot, move->memory_generation))
        return MC_ERR_REPLICA_IS_GONE;
    if (!is_sound(move->buffer, &copy))
        return MC_ERR_CHECKSUM_MISMATCH;
    move->entry = (struct mc_disk_entry){.generation = move->disk_generation,
                                         .version = move->version,
                                         .length = (uint32_t)copy.length,
                                         .group = copy.group,
                                         .hash = {copy.hash_low, copy.hash_high},
                                         .crc = copy.crc,
                                         .key_length = copy.key_length,
                                         .block_shift = copy.block_shift};
    uint64_t pin_ms, is_pinned = copy.flags & MC_PIN_SAID; /* from one clock to the other */
    uint8_t pins = mc_pin_read(copy.flags, copy.pin, is_pinned ? mc_clock_boot_ms() : 0, &pin_ms);
    move->entry.flags = mc_pin_write(pins, pin_ms, is_pinned ? mc_clock_wall_ms() : 0, move->entry.pin);
    return 0;
}

/* On the disk's thread. */
static void on_stored(void *context, int code, uint32_t slot)
{
    struct mc_move *move = context;
    (void)slot;
    move->buffer = NULL; /* the disk has it */
    if (code == MC_ERR_BUSY)
        mc_mover_add(move->disk->owner->mover, move); /* it has become slow meanwhile */
    else
        end_move(move, code);
}

/* A disk that is busy has it later, as long as memory has the value and it is wanted. */
static void store_move(struct mc_mover *mover, struct mc_move *move)
{
    int rc = atomic_load(&move->is_cleared) ? MC_ERR_STALE : copy_out(move);
    uint64_t wait_ms = SHORT_MS;
    if (rc == 0) {
        wait_ms = BUSY_MS;
        rc = mc_disk_store(move->files, move->disk_slot, &move->entry, move->buffer, move->was_hit, on_stored, move);
    }
    if (rc != MC_ERR_BUSY) {
        if (rc < 0)
            end_move(move, rc);
        return;
    }
    if (move->buffer != NULL)
        mc_disk_give_back(move->files, move->buffer);
    move->buffer = NULL;
    move->disk->busy_until_ns = mc_clock_ns() + wait_ms * 1000000;
    mc_mover_add(mover, move);
}

/* ---- loading ---- */

void mc_owner_move_load(struct mc_move *move, const struct mc_wire_load_item *item)
{
    move->memory_slot = item->slot;
    move->memory_generation = item->generation;
    move->disk_slot = item->disk_slot;
    move->disk_generation = item->disk_generation;
    move->offset = item->offset;
    move->replica = item->replica;
    move->is_unpinned = (item->flags & MC_LOAD_UNPINNED) != 0;
}

/* The value is in the buffer, verified; into the extent, as a writer of this process does it. */
static int copy_in(struct mc_move *move)
{
    const struct mc_disk_entry *entry = &move->entry;
    struct mc_local_write write;
    uint64_t bytes = mc_key_offset(entry->length) + entry->key_length;
    int rc = mc_segment_memory_write_begin(move->memory, &write, move->memory_slot, move->memory_generation,
                                           move->offset, mc_extent_size(entry->length, entry->key_length),
                                           mc_clock_ns() + WRITE_MS * 1000000ull);
    if (rc < 0)
        return rc;
    memcpy(mc_segment_memory_data(move->memory) + move->offset, move->buffer, bytes);
    uint64_t pin_ms, now_ms = (entry->flags & MC_PIN_SAID) == 0 ? 0 : mc_clock_wall_ms();
    struct mc_wire_commit_item commit = {.slot = move->memory_slot,
                                         .crc = entry->crc,
                                         .generation = move->memory_generation,
                                         .offset = move->offset,
                                         .length = entry->length,
                                         .hash_low = entry->hash.low,
                                         .hash_high = entry->hash.high,
                                         .key_length = entry->key_length,
                                         .block_shift = entry->block_shift,
                                         .flags = mc_pin_read(entry->flags, entry->pin, now_ms, &pin_ms),
                                         .replica = move->replica,
                                         .group = entry->group};
    commit.pin_ms = pin_ms;
    if (move->is_unpinned)
        commit.flags &= MC_PUT_HARD_PIN;
    rc = mc_segment_memory_commit(move->memory, &commit);
    mc_segment_memory_write_end(move->memory, &write);
    return rc;
}

/* ---- the thread ---- */

/* The first store whose disk may take it by now, or that is to end; else *until_ns says when to look again. */
static struct mc_move *next_store(struct mc_mover *mover, uint64_t *until_ns)
{
    uint64_t now_ns = mc_clock_ns();
    *until_ns = UINT64_MAX;
    for (struct mc_move **at = &mover->stores; *at != NULL; at = &(*at)->next) {
        struct mc_move *move = *at;
        if (!mover->stop && now_ns < move->disk->busy_until_ns && !atomic_load(&move->is_cleared)) {
            *until_ns = *until_ns < move->disk->busy_until_ns ? *until_ns : move->disk->busy_until_ns;
            continue;
        }
        *at = move->next;
        if (*at == NULL)
            mover->stores_end = at;
        return move;
    }
    return NULL;
}

static struct mc_move *next_move(struct mc_mover *mover, bool *stop)
{
    struct mc_move *move = NULL;
    pthread_mutex_lock(&mover->lock);
    for (;;) {
        uint64_t until_ns;
        move = mover->first;
        if (move != NULL)
            mover->first = move->next;
        else
            move = next_store(mover, &until_ns);
        *stop = mover->stop;
        if (move != NULL || mover->stop)
            break;
        if (until_ns == UINT64_MAX)
            pthread_cond_wait(&mover->changed, &mover->lock);
        else
            (void)mc_monitor_wait(&mover->lock, &mover->changed, until_ns);
    }
    pthread_mutex_unlock(&mover->lock);
    return move;
}

/* What is left when it is to stop is told to have failed. */
static void *mover_main(void *argument)
{
    struct mc_mover *mover = argument;
    bool stop;
    for (struct mc_move *move; (move = next_move(mover, &stop)) != NULL;) {
        if (stop)
            end_move(move, MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS);
        else if (move->kind == MC_MOVE_STORE)
            store_move(mover, move);
        else
            end_move(move, move->code < 0 ? move->code : copy_in(move));
    }
    return NULL;
}

void mc_mover_add(struct mc_mover *mover, struct mc_move *move)
{
    move->next = NULL;
    pthread_mutex_lock(&mover->lock);
    if (mover->stop) { /* a disk that is being closed answers what it has still */
        pthread_mutex_unlock(&mover->lock);
        end_move(move, MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS);
        return;
    }
    if (move->kind == MC_MOVE_STORE) {
        *mover->stores_end = move;
        mover->stores_end = &move->next;
    } else {
        if (mover->first == NULL)
            mover->first = move;
        else
            mover->last->next = move;
        mover->last = move;
    }
    pthread_cond_signal(&mover->changed);
    pthread_mutex_unlock(&mover->lock);
}

int mc_mover_start(struct mc_owner *owner, struct mc_mover **result)
{
    struct mc_mover *mover = calloc(1, sizeof(*mover));
    if (mover == NULL)
        return MC_ERR_NO_MEMORY;
    mover->owner = owner;
    mover->stores_end = &mover->stores;
    mc_monitor_init(&mover->lock, &mover->changed);
    if (mc_thread_start(&mover->thread, "mc-mover", mover_main, mover) != 0) {
        mc_monitor_destroy(&mover->lock, &mover->changed);
        free(mover);
        return MC_ERR_NO_MEMORY;
    }
    *result = mover;
    return 0;
}

void mc_mover_stop(struct mc_mover *mover)
{
    pthread_mutex_lock(&mover->lock);
    mover->stop = true;
    pthread_cond_broadcast(&mover->changed);
    pthread_mutex_unlock(&mover->lock);
    pthread_join(mover->thread, NULL);
}

void mc_mover_free(struct mc_mover *mover)
{
    mc_monitor_destroy(&mover->lock, &mover->changed);
    free(mover);
}
