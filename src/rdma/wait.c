/* Waiting for completions. A device has one channel for the events of all completion queues of all links, so that
 * descriptors do not grow with links. Of the threads that wait one leads: it sleeps on the channels of all devices, and
 * wakes those for whose links events came; the others sleep until then. Who stops leading wakes another to lead. */
#include "rdma/pair.h"

#include "env/clock.h"
#include "env/thread.h"

#include <poll.h>

#define EVENTS_MAX 64u /* of one device, before others are looked at */

/* Hands out events that have come of one device, until there is one for the leader. Whoever leads next finds the rest.
 */
static void take_events(struct mc_rdma_device *device, const struct mc_rdma_link *leader)
{
    struct mc_rdma *rdma = device->rdma;
    struct ibv_cq *cq;
    void *context;
    bool is_done = false;
    for (uint32_t i = 0; i < EVENTS_MAX && !is_done && rdma->verbs->get_cq_event(device->channel, &cq, &context) == 0;
         i++) {
        struct mc_rdma_link *link = context;
        pthread_mutex_lock(&rdma->wait_lock);
        link->has_event = true;
        is_done = leader->has_event;
        if (link != leader)
            pthread_cond_signal(&link->woken);
        pthread_mutex_unlock(&rdma->wait_lock);
        /* Last: a queue is not destroyed, and so its link not freed, before its events are acknowledged. */
        rdma->verbs->ack_cq_events(cq, 1);
    }
}

static void lead(const struct mc_rdma_link *link, uint64_t wait_ns)
{
    struct mc_rdma *rdma = link->rdma;
    struct pollfd fds[MC_RDMA_DEVICES_MAX];
    for (uint32_t i = 0; i < rdma->device_count; i++) /* a lost device's descriptor may be readable for ever */
        fds[i] = (struct pollfd){.fd = rdma->devices[i].is_lost ? -1 : rdma->devices[i].channel->fd, .events = POLLIN};
    struct timespec timeout = {(time_t)(wait_ns / 1000000000u), (long)(wait_ns % 1000000000u)};
    int ready = ppoll(fds, rdma->device_count, &timeout, NULL);
    for (uint32_t i = 0; i < rdma->device_count && ready > 0; i++)
        if (fds[i].revents != 0)
            take_events(&rdma->devices[i], link);
}

/* rdma->wait_lock is held. */
static void follow(struct mc_rdma_link *link, uint64_t until_ns)
{
    struct mc_rdma *rdma = link->rdma;
    link->next_waiting = rdma->waiting;
    rdma->waiting = link;
    (void)mc_monitor_wait(&rdma->wait_lock, &link->woken, until_ns);
    struct mc_rdma_link **at = &rdma->waiting;
    while (*at != link)
        at = &(*at)->next_waiting;
    *at = link->next_waiting;
}

bool mc_rdma_wait(struct mc_rdma_link *link, uint64_t until_ns)
{
    struct mc_rdma *rdma = link->rdma;
    pthread_mutex_lock(&rdma->wait_lock);
    for (uint64_t now_ns; !link->has_event && (now_ns = mc_clock_ns()) < until_ns;) {
        if (rdma->is_led) {
            follow(link, until_ns);
            continue;
        }
        rdma->is_led = true;
        pthread_mutex_unlock(&rdma->wait_lock);
        lead(link, until_ns - now_ns);
        pthread_mutex_lock(&rdma->wait_lock);
        rdma->is_led = false;
    }
    bool has_event = link->has_event;
    link->has_event = false;
    if (!rdma->is_led && rdma->waiting != NULL)
        pthread_cond_signal(&rdma->waiting->woken);
    pthread_mutex_unlock(&rdma->wait_lock);
    return has_event;
}
