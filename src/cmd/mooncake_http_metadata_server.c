/* mooncake_http_metadata_server: the master's metadata service as a process of its own. */
#include "base/error.h"
#include "base/option_rows.h"
#include "env/log.h"
#include "env/variables.h"
#include "store/master/http_server.h"
#include "store/master/options.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

/* clang-format off */
static const struct mc_option table[] = {
    ROW("help", BOOL, "false", "shows this text"),
    ALIAS("h", "help"),
    ROW("version", BOOL, "false", "shows the version"),
    ROW("port", INT, "8080", "port to listen on; 0: the kernel chooses, the log names it", PORT, TO(mc_master_config, metadata_port)),
    ROW("host", TEXT, "0.0.0.0", "address to listen on", TO(mc_master_config, metadata_host)),
    ROW("max_mib", INT, "1024", "keeps so much in memory (MiB)", LIMITS(1, 1 << 20)),
    ROW("log_level", TEXT, "INFO", "least important lines that are written", CHOICES("DEBUG|INFO|WARNING|ERROR|CRITICAL")),
};
/* clang-format on */

static const char help_head[] =
    "mooncake_http_metadata_server: where transfer engines find each other; it keeps what they say in memory.\n"
    "Usage: mooncake_http_metadata_server [--port 8080] [--host 0.0.0.0]\n";

/* 0 run, 1 done, negative with a line in error. */
static int take_flags(int argc, char **argv, struct mc_master_config *config, char *error, size_t error_size)
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
    if (rc == 0) {
        config->metadata_enabled = true;
        config->metadata_max_bytes = (size_t)mc_options_int(&options, "max_mib") << 20;
        if (mc_options_source(&options, "log_level") != MC_OPTION_FROM_DEFAULT) {
            (void)mc_log_parse_level(mc_options_text(&options, "log_level"), &level); /* CRITICAL is none of ours */
            mc_log_set_level(level);
        }
        mc_variables_tell();
    }
    mc_buffer_free(&text);
    mc_options_free(&options);
    return rc;
}

static int serve(const struct mc_master_config *config, char *error, size_t error_size)
{
    struct mc_http_server *http = NULL;
    sigset_t wanted;
    int number = 0;
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGTERM);
    sigaddset(&wanted, SIGINT);
    (void)signal(SIGPIPE, SIG_IGN);
    if (sigprocmask(SIG_BLOCK, &wanted, NULL) != 0) /* before the thread, which inherits it */
        return MC_ERR_INTERNAL_ERROR;
    int rc = mc_http_create(NULL, config, &http, error, error_size);
    if (rc == 0)
        rc = mc_http_start(http);
    if (rc == 0 && sigwait(&wanted, &number) == 0)
        mc_log(INFO, "Received signal %d, shutting down", number);
    mc_http_destroy(http);
    return rc;
}

int main(int argc, char **argv)
{
    struct mc_master_config *config = calloc(1, sizeof(*config));
    char error[MC_OPTION_ERROR_MAX] = "";
    if (config == NULL)
        return 1;
    int rc = take_flags(argc, argv, config, error, sizeof(error));
    if (rc == 0)
        rc = serve(config, error, sizeof(error));
    if (rc < 0)
        fprintf(stderr, "mooncake_http_metadata_server: %s\n", error[0] != 0 ? error : mc_error_text(rc));
    free(config);
    return rc < 0 || fflush(stdout) != 0 ? 1 : 0;
}
