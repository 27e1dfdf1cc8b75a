/* mooncake_doctor: parse, run, print. */
#include "base/error.h"
#include "base/option_rows.h"
#include "base/variables.h"
#include "doctor/doctor.h"
#include "env/flags.h"
#include "env/keys.h"
#include "env/log.h"
#include "env/unread.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

/* clang-format off */
static const struct mc_option table[] = {
    ROW("help", BOOL, "false", "shows this text"),
    ALIAS("h", "help"),
    VERSION(),
    ROW("peer", TEXT, "", "an engine to reach: host:port of its handshakes, or its name at the metadata server; may be given without --peer"),
    ROW("master", TEXT, "", "the master to ask: host:port, etcd://host:port or k8s://namespace/lease"),
    ROW("admin", TEXT, "", "its metrics_port, host:port, when that is not 9003 on the same host"),
    ROW("metadata", TEXT, "", "the metadata server: http://host:port/metadata, as engines are given it"),
    ROW("auth_file", TEXT, "", "file of keys, of which the first is shown to master, metadata server and peer; empty: $MC_AUTH_FILE, else $MC_AUTH_TOKEN"),
    TLS_OF_ALL, TLS_OF_CALLS,
    ROW("protocol", TEXT, "tcp", "rdma: it is broken when RDMA cannot be used", CHOICES("tcp|rdma")),
    ROW("device_name", TEXT, "", "RDMA devices that may be used, separated by commas"),
    ROW("disk", TEXT, "", "a folder for the disk tier: is it fit, and how fast? At most 64 MiB are written there, and no file stays"),
    ROW("json", BOOL, "false", "the same facts as JSON"),
    ROW("variables", BOOL, "false", "prints every environment variable that is known, and what it does here, and looks at nothing"),
    ROW("root", TEXT, "", "put before /proc, /sys and /dev: looks at a copy of another machine's files"),
};
/* clang-format on */

static const char help_head[] =
    "mooncake_doctor: looks whether this machine, a disk, a master, a metadata server and a peer are fit, "
    "and says what to set where they are not.\n"
    "Usage: mooncake_doctor [PEER] [--master host:port] [--metadata URL] [--disk PATH] [--json]\n"
    "Exit code: 0; 1 when something that was asked for does not work; 2 for a bad option.\n";

static int take_keys(const struct mc_options *options, char *error, size_t error_size)
{
    mc_keys_use(mc_options_text(options, "auth_file"));
    int rc = mc_keys_check(error, error_size);
    if (rc == 0 && mc_flags_use(options, error, error_size) < 0)
        rc = MC_ERR_NO_MEMORY;
    return rc < 0 ? rc : mc_secure_check(false, error, error_size);
}

static int examine(const struct mc_options *options, const char *peer, struct mc_buffer *text)
{
    struct mc_doctor doctor;
    struct mc_doctor_config config = {
        .peer = peer != NULL ? peer : mc_options_text(options, "peer"),
        .master = mc_options_text(options, "master"),
        .admin = mc_options_text(options, "admin"),
        .metadata = mc_options_text(options, "metadata"),
        .protocol = mc_options_text(options, "protocol"),
        .device_name = mc_options_text(options, "device_name"),
        .root = mc_options_text(options, "root"),
        .disk = mc_options_text(options, "disk"),
    };
    mc_unread_told(); /* the report says it */
    mc_doctor_init(&doctor, &config);
    mc_doctor_run(&doctor);
    if (mc_options_bool(options, "json"))
        mc_doctor_print_json(&doctor, text);
    else
        mc_doctor_print(&doctor, text);
    int code = mc_doctor_code(&doctor);
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
    struct mc_buffer text = {0};
    char error[MC_OPTION_ERROR_MAX] = "";
    const char *peer = NULL;
    int code = 0;
    (void)signal(SIGPIPE, SIG_IGN);
    if (mc_variable(MC_LOG_LEVEL) == NULL)
        mc_log_set_level(MC_LOG_WARNING); /* what goes well is in the report */
    take_peer(&argc, &argv, &peer);
    mc_options_init(&options, table, sizeof(table) / sizeof(table[0]));
    if (mc_options_parse(&options, argc, argv, NULL, NULL, error, sizeof(error)) < 0) {
        fprintf(stderr, "mooncake_doctor: %s\n", error);
        code = 2;
    } else if (mc_options_bool(&options, "variables")) {
        mc_doctor_variables(mc_options_bool(&options, "json"), &text);
    } else if (!mc_options_answer(&options, "mooncake_doctor", help_head, &text)) {
        code = take_keys(&options, error, sizeof(error)) < 0 ? 2 : examine(&options, peer, &text);
        if (code == 2)
            fprintf(stderr, "mooncake_doctor: %s\n", error);
    }
    if (text.length > 0)                                 /* else there are no bytes to point to */
        (void)fwrite(text.data, 1, text.length, stdout); /* fflush says whether it was written */
    mc_buffer_free(&text);
    mc_options_free(&options);
    return fflush(stdout) == 0 ? code : 1;
}
