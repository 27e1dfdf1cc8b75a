/* Asks the instances: /health now and then; what they serve, once after each time they come up; and of a prefill
 * instance in concurrent mode its bootstrap server, each time, since an engine that was restarted has another id.
 *
 * A refused connection makes an instance dead at once. Silence does when nothing at all has come for dead_timeout,
 * /health was asked meanwhile, and no request's bytes came either: an engine that is slow to answer and sends tokens
 * lives. One that owes answers and has been silent for a second is asked at once, so that the time runs from its last
 * byte. One that takes no connection is asked again between two rounds, when its name has been looked up anew: a pod
 * that was replaced has another address. */
#include "proxy/proxy.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/json.h"
#include "env/log.h"

#include <stdio.h>
#include <stdlib.h>

#define CHECK_MS 5000
#define HEALTH_MS 15000    /* when silence makes nobody dead */
#define SILENCE_ASKED 1000 /* ms without a byte after which an instance with requests is asked for /health */
#define STOOD_STILL 1000   /* ms between two pulses: what nobody looked at in that time says nothing */
#define SILENCE_LATE 2000  /* ms without an answer to that after which others are preferred */

/* ---- one question ---- */

struct question { /* GET of a path; the answer is kept */
    struct mc_upstream *upstream;
    struct evbuffer *answer;
    int status;
    uint64_t *heard; /* whose sign of life an answer is, or NULL */
    void (*done)(struct question *question, enum mc_upstream_end end, const char *problem);
};

static void question_head(void *context, struct mc_head *head)
{
    struct question *question = context;
    question->status = head->status;
    if (question->heard != NULL)
        *question->heard = mc_clock_ms();
}

static void question_data(void *context, struct evbuffer *data)
{
    struct question *question = context;
    if (evbuffer_get_length(question->answer) + evbuffer_get_length(data) <= MC_PROXY_ANSWER_MAX)
        (void)evbuffer_add_buffer(question->answer, data);
}

static void question_end(void *context, enum mc_upstream_end end, const char *problem)
{
    struct question *question = context;
    question->upstream = NULL;
    question->done(question, end, problem);
}

static const struct mc_upstream_events question_events = {question_head, question_data, question_end};

static int ask(struct mc_proxy *proxy, struct question *question, const struct mc_proxy_address *address,
               const char *path, uint64_t longest_ms)
{
    struct mc_buffer head = {0};
    question->status = 0;
    if (question->answer == NULL)
        question->answer = evbuffer_new();
    if (question->answer == NULL)
        return MC_ERR_NO_MEMORY;
    (void)evbuffer_drain(question->answer, evbuffer_get_length(question->answer));
    mc_relay_write_head(proxy, address, NULL, "GET", path, &head);
    mc_buffer_printf(&head, "\r\n");
    question->upstream = mc_upstream_start(proxy, address, &head, NULL, false, longest_ms, &question_events, question);
    mc_buffer_free(&head);
    return question->upstream == NULL ? MC_ERR_NO_MEMORY : 0;
}

/* What it answered with 200; empty otherwise, which is no JSON. */
static struct mc_span answer_of(const struct question *question)
{
    if (question->status != 200 || question->answer == NULL)
        return mc_span("", 0);
    const void *all = evbuffer_pullup(question->answer, -1);
    return mc_span(all == NULL ? "" : all, all == NULL ? 0 : evbuffer_get_length(question->answer));
}

static void forget(struct question *question)
{
    if (question->upstream != NULL)
        mc_upstream_cancel(question->upstream);
    if (question->answer != NULL)
        evbuffer_free(question->answer);
    question->upstream = NULL;
    question->answer = NULL;
}

/* Does a list of models hold this one? -1: it is no such list. */
static int serves(const struct question *question, const char *model)
{
    struct mc_json_cursor list, one, id;
    char text[512]; /* as long as a model's name may be */
    int found = 0;
    if (mc_json_member(answer_of(question), "data", &list) != 1 || list.kind != '[' ||
        mc_json_open(list.value, '[', &one) < 0)
        return -1;
    while (mc_json_next(&one) == 1)
        if (mc_json_member(one.value, "id", &id) == 1 && mc_json_text(&id, text, sizeof(text)) == 0 &&
            strcmp(text, model) == 0)
            found = 1;
    return found;
}

/* ---- the check of an instance ---- */

struct mc_instance_check {
    struct question question; /* first: a question is its check */
    struct mc_proxy *proxy;
    struct mc_instance *instance; /* held */
    enum check_step { CHECK_HEALTH, CHECK_MODEL, CHECK_BOOTSTRAP } step;
    uint64_t asked_ms;
    bool is_again; /* between two rounds */
};

static void cancel(struct mc_instance *instance)
{
    struct mc_instance_check *check = instance->check;
    if (check == NULL)
        return;
    instance->check = NULL;
    forget(&check->question);
    free(check);
    mc_instance_release(instance);
}

static void set_problem(struct mc_instance *instance, const char *format, const char *text)
{
    (void)snprintf(instance->problem, sizeof(instance->problem), format, text);
}

static void set_up(struct mc_instance *instance)
{
    if (instance->state != MC_INSTANCE_UP)
        mc_log(INFO, "%s instance %s is up (%s)", instance->role == MC_PROXY_PREFILL ? "prefill" : "decode",
               instance->address.name,
               instance->role == MC_PROXY_PREFILL ? mc_proxy_mode_name(instance->address.mode) : "decode");
    instance->state = MC_INSTANCE_UP;
    instance->is_silent = false;
    cancel(instance);
}

static bool is_plain_id(const char *id)
{
    size_t length = strlen(id);
    for (size_t i = 0; i < length; i++) {
        if (id[i] < ' ' || id[i] == 0x7f || id[i] == '"' || id[i] == '\\')
            return false;
    }
    return length > 0;
}

/* {"0": {"engine_id": "...", ...}, "1": ...}: as many as data-parallel ranks. False: it is not that. */
static bool take_engines(struct mc_instance *instance, struct question *question)
{
    struct mc_span answer = answer_of(question);
    struct mc_json_cursor one, id;
    size_t count = 0;
    if (mc_json_open(answer, '{', &one) < 0)
        return false;
    while (mc_json_next(&one) == 1)
        count++;
    char(*ids)[MC_PROXY_ENGINE_ID_MAX] = NULL;
    bool is_good = count > 0 && count <= MC_PROXY_RANKS_MAX;
    if (is_good)
        ids = calloc(count, sizeof(*ids));
    for (size_t rank = 0; ids != NULL && rank < count; rank++) {
        char key[16];
        (void)snprintf(key, sizeof(key), "%zu", rank);
        is_good = is_good && mc_json_member(answer, key, &one) == 1 &&
                  mc_json_member(one.value, "engine_id", &id) == 1 &&
                  mc_json_text(&id, ids[rank], sizeof(ids[rank])) == 0 && is_plain_id(ids[rank]);
    }
    if (!is_good || ids == NULL) {
        free(ids);
        return false;
    }
    if (instance->rank_count > 0 && strcmp(instance->engine_ids[0], ids[0]) != 0)
        mc_log(INFO, "prefill instance %s has a new engine id: %s", instance->address.name, ids[0]);
    free(instance->engine_ids);
    instance->engine_ids = ids;
    instance->rank_count = (unsigned)count;
    return true;
}

static void took_bootstrap(struct mc_instance_check *check, enum mc_upstream_end end, const char *problem)
{
    struct mc_instance *instance = check->instance;
    /* Refused, or an answer without engines: it is sure. Slow or broken off: it may be busy, and what it said holds. */
    bool is_sure = end == MC_UPSTREAM_NO_CONNECT || (end == MC_UPSTREAM_DONE && check->question.status < 500);
    if (end == MC_UPSTREAM_DONE && take_engines(instance, &check->question)) {
        instance->problem[0] = 0;
        instance->bootstrap_strikes = 0;
    } else if (end == MC_UPSTREAM_OWN_TROUBLE ||
               (!is_sure && instance->rank_count > 0 && ++instance->bootstrap_strikes < MC_PROXY_STRIKES_MAX)) {
        mc_log_limited(WARNING, "the bootstrap server of prefill instance %s, port %u, is slow: %s",
                       instance->address.name, instance->address.bootstrap_port, problem);
    } else {
        /* Without it decode could not find what prefill has computed. */
        if (instance->rank_count > 0 || instance->state == MC_INSTANCE_NEW)
            mc_log(WARNING, "the bootstrap server of prefill instance %s, port %u, does not answer: %s",
                   instance->address.name, instance->address.bootstrap_port,
                   end == MC_UPSTREAM_DONE ? "no engine is registered" : problem);
        instance->rank_count = 0;
        set_problem(instance, "its bootstrap server: %.200s",
                    end == MC_UPSTREAM_DONE ? "no engine is registered" : problem);
    }
    set_up(instance);
}

static void ask_next(struct mc_instance_check *check, enum check_step step)
{
    struct mc_instance *instance = check->instance;
    struct mc_proxy_address address = instance->address;
    check->step = step;
    if (check->step == CHECK_MODEL && (instance->model_is_checked || check->proxy->config->model[0] == 0))
        check->step = CHECK_BOOTSTRAP;
    bool needs_bootstrap = instance->role == MC_PROXY_PREFILL && address.mode == MC_PROXY_CONCURRENT;
    if (check->step == CHECK_BOOTSTRAP && !needs_bootstrap) {
        instance->problem[0] = 0;
        set_up(instance);
        return;
    }
    if (check->step == CHECK_BOOTSTRAP) {
        check->question.heard = NULL; /* it may be another process */
        address.port = address.bootstrap_port;
        address.is_tls = false; /* it is a server of its own, whose address decode is told as http:// */
        mc_address_join(address.name, sizeof(address.name), address.host, address.port);
    }
    if (ask(check->proxy, &check->question, &address, check->step == CHECK_MODEL ? "/v1/models" : "/query", CHECK_MS) <
        0)
        cancel(instance); /* the next round asks again */
}

static void took_models(struct mc_instance_check *check, enum mc_upstream_end end)
{
    struct mc_instance *instance = check->instance;
    const char *model = check->proxy->config->model;
    int found = end == MC_UPSTREAM_DONE ? serves(&check->question, model) : -1;
    if (found == 0) {
        if (instance->state != MC_INSTANCE_WRONG_MODEL)
            mc_log(ERROR, "instance %s does not serve %s; it gets no requests", instance->address.name, model);
        instance->state = MC_INSTANCE_WRONG_MODEL;
        set_problem(instance, "it does not serve %.200s", model);
        cancel(instance);
        return;
    }
    if (found < 0)
        mc_log(WARNING, "instance %s does not list its models (status %d); it is taken to serve %s",
               instance->address.name, check->question.status, model);
    instance->model_is_checked = true;
    ask_next(check, CHECK_BOOTSTRAP);
}

static bool has_stood_still(const struct mc_proxy *proxy)
{
    return mc_clock_ms() - proxy->pulse_ms >= STOOD_STILL;
}

static void took_health(struct mc_instance_check *check, enum mc_upstream_end end, const char *problem)
{
    struct mc_instance *instance = check->instance;
    char text[64];
    if (end == MC_UPSTREAM_DONE && check->question.status < 500) {
        instance->strikes = 0;
        ask_next(check, CHECK_MODEL);
        return;
    }
    /* Its answer may lie in our own socket. */
    bool was_asleep = check->asked_ms <= check->proxy->woken_ms || has_stood_still(check->proxy);
    if (end == MC_UPSTREAM_TIMEOUT && was_asleep) {
        cancel(instance);
        return;
    }
    if (end == MC_UPSTREAM_OWN_TROUBLE) {
        mc_log_limited(WARNING, "instance %s cannot be asked whether it lives: %s", instance->address.name, problem);
        cancel(instance);
        return;
    }
    if (end == MC_UPSTREAM_DONE) {
        (void)snprintf(text, sizeof(text), "/health answers %d", check->question.status);
        problem = text;
    }
    bool is_sure = end == MC_UPSTREAM_NO_CONNECT || end == MC_UPSTREAM_DONE;
    if (end == MC_UPSTREAM_NO_CONNECT && !check->is_again)
        mc_instance_ask_again(instance);
    if (end == MC_UPSTREAM_TIMEOUT) {
        is_sure = instance->heard_ms <= check->asked_ms;
        instance->is_silent = is_sure;
        problem = "it answers nothing, not even /health";
        instance->strikes = 0;
    }
    if (is_sure || (end != MC_UPSTREAM_TIMEOUT && ++instance->strikes >= MC_PROXY_STRIKES_MAX))
        mc_instance_set_down(instance, problem);
    cancel(instance);
}

static void on_checked(struct question *question, enum mc_upstream_end end, const char *problem)
{
    struct mc_instance_check *check = (struct mc_instance_check *)question;
    if (check->step == CHECK_HEALTH)
        took_health(check, end, problem);
    else if (check->step == CHECK_MODEL)
        took_models(check, end);
    else
        took_bootstrap(check, end, problem);
}

/* How long /health may take: the rest of dead_timeout, which runs from the last byte of what is under way. */
static uint64_t health_ms(const struct mc_proxy *proxy, const struct mc_instance *instance, uint64_t now)
{
    uint64_t dead = proxy->config->dead_ms, silent = mc_instance_silent_ms(instance, now);
    if (dead == 0)
        return HEALTH_MS;
    return silent < dead - dead / 4 ? dead - silent : dead / 4;
}

static void start(struct mc_proxy *proxy, struct mc_instance *instance, bool is_again)
{
    struct mc_instance_check *check = calloc(1, sizeof(*check));
    uint64_t now = mc_clock_ms();
    if (check == NULL)
        return; /* the next round tries again */
    check->question.done = on_checked;
    check->proxy = proxy;
    check->instance = instance;
    check->asked_ms = now;
    check->is_again = is_again;
    check->question.heard = &instance->heard_ms;
    instance->check = check;
    mc_instance_hold(instance);
    if (ask(proxy, &check->question, &instance->address, "/health", health_ms(proxy, instance, now)) < 0)
        cancel(instance);
}

static void check_list(struct mc_proxy *proxy, struct mc_instance *list)
{
    for (struct mc_instance *at = list; at != NULL; at = at->next) {
        if (at->check == NULL)
            start(proxy, at, false);
    }
}

void mc_check_all(struct mc_proxy *proxy)
{
    for (int role = 0; role < 2; role++)
        check_list(proxy, proxy->instances.list[role]);
    check_list(proxy, proxy->instances.removed);
}

void mc_check_cancel_all(struct mc_proxy *proxy)
{
    struct mc_instances *set = &proxy->instances;
    struct mc_instance *const lists[] = {set->list[0], set->list[1], set->removed};
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        for (struct mc_instance *at = lists[i]; at != NULL; at = at->next)
            cancel(at);
    }
}

/* One that was removed may be about to end: it refuses connections, or says that it is not well, and still answers what
 * it has. So only silence ends that. */
static void end_silent(struct mc_proxy *proxy, const struct mc_instance *instance)
{
    uint64_t dead = proxy->config->dead_ms;
    if (instance->state != MC_INSTANCE_DOWN || instance->requests == 0 || dead == 0)
        return;
    if (instance->is_silent || !instance->is_removed)
        mc_relay_end_silent(proxy, instance, instance->is_silent ? 0 : dead);
}

static void pulse_list(struct mc_proxy *proxy, struct mc_instance *list, uint64_t now)
{
    for (struct mc_instance *at = list; at != NULL; at = at->next) {
        if (proxy->woken_ms == now) {
            at->heard_ms = now;
            continue;
        }
        bool is_asked = at->check != NULL && at->check->step == CHECK_HEALTH;
        at->is_late = is_asked && now - at->check->asked_ms >= SILENCE_LATE && at->heard_ms <= at->check->asked_ms;
        bool is_due = at->again_ms != 0 && now >= at->again_ms;
        at->again_ms = is_due ? 0 : at->again_ms;
        bool is_silent = at->state != MC_INSTANCE_DOWN && mc_instance_silent_ms(at, now) >= SILENCE_ASKED;
        if (at->check == NULL && (is_due || is_silent))
            start(proxy, at, is_due);
        end_silent(proxy, at);
    }
}

void mc_check_pulse(struct mc_proxy *proxy)
{
    uint64_t now = mc_clock_ms();
    struct mc_instance *next;
    if (has_stood_still(proxy))
        proxy->woken_ms = now;
    proxy->pulse_ms = now;
    for (int role = 0; role < 2; role++)
        pulse_list(proxy, proxy->instances.list[role], now);
    pulse_list(proxy, proxy->instances.removed, now);
    for (struct mc_instance *at = proxy->instances.removed; at != NULL; at = next) {
        next = at->next;
        if (at->requests > 0)
            continue;
        cancel(at);
        mc_instances_forget(&proxy->instances, at);
    }
}

/* ---- the check of what may become an instance ---- */

struct mc_candidate_check {
    struct question question; /* first, as above */
    struct mc_proxy *proxy;
    mc_candidate_done *done;
    void *context;
};

void mc_check_candidate_cancel(struct mc_candidate_check *check)
{
    forget(&check->question);
    free(check);
}

static void on_candidate(struct question *question, enum mc_upstream_end end, const char *problem)
{
    struct mc_candidate_check *check = (struct mc_candidate_check *)question;
    const char *model = check->proxy->config->model;
    char text[MC_PROXY_PROBLEM_MAX + 64] = "";
    mc_candidate_done *done = check->done;
    void *context = check->context;
    if (end != MC_UPSTREAM_DONE)
        (void)snprintf(text, sizeof(text), "Instance validation failed: %s", problem);
    else if (model[0] == 0 && question->status >= 500)
        (void)snprintf(text, sizeof(text), "Instance validation failed: status %d", question->status);
    else if (model[0] != 0 && serves(question, model) != 1)
        (void)snprintf(text, sizeof(text), "Instance validation failed: it does not serve %.200s", model);
    mc_check_candidate_cancel(check);
    done(context, text[0] == 0 ? NULL : text);
}

struct mc_candidate_check *mc_check_candidate(struct mc_proxy *proxy, const struct mc_proxy_address *address,
                                              mc_candidate_done *done, void *context)
{
    struct mc_candidate_check *check = calloc(1, sizeof(*check));
    if (check == NULL)
        return NULL;
    *check = (struct mc_candidate_check){.proxy = proxy, .done = done, .context = context};
    check->question.done = on_candidate;
    if (ask(proxy, &check->question, address, "/v1/models", CHECK_MS) < 0) {
        mc_check_candidate_cancel(check);
        return NULL;
    }
    return check;
}
