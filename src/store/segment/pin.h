/* When a soft pin ends, as a slot and an entry of a disk say it: seconds of a clock, 28 bits of them, which come round
 * after 8 years; the upper four in what is free of the flags. In memory it is the clock of the boot, with which that
 * memory ends; on a disk, which another boot is to understand, the wall clock. Rounded down: a soft pin is told
 * shorter, by less than a second, and never longer. */
#ifndef MC_SEGMENT_PIN_H
#define MC_SEGMENT_PIN_H

#include "store/wire/wire.h"

/* In the flags: the end is said. Releases before it write no such bit, and leave the bytes as they were. */
#define MC_PIN_SAID 8u
/* In the flags, beside that: it is a firm one. Releases before it take it for a soft one. */
#define MC_PIN_FIRM 4u
/* The slot is written before the master hears of it, and what it has promised is to be kept: so, when firm, rounded up,
 * and a second more. */
#define MC_PIN_FIRM_MORE_MS 1999u
/* SAID without a soft pin: there is none, and what a hint has said of the value stands in the upper four: enum mc_hint.
 * So a pin and a hint are never both there. Releases before it see a value without pins. */
#define MC_PIN_HINT_SHIFT 4u
#define MC_PIN_SECONDS ((1u << 28) - 1)
#define MC_PIN_LEFT_MAX_MS (((uint64_t)MC_PIN_SECONDS / 2) * 1000)

/* The flags of a value with these wishes, and the end of its soft pin if left_ms is not 0. */
static inline uint8_t mc_pin_write(uint8_t flags, uint64_t left_ms, uint64_t now_ms, uint8_t pin[3])
{
    pin[0] = pin[1] = pin[2] = 0;
    uint8_t wishes = flags & (MC_PUT_HARD_PIN | MC_PUT_SOFT_PIN);
    bool is_firm = wishes == MC_PUT_SOFT_PIN && (flags & MC_PUT_FIRM_PIN) != 0;
    if ((flags & MC_PUT_SOFT_PIN) == 0 || left_ms == 0)
        return wishes;
    uint64_t more_ms = is_firm ? MC_PIN_FIRM_MORE_MS : 0;
    left_ms = left_ms < MC_PIN_LEFT_MAX_MS - more_ms ? left_ms + more_ms : MC_PIN_LEFT_MAX_MS;
    uint32_t until = (uint32_t)((now_ms + left_ms) / 1000) & MC_PIN_SECONDS;
    pin[0] = (uint8_t)until;
    pin[1] = (uint8_t)(until >> 8);
    pin[2] = (uint8_t)(until >> 16);
    return (uint8_t)(wishes | MC_PIN_SAID | (is_firm ? MC_PIN_FIRM : 0) | until >> 24 << 4);
}

/* The wishes that such flags stand for by now, without a soft pin that is over. *left_ms: what is left of one; 0: there
 * is none, or it is not said. */
static inline uint8_t mc_pin_read(uint8_t flags, const uint8_t pin[3], uint64_t now_ms, uint64_t *left_ms)
{
    *left_ms = 0;
    uint8_t wishes = flags & (MC_PUT_HARD_PIN | MC_PUT_SOFT_PIN);
    if ((flags & MC_PUT_SOFT_PIN) == 0 || (flags & MC_PIN_SAID) == 0)
        return wishes;
    uint32_t until = (uint32_t)(flags >> 4) << 24 | (uint32_t)pin[2] << 16 | (uint32_t)pin[1] << 8 | pin[0];
    uint32_t ahead = (until - (uint32_t)(now_ms / 1000)) & MC_PIN_SECONDS;
    if (ahead == 0 || ahead > MC_PIN_SECONDS / 2)
        return flags & MC_PUT_HARD_PIN;
    *left_ms = ahead * UINT64_C(1000) - now_ms % 1000;
    return (uint8_t)(wishes | ((flags & MC_PIN_FIRM) != 0 ? MC_PUT_FIRM_PIN : 0));
}

/* The flags of a value that is not pinned: of which a hint has said that; 0: none has. */
static inline uint8_t mc_pin_hinted(uint8_t hint)
{
    return hint == 0 ? 0 : (uint8_t)(MC_PIN_SAID | hint << MC_PIN_HINT_SHIFT);
}

/* MC_HINT_DROP, MC_HINT_PAUSE or 0; what a later release may write there counts as nothing. */
static inline uint8_t mc_pin_hint(uint8_t flags)
{
    uint8_t hint = flags >> MC_PIN_HINT_SHIFT;
    bool is_said = (flags & (MC_PUT_HARD_PIN | MC_PUT_SOFT_PIN | MC_PIN_FIRM | MC_PIN_SAID)) == MC_PIN_SAID;
    return is_said && (hint == MC_HINT_DROP || hint == MC_HINT_PAUSE) ? hint : 0;
}

#endif
