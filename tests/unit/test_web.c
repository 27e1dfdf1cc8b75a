/* web: who leaves when there is no place for another one, who is let in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "env/clock.h"
#include "env/keys.h"
#include "store/master/http.h"
#include "web/web_inside.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define ROW 64 /* as many as are looked at */

enum { HONEST = 1, NEIGHBOUR = 2, CROWD = 3 }; /* addresses: which counters they have */

struct waiting {
    struct mc_web *web;
    struct mc_web_connection *all[2 * ROW];
    int peers[2 * ROW];
    size_t count;
};

static struct waiting begin(uint16_t of_honest, uint16_t of_neighbour, uint16_t of_crowd)
{
    struct waiting waiting = {.web = mc_web_create(16384)};
    assert_non_null(waiting.web);
    waiting.web->places = 10000;
    waiting.web->shares[HONEST] = of_honest;
    waiting.web->shares[NEIGHBOUR] = of_neighbour;
    waiting.web->shares[CROWD] = of_crowd;
    waiting.web->count = (size_t)of_honest + of_neighbour + of_crowd;
    return waiting;
}

/* The newest one; speaks: something has come that was not read. */
static struct mc_web_connection *wait_as(struct waiting *waiting, uint32_t share, bool speaks)
{
    int fds[2];
    struct mc_web_list *list = &waiting->web->waiting;
    struct mc_web_connection *one = calloc(1, sizeof(*one));
    assert_non_null(one);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    if (speaks)
        assert_int_equal(write(fds[1], "G", 1), 1);
    *one = (struct mc_web_connection){.web = waiting->web, .fd = fds[0], .share = share, .older = list->newest};
    *(list->newest != NULL ? &list->newest->newer : &list->oldest) = one;
    list->newest = one;
    list->count++;
    waiting->peers[waiting->count] = fds[1];
    waiting->all[waiting->count++] = one;
    return one;
}

static void end(struct waiting *waiting)
{
    for (size_t i = 0; i < waiting->count; i++) {
        close(waiting->peers[i]);
        if (!waiting->all[i]->is_dead)
            close(waiting->all[i]->fd);
        free(waiting->all[i]);
    }
    mc_web_destroy(waiting->web);
}

static bool make_room_for(struct waiting *waiting, uint32_t share, uint32_t newcomer)
{
    pthread_mutex_lock(&waiting->web->lock);
    bool is_made = mc_web_make_room(waiting->web, share, newcomer);
    pthread_mutex_unlock(&waiting->web->lock);
    return is_made;
}

static bool make_room(struct waiting *waiting, uint32_t share)
{
    return make_room_for(waiting, share, share);
}

/* All of a crowd say a byte a second, and one has just come whose request is on its way: it is the only silent one. */
static void who_has_just_come_stays_while_a_crowd_speaks(void **state)
{
    struct waiting waiting = begin(3, 0, 9000);
    (void)state;
    struct mc_web_connection *honest = wait_as(&waiting, HONEST, false);
    honest->since_ns = mc_clock_ns();
    for (int i = 1; i < ROW; i++)
        (void)wait_as(&waiting, CROWD, true);
    for (int i = 0; i < ROW / 2; i++)
        assert_true(make_room(&waiting, MC_WEB_SHARES));
    assert_false(honest->is_dead);
    assert_int_equal(waiting.web->shares[HONEST], 3);
    assert_int_equal(waiting.web->shares[CROWD], 9000 - ROW / 2);
    end(&waiting);
}

/* And nobody else is there who could leave: for one of the crowd nobody does, nor for one of an address that has as
 * many, nor when it is not known who comes. */
static void for_who_comes_one_of_a_crowd_that_speaks_leaves(void **state)
{
    struct waiting waiting = begin(3, 4000, 5000);
    (void)state;
    for (int i = 0; i < ROW; i++)
        (void)wait_as(&waiting, CROWD, true);
    assert_false(make_room_for(&waiting, MC_WEB_SHARES, CROWD));
    assert_false(make_room_for(&waiting, MC_WEB_SHARES, NEIGHBOUR));
    assert_false(make_room_for(&waiting, MC_WEB_SHARES, MC_WEB_SHARES));
    assert_true(make_room_for(&waiting, MC_WEB_SHARES, HONEST));
    assert_int_equal(waiting.web->shares[CROWD], 4999);
    end(&waiting);
}

static void of_a_crowd_the_silent_one_leaves(void **state)
{
    struct waiting waiting = begin(3, 0, 9000);
    (void)state;
    struct mc_web_connection *honest = wait_as(&waiting, HONEST, false), *silent = NULL;
    for (int i = 1; i < ROW; i++) {
        struct mc_web_connection *one = wait_as(&waiting, CROWD, i != 20);
        silent = i == 20 ? one : silent;
    }
    assert_true(make_room(&waiting, MC_WEB_SHARES));
    assert_true(silent->is_dead);
    assert_false(honest->is_dead);
    end(&waiting);
}

/* Somebody who has many connections and uses them, as a proxy does, beside strangers from many addresses: who rests
 * leaves, and nobody who has said something. */
static void who_rests_leaves_and_nobody_who_speaks(void **state)
{
    struct waiting waiting = begin(3, 90, 0);
    (void)state;
    (void)wait_as(&waiting, NEIGHBOUR, true);
    struct mc_web_connection *rests = wait_as(&waiting, HONEST, false);
    (void)wait_as(&waiting, NEIGHBOUR, true);
    assert_true(make_room(&waiting, MC_WEB_SHARES));
    assert_true(rests->is_dead);
    assert_false(make_room(&waiting, MC_WEB_SHARES));
    assert_int_equal(waiting.web->waiting.count, 2);
    end(&waiting);
}

/* Of two that are about as many, the silent one, whoever has a few more. */
static void of_about_as_many_the_silent_one_leaves(void **state)
{
    struct waiting waiting = begin(0, 3000, 5000);
    (void)state;
    (void)wait_as(&waiting, CROWD, true);
    struct mc_web_connection *rests = wait_as(&waiting, NEIGHBOUR, false);
    assert_true(make_room(&waiting, MC_WEB_SHARES));
    assert_true(rests->is_dead);
    end(&waiting);
}

/* An address that has all it may have: one of its own leaves, and nobody else's. */
static void for_ones_own_address_ones_own_leaves(void **state)
{
    struct waiting waiting = begin(3, 90, 7500);
    (void)state;
    struct mc_web_connection *honest = wait_as(&waiting, HONEST, false), *rests = wait_as(&waiting, NEIGHBOUR, false),
                             *own = wait_as(&waiting, CROWD, false);
    assert_true(make_room(&waiting, CROWD));
    assert_true(own->is_dead);
    assert_false(make_room(&waiting, CROWD));
    assert_false(honest->is_dead);
    assert_false(rests->is_dead);
    end(&waiting);
}

/* Its key is revoked after it was let in: what it is told is its tenant's all the same, not everybody's. */
static void who_is_let_in_stays_of_its_tenant(void **state)
{
#define SECRET "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
    static const char text[] = "GET /get_all_keys HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a:" SECRET "\r\n\r\n";
    static const char others[] = "other " SECRET " read\n",
                      both[] = "a " SECRET " read team-a\nother " SECRET " read\n";
    char path[] = "/tmp/test_web_XXXXXX", error[1024];
    const struct mc_message_rules rules = {4096, 100, true};
    struct waiting waiting = begin(0, 0, 0);
    struct mc_web_request request = {.connection = wait_as(&waiting, HONEST, false)};
    struct mc_scope scope, expected;
    bool is_said = false;
    (void)state;
    int fd = mkstemp(path);
    assert_int_equal(pwrite(fd, both, strlen(both), 0), (ssize_t)strlen(both));
    mc_keys_use(path);
    assert_int_equal(mc_keys_check(error, sizeof(error)), 0);
    assert_true(mc_head_read_request(&request.head, &rules, text, strlen(text)) > 0);
    request.path = mc_span_string("/get_all_keys");
    assert_true(mc_web_is_permitted(&request, MC_RIGHT_READ, true));
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(pwrite(fd, others, strlen(others), 0), (ssize_t)strlen(others));
    assert_int_equal(mc_keys_check(error, sizeof(error)), 0);
    assert_true(mc_http_scope(&request, &scope, &is_said));
    assert_true(mc_scope_make(&expected, mc_span_string("team-a")));
    assert_true(is_said && mc_span_equal(mc_scope_span(&scope), mc_scope_span(&expected)));
    mc_head_free(&request.head);
    mc_keys_use("");
    assert_int_equal(mc_keys_check(error, sizeof(error)), 0);
    close(fd);
    unlink(path);
    end(&waiting);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_has_just_come_stays_while_a_crowd_speaks),
        cmocka_unit_test(for_who_comes_one_of_a_crowd_that_speaks_leaves),
        cmocka_unit_test(of_a_crowd_the_silent_one_leaves),
        cmocka_unit_test(who_rests_leaves_and_nobody_who_speaks),
        cmocka_unit_test(of_about_as_many_the_silent_one_leaves),
        cmocka_unit_test(for_ones_own_address_ones_own_leaves),
        cmocka_unit_test(who_is_let_in_stays_of_its_tenant),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
