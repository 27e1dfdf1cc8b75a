/* A simulated etcd: what mc_etcd_call is answered with (symbols.txt, kind w), so that elections run with all that is
 * above it; and the same for mc_k8s_call, whose answers are lease.c's. One store of keys with revisions and leases;
 * requests and answers take their time, and either may be lost: a request that was given up may still be carried out.
 */
#include "members.h"

#include "base/bytes.h"
#include "env/etcd.h"
#include "env/k8s.h"
#include "env/json.h"
#include "mooncake.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEYS_MAX 8u
#define LEASES_MAX 256u
#define TEXT_MAX 600u

static struct pair {
    char key[TEXT_MAX], value[TEXT_MAX]; /* base64, as they come */
    uint64_t revision, lease;
    bool is_there;
} etcd_pairs[KEYS_MAX];
static struct lease {
    uint64_t ttl_ns, end_ns; /* end 0: revoked */
} etcd_leases[LEASES_MAX];
struct etcd_request {
    char method[8], path[64]; /* method: "" for etcd */
    json_t *body, *answer;
    int status;
    struct sim_process *process;
    uint32_t life;
    struct sim_fiber *fiber; /* NULL: nobody waits any more */
    bool is_answered, is_refused;
    struct etcd_request *next; /* of all of the run */
};
static struct etcd_request *requests;
static uint32_t lease_count;
static uint64_t revision, slow_until_ns, away_until_ns, full_until_ns;

void sim_etcd_reset(void)
{
    for (; requests != NULL; requests = requests->next) {
        json_decref(requests->body);
        json_decref(requests->answer);
    }
    memset(etcd_pairs, 0, sizeof(etcd_pairs));
    lease_count = 0;
    revision = 1;
    sim_lease_reset();
    slow_until_ns = away_until_ns = full_until_ns = 0;
}

void sim_etcd_slow(uint64_t until_ns)
{
    sim_say("etcd is slow");
    slow_until_ns = until_ns;
}

void sim_etcd_away(uint64_t until_ns)
{
    sim_say("etcd is away");
    away_until_ns = until_ns;
}

void sim_etcd_full(uint64_t until_ns)
{
    sim_say("etcd is full");
    full_until_ns = until_ns;
}

/* What hangs on a lease. (Without the claim, too, a master with a late clock would take an epoch of the past: docs.) */
void sim_etcd_forget(void)
{
    sim_say("somebody deletes the view in etcd");
    sim_lease_forget();
    for (uint32_t i = 0; i < KEYS_MAX; i++)
        if (etcd_pairs[i].lease != 0)
            etcd_pairs[i].is_there = false;
    revision++;
}

/* ---- the store ---- */

static struct pair *pair_of(const char *key)
{
    for (uint32_t i = 0; i < KEYS_MAX; i++) {
        if (strcmp(etcd_pairs[i].key, key) == 0)
            return &etcd_pairs[i];
        if (etcd_pairs[i].key[0] == 0) {
            snprintf(etcd_pairs[i].key, sizeof(etcd_pairs[i].key), "%s", key);
            return &etcd_pairs[i];
        }
    }
    fprintf(stderr, "the simulated etcd has no room for %s\n", key);
    abort();
}

static void leases_expire(void)
{
    for (uint32_t i = 0; i < KEYS_MAX; i++) {
        struct pair *pair = &etcd_pairs[i];
        if (!pair->is_there || pair->lease == 0 || etcd_leases[pair->lease - 1].end_ns > sim_now_ns)
            continue;
        sim_say("etcd: a lease has ended, its key goes");
        pair->is_there = false;
        revision++;
    }
}

static uint64_t number_of(const json_t *value)
{
    return json_is_string(value) ? strtoull(json_string_value(value), NULL, 10) : (uint64_t)json_integer_value(value);
}

static const char *text_of(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));
    return text == NULL ? "" : text;
}

/* In the order of the bytes that they stand for. */
static int compare_base64(const char *a, const char *b)
{
    static const char digits[] = "=ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    while (*a != 0 && *a == *b)
        a++, b++;
    return *a == 0 || *b == 0 ? (*a != 0) - (*b != 0) : (int)(strchr(digits, *a) - strchr(digits, *b));
}

static bool holds(const json_t *compare)
{
    const struct pair *pair = pair_of(text_of(compare, "key"));
    const char *result = text_of(compare, "result");
    if (strcmp(text_of(compare, "target"), "VALUE") == 0) {
        int order = pair->is_there ? compare_base64(pair->value, text_of(compare, "value")) : 1;
        return strcmp(result, "LESS") == 0 ? order < 0 : order == 0;
    }
    uint64_t stands = pair->is_there ? pair->revision : 0, wanted = number_of(json_object_get(compare, "mod_revision"));
    return strcmp(result, "GREATER") == 0 ? stands > wanted : stands == wanted;
}

static json_t *range(const json_t *request)
{
    const struct pair *pair = pair_of(text_of(request, "key"));
    return pair->is_there ? json_pack("{s:[{s:s,s:s,s:o}]}", "kvs", "key", pair->key, "value", pair->value,
                                      "mod_revision", json_sprintf("%llu", (unsigned long long)pair->revision))
                          : json_object();
}

static json_t *carry_out(const json_t *request)
{
    const json_t *put = json_object_get(request, "request_put"),
                 *gone = json_object_get(request, "request_delete_range"),
                 *read = json_object_get(request, "request_range");
    if (read != NULL)
        return json_pack("{s:o}", "response_range", range(read));
    struct pair *pair = pair_of(text_of(put != NULL ? put : gone, "key"));
    pair->is_there = put != NULL;
    if (put != NULL) {
        snprintf(pair->value, sizeof(pair->value), "%s", text_of(put, "value"));
        pair->lease = number_of(json_object_get(put, "lease"));
        pair->revision = revision;
    }
    return json_object();
}

static json_t *transaction(const json_t *request)
{
    const json_t *one;
    size_t i;
    bool is_good = true;
    json_t *responses = json_array();
    json_array_foreach(json_object_get(request, "compare"), i, one) is_good = is_good && holds(one);
    revision++;
    if (is_good) {
        json_array_foreach(json_object_get(request, "success"), i, one)
            json_array_append_new(responses, carry_out(one));
    }
    return json_pack("{s:b,s:o}", "succeeded", is_good, "responses", responses);
}

static json_t *lease_answer(const char *what, const json_t *request)
{
    uint64_t id = number_of(json_object_get(request, "ID"));
    if (strcmp(what, "grant") == 0 && lease_count < LEASES_MAX) {
        uint64_t ttl_ns = number_of(json_object_get(request, "TTL")) * 1000 * SIM_MS;
        etcd_leases[lease_count++] = (struct lease){ttl_ns, sim_now_ns + ttl_ns};
        return json_pack("{s:o}", "ID", json_sprintf("%u", lease_count));
    }
    if (id == 0 || id > lease_count || etcd_leases[id - 1].end_ns <= sim_now_ns)
        return json_pack("{s:{}}", "result");
    etcd_leases[id - 1].end_ns = strcmp(what, "keepalive") == 0 ? sim_now_ns + etcd_leases[id - 1].ttl_ns : 0;
    return json_pack("{s:{s:o}}", "result", "TTL",
                     json_sprintf("%llu", (unsigned long long)(etcd_leases[id - 1].ttl_ns / SIM_MS / 1000)));
}

/* ---- requests under way ---- */

static bool is_reached(const struct sim_process *process)
{
    return sim_now_ns >= away_until_ns && !sim_is_partitioned(process->place, SIM_PLACE_ETCD);
}

static void on_answer(void *argument)
{
    struct etcd_request *request = argument;
    if (request->fiber == NULL || !request->process->alive || request->process->life != request->life ||
        !is_reached(request->process))
        return;
    request->is_answered = true;
    sim_messages++;
    sim_wake(request->fiber);
}

static uint64_t delay_ns(void)
{
    uint32_t most_us = sim_now_ns < slow_until_ns ? 700000 : sim_once_in(SIM_ELECTION, 50) ? 50000 : 2000;
    return (100 + sim_below(SIM_ELECTION, most_us)) * 1000ull;
}

static void on_request(void *argument)
{
    struct etcd_request *request = argument;
    if (!is_reached(request->process)) /* lost */
        return;
    leases_expire();
    bool writes = strstr(request->path, "grant") != NULL || json_object_get(request->body, "compare") != NULL;
    sim_messages++;
    if (request->method[0] != 0) {
        request->answer =
            sim_lease_answer(request->method, request->body, sim_now_ns < full_until_ns, &request->status);
        sim_at(sim_now_ns + delay_ns(), on_answer, request);
        return;
    }
    request->is_refused = writes && sim_now_ns < full_until_ns;
    if (request->is_refused)
        request->answer = json_pack("{s:s}", "error", "etcdserver: mvcc: database space exceeded");
    else if (strcmp(request->path, "/v3/kv/range") == 0)
        request->answer = range(request->body);
    else if (strcmp(request->path, "/v3/kv/compaction") == 0) /* there is no history here */
        request->answer = json_object();
    else if (strcmp(request->path, "/v3/kv/txn") == 0)
        request->answer = transaction(request->body);
    else
        request->answer = lease_answer(strrchr(request->path, '/') + 1, request->body);
    sim_at(sim_now_ns + delay_ns(), on_answer, request);
}

static struct etcd_request *ask(const char *method, const char *path, struct mc_span body)
{
    struct etcd_request *request = sim_allocate(sizeof(*request));
    snprintf(request->method, sizeof(request->method), "%s", method);
    snprintf(request->path, sizeof(request->path), "%s", path);
    request->body = strcmp(method, "GET") == 0 ? json_object() : json_loadb(body.data, body.length, 0, NULL);
    request->fiber = sim_fiber;
    request->process = sim_process();
    request->life = sim_process()->life;
    request->next = requests;
    requests = request;
    if (request->body == NULL)
        sim_fail("etcd is sent what is no JSON: %.*s", (int)body.length, (const char *)body.data);
    else
        sim_at(sim_now_ns + delay_ns(), on_request, request);
    return request;
}

static struct etcd_request *wait_for(struct etcd_request *const *asked, uint32_t count, uint64_t until_ns)
{
    for (;;) {
        for (uint32_t i = 0; i < count; i++)
            if (asked[i]->is_answered)
                return asked[i];
        if (sim_failed || sim_monotonic_ns(sim_process()) >= until_ns)
            return NULL;
        (void)sim_wait(sim_world_ns(sim_process(), until_ns));
    }
}

/* As the product's: a question that takes long gets company, and the first answer counts. NULL: there is none. */
static struct etcd_request *call(const char *method, const char *path, struct mc_span body, uint64_t deadline_ns,
                                 struct mc_buffer *reply)
{
    struct etcd_request *asked[MC_ASKER_QUESTIONS_MAX], *answered = NULL;
    uint32_t count = 0;
    reply->length = 0;
    while (answered == NULL && sim_monotonic_ns(sim_process()) < deadline_ns && !sim_failed) {
        if (count < MC_ASKER_QUESTIONS_MAX)
            asked[count++] = ask(method, path, body);
        uint64_t until_ns = sim_monotonic_ns(sim_process()) + (count == 1 ? 1u : 2u) * MC_ETCD_PATIENCE_MS * SIM_MS;
        answered = wait_for(asked, count, until_ns < deadline_ns ? until_ns : deadline_ns);
    }
    for (uint32_t i = 0; i < count; i++)
        asked[i]->fiber = NULL;
    if (answered == NULL)
        return NULL;
    char *text = json_dumps(answered->answer, JSON_COMPACT);
    mc_buffer_append(reply, text, strlen(text));
    mc_buffer_append(reply, "", 1);
    reply->length--;
    free(text);
    return answered;
}

int sim_etcd_call(struct mc_etcd *etcd, const char *path, struct mc_span body, uint64_t deadline_ns,
                  struct mc_buffer *reply);
int sim_etcd_call(struct mc_etcd *etcd, const char *path, struct mc_span body, uint64_t deadline_ns,
                  struct mc_buffer *reply)
{
    (void)etcd;
    const struct etcd_request *answered = call("", path, body, deadline_ns, reply);
    return answered == NULL ? MC_ERR_RPC_TIMEOUT : answered->is_refused ? MC_ERR_ETCD_OPERATION_ERROR : 0;
}

int sim_k8s_call(struct mc_k8s *k8s, const char *method, const char *path, struct mc_span body, uint64_t deadline_ns,
                 struct mc_buffer *reply);
int sim_k8s_call(struct mc_k8s *k8s, const char *method, const char *path, struct mc_span body, uint64_t deadline_ns,
                 struct mc_buffer *reply)
{
    (void)k8s;
    const struct etcd_request *answered = call(method, path, body, deadline_ns, reply);
    return answered == NULL ? MC_ERR_RPC_TIMEOUT : answered->status;
}
