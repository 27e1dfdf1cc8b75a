/* Asking several servers over HTTP. */
#include "env/asker.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/log.h"

#include <poll.h>
#include <time.h>

#define PATIENCES_MAX 8u /* after so many a question is taken back when there is no place for another */
#define ADDRESSES_MAX 8u /* of one name */

/* One call, and its questions to several servers. */
struct asked {
    struct mc_http http;
    size_t server;
    uint64_t begun_ns;
    unsigned turn; /* of the addresses of its name */
    bool is_kept, is_connected, is_asked;
};
struct call {
    struct mc_asker *asker;
    const struct mc_http_question *question;
    uint64_t deadline_ns, next_ns; /* next_ns: another is asked then */
    struct asked asked[MC_ASKER_QUESTIONS_MAX];
    size_t count, total, failed, next; /* under way; ever; of those; server */
    int rc;                            /* of the last that failed, or the status */
};

void mc_asker_prefer(struct mc_asker *asker, size_t current)
{
    mc_http_free(&asker->http); /* it may lead to another one */
    asker->current = current % asker->count;
}

void mc_asker_free(struct mc_asker *asker)
{
    mc_http_free(&asker->http);
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static void take_out(struct call *call, struct asked *one)
{
    size_t at = (size_t)(one - call->asked);
    memmove(one, one + 1, (--call->count - at) * sizeof(*one)); /* the oldest stays the first */
}

static void hang_up(struct call *call, struct asked *one)
{
    if (!one->is_connected)
        mc_tcp_doubt(one->http.address);
    if (one->http.tls != NULL && mc_tls_problem(one->http.tls)[0] != 0)
        mc_log_limited(ERROR, "%s", mc_tls_problem(one->http.tls));
    mc_http_free(&one->http);
    take_out(call, one);
}

/* That question has come to nothing: the next server is asked at once, or, when none could be reached, a little later.
 */
static void give_up(struct call *call, struct asked *one, int rc)
{
    bool has_ended = one->is_kept && rc == MC_ERR_RPC_FAIL; /* a kept connection: the same server on a new one */
    call->rc = mc_socket_is_own(rc) ? MC_ERR_RPC_FAIL : rc;
    if (has_ended)
        call->next = one->server;
    hang_up(call, one);
    call->next_ns = mc_clock_ns();
    if (!has_ended && ++call->failed % call->asker->count == 0)
        call->next_ns += call->asker->pause_ns;
}

/* Of a name with several addresses the next one, until one of them answers. */
static int connect_begin(struct call *call, struct asked *one)
{
    struct mc_tcp_address addresses[ADDRESSES_MAX];
    struct mc_asker *asker = call->asker;
    uint64_t until_ns = least(call->deadline_ns, one->begun_ns + asker->patience_ns);
    int count = mc_tcp_resolve(one->http.address, until_ns, addresses, ADDRESSES_MAX);
    one->turn = asker->servers[one->server].turn++;
    if (count <= 0)
        return count < 0 ? count : MC_ERR_RPC_FAIL;
    return mc_tcp_begin(&addresses[one->turn % (unsigned)count]);
}

static uint64_t patience_end(const struct call *call)
{
    return least(call->deadline_ns, mc_clock_ns() + call->asker->patience_ns);
}

static int send_question(struct call *call, struct asked *one)
{
    one->is_asked = true;
    return mc_http_ask(&one->http, call->question, patience_end(call));
}

/* Connected. With TLS the question waits for the handshake, as others may be asked meanwhile. */
static int begin_talk(struct call *call, struct asked *one)
{
    char why[MC_TLS_PROBLEM_MAX];
    struct mc_http *http = &one->http;
    one->is_connected = true;
    if (!call->asker->servers[one->server].is_tls)
        return send_question(call, one);
    int rc = mc_tls_begin(call->asker->tls, http->address, http->fd, &http->tls, why, sizeof(why));
    if (rc < 0) {
        mc_log_limited(ERROR, "%s", why);
        return MC_ERR_RPC_FAIL;
    }
    rc = mc_tls_shake(http->tls, patience_end(call));
    return rc == 1 ? send_question(call, one) : rc;
}

/* Asks the next server, over the kept connection if it is its. */
static void ask(struct call *call)
{
    struct mc_asker *asker = call->asker;
    int rc;
    if (call->count == MC_ASKER_QUESTIONS_MAX)
        hang_up(call, &call->asked[0]);
    struct asked *one = &call->asked[call->count++];
    *one = (struct asked){.server = call->next, .begun_ns = mc_clock_ns(), .http.fd = -1};
    memcpy(one->http.address, asker->servers[one->server].address, MC_ADDRESS_MAX);
    call->next = (call->next + 1) % asker->count;
    call->total++;
    /* Who has been asked already is likely to be slow rather than dead: more questions would make it slower. */
    call->next_ns = one->begun_ns + asker->patience_ns * (call->total == 1 || call->total < asker->count ? 1 : 2);
    if (asker->http.fd >= 0 && one->server == asker->current) {
        one->http = asker->http;
        asker->http = (struct mc_http){.fd = -1};
        one->is_kept = one->is_connected = true;
        rc = send_question(call, one);
    } else {
        one->http.fd = connect_begin(call, one);
        rc = one->http.fd < 0 ? one->http.fd : 0;
    }
    if (rc < 0)
        give_up(call, one, rc);
}

/* When another is asked. With no place for one the oldest goes, if it has had its time or others have not been asked.
 */
static uint64_t ask_at(const struct call *call)
{
    if (call->count < MC_ASKER_QUESTIONS_MAX || call->total < call->asker->count)
        return call->next_ns;
    uint64_t old_ns = call->asked[0].begun_ns + PATIENCES_MAX * call->asker->patience_ns;
    return old_ns > call->next_ns ? old_ns : call->next_ns;
}

/* Waits for any of them. NULL: the time is over. */
static struct asked *wait_for(struct call *call, uint64_t until_ns)
{
    struct pollfd waits[MC_ASKER_QUESTIONS_MAX];
    uint64_t now_ns = mc_clock_ns(), left_ns = until_ns > now_ns ? until_ns - now_ns : 0;
    struct timespec left = {.tv_sec = (time_t)(left_ns / 1000000000u), .tv_nsec = (long)(left_ns % 1000000000u)};
    for (size_t i = 0; i < call->count; i++)
        waits[i] =
            (struct pollfd){.fd = call->asked[i].http.fd, .events = call->asked[i].is_connected ? POLLIN : POLLOUT};
    if (ppoll(waits, call->count, &left, NULL) <= 0)
        return NULL;
    for (size_t i = 0; i < call->count; i++)
        if (waits[i].revents != 0)
            return &call->asked[i];
    return NULL;
}

static bool is_answer(int rc)
{
    return (rc >= 200 && rc < 300) || (rc >= 400 && rc < 500);
}

/* 1: reply holds its answer; else it is asked or given up. */
static int go_on(struct call *call, struct asked *one, struct mc_buffer *reply)
{
    int rc = 0;
    if (!one->is_connected) {
        rc = mc_tcp_begun(one->http.fd);
        if (rc == 0)
            rc = begin_talk(call, one);
    } else if (!one->is_asked) {
        rc = mc_tls_shake(one->http.tls, patience_end(call));
        if (rc == 1)
            rc = send_question(call, one);
    } else if (mc_http_is_ready(&one->http)) {
        rc = mc_http_answer(&one->http, patience_end(call), reply);
    }
    if (is_answer(rc)) {
        call->rc = rc;
        return 1;
    }
    if (rc != 0) /* one that cannot now: it has no leader, or is starting */
        give_up(call, one, rc > 0 ? MC_ERR_RPC_FAIL : rc);
    return 0;
}

int mc_asker_call(struct mc_asker *asker, const struct mc_http_question *question, uint64_t deadline_ns,
                  struct mc_buffer *reply)
{
    struct call call = {.asker = asker,
                        .question = question,
                        .deadline_ns = deadline_ns,
                        .next = asker->current,
                        .rc = MC_ERR_RPC_TIMEOUT};
    reply->length = 0;
    for (uint64_t now_ns; (now_ns = mc_clock_ns()) < deadline_ns;) {
        if (now_ns >= ask_at(&call)) {
            ask(&call);
            continue;
        }
        struct asked *one = wait_for(&call, least(ask_at(&call), deadline_ns));
        if (one != NULL && go_on(&call, one, reply) == 1) {
            asker->current = one->server;
            mc_http_free(&asker->http); /* of one that had hung up something is left */
            asker->http = one->http;
            if (!one->is_kept)
                asker->servers[one->server].turn = one->turn;
            take_out(&call, one);
            break;
        }
    }
    while (call.count > 0)
        hang_up(&call, &call.asked[0]);
    if (call.rc < 0)
        asker->current = call.next;
    return call.rc;
}
