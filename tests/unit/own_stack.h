/* A function on a stack whose bytes can be looked at when it has returned: what it has left there. */
#ifndef MC_TEST_OWN_STACK_H
#define MC_TEST_OWN_STACK_H

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define OWN_STACK_BYTES (1u << 20)

struct own_stack_call {
    void *(*function)(void *argument);
    void *argument;
};

/* As far as the compiler knows somebody reads and writes the bytes: they lie in memory, together. */
static inline void own_stack_use(void *bytes)
{
    __asm__ volatile("" : : "r"(bytes) : "memory");
}

/* Deep down, where the end of a thread does not write. */
static inline void *own_stack_main(void *argument)
{
    struct own_stack_call *call = argument;
    char between[OWN_STACK_BYTES / 4];
    own_stack_use(between);
    void *returned = call->function(call->argument);
    own_stack_use(between);
    return returned;
}

/* How often those bytes lie there afterwards. */
static inline unsigned left_on_stack(void *(*function)(void *argument), void *argument, const void *bytes,
                                     size_t length)
{
    pthread_attr_t attributes;
    pthread_t thread;
    struct own_stack_call call = {function, argument};
    unsigned count = 0;
    char *stack = mmap(NULL, OWN_STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(stack != MAP_FAILED);
    assert_int_equal(pthread_attr_init(&attributes), 0);
    assert_int_equal(pthread_attr_setstack(&attributes, stack, OWN_STACK_BYTES), 0);
    assert_int_equal(pthread_create(&thread, &attributes, own_stack_main, &call), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    (void)pthread_attr_destroy(&attributes);
    for (size_t at = 0; at + length <= OWN_STACK_BYTES; at++)
        count += stack[at] == *(const char *)bytes && memcmp(stack + at, bytes, length) == 0;
    assert_int_equal(munmap(stack, OWN_STACK_BYTES), 0);
    return count;
}

#endif
