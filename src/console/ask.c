/* One question to a master's HTTP port, and in words what went wrong. */
#include "console/console.h"

#include "base/address.h"
#include "base/error.h"
#include "env/clock.h"
#include "env/http.h"
#include "env/keys.h"
#include "env/leader.h"
#include "env/secure.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>

#define ADMIN_PORT 9003
#define WAIT_MS 10000u

static uint64_t deadline_of(void)
{
    return mc_clock_ns() + WAIT_MS * 1000000ull;
}

int mc_console_find(struct mc_console *console)
{
    char leader[MC_ADDRESS_MAX], host[MC_ADDRESS_MAX - 8];
    const char *given = console->admin[0] != 0 ? console->admin : console->master;
    uint16_t port = ADMIN_PORT;
    if (console->admin[0] == 0 && mc_leader_is_election(given)) {
        int rc = mc_leader_find(given, deadline_of(), leader, sizeof(leader));
        if (rc < 0) {
            fprintf(stderr, "mooncake: %s: %s\n", given,
                    rc == MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS ? "nobody leads there now" : mc_error_text(rc));
            return MC_CONSOLE_FAILED;
        }
        given = leader;
    }
    if (mc_address_split(given, host, sizeof(host), &port) < 0 || port == 0) {
        fprintf(stderr,
                "mooncake: '%s' is no address: --master host:port, etcd://host:port or k8s://namespace/lease, or "
                "--admin host:metrics_port\n",
                given);
        return MC_CONSOLE_MISUSED;
    }
    mc_address_join(console->address, sizeof(console->address), host, console->admin[0] != 0 ? port : ADMIN_PORT);
    return MC_CONSOLE_FINE;
}

static FILE *complaints(const struct mc_console *console)
{
    return console->complaints != NULL ? console->complaints : stderr;
}

static void say_unreached(const struct mc_console *console, int rc, int reason)
{
    const char *why = reason != 0 ? strerror(reason) : mc_error_text(rc);
    fprintf(
        complaints(console),
        "mooncake: %s cannot be asked: %s. Is a master there? --master host:port ($MOONCAKE_MASTER) says where, and "
        "--admin host:metrics_port where its metrics_port is not %d%s\n",
        console->address, why, ADMIN_PORT,
        reason == 0 && !mc_secure_is_called() ? "; where it wants TLS, MC_TLS_CA_CERT is needed" : "");
}

static void say_refused(const struct mc_console *console, int status, const struct mc_buffer *reply)
{
    struct mc_span json = mc_span(reply->data, reply->length);
    char text[256];
    (void)mc_console_text(json, "error_message", text, sizeof(text));
    bool is_unknown = strcmp(text, "SEGMENT_NOT_FOUND") == 0;
    const char *advice = status == 401   ? "it wants a key: MC_AUTH_TOKEN=id:secret, or MC_AUTH_FILE"
                         : status == 403 ? "this key, or without keys this machine, may not do that"
                         : is_unknown    ? "there is no such node; `mooncake nodes` names them all"
                         : status == 404 ? "it does not know this question: it is of an older build, or no master"
                         : status == 400 && text[0] == 0
                             ? "that is no HTTP port of a master, or one that wants TLS (MC_TLS_CA_CERT)"
                         : status == 503 ? "it does not lead, or is too busy; `mooncake status` says who leads"
                         : text[0] != 0  ? text
                                         : "it could not";
    fprintf(complaints(console), "mooncake: %s answers %d: %s\n", console->address, status, advice);
}

int mc_console_strange(const struct mc_console *console)
{
    fprintf(complaints(console), "mooncake: %s answers with something that no master says\n", console->address);
    return MC_CONSOLE_FAILED;
}

int mc_console_ask(struct mc_console *console, const char *path, const char *body, struct mc_buffer *reply)
{
    char bearer[MC_KEYS_BEARER_MAX];
    const struct mc_tls_settings tls = mc_secure_calls();
    const struct mc_http_question question = {.method = body == NULL ? "GET" : "POST",
                                              .path = path,
                                              .secret = mc_keys_bearer(bearer),
                                              .body = body == NULL ? mc_span(NULL, 0) : mc_span_string(body)};
    int reason = 0, rc = mc_http_once(console->address, mc_secure_is_called() ? &tls : NULL, &question, deadline_of(),
                                      reply, &reason);
    if (rc < 0)
        say_unreached(console, rc, reason);
    else if (rc != 200)
        say_refused(console, rc, reply);
    return rc == 200 ? MC_CONSOLE_FINE : MC_CONSOLE_FAILED;
}

void mc_console_escape(struct mc_buffer *path, struct mc_span text)
{
    const uint8_t *at = text.data;
    for (size_t i = 0; i < text.length; i++) {
        if (isalnum(at[i]) || at[i] == '-' || at[i] == '_' || at[i] == '.')
            mc_buffer_put_u8(path, at[i]);
        else
            mc_buffer_printf(path, "%%%02X", (unsigned)at[i]);
    }
}
