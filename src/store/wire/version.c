#include "store/wire/version.h"

#include "base/build.h"
#include "base/error.h"
#include "base/trace.h"

uint64_t mc_wire_features(void)
{
    const uint64_t traces = UINT64_C(1) << MC_FEATURE_TRACES;
    return mc_traces_are_on() ? MC_FEATURES_OURS : MC_FEATURES_OURS & ~traces;
}

int mc_wire_agree(struct mc_wire_peer *peer, uint16_t version_min, uint16_t version_max, uint64_t features)
{
    *peer = (struct mc_wire_peer){0};
    if (version_min > version_max || version_min > MC_WIRE_VERSION_MAX || version_max < MC_WIRE_VERSION_MIN)
        return MC_ERR_INVALID_VERSION;
    peer->version = version_max < MC_WIRE_VERSION_MAX ? version_max : MC_WIRE_VERSION_MAX;
    peer->features = features & mc_wire_features();
    return 0;
}

void mc_wire_hello_sign(struct mc_wire_hello *hello)
{
    hello->magic = MC_WIRE_MAGIC;
    hello->version_min = MC_WIRE_VERSION_MIN;
    hello->version_max = MC_WIRE_VERSION_MAX;
    hello->features = mc_wire_features();
    hello->build = mc_span_string(mc_build());
}

void mc_wire_hello_reply_sign(struct mc_wire_hello_reply *reply)
{
    reply->version_min = MC_WIRE_VERSION_MIN;
    reply->version_max = MC_WIRE_VERSION_MAX;
    reply->features = mc_wire_features();
    reply->build = mc_span_string(mc_build());
}

const char *mc_wire_build(char text[MC_BUILD_TEXT_MAX], struct mc_span build)
{
    const char *from = build.data;
    size_t length = build.length < MC_BUILD_TEXT_MAX ? build.length : MC_BUILD_TEXT_MAX - 1;
    if (length == 0) {
        snprintf(text, MC_BUILD_TEXT_MAX, "an earlier build");
        return text;
    }
    for (size_t i = 0; i < length; i++)
        text[i] = from[i] >= ' ' && from[i] <= '~' && from[i] != '"' && from[i] != '\\' ? from[i] : '?';
    text[length] = 0;
    return text;
}
