/* The proxy's flags and what follows from them.
 *
 * Four proxies are covered by their command lines: --prefill and --decode take lists of host:port (--prefill a:1 b:2),
 * or one URL each with a bootstrap port behind it (--prefill http://a:8010 8998; with
 * --pd-disaggregation: mode room), and --prefiller-hosts with --prefiller-ports pairs.
 */
#ifndef MC_PROXY_OPTIONS_H
#define MC_PROXY_OPTIONS_H

#include "base/options.h"
#include "env/socket.h"
#include "env/tls.h"
#include "proxy/schedule.h"

#define MC_PROXY_INSTANCES_MAX 256 /* prefill and decode together */
#define MC_PROXY_BOOTSTRAP_PORT 8998
#define MC_PROXY_KEY_MAX 1024 /* bytes of a key in the environment */
#define MC_PROXY_TRIES_MAX 8  /* instances of a role that one request tries */

/* How a prefill instance hands its KV cache to the decode instance. */
enum mc_proxy_mode {
    MC_PROXY_AUTO,
    MC_PROXY_STORE,      /* through a store: prefill, then the request as it came */
    MC_PROXY_SEQUENTIAL, /* prefill answers with kv_transfer_params, which decode is given */
    MC_PROXY_CONCURRENT, /* both at once; decode is told the prefill instance's bootstrap server and engine id */
    MC_PROXY_ROOM        /* both at once, the same request: they meet in a room of prefill's bootstrap server */
};

struct mc_proxy_address {
    char host[MC_ADDRESS_MAX]; /* as it was given, without brackets */
    char name[MC_ADDRESS_MAX]; /* "host:port" */
    uint16_t port, bootstrap_port;
    enum mc_proxy_mode mode; /* of a prefill instance: never auto */
    bool is_tls;             /* https:// */
};

struct mc_proxy_config {
    char host[MC_ADDRESS_MAX], model[512];
    char admin_key[MC_PROXY_KEY_MAX]; /* ADMIN_API_KEY; empty: nobody may change instances */
    char api_key[MC_PROXY_KEY_MAX];   /* OPENAI_API_KEY; empty: the client's own is passed on, but for keys of ours */
    char auth_file[512];              /* of keys (env/keys.h); empty: as the environment says */
    bool sends_key;                   /* instances are shown this process's own key */
    uint16_t port;
    enum mc_proxy_mode mode;
    const struct mc_policy *policy;
    struct mc_proxy_address prefill[MC_PROXY_INSTANCES_MAX], decode[MC_PROXY_INSTANCES_MAX];
    size_t prefill_count, decode_count;
    uint64_t health_interval_ms, dead_ms, connect_ms, silence_ms, request_ms, drain_ms, client_ms, stall_ms;
    size_t body_max, buffered_max, requests_max, connections_max, retries;
};

/* "host:port", "[v6]:port", "http://host[:port][/]" or "https://...". 0, or MC_ERR_INVALID_PARAMS with the reason in
 * error. */
int mc_proxy_address_parse(struct mc_proxy_address *address, const char *text, char *error, size_t error_size);
/* How instances at https:// are called: as other nodes are (env/secure.h), but for TLS 1.2 and the machine's own
 * authorities, since they are none of ours. */
struct mc_tls_settings mc_proxy_calls(void);
const char *mc_proxy_mode_name(enum mc_proxy_mode mode);

/* 0: config is filled. 1: only text is to be shown. Negative: the reason is in error. */
int mc_proxy_config_load(int argc, char *const *argv, struct mc_proxy_config *config, struct mc_buffer *text,
                         char *error, size_t error_size);

#endif
