/* Reads the settings of RDMA from the environment. */
#include "rdma/settings.h"

#include "base/variables.h"
#include "env/log.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define PATIENCE_LOSSES 2u

static int64_t number(enum mc_variable variable, enum mc_variable second, int64_t initial, int64_t least, int64_t most)
{
    enum mc_variable name = variable;
    const char *text = mc_variable_value(variable);
    if ((text == NULL || text[0] == 0) && second != MC_VARIABLE_NONE) {
        name = second;
        text = mc_variable_value(second);
    }
    if (text == NULL || text[0] == 0)
        return initial;
    char *rest;
    errno = 0;
    long long value = strtoll(text, &rest, 10);
    bool is_number = (text[0] >= '0' && text[0] <= '9') || (text[0] == '-' && text[1] >= '0' && text[1] <= '9');
    if (is_number && *rest == 0 && errno == 0 && value >= least && value <= most)
        return value;
    mc_log(WARNING, "%s=%.40s: a number from %lld to %lld is expected; %lld is used", mc_variable_name(name), text,
           (long long)least, (long long)most, (long long)initial);
    return initial;
}

static int64_t setup(void)
{
    static const char *const names[] = {"auto", "oob", "cm"}; /* in the order of enum mc_rdma_setup */
    const char *text = mc_variable(MC_RDMA_SETUP);
    if (text == NULL || text[0] == 0)
        return MC_RDMA_SETUP_AUTO;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcasecmp(text, names[i]) == 0)
            return (int64_t)i;
    mc_log(WARNING, "MC_RDMA_SETUP=%.40s: auto, oob or cm is expected; auto is used", text);
    return MC_RDMA_SETUP_AUTO;
}

uint64_t mc_rdma_patience_ns(const struct mc_rdma_settings *settings)
{
    uint64_t timeout_ns = 4096ull << settings->ack_timeout;
    return 4 * timeout_ns * PATIENCE_LOSSES;
}

void mc_rdma_settings_read(struct mc_rdma_settings *settings)
{
#define READ(field, variable, second, initial, least, most, text)                                                      \
    settings->field = number(MC_VARIABLE_##variable, MC_VARIABLE_##second, initial, least, most);
    MC_RDMA_SETTINGS_MAP(READ)
#undef READ
    settings->setup = setup();
    int64_t least_ms = (int64_t)(mc_rdma_patience_ns(settings) / 1000000u) + 1;
    const char *stall = mc_variable(MC_RDMA_STALL_MS);
    if ((stall == NULL || stall[0] == 0) && settings->stall_ms < least_ms)
        settings->stall_ms = least_ms;
    if ((settings->mtu_bytes & (settings->mtu_bytes - 1)) != 0) {
        mc_log(WARNING, "MC_MTU=%lld: 256, 512, 1024, 2048 or 4096 is expected; 4096 is used",
               (long long)settings->mtu_bytes);
        settings->mtu_bytes = 4096;
    }
}
