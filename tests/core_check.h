/* Proves the invariants of the master's core by walking its whole state. No part of the product: for unit tests, the
 * simulator's oracle and the fuzzer. */
#ifndef TESTS_CORE_CHECK_H
#define TESTS_CORE_CHECK_H

struct mc_core;

/* NULL, or what is wrong. */
const char *mc_core_check(const struct mc_core *core);

#endif
