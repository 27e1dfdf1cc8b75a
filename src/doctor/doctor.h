/* What mooncake_doctor looks at: facts with a verdict each, found by checks that stand in one table (doctor.c). Text,
 * JSON and the exit code come from the same facts.
 *
 * A check is one function that looks at one thing and says what it sees. It fails nothing: what it cannot find out is a
 * fact too. Files are read below `root`, so that tests can show it any machine.
 *
 * Verdicts: FINE; NOTE, worth knowing; WARNING, works, but slower or less safely than it could; BROKEN, something that
 * was asked for does not work. */
#ifndef MC_DOCTOR_DOCTOR_H
#define MC_DOCTOR_DOCTOR_H

#include "base/bytes.h"
#include "env/socket.h"

#include <stdarg.h>

#define MC_DOCTOR_FACTS_MAX 4096u
#define MC_DOCTOR_LINE_MAX 4096u /* bytes of a line of a file */
#define MC_DOCTOR_BUILD_MAX 128u
#define MC_DOCTOR_WAIT_MS 3000u /* for each answer of another process */

enum mc_verdict { MC_VERDICT_FINE, MC_VERDICT_NOTE, MC_VERDICT_WARNING, MC_VERDICT_BROKEN, MC_VERDICTS };

struct mc_fact {
    const char *section;
    enum mc_verdict verdict;
    char *name, *value;
    char *fix; /* what to set or do; NULL: nothing */
    int error; /* errno; 0: none */
};

struct mc_doctor_config { /* texts are the caller's; "" : not asked for */
    const char *peer, *master, *admin, *metadata, *protocol, *device_name;
    const char *root; /* before every file's name; "" but in tests */
    const char *disk; /* a folder for the disk tier */
};

struct mc_doctor {
    struct mc_doctor_config config;
    const char *section; /* of the check that runs */
    struct mc_fact *facts;
    size_t count;
    size_t verdicts[MC_VERDICTS];
    size_t left_out;     /* facts beyond the limit */
    size_t device_count; /* RDMA devices with an active port */
    /* What the master says, for the checks after it. */
    char master_host[MC_ADDRESS_MAX];
    uint64_t master_epoch;
    unsigned metadata_port; /* of the master's own metadata service; 0: none, or not known */
    bool is_metadata_reached;
    char master_build[MC_DOCTOR_BUILD_MAX]; /* "": not known */
};

void mc_doctor_init(struct mc_doctor *doctor, const struct mc_doctor_config *config);
void mc_doctor_free(struct mc_doctor *doctor);
/* Every check of the table, in its order. */
void mc_doctor_run(struct mc_doctor *doctor);
/* 0, or 1 when a fact is BROKEN. */
int mc_doctor_code(const struct mc_doctor *doctor);
void mc_doctor_print(const struct mc_doctor *doctor, struct mc_buffer *out);
void mc_doctor_print_json(const struct mc_doctor *doctor, struct mc_buffer *out);

/* Every environment variable that is known, and what it does here. */
void mc_doctor_variables(bool as_json, struct mc_buffer *out);

/* ---- for the checks ---- */

/* A fact. error: errno or 0. fix: what to do about it, or NULL. */
void mc_doctor_say(struct mc_doctor *doctor, enum mc_verdict verdict, const char *name, int error, const char *fix,
                   const char *format, ...) __attribute__((format(printf, 6, 7)));
/* BROKEN when RDMA was asked for, else `otherwise`. */
enum mc_verdict mc_doctor_if_rdma(const struct mc_doctor *doctor, enum mc_verdict otherwise);
/* The first line of that file, without its end. False: it cannot be read. */
bool mc_doctor_line(const struct mc_doctor *doctor, char line[MC_DOCTOR_LINE_MAX], const char *path);
bool mc_doctor_linef(const struct mc_doctor *doctor, char line[MC_DOCTOR_LINE_MAX], const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The number in the file's first line; -1: none. "max" is INT64_MAX. */
int64_t mc_doctor_number(const struct mc_doctor *doctor, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* What follows "key:" in a file of such lines, for numbers. -1: not there. */
int64_t mc_doctor_member(const struct mc_doctor *doctor, const char *path, const char *key, int base);
/* Names in a folder that do not begin with a dot, sorted; how many. Free each and the list. */
size_t mc_doctor_folder(const struct mc_doctor *doctor, const char *path, char ***names);
void mc_doctor_free_names(char **names, size_t count);
/* "1.5 GiB". */
const char *mc_doctor_size(char text[32], uint64_t bytes);
bool mc_doctor_path(const struct mc_doctor *doctor, char path[MC_DOCTOR_LINE_MAX], const char *name);

/* Which of this machine's ports fit the devices that the peer's document names, and with which GIDs. */
void mc_doctor_pairs(struct mc_doctor *doctor, struct mc_span document);

/* What to do about an address that cannot be connected to. */
const char *mc_doctor_fix_of_connect(int error);
/* The end of a value, for something of another build than the master; "" for the same, or one that is not known. */
const char *mc_doctor_other_build(const struct mc_doctor *doctor, const char *build, char *text, size_t size);
#define MC_DOCTOR_FIX_BUILD "fine while a cluster is upgraded; else upgrade the older one (docs/versions.md)"
/* The master's list of segments: what it says of each, and whether it can be reached from here. */
void mc_doctor_segments(struct mc_doctor *doctor, struct mc_span json);
void mc_doctor_disks(struct mc_doctor *doctor, struct mc_span json);

/* ---- the checks, by file ---- */

#define MC_DOCTOR_CHECKS(X)                                                                                            \
    X("machine", system)                                                                                               \
    X("machine", processors)                                                                                           \
    X("machine", memory)                                                                                               \
    X("machine", cgroup)                                                                                               \
    X("machine", overcommit)                                                                                           \
    X("machine", huge_pages)                                                                                           \
    X("machine", numa)                                                                                                 \
    X("machine", shared_memory)                                                                                        \
    X("machine", clock)                                                                                                \
    X("limits", locked_memory)                                                                                         \
    X("limits", descriptors)                                                                                           \
    X("limits", ptrace)                                                                                                \
    X("limits", environment)                                                                                           \
    X("network", interfaces)                                                                                           \
    X("network", host_name)                                                                                            \
    X("network", address)                                                                                              \
    X("network", ports)                                                                                                \
    X("network", buffers)                                                                                              \
    X("rdma", libraries)                                                                                               \
    X("rdma", devices)                                                                                                 \
    X("rdma", opened)                                                                                                  \
    X("rdma", topology)                                                                                                \
    X("rdma", gpus)                                                                                                    \
    X("secrets", keys)                                                                                                 \
    X("secrets", tls)                                                                                                  \
    X("disk", disk)                                                                                                    \
    X("cluster", master)                                                                                               \
    X("cluster", admin)                                                                                                \
    X("cluster", metadata)                                                                                             \
    X("cluster", same_cluster)                                                                                         \
    X("peer", peer)
#define MC_DOCTOR_DECLARE(section, name) void mc_check_##name(struct mc_doctor *doctor);
MC_DOCTOR_CHECKS(MC_DOCTOR_DECLARE)
#undef MC_DOCTOR_DECLARE

#endif
