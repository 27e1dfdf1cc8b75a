/* mooncake_http_metadata_server: the master's metadata service as a process of its own. */
#include "base/error.h"
#include "base/option_rows.h"
#include "env/flags.h"
#include "env/keys.h"
#include "env/limits.h"
#include "env/log.h"
#include "env/secure.h"
#include "env/unread.h"
#include "store/master/http_server.h"
#include "store/master/options.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/signalfd.h>
#include <unistd.h>

/* clang-format off */
static const struct mc_option table[] = {
    ROW("help", BOOL, "false", "shows this text"),
    ALIAS("h", "help"),
    VERSION(),
    ROW("port", INT, "8080", "port to listen on; 0: the kernel chooses, the log names it", PORT, TO(mc_master_config, metadata_port)),
    ROW("host", TEXT, "0.0.0.0", "address to listen on", TO(mc_master_config, metadata_host)),
    ROW("auth_file", TEXT, "", "file of keys: who asks has to show one; empty: $MC_AUTH_FILE, else $MC_AUTH_TOKEN, else everybody is let in"),
    TLS_OF_ALL, TLS_OF_PORTS,
    ROW("until_stdin_ends", BOOL, "false", "ends, too, when its standard input does: as soon as whoever started it is gone"),
    ROW("max_mib", INT, "1024", "keeps so much in memory (MiB)", LIMITS(1, 1 << 20)),
    ROW("log_level", TEXT, "INFO", "least important lines that are written", CHOICES("DEBUG|INFO|WARNING|ERROR|CRITICAL")),
};
/* clang-format on */

static const char help_head[] =
    "mooncake_http_metadata_server: where transfer engines find each other; it keeps what they say in memory.\n"
    "Usage: mooncake_http_metadata_server [--port 8080] [--host 0.0.0.0]\n";

/* 0 run, 1 done, negative with a line in error. */
static int take_flags(int argc, char **argv, struct mc_master_config *config, bool *until_stdin_ends, char *error,
                      size_t error_size)
{
    struct mc_options options;
    struct mc_buffer text = {0};
    enum mc_log_level level = MC_LOG_ERROR; /* CRITICAL */
    mc_options_init(&options, table, sizeof(table) / sizeof(table[0]));
    int rc = mc_options_parse(&options, argc, argv, NULL, NULL, error, error_size);
    if (rc == 0 && mc_options_answer(&options, "mooncake_http_metadata_server", help_head, &text)) {
        (void)fwrite(text.data, 1, text.length, stdout); /* main looks whether it was written */
        rc = 1;
    }
    if (rc == 0)
        rc = mc_options_store(&options, config, error, error_size);
    if (rc == 0 && mc_flags_use(&options, error, error_size) < 0)
        rc = MC_ERR_NO_MEMORY;
    if (rc == 0) {
        config->metadata_enabled = true;
        *until_stdin_ends = mc_options_bool(&options, "until_stdin_ends");
        config->metadata_max_bytes = (size_t)mc_options_int(&options, "max_mib") << 20;
        if (mc_options_source(&options, "log_level") != MC_OPTION_FROM_DEFAULT) {
            (void)mc_log_parse_level(mc_options_text(&options, "log_level"), &level); /* CRITICAL is none of ours */
            mc_log_set_level(level);
        }
        mc_unread_tell();
        mc_keys_use(mc_options_text(&options, "auth_file"));
        rc = mc_keys_check(error, error_size);
        if (rc == 0)
            rc = mc_secure_check(true, error, error_size);
    }
    mc_buffer_free(&text);
    mc_options_free(&options);
    return rc;
}

/* Until a signal comes, or the input ends. */
static int wait_for_end(const sigset_t *wanted, bool until_stdin_ends)
{
    struct signalfd_siginfo info;
    char unused[64];
    int signal_fd = signalfd(-1, wanted, SFD_CLOEXEC);
    struct pollfd waited[2] = {{.fd = signal_fd, .events = POLLIN},
                               {.fd = until_stdin_ends ? 0 : -1, .events = POLLIN}};
    if (signal_fd < 0)
        return MC_ERR_INTERNAL_ERROR;
    for (;;) {
        if (poll(waited, 2, -1) < 0)
            continue;
        if (waited[0].revents != 0 && read(signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
            if (info.ssi_signo == SIGHUP) {
                mc_unread_hangup();
                continue;
            }
            mc_log(INFO, "Received signal %u, shutting down", info.ssi_signo);
            break;
        }
        if (waited[1].revents != 0 && read(0, unused, sizeof(unused)) <= 0) {
            mc_log(INFO, "Whoever started this server is gone, shutting down");
            break;
        }
    }
    close(signal_fd);
    return 0;
}

static int serve(const struct mc_master_config *config, bool until_stdin_ends, char *error, size_t error_size)
{
    struct mc_http_server *http = NULL;
    sigset_t wanted;
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGTERM);
    sigaddset(&wanted, SIGINT);
    sigaddset(&wanted, SIGHUP);
    (void)signal(SIGPIPE, SIG_IGN);
    if (sigprocmask(SIG_BLOCK, &wanted, NULL) != 0) /* before the thread, which inherits it */
        return MC_ERR_INTERNAL_ERROR;
    mc_file_limit_raise();
    int rc = mc_http_create(NULL, config, &http, error, error_size);
    if (rc == 0)
        rc = mc_http_start(http);
    if (rc == 0)
        rc = wait_for_end(&wanted, until_stdin_ends);
    mc_http_destroy(http);
    return rc;
}

int main(int argc, char **argv)
{
    struct mc_master_config *config = calloc(1, sizeof(*config));
    char error[MC_OPTION_ERROR_MAX] = "";
    bool until_stdin_ends = false;
    if (config == NULL)
        return 1;
    int rc = take_flags(argc, argv, config, &until_stdin_ends, error, sizeof(error));
    if (rc == 0)
        rc = serve(config, until_stdin_ends, error, sizeof(error));
    if (rc < 0)
        fprintf(stderr, "mooncake_http_metadata_server: %s\n", error[0] != 0 ? error : mc_error_text(rc));
    free(config);
    return rc < 0 || fflush(stdout) != 0 ? 1 : 0;
}
