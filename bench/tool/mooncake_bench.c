/* mooncake_bench: replays traces, measures the machine, its disks, the store and the transfer engine. */
#include "tool/bench.h"

#include "env/unread.h"
#include "mooncake.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help; /* NULL: not for people */
} commands[] = {
    {"replay", mc_bench_replay, "replays a trace of inference requests on a cluster and checks every byte"},
    {"node", mc_bench_node, "lends memory to a cluster"},
    {"work", mc_bench_work, "times single operations of the store"},
    {"engine", mc_bench_engine, "measures the transfer engine between two processes"},
    {"disk", mc_bench_disk, "measures a disk through the queue that the disk tier uses"},
    {"policy", mc_bench_policy, "compares what the store may evict first, by the hits on a trace"},
    {"raw", mc_bench_raw, "measures what this machine can do at all: copies, loopback TCP"},
    {"worker", mc_bench_worker, NULL},
};

static void help(FILE *out)
{
    fprintf(out, "usage: mooncake_bench COMMAND [options]\n\n");
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        if (commands[i].help != NULL)
            fprintf(out, "  %-8s %s\n", commands[i].name, commands[i].help);
    fprintf(out, "\nmooncake_bench COMMAND --help tells the options.\n");
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    if (strcmp(name, "--version") == 0) {
        printf("mooncake_bench %s\n", mc_version());
        return MC_BENCH_OK;
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        help(stdout);
        return MC_BENCH_OK;
    }
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        if (strcmp(name, commands[i].name) == 0) {
            if (commands[i].help == NULL)
                mc_unread_told(); /* by the process that started this one */
            mc_unread_tell();
            return commands[i].run(argc - 1, argv + 1);
        }
    if (argc > 1)
        fprintf(stderr, "mooncake_bench: no command \"%s\"\n\n", name);
    help(stderr);
    return MC_BENCH_USAGE;
}
