/* What an engine makes of an address that stands under its name at the metadata server. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "transfer/serve/publish.h"

#include <netdb.h>
#include <stdio.h>
#include <unistd.h>

static _Atomic int failure; /* what the name server says; 0: nothing, as long as is_silent */
static _Atomic bool is_silent;

int getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **found)
{
    (void)host, (void)port, (void)hints, (void)found;
    while (is_silent)
        usleep(1000);
    return failure;
}

/* Each time another name: what was found out of one is remembered for a moment. */
static enum mc_sight sight_of(int says)
{
    static struct mc_transfer_engine engine;
    static unsigned number;
    char address[64];
    snprintf(address, sizeof(address), "engine-%u.example:1234", ++number);
    failure = says == 0 ? EAI_AGAIN : says;
    is_silent = says == 0;
    enum mc_sight sight = mc_transfer_look(&engine, address);
    is_silent = false;
    return sight;
}

/* A name that is not there is something; that nobody can say so is nothing. */
static void names(void **state)
{
    (void)state;
    assert_int_equal(sight_of(EAI_NONAME), MC_SIGHT_NAMELESS);
    assert_int_equal(sight_of(EAI_NODATA), MC_SIGHT_NAMELESS);
    assert_int_equal(sight_of(EAI_AGAIN), MC_SIGHT_UNSEEN);
    assert_int_equal(sight_of(EAI_FAIL), MC_SIGHT_UNSEEN);
    assert_int_equal(sight_of(0), MC_SIGHT_UNSEEN);
    assert_int_equal(mc_transfer_look(NULL, ""), MC_SIGHT_ENDED);
}

static unsigned looks_until(struct mc_doubt *doubt, enum mc_sight sight)
{
    for (unsigned i = 1; i < 1000; i++)
        if (mc_transfer_doubt(doubt, "there:1", sight))
            return i;
    return 0;
}

/* At a look in five seconds: a minute without a way, ten without a name. */
static void doubts(void **state)
{
    (void)state;
    struct mc_doubt doubt = {0};
    assert_int_equal(looks_until(&doubt, MC_SIGHT_ENDED), 1);
    assert_int_equal(looks_until(&doubt, MC_SIGHT_DOUBTFUL), 12);
    doubt = (struct mc_doubt){0};
    assert_int_equal(looks_until(&doubt, MC_SIGHT_NAMELESS), 120);
    doubt = (struct mc_doubt){0};
    assert_int_equal(looks_until(&doubt, MC_SIGHT_LIVES), 0);
    assert_int_equal(looks_until(&doubt, MC_SIGHT_UNSEEN), 0);
    for (unsigned i = 0; i < 100; i++)
        assert_false(mc_transfer_doubt(&doubt, "there:1", MC_SIGHT_NAMELESS));
    assert_false(mc_transfer_doubt(&doubt, "there:1", MC_SIGHT_UNSEEN)); /* in a row */
    for (unsigned i = 0; i < 119; i++)
        assert_false(mc_transfer_doubt(&doubt, "there:1", MC_SIGHT_NAMELESS));
    assert_false(mc_transfer_doubt(&doubt, "elsewhere:1", MC_SIGHT_NAMELESS)); /* at one address */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),
        cmocka_unit_test(doubts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
