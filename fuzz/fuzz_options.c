/* The flag parser and the config files. The first byte chooses: 0 YAML, 1 JSON, else flags, one a line. */
#include "base/error.h"
#include "env/log.h"
#include "store/master/options.h"

#include <stdlib.h>
#include <string.h>

#define ARGUMENTS_MAX 64

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What was accepted must be printable, and what was printed must be acceptable. */
static void round_trip(const struct mc_options *options)
{
    struct mc_options again;
    struct mc_buffer text = {0}, more = {0};
    char error[MC_OPTION_ERROR_MAX];
    mc_options_print(options, &text);
    mc_master_options_init(&again);
    for (size_t i = 0; i < options->count; i++) {
        /* Texts may hold bytes that YAML does not allow; they are quoted, not translated. */
        for (const char *at = options->values[i].text; at != NULL && *at != 0; at++) {
            if ((unsigned char)*at >= 0x80)
                goto done;
        }
    }
    mc_assert(mc_master_options_apply(&again, MC_CONFIG_YAML, (const char *)text.data, text.length, "print", error,
                                      sizeof(error)) == 0);
    mc_options_help(&again, false, &more);
done:
    mc_options_free(&again);
    mc_buffer_free(&text);
    mc_buffer_free(&more);
}

static int parse_lines(struct mc_options *options, char *text, char *error, size_t error_size)
{
    char *argv[ARGUMENTS_MAX] = {text};
    int argc = 1;
    for (char *line = text; line != NULL && argc < ARGUMENTS_MAX;) {
        char *end = strchr(line, '\n');
        argv[argc++] = line;
        if (end != NULL)
            *end++ = 0;
        line = end;
    }
    return mc_options_parse(options, argc, argv, NULL, NULL, error, error_size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mc_options options;
    char error[MC_OPTION_ERROR_MAX] = "";
    if (size == 0)
        return 0;
    char *text = malloc(size);
    mc_assert(text != NULL);
    memcpy(text, data + 1, size - 1);
    text[size - 1] = 0;
    mc_log_set_level(MC_LOG_ERROR);
    mc_master_options_init(&options);
    int rc =
        data[0] == 0   ? mc_master_options_apply(&options, MC_CONFIG_YAML, text, size - 1, "fuzz", error, sizeof(error))
        : data[0] == 1 ? mc_master_options_apply(&options, MC_CONFIG_JSON, text, size - 1, "fuzz", error, sizeof(error))
                       : parse_lines(&options, text, error, sizeof(error));
    mc_assert((rc == 0) == (error[0] == 0));
    mc_assert(strchr(error, '\n') == NULL);
    if (rc == 0)
        round_trip(&options);
    mc_options_free(&options);
    free(text);
    return 0;
}
