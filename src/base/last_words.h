/* What a failed assertion says goes there where it is set (env/log.c), which waits for no file for ever; else to
 * stderr. */
#ifndef MC_BASE_LAST_WORDS_H
#define MC_BASE_LAST_WORDS_H

#include <stddef.h>

extern void (*mc_last_words)(const char *text, size_t length);

#endif
