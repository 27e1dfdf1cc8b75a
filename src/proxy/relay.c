/* One request of a client: prefill at one instance, the answer from another.
 *
 * store        the prompt with one token to one instance; when that is done, the request as it came to the other
 * sequential   the same, but the second is given the kv_transfer_params that the first has answered
 * concurrent   both at once; the second is told where the first one's bootstrap server is, and a transfer id that both
 *              know
 * room         the same request to both at once, with the first one's bootstrap server and a room there; for
 *              return_logprob the answer is made of both, see join.h
 *
 * A request that breaks one engine would break the next one too. So it is sent to another instance only when it has
 * certainly had no effect: no connection was made, or the instance has refused it with 503.
 * Invariant: of each role at most one instance has seen the request, besides those that refused it so.
 * Invariant: a relay is the context of exactly one client and at most two upstreams; each way to its end goes through
 * `destroy`, behind which none of them knows it any more.
 */
#include "proxy/proxy.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/keys.h"
#include "env/log.h"
#include "proxy/join.h"

#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#define REQUEST_ID_SIZE 37
#define KV_PARAMS_MAX ((size_t)1 << 20)
#define LEAVE_MS 10000
#define ROOM_MAX (((uint64_t)1 << 62) - 1) /* so that the rooms behind one fit into 63 bits */
#define TOO_LONG "its answer is longer than --max_body_bytes"

struct leg { /* one side of a request */
    enum mc_proxy_role role;
    struct mc_instance *instance; /* held */
    struct mc_upstream *upstream;
    unsigned rank;
    uint64_t start_ms, tried[MC_PROXY_TRIES_MAX];
    size_t tried_count;
    uint64_t seen_by; /* turn of the instance that may have begun with the request; 0: none */
    bool has_byte;
};

struct mc_relay {
    struct mc_relay *next, **back; /* among proxy->relays */
    struct mc_proxy *proxy;
    struct mc_client *client;
    struct leg prefill, decode;
    enum mc_proxy_mode mode;
    bool is_completion, is_begun; /* begun: the client has a part of the answer */
    bool is_too_long;             /* prefill's answer: not all of it is kept */
    bool is_joined, is_stream;    /* joined: the answer is made of both; as a stream, see join.h */
    bool is_known, is_decoded;    /* of a joined one: prefill's part is in `prompt`; all of decode's is there */
    char request_id[REQUEST_ID_SIZE], transfer_id[REQUEST_ID_SIZE + 8];
    struct mc_head answer;           /* decode's head, until its first byte */
    struct mc_head refusal;          /* prefill's head, when it is not beside decode or an error */
    struct evbuffer *kept;           /* prefill's answer */
    struct evbuffer *held;           /* decode's answer, as far as it waits for prefill's or for its own rest */
    struct mc_buffer prompt;         /* what goes before the list of each piece of decode's answer */
    struct mc_buffer kv_params;      /* JSON, what decode is given; empty: nothing */
    char room[MC_ADDRESS_MAX + 128]; /* members of both requests in mode room */
    int prefill_status;
    char problem[MC_PROXY_PROBLEM_MAX + MC_ADDRESS_MAX + 8]; /* of the last instance that failed */
};

static void start_prefill(struct mc_relay *relay);
static void start_decode(struct mc_relay *relay);

static void make_id(char *id)
{
    struct mc_id random = mc_random_id();
    (void)snprintf(id, REQUEST_ID_SIZE, "%08x-%04x-4%03x-%04x-%012llx", (unsigned)(random.high >> 32),
                   (unsigned)(random.high >> 16 & 0xffff), (unsigned)(random.high & 0xfff),
                   (unsigned)(0x8000 | (random.low >> 48 & 0x3fff)), (unsigned long long)(random.low & 0xffffffffffff));
}

/* Does decode run beside prefill, and makes the answer? */
static bool is_beside(const struct mc_relay *relay)
{
    return relay->mode == MC_PROXY_CONCURRENT || relay->mode == MC_PROXY_ROOM;
}

/* ---- legs ---- */

enum leg_end { LEG_DONE, LEG_FAILED, LEG_CANCELLED };

/* Lets go of the instance; the upstream is gone or goes now. */
static void end_leg(struct mc_relay *relay, struct leg *leg, enum leg_end end)
{
    struct mc_instance *instance = leg->instance;
    if (leg->upstream != NULL)
        mc_upstream_cancel(leg->upstream);
    leg->upstream = NULL;
    leg->instance = NULL;
    if (instance == NULL)
        return;
    instance->requests--;
    instance->work -= evbuffer_get_length(mc_client_body(relay->client));
    if (end == LEG_DONE)
        mc_proxy_histogram_add(&instance->whole, mc_clock_ms() - leg->start_ms);
    else if (end == LEG_FAILED)
        instance->failed++;
    else
        instance->cancelled++;
    mc_instance_release(instance);
}

static void destroy(struct mc_relay *relay)
{
    struct mc_proxy *proxy = relay->proxy;
    end_leg(relay, &relay->prefill, LEG_CANCELLED);
    end_leg(relay, &relay->decode, LEG_CANCELLED);
    mc_head_free(&relay->answer);
    mc_head_free(&relay->refusal);
    mc_buffer_free(&relay->kv_params);
    mc_buffer_free(&relay->prompt);
    if (relay->kept != NULL)
        evbuffer_free(relay->kept);
    if (relay->held != NULL)
        evbuffer_free(relay->held);
    *relay->back = relay->next;
    if (relay->next != NULL)
        relay->next->back = relay->back;
    free(relay);
    proxy->request_count--;
    proxy->ended(proxy);
}

/* Ends with an answer of our own, or, when a part of another is out already, by breaking that off. */
static void relay_fail(struct mc_relay *relay, int status, const char *type, const char *message)
{
    struct mc_client *client = relay->client;
    bool is_begun = relay->is_begun;
    char text[sizeof(relay->problem) + 256];
    (void)snprintf(text, sizeof(text), "%s%s%s", message, relay->problem[0] == 0 ? "" : ": ", relay->problem);
    mc_client_watch(client, NULL, NULL);
    destroy(relay);
    if (is_begun) {
        mc_log_limited(WARNING, "an answer was broken off: %s", text);
        mc_client_break(client);
    } else {
        mc_client_reply_error(client, status, type, "%s", text);
    }
}

/* The next instance of a role for this request, held; false: there is none, and the relay has ended. */
static bool choose(struct mc_relay *relay, struct leg *leg)
{
    struct mc_proxy *proxy = relay->proxy;
    const char *role = leg->role == MC_PROXY_PREFILL ? "prefill" : "decode";
    struct mc_instance *instance = NULL;
    char message[128];
    if (leg->seen_by != 0)
        instance = mc_instances_again(&proxy->instances, leg->role, leg->seen_by);
    else if (leg->tried_count <= proxy->config->retries)
        instance = mc_instances_choose(&proxy->instances, leg->role, proxy->config->policy, leg->tried,
                                       leg->tried_count, &leg->rank);
    if (instance == NULL) {
        const struct mc_instance *first = proxy->instances.list[leg->role];
        if (relay->problem[0] == 0 && first != NULL)
            (void)snprintf(relay->problem, sizeof(relay->problem), "%s: %s", first->address.name, first->problem);
        (void)snprintf(message, sizeof(message), "no %s instance is available", role);
        relay_fail(relay, 503, "ServiceUnavailableError", message);
        return false;
    }
    if (leg->seen_by == 0) {
        proxy->totals.retried += leg->tried_count > 0;
        leg->tried[leg->tried_count++] = instance->turn;
    }
    leg->seen_by = instance->turn;
    leg->instance = instance;
    leg->start_ms = mc_clock_ms();
    leg->has_byte = false;
    mc_instance_hold(instance);
    if (instance->requests++ == 0)
        instance->owes_ms = leg->start_ms;
    instance->started++;
    instance->work += evbuffer_get_length(mc_client_body(relay->client));
    return true;
}

void mc_relay_write_head(struct mc_proxy *proxy, const struct mc_proxy_address *address, const struct mc_head *from,
                         const char *method, const char *target, struct mc_buffer *out)
{
    /* Written anew, or none of the instance's business. */
    static const char *const others[] = {"authorization", "x-request-id",    "x-api-key",
                                         "content-type",  "accept-encoding", "x-data-parallel-rank"};
    char bearer[MC_KEYS_BEARER_MAX];
    const char *key = from == NULL ? NULL : mc_head_find(from, "authorization");
    if (proxy->config->sends_key)
        key = mc_keys_bearer(bearer);
    else if (mc_keys_are_wanted())
        key = NULL; /* it is one of ours, which no instance is to learn */
    mc_buffer_printf(out, "%s %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\nAccept-Encoding: identity\r\n", method,
                     target, address->name);
    if (proxy->config->api_key[0] != 0 && !proxy->config->sends_key)
        mc_buffer_printf(out, "Authorization: Bearer %s\r\n", proxy->config->api_key);
    else if (key != NULL)
        mc_buffer_printf(out, "Authorization: %s\r\n", key);
    for (size_t i = 0; from != NULL && i < from->header_count; i++) {
        const char *name = from->headers[i].name;
        bool is_passed = !mc_header_is_hop(from, name);
        for (size_t j = 0; j < sizeof(others) / sizeof(others[0]); j++)
            is_passed = is_passed && strcasecmp(name, others[j]) != 0;
        if (is_passed)
            mc_buffer_printf(out, "%s: %s\r\n", name, from->headers[i].value);
    }
}

static void release_body(const void *data, size_t length, void *context)
{
    (void)data, (void)length;
    free(context);
}

/* Sends body (taken over) to the leg's instance. False: the relay has ended. */
static bool send_leg(struct mc_relay *relay, struct leg *leg, struct mc_buffer *body,
                     const struct mc_upstream_events *events)
{
    const struct mc_head *from = mc_client_head(relay->client);
    struct mc_buffer head = {.may_fail = true};
    bool is_whole = !body->failed; /* as it is what a client or an instance has sent, memory may be out for it */
    struct evbuffer *content = is_whole ? evbuffer_new() : NULL;
    const char *type = mc_head_find(from, "content-type");
    mc_relay_write_head(relay->proxy, &leg->instance->address, from, from->method, from->target, &head);
    mc_buffer_printf(&head, "X-Request-Id: %s\r\n", relay->request_id);
    if (leg->role == MC_PROXY_PREFILL && relay->mode == MC_PROXY_CONCURRENT)
        mc_buffer_printf(&head, "X-data-parallel-rank: %u\r\n", leg->rank);
    if (relay->is_completion)
        type = "application/json";
    if (type != NULL)
        mc_buffer_printf(&head, "Content-Type: %s\r\n", type);
    if (body->length > 0 || relay->is_completion || from->framing != MC_FRAMING_NONE)
        mc_buffer_printf(&head, "Content-Length: %zu\r\n", body->length);
    mc_buffer_printf(&head, "\r\n");
    if (content != NULL && body->length > 0 &&
        evbuffer_add_reference(content, body->data, body->length, release_body, body->data) == 0)
        *body = (struct mc_buffer){0};
    if (content != NULL && body->length == 0 && !head.failed)
        leg->upstream =
            mc_upstream_start(relay->proxy, &leg->instance->address, &head, content, strcmp(from->method, "HEAD") == 0,
                              relay->proxy->config->request_ms, events, relay);
    if (content != NULL)
        evbuffer_free(content);
    mc_buffer_free(&head);
    mc_buffer_free(body);
    if (leg->upstream != NULL)
        return true;
    relay_fail(relay, 503, "ServiceUnavailableError", "no memory for the request");
    return false;
}

/* The members of the client's request. It was checked when it came. */
static const struct mc_members *request_members(struct mc_relay *relay)
{
    struct evbuffer *content = mc_client_body(relay->client);
    struct mc_members *members = &relay->proxy->members;
    size_t at, length = evbuffer_get_length(content);
    const char *problem;
    int rc = mc_members_scan(members, mc_span(evbuffer_pullup(content, -1), length), &at, &problem);
    mc_assert(rc == 0);
    return members;
}

static void note_byte(struct leg *leg)
{
    leg->instance->heard_ms = mc_clock_ms();
    if (!leg->has_byte)
        mc_proxy_histogram_add(&leg->instance->first_byte, mc_clock_ms() - leg->start_ms);
    leg->has_byte = true;
}

/* Is there another instance that the request may be sent to, which the leg's has certainly not begun with? */
static bool has_other(const struct mc_relay *relay, const struct leg *leg)
{
    return leg->tried_count <= relay->proxy->config->retries &&
           mc_instances_has_other(&relay->proxy->instances, leg->role, leg->tried, leg->tried_count);
}

static void note_problem(struct mc_relay *relay, struct leg *leg, const char *problem)
{
    (void)snprintf(relay->problem, sizeof(relay->problem), "%s: %s", leg->instance->address.name, problem);
    mc_log_limited(WARNING, "%s instance %s", leg->role == MC_PROXY_PREFILL ? "prefill" : "decode", relay->problem);
}

/* Lets go of an instance that has failed. */
static void end_failed(struct mc_relay *relay, struct leg *leg, enum mc_upstream_end end, const char *problem)
{
    note_problem(relay, leg, problem);
    if (end == MC_UPSTREAM_NO_CONNECT)
        mc_instance_set_down(leg->instance, problem);
    if (end == MC_UPSTREAM_NO_CONNECT || end == MC_UPSTREAM_OWN_TROUBLE)
        leg->seen_by = 0;
    end_leg(relay, leg, end == MC_UPSTREAM_OWN_TROUBLE ? LEG_CANCELLED : LEG_FAILED);
}

/* ---- decode ---- */

static void begin_answer(struct mc_relay *relay)
{
    if (relay->is_begun)
        return;
    relay->is_begun = true;
    mc_client_begin(relay->client, &relay->answer, relay->request_id);
}

/* What it had to give has arrived; broken off now it would count a transfer that failed. */
static void leave_prefill(struct mc_relay *relay)
{
    if (relay->prefill.upstream == NULL)
        return;
    mc_upstream_leave(relay->prefill.upstream, LEAVE_MS);
    relay->prefill.upstream = NULL;
    end_leg(relay, &relay->prefill, LEG_DONE);
}

/* The client has the whole answer. */
static void end_answered(struct mc_relay *relay)
{
    struct mc_client *client = relay->client;
    if (relay->mode == MC_PROXY_ROOM && relay->answer.status < 300)
        leave_prefill(relay);
    mc_client_watch(client, NULL, NULL);
    destroy(relay);
    mc_client_end(client);
}

/* ---- an answer made of both ---- */

/* In one piece. False: no memory. */
static bool all_of(struct evbuffer *from, struct mc_span *all)
{
    *all = mc_span(NULL, evbuffer_get_length(from));
    if (all->length > 0)
        all->data = evbuffer_pullup(from, -1);
    if (all->length > 0 && all->data == NULL)
        *all = mc_span(NULL, 0);
    return all->data != NULL || evbuffer_get_length(from) == 0;
}

static bool joins(const struct mc_relay *relay)
{
    return relay->is_joined && relay->answer.status < 300;
}

/* Looks whether prefill's part is there: its whole answer, or the first event of its stream. */
static void learn_prompt(struct mc_relay *relay, bool is_end)
{
    struct mc_span text;
    if (relay->is_known)
        return;
    if (!all_of(relay->kept, &text))
        relay->prompt.failed = true;
    if (relay->is_stream)
        text.length = mc_join_event(text);
    if (!is_end && (!relay->is_stream || text.length == 0))
        return;
    struct mc_span list = mc_join_list(&relay->proxy->members, text);
    mc_buffer_append(&relay->prompt, list.data, list.length);
    relay->is_known = true;
}

/* Sends what is held and whole. False: the relay has ended. */
static bool send_joined(struct mc_relay *relay)
{
    struct mc_buffer out = {.may_fail = true};
    struct mc_span text, before = mc_span(relay->prompt.data, relay->prompt.length);
    if (!relay->is_known || !(relay->is_stream || relay->is_decoded))
        return true;
    bool has_memory;
    while ((has_memory = all_of(relay->held, &text)) && text.length > 0) {
        size_t event = relay->is_stream ? mc_join_event(text) : 0;
        if (event == 0 && !relay->is_decoded)
            break;
        if (event > 0)
            text.length = event;
        mc_join_write(&relay->proxy->members, text, before, &out);
        (void)evbuffer_drain(relay->held, text.length);
    }
    if (!has_memory || out.failed || relay->prompt.failed) {
        mc_buffer_free(&out);
        relay_fail(relay, 503, "ServiceUnavailableError", "no memory for the answer");
        return false;
    }
    if (out.length > 0 || relay->is_decoded) {
        relay->answer.framing = relay->is_stream ? MC_FRAMING_CHUNKED : MC_FRAMING_LENGTH;
        relay->answer.length = out.length;
        begin_answer(relay);
        (void)evbuffer_drain(relay->kept,
                             evbuffer_get_length(relay->kept)); /* all of prefill's that is needed is known */
        (void)evbuffer_add(relay->kept, out.data, out.length);
        mc_client_send(relay->client, relay->kept);
    }
    mc_buffer_free(&out);
    return true;
}

/* False: the relay has ended. */
static bool hold_decode(struct mc_relay *relay, struct evbuffer *data)
{
    if (evbuffer_get_length(relay->held) + evbuffer_get_length(data) > relay->proxy->config->body_max) {
        note_problem(relay, &relay->decode, TOO_LONG);
        relay_fail(relay, 502, "BadGatewayError", "the decode instance failed");
        return false;
    }
    (void)evbuffer_add_buffer(relay->held, data);
    return send_joined(relay);
}

static void decode_head(void *context, struct mc_head *head)
{
    struct mc_relay *relay = context;
    struct leg *leg = &relay->decode;
    leg->instance->heard_ms = mc_clock_ms();
    if (head->status == 503 && has_other(relay, leg)) {
        note_problem(relay, leg, "it has answered 503");
        leg->seen_by = 0;
        end_leg(relay, leg, LEG_FAILED);
        start_decode(relay);
        return;
    }
    mc_head_free(&relay->answer);
    relay->answer = *head;
    *head = (struct mc_head){.framing = head->framing, .status = head->status};
}

static void decode_data(void *context, struct evbuffer *data)
{
    struct mc_relay *relay = context;
    note_byte(&relay->decode);
    if (joins(relay)) {
        if (!hold_decode(relay, data))
            return;
    } else {
        begin_answer(relay);
        mc_client_send(relay->client, data);
    }
    if (mc_client_is_full(relay->client))
        mc_upstream_pause(relay->decode.upstream, true);
}

static void decode_end(void *context, enum mc_upstream_end end, const char *problem)
{
    struct mc_relay *relay = context;
    struct leg *leg = &relay->decode;
    leg->upstream = NULL;
    if (end == MC_UPSTREAM_DONE) {
        end_leg(relay, leg, relay->answer.status >= 500 ? LEG_FAILED : LEG_DONE);
        relay->is_decoded = true;
        if (joins(relay)) {
            if (!send_joined(relay) || !relay->is_known)
                return; /* prefill's end comes */
        }
        begin_answer(relay);
        end_answered(relay);
        return;
    }
    end_failed(relay, leg, end, problem);
    if (leg->seen_by == 0)
        start_decode(relay);
    else
        relay_fail(relay, end == MC_UPSTREAM_TIMEOUT ? 504 : 502, "BadGatewayError", "the decode instance failed");
}

static const struct mc_upstream_events decode_events = {decode_head, decode_data, decode_end};

/* The engines make a room for each prompt and each of its n answers, from this one upwards. */
static void choose_room(struct mc_relay *relay)
{
    const struct mc_proxy_address *from = &relay->prefill.instance->address;
    bool is_v6 = strchr(from->host, ':') != NULL;
    (void)snprintf(relay->room, sizeof(relay->room),
                   "\"bootstrap_host\":\"%s%s%s\",\"bootstrap_port\":%u,\"bootstrap_room\":%llu", is_v6 ? "[" : "",
                   from->host, is_v6 ? "]" : "", from->bootstrap_port,
                   (unsigned long long)(mc_random_id().low & ROOM_MAX));
}

static void write_room(struct mc_relay *relay, struct mc_buffer *body)
{
    static const char *const replaced[] = {"bootstrap_host", "bootstrap_port", "bootstrap_room", NULL};
    mc_members_write(request_members(relay), replaced, relay->room, body);
}

static void start_decode(struct mc_relay *relay)
{
    static const char *const replaced[] = {"kv_transfer_params", NULL};
    struct mc_buffer body = {.may_fail = true}, more = {.may_fail = true};
    if (!choose(relay, &relay->decode))
        return;
    if (relay->mode == MC_PROXY_ROOM) {
        write_room(relay, &body);
    } else if (relay->kv_params.length > 0) {
        mc_buffer_printf(&more, "\"kv_transfer_params\":");
        mc_buffer_append(&more, relay->kv_params.data, relay->kv_params.length);
        mc_buffer_put_u8(&more, 0);
        if (!more.failed)
            mc_members_write(request_members(relay), replaced, (const char *)more.data, &body);
        body.failed = body.failed || more.failed || relay->kv_params.failed;
    } else {
        struct evbuffer *content = mc_client_body(relay->client);
        mc_buffer_append(&body, evbuffer_pullup(content, -1), evbuffer_get_length(content));
    }
    mc_buffer_free(&more);
    (void)send_leg(relay, &relay->decode, &body, &decode_events);
}

/* ---- prefill ---- */

static void prefill_head(void *context, struct mc_head *head)
{
    struct mc_relay *relay = context;
    relay->prefill_status = head->status;
    relay->is_too_long = false;
    relay->prefill.instance->heard_ms = mc_clock_ms();
    (void)evbuffer_drain(relay->kept, evbuffer_get_length(relay->kept));
    /* Beside it decode makes the answer, unless this is an error. */
    if (relay->is_begun || (is_beside(relay) && head->status < 300))
        return;
    mc_head_free(&relay->refusal);
    relay->refusal = *head;
    *head = (struct mc_head){.framing = head->framing, .status = head->status};
}

static void prefill_data(void *context, struct evbuffer *data)
{
    struct mc_relay *relay = context;
    note_byte(&relay->prefill);
    if (relay->prefill_status < 300 && relay->mode != MC_PROXY_SEQUENTIAL && (!relay->is_joined || relay->is_known))
        return; /* nobody wants it */
    size_t length = evbuffer_get_length(relay->kept) + evbuffer_get_length(data);
    relay->is_too_long = relay->is_too_long || length > relay->proxy->config->body_max;
    if (!relay->is_too_long)
        (void)evbuffer_add_buffer(relay->kept, data);
    if (relay->is_joined && relay->prefill_status < 300) {
        learn_prompt(relay, false);
        (void)send_joined(relay); /* the last use of it */
    }
}

/* Keeps the kv_transfer_params out of prefill's answer. 0, or negative: it is not what an engine answers. */
static int keep_params(struct mc_relay *relay)
{
    size_t at;
    const char *problem;
    struct mc_members *members = &relay->proxy->members;
    struct mc_span answer;
    if (!all_of(relay->kept, &answer))
        return MC_ERR_NO_MEMORY;
    if (mc_members_scan(members, answer, &at, &problem) < 0)
        return MC_ERR_INVALID_PARAMS;
    const struct mc_edit_member *params = mc_members_find(members, "kv_transfer_params");
    if (params == NULL || mc_span_equal(params->value, mc_span_string("null")) ||
        mc_span_equal(params->value, mc_span_string("{}"))) {
        mc_log_limited(WARNING,
                       "prefill instance %s has answered without kv_transfer_params; decode computes the prompt",
                       relay->prefill.instance->address.name);
        return 0;
    }
    if (params->value.length > KV_PARAMS_MAX)
        return MC_ERR_INVALID_PARAMS;
    mc_buffer_append(&relay->kv_params, params->value.data, params->value.length);
    return relay->kv_params.failed ? MC_ERR_NO_MEMORY : 0;
}

/* What prefill says is wrong with the request goes to the client as it is. */
static void pass_prefill(struct mc_relay *relay)
{
    struct mc_client *client = relay->client;
    struct evbuffer *kept = relay->kept;
    relay->refusal.framing = MC_FRAMING_LENGTH;
    relay->refusal.length = evbuffer_get_length(kept);
    mc_client_begin(client, &relay->refusal, relay->request_id);
    mc_client_send(client, kept);
    mc_client_watch(client, NULL, NULL);
    destroy(relay);
    mc_client_end(client);
}

static void prefill_failed(struct mc_relay *relay, enum mc_upstream_end end, const char *problem)
{
    struct leg *leg = &relay->prefill;
    end_failed(relay, leg, end, problem);
    /* Decode may have begun to wait for what will not come. */
    end_leg(relay, &relay->decode, LEG_CANCELLED);
    if (leg->seen_by == 0)
        start_prefill(relay);
    else
        relay_fail(relay, end == MC_UPSTREAM_TIMEOUT ? 504 : 502, "BadGatewayError", "the prefill instance failed");
}

static void prefill_answered(struct mc_relay *relay)
{
    struct leg *leg = &relay->prefill;
    int status = relay->prefill_status;
    if (status == 503 && has_other(relay, leg)) {
        note_problem(relay, leg, "it has answered 503");
        leg->seen_by = 0;
        end_leg(relay, leg, LEG_FAILED);
        end_leg(relay, &relay->decode, LEG_CANCELLED);
        start_prefill(relay);
        return;
    }
    if (relay->is_too_long) {
        prefill_failed(relay, MC_UPSTREAM_GARBAGE, TOO_LONG);
        return;
    }
    if (status >= 300) {
        end_leg(relay, leg, status >= 500 ? LEG_FAILED : LEG_DONE);
        end_leg(relay, &relay->decode, LEG_CANCELLED);
        pass_prefill(relay);
        return;
    }
    if (relay->mode == MC_PROXY_SEQUENTIAL && keep_params(relay) < 0) {
        prefill_failed(relay, MC_UPSTREAM_GARBAGE, "its answer is not JSON");
        return;
    }
    end_leg(relay, leg, LEG_DONE);
    start_decode(relay);
}

static void prefill_end(void *context, enum mc_upstream_end end, const char *problem)
{
    struct mc_relay *relay = context;
    relay->prefill.upstream = NULL;
    /* Tokens flow: whatever prefill still says comes too late. Beside decode a good end needs no step. */
    bool is_late = relay->is_begun;
    bool is_well = is_beside(relay) && relay->prefill_status < 300 && !relay->is_too_long;
    if (is_late || (end == MC_UPSTREAM_DONE && is_well)) {
        end_leg(relay, &relay->prefill, end == MC_UPSTREAM_DONE ? LEG_DONE : LEG_FAILED);
        if (!relay->is_joined)
            return;
        learn_prompt(relay, true);
        if (send_joined(relay) && relay->is_decoded)
            end_answered(relay);
    } else if (end == MC_UPSTREAM_DONE)
        prefill_answered(relay);
    else
        prefill_failed(relay, end, problem);
}

static const struct mc_upstream_events prefill_events = {prefill_head, prefill_data, prefill_end};

/* The request with one token and no stream. */
static void write_prefill(struct mc_relay *relay, struct mc_buffer *body)
{
    /* min_tokens above max_tokens would be refused, and stream_options without a stream. */
    static const char *const in_store[] = {"max_tokens", "max_completion_tokens", "min_tokens", "min_completion_tokens",
                                           "stream",     "stream_options",        NULL};
    static const char *const in_transfer[] = {
        "max_tokens", "max_completion_tokens", "min_tokens",         "min_completion_tokens",
        "stream",     "stream_options",        "kv_transfer_params", NULL};
    const struct mc_members *members = request_members(relay);
    struct mc_buffer more = {0};
    mc_buffer_printf(&more, "\"stream\":false,\"max_tokens\":1%s",
                     mc_members_find(members, "max_completion_tokens") != NULL ? ",\"max_completion_tokens\":1" : "");
    if (relay->mode == MC_PROXY_SEQUENTIAL)
        mc_buffer_printf(&more, ",\"kv_transfer_params\":{\"do_remote_decode\":true,\"do_remote_prefill\":false,"
                                "\"remote_engine_id\":null,\"remote_block_ids\":null,\"remote_host\":null,"
                                "\"remote_port\":null}");
    else if (relay->mode == MC_PROXY_CONCURRENT)
        mc_buffer_printf(&more,
                         ",\"kv_transfer_params\":{\"do_remote_decode\":true,\"do_remote_prefill\":false,"
                         "\"transfer_id\":\"%s\"}",
                         relay->transfer_id);
    mc_buffer_put_u8(&more, 0);
    mc_members_write(members, relay->mode == MC_PROXY_STORE ? in_store : in_transfer, (const char *)more.data, body);
    mc_buffer_free(&more);
}

/* What decode is told in concurrent mode. */
static void write_bootstrap(struct mc_relay *relay)
{
    const struct mc_instance *from = relay->prefill.instance;
    bool is_v6 = strchr(from->address.host, ':') != NULL;
    mc_buffer_printf(
        &relay->kv_params,
        "{\"do_remote_decode\":false,\"do_remote_prefill\":true,"
        "\"remote_bootstrap_addr\":\"http://%s%s%s:%u\",\"remote_engine_id\":\"%s\",\"transfer_id\":\"%s\"}",
        is_v6 ? "[" : "", from->address.host, is_v6 ? "]" : "", from->address.bootstrap_port,
        from->engine_ids[relay->prefill.rank], relay->transfer_id);
}

static void start_prefill(struct mc_relay *relay)
{
    char id[REQUEST_ID_SIZE];
    struct mc_buffer body = {.may_fail = true};
    if (!choose(relay, &relay->prefill))
        return;
    relay->mode = relay->prefill.instance->address.mode;
    relay->kv_params.length = 0;
    relay->prefill_status = 0;
    relay->decode.tried_count = 0;
    relay->is_known = relay->is_decoded = false;
    (void)evbuffer_drain(relay->held, evbuffer_get_length(relay->held));
    /* Another try is another transfer: the engines may still know the one before. */
    make_id(id);
    (void)snprintf(relay->transfer_id, sizeof(relay->transfer_id), "xfer-%s", id);
    if (relay->mode == MC_PROXY_ROOM) {
        choose_room(relay);
        write_room(relay, &body);
    } else {
        write_prefill(relay, &body);
    }
    if (relay->mode == MC_PROXY_CONCURRENT)
        write_bootstrap(relay);
    if (send_leg(relay, &relay->prefill, &body, &prefill_events) && is_beside(relay))
        start_decode(relay);
}

/* ---- life ---- */

static void on_gone(void *context)
{
    destroy(context);
}

static void on_room(void *context)
{
    struct mc_relay *relay = context;
    if (relay->decode.upstream != NULL)
        mc_upstream_pause(relay->decode.upstream, false);
}

static const struct mc_client_events client_events = {on_gone, on_room};

static struct mc_relay *create(struct mc_client *client, bool is_completion)
{
    struct mc_proxy *proxy = mc_client_proxy(client);
    struct mc_relay *relay = NULL;
    if (proxy->request_count < proxy->config->requests_max)
        relay = calloc(1, sizeof(*relay));
    if (relay != NULL) {
        relay->kept = evbuffer_new();
        relay->held = evbuffer_new();
        relay->prompt.may_fail = relay->kv_params.may_fail = true;
        relay->proxy = proxy;
        relay->client = client;
        relay->is_completion = is_completion;
        relay->mode = MC_PROXY_STORE;
        relay->prefill.role = MC_PROXY_PREFILL;
        relay->decode.role = MC_PROXY_DECODE;
        make_id(relay->request_id);
    }
    if (relay == NULL || relay->kept == NULL || relay->held == NULL) {
        if (relay != NULL && relay->kept != NULL)
            evbuffer_free(relay->kept);
        if (relay != NULL && relay->held != NULL)
            evbuffer_free(relay->held);
        free(relay);
        proxy->totals.refused++;
        mc_client_reply_error(client, 503, "ServiceUnavailableError", "too many requests are under way");
        return NULL;
    }
    proxy->request_count++;
    relay->next = proxy->relays;
    relay->back = &proxy->relays;
    if (relay->next != NULL)
        relay->next->back = &relay->next;
    proxy->relays = relay;
    mc_client_watch(client, &client_events, relay);
    return relay;
}

void mc_relay_end_silent(struct mc_proxy *proxy, const struct mc_instance *instance, uint64_t silent_ms)
{
    char problem[MC_PROXY_PROBLEM_MAX];
    uint64_t now = mc_clock_ms();
    struct mc_relay *next;
    (void)snprintf(problem, sizeof(problem), "%s", instance->problem);
    for (struct mc_relay *at = proxy->relays; at != NULL; at = next) {
        next = at->next; /* no relay ends another one */
        struct leg *const legs[] = {&at->prefill, &at->decode};
        for (size_t i = 0; i < 2; i++) {
            struct mc_upstream *upstream = legs[i]->upstream;
            if (legs[i]->instance != instance || upstream == NULL || mc_upstream_silent_ms(upstream, now) < silent_ms)
                continue;
            mc_upstream_give_up(upstream, problem); /* which may end the relay */
            break;
        }
    }
}

/* Is it there, and neither false nor null? */
static bool is_wished(const struct mc_members *members, const char *name)
{
    const struct mc_edit_member *member = mc_members_find(members, name);
    return member != NULL && !mc_span_equal(member->value, mc_span_string("false")) &&
           !mc_span_equal(member->value, mc_span_string("null"));
}

static void complete(struct mc_client *client, bool is_generate)
{
    struct evbuffer *content = mc_client_body(client);
    struct mc_proxy *proxy = mc_client_proxy(client);
    const char *type = mc_head_find(mc_client_head(client), "content-type"), *problem = "";
    size_t at = 0, length = evbuffer_get_length(content);
    if (type != NULL && (strncasecmp(type, "application/json", 16) != 0 || strchr("; \t", type[16]) == NULL)) {
        mc_client_reply_error(client, 415, "BadRequestError",
                              "Unsupported Media Type: Only 'application/json' is allowed");
        return;
    }
    if (mc_members_scan(&proxy->members, mc_span(evbuffer_pullup(content, -1), length), &at, &problem) < 0) {
        mc_client_reply_error(client, 400, "BadRequestError", "the request is not JSON: %s at byte %zu", problem, at);
        return;
    }
    bool is_joined = is_generate && is_wished(&proxy->members, "return_logprob");
    bool is_stream = mc_members_is_true(&proxy->members, "stream");
    struct mc_relay *relay = create(client, true);
    if (relay == NULL)
        return;
    if (proxy->instances.count[MC_PROXY_PREFILL] == 0) {
        start_decode(relay);
        return;
    }
    relay->is_joined = is_joined;
    relay->is_stream = is_stream;
    start_prefill(relay);
}

void mc_relay_completion(struct mc_client *client)
{
    complete(client, false);
}

void mc_relay_generate(struct mc_client *client)
{
    if (mc_client_proxy(client)->config->mode == MC_PROXY_ROOM)
        complete(client, true);
    else
        mc_client_reply_error(client, 404, "NotFoundError", "/generate is there with --mode=room");
}

void mc_relay_other(struct mc_client *client)
{
    struct mc_relay *relay = create(client, false);
    if (relay != NULL)
        start_decode(relay);
}
