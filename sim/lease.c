/* A simulated Lease of Kubernetes: what the API server answers about the one object by which elections run with --lease
 * (etcd.c carries questions and answers, and loses them). An object is written only upon its newest version. */
#include "held.h"
#include "members.h"

#include "store/master/election.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

static json_t *lease; /* NULL: there is none */
static uint64_t version;

void sim_lease_reset(void)
{
    json_decref(lease);
    lease = NULL;
    version = 0;
}

static void stamp(void)
{
    (void)json_object_set_new(json_object_get(lease, "metadata"), "resourceVersion",
                              json_sprintf("%llu", (unsigned long long)++version));
}

/* Would every master's clock give a later epoch than the claim's? It runs ahead of clocks with each leadership. */
static bool is_past(void)
{
    const json_t *notes = json_object_get(json_object_get(lease, "metadata"), "annotations");
    const char *claim = json_string_value(json_object_get(notes, "mooncake.io/claim"));
    unsigned long long epoch = 0;
    bool is_good = (sim_plan->faults & (1u << SIM_FAULT_clock | 1u << SIM_FAULT_wall_step | 1u << SIM_FAULT_skew)) == 0;
    if (claim == NULL || sscanf(claim, "%19llu", &epoch) != 1)
        epoch = 0;
    for (uint32_t i = 0; i <= sim_plan->standbys; i++) {
        uint32_t place = i == 0 ? SIM_PLACE_MASTER : SIM_PLACE_STANDBY + i - 1;
        int64_t now_ns = sim_wall_ns(&sim_processes[place]), second_ns = 1000 * (int64_t)SIM_MS;
        struct timespec now = {.tv_sec = now_ns / second_ns, .tv_nsec = now_ns % second_ns};
        is_good = is_good && epoch < mc_election_epoch_of(&now);
    }
    return is_good;
}

/* Somebody deletes the Lease, or only takes the leader's name away. With the Lease goes the claim, and with it an epoch
 * that clocks have not reached (docs): there it stays. */
void sim_lease_forget(void)
{
    if (lease == NULL)
        return;
    if (sim_once_in(SIM_ELECTION, 2) && is_past()) {
        sim_say("and the Lease with it");
        json_decref(lease);
        lease = NULL;
        return;
    }
    (void)json_object_set_new(json_object_get(lease, "spec"), "holderIdentity", json_string(""));
    stamp();
}

static void on_forget(void *argument)
{
    (void)argument;
    if (sim_cluster.is_calm)
        return;
    oracle_fault(true);
    sim_say("somebody deletes the view just after it was claimed");
    sim_lease_forget();
}

/* Who has just begun to lead may lose the Lease before any standby has seen it. */
static void haste(const json_t *body)
{
    const char *holder = json_string_value(json_object_get(json_object_get(body, "spec"), "holderIdentity"));
    const json_t *before = json_object_get(json_object_get(lease, "spec"), "holderIdentity");
    bool begins = holder != NULL && holder[0] != 0 &&
                  (json_string_value(before) == NULL || strcmp(json_string_value(before), holder) != 0);
    if (begins && !sim_cluster.is_calm && sim_once_in(SIM_ELECTION, 4))
        sim_at(sim_now_ns + sim_below(SIM_ELECTION, sim_once_in(SIM_ELECTION, 2) ? 4 : 300) * SIM_MS, on_forget, NULL);
}

json_t *sim_lease_answer(const char *method, const json_t *body, bool is_full, int *status)
{
    bool reads = strcmp(method, "GET") == 0, creates = strcmp(method, "POST") == 0;
    const json_t *given = json_object_get(json_object_get(body, "metadata"), "resourceVersion"),
                 *stands = json_object_get(json_object_get(lease, "metadata"), "resourceVersion");
    *status = !reads && is_full                                  ? 429
              : creates && lease != NULL                         ? 409
              : !creates && lease == NULL                        ? 404
              : !reads && !creates && !json_equal(given, stands) ? 409
                                                                 : 200;
    if (*status == 200 && !reads) {
        haste(body);
        json_decref(lease);
        lease = json_deep_copy(body);
        stamp();
    }
    return *status == 200 ? json_deep_copy(lease) : json_pack("{s:s}", "kind", "Status");
}
