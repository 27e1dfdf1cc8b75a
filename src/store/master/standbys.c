/* The list of standbys, and the thread that keeps it. */
#include "store/master/standbys.h"

#include "base/build.h"
#include "base/error.h"
#include "env/clock.h"
#include "env/json.h"
#include "env/log.h"
#include "env/thread.h"
#include "store/master/server.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define CALL_NS 3000000000u
#define LAST_CALL_NS 1000000000u
#define LOOK_MS 500u      /* between two looks at whether this one leads */
#define REFUSED_MS 60000u /* a place where it may not write or read is not asked sooner again */
#define SHOWN_MS (MC_STANDBY_GONE_MS + MC_STANDBY_EVERY_MS) /* who is read each 5 s may be heard of 5 s late */

/* ---- words ---- */

void mc_standby_word(char word[MC_STANDBY_WORD_MAX], const struct mc_standby *standby, uint64_t beat)
{
    struct mc_buffer text = {.may_fail = true};
    struct mc_json_writer writer = {.out = &text};
    mc_json_begin(&writer, NULL, '{');
    mc_json_add_text(&writer, "name", standby->name);
    mc_json_add_text(&writer, "address", standby->address);
    mc_json_add_text(&writer, "build", standby->build);
    mc_json_add_number(&writer, "since_ms", standby->since_ms);
    mc_json_add_number(&writer, "beat", beat);
    mc_json_end(&writer, '}');
    bool is_whole = !text.failed && text.length < MC_STANDBY_WORD_MAX;
    snprintf(word, MC_STANDBY_WORD_MAX, "%.*s", is_whole ? (int)text.length : 0, (const char *)text.data);
    mc_buffer_free(&text);
}

static bool text_of(struct mc_span word, const char *name, char *text, size_t size)
{
    struct mc_json_cursor member;
    return mc_json_member(word, name, &member) == 1 && mc_json_text(&member, text, size) == 0;
}

/* False: that is none. */
static bool word_parse(const char *word, struct mc_standby *standby)
{
    struct mc_span text = mc_span_string(word);
    *standby = (struct mc_standby){.since_ms = 0};
    return text_of(text, "address", standby->address, sizeof(standby->address)) && standby->address[0] != 0 &&
           text_of(text, "name", standby->name, sizeof(standby->name)) &&
           text_of(text, "build", standby->build, sizeof(standby->build)) &&
           mc_json_find_number(text, "since_ms", &standby->since_ms) == 1;
}

/* ---- the list ---- */

void mc_standby_list_begin(struct mc_standby_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        list->seen[i].is_there = false;
}

void mc_standby_list_add(struct mc_standby_list *list, const char *id, const char *word, uint64_t now_ms)
{
    struct mc_standby said;
    struct mc_standby_seen *seen = list->seen;
    if (strlen(id) >= MC_STANDBY_ID_MAX || strlen(word) >= MC_STANDBY_WORD_MAX || !word_parse(word, &said))
        return;
    while (seen < list->seen + list->count && strcmp(seen->id, id) != 0)
        seen++;
    if (seen == list->seen + MC_STANDBYS_MAX)
        return;
    bool is_new = seen == list->seen + list->count;
    if (is_new) {
        list->count++;
        snprintf(seen->id, sizeof(seen->id), "%s", id);
    }
    if (is_new || strcmp(seen->word, word) != 0) {
        seen->is_fresh = !is_new || list->looked_ms != 0; /* of the first look it is not known how old that is */
        seen->changed_ms = now_ms;
        seen->said = said;
        snprintf(seen->word, sizeof(seen->word), "%s", word);
    }
    seen->is_there = true;
}

void mc_standby_list_end(struct mc_standby_list *list, uint64_t now_ms)
{
    size_t kept = 0;
    for (size_t i = 0; i < list->count; i++)
        if (list->seen[i].is_there && kept++ != i)
            list->seen[kept - 1] = list->seen[i];
    list->count = kept;
    list->looked_ms = now_ms;
}

size_t mc_standby_list_read(const struct mc_standby_list *list, const char *leader, uint64_t now_ms,
                            struct mc_standby standbys[MC_STANDBYS_MAX])
{
    size_t count = 0;
    for (size_t i = 0; i < list->count; i++) {
        const struct mc_standby_seen *seen = &list->seen[i];
        uint64_t heard_ms = now_ms - seen->changed_ms;
        if (!seen->is_fresh || heard_ms > SHOWN_MS || strcmp(seen->said.address, leader) == 0)
            continue;
        size_t at = 0; /* one that was started again has left a word behind */
        while (at < count && strcmp(standbys[at].address, seen->said.address) != 0)
            at++;
        if (at < count && standbys[at].heard_ms <= heard_ms)
            continue;
        standbys[at] = seen->said;
        standbys[at].heard_ms = heard_ms;
        count += at == count;
    }
    return count;
}

/* ---- the thread ---- */

struct mc_standbys {
    struct mc_sleeper sleeper; /* its lock: all but what only the thread touches */
    struct mc_standby_place place;
    struct mc_server *server;
    struct mc_standby self;
    char id[MC_STANDBY_ID_MAX];
    struct mc_standby_list list;
    /* The thread's alone. */
    uint64_t beat, due_ms;
    bool waits, is_said;
    struct mc_standby_list fresh;
};

/* Trouble with it is no trouble of the master's; its client says it in the log. */
static uint64_t pause_of(int rc)
{
    return rc == MC_ERR_NOT_PERMITTED ? REFUSED_MS : MC_STANDBY_EVERY_MS;
}

static int say(struct mc_standbys *self)
{
    char word[MC_STANDBY_WORD_MAX];
    mc_standby_word(word, &self->self, ++self->beat);
    self->is_said = true; /* also when it was not heard */
    return self->place.say(self->place.context, mc_clock_ns() + CALL_NS, self->id, word);
}

static void leave(struct mc_standbys *self, uint64_t limit_ns)
{
    int rc = self->is_said ? self->place.leave(self->place.context, mc_clock_ns() + limit_ns, self->id) : 0;
    self->is_said = rc < 0 && rc != MC_ERR_NOT_PERMITTED; /* who may not write cannot take it back */
}

static bool is_stopping(struct mc_standbys *self)
{
    pthread_mutex_lock(&self->sleeper.lock);
    bool stop = self->sleeper.stop;
    pthread_mutex_unlock(&self->sleeper.lock);
    return stop;
}

/* Not under the lock. */
static void round_of(struct mc_standbys *self)
{
    int rc = 0;
    if (self->waits)
        rc = say(self);
    else
        leave(self, CALL_NS);
    if (is_stopping(self))
        return;
    mc_standby_list_begin(&self->fresh);
    int looked = self->place.look(self->place.context, mc_clock_ns() + CALL_NS, &self->fresh, mc_clock_boot_ms());
    if (looked == 0)
        mc_standby_list_end(&self->fresh, mc_clock_boot_ms());
    pthread_mutex_lock(&self->sleeper.lock);
    if (looked == 0)
        self->list = self->fresh;
    else
        self->fresh = self->list;
    pthread_mutex_unlock(&self->sleeper.lock);
    self->due_ms = mc_clock_boot_ms() + pause_of(looked < 0 ? looked : rc);
}

/* The server is asked under the lock, and not any more once it is to stop. */
static bool role_has_changed(struct mc_standbys *self)
{
    struct mc_election_role role;
    mc_server_describe(self->server, &role);
    bool waits = role.phase != MC_LEADERSHIP_LEADER, was = self->waits;
    if (waits && !was)
        self->self.since_ms = mc_clock_wall_ms();
    self->waits = waits;
    return waits != was;
}

static void *run(void *argument)
{
    struct mc_standbys *self = argument;
    struct mc_sleeper *sleeper = &self->sleeper;
    pthread_mutex_lock(&sleeper->lock);
    while (!sleeper->stop) {
        if (role_has_changed(self) || mc_clock_boot_ms() >= self->due_ms) {
            pthread_mutex_unlock(&sleeper->lock);
            round_of(self);
            pthread_mutex_lock(&sleeper->lock);
        } else {
            (void)mc_monitor_wait(&sleeper->lock, &sleeper->changed, mc_clock_ns() + LOOK_MS * 1000000ull);
        }
    }
    pthread_mutex_unlock(&sleeper->lock);
    leave(self, LAST_CALL_NS);
    return NULL;
}

struct mc_standbys *mc_standbys_start(const struct mc_master_config *config, struct mc_server *server)
{
    char error[512] = "out of memory";
    struct mc_standbys *self = config->ha_enabled ? calloc(1, sizeof(*self)) : NULL;
    if (!config->ha_enabled)
        return NULL;
    int rc = self == NULL ? MC_ERR_NO_MEMORY
             : config->ha_is_lease
                 ? mc_standby_k8s_create(config->ha_place, &self->place, error, sizeof(error))
                 : mc_standby_etcd_create(config->ha_place, config->cluster_id, &self->place, error, sizeof(error));
    if (rc == 0) {
        self->server = server;
        snprintf(self->id, sizeof(self->id), "%016" PRIx64, mc_random_u64());
        if (gethostname(self->self.name, sizeof(self->self.name) - 1) != 0)
            snprintf(self->self.name, sizeof(self->self.name), "?");
        snprintf(self->self.build, sizeof(self->self.build), "%s", mc_build());
        mc_address_join(self->self.address, sizeof(self->self.address), config->rpc_address, mc_server_port(server));
        mc_monitor_init(&self->sleeper.lock, &self->sleeper.changed);
        if (mc_sleeper_start(&self->sleeper, "mc-standbys", run, self) != 0) {
            mc_standbys_destroy(self);
            snprintf(error, sizeof(error), "no thread can be started");
        } else {
            return self;
        }
    } else {
        free(self);
    }
    mc_log(WARNING, "which masters wait will not be known: %s", error);
    return NULL;
}

void mc_standbys_stop(struct mc_standbys *self)
{
    if (self == NULL)
        return;
    pthread_mutex_lock(&self->sleeper.lock);
    self->sleeper.stop = true;
    pthread_cond_signal(&self->sleeper.changed);
    pthread_mutex_unlock(&self->sleeper.lock);
}

void mc_standbys_destroy(struct mc_standbys *self)
{
    if (self == NULL)
        return;
    mc_sleeper_end(&self->sleeper);
    self->place.destroy(self->place.context);
    free(self);
}

size_t mc_standbys_read(struct mc_standbys *self, struct mc_standby list[MC_STANDBYS_MAX], bool *is_known)
{
    struct mc_election_role role;
    *is_known = false;
    if (self == NULL)
        return 0;
    mc_server_describe(self->server, &role);
    pthread_mutex_lock(&self->sleeper.lock);
    uint64_t now_ms = mc_clock_boot_ms();
    *is_known = self->list.looked_ms != 0 && now_ms - self->list.looked_ms <= SHOWN_MS;
    size_t count = mc_standby_list_read(&self->list, role.leader, now_ms, list);
    pthread_mutex_unlock(&self->sleeper.lock);
    return count;
}
