/* The slowest calls of the last minutes, for people who look: in memory of one size, from any thread. Two spans of time
 * follow each other; of each the slowest are kept. */
#ifndef MC_MASTER_SLOW_H
#define MC_MASTER_SLOW_H

#include "env/socket.h"
#include "store/core/core.h"

#define MC_SLOW_SPAN_MS 300000u /* so what is told is of the last 5 to 10 minutes */
#define MC_SLOW_KEPT 64u        /* of each span */
#define MC_SLOW_MAX (2 * MC_SLOW_KEPT)

struct mc_slow_call {
    struct mc_core_slow call;
    uint64_t wall_ms; /* when it ended */
    char address[MC_ADDRESS_MAX];
};

struct mc_slow;
struct mc_slow *mc_slow_create(void); /* NULL: out of memory */
void mc_slow_destroy(struct mc_slow *slow);
/* Would one that took so long be kept? Its caller's address is looked up only then. slow NULL: none is. */
bool mc_slow_wants(struct mc_slow *slow, uint64_t now_ms, uint64_t took_ms);
void mc_slow_add(struct mc_slow *slow, uint64_t now_ms, const struct mc_slow_call *call);
/* The slowest first. How many. */
size_t mc_slow_read(struct mc_slow *slow, uint64_t now_ms, struct mc_slow_call list[MC_SLOW_MAX]);
const char *mc_slow_name(enum mc_slow_kind kind);

#endif
