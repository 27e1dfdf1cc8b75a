/* The masters that wait to lead, for people who look. Each standby says in the place of the election, beside what the
 * election keeps there, that it waits; every master reads the list now and then. It is a sign and nothing more: no step
 * of the election depends on it, and a thread ("mc-standbys") and a client of their own ask, so that a place which is
 * slow here delays no renewal there.
 *
 * Whether a standby still waits is judged by the reader's own clock: its word has changed. In etcd the word hangs on a
 * lease besides, and goes with it. Who may write there may lead as well: nobody is asked for more. */
#ifndef MC_MASTER_STANDBYS_H
#define MC_MASTER_STANDBYS_H

#include "base/bytes.h"
#include "env/socket.h"

#include <stddef.h>

#define MC_STANDBYS_MAX 16u       /* that are kept and told */
#define MC_STANDBY_EVERY_MS 5000u /* between two words of one, and two looks */
#define MC_STANDBY_GONE_MS 15000u /* one that has said nothing for so long waits no more */
#define MC_STANDBY_WORD_MAX 1024u /* bytes of a word with its zero; a longer one is nobody's */
#define MC_STANDBY_ID_MAX 33u

struct mc_standby {
    char name[64], address[MC_ADDRESS_MAX], build[64];
    uint64_t since_ms; /* by its wall clock */
    uint64_t heard_ms; /* ago */
};

/* ---- the list: what was read, by a clock that the caller says ---- */

struct mc_standby_seen {
    char id[MC_STANDBY_ID_MAX], word[MC_STANDBY_WORD_MAX];
    struct mc_standby said;
    uint64_t changed_ms;
    bool is_fresh; /* it came or changed under our eyes */
    bool is_there; /* at the last look */
};
struct mc_standby_list {
    struct mc_standby_seen seen[MC_STANDBYS_MAX];
    size_t count;
    uint64_t looked_ms; /* the last look that was answered; 0: none was */
};
/* A look: begin, add for each word that stands there, end. What is no word of a standby is passed over. */
void mc_standby_list_begin(struct mc_standby_list *list);
void mc_standby_list_add(struct mc_standby_list *list, const char *id, const char *word, uint64_t now_ms);
void mc_standby_list_end(struct mc_standby_list *list, uint64_t now_ms);
/* Those that wait, one for each address, but for that of the leader. */
size_t mc_standby_list_read(const struct mc_standby_list *list, const char *leader, uint64_t now_ms,
                            struct mc_standby standbys[MC_STANDBYS_MAX]);
/* The word itself; beat: another one each time. */
void mc_standby_word(char word[MC_STANDBY_WORD_MAX], const struct mc_standby *standby, uint64_t beat);

/* ---- the place (standbys_place.c) ---- */

struct mc_standby_place {
    void *context;
    /* 0 or negative. MC_ERR_NOT_PERMITTED: a person has to change that. */
    int (*say)(void *context, uint64_t deadline_ns, const char *id, const char *word);
    int (*leave)(void *context, uint64_t deadline_ns, const char *id);
    int (*look)(void *context, uint64_t deadline_ns, struct mc_standby_list *list, uint64_t now_ms);
    void (*destroy)(void *context);
};
int mc_standby_etcd_create(const char *endpoints, const char *cluster_id, struct mc_standby_place *place, char *error,
                           size_t error_size);
int mc_standby_k8s_create(const char *lease, struct mc_standby_place *place, char *error, size_t error_size);

/* ---- the thread ---- */

struct mc_master_config;
struct mc_server;
struct mc_standbys;
/* NULL without an election, or without memory for it, which the log says: a master does without. */
struct mc_standbys *mc_standbys_start(const struct mc_master_config *config, struct mc_server *server);
/* It asks the server nothing more; returns at once. NULL is allowed here and below. */
void mc_standbys_stop(struct mc_standbys *standbys);
/* Takes the word back that stands there; joins the thread. Where the place does not answer that takes up to four
 * seconds: three for a call that is under way, and one to take the word back. */
void mc_standbys_destroy(struct mc_standbys *standbys);
/* From any thread. *is_known: the place has answered lately. */
size_t mc_standbys_read(struct mc_standbys *standbys, struct mc_standby list[MC_STANDBYS_MAX], bool *is_known);

#endif
