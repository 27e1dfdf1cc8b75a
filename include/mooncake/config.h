/* SPDX-License-Identifier: Apache-2.0
 *
 * What programs in C++ for the original read of its transfer engine's settings, beside real_client.h. */
#ifndef MOONCAKE_CONFIG_H
#define MOONCAKE_CONFIG_H

#include <cstdint>

namespace mooncake
{

struct GlobalConfig {
    /* Bytes that may be registered at once; 0: no limit. What a device cannot take in one piece (MC_MAX_MR_SIZE of the
     * environment) the library divides by itself. */
    uint64_t max_mr_size = 0;
};

inline GlobalConfig &globalConfig()
{
    static GlobalConfig config;
    return config;
}

} // namespace mooncake
#endif
