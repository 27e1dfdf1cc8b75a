/* Included before each of the product's files that knows the layout of a segment: tables that a simulated cluster never
 * fills are cut, because making and clearing them was a third of a run. */
#ifndef SIM_SIZES_H
#define SIM_SIZES_H

#define SIM_DISK_REGION (64u << 10)

#include "store/segment/layout.h"
#include "store/path/path.h"
#include "store/path/paths.h"
#include "store/segment/serve.h"
#include "store/segment/serve_lane.h"
#include "store/segment/serve_shares.h"
#include "env/resolve.h"
#include "store/owner/master_address.h"
#include "store/disk/inside.h"
#include "store/wire/wire.h"

#undef MC_WRITERS_MAX
#define MC_WRITERS_MAX 64u /* an entry is 4 KiB; a life of a client takes one */

#undef MC_ENGINE_FDS_MAX
#define MC_ENGINE_FDS_MAX 1024u

/* Variables of the product are copied with each change from one process to another. */
#undef MC_RESOLVE_BUCKETS
#define MC_RESOLVE_BUCKETS 4u

/* There are no keys here; places have tags all the same, which every connection is to repeat. */
extern bool sim_blanks; /* a tag names its key: no place has one in a run with places that are granted ahead */
#undef MC_SERVE_TAGS_ALWAYS
#define MC_SERVE_TAGS_ALWAYS (!sim_blanks)
#undef MC_TICKET_PERIOD_S
#define MC_TICKET_PERIOD_S 1u

/* Few places, and short patience with connections that rest: so they are taken, given up and opened anew in every run.
 */
#undef MC_SERVE_CONNECTIONS_MAX
#define MC_SERVE_CONNECTIONS_MAX 16u
/* Values are small here: of most of them a part comes, and goes, with nothing copied beside the segment. */
#undef MC_SERVE_RECEIVE_BYTES
#define MC_SERVE_RECEIVE_BYTES 1024u
#undef MC_LANE_COPY_MAX
#define MC_LANE_COPY_MAX 1024u
#undef MC_SERVE_SETTLE_MS
#define MC_SERVE_SETTLE_MS 50u
#undef MC_SERVE_IDLE_MS
#define MC_SERVE_IDLE_MS 400u
#undef MC_SHARES_LEAST_MS
#define MC_SHARES_LEAST_MS 20u
#undef MC_SHARES_SPARE_MS
#define MC_SHARES_SPARE_MS 100u
#undef MC_LANE_IDLE_MS
#define MC_LANE_IDLE_MS 3000u

/* With --stripes; values have up to 20 KiB. */
#define MC_STRIPE_BYTES_MIN 512u
#define MC_STRIPE_BYTES_UNIT 64u

/* Disks: regions that a few values fill, a journal that a few removals fill. */
#undef MC_DISK_REGION_BYTES
#define MC_DISK_REGION_BYTES SIM_DISK_REGION
#undef MC_DISK_REGION_BYTES_MIN
#define MC_DISK_REGION_BYTES_MIN SIM_DISK_REGION
#undef MC_DISK_OBJECT_BYTES
#define MC_DISK_OBJECT_BYTES 4096u
#undef MC_DISK_BUFFER_BYTES
#define MC_DISK_BUFFER_BYTES (512ull << 10)
#undef MC_DISK_SMALL_BYTES /* a quarter of a region holds one, and its table */
#define MC_DISK_SMALL_BYTES (8u << 10)
#undef MC_DISK_TASKS_MAX
#define MC_DISK_TASKS_MAX 64u
#undef MC_DISK_CLEARS_MAX
#define MC_DISK_CLEARS_MAX 512u
#undef MC_DISK_CLEARS_TASKS_MAX
#define MC_DISK_CLEARS_TASKS_MAX 256u
#undef MC_DISK_CLEARS_LEAST
#define MC_DISK_CLEARS_LEAST 32u
#undef MC_DISK_COMPACT_LEAST
#define MC_DISK_COMPACT_LEAST 4u

/* Keys are few: many that are put are there. */
#include "store/client/blank.h"
#undef MC_BLANK_REST
#define MC_BLANK_REST 1u

/* Clients know as a constant how long a master lets an owner be silent; here some masters are quicker. */
extern uint32_t sim_depart_ms;
#undef MC_DEPART_MS
#define MC_DEPART_MS sim_depart_ms
#undef MC_LOCATIONS_TRUST_MS
#define MC_LOCATIONS_TRUST_MS (sim_depart_ms > 1000u ? sim_depart_ms - 1000u : 0u)

#endif
