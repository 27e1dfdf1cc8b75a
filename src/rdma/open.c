/* All devices of this machine: which a filter lets in, opened and closed, told of, counted. */
#include "rdma/device.h"
#include "rdma/link_text.h"
#include "rdma/setup.h"

#include "env/log.h"
#include "env/thread.h"

#include <stdio.h>
#include <stdlib.h>

#define GRACE_NS 250000000ull

#define SEPARATORS ", " /* users write "a, b" also */

/* Is the name in the list "a,b"? */
static bool is_listed(const char *list, const char *name)
{
    size_t length = strlen(name);
    for (const char *at = list; *at != 0;) {
        size_t word = strcspn(at, SEPARATORS);
        if (word == length && strncmp(at, name, word) == 0)
            return true;
        at += word + (at[word] != 0);
    }
    return false;
}

/* Every name of the filter is a device. */
static bool is_filter_met(const char *filter, const struct mc_verbs *verbs, struct ibv_device **list, int count)
{
    for (const char *at = filter; *at != 0;) {
        size_t word = strcspn(at, SEPARATORS);
        bool is_found = word == 0;
        for (int i = 0; i < count && !is_found; i++) {
            const char *name = verbs->get_device_name(list[i]);
            is_found = strlen(name) == word && strncmp(at, name, word) == 0;
        }
        if (!is_found) {
            mc_log(ERROR, "no RDMA device is called %.*s; ibv_devices lists them", (int)word, at);
            return false;
        }
        at += word + (at[word] != 0);
    }
    return true;
}

static int rdma_init(struct mc_rdma *rdma, const struct mc_rdma_options *options)
{
    memset(rdma, 0, sizeof(*rdma));
    rdma->verbs = options->verbs != NULL ? options->verbs : mc_verbs_open();
    rdma->options = *options;
    rdma->stop_fd = -1;
    if (options->settings != NULL)
        rdma->settings = *options->settings;
    else
        mc_rdma_settings_read(&rdma->settings);
    mc_monitor_init(&rdma->lock, &rdma->unvisited);
    pthread_mutex_init(&rdma->wait_lock, NULL);
    mc_rdma_setup_open(rdma);
    rdma->grace_ns = GRACE_NS;
    return rdma->verbs != NULL ? 0 : MC_ERR_UNAVAILABLE_IN_CURRENT_MODE;
}

static int open_devices(struct mc_rdma *rdma, const char *filter)
{
    int count = 0, rc = 0;
    struct ibv_device **list = rdma->verbs->get_device_list(&count);
    if (list == NULL)
        return MC_ERR_UNAVAILABLE_IN_CURRENT_MODE;
    if (count > 0 && !is_filter_met(filter, rdma->verbs, list, count))
        rc = MC_ERR_INVALID_PARAMS;
    bool is_any_up = false;
    for (int i = 0; rc == 0 && i < count && rdma->device_count < MC_RDMA_DEVICES_MAX; i++) {
        struct mc_rdma_device *device = &rdma->devices[rdma->device_count];
        const char *name = rdma->verbs->get_device_name(list[i]);
        bool is_asked_for = is_listed(filter, name) || rdma->has_matrix;
        if ((filter[0] != 0 && !is_listed(filter, name)) || !mc_rdma_near_allows(rdma, name))
            continue;
        if (mc_rdma_device_open(rdma, device, list[i], is_asked_for) != 0) {
            mc_log(INFO, "RDMA device %s is not used: %s", device->name, device->reason);
            mc_rdma_device_close(device);
            continue;
        }
        device->number = rdma->device_count++;
        is_any_up |= device->is_active;
        mc_log(INFO, "RDMA device %s: %s", device->name, device->gid_reason);
    }
    rdma->verbs->free_device_list(list);
    return rc != 0 || is_any_up ? rc : MC_ERR_UNAVAILABLE_IN_CURRENT_MODE;
}

static void close_devices(struct mc_rdma *rdma)
{
    free(rdma->topology);
    while (rdma->device_count > 0)
        mc_rdma_device_close(&rdma->devices[--rdma->device_count]);
    mc_monitor_destroy(&rdma->lock, &rdma->unvisited);
    pthread_mutex_destroy(&rdma->wait_lock);
    mc_rdma_setup_close(rdma);
}

int mc_rdma_open(const struct mc_rdma_options *options, struct mc_rdma **rdma)
{
    struct mc_rdma *made = malloc(sizeof(*made));
    if (made == NULL)
        return MC_ERR_NO_MEMORY;
    const char *filter = options->filter == NULL ? "" : options->filter;
    int rc = rdma_init(made, options);
    if (rc == 0)
        rc = mc_rdma_near_open(made, filter, options->matrix);
    if (rc == 0)
        rc = open_devices(made, filter);
    if (rc == 0)
        mc_rdma_near_find(made);
    if (rc == 0)
        rc = mc_rdma_watch_start(made);
    if (rc == 0) {
        *rdma = made;
        return 0;
    }
    close_devices(made);
    free(made);
    return rc;
}

void mc_rdma_close(struct mc_rdma *rdma)
{
    if (rdma == NULL)
        return;
    mc_assert(rdma->serving_count == 0);
    mc_rdma_setup_stop(rdma);
    mc_rdma_watch_stop(rdma);
    close_devices(rdma);
    free(rdma);
}

uint32_t mc_rdma_device_count(const struct mc_rdma *rdma)
{
    return rdma->device_count;
}

void mc_rdma_device_info(const struct mc_rdma *rdma, uint32_t device, struct mc_rdma_device_info *info)
{
    mc_assert(device < rdma->device_count);
    mc_rdma_device_describe((struct mc_rdma_device *)&rdma->devices[device], info); /* its lock changes, nothing else */
}

int mc_rdma_scan(const struct mc_rdma_options *options, struct mc_rdma_device_info *infos, size_t capacity)
{
    int count = 0, found = 0;
    struct mc_rdma *rdma = malloc(sizeof(*rdma));
    if (rdma == NULL)
        return MC_ERR_NO_MEMORY;
    struct ibv_device **list = rdma_init(rdma, options) == 0 ? rdma->verbs->get_device_list(&found) : NULL;
    for (int i = 0; list != NULL && i < found && (size_t)count < capacity; i++) {
        (void)mc_rdma_device_open(rdma, &rdma->devices[0], list[i], false); /* its reason is what is wanted */
        mc_rdma_device_describe(&rdma->devices[0], &infos[count++]);
        mc_rdma_device_close(&rdma->devices[0]);
    }
    if (list != NULL)
        rdma->verbs->free_device_list(list);
    close_devices(rdma);
    free(rdma);
    return count;
}

void mc_rdma_device_load(const struct mc_rdma *rdma, uint32_t device, uint64_t *under_way_bytes, uint64_t *moved_bytes)
{
    mc_assert(device < rdma->device_count);
    *under_way_bytes = rdma->devices[device].under_way_bytes;
    *moved_bytes = rdma->devices[device].moved_bytes;
}

void mc_rdma_put_devices(const struct mc_rdma *rdma, struct mc_buffer *out)
{
    mc_buffer_printf(out, "[");
    for (uint32_t i = 0; i < rdma->device_count; i++) {
        struct mc_rdma_device_info info;
        mc_rdma_device_info(rdma, i, &info);
        struct mc_rdma_peer_device device = {
            .lid = info.lid, .is_up = info.is_up, .fabric = info.fabric, .speed_mbps = info.speed_mbps};
        snprintf(device.name, sizeof(device.name), "%s", info.name);
        memcpy(device.gid, info.gid, MC_GID_BYTES);
        if (i > 0)
            mc_buffer_printf(out, ",");
        mc_rdma_put_peer_device(&device, info.mtu_bytes, out);
    }
    mc_buffer_printf(out, "]");
}

uint64_t mc_rdma_version(const struct mc_rdma *rdma)
{
    return rdma->version;
}

void mc_rdma_counters_get(const struct mc_rdma *rdma, struct mc_rdma_counters *counters)
{
    *counters = (struct mc_rdma_counters){
        rdma->count.read_bytes,  rdma->count.written_bytes, rdma->count.slices,       rdma->count.retries,
        rdma->count.pairs_made,  rdma->count.pairs_failed,  rdma->count.pairs_served, rdma->count.timeouts,
        rdma->count.stalls,      rdma->count.refusals,      rdma->count.port_downs,   rdma->count.port_ups,
        rdma->count.gid_changes, rdma->count.device_losses,
    };
}
