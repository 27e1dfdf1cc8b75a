/* The owner's side of the table of writers: who is attached, who still lives, what of it a CUT has to wait for. */
#include "base/error.h"
#include "store/segment/memory_inside.h"

uint32_t mc_writers_top(const struct mc_segment_memory *memory)
{
    uint64_t top = atomic_load(&memory->file.header->writer_top);
    return top > MC_WRITERS_MAX ? MC_WRITERS_MAX : top < 1 ? 1 : (uint32_t)top;
}

bool mc_writer_is_living(struct mc_segment_memory *memory, uint32_t entry)
{
    int fd = memory->file.writers_fd;
    if (entry == 0 || memory->attached[entry] || mc_writers_locked(fd, entry, 1))
        return true;
    /* With the lock in our hands nobody can begin to use the entry while it is reset. */
    if (!mc_writer_lock(fd, entry))
        return true;
    mc_writer_reset(&memory->file.writers[entry]);
    mc_writer_unlock(fd, entry);
    return false;
}

void mc_writers_take_up(struct mc_segment_memory *memory)
{
    uint32_t top = 1;
    mc_writer_reset(&memory->file.writers[0]); /* the owner that held the files is dead: we hold them now */
    for (uint32_t i = 1; i < MC_WRITERS_MAX; i++) {
        if (mc_writer_is_living(memory, i))
            top = i + 1;
    }
    atomic_store(&memory->file.header->writer_top, top);
}

int mc_segment_memory_writer_add(struct mc_segment_memory *memory, struct mc_id node, uint64_t incarnation)
{
    struct mc_index_header *header = memory->file.header;
    int found = MC_ERR_BUSY;
    pthread_mutex_lock(&memory->lock);
    for (uint32_t i = 1; i < MC_WRITERS_MAX && found < 0; i++) {
        if (memory->attached[i] || mc_writer_is_living(memory, i))
            continue;
        memory->attached[i] = true;
        memory->file.writers[i].node = node;
        memory->file.writers[i].incarnation = incarnation;
        if (i >= atomic_load(&header->writer_top))
            atomic_store(&header->writer_top, i + 1);
        found = (int)i;
    }
    pthread_mutex_unlock(&memory->lock);
    return found;
}

void mc_segment_memory_writer_remove(struct mc_segment_memory *memory, uint32_t entry)
{
    mc_assert(entry > 0 && entry < MC_WRITERS_MAX);
    pthread_mutex_lock(&memory->lock);
    memory->attached[entry] = false;
    (void)mc_writer_is_living(memory, entry); /* resets it, unless its process still has our memory mapped */
    pthread_mutex_unlock(&memory->lock);
}

void mc_segment_memory_set_owner(struct mc_segment_memory *memory, struct mc_id node, uint64_t incarnation)
{
    pthread_mutex_lock(&memory->lock);
    memory->file.writers[0].node = node;
    memory->file.writers[0].incarnation = incarnation;
    pthread_mutex_unlock(&memory->lock);
}

/* The first `count` entries. */
static bool is_written(struct mc_segment_memory *memory, uint32_t slot, uint64_t generation, uint32_t count)
{
    bool found = false;
    pthread_mutex_lock(&memory->lock);
    /* The raise of writers.h. It changes no number, but whatever raised it before, a clear or a commit, is now in that
     * one order. Here and not there: a commit would wait for its cache line, and cuts are rare. Readers of the slot
     * cannot tell it from the store of the number that it finds. */
    if (slot < memory->file.slot_count)
        (void)atomic_fetch_add(&memory->file.slots[slot].generation, 0);
    for (uint32_t i = 0, top = mc_writers_top(memory); i < top && i < count && !found; i++)
        found = mc_writer_has(&memory->file.writers[i], slot, generation) && mc_writer_is_living(memory, i);
    pthread_mutex_unlock(&memory->lock);
    return found;
}

bool mc_segment_memory_is_written(struct mc_segment_memory *memory, uint32_t slot, uint64_t generation)
{
    return is_written(memory, slot, generation, MC_WRITERS_MAX);
}

bool mc_segment_memory_is_written_here(struct mc_segment_memory *memory, uint32_t slot, uint64_t generation)
{
    return is_written(memory, slot, generation, 1);
}

uint32_t mc_segment_memory_slot_top(struct mc_segment_memory *memory)
{
    struct mc_writing writing;
    pthread_mutex_lock(&memory->lock);
    uint32_t result = memory->slot_top;
    for (uint32_t i = 0, top = mc_writers_top(memory); i < top; i++) {
        for (uint32_t j = 0; j < MC_WRITER_INTENTS; j++) {
            if (mc_intent_read(&memory->file.writers[i].intents[j], &writing) &&
                writing.slot < memory->file.slot_count && writing.slot >= result)
                result = writing.slot + 1;
        }
    }
    pthread_mutex_unlock(&memory->lock);
    return result;
}
