/* The proxy's flag table, and the lists that are written as several words; see options.h. */
#include "proxy/options.h"

#include "base/error.h"
#include "base/option_rows.h"
#include "base/variables.h"
#include "env/flags.h"
#include "env/keys.h"
#include "env/log.h"
#include "env/secure.h"
#include "env/unread.h"

#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#define SECOND ((int64_t)1000)
#define DAY (86400 * SECOND)
#define GIB ((int64_t)1 << 30)
#define HTTP_PORT 80
#define HTTPS_PORT 443
#define ADDRESS_IS "an address is host:port, http://host:port or https://host:port"

#define INTO(member) TO(mc_proxy_config, member)

/* clang-format off */
static const struct mc_option table[] = {
    ROW("help", BOOL, "false", "shows this text", SECTION("General")),
    ALIAS("h", "help"),
    VERSION(),
    ROW("print_config", BOOL, "false", "shows every setting as it would be used"),
    ROW("v", INT, "0", "1: more in the log, 2: everything", LIMITS(0, 2)),

    ROW("port", INT, "8000", "where clients come; 0: the kernel chooses, the log names it", SECTION("Service"), PORT, INTO(port)),
    ROW("host", TEXT, "0.0.0.0", "its address", INTO(host)),
    ROW("auth_file", TEXT, "", "file of keys: who asks, but for /health and /healthcheck, has to show one; empty: $MC_AUTH_FILE, else $MC_AUTH_TOKEN, else everybody is let in", INTO(auth_file)),
    TLS_OF_ALL, TLS_OF_PORTS, TLS_OF_CALLS,
    ROW("send_key", BOOL, "false", "instances are shown this process's own key, the first of the file or the token: for those that are proxies with keys", INTO(sends_key)),
    ROW("model", TEXT, "", "the model that every instance must serve; empty: any", INTO(model)),
    ALIAS("m", "model"),

    ROW("prefill", TEXT, "", "list of host:port, http://host:port or https://host:port, each with a bootstrap port behind it if it is not 8998; may be given several times", SECTION("Instances")),
    ALIAS("p", "prefill"),
    ROW("decode", TEXT, "", "list of host:port, http://host:port or https://host:port; may be given several times"),
    ALIAS("d", "decode"),
    ROW("prefiller_hosts", TEXT, "", "list of hosts, in pairs with prefiller_ports; their mode is sequential"),
    ALIAS("prefiller_host", "prefiller_hosts"),
    ROW("prefiller_ports", TEXT, "", "list of ports"),
    ALIAS("prefiller_port", "prefiller_ports"),
    ROW("decoder_hosts", TEXT, "", "list of hosts, in pairs with decoder_ports"),
    ALIAS("decoder_host", "decoder_hosts"),
    ROW("decoder_ports", TEXT, "", "list of ports"),
    ALIAS("decoder_port", "decoder_ports"),
    ROW("mode", TEXT, "auto", "how KV cache goes from prefill to decode. store: through a store; sequential: decode is given the kv_transfer_params that prefill answers; concurrent: both at once, by the bootstrap server; "
        "room: the same request to both at once, with bootstrap_host, bootstrap_port and bootstrap_room; "
        "auto: concurrent for a prefill instance that is a URL or has a bootstrap port, else store", CHOICES("auto|store|sequential|concurrent|room")),
    ROW("pd_disaggregation", BOOL, "false", "the same as --mode=room"),
    NEEDLESS("mini_lb", BOOL, "false", "there is one proxy only"),
    ROW("scheduling", TEXT, "round_robin", "which instance is next: in turn, the least prompt bytes and requests under way, or any", CHOICES("round_robin|least_loaded|load_balanced|random")),
    ROW("roundrobin", BOOL, "false", "the same as --scheduling=round_robin"),
    NEEDLESS("generator_on_p_node", BOOL, "false", "every token comes from the decode instance"),
    ROW("health_interval", S, "5", "instances are asked for /health so often; one that does not answer gets no requests until it does", LIMITS(100, DAY), INTO(health_interval_ms)),

    ROW("dead_timeout", S, "8", "an instance of which nothing at all has come for so long, not even an answer to /health, is dead, and its requests end; 0: they wait for silence_timeout", LIMITS(0, DAY), INTO(dead_ms)),
    ROW("retries", INT, "3", "a request that an instance has certainly not begun with (no connection, or it answered 503) is sent to another one, so often; 0: never", LIMITS(0, MC_PROXY_TRIES_MAX - 1), INTO(retries)),

    ROW("connect_timeout", S, "10", "longest time to connect to an instance", SECTION("Times"), LIMITS(10, DAY), INTO(connect_ms)),
    ROW("silence_timeout", S, "1200", "an instance that sends nothing for so long has failed", LIMITS(10, DAY), INTO(silence_ms)),
    ROW("request_timeout", S, "21600", "longest time of a request", LIMITS(10, 7 * DAY), INTO(request_ms)),
    ROW("client_timeout", S, "60", "longest time that a client may take for the head of a request, and ten times that for all of it; idle connections are closed after it", LIMITS(10, DAY), INTO(client_ms)),
    ROW("stall_timeout", S, "300", "a client that takes nothing of its answer for so long is gone", LIMITS(10, DAY), INTO(stall_ms)),
    ROW("drain_timeout", S, "30", "after SIGTERM, requests under way have so long to end", LIMITS(0, DAY), INTO(drain_ms)),

    ROW("max_body_bytes", INT, "67108864", "longest request, and longest answer of prefill that is needed", SECTION("Limits"), LIMITS(1024, 4 * GIB), INTO(body_max)),
    ROW("max_buffered_bytes", INT, "1073741824", "bytes of all requests under way", LIMITS(1024, 1024 * GIB), INTO(buffered_max)),
    ROW("max_requests", INT, "4096", "requests under way; more are answered 503", LIMITS(1, 1000000), INTO(requests_max)),
    ROW("max_connections", INT, "8192", "connections of clients; for more, one that was silent for longest leaves, of an address that has many, and they wait when nobody is", LIMITS(1, 1000000), INTO(connections_max)),
};
/* clang-format on */
#define ROWS (sizeof(table) / sizeof(table[0]))

/* Rows whose flags take all the words behind them. */
static const char *const list_rows[] = {"prefill",         "decode",        "prefiller_hosts",
                                        "prefiller_ports", "decoder_hosts", "decoder_ports"};
#define LISTS (sizeof(list_rows) / sizeof(list_rows[0]))

/* ---- addresses ---- */

static int address_complain(char *error, size_t error_size, const char *format, const char *text)
{
    (void)snprintf(error, error_size, format, text);
    return MC_ERR_INVALID_PARAMS;
}

static bool is_host(const char *host)
{
    static const char others[] = ".-_:%";
    size_t length = strlen(host);
    for (size_t i = 0; i < length; i++) {
        unsigned char at = (unsigned char)host[i];
        bool is_plain = (at >= '0' && at <= '9') || ((at | 0x20) >= 'a' && (at | 0x20) <= 'z');
        if (!is_plain && strchr(others, at) == NULL)
            return false;
    }
    return length > 0;
}

int mc_proxy_address_parse(struct mc_proxy_address *address, const char *text, char *error, size_t error_size)
{
    char copy[MC_ADDRESS_MAX];
    bool is_tls = strncasecmp(text, "https://", 8) == 0, is_url = is_tls || strncasecmp(text, "http://", 7) == 0;
    *address = (struct mc_proxy_address){.bootstrap_port = MC_PROXY_BOOTSTRAP_PORT, .is_tls = is_tls};
    if (strlen(text) >= sizeof(copy))
        return address_complain(error, error_size, "'%.40s...': " ADDRESS_IS, text);
    (void)snprintf(copy, sizeof(copy), "%s", text + (is_tls ? 8 : is_url ? 7 : 0));
    size_t length = strlen(copy);
    if (is_url && length > 0 && copy[length - 1] == '/')
        copy[length - 1] = 0;
    uint16_t port = is_tls ? HTTPS_PORT : is_url ? HTTP_PORT : 0;
    if (mc_address_split(copy, address->host, sizeof(address->host), &port) < 0 || port == 0 ||
        !is_host(address->host) || strlen(address->host) > 250)
        return address_complain(error, error_size, "'%.200s': " ADDRESS_IS, text);
    address->port = port;
    address->mode = is_url ? MC_PROXY_CONCURRENT : MC_PROXY_STORE;
    mc_address_join(address->name, sizeof(address->name), address->host, port);
    return 0;
}

/* "8998", or "none" for the default. */
static int bootstrap_parse(struct mc_proxy_address *address, const char *text)
{
    char *end = NULL;
    address->mode = MC_PROXY_CONCURRENT;
    if (strcasecmp(text, "none") == 0)
        return 0;
    long port = strtol(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != 0 || port < 1 || port > 65535)
        return MC_ERR_INVALID_PARAMS;
    address->bootstrap_port = (uint16_t)port;
    return 0;
}

static const char *const mode_names[] = {"auto", "store", "sequential", "concurrent", "room"};

const char *mc_proxy_mode_name(enum mc_proxy_mode mode)
{
    return mode_names[mode];
}

/* ---- lists ---- */

/* Which of them a flag sets; LISTS: none. */
static size_t list_of(const struct mc_options *options, const char *flag, size_t length)
{
    char name[32];
    size_t list = 0;
    (void)snprintf(name, sizeof(name), "%.*s", length < sizeof(name) ? (int)length : 0, flag);
    int row = mc_options_find(options, name);
    while (list < LISTS && (row < 0 || strcmp(list_rows[list], options->table[row].name) != 0))
        list++;
    return list;
}

static void add_word(struct mc_buffer *list, const char *word)
{
    if (list->length > 0)
        mc_buffer_put_u8(list, ',');
    mc_buffer_append(list, word, strlen(word));
}

/* Takes the lists out of the arguments, and puts each back as one flag at the end. */
static int parse(struct mc_options *options, int argc, char *const *argv, char *error, size_t error_size)
{
    struct mc_buffer found[LISTS] = {0};
    char **kept = calloc((size_t)argc + 1 + LISTS, sizeof(char *));
    int rc = MC_ERR_NO_MEMORY, count = 0;
    if (kept == NULL)
        return rc;
    for (int i = 0; i < argc; i++) {
        const char *argument = argv[i];
        const char *name = argument + strspn(argument, "-");
        size_t length = strcspn(name, "=");
        size_t row = i == 0 || argument[0] != '-' ? LISTS : list_of(options, name, length);
        if (row == LISTS) {
            kept[count++] = argv[i];
            continue;
        }
        if (name[length] == '=')
            add_word(&found[row], name + length + 1);
        else if (i + 1 == argc || argv[i + 1][0] == '-')
            rc = address_complain(error, error_size, "flag %s needs at least one value", argument);
        else
            while (i + 1 < argc && argv[i + 1][0] != '-')
                add_word(&found[row], argv[++i]);
    }
    if (rc != MC_ERR_INVALID_PARAMS)
        rc = mc_options_parse(options, count, kept, NULL, NULL, error, error_size);
    for (size_t row = 0; row < LISTS; row++) {
        mc_buffer_put_u8(&found[row], 0);
        if (rc == 0 && found[row].length > 1)
            rc = mc_options_set(options, (size_t)mc_options_find(options, list_rows[row]), (char *)found[row].data,
                                MC_OPTION_FROM_FLAG, "--", error, error_size);
        mc_buffer_free(&found[row]);
    }
    free(kept);
    return rc;
}

static bool is_bootstrap(const char *word)
{
    return strcasecmp(word, "none") == 0 || (word[0] != 0 && word[strspn(word, "0123456789")] == 0);
}

/* The addresses of one list, each perhaps followed by its bootstrap port. */
static int read_addresses(const char *list, struct mc_proxy_address *addresses, size_t *count, char *error,
                          size_t error_size)
{
    int rc = 0;
    char *copy = strdup(list), *rest = copy, *word;
    if (copy == NULL)
        return MC_ERR_NO_MEMORY;
    while (rc == 0 && (word = strsep(&rest, ", ")) != NULL) {
        if (word[0] == 0)
            continue;
        if (is_bootstrap(word)) {
            if (*count == 0 || bootstrap_parse(&addresses[*count - 1], word) < 0)
                rc = address_complain(error, error_size, "'%.100s' is no address, and no bootstrap port behind one",
                                      word);
        } else if (*count == MC_PROXY_INSTANCES_MAX) {
            rc = address_complain(error, error_size, "too many instances at '%.100s'", word);
        } else {
            rc = mc_proxy_address_parse(&addresses[*count], word, error, error_size);
            *count += rc == 0;
        }
    }
    free(copy);
    return rc;
}

/* Hosts and ports in two lists of the same length. */
static int read_pairs(const char *hosts, const char *ports, struct mc_proxy_address *addresses, size_t *count,
                      char *error, size_t error_size)
{
    char *host_copy = strdup(hosts), *port_copy = strdup(ports), *host_rest = host_copy, *port_rest = port_copy;
    int rc = host_copy == NULL || port_copy == NULL ? MC_ERR_NO_MEMORY : 0;
    while (rc == 0 && (hosts[0] != 0 || ports[0] != 0)) {
        char address[MC_ADDRESS_MAX];
        char *host = strsep(&host_rest, ", "), *port = strsep(&port_rest, ", ");
        if (host == NULL && port == NULL)
            break;
        if (host == NULL || port == NULL || *count == MC_PROXY_INSTANCES_MAX) {
            rc = address_complain(error, error_size, "there must be as many hosts as ports%s", "");
            break;
        }
        (void)snprintf(address, sizeof(address), strchr(host, ':') == NULL ? "%.200s:%.8s" : "[%.200s]:%.8s", host,
                       port);
        rc = mc_proxy_address_parse(&addresses[*count], address, error, error_size);
        addresses[*count].mode = MC_PROXY_SEQUENTIAL;
        *count += rc == 0;
    }
    free(host_copy);
    free(port_copy);
    return rc;
}

static int check_twice(const struct mc_proxy_address *addresses, size_t count, const char *flag, char *error,
                       size_t error_size)
{
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < i; j++) {
            if (strcmp(addresses[i].name, addresses[j].name) == 0) {
                (void)snprintf(error, error_size, "--%s: %.200s is given twice", flag, addresses[i].name);
                return MC_ERR_INVALID_PARAMS;
            }
        }
    }
    return 0;
}

/* ---- the whole ---- */

struct mc_tls_settings mc_proxy_calls(void)
{
    struct mc_tls_settings settings = mc_secure_calls();
    settings.trusts_machine = true;
    settings.is_strict = false;
    settings.off = "write http:// before its address here";
    return settings;
}

/* Is there what https:// needs, where an instance is to be called so? */
static int check_tls(const struct mc_proxy_config *config, char *error, size_t error_size)
{
    const struct mc_tls_settings settings = mc_proxy_calls();
    bool is_wanted = false;
    for (size_t i = 0; i < config->prefill_count; i++)
        is_wanted |= config->prefill[i].is_tls;
    for (size_t i = 0; i < config->decode_count; i++)
        is_wanted |= config->decode[i].is_tls;
    return is_wanted ? mc_tls_check(&settings, error, error_size) : 0;
}

static int read_instances(const struct mc_options *options, struct mc_proxy_config *config, char *error,
                          size_t error_size)
{
    static const struct {
        const char *list, *hosts, *ports;
    } flags[] = {{"prefill", "prefiller_hosts", "prefiller_ports"}, {"decode", "decoder_hosts", "decoder_ports"}};
    struct mc_proxy_address *const addresses[] = {config->prefill, config->decode};
    size_t *const counts[] = {&config->prefill_count, &config->decode_count};
    int rc = 0;
    for (size_t i = 0; i < 2 && rc == 0; i++) {
        rc = read_addresses(mc_options_text(options, flags[i].list), addresses[i], counts[i], error, error_size);
        if (rc == 0)
            rc = read_pairs(mc_options_text(options, flags[i].hosts), mc_options_text(options, flags[i].ports),
                            addresses[i], counts[i], error, error_size);
        if (rc == 0)
            rc = check_twice(addresses[i], *counts[i], flags[i].list, error, error_size);
    }
    bool may_come = config->admin_key[0] != 0 || mc_keys_are_wanted();
    if (rc == 0 && config->decode_count == 0 && !may_come) /* nobody could ever add one */
        rc = address_complain(error, error_size, "at least one --decode instance is needed%s",
                              ", or ADMIN_API_KEY or --auth_file, under which instances can be added");
    for (size_t i = 0; rc == 0 && i < config->prefill_count; i++) {
        if (config->mode != MC_PROXY_AUTO)
            config->prefill[i].mode = config->mode;
    }
    return rc;
}

static int copy_key(char *key, enum mc_variable variable, char *error, size_t error_size)
{
    const char *value = mc_variable_value(variable);
    if (value == NULL)
        return 0;
    if (strlen(value) >= MC_PROXY_KEY_MAX || value[strcspn(value, "\r\n")] != 0)
        return address_complain(error, error_size, "%s is too long or has a line end", mc_variable_name(variable));
    (void)snprintf(key, MC_PROXY_KEY_MAX, "%s", value);
    return 0;
}

static int resolve(const struct mc_options *options, struct mc_proxy_config *config, char *error, size_t error_size)
{
    const char *mode = mc_options_bool(options, "pd_disaggregation") ? "room" : mc_options_text(options, "mode");
    while (strcmp(mode_names[config->mode], mode) != 0)
        config->mode++; /* the table allows these names only */
    config->policy =
        mc_policy_find(mc_options_bool(options, "roundrobin") ? "round_robin" : mc_options_text(options, "scheduling"));
    mc_assert(config->policy != NULL);
    int rc = mc_options_store(options, config, error, error_size);
    if (rc == 0)
        mc_keys_use(config->auth_file);
    if (rc == 0)
        rc = copy_key(config->admin_key, MC_VARIABLE_ADMIN_API_KEY, error, error_size);
    if (rc == 0)
        rc = copy_key(config->api_key, MC_VARIABLE_OPENAI_API_KEY, error, error_size);
    return rc < 0 ? rc : read_instances(options, config, error, error_size);
}

static const char help_head[] =
    "mooncake_proxy: one OpenAI endpoint before prefill and decode instances.\n"
    "Usage: mooncake_proxy --prefill host:port ... --decode host:port ... [--flag=value ...]\n"
    "       mooncake_proxy --prefill http://host:port [bootstrap port] --decode http://host:port\n"
    "Environment: ADMIN_API_KEY is what POST /instances/add and /instances/remove want as X-API-Key;\n"
    "OPENAI_API_KEY is sent to the instances in place of the client's own.\n"
    "Durations: 5 or 5s, 500ms, 30m, 1h. The log goes to stderr.\n";

int mc_proxy_config_load(int argc, char *const *argv, struct mc_proxy_config *config, struct mc_buffer *text,
                         char *error, size_t error_size)
{
    struct mc_options options;
    memset(config, 0, sizeof(*config));
    mc_options_init(&options, table, ROWS);
    int rc = parse(&options, argc, argv, error, error_size);
    if (rc == 0 && mc_options_answer(&options, "mooncake_proxy", help_head, text))
        rc = 1;
    if (rc == 0)
        rc = resolve(&options, config, error, error_size);
    if (rc == 0 && mc_options_bool(&options, "print_config")) {
        mc_options_print(&options, text);
        rc = 1;
    }
    if (rc == 0 && mc_flags_use(&options, error, error_size) < 0)
        rc = MC_ERR_NO_MEMORY;
    if (rc == 0)
        rc = mc_keys_check(error, error_size);
    if (rc == 0)
        rc = mc_secure_check(mc_secure_is_served(), error, error_size);
    if (rc == 0)
        rc = check_tls(config, error, error_size);
    if (rc == 0 && config->sends_key && !mc_keys_are_wanted())
        rc = address_complain(error, error_size, "--send_key: there is no key%s", ", see --auth_file");
    if (rc == 0) {
        (void)mc_log_set_flags(mc_options_int(&options, "v"), 0);
        mc_unread_tell();
        mc_flags_tell(&options);
    }
    mc_options_free(&options);
    return rc;
}
