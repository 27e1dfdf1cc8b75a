#include "store/core/pin.h"

#include "store/core/limits.h"
#include "store/core/replica.h"
#include "store/core/state.h"

#include <stdlib.h>

/* ---- what a pin is to be ---- */

/* In the 40 bits of a lease: ticks, and what they count from. */
#define WISH_UNTIL (UINT64_C(1) << 32)    /* from the master's beginning; else from when it is offered */
#define WISH_WAS_READ (UINT64_C(1) << 33) /* the value, before it came here */

static uint32_t ticks_of(uint64_t ms)
{
    uint64_t ticks = ms / MC_PIN_TICK_MS + (ms % MC_PIN_TICK_MS != 0);
    return ticks > UINT32_MAX ? UINT32_MAX : (uint32_t)ticks;
}

void mc_pin_wish(struct mc_object *object, uint64_t ttl_ms)
{
    mc_assert(!object->visible && !object->hard);
    object->soft = ttl_ms > 0;
    object->lease_until_ms = ticks_of(ttl_ms);
}

void mc_pin_wish_left(const struct mc_core *core, struct mc_object *object, uint64_t left_ms)
{
    mc_pin_wish(object, left_ms);
    if (object->soft)
        object->lease_until_ms = WISH_UNTIL | ticks_of(core->now_ms + left_ms);
}

void mc_pin_wish_inherit(struct mc_object *object, const struct mc_object *successor, bool was_read)
{
    mc_assert(!object->visible && object->soft && successor->successor);
    object->lease_until_ms = successor->lease_until_ms | (was_read ? WISH_WAS_READ : 0);
}

/* ---- deadlines ---- */

static void deadline_place(struct mc_pins *pins, uint32_t at, struct mc_pin pin)
{
    for (; at > 0 && pins->items[(at - 1) / 2].until > pin.until; at = (at - 1) / 2)
        pins->items[at] = pins->items[(at - 1) / 2];
    for (uint32_t child = 2 * at + 1; child < pins->count; child = 2 * at + 1) {
        child += child + 1 < pins->count && pins->items[child + 1].until < pins->items[child].until;
        if (pins->items[child].until >= pin.until)
            break;
        pins->items[at] = pins->items[child];
        at = child;
    }
    pins->items[at] = pin;
}

static void deadline_remove(struct mc_pins *pins, uint32_t at)
{
    pins->count--;
    if (at < pins->count)
        deadline_place(pins, at, pins->items[pins->count]);
}

/* The memory of an object stays one of objects: it may be looked at whatever it is now. */
static bool is_stale(const struct mc_pin *pin)
{
    return pin->object->serial != pin->serial || !pin->object->visible || !pin->object->soft ||
           pin->object->soft_until != pin->until;
}

/* Two for each that comes: so there are never many more of them than there were pins. */
static void drop_stale(struct mc_pins *pins)
{
    for (unsigned i = 0; i < 2 && pins->count > 0; i++) {
        pins->cursor = pins->cursor < pins->count ? pins->cursor : 0;
        if (is_stale(&pins->items[pins->cursor]))
            deadline_remove(pins, pins->cursor);
        else
            pins->cursor++;
    }
}

static bool deadline_add(struct mc_pins *pins, struct mc_pin pin)
{
    drop_stale(pins);
    if (pins->count == pins->capacity) {
        uint32_t capacity = pins->capacity == 0 ? 64 : pins->capacity * 2;
        struct mc_pin *items = realloc(pins->items, capacity * sizeof(*items));
        if (items == NULL)
            return false;
        pins->items = items;
        pins->capacity = capacity;
    }
    deadline_place(pins, pins->count++, pin);
    return true;
}

void mc_pin_begin(struct mc_core *core, struct mc_object *object)
{
    if (!object->soft)
        return;
    uint64_t wish = object->lease_until_ms;
    uint32_t ticks = (uint32_t)wish;
    object->lease_until_ms = (wish & WISH_WAS_READ) != 0; /* it is over, but there was one */
    object->soft_until = (wish & WISH_UNTIL) != 0 ? ticks : ticks_of(core->now_ms + (uint64_t)ticks * MC_PIN_TICK_MS);
    /* Without memory for its deadline it would be pinned for ever. */
    bool holds = mc_pin_left_ms(core, object) > 0 &&
                 deadline_add(&core->pins, (struct mc_pin){object->soft_until, object->serial, object});
    if (!holds && object->hard)
        mc_firm_end(core, object);
    object->soft = holds;
}

void mc_pins_count(struct mc_core *core, const struct mc_object *object)
{
    core->soft_count += object->soft;
    core->firm.visible += mc_object_is_firm(object);
}

void mc_pins_uncount(struct mc_core *core, const struct mc_object *object)
{
    core->soft_count -= object->soft;
    core->firm.visible -= mc_object_is_firm(object);
}

uint64_t mc_pin_left_ms(const struct mc_core *core, const struct mc_object *object)
{
    uint64_t until_ms = (uint64_t)object->soft_until * MC_PIN_TICK_MS;
    return object->soft && until_ms > core->now_ms ? until_ms - core->now_ms : 0;
}

bool mc_pins_expire(struct mc_core *core)
{
    struct mc_pins *pins = &core->pins;
    for (uint32_t budget = MC_SLICE_PINS; mc_pins_due(core) <= core->now_ms; budget--) {
        if (budget == 0)
            return true;
        struct mc_pin pin = pins->items[0];
        bool was_stale = is_stale(&pin);
        deadline_remove(pins, 0);
        if (was_stale)
            continue;
        if (mc_object_is_firm(pin.object))
            core->statistics.firm_pins_expired++;
        else
            core->statistics.soft_pins_expired++;
        mc_object_unpin(core, pin.object);
    }
    return false;
}

uint64_t mc_pins_due(const struct mc_core *core)
{
    return core->pins.count == 0 ? UINT64_MAX : (uint64_t)core->pins.items[0].until * MC_PIN_TICK_MS;
}

void mc_pins_destroy(struct mc_pins *pins)
{
    free(pins->items);
}

const char *mc_pins_check(const struct mc_core *core)
{
    uint64_t sound = 0, firm = 0;
    for (uint32_t i = 0; i < core->pins.count; i++) {
        if (i > 0 && core->pins.items[(i - 1) / 2].until > core->pins.items[i].until)
            return "deadlines of pins are not in their order";
        sound += !is_stale(&core->pins.items[i]);
        firm += !is_stale(&core->pins.items[i]) && mc_object_is_firm(core->pins.items[i].object);
    }
    return sound == core->soft_count && firm == core->firm.visible ? NULL : "a pin without a deadline, or with two";
}
