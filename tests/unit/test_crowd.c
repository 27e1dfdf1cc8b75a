/* env/crowd: a few at a time, each in its turn. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "env/crowd.h"

#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MANY = 40 };

struct many {
    int crowd, ours[MANY], theirs[MANY];
};

static struct many begin(void)
{
    struct many many = {.crowd = mc_crowd_open()};
    assert_true(many.crowd >= 0);
    for (int i = 0; i < MANY; i++) {
        int fds[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
        many.ours[i] = fds[0];
        many.theirs[i] = fds[1];
        assert_true(mc_crowd_add(many.crowd, fds[0], 1000 + (uint64_t)i));
    }
    return many;
}

static void end(struct many *many)
{
    for (int i = 0; i < MANY; i++) {
        close(many->ours[i]);
        close(many->theirs[i]);
    }
    close(many->crowd);
}

static bool is_readable(const struct many *many)
{
    struct pollfd one = {.fd = many->crowd, .events = POLLIN};
    return poll(&one, 1, 0) == 1;
}

static void speak(const struct many *many, int i)
{
    assert_int_equal(write(many->theirs[i], "x", 1), 1);
}

static void it_is_readable_while_one_of_them_is(void **state)
{
    struct many many = begin();
    uint64_t tag;
    char byte;
    (void)state;
    assert_false(is_readable(&many));
    assert_false(mc_crowd_next(many.crowd, &tag));
    speak(&many, 7);
    assert_true(is_readable(&many));
    assert_true(mc_crowd_next(many.crowd, &tag));
    assert_int_equal(tag, 1007);
    assert_true(is_readable(&many)); /* told, and not read */
    assert_int_equal(read(many.ours[7], &byte, 1), 1);
    assert_false(is_readable(&many));
    end(&many);
}

/* Nobody reads any of them: all the same each is told before one is told again. */
static void all_of_them_have_their_turn(void **state)
{
    struct many many = begin();
    uint64_t tag;
    (void)state;
    for (int i = 0; i < MANY; i++)
        speak(&many, i);
    for (int round = 0; round < 3; round++) {
        bool was_told[MANY] = {false};
        for (int i = 0; i < MANY; i++) {
            assert_true(mc_crowd_next(many.crowd, &tag));
            assert_in_range(tag, 1000, 1000 + MANY - 1);
            assert_false(was_told[tag - 1000]);
            was_told[tag - 1000] = true;
        }
    }
    end(&many);
}

static void who_has_left_is_told_of_no_more(void **state)
{
    struct many many = begin();
    uint64_t tag, other = 0;
    (void)state;
    speak(&many, 1);
    speak(&many, 2);
    mc_crowd_remove(many.crowd, many.ours[1]);
    assert_true(mc_crowd_next(many.crowd, &tag));
    assert_int_equal(tag, 1002);
    close(many.theirs[3]); /* an end is told, too */
    many.theirs[3] = -1;
    assert_true(mc_crowd_next(many.crowd, &tag) && mc_crowd_next(many.crowd, &other));
    assert_true(tag != other && tag + other == 1002 + 1003);
    end(&many);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_readable_while_one_of_them_is),
        cmocka_unit_test(all_of_them_have_their_turn),
        cmocka_unit_test(who_has_left_is_told_of_no_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
