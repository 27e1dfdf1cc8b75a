/* The thread that watches devices: ports that come and go, GIDs that change, requests of rdma_cm. */
#include "rdma/device.h"

#include "env/log.h"
#include "env/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define LOOK_AGAIN_MS 1000 /* drivers forget to tell that a port is active again */

static void port_changed(struct mc_rdma_device *device, enum ibv_event_type event)
{
    struct mc_rdma *rdma = device->rdma;
    bool was_up = device->is_active;
    if (!mc_rdma_device_refresh(device))
        return;
    if (was_up && !device->is_active) {
        rdma->count.port_downs++;
        mc_log(WARNING, "RDMA device %s: port %u is down", device->name, device->port);
    } else if (!was_up && device->is_active) {
        rdma->count.port_ups++;
        mc_log(INFO, "RDMA device %s: port %u is active; %s", device->name, device->port, device->gid_reason);
    } else if (event == IBV_EVENT_GID_CHANGE) {
        rdma->count.gid_changes++;
        mc_log(INFO, "RDMA device %s: GIDs have changed; %s", device->name, device->gid_reason);
    }
    rdma->version++;
}

static void device_lost(struct mc_rdma_device *device)
{
    if (device->is_lost)
        return;
    device->is_lost = true;
    device->rdma->version++; /* runs look when it changes */
    device->rdma->count.device_losses++;
    mc_log(ERROR, "RDMA device %s is lost; this process does not use it again", device->name);
}

static void device_event(struct mc_rdma_device *device, const struct ibv_async_event *event)
{
    switch (event->event_type) {
    case IBV_EVENT_DEVICE_FATAL:
        device_lost(device);
        break;
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_GID_CHANGE:
    case IBV_EVENT_CLIENT_REREGISTER:
        if (event->element.port_num == device->port)
            port_changed(device, event->event_type);
        break;
    default: /* of one queue pair or completion queue: its run finds out by itself */
        mc_log(DEBUG, "RDMA device %s: event %d", device->name, (int)event->event_type);
        break;
    }
}

static void device_events(struct mc_rdma_device *device)
{
    const struct mc_verbs *verbs = device->rdma->verbs;
    struct ibv_async_event event;
    while (verbs->get_async_event(device->context, &event) == 0) {
        device_event(device, &event);
        verbs->ack_async_event(&event);
    }
}

static void *watch(void *argument)
{
    struct mc_rdma *rdma = argument;
    struct pollfd fds[MC_RDMA_DEVICES_MAX + 2];
    for (;;) {
        nfds_t count = 0;
        bool is_any_down = false;
        fds[count++] = (struct pollfd){.fd = rdma->stop_fd, .events = POLLIN};
        for (uint32_t i = 0; i < rdma->device_count; i++) {
            struct mc_rdma_device *device = &rdma->devices[i];
            /* A lost device's descriptor is readable for ever. */
            fds[count++] = (struct pollfd){.fd = device->is_lost ? -1 : device->context->async_fd, .events = POLLIN};
            is_any_down |= !device->is_lost && !device->is_active;
        }
        fds[count++] = (struct pollfd){.fd = rdma->cm.channel != NULL ? rdma->cm.channel->fd : -1, .events = POLLIN};
        int ready = poll(fds, count, is_any_down ? LOOK_AGAIN_MS : -1);
        if (fds[0].revents != 0)
            return NULL;
        for (uint32_t i = 0; i < rdma->device_count; i++) {
            struct mc_rdma_device *device = &rdma->devices[i];
            if (ready > 0 && fds[i + 1].revents != 0)
                device_events(device);
            if (ready > 0 && (fds[i + 1].revents & (POLLERR | POLLHUP | POLLNVAL)) != 0)
                device_lost(device);
            if (ready == 0 && !device->is_lost && !device->is_active)
                port_changed(device, IBV_EVENT_PORT_ACTIVE);
        }
        if (ready > 0 && fds[rdma->device_count + 1].revents != 0)
            mc_rdma_cm_events(rdma);
    }
}

static int set_nonblocking(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    return flags < 0 ? -1 : fcntl(fd, F_SETFL, flags | O_NONBLOCK);
}

int mc_rdma_watch_start(struct mc_rdma *rdma)
{
    bool wants_cm = false, is_any_without = false;
    for (uint32_t i = 0; i < rdma->device_count; i++) {
        if (set_nonblocking(rdma->devices[i].context->async_fd) != 0)
            return MC_ERR_TRANSFER_FAIL;
        wants_cm |= mc_rdma_device_uses_cm(&rdma->devices[i]);
        is_any_without |= !mc_rdma_device_uses_cm(&rdma->devices[i]);
    }
    rdma->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (rdma->stop_fd < 0)
        return MC_ERR_NO_MEMORY;
    mc_rdma_fd_opened(rdma, rdma->stop_fd);
    int rc = wants_cm ? mc_rdma_cm_listen(rdma) : 0;
    if (is_any_without) /* the others do without; pairs of those that need it say what is missing */
        rc = 0;
    if (rc == 0 && mc_thread_start(&rdma->watcher, "mc-rdma", watch, rdma) != 0)
        rc = MC_ERR_NO_MEMORY;
    if (rc == 0)
        return 0;
    mc_rdma_cm_close(rdma);
    mc_rdma_fd_closing(rdma, rdma->stop_fd);
    (void)close(rdma->stop_fd);
    return rc;
}

void mc_rdma_watch_stop(struct mc_rdma *rdma)
{
    uint64_t one = 1;
    ssize_t written = write(rdma->stop_fd, &one, sizeof(one));
    mc_assert(written == sizeof(one));
    (void)pthread_join(rdma->watcher, NULL);
    mc_rdma_cm_close(rdma);
    mc_rdma_fd_closing(rdma, rdma->stop_fd);
    (void)close(rdma->stop_fd);
}
