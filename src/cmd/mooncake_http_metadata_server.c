/* mooncake_http_metadata_server: the master's metadata service as a process of its own. */
#include "base/error.h"
#include "base/options.h"
#include "env/log.h"
#include "store/master/http.h"
#include "store/master/options.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

/* clang-format off */
static const struct mc_option table[] = {
    {.name = "help", .type = MC_OPTION_BOOL, .initial = "false", .help = "shows this text"},
    {.name = "h", .type = MC_OPTION_TEXT, .initial = "", .help = "", .alias_of = "help"},
    {.name = "version", .type = MC_OPTION_BOOL, .initial = "false", .help = "shows the version"},
    {.name = "port", .type = MC_OPTION_INT, .initial = "8080", .help = "port to listen on; 0: the kernel chooses, the log names it", .maximum = 65535},
    {.name = "host", .type = MC_OPTION_TEXT, .initial = "0.0.0.0", .help = "address to listen on"},
    {.name = "max_mib", .type = MC_OPTION_INT, .initial = "1024", .help = "keeps so much in memory (MiB)", .minimum = 1, .maximum = 1 << 20},
    {.name = "log_level", .type = MC_OPTION_TEXT, .initial = "INFO", .help = "least important lines that are written", .choices = "DEBUG|INFO|WARNING|ERROR|CRITICAL"},
};
/* clang-format on */

static void print_help(const struct mc_options *options)
{
    struct mc_buffer text = {0};
    mc_buffer_printf(&text, "mooncake_http_metadata_server: where transfer engines find each other; it keeps what they "
                            "say in memory.\nUsage: mooncake_http_metadata_server [--port 8080] [--host 0.0.0.0]\n");
    mc_options_help(options, &text);
    (void)fwrite(text.data, 1, text.length, stdout); /* main looks whether it was written */
    mc_buffer_free(&text);
}

/* 0 run, 1 done, negative with a line in error. */
static int take_flags(int argc, char **argv, struct mc_master_config *config, char *error, size_t error_size)
{
    struct mc_options options;
    enum mc_log_level level = MC_LOG_ERROR; /* CRITICAL */
    mc_options_init(&options, table, sizeof(table) / sizeof(table[0]));
    int rc = mc_options_parse(&options, argc, argv, NULL, NULL, error, error_size);
    if (rc == 0 && mc_options_bool(&options, "help")) {
        print_help(&options);
        rc = 1;
    } else if (rc == 0 && mc_options_bool(&options, "version")) {
        printf("mooncake_http_metadata_server %s\n", MC_VERSION);
        rc = 1;
    } else if (rc == 0) {
        memset(config, 0, sizeof(*config));
        config->metadata_enabled = true;
        config->metadata_max_bytes = (size_t)mc_options_int(&options, "max_mib") << 20;
        config->metadata_port = (uint16_t)mc_options_int(&options, "port");
        snprintf(config->metadata_host, sizeof(config->metadata_host), "%s", mc_options_text(&options, "host"));
        if (mc_options_source(&options, "log_level") != MC_OPTION_FROM_DEFAULT) {
            (void)mc_log_parse_level(mc_options_text(&options, "log_level"), &level); /* CRITICAL is none of ours */
            mc_log_set_level(level);
        }
    }
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
