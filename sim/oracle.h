/* What a run is judged by. A key is a register that holds nothing or one value; every value is put by one call only,
 * and may be forgotten at any time, but once it is known to be gone it must not come back. */
#ifndef SIM_ORACLE_H
#define SIM_ORACLE_H

#include "plan.h"

#include "base/bytes.h"
#include "mooncake.h"

struct oracle_call { /* one call in progress */
    uint64_t start_ns, stopped_ns, epoch;
    struct sim_process *process;
};

void oracle_reset(const struct sim_plan *plan);
struct oracle_call oracle_begin(void);
/* It has ended: by its deadline? */
void oracle_end(const struct oracle_call *call, uint64_t limit_ms, const char *what);

/* A new value for the key; its bytes. The number identifies it. */
uint32_t oracle_put_begin(uint32_t key, uint32_t length, bool is_upsert, const uint8_t **bytes);
void oracle_put_end(uint32_t put, int rc);
/* Nobody may see it before it is shown: it is only being put together. */
void oracle_put_hide(uint32_t put);
void oracle_put_show(uint32_t put);
void oracle_put_wishes(uint32_t put, const struct mc_replicate_config *config);
struct oracle_pin {            /* the soft pin that a put has asked for */
    uint64_t ms;               /* 0: none */
    uint64_t start_ns, end_ns; /* of the put; end SIM_NEVER: it has not succeeded yet */
    bool is_upsert;            /* it may have kept that of the value before */
};
/* False: of so short a value it is not known. */
bool oracle_put_pin(uint32_t put, struct oracle_pin *pin);
bool oracle_put_is_hard(uint32_t put);
/* So long it was promised that the value is kept, whoever needs room; 0: nothing was. */
uint64_t oracle_put_firm_until_ns(uint32_t put);
/* A call gives what is there another pin; the number that its end names. put: what is there then; firm_ms: for so long
 * it is to be kept, as that call has promised; 0: it has not. */
uint32_t oracle_pin_begin(uint32_t key);
void oracle_pin_end(const struct oracle_call *call, uint32_t key, uint32_t number, uint32_t put, uint64_t firm_ms);
/* Whoever put it, its soft pin may end from now on. */
void oracle_dropped(uint32_t key);
uint32_t oracle_put_length(uint32_t put);
/* An owner has made it live, is_ahead: where a place was granted before its key was known. May it be, at that time? */
void oracle_put_live(uint32_t put, bool is_ahead);
/* That process' value has just become live; its put is not answered yet. */
extern void (*oracle_on_live)(const struct sim_process *process);
uint32_t oracle_put_key(uint32_t put);
uint64_t oracle_put_runs_since(uint32_t put); /* SIM_NEVER: its call is over */
/* The master has been asked for grants: which of the puts that are under way has one? */
struct mc_core;
void oracle_puts_granted(const struct mc_core *core);
/* Is a put of the key under way, other than that one? is_earlier: of the value before it, of the time of an earlier
 * master, is heard only now that it had to go. */
bool oracle_is_being_put(uint32_t key, uint32_t other, bool is_earlier);
/* The put that has these bytes; UINT32_MAX: none. */
uint32_t oracle_put_of(uint64_t hash_low, uint64_t hash_high, uint64_t length, uint32_t crc);
/* The put whose head has a key of that hash, and a first piece like that; UINT32_MAX: none. */
uint32_t oracle_put_of_head(const struct mc_hash *head, uint64_t length, uint32_t crc);
/* The process died: what it was putting will not be placed again. */
void oracle_process_killed(const struct sim_process *process);
void oracle_got(const struct oracle_call *call, uint32_t key, const uint8_t *bytes, int64_t rc);
void oracle_got_range(const struct oracle_call *call, uint32_t key, const uint8_t *bytes, uint64_t offset,
                      uint64_t size);
/* Ranges of one key that one call has read; those of size 0 were not. Are they of one value? */
struct oracle_piece {
    const uint8_t *bytes;
    uint64_t offset, size;
};
void oracle_got_pieces(const struct oracle_call *call, uint32_t key, const struct oracle_piece *pieces, uint32_t count);
void oracle_length(const struct oracle_call *call, uint32_t key, int64_t length);
/* is_all: it is one of all keys, or by pattern, which the master works off by and by. */
void oracle_remove_begin(uint32_t key, bool is_all);
/* removed: it was there and is not any more. is_certain: so or so, it is over. */
void oracle_remove_end(const struct oracle_call *call, uint32_t key, bool removed, bool is_certain, bool is_all);
/* A removal has found nothing: as long as that master lives, what was there before must not appear. */
void oracle_not_there(const struct oracle_call *call, uint32_t key);
/* Must the key be readable now? */
bool oracle_is_sure(uint32_t key);
/* The master's machine has lost the directory of its note: what was removed until now may come back (sim/README.md),
 * but only once a master has told its operator, which oracle_told says. */
void oracle_note_lost(void);
void oracle_told(void);
void oracle_exists(const struct oracle_call *call, uint32_t key, int result);

#endif
