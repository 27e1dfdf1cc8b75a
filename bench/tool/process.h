/* Child processes and the cluster that they form. Every child is in a process group of its own (so that Ctrl-C reaches
 * only the parent, which then ends them in order), is ended by pid, and is killed by the kernel when the parent dies
 * without having done so. */
#ifndef MC_TOOL_PROCESS_H
#define MC_TOOL_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define MC_PROCESS_ARGUMENTS_MAX 24
#define MC_CLUSTER_NODES_MAX 64
#define MC_ADDRESS_SIZE 256

struct mc_process { /* pid 0 = none */
    pid_t pid;
    int log; /* what it writes to stdout and stderr: a memfd, or a file in the directory of --logs */
    bool ended;
    int status; /* of waitpid, once ended */
    char name[32];
};

/* Starts argv[0] (searched on PATH when it has no slash). keep_fd: a descriptor that the child inherits under the same
 * number, or -1. 0 or -1 with a line on stderr. */
int mc_process_start(struct mc_process *process, const char *name, char *const *argv, const char *log_directory,
                     int keep_fd);
/* True while it runs; notes its end. */
bool mc_process_running(struct mc_process *process);
/* Sends SIGTERM to those that run. */
void mc_process_ask_to_end(struct mc_process *process);
/* Waits up to grace_ms after ask_to_end, then kills. Closes the log. */
void mc_process_reap(struct mc_process *process, uint64_t grace_ms);
/* Waits for a line of the log, and copies what follows `mark` up to its end; false when the process ends, the time is
 * over or the user has had enough. */
bool mc_process_await(struct mc_process *process, const char *mark, char *text, size_t size, uint64_t deadline_ms);
/* The last lines of the log, to stderr. */
void mc_process_log_show(const struct mc_process *process);

/* Set by SIGINT, SIGTERM and SIGHUP once mc_interrupt_catch was called; a second signal ends the process at once (and
 * the kernel its children). */
extern volatile int mc_interrupted;
void mc_interrupt_catch(void);

/* Bytes of memory that a process has now; 0 where that cannot be known. */
uint64_t mc_process_resident(pid_t pid);

/* Full path of this executable; "" where it cannot be known. */
char *mc_self_path(void);

struct mc_cluster_config {
    const char *master_binary; /* NULL: beside this executable, else on PATH */
    const char *log_directory; /* NULL: memory */
    const char *lease_ttl;     /* NULL: the master's default */
    const char *paths;         /* NULL: all */
    uint64_t capacity;         /* of all nodes together */
    const uint64_t *parts;     /* of the capacity, for each node; NULL: all the same */
    unsigned node_count;
};

struct mc_cluster { /* zeroed = nothing runs */
    struct mc_process master;
    struct mc_process nodes[MC_CLUSTER_NODES_MAX];
    unsigned node_count;
    char master_address[MC_ADDRESS_SIZE];
    char metrics_address[MC_ADDRESS_SIZE]; /* "" = unknown */
};

/* Starts a master and its store nodes on this machine and waits until their memory is populated. 0 or -1 with the
 * reason on stderr; stop it in either case. */
int mc_cluster_start(struct mc_cluster *cluster, const struct mc_cluster_config *config);
/* The name of a member that has ended, or NULL while all run. */
const char *mc_cluster_lost(struct mc_cluster *cluster);
void mc_cluster_stop(struct mc_cluster *cluster);
/* One figure of the master's metrics page, e.g. "master_evicted_key_count"; false when it cannot be had. */
bool mc_cluster_metric(const char *metrics_address, const char *name, double *value);

#endif
