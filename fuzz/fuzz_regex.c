/* A pattern and a text, as a removal by pattern brings them: the pattern up to the first zero byte, then the text. */
#include "base/error.h"
#include "base/regex.h"

#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *end = size == 0 ? NULL : memchr(data, 0, size);
    size_t length = end == NULL ? size : (size_t)(end - data);
    struct mc_span text = end == NULL ? mc_span(data, size) : mc_span(end + 1, size - length - 1);
    struct mc_regex *regex = NULL;
    char why[128];
    memset(why, 'x', sizeof(why));
    int rc = mc_regex_compile(mc_span(data, length), &regex, why, sizeof(why));
    if (rc < 0) {
        mc_assert(rc == MC_ERR_INVALID_PARAMS && memchr(why, 0, sizeof(why)) != NULL);
        return 0;
    }
    uint64_t steps = 0;
    int found = mc_regex_search(regex, text, &steps);
    mc_assert(found == 0 || found == 1 || found == MC_ERR_BUSY);
    mc_assert(steps <= 2 * MC_REGEX_STEPS_MAX); /* what the limit promises, and what is counted beside it */
    mc_regex_free(regex);
    return 0;
}
