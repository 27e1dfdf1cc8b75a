/* What other masters may have done, and contents that come from their time. */
#ifndef MC_CORE_RECOVER_H
#define MC_CORE_RECOVER_H

#include "base/bytes.h"
#include "store/wire/wire.h"

struct mc_connection;
struct mc_core;
struct mc_segment;

enum mc_inventory {
    MC_INVENTORY_NONE,
    MC_INVENTORY_EARLIER, /* of memory that was mounted under an earlier epoch: the space is being rebuilt from it */
    MC_INVENTORY_TAKEOVER /* of memory of this epoch that another process has taken up: it is compared */
};

/* Contents that were mounted under an earlier epoch. */
struct mc_past {
    struct mc_id cluster;   /* zero = it did not say */
    uint64_t epoch;         /* 0 = there are none */
    int64_t contact_ms;     /* when their owner last had a sign of the master of that epoch */
    uint64_t contact_at_ms; /* the same by that master's own age, and 1; 0 = not known */
};

/* A master of that epoch, or an earlier one, that may have acted was alive then: of that cluster, zero = of any. */
struct mc_evidence {
    uint64_t epoch;
    int64_t alive_ms;
    struct mc_id cluster;
};

/* An owner that brings contents of another cluster than those that are here, while it is not known which this is. */
struct mc_cluster_waiter {
    struct mc_id node, cluster;
    uint64_t said_ms;
};

struct mc_later;
/* A node that has met a master of an epoch above ours. */
struct mc_witness {
    struct mc_id node;          /* of one that lends memory: a hash of its name */
    uint64_t epoch;             /* that it has named last; 0: one that is not believed of anybody */
    uint64_t first_ms, last_ms; /* of its words */
    uint32_t words;
    bool is_owner;
};

/* recover.c: contents of earlier epochs and of restarted owners */
/* Why these contents are not wanted; NULL: they are. */
const char *mc_recover_unwanted(const struct mc_core *core, const struct mc_past *past, bool is_disk);
/* It is taken: on what grounds? Says so when there are none but that nobody has told of anything. */
void mc_recover_taken(struct mc_core *core, const struct mc_segment *segment);
/* The segment awaits its inventory. For EARLIER it must be new; false when its slots cannot be as the owner says. */
bool mc_recover_begin(struct mc_core *core, struct mc_segment *segment, enum mc_inventory inventory, uint32_t slot_top);
/* Its owner leaves the segment to others, and tells no more. Not of what lay there before this master. */
void mc_recover_break_off(struct mc_segment *segment);
void mc_recover_inventory(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
/* A slice of what follows the last INVENTORY; true when more is left. */
bool mc_recover_work(struct mc_core *core, struct mc_segment *segment);
/* Contents of an earlier epoch may still come: nothing is to be acknowledged that they could undo, and there may soon
 * be more room. */
bool mc_recover_unsettled(const struct mc_core *core);
/* A value that is put now may take the key of an older one in a segment that we have not met; the master after us, to
 * which that segment comes, must meet the newer one too. */
bool mc_recover_hides(const struct mc_core *core);
/* False as long as nothing that we did can matter to a later master. */
bool mc_recover_acts(const struct mc_core *core);
/* Young only because it may not come of age. */
bool mc_recover_asks_to_age(const struct mc_core *core);
bool mc_recover_is_of_age(const struct mc_core *core);
/* Judges by new evidence, frees tombstones, ends graces; true when there is more to do. */
bool mc_recover_tick(struct mc_core *core);
void mc_recover_lost(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
void mc_recover_rotten(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
/* The recovery window is not over. While our own process is stopped nobody can come, so that time does not count. */
bool mc_recover_waits(const struct mc_core *core);
/* Contents of earlier epochs may still come, also in memory: what goes leaves a tombstone. */
bool mc_recover_open(const struct mc_core *core);
/* Or disks may, for longer: what goes leaves a bit at least. */
bool mc_recover_remembers(const struct mc_core *core);
/* The segment is gone, or offered: nothing that earlier masters did counts for it. */
void mc_recover_judged(struct mc_core *core, struct mc_segment *segment);
/* What is known of all keys is no longer enough to judge further entries of earlier epochs. */
void mc_recover_refuse(struct mc_core *core);
/* The number of a base from which 40 bits reach the generation; 0 when there is none and the table is full. */
unsigned mc_base_of(struct mc_core *core, uint64_t generation);

/* evidence.c: what nodes know of other masters */
/* The connection's hello says that its node has met a master of that epoch, which had acted age_ms ago. It is believed
 * once the connection goes on to speak. */
void mc_evidence_said(const struct mc_core *core, struct mc_connection *connection, const struct mc_wire_hello *hello);
void mc_evidence_confirm(struct mc_core *core, struct mc_connection *connection);
/* A note says that the master of that epoch may have acted until age_ms ago; epoch 0: there is no note. */
void mc_evidence_noted(struct mc_core *core, uint64_t epoch, uint64_t age_ms);
/* No master has acted on the absence of the owner of these contents, as the election knows. */
bool mc_evidence_is_whole(const struct mc_core *core, const struct mc_past *past);
/* A master of that cluster between that contact and us may have acted on the absence of whoever had the contact: by
 * what we know that, in words; NULL: nothing says so. */
const char *mc_evidence_against(const struct mc_core *core, const struct mc_past *past);
/* A node says that it has met a master of an epoch above ours. has_proof: there was that master. */
void mc_evidence_contradicts(struct mc_core *core, const struct mc_later *later, bool has_proof);

/* cluster.c: which cluster this is */
/* What the configuration knows of it. */
void mc_cluster_begin(struct mc_core *core);
/* 0; MC_ERR_OTHER_CLUSTER, or MC_ERR_BUSY as long as nothing is settled: with words, 448 bytes at most. */
int32_t mc_cluster_judge(struct mc_core *core, const struct mc_wire_hello *hello, char *words);
/* That one is not ours, and is known not to be. */
bool mc_cluster_is_other(const struct mc_core *core, struct mc_id cluster);
/* What members are told. */
struct mc_id mc_cluster_told(const struct mc_core *core);
void mc_cluster_tick(struct mc_core *core);

#endif
