/* Calls that were answered late, and puts that are open for long. */
#include "store/core/slow.h"

#include "store/core/limits.h"
#include "store/core/member.h"
#include "store/core/put.h"
#include "store/core/replica.h"
#include "store/core/segment.h"

#include <stdio.h>
#include <string.h>

void mc_slow_note(struct mc_slow_note *note, struct mc_span key)
{
    note->is_slow = true;
    note->is_own = false;
    note->length = (uint32_t)key.length;
    if (key.length > 0)
        memcpy(note->key, key.data, key.length < sizeof(note->key) ? key.length : sizeof(note->key));
}

static const char *name_of(const struct mc_connection *connection)
{
    return connection == NULL || connection->member == NULL ? "" : connection->member->name;
}

void mc_slow_tell(const struct mc_core *core, enum mc_slow_kind kind, const struct mc_connection *connection,
                  const struct mc_slow_note *note, uint64_t started_ms, int32_t code)
{
    struct mc_core_slow slow = {.kind = kind,
                                .connection = connection == NULL ? 0 : connection->number,
                                .is_own = note->is_own,
                                .key_length = note->length,
                                .took_ms = mc_core_life_ms(core) - started_ms,
                                .code = code};
    memcpy(slow.key, note->key, note->length < sizeof(slow.key) ? note->length : sizeof(slow.key));
    snprintf(slow.client, sizeof(slow.client), "%s", name_of(connection));
    core->output.slow(core->output.context, &slow);
}

/* The first object of the put that is not there yet; NULL: all are decided. */
static const struct mc_object *open_object(const struct mc_core *core, const struct mc_put *put)
{
    for (uint32_t i = put->cursor; i < put->grant_count; i++)
        if (put->grants[i].slot != MC_NODE_NONE)
            return mc_node_object(mc_segment_node(core->segments[put->grants[i].segment], put->grants[i].slot));
    return NULL;
}

size_t mc_core_open_puts(const struct mc_core *core, const struct mc_scope *scope, struct mc_core_open_put *list,
                         size_t capacity)
{
    size_t count = 0;
    uint32_t budget = MC_CORE_OPEN_LOOK;
    for (const struct mc_link *link = core->puts_by_age.next;
         link != &core->puts_by_age && count < capacity && budget > 0; link = link->next, budget--) {
        const struct mc_put *put = mc_link_of(link, struct mc_put, by_age);
        uint64_t age_ms = mc_core_life_ms(core) - put->started_ms;
        const struct mc_object *object = age_ms < MC_CORE_OPEN_MS ? NULL : open_object(core, put);
        if (age_ms < MC_CORE_OPEN_MS)
            break; /* the oldest come first */
        if (object == NULL || (scope != NULL && !mc_scope_has(scope, mc_object_key(object))))
            continue;
        struct mc_slow_note note;
        mc_slow_note(&note, mc_object_key(object));
        list[count] =
            (struct mc_core_open_put){.call = {.kind = MC_SLOW_PUT,
                                               .connection = put->connection == NULL ? 0 : put->connection->number,
                                               .key_length = note.length,
                                               .took_ms = age_ms},
                                      .bytes = object->length,
                                      .open = put->open};
        memcpy(list[count].call.key, note.key, note.length < sizeof(note.key) ? note.length : sizeof(note.key));
        snprintf(list[count].call.client, sizeof(list[count].call.client), "%s", name_of(put->connection));
        count++;
    }
    return count;
}
