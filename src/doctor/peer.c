/* A peer, by its session or its name: found, answering, and reached by which path, or why not. */
#include "doctor/doctor.h"

#include "transfer/engine/trial.h"

#include <errno.h>

/* ---- finding it ---- */

static const char *fix_of_look(const struct mc_doctor *doctor, const struct mc_trial_peer *peer)
{
    bool has_server = doctor->config.metadata[0] != 0 && strcmp(doctor->config.metadata, "P2PHANDSHAKE") != 0;
    if (peer->code == MC_TRANSFER_ERR_METADATA)
        return "the metadata server does not know that name: has the engine been initialised with that name, the same "
               "server and the same "
               "MC_METADATA_CLUSTER_ID?";
    if (peer->code == MC_TRANSFER_ERR_INVALID_ARGUMENT)
        return "without --metadata a peer is named host:port, as its get_rpc_port() says";
    switch (peer->error) {
    case ECONNREFUSED:
        return has_server ? "its process has ended and left its name there, or is behind another address: start it "
                            "again under the same name, "
                            "or set MC_TCP_BIND_ADDRESS there"
                          : "its process has ended, or came back on another port: ask it for get_rpc_port()";
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case ENETUNREACH:
        return "a firewall or a route: open MC_MIN_RPC_PORT to MC_MAX_RPC_PORT (15000 to 17000) between the two; on "
               "the peer "
               "MC_TCP_BIND_ADDRESS chooses the address that is told";
    default:
        break;
    }
    return peer->code == MC_TRANSFER_ERR_SOCKET && peer->error == 0
               ? "what listens there does not answer as an engine does: is it the port of handshakes (get_rpc_port), "
                 "and is the process "
                 "not stopped?"
               : "is this an engine's port of handshakes (get_rpc_port)?";
}

static void say_peer(struct mc_doctor *doctor, const struct mc_trial_peer *peer)
{
    mc_doctor_say(doctor, MC_VERDICT_FINE, "handshake", 0, NULL, "%s answers", peer->handshake_address);
    mc_doctor_say(doctor, MC_VERDICT_FINE, "engine", 0, NULL, "%s, %s",
                  peer->is_ours ? "of this build" : "the original, or another",
                  peer->is_same_machine ? "on this machine"
                  : peer->is_ours       ? "on another machine"
                                        : "where it runs is not known");
    if (peer->is_loopback && peer->is_ours && !peer->is_same_machine)
        mc_doctor_say(doctor, MC_VERDICT_BROKEN, "its address", 0,
                      "set MC_TCP_BIND_ADDRESS on the peer to an address that this machine reaches",
                      "it tells %s, which means this machine here", peer->data_host);
    mc_doctor_say(doctor, peer->buffer_count == 0 ? MC_VERDICT_NOTE : MC_VERDICT_FINE, "registered memory", 0,
                  peer->buffer_count == 0
                      ? "paths are tried by connecting alone; register memory there to have them tried by reading"
                      : NULL,
                  "%zu ranges", peer->buffer_count);
}

/* ---- paths ---- */

static const char *fix_of_host(const struct mc_trial *trial)
{
    if (strcmp(trial->step, "connecting to its socket") == 0)
        return "the two are in different network namespaces (containers): share it (docker --network, hostNetwork), or "
               "stay with tcp";
    if (strcmp(trial->step, "being its user") == 0)
        return "the engine belongs to another user: run both, and this command, as one user";
    switch (trial->error) {
    case EPERM:
    case EACCES:
        return "MC_SAME_HOST=ptrace for the engine there with kernel.yama.ptrace_scope=1, or 0 on this machine; in "
               "containers --cap-add SYS_PTRACE, and the same user namespace; memory that it allocates with its engine "
               "is mapped without";
    case ESRCH:
        return "its process is not visible from here: share the pid namespace (docker --pid, hostPID, "
               "shareProcessNamespace)";
    case ENOSYS:
        return "a seccomp filter forbids process_vm_readv: --security-opt seccomp=unconfined, or --cap-add SYS_PTRACE";
    case EFAULT:
        return "memory that it registered is not there any more: unregister before memory is freed";
    default:
        return "does the engine run under the same user, and are MC_FORCE_TCP and MC_SAME_HOST unset there?";
    }
}

static const char *fix_of_tcp(const struct mc_trial *trial)
{
    switch (trial->error) {
    case ECONNREFUSED:
        return "it answers handshakes but not on its data port: does it tell the right address (MC_TCP_BIND_ADDRESS "
               "there)?";
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case ENETUNREACH:
        return "a firewall lets the port of handshakes through, but not this one: open all of MC_MIN_RPC_PORT to "
               "MC_MAX_RPC_PORT";
    default:
        return "look at the peer's log: it says why it refuses";
    }
}

static void say_trial(struct mc_doctor *doctor, const char *name, const struct mc_trial *trial, enum mc_verdict failure,
                      const char *fix)
{
    if (trial->result == MC_TRIAL_NOT_HERE)
        mc_doctor_say(doctor, MC_VERDICT_FINE, name, 0, NULL, "not possible: %s", trial->step);
    else if (trial->result == MC_TRIAL_FAILS)
        mc_doctor_say(doctor, failure, name, trial->error, fix, "fails at %s", trial->step);
    else if (!trial->has_read)
        mc_doctor_say(doctor, MC_VERDICT_FINE, name, 0, NULL,
                      "works, as far as it can be tried without registered memory");
    else if (trial->large_bytes == 0)
        mc_doctor_say(doctor, MC_VERDICT_FINE, name, 0, NULL, "works: %llu bytes in %.1f us",
                      (unsigned long long)trial->small_bytes, (double)trial->median_ns / 1e3);
    else
        mc_doctor_say(doctor, MC_VERDICT_FINE, name, 0, NULL, "works: %llu bytes in %.1f us, %.1f GB/s by %llu MiB",
                      (unsigned long long)trial->small_bytes, (double)trial->median_ns / 1e3, trial->large_gb_per_s,
                      (unsigned long long)(trial->large_bytes >> 20));
}

#define FIX_OF_RDMA                                                                                                    \
    "the section rdma says which devices and GIDs fit; MC_GID_INDEX chooses another row, and the network must carry "  \
    "RoCE between the two"

static void try_paths(struct mc_doctor *doctor, struct mc_trial_session *session)
{
    static const char *const names[] = {"path local", "path host", "path tcp", "path rdma"};
    static const char *const used_names[] = {"local: a copy", "host: process_vm_readv and writev, or a map", "tcp",
                                             "rdma"};
    _Static_assert(sizeof(names) / sizeof(names[0]) == MC_TRANSFER_PATHS, "a name each");
    struct mc_trial trial;
    bool works = false;
    for (int path = 0; path < MC_TRANSFER_PATHS; path++) {
        mc_trial_path(session, path, &trial);
        works |= trial.result == MC_TRIAL_WORKS;
        bool is_last = path == MC_TRANSFER_PATH_TCP;
        if (path == MC_TRANSFER_PATH_RDMA) {
            say_trial(doctor, names[path], &trial, mc_doctor_if_rdma(doctor, MC_VERDICT_WARNING), FIX_OF_RDMA);
            continue;
        }
        say_trial(doctor, names[path], &trial,
                  !is_last ? MC_VERDICT_WARNING
                  : works  ? MC_VERDICT_WARNING
                           : MC_VERDICT_BROKEN,
                  path == MC_TRANSFER_PATH_HOST ? fix_of_host(&trial) : fix_of_tcp(&trial));
    }
    int used = mc_trial_used(session);
    if (!works)
        mc_doctor_say(doctor, MC_VERDICT_BROKEN, "path in use", 0, "the lines above say what stops each", "none");
    else if (used >= 0)
        mc_doctor_say(doctor, MC_VERDICT_FINE, "path in use", 0, NULL, "%s", used_names[used]);
    else
        mc_doctor_say(doctor, MC_VERDICT_NOTE, "path in use", 0, NULL, "not known: nothing could be read");
}

void mc_check_peer(struct mc_doctor *doctor)
{
    const char *target = doctor->config.peer, *server = doctor->config.metadata;
    struct mc_trial_session *session = NULL;
    struct mc_trial_peer peer;
    if (target[0] == 0) {
        mc_doctor_say(doctor, MC_VERDICT_FINE, "peer", 0, NULL, "not asked for (host:port, or a name with --metadata)");
        return;
    }
    if (server[0] != 0 && strcmp(server, "P2PHANDSHAKE") != 0 && !doctor->is_metadata_reached) {
        mc_doctor_say(doctor, MC_VERDICT_BROKEN, "peer", 0, NULL, "%s: not tried, as the metadata server does not work",
                      target);
        return;
    }
    int rc = mc_trial_open(server[0] == 0 ? "P2PHANDSHAKE" : server, doctor->config.device_name, &session);
    if (rc < 0) {
        mc_doctor_say(doctor, MC_VERDICT_BROKEN, "peer", 0, "the facts above say why",
                      "no engine can be opened here: %s", mc_transfer_error_text(rc));
        return;
    }
    rc = mc_trial_look(session, target, &peer);
    if (rc < 0) {
        mc_doctor_say(doctor, MC_VERDICT_BROKEN, "peer", peer.error, fix_of_look(doctor, &peer), "%s%s%s: %s fails: %s",
                      target, peer.handshake_address[0] == 0 ? "" : " at ", peer.handshake_address, peer.step,
                      mc_transfer_error_text(rc));
    } else {
        say_peer(doctor, &peer);
        mc_doctor_pairs(doctor, mc_trial_document(session));
        try_paths(doctor, session);
    }
    mc_trial_close(session);
}
