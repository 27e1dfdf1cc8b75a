/* Cutting, dealing and retrying: see slices.h. */
#include "rdma/slices.h"

#include <stdlib.h>

#define BURSTS_IN_WINDOW 4u
#define PENDING 1                      /* result of a request that is under way; results are never positive */
#define FAR_MAX 2u                     /* sides of a pair whose device is not near the memory there */
#define LENGTH_MAX ((uint64_t)1 << 30) /* of one slice; every device takes messages of 2 GiB */

/* ---- set-up ---- */

/* At most value: sequence numbers wrap, and a ring of another size would lose its place then. */
static uint32_t power_of_two(uint32_t value)
{
    uint32_t power = 1;
    while (power <= value / 2)
        power *= 2;
    return power;
}

int mc_slices_init(struct mc_slices *slices, const struct mc_slices_config *config)
{
    memset(slices, 0, sizeof(*slices));
    slices->config = *config;
    if (slices->config.slice_bytes > LENGTH_MAX / 2)
        slices->config.slice_bytes = LENGTH_MAX / 2;
    if (slices->config.fragment_bytes > slices->config.slice_bytes)
        slices->config.fragment_bytes = slices->config.slice_bytes;
    uint32_t depth = 0;
    for (uint32_t i = 0; i < config->pair_count; i++) {
        slices->config.pairs[i].depth = power_of_two(config->pairs[i].depth);
        depth += slices->config.pairs[i].depth;
    }
    slices->waiting_capacity = depth;
    /* Rings of all pairs, then the stack, in one piece. */
    struct mc_slice *memory = calloc((size_t)depth * 2 + 1, sizeof(*memory));
    if (memory == NULL)
        return MC_ERR_NO_MEMORY;
    slices->waiting = memory + depth;
    for (uint32_t i = 0; i < config->pair_count; i++) {
        slices->pairs[i].config = slices->config.pairs[i];
        slices->pairs[i].ring = memory;
        memory += slices->config.pairs[i].depth;
    }
    return 0;
}

void mc_slices_free(struct mc_slices *slices)
{
    free(slices->config.pair_count > 0 ? slices->pairs[0].ring : slices->waiting);
    memset(slices, 0, sizeof(*slices));
}

static uint32_t under_way(const struct mc_slices_pair *pair)
{
    return pair->tail - pair->head;
}

void mc_slices_pair_up(struct mc_slices *slices, uint32_t pair)
{
    struct mc_slices_pair *one = &slices->pairs[pair];
    mc_assert(under_way(one) == 0);
    one->is_up = true;
    one->bytes = 0;
}

/* ---- requests ---- */

static void finish(struct mc_slices *slices, struct mc_rdma_request *request, int result)
{
    if (request->result != PENDING)
        return;
    request->result = result;
    slices->pending--;
}

/* The chunk that holds address, or NULL. */
static const struct mc_rdma_chunk *chunk_of(struct mc_rdma_chunks chunks, uint64_t address)
{
    uint32_t low = 0, high = chunks.count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (chunks.list[middle].address + (chunks.list[middle].length - 1) < address)
            low = middle + 1;
        else
            high = middle;
    }
    return low < chunks.count && chunks.list[low].address <= address ? &chunks.list[low] : NULL;
}

/* Every byte of the range lies in a chunk. */
static bool is_covered(struct mc_rdma_chunks chunks, uint64_t address, uint64_t length)
{
    if (length - 1 > UINT64_MAX - address)
        return false;
    const struct mc_rdma_chunk *chunk = chunk_of(chunks, address), *end = chunks.list + chunks.count;
    while (chunk != NULL && chunk < end && chunk->address <= address && chunk->length > address - chunk->address) {
        uint64_t here = chunk->length - (address - chunk->address);
        if (here >= length)
            return true;
        length -= here;
        address += here;
        chunk++;
    }
    return false;
}

static int request_check(const struct mc_rdma_request *request)
{
    if (request->opcode != MC_RDMA_READ && request->opcode != MC_RDMA_WRITE)
        return MC_ERR_INVALID_PARAMS;
    if (request->length == 0)
        return 0;
    return is_covered(request->local_chunks, (uintptr_t)request->local, request->length) &&
                   is_covered(request->remote_chunks, request->remote, request->length)
               ? PENDING
               : MC_ERR_INVALID_PARAMS;
}

int mc_slices_begin(struct mc_slices *slices, struct mc_rdma_request *requests, size_t count)
{
    if (count >= UINT32_MAX)
        return MC_ERR_INVALID_PARAMS;
    mc_assert(slices->in_flight == 0);
    slices->waiting_count = 0; /* of requests that failed in the run before */
    slices->requests = requests;
    slices->request_count = (uint32_t)count;
    slices->cursor = 0;
    slices->pending = 0;
    slices->uncut_bytes = 0;
    slices->is_unsure = false;
    slices->retried = 0;
    for (size_t i = 0; i < count; i++) {
        requests[i].cut = requests[i].done = 0;
        requests[i].result = request_check(&requests[i]);
        if (requests[i].result != PENDING)
            continue;
        slices->pending++;
        slices->uncut_bytes += requests[i].length;
    }
    return 0;
}

/* ---- the next slice ---- */

static uint64_t room(const struct mc_rdma_chunk *chunk, uint64_t address)
{
    return chunk->length - (address - chunk->address);
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The slice that is to be posted next, without taking it. False: there is none. */
static bool peek(struct mc_slices *slices, struct mc_slice *slice)
{
    while (slices->waiting_count > 0) {
        *slice = slices->waiting[slices->waiting_count - 1];
        if (slices->requests[slice->request].result == PENDING)
            return true;
        slices->waiting_count--;
    }
    for (; slices->cursor < slices->request_count; slices->cursor++) {
        const struct mc_rdma_request *request = &slices->requests[slices->cursor];
        if (request->length == 0 || request->cut == request->length)
            continue;
        if (request->result != PENDING)
            continue;
        uint64_t left = request->length - request->cut, length = least(left, slices->config.slice_bytes);
        if (left - length <= slices->config.fragment_bytes)
            length = left;
        uint64_t local = (uintptr_t)request->local + request->cut, remote = request->remote + request->cut;
        length = least(length, room(chunk_of(request->local_chunks, local), local));
        length = least(length, room(chunk_of(request->remote_chunks, remote), remote));
        *slice = (struct mc_slice){slices->cursor, 0, request->cut, length};
        return true;
    }
    return false;
}

static void slice_consume(struct mc_slices *slices, const struct mc_slice *slice)
{
    if (slices->waiting_count > 0) {
        slices->waiting_count--;
        return;
    }
    slices->requests[slice->request].cut += slice->length;
    slices->uncut_bytes -= least(slices->uncut_bytes, slice->length);
}

struct slice_route { /* where a slice may go */
    const struct mc_rdma_chunk *local, *remote;
};

static struct slice_route route_of(const struct mc_slices *slices, const struct mc_slice *slice)
{
    const struct mc_rdma_request *request = &slices->requests[slice->request];
    struct slice_route route = {chunk_of(request->local_chunks, (uintptr_t)request->local + slice->offset),
                                chunk_of(request->remote_chunks, request->remote + slice->offset)};
    mc_assert(route.local != NULL && route.remote != NULL); /* the request was checked when the run began */
    return route;
}

static bool fits(const struct mc_slices_pair *pair, const struct slice_route *route)
{
    return pair->is_up && (route->local->valid >> pair->config.local_device & 1) != 0 &&
           (route->remote->valid >> pair->config.remote_device & 1) != 0;
}

/* Packets that a receiver cannot take in time are lost and sent again, so more under way than keeps the wire busy does
 * harm; and it is what an end by the deadline has to throw away. */
static bool is_full(const struct mc_slices *slices, const struct mc_slices_pair *pair, uint64_t length)
{
    return under_way(pair) == pair->config.depth ||
           (slices->config.window_bytes != 0 && pair->bytes > 0 && pair->bytes + length > slices->config.window_bytes);
}

static uint32_t is_far(const struct mc_rdma_chunk *chunk, uint32_t device)
{
    return chunk->preferred != 0 && (chunk->preferred >> device & 1) == 0 ? 1 : 0;
}

/* On how many sides the pair's device is not near the memory. */
static uint32_t farness(const struct mc_slices_pair *pair, const struct slice_route *route)
{
    return is_far(route->local, pair->config.local_device) + is_far(route->remote, pair->config.remote_device);
}

/* The nearest kind of pair that a slice can have now; FAR_MAX + 1: none. One that has failed may take any: what is near
 * may be what fails. */
static uint32_t nearest(const struct mc_slices *slices, const struct slice_route *route, const struct mc_slice *slice)
{
    uint32_t least_far = FAR_MAX + 1, most_far = 0;
    for (uint32_t i = 0; i < slices->config.pair_count; i++) {
        if (!fits(&slices->pairs[i], route))
            continue;
        uint32_t far = farness(&slices->pairs[i], route);
        least_far = far < least_far ? far : least_far;
        most_far = far > most_far ? far : most_far;
    }
    return least_far <= FAR_MAX && slice->tries > 0 ? most_far : least_far;
}

/* The pair with the least under way, by the time that it takes, among those that are near enough and have room; *alike:
 * how many are near enough. -1: all of them are full. -2: none fits. */
static int choose_pair(const struct mc_slices *slices, const struct slice_route *route, const struct mc_slice *slice,
                       uint32_t *alike)
{
    int best = -1;
    uint64_t best_price = UINT64_MAX;
    uint32_t count = slices->config.pair_count, far = nearest(slices, route, slice);
    *alike = 0;
    if (far > FAR_MAX)
        return -2;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = (slices->turn + i) % count;
        const struct mc_slices_pair *pair = &slices->pairs[at];
        if (!fits(pair, route) || farness(pair, route) > far)
            continue;
        (*alike)++;
        uint64_t price = (pair->bytes + slice->length) * pair->config.cost;
        if (!is_full(slices, pair, slice->length) && price < best_price) {
            best_price = price;
            best = (int)at;
        }
    }
    return best;
}

/* May the slice follow others in a burst of that pair? */
static bool follows(const struct mc_slices *slices, int pair, const struct slice_route *route,
                    const struct mc_slice *slice)
{
    const struct mc_slices_pair *one = &slices->pairs[pair];
    uint32_t far = farness(one, route);
    return fits(one, route) && !is_full(slices, one, slice->length) &&
           (far == 0 || far <= nearest(slices, route, slice));
}

static void put_in_ring(struct mc_slices *slices, struct mc_slices_pair *pair, const struct mc_slice *slice,
                        const struct slice_route *route, struct mc_slice_post *post, uint64_t now_ns)
{
    const struct mc_rdma_request *request = &slices->requests[slice->request];
    if (under_way(pair) == 0)
        pair->progress_ns = now_ns;
    *post = (struct mc_slice_post){
        .opcode = request->opcode,
        .local = (uintptr_t)request->local + slice->offset,
        .remote = request->remote + slice->offset,
        .length = (uint32_t)slice->length,
        .local_key = route->local->keys[pair->config.local_device],
        .remote_key = route->remote->keys[pair->config.remote_device],
        .sequence = pair->tail,
        .is_inline =
            request->opcode == MC_RDMA_WRITE && slice->length <= pair->config.inline_max && !route->local->is_gpu,
    };
    pair->ring[pair->tail % pair->config.depth] = *slice;
    pair->tail++;
    pair->bytes += slice->length;
    slices->in_flight++;
    slices->posted++;
}

bool mc_slices_next(struct mc_slices *slices, uint64_t now_ns, uint32_t *pair, struct mc_slice_post *posts,
                    uint32_t *count)
{
    struct mc_slice slice;
    int chosen = -1;
    uint64_t quota = 0;
    *count = 0;
    while (*count < MC_SLICES_BURST_MAX && peek(slices, &slice)) {
        struct slice_route route = route_of(slices, &slice);
        if (*count == 0) {
            uint32_t alike;
            chosen = choose_pair(slices, &route, &slice, &alike);
            if (chosen == -2) { /* nowhere, and nobody will bring a pair within this turn */
                finish(slices, &slices->requests[slice.request], MC_ERR_TRANSFER_FAIL);
                continue;
            }
            if (chosen == -1)
                return false;
            quota = slices->uncut_bytes / alike; /* so that a small batch is spread also */
            /* Several bursts in a window: the next is posted while the one before is under way. */
            if (slices->config.window_bytes != 0)
                quota = least(quota, slices->config.window_bytes / BURSTS_IN_WINDOW);
        } else if (slice.length > quota || !follows(slices, chosen, &route, &slice)) {
            break;
        }
        put_in_ring(slices, &slices->pairs[chosen], &slice, &route, &posts[*count], now_ns);
        slice_consume(slices, &slice);
        quota -= least(quota, slice.length);
        (*count)++;
    }
    if (*count == 0)
        return false;
    posts[*count - 1].is_signaled = true;
    *pair = (uint32_t)chosen;
    slices->turn = (*pair + 1) % slices->config.pair_count;
    return true;
}

/* ---- what became of it ---- */

static void wait_again(struct mc_slices *slices, const struct mc_slice *slice)
{
    mc_assert(slices->waiting_count < slices->waiting_capacity);
    if (slices->requests[slice->request].result == PENDING)
        slices->waiting[slices->waiting_count++] = *slice;
}

void mc_slices_unpost(struct mc_slices *slices, uint32_t pair, uint32_t count)
{
    struct mc_slices_pair *one = &slices->pairs[pair];
    mc_assert(count <= under_way(one));
    while (count-- > 0) {
        const struct mc_slice *slice = &one->ring[--one->tail % one->config.depth];
        one->bytes -= slice->length;
        slices->in_flight--;
        wait_again(slices, slice);
    }
}

static struct mc_slice pop_oldest(struct mc_slices *slices, struct mc_slices_pair *pair)
{
    struct mc_slice slice = pair->ring[pair->head++ % pair->config.depth];
    pair->bytes -= slice.length;
    slices->in_flight--;
    return slice;
}

static void arrive(struct mc_slices *slices, const struct mc_slice *slice)
{
    struct mc_rdma_request *request = &slices->requests[slice->request];
    request->done += slice->length;
    if (request->done == request->length)
        finish(slices, request, 0);
}

bool mc_slices_end(struct mc_slices *slices, uint32_t pair, uint32_t sequence, enum mc_slice_end end, uint64_t now_ns)
{
    struct mc_slices_pair *one = &slices->pairs[pair];
    if (sequence - one->head >= under_way(one))
        return true;
    if (end == MC_SLICE_FLUSHED)
        return false;
    one->progress_ns = now_ns;
    while (one->head != sequence) {
        struct mc_slice slice = pop_oldest(slices, one);
        arrive(slices, &slice);
    }
    if (end == MC_SLICE_DONE) {
        struct mc_slice slice = pop_oldest(slices, one);
        arrive(slices, &slice);
        return true;
    }
    /* It stays in the ring: its bytes may still be on their way. */
    struct mc_slice *slice = &one->ring[one->head % one->config.depth];
    if (end == MC_SLICE_REFUSED) {
        slices->refused++;
        finish(slices, &slices->requests[slice->request], MC_ERR_INVALID_PARAMS);
    } else if (slice->tries++ >= slices->config.retry_max) {
        finish(slices, &slices->requests[slice->request], MC_ERR_TRANSFER_FAIL);
    }
    return false;
}

void mc_slices_pair_down(struct mc_slices *slices, uint32_t pair)
{
    struct mc_slices_pair *one = &slices->pairs[pair];
    one->is_up = false;
    /* Newest first, so that the stack gives the oldest back first. */
    while (under_way(one) > 0) {
        struct mc_slice slice = one->ring[--one->tail % one->config.depth];
        one->bytes -= slice.length;
        slices->in_flight--;
        slices->is_unsure |= slices->requests[slice.request].opcode == MC_RDMA_WRITE;
        slices->retried += slices->requests[slice.request].result == PENDING;
        wait_again(slices, &slice);
    }
}

uint32_t mc_slices_stalled(const struct mc_slices *slices, uint64_t now_ns, uint64_t stall_ns)
{
    uint32_t mask = 0;
    for (uint32_t i = 0; i < slices->config.pair_count; i++) {
        const struct mc_slices_pair *pair = &slices->pairs[i];
        if (under_way(pair) > 0 && now_ns > pair->progress_ns && now_ns - pair->progress_ns >= stall_ns)
            mask |= 1u << i;
    }
    return mask;
}

uint32_t mc_slices_busy(const struct mc_slices *slices)
{
    uint32_t mask = 0;
    for (uint32_t i = 0; i < slices->config.pair_count; i++)
        if (under_way(&slices->pairs[i]) > 0)
            mask |= 1u << i;
    return mask;
}

void mc_slices_cancel(struct mc_slices *slices, int result)
{
    for (uint32_t i = 0; i < slices->request_count && slices->pending > 0; i++)
        finish(slices, &slices->requests[i], result);
    slices->waiting_count = 0;
    slices->cursor = slices->request_count;
    slices->uncut_bytes = 0;
}

bool mc_slices_is_over(const struct mc_slices *slices)
{
    return slices->pending == 0 && slices->in_flight == 0;
}
