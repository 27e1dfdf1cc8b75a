/* Batches with several owners in one thread: what one of them waits for is not waited for by another. */
#include "transport_rig.h"

#include "base/error.h"
#include "store/path/path.h"
#include "store/path/paths.h"
#include "hold_still.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#define OWNERS 4u
#define EACH 3u /* transfers with each owner */
#define LENGTH (300u << 10)
#define STRIDE (512u << 10)
#define CAPACITY (4u << 20)
#define EVENTS_MAX 16u

struct side {                   /* what goes over one path */
    struct mc_path_batch group; /* first: it is what comes back */
    struct rig rig;
    unsigned number;
    struct mc_transfer transfers[EACH], *list[EACH];
    struct iovec parts[EACH];
    uint8_t bytes[EACH][LENGTH];
};

static struct side sides[OWNERS];

static struct event { /* in the order in which they happened */
    bool is_end;
    unsigned number;
} events[EVENTS_MAX];
static unsigned event_count;

static void note(bool is_end, unsigned number)
{
    assert_true(event_count < EVENTS_MAX);
    events[event_count++] = (struct event){is_end, number};
}

static void ended(struct mc_path_batch *group)
{
    note(true, ((struct side *)group)->number);
}

static void doubted(void *context)
{
    note(false, ((struct side *)context)->number);
}

static unsigned place_of(bool is_end, unsigned number)
{
    unsigned at = 0;
    while (at < event_count && (events[at].is_end != is_end || events[at].number != number))
        at++;
    return at;
}

/* Each owner is a process of its own. */
static void sides_open(void)
{
    for (unsigned i = 0; i < OWNERS; i++) {
        struct side *side = &sides[i];
        *side = (struct side){.number = i};
        assert_int_equal(rig_start(&side->rig, MC_PATH_TCP, CAPACITY, true, false), 0);
    }
}

static void sides_close(void)
{
    for (unsigned i = 0; i < OWNERS; i++)
        rig_stop(&sides[i].rig);
}

static void sides_run(enum mc_transfer_kind kind, uint64_t timeout_ms)
{
    static const char *const keys[EACH] = {"one", "two", "three"};
    struct mc_path_batch *groups[OWNERS];
    event_count = 0;
    for (unsigned i = 0; i < OWNERS; i++) {
        struct side *side = &sides[i];
        for (unsigned k = 0; k < EACH; k++) {
            side->parts[k] = (struct iovec){side->bytes[k], LENGTH - k};
            if (kind == MC_TRANSFER_WRITE)
                rig_fill(side->bytes[k], LENGTH, i * EACH + k);
            else
                memset(side->bytes[k], 0, LENGTH);
            side->transfers[k] = rig_transfer(kind, k, side->rig.generation + 1 + k, (uint64_t)k * STRIDE, LENGTH - k,
                                              keys[k], &side->parts[k], 1);
            side->list[k] = &side->transfers[k];
        }
        side->group = (struct mc_path_batch){
            .path = side->rig.path,
            .transfers = side->list,
            .count = EACH,
            .run = {.deadline_ns = rig_deadline(timeout_ms), .doubt = doubted, .doubt_context = side},
            .ended = ended};
        assert_true(mc_path_runs_with_others(side->rig.path, side->list, EACH));
        groups[i] = &side->group;
    }
    mc_path_run_all(groups, OWNERS);
}

static bool is_read(const struct side *side)
{
    static uint8_t expected[LENGTH];
    bool whole = true;
    for (unsigned k = 0; k < EACH; k++) {
        rig_fill(expected, LENGTH, side->number * EACH + k);
        whole = whole && side->transfers[k].result == 0 && memcmp(expected, side->bytes[k], LENGTH - k) == 0;
    }
    return whole;
}

static void read_until_live(void)
{
    bool all = false;
    for (unsigned tries = 0; tries < PATIENT_MS / 10 && !all; tries++) {
        sides_run(MC_TRANSFER_READ, PATIENT_MS);
        all = true;
        for (unsigned i = 0; i < OWNERS; i++)
            all = all && is_read(&sides[i]);
        if (!all)
            usleep(10000);
    }
    assert_true(all);
}

static void writes_and_reads_go_to_all(void **state)
{
    (void)state;
    sides_open();
    sides_run(MC_TRANSFER_WRITE, PATIENT_MS);
    for (unsigned i = 0; i < OWNERS; i++) {
        for (unsigned k = 0; k < EACH; k++)
            assert_int_equal(sides[i].transfers[k].result, 0);
        assert_true(place_of(true, i) < event_count);
    }
    read_until_live();
    sides_close();
}

/* The first and the third are asked, and say nothing: who lives has answered before either of them is given up, and
 * both are waited for at the same time, so that the limit of one is not added to that of the other. */
static void stopped_owners_are_waited_for_together(void **state)
{
    (void)state;
    sides_open();
    sides_run(MC_TRANSFER_WRITE, PATIENT_MS);
    read_until_live();
    for (unsigned i = 0; i < OWNERS; i += 2)
        hold_still(sides[i].rig.peer);
    sides_run(MC_TRANSFER_READ, PATIENT_MS);
    for (unsigned i = 0; i < OWNERS; i++) {
        bool is_stopped = i % 2 == 0;
        assert_int_equal(is_read(&sides[i]), !is_stopped);
        assert_int_equal(sides[i].transfers[0].result, is_stopped ? MC_ERR_TRANSFER_FAIL : 0);
        assert_true(place_of(true, i) < event_count);
        for (unsigned k = 0; is_stopped && k < OWNERS; k++) {
            if (k % 2 == 1)
                assert_true(place_of(true, k) < place_of(true, i));
            else
                assert_true(place_of(false, k) < place_of(true, i));
        }
    }
    sides_close();
}

/* One has ended: that is known at once, and the others are read. */
static void an_owner_that_has_ended_ends_alone(void **state)
{
    (void)state;
    sides_open();
    sides_run(MC_TRANSFER_WRITE, PATIENT_MS);
    read_until_live();
    rig_peer_stop(&sides[1].rig);
    sides_run(MC_TRANSFER_READ, PATIENT_MS);
    for (unsigned i = 0; i < OWNERS; i++)
        assert_int_equal(is_read(&sides[i]), i != 1);
    assert_int_equal(sides[1].transfers[0].result, MC_ERR_TRANSFER_FAIL);
    sides_run(MC_TRANSFER_WRITE,
              PATIENT_MS); /* refused, as the bytes of these generations are there already, or lost */
    assert_true(sides[1].transfers[0].result < 0);
    for (unsigned i = 0; i < OWNERS; i++)
        assert_true(place_of(true, i) < event_count);
    sides_close();
}

int main(int count, char **arguments)
{
    if (count > 1 && strcmp(arguments[1], "rig-owner") == 0)
        return rig_owner_main(arguments);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writes_and_reads_go_to_all),
        cmocka_unit_test(stopped_owners_are_waited_for_together),
        cmocka_unit_test(an_owner_that_has_ended_ends_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
