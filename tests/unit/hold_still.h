/* A process of a test that is to stand still. */
#ifndef MC_TESTS_HOLD_STILL_H
#define MC_TESTS_HOLD_STILL_H

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/wait.h>

#include <cmocka.h>

/* SIGSTOP to our own child; returns when all its threads have stopped: on a busy machine they go on until one of them
 * has had a processor to take the signal on. */
static inline void hold_still(pid_t child)
{
    int status;
    assert_int_equal(kill(child, SIGSTOP), 0);
    assert_true(waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status));
}

#endif
