/* mooncake_doctor: parse, run, print. */
#include "base/error.h"
#include "base/options.h"
#include "doctor/doctor.h"
#include "env/log.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

/* clang-format off */
static const struct mc_option table[] = {
    {.name = "help", .type = MC_OPTION_BOOL, .initial = "false", .help = "shows this text"},
    {.name = "h", .type = MC_OPTION_TEXT, .initial = "", .help = "", .alias_of = "help"},
    {.name = "version", .type = MC_OPTION_BOOL, .initial = "false", .help = "shows the version"},
    {.name = "peer", .type = MC_OPTION_TEXT, .initial = "", .help = "an engine to reach: host:port of its handshakes, or its name at the metadata server; may be given without --peer"},
    {.name = "master", .type = MC_OPTION_TEXT, .initial = "", .help = "the master to ask: host:port, or etcd://host:port"},
    {.name = "admin", .type = MC_OPTION_TEXT, .initial = "", .help = "its metrics_port, host:port, when that is not 9003 on the same host"},
    {.name = "metadata", .type = MC_OPTION_TEXT, .initial = "", .help = "the metadata server: http://host:port/metadata, as engines are given it"},
    {.name = "protocol", .type = MC_OPTION_TEXT, .initial = "tcp", .help = "rdma: it is broken when RDMA cannot be used", .choices = "tcp|rdma"},
    {.name = "device_name", .type = MC_OPTION_TEXT, .initial = "", .help = "RDMA devices that may be used, separated by commas"},
    {.name = "json", .type = MC_OPTION_BOOL, .initial = "false", .help = "the same facts as JSON"},
    {.name = "root", .type = MC_OPTION_TEXT, .initial = "", .help = "put before /proc, /sys and /dev: looks at a copy of another machine's files"},
};
/* clang-format on */

static void print_help(const struct mc_options *options)
{
    struct mc_buffer text = {0};
    mc_buffer_printf(
        &text,
        "mooncake_doctor: looks whether this machine, a master, a metadata server and a peer are fit for transfers, "
        "and says what to set where they are not.\n"
        "Usage: mooncake_doctor [PEER] [--master host:port] [--metadata URL] [--json]\n"
        "Exit code: 0; 1 when something that was asked for does not work; 2 for a bad option.\n");
    mc_options_help(options, &text);
    (void)fwrite(text.data, 1, text.length, stdout); /* main looks whether it was written */
    mc_buffer_free(&text);
}

static int examine(const struct mc_options *options, const char *peer)
{
    struct mc_doctor doctor;
    struct mc_buffer text = {0};
    struct mc_doctor_config config = {
        .peer = peer != NULL ? peer : mc_options_text(options, "peer"),
        .master = mc_options_text(options, "master"),
        .admin = mc_options_text(options, "admin"),
        .metadata = mc_options_text(options, "metadata"),
        .protocol = mc_options_text(options, "protocol"),
        .device_name = mc_options_text(options, "device_name"),
        .root = mc_options_text(options, "root"),
    };
    mc_doctor_init(&doctor, &config);
    mc_doctor_run(&doctor);
    if (mc_options_bool(options, "json"))
        mc_doctor_print_json(&doctor, &text);
    else
        mc_doctor_print(&doctor, &text);
    (void)fwrite(text.data, 1, text.length, stdout);
    int code = mc_doctor_code(&doctor);
    mc_buffer_free(&text);
    mc_doctor_free(&doctor);
    return code;
}

/* The one word that is no flag: the first, or the last where it cannot be the value of the flag before it. */
static void take_peer(int *argc, char ***argv, const char **peer)
{
    char **words = *argv;
    int last = *argc - 1;
    if (last < 1)
        return;
    if (words[1][0] != '-' && words[1][0] != 0) {
        *peer = words[1];
        words[1] = words[0];
        (*argv)++;
        (*argc)--;
        return;
    }
    const char *before = words[last - 1];
    bool is_free = before[0] != '-' || strchr(before, '=') != NULL || strcmp(before, "--json") == 0;
    if (last < 2 || words[last][0] == '-' || words[last][0] == 0 || !is_free)
        return;
    *peer = words[last];
    (*argc)--;
}

int main(int argc, char **argv)
{
    struct mc_options options;
    char error[MC_OPTION_ERROR_MAX] = "";
    const char *peer = NULL;
    int code = 0;
    (void)signal(SIGPIPE, SIG_IGN);
    if (getenv("MC_LOG_LEVEL") == NULL)
        mc_log_set_level(MC_LOG_WARNING); /* what goes well is in the report */
    take_peer(&argc, &argv, &peer);
    mc_options_init(&options, table, sizeof(table) / sizeof(table[0]));
    if (mc_options_parse(&options, argc, argv, NULL, NULL, error, sizeof(error)) < 0) {
        fprintf(stderr, "mooncake_doctor: %s\n", error);
        code = 2;
    } else if (mc_options_bool(&options, "help")) {
        print_help(&options);
    } else if (mc_options_bool(&options, "version")) {
        printf("mooncake_doctor %s\n", MC_VERSION);
    } else {
        code = examine(&options, peer);
    }
    mc_options_free(&options);
    return fflush(stdout) == 0 ? code : 1;
}
