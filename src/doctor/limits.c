/* What this process may do: memory it may lock, descriptors, other processes' memory; and what the environment says. */
#include "doctor/doctor.h"

#include "base/variables.h"
#include "env/json.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>

#define CAP_IPC_LOCK_BIT 14
#define CAP_SYS_PTRACE_BIT 19
#define DESCRIPTORS_WANTED 65536u

static bool has_capability(const struct mc_doctor *doctor, unsigned bit)
{
    int64_t effective = mc_doctor_member(doctor, "/proc/self/status", "CapEff", 16);
    return effective >= 0 && ((uint64_t)effective >> bit & 1) != 0;
}

void mc_check_locked_memory(struct mc_doctor *doctor)
{
    struct rlimit limit;
    char text[32], **names;
    size_t devices = mc_doctor_folder(doctor, "/sys/class/infiniband", &names);
    mc_doctor_free_names(names, devices);
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0)
        return;
    if (limit.rlim_cur == RLIM_INFINITY || has_capability(doctor, CAP_IPC_LOCK_BIT)) {
        mc_doctor_say(doctor, MC_VERDICT_FINE, "locked memory", 0, NULL, "%s",
                      limit.rlim_cur == RLIM_INFINITY ? "no limit" : "no limit (CAP_IPC_LOCK)");
        return;
    }
    enum mc_verdict verdict = mc_doctor_if_rdma(doctor, devices > 0 ? MC_VERDICT_WARNING : MC_VERDICT_NOTE);
    mc_doctor_say(
        doctor, verdict, "locked memory", 0,
        "RDMA can register no more than this: ulimit -l unlimited; docker --ulimit memlock=-1; LimitMEMLOCK=infinity; "
        "or CAP_IPC_LOCK",
        "limit %s", mc_doctor_size(text, limit.rlim_cur));
}

void mc_check_descriptors(struct mc_doctor *doctor)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return;
    bool is_small = limit.rlim_cur < DESCRIPTORS_WANTED;
    mc_doctor_say(
        doctor,
        limit.rlim_cur < 1024 ? MC_VERDICT_WARNING
        : is_small            ? MC_VERDICT_NOTE
                              : MC_VERDICT_FINE,
        "open files", 0,
        is_small
            ? "a master of many members, or an engine of many peers, needs more: ulimit -n 65536; LimitNOFILE=65536"
            : NULL,
        "limit %" PRIu64 ", at most %" PRIu64, (uint64_t)limit.rlim_cur, (uint64_t)limit.rlim_max);
}

/* ---- other processes' memory ---- */

static void say_scope(struct mc_doctor *doctor)
{
    int64_t scope = mc_doctor_number(doctor, "/proc/sys/kernel/yama/ptrace_scope");
    bool is_capable = has_capability(doctor, CAP_SYS_PTRACE_BIT);
    if (scope < 0)
        mc_doctor_say(doctor, MC_VERDICT_FINE, "ptrace scope", 0, NULL, "not restricted (no Yama)");
    else if (scope == 0 || (scope == 1 && is_capable))
        mc_doctor_say(doctor, MC_VERDICT_FINE, "ptrace scope", 0, NULL, "%" PRId64 ": %s", scope,
                      scope == 0 ? "processes of one user reach each other" : "this process has CAP_SYS_PTRACE");
    else if (scope == 1)
        mc_doctor_say(doctor, MC_VERDICT_WARNING, "ptrace scope", 0,
                      "MC_SAME_HOST=ptrace for engines, which lets all processes of their user trace them; or memory "
                      "that is allocated with the engine; or kernel.yama.ptrace_scope=0",
                      "1: engines of one machine map what the other has allocated with its engine, and use tcp for "
                      "other memory");
    else
        mc_doctor_say(doctor, scope == 2 && is_capable ? MC_VERDICT_FINE : MC_VERDICT_WARNING, "ptrace scope", 0,
                      scope == 2 && is_capable ? NULL
                      : scope == 2
                          ? "sysctl kernel.yama.ptrace_scope=1, or CAP_SYS_PTRACE; else engines of one machine use tcp "
                            "for memory that they did not allocate"
                          : "nobody may reach into a process: kernel.yama.ptrace_scope=1 at the next boot; until then "
                            "engines of one machine use tcp for memory that they did not allocate",
                      "%" PRId64 "%s", scope, scope == 2 && is_capable ? ": this process has CAP_SYS_PTRACE" : "");
}

void mc_check_ptrace(struct mc_doctor *doctor)
{
    char from = 'x', to = 0;
    struct iovec near = {&to, 1}, far = {&from, 1};
    say_scope(doctor);
    bool is_allowed = process_vm_readv(getpid(), &near, 1, &far, 1, 0) == 1 && to == from;
    mc_doctor_say(doctor, is_allowed ? MC_VERDICT_FINE : MC_VERDICT_WARNING, "process_vm_readv", is_allowed ? 0 : errno,
                  is_allowed ? NULL
                             : "a seccomp filter forbids it: docker --cap-add SYS_PTRACE or --security-opt "
                               "seccomp=unconfined; else engines of "
                               "one machine use tcp",
                  is_allowed ? "allowed" : "refused, even into this process itself");
}

/* ---- environment ---- */

extern char **environ;

/* What there is to change in a variable that is read. */
static const char *fix_of(const char *name, const char *value)
{
    bool is_off = strcmp(value, "0") == 0;
    return strcmp(name, "MC_FORCE_TCP") == 0             ? "whatever its value, only tcp is used: unset it"
           : strcmp(name, "MC_SAME_HOST") == 0 && is_off ? "engines of one machine use tcp: unset it"
           : strcmp(name, "MC_USE_IPV6") == 0 && is_off  ? "whatever its value, IPv6 is used: unset it"
                                                         : NULL;
}

static void say_variable(struct mc_doctor *doctor, const char *name, const char *value)
{
    const struct mc_variable_row *row = mc_variable_find(name);
    const char *nearest = row == NULL ? mc_variable_nearest(name) : NULL;
    bool is_secret =
        strstr(name, "PASSWORD") != NULL || strstr(name, "TOKEN") != NULL || strstr(name, "SECRET") != NULL;
    const char *shown = is_secret ? "(not shown)" : value;
    if (row == NULL) {
        char fix[128];
        snprintf(fix, sizeof(fix), "unset it, or did you mean %s?", nearest == NULL ? "" : nearest);
        mc_doctor_say(doctor, MC_VERDICT_WARNING, name, 0, nearest == NULL ? "unset it" : fix,
                      "set, but not known and read by nobody");
    } else if (row->use == MC_VARIABLE_OTHERS) {
        mc_doctor_say(doctor, MC_VERDICT_FINE, name, 0, NULL, "%s (read by %s)", shown, row->text);
    } else if (row->use != MC_VARIABLE_READ) {
        mc_doctor_say(doctor, row->use == MC_VARIABLE_ABSENT ? MC_VERDICT_WARNING : MC_VERDICT_NOTE, name, 0, row->text,
                      "%s: changes nothing here", shown);
    } else {
        const char *fix = fix_of(name, value);
        mc_doctor_say(doctor, fix != NULL ? MC_VERDICT_WARNING : MC_VERDICT_FINE, name, 0, fix, "%s", shown);
    }
}

void mc_check_environment(struct mc_doctor *doctor)
{
    size_t count = 0;
    for (char **one = environ; *one != NULL; one++) {
        char name[128];
        const char *equals = strchr(*one, '=');
        if (equals == NULL || (size_t)(equals - *one) >= sizeof(name))
            continue;
        snprintf(name, sizeof(name), "%.*s", (int)(equals - *one), *one);
        if (!mc_variable_is_setting(name, equals + 1))
            continue;
        say_variable(doctor, name, equals + 1);
        count++;
    }
    if (count == 0)
        mc_doctor_say(doctor, MC_VERDICT_FINE, "environment", 0, NULL, "no MC_ or MOONCAKE_ variable is set");
}

static const char *const uses[] = {
    [MC_VARIABLE_READ] = "read",
    [MC_VARIABLE_OTHERS] = "others",
    [MC_VARIABLE_NEEDLESS] = "needless",
    [MC_VARIABLE_ABSENT] = "absent",
};

void mc_doctor_variables(bool as_json, struct mc_buffer *out)
{
    static const char *const words[] = {
        [MC_VARIABLE_READ] = "read by ",
        [MC_VARIABLE_OTHERS] = "read by ",
        [MC_VARIABLE_NEEDLESS] = "changes nothing here: ",
        [MC_VARIABLE_ABSENT] = "changes nothing here: ",
    };
    struct mc_json_writer json = {.out = out, .indent = 2};
    if (as_json)
        mc_json_begin(&json, NULL, '[');
    for (size_t i = 0; mc_variable_row(i) != NULL; i++) {
        const struct mc_variable_row *row = mc_variable_row(i);
        if (!as_json) {
            mc_buffer_printf(out, "%s%s  %s%s\n", row->name, row->is_family ? "*" : "", words[row->use], row->text);
            continue;
        }
        mc_json_begin(&json, NULL, '{');
        mc_json_add_text(&json, "name", row->name);
        mc_json_add_text(&json, "use", uses[row->use]);
        mc_json_add_text(&json, "text", row->text);
        mc_json_add_bool(&json, "is_family", row->is_family);
        mc_json_end(&json, '}');
    }
    if (as_json) {
        mc_json_end(&json, ']');
        mc_buffer_put_u8(out, '\n');
    }
}
