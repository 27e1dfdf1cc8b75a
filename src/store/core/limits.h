/* How much the core takes in, remembers and does at once. */
#ifndef MC_CORE_LIMITS_H
#define MC_CORE_LIMITS_H

#include "store/wire/wire.h"
#include "store/segment/layout.h"

#define MC_SEGMENTS_TOLD_NEAR 16u /* in one answer, of the client's machine */
#define MC_SEGMENTS_TOLD_FAR 8u   /* and of others */
#define MC_SEGMENTS_MAX 65536u    /* mounted at the same time; number 0 is never used */
/* Of all segments: 2 PiB of memory at 2 KiB a slot. What a master keeps of each that an owner says to have, used or
 * not, is a pointer for 4,096 (MC_NODE_CHUNK): 2 GiB at most. */
#define MC_SLOTS_MAX (1ull << 40)
#define MC_SEGMENT_CAPACITY_MAX (1ull << 44)
#define MC_DISK_SLOTS_MAX (1u << 26) /* that a disk may have, whatever it takes: 4 * MC_DISK_OBJECTS_MAX */
#define MC_MEMBER_SEGMENTS_MAX 256u  /* a store node has one of memory, and eight disks at most */
#define MC_LENDER_PARTS 4u           /* an address may have all of these parts of segments and slots but one */
#define MC_SEGMENT_TEXT_MAX 255u     /* bytes of a segment's name and addresses */
#define MC_MEMBERS_MAX 65536u
#define MC_MEMBER_NAME_MAX 63u /* bytes that are kept of it, for the log */
#define MC_CONNECTIONS_MAX 131072u
#define MC_PUTS_MAX (1u << 20)         /* put starts with an open grant */
#define MC_SUCCESSOR_BUCKETS 16384u    /* of lists of values that are to replace others */
#define MC_SUCCESSORS_MAX 256u         /* of one value; they end at once */
#define MC_GRANTS_PER_CONNECTION 8192u /* open ones; so the end of a connection is a bounded amount of work */
#define MC_WAITS_MAX (1u << 20)        /* removals that wait for their CLEARED */
#define MC_WAITS_PER_CONNECTION 64u    /* whoever has so many unanswered asks again later */
#define MC_REPLACE_HOPE_MS 1000u /* readers of a key that waits are told for so long to ask again, then: not ready */
#define MC_LOADS_MAX 4096u       /* values that are being loaded from disks into one segment */
#define MC_MOVES_SENT_MAX 1024u  /* STOREs or LOADs for one segment that are not answered */
#define MC_AHEAD (4ull << 30)    /* bytes of a segment that are stored before they are evicted, */
#define MC_AHEAD_PART 8u         /* or this part of it if that is less */
#define MC_AHEAD_STEPS 64u       /* objects that are looked at for that at once */
#define MC_AHEAD_MEMBERS 128u    /* of a group, */
#define MC_AHEAD_VAIN 8u         /* or so many of which nothing is stored, if nothing is of the one at the mark */
#define MC_DISK_READS_MAX 255u   /* so far the loads of one value are counted */
#define MC_DISK_REST_MS 1000u    /* for a value that a disk has failed to read in time */
#define MC_DISK_VAIN 3u          /* or for the whole disk, after so many in a row */
#define MC_TENANTS_MAX 1024u     /* of which something is counted: a quota, or an object */
#define MC_JOBS_MAX 64u          /* removals of all or by pattern at the same time */
#define MC_REMOVALS_MAX 8u       /* of all, that the shell has asked for at the same time */
#define MC_REMOVAL_BITS 20u      /* of their numbers, below the epoch, which needs fewer than what is left */
#define MC_WALK_MAX 100u         /* segments looked at for one replica */
#define MC_PREFERRED_MAX 64u     /* segments that preferred names stand for */

/* What one slice may cost: all well under 1 ms together. */
#define MC_SLICE_SLOTS 2048u
#define MC_SLICE_STEPS 6000u /* of a removal, one = what a step of a regex costs, about 40 ns */
#define MC_STEPS_VISIT 5u    /* of looking at an object and taking it away */
#define MC_STEPS_SEARCH 8u   /* of a search beside those it counts */
#define MC_SLICE_GRANTS 512u
#define MC_SLICE_EVICTIONS 1024u
#define MC_SLICE_FRAMES 4u
#define MC_SLICE_CHUNKS 16u
#define MC_SLICE_PINS 1024u      /* soft pins whose deadline has passed */
#define MC_SLICE_WAITS 1024u     /* removals answered for one message; the rest is answered by ticks */
#define MC_EVICT_ITEM_MAX 256u   /* evictions that one item of a put may cause */
#define MC_EVICT_INPUT_MAX 2048u /* that one message may cause; the rest is done by ticks */
#define MC_EVICT_SKIPS_MAX 64u   /* objects in use that one eviction step passes over */
#define MC_EVICT_OWED_MAX 256u   /* objects that are guaranteed to others, that one eviction step passes over */
#define MC_EVICT_OWN_MAX 512u    /* objects in use, when a tenant makes room among its own */
#define MC_EVICT_SPARES_MAX 64u  /* objects on their way to a disk that one eviction step passes over */
#define MC_EVICT_TURNS_MAX 2048u /* members of groups that were used since, passed over for one message */

/* What evictions keep free of a segment, twice: between its marks, and above them. Bytes, or this part of it if that is
 * less. What is free holds nothing, and each percent of it costs hits. */
#define MC_RESERVE (256ull << 20)
#define MC_RESERVE_PART 256u

#define MC_TICK_IDLE_MS 1000u
#define MC_TICK_BUSY_MS 100u
#define MC_JOB_REST_MS 50u /* of a removal over all, before it looks again at what could not go */
/* Of memory that is stored on disks as a whole: so much is under way at a time (units; an owner has buffers for twice
 * as much), and so long it rests between two looks, and as long as a look took. */
#define MC_SWEEP_UNITS ((128ull << 20) / MC_EXTENT_UNIT)
#define MC_SWEEP_REST_MS 10u
#define MC_SWEEP_REST_MAX_MS 1000u  /* after several looks that have begun nothing */
#define MC_SWEEP_RECOVERING_MS 100u /* while its contents are not known */
#define MC_SWEEP_ASKED_MS 5000u     /* an owner that leaves asks more often: without it nothing more is stored for it */
#define MC_GAP_MS 1000u             /* a call later than expected by more than this is a gap of our own process */
/* A segment that grew within this time is waited for instead of evicted from; a few heartbeats */
#define MC_POPULATING_MS 3000u
#define MC_PROBE_PINGS 4u         /* evenly over the time in which one of them is to be answered, */
#define MC_PROBE_LEAST_MS 100u    /* which is at least so long, */
#define MC_PROBE_MOST_MS 650u     /* and at most, however slowly the owner has answered, and whatever the way loses */
#define MC_LOSSY_MS 5000u         /* after the last sign of a lost packet */
#define MC_PROBE_EVERY_MS 200u    /* of a suspect */
#define MC_ROUND_TRIP_MAX_MS 500u /* who answers later was not slow, but stopped */
#define MC_SLOW_DECAY 64u         /* the slowest answer is forgotten by this part with each that comes */
#define MC_REPORTERS_MAX 4u       /* machines that are remembered while a segment is probed */
#define MC_ACCUSERS_MAX 64u       /* machines whose reports were refuted */
#define MC_ACCUSED_MAX 8u         /* segments that are remembered of each */
#define MC_ACCUSED_MANY 3u        /* who is wrong about so many is in trouble himself */
#define MC_ACCUSED_WINDOW_MS 60000u
#define MC_CHECKS_MAX 16u    /* CHECKs to one segment whose outcome is open */
#define MC_CHECK_MS 10000u   /* without LOST for so long the replica is taken for sound */
#define MC_BUSY_RETRY_MS 50u /* after that, and as much again by chance, a request that was too much comes again */

/* recovery */
/* Each item may be the first to touch a page: about 0.5 us, twenty times that when the machine has to find memory. */
#define MC_INVENTORY_ITEMS_MAX 128u
#define MC_BASES_MAX 254u
#define MC_BASE_RAW 255u /* of CLEARING only: the upper bits of the generation are in node->pointer */
#define MC_EVIDENCE_MAX 64u
#define MC_RECOVERING_SLICE 1024u       /* segments that are looked at in a tick */
#define MC_INVENTORY_PATIENCE_MS 30000u /* without an INVENTORY for so long the contents are given up */
#define MC_CLUSTERS_MET_MAX 8u
#define MC_CLUSTER_WAITERS_MAX 4096u
#define MC_CLUSTER_WAITER_MS 10000u /* who waits and does not ask again for so long is forgotten */
#define MC_WITNESSES_MAX 32u
#define MC_WITNESS_KEEP_MS 10000u                            /* who says nothing for so long is forgotten */
#define MC_NOTE_LATE_MS (MC_TICK_IDLE_MS + MC_GAP_MS + 200u) /* we may read a hello so late without having noticed it */
#define MC_WITNESS_WORDS 3u                                  /* and over so long: then a witness stands by its word */
#define MC_WITNESS_STANDS_MS 2000u
/* Later than any clock that a master serves by (2040), with room for 60,000 leaps over what nodes have met. What nobody
 * proves is believed half-way to it: mc_core_epoch_latest. */
#define MC_EPOCH_LATEST (3ull << 34)
#define MC_TOMBSTONES_MAX (4u << 20)
#define MC_GONE_BITS (1ull << 27)    /* beyond that, and after the window: 16 MiB */
#define MC_STAMPS_MAX 16u            /* that a miss is looked for under */
#define MC_ENDED_WELL_MAX (1u << 23) /* placements back of which it is known whether their put ended well */
_Static_assert(MC_COUNTER_END == 1ull << 40, "a node has so many bits of a generation's counter");
#define MC_SLICE_TOMBSTONES 2048u

/* Share of placement: what was placed counts half as much every second. */
#define MC_SHARE_SLACK (64ull << 20) /* bytes */
#define MC_SHARE_SLACK_PART 64u      /* or this part of the capacity, if that is more */

#endif
