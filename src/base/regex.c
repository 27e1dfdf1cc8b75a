/* PCRE2 with a strict budget. Its own match limit starts anew at every position of the text, so the work of a search is
 * counted here instead: the automatic callout before every item of the pattern. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "base/regex.h"

#include "mooncake.h"

#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>

#define HEAP_LIMIT_KIB 1024u /* backtracking memory of one search */

struct mc_regex {
    pcre2_code *code;
    pcre2_match_data *match;
    pcre2_match_context *context;
    uint64_t steps; /* of the search in progress */
};

static int count_step(pcre2_callout_block *block, void *data)
{
    struct mc_regex *regex = data;
    (void)block;
    return ++regex->steps > MC_REGEX_STEPS_MAX ? PCRE2_ERROR_CALLOUT : 0;
}

void mc_regex_free(struct mc_regex *regex)
{
    if (regex == NULL)
        return;
    pcre2_match_context_free(regex->context);
    pcre2_match_data_free(regex->match);
    pcre2_code_free(regex->code);
    free(regex);
}

static void explain(int number, size_t offset, char *why, size_t why_size)
{
    PCRE2_UCHAR text[128] = "";
    if (why == NULL || why_size == 0)
        return;
    (void)pcre2_get_error_message(number, text, sizeof(text));
    (void)snprintf(why, why_size, "%s (at byte %zu)", (const char *)text, offset);
}

int mc_regex_compile(struct mc_span pattern, struct mc_regex **regex, char *why, size_t why_size)
{
    int number = 0;
    size_t offset = 0;
    *regex = NULL;
    if (pattern.length == 0 || pattern.length > MC_REGEX_PATTERN_MAX) {
        if (why != NULL && why_size > 0)
            (void)snprintf(why, why_size, "a pattern has 1 to %u bytes", MC_REGEX_PATTERN_MAX);
        return MC_ERR_INVALID_PARAMS;
    }
    struct mc_regex *made = calloc(1, sizeof(*made));
    if (made == NULL)
        return MC_ERR_NO_MEMORY;
    made->code =
        pcre2_compile(pattern.data, pattern.length, PCRE2_AUTO_CALLOUT | PCRE2_NEVER_UTF, &number, &offset, NULL);
    if (made->code == NULL) {
        explain(number, offset, why, why_size);
        mc_regex_free(made);
        return MC_ERR_INVALID_PARAMS;
    }
    made->match = pcre2_match_data_create(1, NULL);
    made->context = pcre2_match_context_create(NULL);
    if (made->match == NULL || made->context == NULL) {
        mc_regex_free(made);
        return MC_ERR_NO_MEMORY;
    }
    (void)pcre2_set_heap_limit(made->context, HEAP_LIMIT_KIB);
    (void)pcre2_set_match_limit(made->context, MC_REGEX_STEPS_MAX);
    (void)pcre2_set_depth_limit(made->context, MC_REGEX_STEPS_MAX);
    (void)pcre2_set_callout(made->context, count_step, made);
    *regex = made;
    return 0;
}

int mc_regex_search(struct mc_regex *regex, struct mc_span text, uint64_t *steps)
{
    regex->steps = 0;
    int rc = pcre2_match(regex->code, text.data, text.length, 0, 0, regex->match, regex->context);
    if (steps != NULL)
        *steps += regex->steps + 1;
    if (rc >= 0)
        return 1;
    return rc == PCRE2_ERROR_NOMATCH ? 0 : MC_ERR_BUSY;
}
