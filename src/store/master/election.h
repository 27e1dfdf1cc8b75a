/* The election of one leader among several masters: a thread ("mc-election") that runs leadership.c against a backend,
 * and tells the server's thread whether it may serve.
 *
 * Invariant: mc_election_may_serve is true for an epoch only before the end of what the backend has granted it. */
#ifndef MC_MASTER_ELECTION_H
#define MC_MASTER_ELECTION_H

#include "env/socket.h"
#include "store/core/core.h"
#include "store/master/leadership.h"

#include <stddef.h>
#include <time.h>

#define MC_ELECTION_CLAIM_MAX 128 /* bytes of a claim's text with its zero */
#define MC_ELECTION_WORD_MAX 128  /* releases before the horizons read 32 bytes of the words that they know */

/* What stands beside a claim, written by leaders for those after them. */
enum mc_election_word {
    MC_ELECTION_DEPARTED, /* which leader may have acted on a departure last */
    MC_ELECTION_CLUSTER,  /* whose masters these are */
    MC_ELECTION_AGED,     /* which leader came of age last */
    MC_ELECTION_HORIZON,  /* up to which of its ages a leader acted on silences; see mc_horizon */
    MC_ELECTION_WORDS
};

/* What stands in the place of the election. */
struct mc_election_view {
    bool is_present;                   /* somebody leads, or did until lately */
    char leader[MC_ADDRESS_MAX];       /* its address */
    uint64_t revision;                 /* of the place; changes with every renewal */
    char claim[MC_ELECTION_CLAIM_MAX]; /* of the last leadership, also when nobody leads; "" = there was none */
    char words[MC_ELECTION_WORDS][MC_ELECTION_WORD_MAX]; /* "" = nobody has said it */
};

/* A place where elections are held. Calls are blocking, end by their deadline (mc_clock_ns), and come from one thread.
 * An operation that failed may yet have been carried out; claim and renew are therefore guarded by what stands there.
 */
struct mc_election_backend {
    const char *name, *forget; /* forget: how somebody deletes a claim by hand */
    uint64_t poll_ms;          /* standbys do not look more often; 0: as often as they like */
    void *context;
    /* 0 or negative. */
    int (*observe)(void *context, uint64_t deadline_ns, struct mc_election_view *view);
    /* Becomes leader under `claim`, with those words that are not NULL, if the place is as it was seen. 0;
     * MC_ERR_ETCD_TRANSACTION_FAIL: it is not; other: unknown. */
    int (*claim)(void *context, uint64_t deadline_ns, const struct mc_election_view *seen, const char *claim,
                 const char *leader, const char *const words[MC_ELECTION_WORDS]);
    /* Changes the revision, if the claim still stands and the view is there. As above. */
    int (*renew)(void *context, uint64_t deadline_ns, const char *claim, const char *leader);
    /* Replaces that word, if the claim still stands; HORIZON: and the text is greater than the one that stands there,
     * so that one which is late in reaching the place undoes nothing. As above. */
    int (*write)(void *context, uint64_t deadline_ns, const char *claim, enum mc_election_word word, const char *text);
    /* Nobody leads any more, and `resigned` stands in place of the claim, if that still stands. */
    int (*resign)(void *context, uint64_t deadline_ns, const char *claim, const char *resigned);
    /* One step of throwing away what renewals have left behind longer than `every` ago, if the claim still stands; now
     * and every in hundredths of a second. 1: the next step may follow at once. 0: nothing is left to do for now. */
    int (*tidy)(void *context, uint64_t deadline_ns, const char *claim, uint64_t now, uint64_t every);
    void (*destroy)(void *context);
};

/* By etcd (election_etcd.c). 0, or negative with a line in error. */
int mc_election_etcd_create(const char *endpoints, const char *cluster_id, uint64_t ttl_ms,
                            struct mc_election_backend *backend, char *error, size_t error_size);

/* By a Lease of Kubernetes, "namespace/name" (election_k8s.c). As above. */
int mc_election_k8s_create(const char *lease, uint64_t ttl_ms, struct mc_election_backend *backend, char *error,
                           size_t error_size);

struct mc_election;

/* Takes the backend over, also when it fails. address: under which clients find us. tidy_ms: how often a leader tidies
 * the place up; 0: never. */
int mc_election_create(const struct mc_election_backend *backend, uint64_t ttl_ms, uint64_t tidy_ms,
                       const char *address, struct mc_election **election);
int mc_election_start(struct mc_election *election);
/* Gives up a leadership (the server must have stopped to serve), so that another can follow at once; joins the thread.
 * NULL is allowed. */
void mc_election_destroy(struct mc_election *election);

/* Readable after every change, and now and then besides: who does not call mc_election_role then, which resets it,
 * stands still, and does not lead for long. */
int mc_election_fd(const struct mc_election *election);

struct mc_election_role {
    enum mc_leadership_phase phase;
    uint64_t epoch;              /* ours; 0 unless we lead */
    uint64_t predecessor_end_ms; /* of the last that may have acted; as mc_clock_boot_ms(); 0: unknown */
    uint64_t whole_epoch;        /* of the leader before us, if it has acted on no departure; 0: it may have */
    uint64_t whole_since;        /* contents from that epoch on were not acted upon either */
    uint64_t aged_epoch;         /* of the last leader before us that came of age; 0: none did, or that is not known */
    uint64_t departed_epoch;     /* of the last that may have acted on a departure; 0: one of age may have followed */
    struct mc_horizon horizons[MC_HORIZONS_MAX]; /* of leaders that none followed which came of age */
    char leader[MC_ADDRESS_MAX];                 /* "" unknown */
    uint64_t leader_epoch;
    struct mc_id cluster; /* which one this is; zero: that does not stand there */
    bool has_contact;     /* the last look at the place, or renewal, succeeded */
};
void mc_election_role(struct mc_election *election, struct mc_election_role *role);
/* The same without touching the descriptor: for other threads. */
void mc_election_describe(struct mc_election *election, struct mc_election_role *role);
/* Cheap: to be asked before every turn's input and output. */
bool mc_election_may_serve(const struct mc_election *election, uint64_t epoch);
/* The leader under that epoch would act on the departure of an owner, or, since it has lived so long, on the absence of
 * who never came to it, or it knows which cluster this is: that is written down first, for the leaders after it. Then
 * mc_election_fd is readable and mc_election_has_said true. The others say the epoch. */
void mc_election_say(struct mc_election *election, enum mc_election_word word, uint64_t epoch, struct mc_id cluster);
bool mc_election_has_said(const struct mc_election *election, enum mc_election_word word, uint64_t epoch);
/* It would act on the departure of who had the last contact at its age of at_ms, or earlier. That is written down as
 * well; mc_election_departed says up to which age that is so, 0: none. */
void mc_election_depart(struct mc_election *election, uint64_t epoch, uint64_t at_ms);
uint64_t mc_election_departed(const struct mc_election *election, uint64_t epoch);
/* The server has stopped to serve under that epoch; wanted: the least epoch that would do, 0: any. */
void mc_election_yield(struct mc_election *election, uint64_t epoch, uint64_t wanted);

/* Greater at every start, without a file: hundredths of a second since 2025. 0: a clock before 2020 or after 2040 is
 * wrong, and no master begins by it. What it says stays in the memory of nodes, and there is no way back from there. */
uint64_t mc_election_epoch_now(void);
/* The same of that time (CLOCK_REALTIME). */
uint64_t mc_election_epoch_of(const struct timespec *now);
/* A line about a clock that is wrong. */
void mc_election_clock_words(char *text, size_t size);
/* The same for a master that begins, without an election. Returns when that hundredth of a second is over: a master
 * that is started as soon as this one has ended takes a later one. */
uint64_t mc_election_epoch_start(void);

#endif
