/* Error codes (include/mooncake.h) and assertions on our own mistakes. Bytes from a peer, a file or a caller never
 * assert. */
#ifndef MC_BASE_ERROR_H
#define MC_BASE_ERROR_H

#include "mooncake.h"

_Noreturn void mc_assert_failed(const char *file, int line, const char *text);
/* Always on. */
#define mc_assert(condition) ((condition) ? (void)0 : mc_assert_failed(__FILE__, __LINE__, #condition))

#endif
