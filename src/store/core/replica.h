/* Nodes, and the objects whose replicas they are. */
#ifndef MC_CORE_REPLICA_H
#define MC_CORE_REPLICA_H

#include "store/core/group.h"
#include "store/core/segment.h"
#include "store/core/state.h"

struct mc_wait;

static inline struct mc_node *mc_segment_node(const struct mc_segment *segment, uint32_t slot)
{
    return mc_space_node(&segment->space, slot);
}
static inline struct mc_object *mc_node_object(const struct mc_node *node)
{
    return (struct mc_object *)(uintptr_t)node->pointer;
}
enum { /* `seen` of a CLEARING node */
       MC_CLEARING_LATE = 1,
       MC_CLEARING_REMAINS = 2, /* it counts among what remains of its key */
       MC_CLEARING_REFUSED = 4  /* its segment is not offered before */
};
/* Who may still write into the extent of a CLEARING node, and is cut off once that is cleared; NULL = nobody. */
static inline struct mc_writer *mc_node_clearing_writer(const struct mc_node *node)
{
    return (struct mc_writer *)(uintptr_t)((uint64_t)node->replica_next_segment << 32 | node->replica_next_slot);
}
static inline void mc_node_set_clearing_writer(struct mc_node *node, const struct mc_writer *writer)
{
    node->replica_next_slot = (uint32_t)(uintptr_t)writer;
    node->replica_next_segment = (uint16_t)((uint64_t)(uintptr_t)writer >> 32);
}
/* Whose key the CLEARING node holds; NULL = nobody's. */
static inline struct mc_object *mc_node_held(const struct mc_node *node)
{
    return node->base == MC_BASE_RAW ? NULL : mc_node_object(node);
}
static inline uint64_t mc_base(const struct mc_core *core, unsigned base)
{
    return base == 0 ? core->epoch << MC_EPOCH_SHIFT : core->bases[base - 1];
}
static inline uint64_t mc_node_generation(const struct mc_core *core, const struct mc_node *node)
{
    uint64_t counter = (uint64_t)node->generation_high << 32 | node->generation_low;
    return node->base == MC_BASE_RAW ? (uint64_t)node->pointer << 40 | counter : mc_base(core, node->base) + counter;
}
/* It has replaced a value that some owner may still have: readers get neither. Its nodes are in no list and name put
 * and grant, as they did when they were granted; put MC_NODE_NONE: nobody wants to hear the end. */
static inline bool mc_object_waits(const struct mc_object *object)
{
    return object->tombstone == 0 && !object->successor && !object->visible && object->granted == 0 && object->live > 0;
}
/* Numbers of replicas that no put grants. DISK: what lies on a disk, whose version the node keeps. LOADED: a copy in
 * memory of what lies on a disk: its version is that of a placement, of which no put knows. */
#define MC_REPLICA_DISK UINT8_MAX
static inline void mc_node_set_version(struct mc_node *node, uint64_t version)
{
    node->replica = MC_REPLICA_DISK;
    node->physical_previous = (uint32_t)(version >> 32);
    node->physical_next = (uint32_t)version;
}
/* What all replicas of one put share, and what grows with every put of a key. */
static inline uint64_t mc_node_version(const struct mc_core *core, const struct mc_node *node)
{
    if (node->replica == MC_REPLICA_DISK)
        return (uint64_t)node->physical_previous << 32 | node->physical_next;
    return mc_node_generation(core, node) - node->replica;
}
static inline uint64_t mc_extent_units(uint64_t length, size_t key_length)
{
    return mc_extent_size(length, key_length) / MC_EXTENT_UNIT;
}

static inline bool mc_is_earlier(const struct mc_core *core, uint64_t generation)
{
    return generation < core->epoch << MC_EPOCH_SHIFT;
}

struct mc_replica {
    struct mc_segment *segment; /* NULL = none */
    uint32_t slot;
};
static inline struct mc_replica mc_replica_at(const struct mc_core *core, uint64_t index, uint32_t slot)
{
    return (struct mc_replica){slot == MC_NODE_NONE ? NULL : core->segments[index], slot};
}
/* The replicas of an object, one after the other; the chain must not change meanwhile. */
static inline struct mc_replica mc_replica_first(const struct mc_core *core, const struct mc_object *object)
{
    return mc_replica_at(core, object->first_segment, object->first_slot);
}
static inline struct mc_replica mc_replica_next(const struct mc_core *core, struct mc_replica replica)
{
    const struct mc_node *node = mc_segment_node(replica.segment, replica.slot);
    return mc_replica_at(core, node->replica_next_segment, node->replica_next_slot);
}

/* A live replica of the object ages there, and is in one of the lists of what can be evicted. */
bool mc_replica_ages(const struct mc_segment *segment, const struct mc_object *object);

void mc_list_append(struct mc_segment *segment, struct mc_node_list *list, uint32_t slot);
void mc_list_remove(struct mc_segment *segment, struct mc_node_list *list, uint32_t slot);
/* The node at the mark, which must be there, is ahead of it. */
void mc_list_advance(struct mc_segment *segment, struct mc_node_list *list);
/* As the youngest of those that are ahead. */
void mc_list_insert_ahead(struct mc_segment *segment, struct mc_node_list *list, uint32_t slot);
/* Gives the extent back. */
void mc_node_free(struct mc_core *core, struct mc_segment *segment, uint32_t slot);
/* A node that belongs to no object any more: its slot is to be cleared; then the extent is free. object: whose it was,
 * its key is held until then; may be NULL. */
void mc_node_clear(struct mc_core *core, struct mc_segment *segment, uint32_t slot, struct mc_object *object);
/* A granted node that belongs to no object any more: its writer is to be cut off, and before, as with mc_node_clear,
 * what may be live there is to be cleared. object NULL: nothing can be. */
void mc_node_cut(struct mc_core *core, struct mc_segment *segment, uint32_t slot, struct mc_object *object,
                 struct mc_writer *writer);
void mc_node_cleared(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
void mc_node_cut_done(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
/* Sends what is unsent to the owner, at most MC_SLICE_FRAMES frames; true when more is left. */
bool mc_segment_flush(struct mc_core *core, struct mc_segment *segment);
/* Lets go the keys that a departed segment holds, a slice; true when more is left. */
bool mc_segment_release_keys(struct mc_core *core, struct mc_segment *segment);

void mc_object_link(struct mc_core *core, struct mc_object *object, struct mc_segment *segment, uint32_t slot);
void mc_object_unlink(struct mc_core *core, struct mc_object *object, struct mc_segment *segment, uint32_t slot);
/* The object of that key, or NULL; tombstones do not count. */
struct mc_object *mc_object_find(const struct mc_core *core, struct mc_span key);
/* An object in the table, without a replica: a new one, or the key's cell (what mc_objects_find says of it, NULL or a
 * tombstone). flags: enum mc_put_flags. group: 0 = none; it stays without one when its cell has no room for that and
 * is held. NULL when memory is out. */
struct mc_object *mc_object_begin(struct mc_core *core, struct mc_object *cell, struct mc_span key, uint64_t length,
                                  uint32_t flags, uint64_t group);
/* An object that will replace this visible one: not in the table. NULL when memory is out. */
struct mc_object *mc_object_succeed(struct mc_core *core, const struct mc_object *object, uint64_t length,
                                    uint32_t flags);
/* All of a visible object, and of what else than `except` is to replace it, can be cleared at once: nothing of it waits
 * for that already, and whoever holds it listens. */
bool mc_object_clearable(struct mc_core *core, const struct mc_object *object, const struct mc_object *except);
/* A successor is whole: its replicas become those of the key, the ones before are cleared; until that is done the key
 * waits. STALE: the object it was to replace is no longer what it was, or cannot be cleared now; then the successor's
 * replicas are cleared. It is
 * freed either way. */
enum mc_replace { MC_REPLACE_STALE, MC_REPLACE_WAITS, MC_REPLACE_DONE };
enum mc_replace mc_object_replace(struct mc_core *core, struct mc_object *successor, uint64_t expected);
/* Of a visible object's value; 0 = it has none, or object is NULL. */
uint64_t mc_object_version(const struct mc_core *core, const struct mc_object *object);
/* The same, as the put knows it that brought the value; 0 = nobody does any more. */
uint64_t mc_object_version_put(const struct mc_core *core, const struct mc_object *object);
/* Nothing is granted any more, something is live. */
void mc_object_appear(struct mc_core *core, struct mc_object *object);
/* The same without counting it as a put. */
void mc_object_show(struct mc_core *core, struct mc_object *object);
/* Its soft pin is over: it begins to age. */
void mc_object_unpin(struct mc_core *core, struct mc_object *object);
/* One more live replica of an object that is visible. */
void mc_object_join(struct mc_core *core, struct mc_object *object, struct mc_segment *segment, uint32_t slot);
/* One live replica goes by itself; the object with it when it was the last, but another replica of an earlier epoch may
 * bring it back. */
void mc_object_lose_replica(struct mc_core *core, struct mc_object *object, struct mc_segment *segment, uint32_t slot);
/* All of a visible object goes, for good. */
void mc_object_drop(struct mc_core *core, struct mc_object *object, struct mc_wait *wait);
/* All its live replicas leave the object; is_copy: they show the value of another object of the key. */
void mc_object_unlive(struct mc_core *core, struct mc_object *object, bool is_copy);
/* It is used: its policy is told, and its group is as young. */
void mc_object_touch(struct mc_core *core, struct mc_object *object);
/* The same for a member whose group was used. */
void mc_object_rejuvenate(struct mc_core *core, struct mc_object *object);
/* This master has sent a reader to its value since it was put. */
static inline bool mc_object_was_read(const struct mc_object *object)
{
    return object->visible && object->lease_until_ms != 0;
}
/* Protected from removal without force: it, or a member of its group, is or was read a moment ago. */
static inline bool mc_object_is_leased(const struct mc_core *core, const struct mc_object *object)
{
    const struct mc_group *group = mc_object_group(object);
    return (object->visible && core->now_ms < object->lease_until_ms) ||
           (group != NULL && core->now_ms < group->lease_until_ms);
}
/* One on a disk, in whatever state that is; segment NULL: there is none. */
struct mc_replica mc_object_on_disk(const struct mc_core *core, const struct mc_object *object);
/* Its value can be read, from memory or, in a while, from a disk. */
bool mc_object_stored(const struct mc_core *core, const struct mc_object *object);
/* Replicas in memory of segments that are OK, at most capacity of them. */
uint32_t mc_object_readable(const struct mc_core *core, const struct mc_object *object, struct mc_replica *replicas,
                            uint32_t capacity);
/* The same of a value that waits: it will be readable. */
uint32_t mc_object_coming(const struct mc_core *core, const struct mc_object *object, struct mc_replica *replicas,
                          uint32_t capacity);

#endif
