/* What lies on a disk, told to a master that does not know it: region by region as the disk lists it, in frames as the
 * answers come. All but the listing itself on the serve thread. */
#include "store/owner/inside.h"

#include "base/error.h"
#include "env/clock.h"
#include "store/segment/pin.h"
#include "env/log.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define FRAME_ITEMS 128u           /* as of memory: see inventory.c */
#define WINDOW_FRAMES 32u          /* not yet acknowledged */
#define OUT_BYTES_MAX (512u << 10) /* with so much unsent no further frame is made */

struct listed { /* one entry, its key behind it in the chunk's bytes */
    struct mc_wire_inventory_item item;
    size_t key_at;
};
struct mc_disk_chunk { /* of one region; filled on the disk's thread, then the serve thread's */
    struct mc_owner_disk *disk;
    uint64_t session;
    int code;
    uint64_t cursor;
    struct listed *items;
    size_t count, capacity;
    struct mc_buffer keys;
    bool is_short; /* out of memory */
};

static void chunk_free(struct mc_disk_chunk *chunk)
{
    if (chunk == NULL)
        return;
    mc_buffer_free(&chunk->keys);
    free(chunk->items);
    free(chunk);
}

/* ---- on the disk's thread ---- */

static void on_entry(void *context, const struct mc_disk_content *content)
{
    struct mc_disk_chunk *chunk = context;
    if (chunk->count == chunk->capacity) {
        size_t capacity = chunk->capacity == 0 ? 256 : chunk->capacity * 2;
        struct listed *items = realloc(chunk->items, capacity * sizeof(*items));
        if (items == NULL) {
            chunk->is_short = true;
            return;
        }
        chunk->items = items;
        chunk->capacity = capacity;
    }
    const struct mc_disk_entry *entry = &content->entry;
    uint64_t pin_ms, now_ms = (entry->flags & MC_PIN_SAID) == 0 ? 0 : mc_clock_wall_ms();
    uint8_t flags = mc_pin_read(entry->flags, entry->pin, now_ms, &pin_ms);
    chunk->items[chunk->count++] = (struct listed){
        .key_at = chunk->keys.length,
        .item = {.slot = content->slot,
                 .state = 1,
                 .flags = flags,
                 .generation = entry->generation,
                 .length = entry->length,
                 .group = entry->group,
                 .version = entry->version,
                 .pin_ms = pin_ms,
                 .key = {NULL, entry->key_length}},
    };
    mc_buffer_append(&chunk->keys, content->key, entry->key_length);
}

static void on_chunk(void *argument);

static void on_listed(void *context, int code, uint64_t cursor)
{
    struct mc_disk_chunk *chunk = context;
    chunk->code = chunk->is_short || chunk->keys.failed ? MC_ERR_NO_MEMORY : code;
    chunk->cursor = cursor;
    mc_serve_post(chunk->disk->owner->serve, on_chunk, chunk);
}

/* ---- on the serve thread ---- */

/* The next region. 0 or negative. */
static int ask_next_region(struct mc_owner_disk *disk)
{
    struct mc_disk_chunk *chunk = calloc(1, sizeof(*chunk));
    if (chunk == NULL)
        return MC_ERR_NO_MEMORY;
    chunk->disk = disk;
    chunk->session = disk->session;
    chunk->keys.may_fail = true;
    int rc = mc_disk_inventory(disk->disk, disk->inventory.cursor, on_entry, on_listed, chunk);
    if (rc < 0)
        chunk_free(chunk);
    else
        disk->inventory.is_asked = true;
    return rc;
}

void mc_owner_disk_want_beat(struct mc_owner_disk *disk)
{
    pthread_mutex_lock(&disk->owner->lock);
    disk->wants_beat = true;
    pthread_mutex_unlock(&disk->owner->lock);
}

/* ---- emptying ---- */

static void not_emptied(struct mc_owner_disk *disk, int code)
{
    if (code == MC_ERR_BUSY) {
        mc_owner_disk_want_beat(disk);
        return;
    }
    mc_log(ERROR, "disk %s cannot be emptied: %s; it is out of use", disk->path, mc_error_name(code));
    disk->is_emptying = false;
    disk->state = MC_OWNER_DISK_OFF;
}

/* All of it was asked to be cleared, and the answers are there: where the journal does not have it, the next process
 * finds it again, and whoever mounts the disk as a new one says that it is of his epoch. */
static void empty_end(struct mc_owner_disk *disk)
{
    if (disk->cannot_clear) {
        not_emptied(disk, MC_ERR_FILE_WRITE_FAIL);
        return;
    }
    disk->is_emptying = false;
    mc_owner_disk_emptied(disk);
}

/* One region after the other is listed until there is nothing left in it. */
static void empty_next(struct mc_owner_disk *disk, uint64_t cursor)
{
    disk->inventory.cursor = cursor;
    if (cursor == MC_DISK_CURSOR_END) {
        if (disk->under_way == 0)
            empty_end(disk);
        return;
    }
    int rc = ask_next_region(disk);
    if (rc < 0)
        not_emptied(disk, rc);
}

static void empty_chunk(struct mc_disk_chunk *chunk)
{
    struct mc_owner_disk *disk = chunk->disk;
    uint64_t cursor = chunk->cursor;
    int code = chunk->code;
    disk->inventory.is_asked = false;
    if (code < 0) { /* what was not listed is not cleared */
        chunk_free(chunk);
        not_emptied(disk, code);
        return;
    }
    for (size_t at = 0; at < chunk->count;) {
        struct mc_disk_place places[MC_BATCH_MAX];
        size_t count = 0;
        for (; at < chunk->count && count < MC_BATCH_MAX; at++)
            places[count++] = (struct mc_disk_place){chunk->items[at].item.slot, chunk->items[at].item.generation};
        mc_owner_disk_clear_places(disk, places, count);
    }
    chunk_free(chunk);
    empty_next(disk, cursor);
}

void mc_owner_disk_empty(struct mc_owner_disk *disk)
{
    disk->session++;
    disk->is_emptying = true;
    mc_owner_disk_inventory_stop(disk);
    empty_next(disk, 0);
}

void mc_owner_disk_empty_again(struct mc_owner_disk *disk)
{
    if (disk->is_emptying && !disk->inventory.is_asked)
        empty_next(disk, disk->inventory.cursor);
}

/* BUSY: an earlier listing has not ended yet; it is asked again later, and not from here, which would spin. A disk that
 * cannot be listed, nor say that what lies there is dead, goes alone: memory and the other disks are as good as
 * before. */
static void not_listed(struct mc_owner_disk *disk, int code)
{
    if (code == MC_ERR_BUSY) {
        mc_owner_disk_want_beat(disk);
        return;
    }
    if (code == MC_ERR_FILE_WRITE_FAIL) {
        mc_log(ERROR, "disk %s cannot list what lies there: %s; it is out of use", disk->path, mc_error_name(code));
        mc_owner_disk_put_out(disk);
        return;
    }
    mc_owner_link_break(disk->owner, mc_error_name(code));
}

static void on_chunk(void *argument)
{
    struct mc_disk_chunk *chunk = argument;
    struct mc_owner_disk *disk = chunk->disk;
    struct mc_owner_disk_inventory *inventory = &disk->inventory;
    if (chunk->session == disk->session && disk->is_emptying) {
        empty_chunk(chunk);
        return;
    }
    if (!inventory->is_active || chunk->session != disk->session) {
        chunk_free(chunk);
        return;
    }
    inventory->is_asked = false;
    if (chunk->code < 0) {
        int code = chunk->code;
        chunk_free(chunk);
        not_listed(disk, code);
        return;
    }
    inventory->chunk = chunk;
    inventory->sent = 0;
    inventory->cursor = chunk->cursor;
    mc_owner_link_send(disk->owner);
}

int mc_owner_disk_inventory_start(struct mc_owner_disk *disk)
{
    mc_owner_disk_inventory_stop(disk);
    uint64_t *told = calloc((disk->slot_count + 63u) / 64, sizeof(*told));
    if (told == NULL)
        return MC_ERR_NO_MEMORY;
    disk->inventory = (struct mc_owner_disk_inventory){.is_active = true, .told = told, .start_ms = mc_clock_ms()};
    int rc = ask_next_region(disk);
    if (rc == MC_ERR_BUSY)
        mc_owner_disk_want_beat(disk);
    return rc == MC_ERR_BUSY ? 0 : rc;
}

void mc_owner_disk_inventory_stop(struct mc_owner_disk *disk)
{
    chunk_free(disk->inventory.chunk);
    free(disk->inventory.told);
    disk->inventory = (struct mc_owner_disk_inventory){0};
}

/* False: it was told already, or is no number that the master knows: there can be none while only such are stored. */
static bool note_told(struct mc_owner_disk *disk, uint32_t slot)
{
    struct mc_owner_disk_inventory *inventory = &disk->inventory;
    if (slot >= disk->slot_count) {
        mc_log_limited(ERROR, "disk %s holds number %u, of %u: it is not told", disk->path, slot, disk->slot_count);
        return false;
    }
    uint64_t bit = 1ull << slot % 64;
    bool is_news = (inventory->told[slot / 64] & bit) == 0;
    inventory->told[slot / 64] |= bit;
    return is_news;
}

/* Of the chunk, or without one the last frame, which is empty. */
static void frame_write(struct mc_owner_disk *disk)
{
    struct mc_owner *owner = disk->owner;
    struct mc_owner_disk_inventory *inventory = &disk->inventory;
    struct mc_disk_chunk *chunk = inventory->chunk;
    size_t left = chunk == NULL ? 0 : chunk->count - inventory->sent, written = 0;
    size_t count = left < FRAME_ITEMS ? left : FRAME_ITEMS;
    bool is_last = inventory->cursor == MC_DISK_CURSOR_END && count == left;
    struct mc_wire_inventory head = {.segment = disk->segment, .sequence = inventory->next++, .last = is_last};
    size_t frame = mc_frame_begin(&owner->out, MC_MESSAGE_INVENTORY, 0);
    size_t list = mc_wire_inventory_head(&owner->out, &head);
    for (size_t i = 0; i < count; i++) {
        struct listed *listed = &chunk->items[inventory->sent + i];
        if (!note_told(disk, listed->item.slot))
            continue;
        listed->item.key = mc_span(chunk->keys.data + listed->key_at, listed->item.key.length);
        mc_wire_inventory_item_write(&owner->out, &listed->item);
        written++;
    }
    mc_frame_end_list(&owner->out, frame, list, written);
    inventory->sent += count;
    inventory->count += written;
    inventory->is_last_sent = is_last;
    if (count == left) {
        chunk_free(chunk);
        inventory->chunk = NULL;
    }
}

void mc_owner_disk_inventory_write(struct mc_owner_disk *disk)
{
    const struct mc_owner_disk_inventory *inventory = &disk->inventory;
    while (inventory->is_active && inventory->chunk != NULL && !inventory->is_last_sent &&
           inventory->next - inventory->acknowledged < WINDOW_FRAMES &&
           disk->owner->out.length - disk->owner->out_sent < OUT_BYTES_MAX)
        frame_write(disk);
    /* The listing of the next region is asked for when this one has been told. A disk that is busy is asked again with
     * the next answer of the master, when a move ends, or with the next heartbeat. */
    if (inventory->is_active && inventory->chunk == NULL && !inventory->is_asked && !inventory->is_last_sent &&
        ask_next_region(disk) == MC_ERR_BUSY)
        mc_owner_disk_want_beat(disk);
}

int mc_owner_disk_inventory_acknowledged(struct mc_owner_disk *disk, const struct mc_wire_inventory_ack *ack)
{
    struct mc_owner_disk_inventory *inventory = &disk->inventory;
    if (ack->code < 0)
        return MC_ERR_STALE;
    if (!inventory->is_active || ack->sequence != inventory->acknowledged || inventory->next == inventory->acknowledged)
        return MC_ERR_PROTOCOL;
    inventory->acknowledged++;
    if (inventory->is_last_sent && inventory->acknowledged == inventory->next) {
        mc_log(INFO, "the master knows what lies on disk %s: %" PRIu64 " entries, told in %" PRIu64 " ms", disk->path,
               inventory->count, mc_clock_ms() - inventory->start_ms);
        mc_owner_disk_inventory_stop(disk);
    }
    return 0;
}
