/* master/mailbox: a question is answered, times out unrun, is refused after the close, and its argument is never
 * touched late. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/error.h"
#include "env/clock.h"
#include "store/master/mailbox.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#define QUESTIONS 2000

struct owner {
    struct mc_mailbox *mailbox;
    _Atomic bool is_done;
    pthread_t thread;
};

static void *serve(void *argument)
{
    struct owner *owner = argument;
    while (!atomic_load(&owner->is_done)) {
        struct pollfd waited = {.fd = mc_mailbox_fd(owner->mailbox), .events = POLLIN};
        if (poll(&waited, 1, 10) > 0)
            mc_mailbox_serve(owner->mailbox, NULL);
    }
    return NULL;
}

static void start(struct owner *owner)
{
    owner->mailbox = mc_mailbox_create();
    assert_non_null(owner->mailbox);
    atomic_store(&owner->is_done, false);
    assert_int_equal(pthread_create(&owner->thread, NULL, serve, owner), 0);
}

static void stop(struct owner *owner)
{
    atomic_store(&owner->is_done, true);
    pthread_join(owner->thread, NULL);
    mc_mailbox_destroy(owner->mailbox);
}

static void add(struct mc_core *core, void *argument)
{
    assert_null(core);
    *(int *)argument += 1; /* plain memory: the mailbox must order it */
}

static void many_questions(void **state)
{
    (void)state;
    struct owner owner;
    int count = 0;
    start(&owner);
    for (int i = 0; i < QUESTIONS; i++) {
        assert_int_equal(mc_mailbox_ask(owner.mailbox, add, &count, 5000), 0);
        assert_int_equal(count, i + 1);
    }
    stop(&owner);
}

static int in_all; /* the owner's thread alone adds to it */

static void add_to_all(struct mc_core *core, void *argument)
{
    (void)core;
    in_all++;
    *(int *)argument += 1;
}

static void *ask_again_and_again(void *argument)
{
    int count = 0;
    for (int i = 0; i < QUESTIONS; i++) {
        assert_int_equal(mc_mailbox_ask(argument, add_to_all, &count, 60000), 0);
        assert_int_equal(count, i + 1);
    }
    return NULL;
}

/* Each has its own answers, and no question is lost or run twice. */
static void many_askers(void **state)
{
    (void)state;
    struct owner owner;
    pthread_t askers[8];
    start(&owner);
    for (int i = 0; i < 8; i++)
        assert_int_equal(pthread_create(&askers[i], NULL, ask_again_and_again, owner.mailbox), 0);
    for (int i = 0; i < 8; i++)
        pthread_join(askers[i], NULL);
    stop(&owner);
    assert_int_equal(in_all, 8 * QUESTIONS);
}

struct turn {
    struct mc_mailbox *mailbox;
    int *turns, mine;
};

static void take_turn(struct mc_core *core, void *argument)
{
    struct turn *turn = argument;
    (void)core;
    turn->mine = ++*turn->turns;
}

static void *ask_in_turn(void *argument)
{
    struct turn *turn = argument;
    assert_int_equal(mc_mailbox_ask(turn->mailbox, take_turn, turn, 60000), 0);
    return NULL;
}

static void *ask_first(void *argument)
{
    struct turn *turn = argument;
    assert_int_equal(mc_mailbox_ask_first(turn->mailbox, take_turn, turn, 60000), 0);
    return NULL;
}

/* Of those that are there when the owner looks, and one in each of its turns. */
static void one_goes_before_all_others(void **state)
{
    (void)state;
    struct mc_mailbox *mailbox = mc_mailbox_create();
    int turns = 0;
    struct turn askers[4];
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        askers[i] = (struct turn){mailbox, &turns, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, i == 3 ? ask_first : ask_in_turn, &askers[i]), 0);
        while (mc_mailbox_waiting(mailbox) != (size_t)i + 1)
            usleep(1000);
    }
    for (int i = 0; i < 4; i++) {
        mc_mailbox_serve(mailbox, NULL);
        assert_int_equal(turns, i + 1);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(askers[i].mine, i == 3 ? 1 : i + 2);
    }
    mc_mailbox_destroy(mailbox);
}

static void *ask_in_vain(void *argument)
{
    int count = 0;
    int rc = mc_mailbox_ask(argument, add, &count, 60000);
    assert_int_equal(count, 0);
    return (void *)(intptr_t)rc;
}

/* One that waits no longer leaves the others where they were: they are served, or refused, all of them. */
static void one_of_many_gives_up(void **state)
{
    (void)state;
    struct mc_mailbox *mailbox = mc_mailbox_create();
    pthread_t askers[4];
    int count = 0;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&askers[i], NULL, ask_in_vain, mailbox), 0);
        assert_int_equal(mc_mailbox_ask(mailbox, add, &count, (uint64_t)i), MC_ERR_RPC_TIMEOUT);
    }
    mc_mailbox_close(mailbox);
    for (int i = 0; i < 4; i++) {
        void *rc;
        pthread_join(askers[i], &rc);
        assert_int_equal((int)(intptr_t)rc, MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS);
    }
    assert_int_equal(count, 0);
    mc_mailbox_destroy(mailbox);
}

static void a_question_that_nobody_takes_times_out(void **state)
{
    (void)state;
    struct mc_mailbox *mailbox = mc_mailbox_create();
    int count = 0;
    uint64_t start_ms = mc_clock_ms();
    assert_int_equal(mc_mailbox_ask(mailbox, add, &count, 50), MC_ERR_RPC_TIMEOUT);
    assert_true(mc_clock_ms() - start_ms >= 49);
    mc_mailbox_serve(mailbox, NULL); /* late: its argument may be gone */
    assert_int_equal(count, 0);
    assert_int_equal(mc_mailbox_ask(mailbox, add, &count, 0), MC_ERR_RPC_TIMEOUT);
    assert_int_equal(count, 0);
    mc_mailbox_destroy(mailbox);
}

static void slow(struct mc_core *core, void *argument)
{
    (void)core;
    usleep(100000);
    *(int *)argument = 7;
}

static void a_question_that_has_begun_is_waited_for(void **state)
{
    (void)state;
    struct owner owner;
    int value = 0;
    start(&owner);
    assert_int_equal(mc_mailbox_ask(owner.mailbox, slow, &value, 50), 0);
    assert_int_equal(value, 7);
    stop(&owner);
}

static void *close_soon(void *argument)
{
    usleep(50000);
    mc_mailbox_close(argument);
    return NULL;
}

static void closing_ends_the_wait(void **state)
{
    (void)state;
    struct mc_mailbox *mailbox = mc_mailbox_create();
    pthread_t thread;
    int count = 0;
    uint64_t start_ms = mc_clock_ms();
    assert_int_equal(pthread_create(&thread, NULL, close_soon, mailbox), 0);
    assert_int_equal(mc_mailbox_ask(mailbox, add, &count, 5000), MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS);
    assert_true(mc_clock_ms() - start_ms < 2000);
    pthread_join(thread, NULL);
    assert_int_equal(mc_mailbox_ask(mailbox, add, &count, 5000), MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS);
    assert_int_equal(count, 0);
    mc_mailbox_destroy(mailbox);
}

static void *refuse(void *argument)
{
    struct owner *owner = argument;
    while (!atomic_load(&owner->is_done)) {
        struct pollfd waited = {.fd = mc_mailbox_fd(owner->mailbox), .events = POLLIN};
        if (poll(&waited, 1, 10) > 0)
            mc_mailbox_refuse(owner->mailbox);
    }
    return NULL;
}

/* Without a core a question is refused at once and not run; the next one, when there is a core again, is. */
static void refused_while_there_is_no_core(void **state)
{
    struct owner owner;
    int value = 0;
    (void)state;
    owner.mailbox = mc_mailbox_create();
    assert_non_null(owner.mailbox);
    atomic_store(&owner.is_done, false);
    assert_int_equal(pthread_create(&owner.thread, NULL, refuse, &owner), 0);
    for (int i = 0; i < 100; i++)
        assert_int_equal(mc_mailbox_ask(owner.mailbox, add, &value, 60000), MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS);
    assert_int_equal(value, 0);
    atomic_store(&owner.is_done, true);
    pthread_join(owner.thread, NULL);
    mc_mailbox_refuse(owner.mailbox); /* nobody asks: nothing happens */
    atomic_store(&owner.is_done, false);
    assert_int_equal(pthread_create(&owner.thread, NULL, serve, &owner), 0);
    assert_int_equal(mc_mailbox_ask(owner.mailbox, add, &value, 60000), 0);
    assert_int_equal(value, 1);
    stop(&owner);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_questions),
        cmocka_unit_test(many_askers),
        cmocka_unit_test(one_goes_before_all_others),
        cmocka_unit_test(one_of_many_gives_up),
        cmocka_unit_test(refused_while_there_is_no_core),
        cmocka_unit_test(a_question_that_nobody_takes_times_out),
        cmocka_unit_test(a_question_that_has_begun_is_waited_for),
        cmocka_unit_test(closing_ends_the_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
