/* Members, the connections that they hold, and how long they are silent. */
#ifndef MC_CORE_MEMBER_H
#define MC_CORE_MEMBER_H

#include "store/core/core.h"
#include "store/core/limits.h"
#include "store/core/list.h"
#include "store/core/recover.h"
#include "store/wire/tenant.h"
#include "store/wire/version.h"

struct mc_object;
struct mc_put;

struct mc_writer { /* who may still write into a quarantined extent; counted, outlives its member */
    struct mc_id id;
    uint64_t references;
};

struct mc_member {
    struct mc_id id, host; /* host: as its hello says; 0 = it does not */
    char name[MC_MEMBER_NAME_MAX + 1];
    uint64_t incarnation;
    uint64_t hash; /* key in the map */
    struct mc_writer *writer;
    struct mc_connection *heartbeat, *owner; /* the newest of each role, or NULL */
    struct mc_link connections, segments;
    struct mc_link by_seen; /* in core->members, ordered by seen_ms */
    uint64_t seen_ms;       /* life time (core->life_ms) of its last sign of life */
    uint64_t seen_at_ms;    /* our age then, and 1: its owner knows of none that is later */
    uint64_t met_epoch;     /* the highest below ours that a hello of its process has told; 0 = none has */
    uint64_t key;           /* that it joined with: its id is this key\'s */
    uint64_t tenant;        /* of that key, hashed */
    unsigned rights;        /* of that key; all, where there are none */
    uint64_t beat_ms;       /* and of its last heartbeat; that is no sign of life of what serves its segments */
    uint64_t asked_ms;      /* and of the last one at which its owner was asked at once */
    bool had_heartbeat;     /* from then on it is mortal */
    bool heartbeat_lost, silent;
    bool departed;     /* silent for depart_ms: its segments may be acted upon, if the core may do so at all */
    bool absent;       /* given up, but for its disks: another process may bring them back */
    uint8_t disks_off; /* how many of its disks cannot be used, as it says */
    uint32_t promoted; /* values of its disks since its last heartbeat, see offload.c */
    char build[MC_BUILD_TEXT_MAX];
};

struct mc_reading {
    struct mc_object *object;
    uint32_t serial;
};

struct mc_connection {
    uint64_t number;
    uint64_t address;         /* where it comes from; 0: from this machine */
    struct mc_member *member; /* NULL before the hello */
    struct mc_link of_member;
    struct mc_link puts;
    uint32_t grants; /* open ones of its puts */
    struct mc_link waits;
    uint32_t wait_count;
    struct mc_wire_peer peer; /* what may be said to it, once it has said hello */
    uint64_t heard_ms;        /* life time of its last frame */
    uint64_t lent_ms;         /* of an owner: life time of its hello, or of the end of the last segment that it lent */
    uint64_t asked_ms;        /* of an owner: when the PING of a heartbeat was sent that has no answer yet; 0 = none */
    struct mc_answering {
        uint32_t smoothed8_ms; /* eight times the smoothed time from PING to PONG */
        uint32_t slow_ms;      /* the longest of late */
    } answering;               /* of an owner */
    uint32_t lost;             /* signs of lost packets on its way, when it was last looked at; of an owner */
    uint64_t lossy_until_ms;   /* life time; so long they count */
    uint8_t role, rights;      /* rights: of enum mc_right, where there are keys */
    uint64_t key;              /* tells its key from others; 0: there are none */
    struct mc_scope scope;     /* of its tenant, and with its stamp */
    bool is_scoped;            /* removals by pattern and of all are of that scope's objects alone */
    bool is_kept;              /* and it may name no keys of others */
    struct mc_id cluster;      /* of the contents that its hello speaks of; zero = there are none, or it does not say */
    struct mc_evidence said;   /* in its hello; counts from its next frame on. epoch 0: nothing */
    uint64_t said_of;          /* of which master, as far as that is known; 0 = it is not */
    struct mc_put *blank;      /* that was granted to it ahead, or NULL */
    uint32_t drawn;            /* see blank.c; 0: nowhere */
    bool closing;              /* nothing of it is listened to any more */
    uint32_t reading_count, reading_capacity;
    struct mc_reading *reading;
};

/* Takes out of the list what the connection may not name. */
void mc_connection_keep(const struct mc_connection *connection, struct mc_span *keys, uint32_t count);
struct mc_later { /* what somebody says of a master of a later epoch than ours */
    struct mc_id node;
    struct mc_span name;
    bool is_owner;
    uint64_t epoch;
    struct mc_span proof;
};
/* Counts it, if it is to be believed, and closes the connection. */
void mc_member_met_later(struct mc_core *core, struct mc_connection *connection, const struct mc_later *later);
void mc_member_hello(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
void mc_member_heartbeat(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
/* A segment is lent over that connection of an owner. */
bool mc_member_lends(const struct mc_connection *connection);
void mc_member_connection_ended(struct mc_core *core, struct mc_connection *connection);
void mc_members_tick(struct mc_core *core);
/* What was said after sent_ms is not sent yet. */
void mc_members_hold(struct mc_core *core);
void mc_member_destroy(struct mc_core *core, struct mc_member *member);
void mc_writer_release(struct mc_writer *writer);
/* Ends the reads of the connection's last GET. */
void mc_reading_end(struct mc_core *core, struct mc_connection *connection);
/* Departures may be acted upon from now on. */
void mc_members_depart(struct mc_core *core);
/* A sign of life: its silence is counted from now on. */
void mc_member_seen(struct mc_core *core, struct mc_member *member);
/* Of this core, for a member that ended: its connections are closed, its grants cut, its segments gone. */
void mc_member_drop(struct mc_core *core, struct mc_member *member, const char *why);

#endif
