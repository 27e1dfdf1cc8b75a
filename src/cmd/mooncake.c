/* mooncake: parse, ask, print. */
#include "base/option_rows.h"
#include "base/variables.h"
#include "console/console.h"
#include "env/flags.h"
#include "env/keys.h"
#include "env/log.h"
#include "env/secure.h"
#include "env/unread.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define WORDS_MAX 64

/* clang-format off */
static const struct mc_option table[] = {
    ROW("help", BOOL, "false", "shows this text"),
    ALIAS("h", "help"),
    VERSION(),
    ROW("master", TEXT, "", "the master: host:port, etcd://host:port or k8s://namespace/lease; empty: $MOONCAKE_MASTER, else 127.0.0.1:50051"),
    ROW("admin", TEXT, "", "its metrics_port, host:port, when that is not 9003 on the same host"),
    ROW("auth_file", TEXT, "", "file of keys, of which the first is shown; empty: $MC_AUTH_FILE, else $MC_AUTH_TOKEN"),
    TLS_OF_ALL, TLS_OF_CALLS,
    ROW("json", BOOL, "false", "what the master says as JSON, for scripts: of status, slow, misses and one key an object, of the others a list"),
    ROW("limit", INT, "0", "nodes, keys, events, slow: shows at most so many; 0: all nodes, 100 keys, 50 events, 20 calls", LIMITS(0, 1000000000)),
    ROW("prefix", TEXT, "", "keys: only those that begin so"),
    ROW("sort", TEXT, "state", "nodes, top: the worst first, or by one of these", CHOICES("state|name|use|objects|heard")),
    ROW("follow", BOOL, "false", "events: stays, and shows what comes"),
    ROW("wait", BOOL, "true", "drain: stays until nothing lies there any more, and shows how far it is"),
    ROW("interval", S, "2", "top: draws so often", LIMITS(200, 3600000)),
    ROW("once", BOOL, "false", "top: one picture, and ends; so it is where the output is no terminal"),
};
static const struct console_command {
    const char *name;
    int (*run)(struct mc_console *console);
    size_t words; /* at most */
} commands[] = {
    {"status", mc_console_status, 0},
    {"nodes", mc_console_nodes, 1},
    {"keys", mc_console_keys, 1},
    {"events", mc_console_events, 0},
    {"slow", mc_console_slow, 0},
    {"misses", mc_console_misses, 1},
    {"drain", mc_console_drain, WORDS_MAX},
    {"undrain", mc_console_undrain, WORDS_MAX},
    {"top", mc_console_top, 0},
};
/* clang-format on */

static const char help_head[] =
    "mooncake: looks at a pool, and drains its nodes, by the HTTP port of its master.\n"
    "Usage: mooncake status              who leads, memory, segments, hits, what ails\n"
    "       mooncake nodes [WORDS]       the nodes, the worst first; those whose name has WORDS in it\n"
    "       mooncake keys [KEY]          keys, or where one lies, or why it is not there\n"
    "       mooncake events              what has happened\n"
    "       mooncake slow                the slowest calls of the last minutes, and puts that are open for long\n"
    "       mooncake misses [KEY]        why keys were not there, or this one; what more memory would find\n"
    "       mooncake drain [NODE...]     empties nodes, so that they can be ended; without one: how far drains are\n"
    "       mooncake undrain NODE...     these take objects again\n"
    "       mooncake top                 all of it in a terminal, drawn anew\n"
    "What follows -- is no flag. TLS and keys as for all commands.\n"
    "Exit code: 0; 1 when the master does not answer or refuses, a key is not there, a drain fails; 2 for a bad "
    "option.\n";

static bool takes_value(const struct mc_options *options, const char *flag)
{
    char name[64];
    const char *from = flag + strspn(flag, "-");
    snprintf(name, sizeof(name), "%s", from);
    int at = mc_options_find(options, name);
    return strchr(flag, '=') == NULL && at >= 0 && options->table[at].type != MC_OPTION_BOOL;
}

/* Takes the words that are no flags, nor values of flags, out of argv. How many there were; those beyond WORDS_MAX are
 * counted. */
static size_t words_take(const struct mc_options *options, int *argc, char **argv, const char *words[WORDS_MAX])
{
    size_t count = 0;
    int kept = 1;
    bool is_over = false;
    for (int i = 1; i < *argc; i++) {
        if (!is_over && strcmp(argv[i], "--") == 0) {
            is_over = true;
        } else if (!is_over && argv[i][0] == '-' && argv[i][1] != 0) {
            bool has_next = takes_value(options, argv[i]) && i + 1 < *argc;
            argv[kept++] = argv[i];
            if (has_next)
                argv[kept++] = argv[++i];
        } else if (count++ < WORDS_MAX) {
            words[count - 1] = argv[i];
        }
    }
    *argc = kept;
    return count;
}

static int run(const struct mc_options *options, const char *const *words, size_t count)
{
    char error[MC_OPTION_ERROR_MAX] = "";
    const struct console_command *command = NULL;
    const char *master = mc_options_text(options, "master");
    for (size_t i = 0; count > 0 && i < sizeof(commands) / sizeof(commands[0]); i++)
        if (strcmp(words[0], commands[i].name) == 0)
            command = &commands[i];
    if (command == NULL || count - 1 > command->words || count > WORDS_MAX) {
        fprintf(
            stderr,
            "mooncake: status, nodes [WORDS], keys [KEY], events, slow, misses [KEY], drain [NODE...], undrain NODE... "
            "or top; --help says more\n");
        return MC_CONSOLE_MISUSED;
    }
    if (master[0] == 0)
        master = mc_variable(MOONCAKE_MASTER);
    struct mc_console console = {.master = master == NULL || master[0] == 0 ? "127.0.0.1:50051" : master,
                                 .admin = mc_options_text(options, "admin"),
                                 .prefix = mc_options_text(options, "prefix"),
                                 .sort = mc_options_text(options, "sort"),
                                 .limit = (uint64_t)mc_options_int(options, "limit"),
                                 .interval_ms = (uint64_t)mc_options_int(options, "interval"),
                                 .is_json = mc_options_bool(options, "json"),
                                 .follows = mc_options_bool(options, "follow"),
                                 .waits = mc_options_bool(options, "wait"),
                                 .is_once = mc_options_bool(options, "once"),
                                 .words = words + 1,
                                 .word_count = count - 1,
                                 .out = stdout};
    mc_keys_use(mc_options_text(options, "auth_file"));
    if (mc_keys_check(error, sizeof(error)) < 0 || mc_flags_use(options, error, sizeof(error)) < 0 ||
        mc_secure_check(false, error, sizeof(error)) < 0) {
        fprintf(stderr, "mooncake: %s\n", error);
        return MC_CONSOLE_MISUSED;
    }
    int code = mc_console_find(&console);
    return code == MC_CONSOLE_FINE ? command->run(&console) : code;
}

int main(int argc, char **argv)
{
    struct mc_options options;
    struct mc_buffer text = {0};
    char error[MC_OPTION_ERROR_MAX] = "";
    const char *words[WORDS_MAX] = {NULL};
    int code = MC_CONSOLE_MISUSED;
    (void)signal(SIGPIPE, SIG_IGN);
    if (mc_variable(MC_LOG_LEVEL) == NULL)
        mc_log_set_level(MC_LOG_WARNING);
    mc_options_init(&options, table, sizeof(table) / sizeof(table[0]));
    size_t count = words_take(&options, &argc, argv, words);
    if (mc_options_parse(&options, argc, argv, NULL, NULL, error, sizeof(error)) < 0) {
        fprintf(stderr, "mooncake: %s\n", error);
    } else if (mc_options_answer(&options, "mooncake", help_head, &text)) {
        (void)fwrite(text.data, 1, text.length, stdout); /* fflush says whether it was written */
        code = MC_CONSOLE_FINE;
    } else {
        mc_unread_tell();
        code = run(&options, words, count);
    }
    mc_buffer_free(&text);
    mc_options_free(&options);
    return fflush(stdout) == 0 ? code : MC_CONSOLE_FAILED;
}
