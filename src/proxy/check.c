/* Asks the instances: /health now and then; what they serve, once after each time they come up; and of a prefill
 * instance in concurrent mode its bootstrap server, each time, since an engine that was restarted has another id.
 *
 * A refused connection makes an instance dead at once, silence only after some checks: an engine that loads a long
 * prompt may be slow to answer. */
#include "proxy/proxy.h"

#include "base/error.h"
#include "env/log.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK_MS 5000

/* ---- one question ---- */

struct question { /* GET of a path; the answer is kept */
    struct mc_upstream *upstream;
    struct evbuffer *answer;
    int status;
    void (*done)(struct question *question, enum mc_upstream_end end, const char *problem);
};

static void question_head(void *context, struct mc_head *head)
{
    struct question *question = context;
    question->status = head->status;
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
               const char *path)
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
    question->upstream = mc_upstream_start(proxy, address, &head, NULL, false, CHECK_MS, &question_events, question);
    mc_buffer_free(&head);
    return question->upstream == NULL ? MC_ERR_NO_MEMORY : 0;
}

static json_t *parse(struct question *question)
{
    size_t length = evbuffer_get_length(question->answer);
    return json_loadb((const char *)evbuffer_pullup(question->answer, -1), length, 0, NULL);
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
static int serves(struct question *question, const char *model)
{
    json_t *answer = question->status == 200 ? parse(question) : NULL;
    json_t *list = json_object_get(answer, "data"), *one;
    size_t i;
    int found = json_is_array(list) ? 0 : -1;
    json_array_foreach(list, i, one)
    {
        const char *id = json_string_value(json_object_get(one, "id"));
        if (id != NULL && strcmp(id, model) == 0)
            found = 1;
    }
    json_decref(answer);
    return found;
}

/* ---- the check of an instance ---- */

struct mc_check {
    struct question question; /* first: a question is its check */
    struct mc_proxy *proxy;
    struct mc_instance *instance; /* held */
    enum check_step { CHECK_HEALTH, CHECK_MODEL, CHECK_BOOTSTRAP } step;
};

void mc_check_cancel(struct mc_instance *instance)
{
    struct mc_check *check = instance->check;
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
    mc_check_cancel(instance);
}

static bool is_plain_id(const char *id)
{
    size_t length = id == NULL ? 0 : strlen(id);
    for (size_t i = 0; i < length; i++) {
        if (id[i] < ' ' || id[i] == 0x7f || id[i] == '"' || id[i] == '\\')
            return false;
    }
    return length > 0 && length < MC_PROXY_ENGINE_ID_MAX;
}

/* {"0": {"engine_id": "...", ...}, "1": ...}: as many as data-parallel ranks. False: it is not that. */
static bool take_engines(struct mc_instance *instance, struct question *question)
{
    json_t *answer = question->status == 200 ? parse(question) : NULL;
    size_t count = json_object_size(answer);
    char(*ids)[MC_PROXY_ENGINE_ID_MAX] = NULL;
    bool is_good = count > 0 && count <= MC_PROXY_RANKS_MAX;
    if (is_good)
        ids = calloc(count, sizeof(*ids));
    for (size_t rank = 0; ids != NULL && rank < count; rank++) {
        char key[16];
        (void)snprintf(key, sizeof(key), "%zu", rank);
        const char *id = json_string_value(json_object_get(json_object_get(answer, key), "engine_id"));
        is_good = is_good && is_plain_id(id);
        if (is_good)
            (void)snprintf(ids[rank], sizeof(ids[rank]), "%s", id);
    }
    json_decref(answer);
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

static void took_bootstrap(struct mc_check *check, enum mc_upstream_end end, const char *problem)
{
    struct mc_instance *instance = check->instance;
    if (end == MC_UPSTREAM_DONE && take_engines(instance, &check->question)) {
        instance->problem[0] = 0;
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

static void ask_next(struct mc_check *check, enum check_step step)
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
        address.port = address.bootstrap_port;
        mc_address_join(address.name, sizeof(address.name), address.host, address.port);
    }
    if (ask(check->proxy, &check->question, &address, check->step == CHECK_MODEL ? "/v1/models" : "/query") < 0)
        mc_check_cancel(instance); /* the next round asks again */
}

static void took_models(struct mc_check *check, enum mc_upstream_end end)
{
    struct mc_instance *instance = check->instance;
    const char *model = check->proxy->config->model;
    int found = end == MC_UPSTREAM_DONE ? serves(&check->question, model) : -1;
    if (found == 0) {
        if (instance->state != MC_INSTANCE_WRONG_MODEL)
            mc_log(ERROR, "instance %s does not serve %s; it gets no requests", instance->address.name, model);
        instance->state = MC_INSTANCE_WRONG_MODEL;
        set_problem(instance, "it does not serve %.200s", model);
        mc_check_cancel(instance);
        return;
    }
    if (found < 0)
        mc_log(WARNING, "instance %s does not list its models (status %d); it is taken to serve %s",
               instance->address.name, check->question.status, model);
    instance->model_is_checked = true;
    ask_next(check, CHECK_BOOTSTRAP);
}

static void took_health(struct mc_check *check, enum mc_upstream_end end, const char *problem)
{
    struct mc_instance *instance = check->instance;
    char text[64];
    if (end == MC_UPSTREAM_DONE && check->question.status < 500) {
        instance->strikes = 0;
        ask_next(check, CHECK_MODEL);
        return;
    }
    if (end == MC_UPSTREAM_DONE) {
        (void)snprintf(text, sizeof(text), "/health answers %d", check->question.status);
        problem = text;
    }
    bool is_sure = end == MC_UPSTREAM_NO_CONNECT || end == MC_UPSTREAM_DONE;
    if (is_sure || ++instance->strikes >= MC_PROXY_STRIKES_MAX)
        mc_instance_set_down(instance, problem);
    mc_check_cancel(instance);
}

static void on_checked(struct question *question, enum mc_upstream_end end, const char *problem)
{
    struct mc_check *check = (struct mc_check *)question;
    if (check->step == CHECK_HEALTH)
        took_health(check, end, problem);
    else if (check->step == CHECK_MODEL)
        took_models(check, end);
    else
        took_bootstrap(check, end, problem);
}

static void start(struct mc_proxy *proxy, struct mc_instance *instance)
{
    struct mc_check *check = calloc(1, sizeof(*check));
    if (check == NULL)
        return; /* the next round tries again */
    check->question.done = on_checked;
    check->proxy = proxy;
    check->instance = instance;
    instance->check = check;
    mc_instance_hold(instance);
    if (ask(proxy, &check->question, &instance->address, "/health") < 0)
        mc_check_cancel(instance);
}

void mc_check_all(struct mc_proxy *proxy)
{
    for (int role = 0; role < 2; role++) {
        for (struct mc_instance *at = proxy->instances.list[role]; at != NULL; at = at->next) {
            if (at->check == NULL)
                start(proxy, at);
        }
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
    if (ask(proxy, &check->question, address, "/v1/models") < 0) {
        mc_check_candidate_cancel(check);
        return NULL;
    }
    return check;
}
