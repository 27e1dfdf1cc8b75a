/* The memory of an own segment: its life, and the owner's writes to its index. */
#include "base/error.h"
#include "store/segment/memory_inside.h"
#include "env/clock.h"
#include "env/log.h"
#include "store/segment/pin.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- making and freeing ---- */

static struct mc_segment_memory *memory_allocate(void)
{
    struct mc_segment_memory *memory = calloc(1, sizeof(*memory));
    if (memory == NULL)
        return NULL;
    pthread_mutex_init(&memory->lock, NULL);
    atomic_init(&memory->references, 1);
    return memory;
}

/* Before any of its pages is touched. */
static void memory_place(struct mc_segment_memory *memory, const struct mc_numa_nodes *nodes)
{
    if (nodes != NULL)
        memory->nodes = *nodes;
    mc_numa_place(memory->file.data, memory->file.data_size, nodes);
}

static void departure_drop(struct mc_departure *departure)
{
    if (departure != NULL && atomic_fetch_sub(&departure->references, 1) == 1)
        free(departure);
}

/* Its pages and descriptors have been given back. */
static void memory_free(struct mc_segment_memory *memory)
{
    if (memory->departure != NULL) {
        atomic_store(&memory->departure->is_over, true);
        mc_let_go_wake();
    }
    departure_drop(memory->departure);
    departure_drop(memory->predecessor);
    pthread_mutex_destroy(&memory->lock);
    free(memory);
}

static int memory_create(uint64_t capacity, const struct mc_numa_nodes *nodes, struct mc_segment_memory **result)
{
    struct mc_segment_memory *memory = memory_allocate();
    if (memory == NULL)
        return MC_ERR_NO_MEMORY;
    int rc = mc_segment_file_make(&memory->file, capacity);
    if (rc < 0) {
        if (rc != MC_ERR_INVALID_PARAMS)
            mc_log(ERROR, "cannot make a segment of %" PRIu64 " bytes: %s", capacity, strerror(errno));
        memory_free(memory);
        return rc;
    }
    memory_place(memory, nodes);
    atomic_init(&memory->backed_end, memory->file.data_size); /* memfds have no holes that could not be filled */
    *result = memory;
    return 0;
}

int mc_segment_memory_create(uint64_t capacity, struct mc_segment_memory **result)
{
    return memory_create(capacity, NULL, result);
}

int mc_segment_memory_open(const char *data_dir, const char *name, uint64_t capacity, uint64_t until_ns,
                           bool may_pass_over, struct mc_segment_memory **result, bool *contents)
{
    return mc_segment_memory_open_on(NULL, data_dir, name, capacity, until_ns, may_pass_over, result, contents);
}

int mc_segment_memory_open_on(const struct mc_numa_nodes *nodes, const char *data_dir, const char *name,
                              uint64_t capacity, uint64_t until_ns, bool may_pass_over,
                              struct mc_segment_memory **result, bool *contents)
{
    bool taken_up;
    *contents = false;
    if (data_dir == NULL || data_dir[0] == 0)
        return memory_create(capacity, nodes, result);
    struct mc_segment_memory *memory = memory_allocate();
    if (memory == NULL)
        return MC_ERR_NO_MEMORY;
    int rc = mc_segment_file_open(&memory->file, data_dir, name, capacity, until_ns, &taken_up);
    if (rc < 0) {
        int error = errno;
        memory_free(memory);
        if (rc == MC_ERR_INVALID_PARAMS)
            return rc;
        if (!may_pass_over && mc_segment_is_shortage(error)) {
            mc_log(
                ERROR,
                "the segment cannot be kept in %s, nor can what an earlier process may have left there be looked at: "
                "%s. Give this process more (ulimit -n, memory), and start it again",
                data_dir, strerror(error));
            errno = error;
            return rc;
        }
        mc_log(WARNING, "cannot keep the segment in %s: %s; its contents will end with this process", data_dir,
               error == EWOULDBLOCK ? "another process is at work there, and does not come to its end"
                                    : strerror(error));
        return memory_create(capacity, nodes, result);
    }
    memory_place(memory, nodes);
    const struct mc_index_header *header = memory->file.header;
    if (taken_up) {
        uint64_t populated = atomic_load(&header->populated);
        memory->slot_top = mc_slot_top_unpack(atomic_load(&header->slot_top), memory->file.slot_count);
        atomic_init(&memory->populated, populated);
        atomic_init(&memory->backed_end, mc_populated_end(&memory->file, populated));
        mc_writers_take_up(memory);
        *contents = memory->slot_top > 0 || mc_writers_top(memory) > 1;
    }
    *result = memory;
    return 0;
}

void mc_segment_memory_discard(struct mc_segment_memory *memory)
{
    mc_segment_file_unlink(&memory->file);
}

void mc_segment_memory_retain(struct mc_segment_memory *memory)
{
    atomic_fetch_add_explicit(&memory->references, 1, memory_order_relaxed);
}

void mc_segment_memory_release(struct mc_segment_memory *memory)
{
    if (memory == NULL || atomic_fetch_sub_explicit(&memory->references, 1, memory_order_acq_rel) != 1)
        return;
    mc_segment_memory_populate_stop(memory);
    mc_populate_forget(memory);
    mc_segment_file_free(&memory->file);
    memory_free(memory);
}

/* ---- beside whoever gives it up ---- */

static struct mc_segment_memory *leaving_memory(struct mc_let_go *leaving)
{
    return (struct mc_segment_memory *)(void *)((char *)leaving - offsetof(struct mc_segment_memory, leaving));
}

static void leaving_forked(struct mc_let_go *leaving)
{
    mc_segment_memory_forked(leaving_memory(leaving));
}

static void leaving_end(struct mc_let_go *leaving)
{
    struct mc_segment_memory *memory = leaving_memory(leaving);
    mc_segment_memory_populate_stop(memory);
    mc_populate_forget(memory);
    mc_segment_file_free(&memory->file);
}

static void leaving_free(struct mc_let_go *leaving)
{
    memory_free(leaving_memory(leaving));
}

void mc_segment_memory_drop(struct mc_segment_memory *memory)
{
    if (memory == NULL || atomic_fetch_sub_explicit(&memory->references, 1, memory_order_acq_rel) != 1)
        return;
    memory->leaving = (struct mc_let_go){.run = leaving_end, .after = leaving_free, .forked = leaving_forked};
    mc_let_go(&memory->leaving);
}

static void retire_run(struct mc_let_go *leaving)
{
    mc_segment_memory_populate_stop(leaving_memory(leaving));
}

static void retire_after(struct mc_let_go *leaving)
{
    mc_segment_memory_drop(leaving_memory(leaving));
}

void mc_segment_memory_retire(struct mc_segment_memory *memory)
{
    atomic_store(&memory->stop, true);
    mc_let_go_wake(); /* it may wait for other memory to be gone */
    memory->leaving = (struct mc_let_go){.run = retire_run, .after = retire_after, .forked = leaving_forked};
    mc_let_go(&memory->leaving);
}

void mc_segment_memory_follow(struct mc_segment_memory *memory, struct mc_segment_memory *before)
{
    mc_assert(!memory->populating && memory->predecessor == NULL && before->departure == NULL);
    struct mc_departure *departure = calloc(1, sizeof(*departure));
    if (departure == NULL)
        return;
    atomic_init(&departure->references, 2);
    before->departure = memory->predecessor = departure;
}

void mc_segment_memory_end(struct mc_segment_memory *memory)
{
    if (atomic_load(&memory->references) != 1)
        return;
    mc_segment_memory_populate_stop(memory);
    mc_populate_forget(memory);
    mc_segment_file_free(&memory->file);
}

void mc_segment_memory_forked(struct mc_segment_memory *memory)
{
    mc_populate_forget(memory); /* that thread is none of the child's */
    mc_segment_file_forked(&memory->file);
}

/* ---- what it is ---- */

struct mc_id mc_segment_memory_id(const struct mc_segment_memory *memory)
{
    return memory->file.header->segment_id;
}
uint64_t mc_segment_memory_capacity(const struct mc_segment_memory *memory)
{
    return memory->file.capacity;
}
uint64_t mc_segment_memory_data_size(const struct mc_segment_memory *memory)
{
    return memory->file.data_size;
}
uint32_t mc_segment_memory_slot_count(const struct mc_segment_memory *memory)
{
    return memory->file.slot_count;
}
uint32_t mc_segment_memory_layout(const struct mc_segment_memory *memory)
{
    return memory->file.header->version;
}
uint64_t mc_segment_memory_nonce(const struct mc_segment_memory *memory)
{
    return memory->file.header->nonce;
}
int mc_segment_memory_data_fd(const struct mc_segment_memory *memory)
{
    return memory->file.data_fd;
}
int mc_segment_memory_index_fd(const struct mc_segment_memory *memory)
{
    return memory->file.index_fd;
}
int mc_segment_memory_writers_fd(const struct mc_segment_memory *memory)
{
    return memory->file.writers_fd;
}
uint8_t *mc_segment_memory_data(const struct mc_segment_memory *memory)
{
    return memory->file.data;
}
const struct mc_slot *mc_segment_memory_slots(const struct mc_segment_memory *memory)
{
    return memory->file.slots;
}
bool mc_segment_memory_is_named(const struct mc_segment_memory *memory)
{
    return memory->file.is_named;
}
uint64_t mc_segment_memory_epoch(const struct mc_segment_memory *memory)
{
    return atomic_load(&memory->file.header->epoch);
}
uint64_t mc_segment_memory_contact_ms(const struct mc_segment_memory *memory)
{
    return atomic_load(&memory->file.header->contact_ms);
}
bool mc_segment_memory_contact_within(const struct mc_segment_memory *memory, uint32_t age_ms)
{
    return age_ms == 0 || mc_index_contact_within(memory->file.header, age_ms, mc_clock_boot_ms());
}
void mc_segment_memory_set_contact_ms(struct mc_segment_memory *memory, uint64_t contact_ms)
{
    atomic_store(&memory->file.header->contact_ms, contact_ms);
}

static uint64_t contact_check(const struct mc_index_header *header, uint64_t at_ms)
{
    return MC_INDEX_MAGIC ^ at_ms ^ atomic_load(&header->epoch) ^ atomic_load(&header->contact_ms);
}

uint64_t mc_segment_memory_contact_at_ms(const struct mc_segment_memory *memory)
{
    const struct mc_index_header *header = memory->file.header;
    uint64_t at_ms = atomic_load(&header->contact_at_ms);
    return atomic_load(&header->contact_check) == contact_check(header, at_ms) ? at_ms : 0;
}
void mc_segment_memory_set_contact_at_ms(struct mc_segment_memory *memory, uint64_t at_ms)
{
    struct mc_index_header *header = memory->file.header;
    atomic_store(&header->contact_at_ms, at_ms);
    atomic_store(&header->contact_check, contact_check(header, at_ms));
}

/* ---- the index ----
 *
 * Slots are written under the lock and read without one, also by other processes. Why a reader never takes a mixture:
 *
 * A slot is live with generation g at most once: commit demands g > generation, and generation never falls. The life of
 * g is written W1 state = EMPTY    W2 generation = g    W3 fields    W4 state = LIVE every store a release, so whoever
 * sees one of them with an acquire load sees all before it. A clear is W1, and W2 with its own generation.
 *
 * mc_slot_read(g), every load an acquire: R1 generation, R2 state, R3 fields, R4 state, R5 generation; true when R1 and
 * R5 gave g, R2 and R4 LIVE.
 *   - R1 saw W2 of g (or a clear with g, after which g is never live), so R2 sees its W1 or something later. R2 is
 * LIVE, so it saw W4 of g or of a later life: R3 sees the fields of g or later ones.
 *   - Had R3 seen a later life's field (its W3), then R5 would see that life's W2 or later: more than g. R5 gave g, so
 * every field is g's. mc_slot_unchanged(g) after the bytes were copied: R4 state, R5 generation, with the copy before
 * R4.
 *   - R4 cannot see a life before g, because R2 saw g's. If it sees a later life's W4, R5 sees that life's generation.
 * So R4 saw W4 of g: at R4 the EMPTY of the clear was not there yet.
 *   - The extent is given to another writer only after the owner has said CLEARED, which it does after W1; and that
 * writer's bytes come after its grant. Had the copy taken such a byte, R4 would see that W1 or something later. So
 * every byte copied was g's. R4 comes before R5: the other way round, a clear and a new life between the two would pass
 * (generation still g, state LIVE again). */

static uint32_t state_read(const struct mc_slot *slot)
{
    return atomic_load_explicit(&slot->state, memory_order_acquire);
}
static uint64_t generation_read(const struct mc_slot *slot)
{
    return atomic_load_explicit(&slot->generation, memory_order_acquire);
}

/* Reading a page of the index that nobody has written to would make it one that takes memory, and anybody may ask. Who
 * has heard that a slot is in use has heard it after slot_top was raised. */
static bool is_used(const struct mc_segment_memory *memory, uint32_t number)
{
    return number < atomic_load_explicit(&memory->slot_top, memory_order_acquire);
}

uint32_t mc_segment_memory_slots_used(const struct mc_segment_memory *memory)
{
    return atomic_load_explicit(&memory->slot_top, memory_order_acquire);
}

/* The generation that a slot has seen. */
static uint64_t seen_by(const struct mc_segment_memory *memory, uint32_t number)
{
    return is_used(memory, number) ? generation_read(&memory->file.slots[number]) : 0;
}

/* Called with the lock. W1 and W2; what writers.h needs beyond that is done by who looks at the intents. */
static void slot_clear(struct mc_segment_memory *memory, uint32_t number, uint64_t generation)
{
    struct mc_slot *slot = &memory->file.slots[number];
    if (!is_used(memory, number)) { /* before it is used, so that whoever takes it up finds it */
        atomic_store_explicit(&memory->slot_top, number + 1, memory_order_release);
        atomic_store_explicit(&memory->file.header->slot_top, mc_slot_top_pack(number + 1), memory_order_release);
    }
    atomic_store_explicit(&slot->state, (uint32_t)MC_SLOT_EMPTY, memory_order_release);
    if (generation > generation_read(slot)) /* a second store of the same would be a second W2 of g */
        atomic_store_explicit(&slot->generation, generation, memory_order_release);
}

bool mc_slot_is_sane(const struct mc_segment_memory *memory, const struct mc_slot *slot)
{
    uint64_t end = atomic_load_explicit(&memory->backed_end, memory_order_acquire);
    return slot->length > 0 && slot->length <= end && slot->offset <= end && slot->offset % MC_EXTENT_UNIT == 0 &&
           slot->key_length > 0 && slot->key_length <= MC_KEY_LENGTH_MAX && slot->replica <= MC_REPLICA_LOADED &&
           slot->block_shift == mc_block_shift(slot->length) &&
           mc_extent_size(slot->length, slot->key_length) <= end - slot->offset;
}

void mc_segment_memory_give_up(struct mc_segment_memory *memory)
{
    atomic_store(&memory->given_up, true);
}

bool mc_segment_memory_is_given_up(const struct mc_segment_memory *memory)
{
    return atomic_load(&memory->given_up);
}

/* Of the master that we belong to? It grants here only once we have met it, and no generation of its goes as far as
 * that of the master after it. One beyond is nobody's grant, and would keep the slot from all that come. */
static bool is_of_our_master(const struct mc_segment_memory *memory, uint64_t generation)
{
    uint64_t floor = atomic_load_explicit(&memory->file.header->floor, memory_order_acquire);
    return generation >= floor && generation - floor < MC_COUNTER_END;
}

int mc_segment_memory_commit(struct mc_segment_memory *memory, const struct mc_wire_commit_item *commit)
{
    const struct mc_slot wanted = {.offset = commit->offset,
                                   .length = commit->length,
                                   .key_length = commit->key_length,
                                   .replica = commit->replica,
                                   .block_shift = commit->block_shift};
    if (commit->slot >= memory->file.slot_count || !mc_slot_is_sane(memory, &wanted))
        return MC_ERR_INVALID_PARAMS;
    struct mc_slot *slot = &memory->file.slots[commit->slot];
    uint64_t now_ms = commit->pin_ms == 0 ? 0 : mc_clock_boot_ms();
    uint8_t pin[3], flags = mc_pin_write(commit->flags, commit->pin_ms, now_ms, pin);
    int rc = 0;
    pthread_mutex_lock(&memory->lock);
    if (commit->generation <= seen_by(memory, commit->slot) || !is_of_our_master(memory, commit->generation)) {
        rc = MC_ERR_STALE;
    } else {
        slot_clear(memory, commit->slot, commit->generation);
        __atomic_store_n(&slot->crc, commit->crc, __ATOMIC_RELEASE);
        __atomic_store_n(&slot->offset, commit->offset, __ATOMIC_RELEASE);
        __atomic_store_n(&slot->length, commit->length, __ATOMIC_RELEASE);
        __atomic_store_n(&slot->hash_low, commit->hash_low, __ATOMIC_RELEASE);
        __atomic_store_n(&slot->hash_high, commit->hash_high, __ATOMIC_RELEASE);
        __atomic_store_n(&slot->key_length, commit->key_length, __ATOMIC_RELEASE);
        __atomic_store_n(&slot->block_shift, commit->block_shift, __ATOMIC_RELEASE);
        __atomic_store_n(&slot->flags, flags, __ATOMIC_RELEASE);
        for (unsigned i = 0; i < sizeof(pin); i++)
            __atomic_store_n(&slot->pin[i], pin[i], __ATOMIC_RELEASE);
        __atomic_store_n(&slot->replica, commit->replica, __ATOMIC_RELEASE);
        __atomic_store_n(&slot->group, commit->group, __ATOMIC_RELEASE);
        atomic_store_explicit(&slot->state, (uint32_t)MC_SLOT_LIVE, memory_order_release);
    }
    pthread_mutex_unlock(&memory->lock);
    return rc;
}

int mc_segment_memory_may_write(struct mc_segment_memory *memory, uint32_t slot, uint64_t generation, uint64_t offset,
                                uint64_t length)
{
    uint64_t end = atomic_load_explicit(&memory->backed_end, memory_order_acquire);
    if (slot >= memory->file.slot_count || offset > end || length > end - offset)
        return MC_ERR_INVALID_PARAMS;
    return generation > seen_by(memory, slot) && is_of_our_master(memory, generation) &&
                   !mc_segment_memory_is_given_up(memory)
               ? 0
               : MC_ERR_STALE;
}

int mc_segment_memory_write_begin(struct mc_segment_memory *memory, struct mc_local_write *write, uint32_t slot,
                                  uint64_t generation, uint64_t offset, uint64_t length, uint64_t deadline_ns)
{
    int rc = mc_segment_memory_may_write(memory, slot, generation, offset, length);
    if (rc < 0)
        return rc;
    const struct mc_writing writing = {generation, offset, length, slot};
    rc = mc_writer_claim(&memory->file.writers[0], memory->file.header, memory->file.slots, &writing, deadline_ns);
    write->intent = rc;
    return rc < 0 ? rc : 0;
}

void mc_segment_memory_write_end(struct mc_segment_memory *memory, struct mc_local_write *write)
{
    mc_writer_intent_end(&memory->file.writers[0], write->intent);
}

int mc_segment_memory_clear(struct mc_segment_memory *memory, uint32_t number, uint64_t generation)
{
    if (number >= memory->file.slot_count)
        return MC_ERR_INVALID_PARAMS;
    pthread_mutex_lock(&memory->lock);
    if (seen_by(memory, number) <= generation)
        slot_clear(memory, number, generation);
    pthread_mutex_unlock(&memory->lock);
    return 0;
}

/* One byte, so that who reads the slot meanwhile has the pin or the hint: without a soft pin its end means nothing. */
int mc_segment_memory_hint(struct mc_segment_memory *memory, uint32_t number, uint64_t generation, uint8_t hint)
{
    if (number >= memory->file.slot_count || (hint != 0 && hint != MC_HINT_DROP && hint != MC_HINT_PAUSE))
        return MC_ERR_INVALID_PARAMS;
    struct mc_slot *slot = &memory->file.slots[number];
    int rc = 0;
    pthread_mutex_lock(&memory->lock);
    uint8_t flags = __atomic_load_n(&slot->flags, __ATOMIC_ACQUIRE);
    if (generation_read(slot) != generation || state_read(slot) != MC_SLOT_LIVE)
        rc = MC_ERR_REPLICA_IS_GONE;
    else if ((flags & MC_PUT_HARD_PIN) == 0 && (hint != 0 || (flags & MC_PIN_FIRM) == 0))
        __atomic_store_n(&slot->flags, mc_pin_hinted(hint), __ATOMIC_RELEASE);
    pthread_mutex_unlock(&memory->lock);
    return rc;
}

uint64_t mc_segment_memory_met(const struct mc_segment_memory *memory)
{
    return atomic_load(&memory->file.header->floor) >> MC_EPOCH_SHIFT;
}

static void ages_seal(struct mc_index_header *header)
{
    atomic_store(&header->ages, atomic_load(&header->epoch) ^ atomic_load(&header->floor));
}

void mc_segment_memory_meet(struct mc_segment_memory *memory, uint64_t epoch)
{
    mc_assert(epoch <= UINT64_MAX >> MC_EPOCH_SHIFT);
    pthread_mutex_lock(&memory->lock); /* a commit is before it, and then part of the contents, or refused */
    if (epoch > mc_segment_memory_met(memory)) {
        atomic_store(&memory->file.header->floor, epoch << MC_EPOCH_SHIFT);
        ages_seal(memory->file.header);
    }
    pthread_mutex_unlock(&memory->lock);
}

void mc_segment_memory_set_epoch(struct mc_segment_memory *memory, uint64_t epoch)
{
    mc_segment_memory_meet(memory, epoch);
    if (epoch > mc_segment_memory_epoch(memory)) { /* one thread sets it */
        atomic_store(&memory->file.header->epoch, epoch);
        ages_seal(memory->file.header);
    }
}

static uint64_t proof_read(const struct mc_index_header *header, uint64_t words[5])
{
    uint64_t check = MC_INDEX_MAGIC;
    for (unsigned i = 0; i < 5; i++) {
        words[i] = atomic_load(i < 4 ? &header->proof[i] : &header->proof_epoch);
        check ^= words[i];
    }
    return check;
}

void mc_segment_memory_keep_proof(struct mc_segment_memory *memory, const struct mc_epoch_proof *proof)
{
    struct mc_index_header *header = memory->file.header;
    uint64_t words[5], known[5], check = MC_INDEX_MAGIC ^ proof->epoch;
    memcpy(words, proof->bytes, sizeof(proof->bytes));
    words[4] = proof->epoch;
    for (unsigned i = 0; i < 4; i++)
        check ^= words[i];
    pthread_mutex_lock(&memory->lock);
    bool is_new =
        proof_read(header, known) != atomic_load(&header->proof_check) || memcmp(words, known, sizeof(words)) != 0;
    if (is_new && proof->epoch != 0 && proof->epoch == mc_segment_memory_met(memory)) {
        atomic_store(&header->proof_check, ~check); /* a process that ends in between leaves none */
        for (unsigned i = 0; i < 4; i++)
            atomic_store(&header->proof[i], words[i]);
        atomic_store(&header->proof_epoch, words[4]);
        atomic_store(&header->proof_check, check);
    }
    pthread_mutex_unlock(&memory->lock);
}

struct mc_epoch_proof mc_segment_memory_proof(const struct mc_segment_memory *memory)
{
    struct mc_epoch_proof proof = {0};
    uint64_t words[5];
    if (proof_read(memory->file.header, words) != atomic_load(&memory->file.header->proof_check) || words[4] == 0)
        return proof;
    memcpy(proof.bytes, words, sizeof(proof.bytes));
    proof.epoch = words[4];
    return proof;
}

struct mc_id mc_segment_memory_cluster(const struct mc_segment_memory *memory)
{
    const struct mc_index_header *header = memory->file.header;
    uint64_t check = atomic_load(&header->cluster_check);
    struct mc_id cluster = {atomic_load(&header->cluster[0]), atomic_load(&header->cluster[1])};
    bool is_whole = check == (MC_INDEX_MAGIC ^ cluster.low ^ cluster.high);
    return is_whole ? cluster : (struct mc_id){0, 0};
}

/* A process that ends in between leaves contents that do not say whose they are, never the half of an id. */
void mc_segment_memory_set_cluster(struct mc_segment_memory *memory, struct mc_id cluster)
{
    struct mc_index_header *header = memory->file.header;
    atomic_store(&header->cluster_check, 0);
    atomic_store(&header->cluster[0], cluster.low);
    atomic_store(&header->cluster[1], cluster.high);
    atomic_store(&header->cluster_check, MC_INDEX_MAGIC ^ cluster.low ^ cluster.high);
}

uint32_t mc_segment_memory_live(struct mc_segment_memory *memory)
{
    uint32_t live = 0;
    for (uint32_t i = 0; is_used(memory, i); i++)
        live += state_read(&memory->file.slots[i]) == MC_SLOT_LIVE;
    return live;
}

bool mc_slot_read(const struct mc_slot *slot, uint64_t generation, struct mc_slot *copy)
{
    if (generation_read(slot) != generation || state_read(slot) != MC_SLOT_LIVE)
        return false;
    *copy = (struct mc_slot){.crc = __atomic_load_n(&slot->crc, __ATOMIC_ACQUIRE),
                             .offset = __atomic_load_n(&slot->offset, __ATOMIC_ACQUIRE),
                             .length = __atomic_load_n(&slot->length, __ATOMIC_ACQUIRE),
                             .hash_low = __atomic_load_n(&slot->hash_low, __ATOMIC_ACQUIRE),
                             .hash_high = __atomic_load_n(&slot->hash_high, __ATOMIC_ACQUIRE),
                             .key_length = __atomic_load_n(&slot->key_length, __ATOMIC_ACQUIRE),
                             .block_shift = __atomic_load_n(&slot->block_shift, __ATOMIC_ACQUIRE),
                             .flags = __atomic_load_n(&slot->flags, __ATOMIC_ACQUIRE),
                             .replica = __atomic_load_n(&slot->replica, __ATOMIC_ACQUIRE),
                             .group = __atomic_load_n(&slot->group, __ATOMIC_ACQUIRE)};
    for (unsigned i = 0; i < sizeof(copy->pin); i++)
        copy->pin[i] = __atomic_load_n(&slot->pin[i], __ATOMIC_ACQUIRE);
    atomic_init(&copy->generation, generation);
    atomic_init(&copy->state, (uint32_t)MC_SLOT_LIVE);
    return state_read(slot) == MC_SLOT_LIVE && generation_read(slot) == generation;
}

/* The bytes of extents are not atomics, so their copy is ordered by a fence, which ThreadSanitizer does not know. */
bool mc_segment_memory_slot_read(const struct mc_segment_memory *memory, uint32_t slot, uint64_t generation,
                                 struct mc_slot *copy)
{
    return is_used(memory, slot) && mc_slot_read(&memory->file.slots[slot], generation, copy);
}

bool mc_slot_unchanged(const struct mc_slot *slot, uint64_t generation)
{
#ifndef UNDER_THREAD_SANITIZER
    atomic_thread_fence(memory_order_acquire);
#endif
    return state_read(slot) == MC_SLOT_LIVE && generation_read(slot) == generation;
}
