/* Patterns in Perl's syntax, searched anywhere in a text of bytes. Invariant: a search costs at most MC_REGEX_STEPS_MAX
 * steps (about 100 us), whatever the pattern: patterns come from users. */
#ifndef MC_BASE_REGEX_H
#define MC_BASE_REGEX_H

#include "base/bytes.h"

#define MC_REGEX_PATTERN_MAX 1024u /* bytes */
#define MC_REGEX_STEPS_MAX 3000u   /* of the matcher, in one search; about 40 ns each */

struct mc_regex;

/* 0; MC_ERR_INVALID_PARAMS for a pattern that is empty, too long or malformed, with one line of explanation in `why`
 * (which may be NULL); MC_ERR_NO_MEMORY. */
int mc_regex_compile(struct mc_span pattern, struct mc_regex **regex, char *why, size_t why_size);
void mc_regex_free(struct mc_regex *regex);
/* 1 found, 0 not found, MC_ERR_BUSY when the search was given up because it took too many steps. *steps (may be NULL)
 * grows by what it cost. */
int mc_regex_search(struct mc_regex *regex, struct mc_span text, uint64_t *steps);

#endif
