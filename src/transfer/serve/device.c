/* Memory of devices that peers read and write by tcp: through pinned memory of the service thread's lanes.
 *
 * A request is served after what the process had given the device's default stream to do before it came. The thread
 * does not wait for that: a mark goes behind that work, requests that have come before the mark are held until it has
 * ended (inbound.h), and the copies themselves wait for no other work. */
#include "transfer/serve/service_inside.h"

#include "base/checksum.h"
#include "env/clock.h"
#include "env/socket.h"

#define STAGED_BYTES ((size_t)512 << 10) /* sent in one turn */
#define MARK 0                           /* the unit of a lane whose event is the mark */

static struct mc_gpu_lane *lane_of(struct mc_service *service, int device)
{
    if (service->lanes[device] == NULL)
        service->lanes[device] = mc_gpu_take(device);
    return service->lanes[device];
}

/* ---- after the default stream ---- */

/* A device that refuses to say whether the mark has ended holds up nobody: the copy will show what is wrong. */
static void mark_look(struct mc_service *service, int device)
{
    struct mc_service_gate *gate = &service->gates[device];
    if (!gate->is_marked || mc_gpu_has_ended(service->lanes[device], MARK) == 0)
        return;
    gate->is_marked = false;
    gate->passed_ns = gate->marked_ns;
    service->marks--;
    service->has_news = true;
}

bool mc_device_may_touch(void *context, const struct mc_region *region, uint64_t since_ns)
{
    struct mc_service *service = ((struct mc_transfer_engine *)context)->service;
    struct mc_service_gate *gate = &service->gates[region->place.number];
    struct mc_gpu_lane *lane = lane_of(service, region->place.number);
    if (gate->passed_ns >= since_ns || lane == NULL)
        return true;
    mark_look(service, region->place.number);
    if (!gate->is_marked && gate->passed_ns < since_ns) {
        gate->marked_ns = mc_clock_ns();
        if (mc_gpu_mark(lane, MARK) < 0)
            return true;
        gate->is_marked = true;
        service->marks++;
        /* A device that has nothing to do answers within microseconds. */
        for (uint64_t end_ns = gate->marked_ns + mc_spin_ns(); gate->is_marked && mc_clock_ns() < end_ns;)
            mark_look(service, region->place.number);
    }
    return gate->passed_ns >= since_ns;
}

bool mc_device_has_news(struct mc_service *service)
{
    for (int device = 0; device < MC_GPUS_MAX && service->marks > 0; device++)
        mark_look(service, device);
    bool has_news = service->has_news;
    service->has_news = false;
    return has_news;
}

/* ---- copies ---- */

uint8_t *mc_device_receive_at(void *context, const struct mc_region *region, size_t *size)
{
    struct mc_service *service = ((struct mc_transfer_engine *)context)->service;
    struct mc_gpu_lane *lane = lane_of(service, region->place.number);
    if (lane == NULL)
        return NULL;
    *size = *size < lane->unit_bytes ? *size : lane->unit_bytes;
    return lane->units[0];
}

/* What the socket does not take is copied again in the next turn, so a turn stages little. */
const uint8_t *mc_device_send_from(void *context, const struct mc_region *region, uint64_t address, size_t *size)
{
    struct mc_service *service = ((struct mc_transfer_engine *)context)->service;
    struct mc_gpu_lane *lane = lane_of(service, region->place.number);
    size_t room = STAGED_BYTES - service->staged;
    *size = *size < room ? *size : room;
    if (*size == 0)
        return NULL;
    uint8_t *staged = lane == NULL ? NULL : lane->units[1] + service->staged;
    if (staged == NULL || mc_gpu_start_apart(lane, staged, (const void *)(uintptr_t)address, *size) < 0)
        service->has_staging_failed = true;
    service->staged += *size;
    if (staged != NULL)
        service->copying |= 1ull << region->place.number;
    return service->has_staging_failed ? NULL : staged;
}

bool mc_device_staged(struct mc_service *service)
{
    bool is_fine = !service->has_staging_failed;
    for (int device = 0; service->copying != 0; device++, service->copying >>= 1)
        if ((service->copying & 1) != 0 && mc_gpu_finish_apart(service->lanes[device]) < 0)
            is_fine = false;
    service->has_staging_failed = false;
    return is_fine;
}

bool mc_device_sum(struct mc_service *service, const struct mc_region *region, uint64_t address, size_t size,
                   uint32_t *sum)
{
    struct mc_gpu_lane *lane = lane_of(service, region->place.number);
    for (size_t at = 0, part; lane != NULL && at < size; at += part) {
        part = size - at < lane->unit_bytes ? size - at : lane->unit_bytes;
        int rc = mc_gpu_start_apart(lane, lane->units[1], (const void *)(uintptr_t)(address + at), part);
        if (mc_gpu_finish_apart(lane) < 0 || rc < 0) /* also after a refusal */
            return false;
        *sum = mc_crc32c(*sum, lane->units[1], part);
    }
    return lane != NULL;
}

bool mc_device_copy(struct mc_service *service, uint64_t address, const void *from, size_t size, bool *is_copied)
{
    struct mc_gpu_finder finder = {0};
    struct mc_gpu_place place = mc_gpu_find(&finder, (const void *)(uintptr_t)address);
    if (place.kind == MC_GPU_HOST)
        return false;
    struct mc_gpu_lane *lane = lane_of(service, place.number);
    *is_copied = lane != NULL && mc_gpu_start_apart(lane, (void *)(uintptr_t)address, from, size) == 0;
    /* Also after a refusal: the bytes must stay until then. */
    *is_copied &= lane != NULL && mc_gpu_finish_apart(lane) == 0;
    return true;
}
