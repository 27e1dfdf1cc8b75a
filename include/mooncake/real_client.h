/* SPDX-License-Identifier: Apache-2.0
 *
 * The original's store client in C++, as programs use it that were written for it: the
 * same names over store_c.h, which says what every call does, takes and returns. C++17; put() wants C++20. Link with
 * libmooncake_store. Everything is inline: no C++ crosses the library's border, so any compiler and standard library
 * fits. Nothing throws but std::bad_alloc.
 *
 * Of the original's RealClient this has the calls on whole objects. What others need is in mooncake.h. */
#ifndef MOONCAKE_REAL_CLIENT_H
#define MOONCAKE_REAL_CLIENT_H

#include "../mooncake.h"
#include "../store_c.h"

#include <cctype>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>
#if __cplusplus >= 202002L
#include <span>
#endif

namespace mooncake
{

/* Of setup_internal. Must be there: local_hostname, metadata_server (which changes nothing). May be: protocol ("tcp"),
 * global_segment_size, local_buffer_size (bytes, or "512mb", "3 GB"; 16 MiB), rdma_devices or device_name,
 * master_server_addr or master_server_address ("127.0.0.1:50051"), enable_ssd_offload with ssd_offload_path, data_dir.
 * What else there is changes nothing, and is said on stderr. */
using ConfigDict = std::unordered_map<std::string, std::string>;

enum class ErrorCode : int32_t {
    OK = 0,
#define MC_ERROR_ENUM(name, value, text) name = (value),
    MC_ERROR_MAP(MC_ERROR_ENUM)
#undef MC_ERROR_ENUM
};

enum class SoftPinAction : uint8_t { PRESERVE = 0, ENABLE = 1, DISABLE = 2 };

struct ReplicateConfig {
    size_t replica_num{1};
    SoftPinAction soft_pin_action{SoftPinAction::PRESERVE}; /* ENABLE pins; a put cannot unpin */
    bool with_hard_pin{false};
    std::vector<std::string> preferred_segments{};
    std::string preferred_segment{}; /* one more, behind the others */
};

/* What std::expected<void, ErrorCode> is asked. */
class SetupResult
{
  public:
    explicit SetupResult(int code) : code_(code) {}
    bool has_value() const { return code_ == 0; }
    explicit operator bool() const { return has_value(); }
    ErrorCode error() const { return static_cast<ErrorCode>(code_); }

  private:
    int code_;
};

namespace detail
{

/* The config in C; it borrows the segments' names. */
class Replicas
{
  public:
    explicit Replicas(const ReplicateConfig &config)
    {
        for (const std::string &name : config.preferred_segments)
            names_.push_back(name.c_str());
        if (!config.preferred_segment.empty())
            names_.push_back(config.preferred_segment.c_str());
        config_.replica_num = config.replica_num;
        config_.with_soft_pin = config.soft_pin_action == SoftPinAction::ENABLE ? 1 : 0;
        config_.with_hard_pin = config.with_hard_pin ? 1 : 0;
        config_.preferred_segments = names_.data();
        config_.preferred_segments_count = names_.size();
    }
    Replicas(const Replicas &) = delete;
    Replicas &operator=(const Replicas &) = delete;
    const mooncake_replicate_config_t *get() const { return &config_; }

  private:
    std::vector<const char *> names_;
    mooncake_replicate_config_t config_{};
};

/* A key with a zero in it is none: "", which every call refuses as such. */
inline const char *c_key(const std::string &key)
{
    return key.find('\0') == std::string::npos ? key.c_str() : "";
}

inline std::vector<const char *> pointers(const std::vector<std::string> &keys)
{
    std::vector<const char *> pointers;
    pointers.reserve(keys.size() + 1); /* data() must not be NULL, also of none */
    for (const std::string &key : keys)
        pointers.push_back(c_key(key));
    return pointers;
}

/* "3gb", "16 MB", "1024": powers of 1024. false: not a size, or more than there can be. */
inline bool parse_size(const std::string &text, uint64_t *size)
{
    size_t at = text.find_first_not_of(' '), digits = at;
    uint64_t value = 0;
    for (; digits < text.size() && std::isdigit(static_cast<unsigned char>(text[digits])) != 0; digits++)
        if (__builtin_mul_overflow(value, 10u, &value) ||
            __builtin_add_overflow(value, static_cast<unsigned>(text[digits] - '0'), &value))
            return false;
    std::string unit;
    for (size_t i = digits; i < text.size(); i++)
        if (text[i] != ' ')
            unit += static_cast<char>(std::tolower(static_cast<unsigned char>(text[i])));
    if (at == std::string::npos || digits == at)
        return false;
    static const std::unordered_map<std::string, unsigned> shifts = {
        {"", 0},     {"b", 0},  {"k", 10},  {"kb", 10},  {"kib", 10}, {"m", 20},  {"mb", 20},
        {"mib", 20}, {"g", 30}, {"gb", 30}, {"gib", 30}, {"t", 40},   {"tb", 40}, {"tib", 40}};
    const auto found = shifts.find(unit);
    *size = found == shifts.end() ? 0 : value << found->second;
    return found != shifts.end() && *size >> found->second == value && *size <= static_cast<uint64_t>(INT64_MAX);
}

} // namespace detail

class RealClient
{
  public:
    RealClient() : store_(mooncake_store_create()) {}
    ~RealClient() { mooncake_store_destroy(store_); }
    RealClient(const RealClient &) = delete;
    RealClient &operator=(const RealClient &) = delete;

    static std::shared_ptr<RealClient> create()
    {
        auto client = std::make_shared<RealClient>();
        return client->store_ == nullptr ? nullptr : client;
    }

    /* ---- life ---- */

    SetupResult setup_internal(const ConfigDict &config)
    {
        static const char *const known[] = {"local_hostname",     "metadata_server",    "global_segment_size",
                                            "local_buffer_size",  "protocol",           "rdma_devices",
                                            "device_name",        "master_server_addr", "master_server_address",
                                            "enable_ssd_offload", "ssd_offload_path",   "data_dir"};
        for (const auto &entry : config) {
            bool is_known = false;
            for (const char *name : known)
                is_known = is_known || entry.first == name;
            if (!is_known)
                std::fprintf(stderr, "mooncake: setup: \"%s\" changes nothing\n", entry.first.c_str());
        }
        const auto text = [&config](const char *name, const char *spelling, const char *otherwise) {
            auto found = config.find(name);
            if (found == config.end())
                found = config.find(spelling);
            return found == config.end() ? otherwise : found->second.c_str();
        };
        struct mc_store_config ours = {};
        ours.local_hostname = text("local_hostname", "", "");
        ours.metadata_server = text("metadata_server", "", "");
        ours.protocol = text("protocol", "", "tcp");
        ours.rdma_devices = text("rdma_devices", "device_name", "");
        ours.master_server_addr = text("master_server_addr", "master_server_address", "127.0.0.1:50051");
        ours.data_dir = text("data_dir", "", nullptr);
        const std::string offload = text("enable_ssd_offload", "", "");
        const bool is_offload = offload == "true" || offload == "True" || offload == "1";
        ours.disk_paths = is_offload ? text("ssd_offload_path", "", nullptr) : nullptr;
        const bool is_complete =
            *ours.local_hostname != 0 && *ours.metadata_server != 0 &&
            detail::parse_size(text("global_segment_size", "", "16mb"), &ours.global_segment_size) &&
            detail::parse_size(text("local_buffer_size", "", "16mb"), &ours.local_buffer_size);
        if (!is_complete)
            std::fprintf(stderr,
                         "mooncake: setup: local_hostname and metadata_server must be there, and sizes be sizes\n");
        return SetupResult(is_complete ? mc_store_c_open(store_, &ours) : MC_ERR_INVALID_PARAMS);
    }
    int setup_real(const std::string &local_hostname, const std::string &metadata_server,
                   size_t global_segment_size = 16u << 20, size_t local_buffer_size = 16u << 20,
                   const std::string &protocol = "tcp", const std::string &rdma_devices = "",
                   const std::string &master_server_addr = "127.0.0.1:50051")
    {
        return mooncake_store_setup(store_, local_hostname.c_str(), metadata_server.c_str(), global_segment_size,
                                    local_buffer_size, protocol.c_str(), rdma_devices.c_str(),
                                    master_server_addr.c_str());
    }
    int initAll(const std::string &protocol, const std::string &device_name, size_t mount_segment_size = 16u << 20)
    {
        return mooncake_store_init_all(store_, protocol.c_str(), device_name.c_str(), mount_segment_size);
    }
    /* Leaves the cluster; calls of other threads are waited for. Done by the destructor too. */
    int tearDownAll() { return mc_store_c_close(store_); }
    int health_check() { return mooncake_store_health_check(store_); }
    std::string get_hostname() const
    {
        char name[512] = "";
        return mooncake_store_get_hostname(store_, name, sizeof(name)) == 0 ? name : "";
    }

    /* ---- memory ---- */

    int register_buffer(void *buffer, size_t size) { return mooncake_store_register_buffer(store_, buffer, size); }
    int unregister_buffer(void *buffer) { return mooncake_store_unregister_buffer(store_, buffer); }

    /* ---- one object ---- */

#if __cplusplus >= 202002L
    int put(const std::string &key, std::span<const char> value, const ReplicateConfig &config = ReplicateConfig{})
    {
        return mooncake_store_put(store_, detail::c_key(key), value.data(), value.size(),
                                  detail::Replicas(config).get());
    }
#endif
    int put_from(const std::string &key, void *buffer, size_t size, const ReplicateConfig &config = ReplicateConfig{})
    {
        return mooncake_store_put_from(store_, detail::c_key(key), buffer, size, detail::Replicas(config).get());
    }
    int64_t get_into(const std::string &key, void *buffer, size_t size)
    {
        return mooncake_store_get_into(store_, detail::c_key(key), buffer, size);
    }
    int isExist(const std::string &key)
    {
        return mooncake_store_is_exist(store_, detail::c_key(key));
    }
    int64_t getSize(const std::string &key)
    {
        return mooncake_store_get_size(store_, detail::c_key(key));
    }
    int remove(const std::string &key, bool force = false)
    {
        return mooncake_store_remove(store_, detail::c_key(key), force ? 1 : 0);
    }
    long removeByRegex(const std::string &pattern, bool force = false)
    {
        if (pattern.find('\0') != std::string::npos)
            return MC_ERR_INVALID_PARAMS;
        return static_cast<long>(mooncake_store_remove_by_regex(store_, pattern.c_str(), force ? 1 : 0));
    }
    long removeAll(bool force = false)
    {
        return static_cast<long>(mooncake_store_remove_all(store_, force ? 1 : 0));
    }

    /* ---- many: a result for each key, in their order; arrays of different lengths: -600 for each ---- */

    std::vector<int> batch_put_from(const std::vector<std::string> &keys, const std::vector<void *> &buffers,
                                    const std::vector<size_t> &sizes, const ReplicateConfig &config = ReplicateConfig{})
    {
        std::vector<int> results(keys.size(), MC_ERR_INVALID_PARAMS);
        auto names = detail::pointers(keys);
        if (buffers.size() == keys.size() && sizes.size() == keys.size() && !keys.empty())
            whole(mooncake_store_batch_put_from(store_, names.data(), const_cast<void **>(buffers.data()), sizes.data(),
                                                keys.size(), detail::Replicas(config).get(), results.data()),
                  results);
        return results;
    }
    std::vector<int64_t> batch_get_into(const std::vector<std::string> &keys, const std::vector<void *> &buffers,
                                        const std::vector<size_t> &sizes)
    {
        std::vector<int64_t> results(keys.size(), MC_ERR_INVALID_PARAMS);
        auto names = detail::pointers(keys);
        if (buffers.size() == keys.size() && sizes.size() == keys.size() && !keys.empty())
            whole(mooncake_store_batch_get_into(store_, names.data(), const_cast<void **>(buffers.data()), sizes.data(),
                                                keys.size(), results.data()),
                  results);
        return results;
    }
    std::vector<int> batchIsExist(const std::vector<std::string> &keys)
    {
        std::vector<int> results(keys.size(), MC_ERR_INVALID_PARAMS);
        auto names = detail::pointers(keys);
        if (!keys.empty())
            whole(mooncake_store_batch_is_exist(store_, names.data(), keys.size(), results.data()), results);
        return results;
    }
    std::vector<int> batchRemove(const std::vector<std::string> &keys, bool force = false)
    {
        std::vector<int> results(keys.size(), MC_ERR_INVALID_PARAMS);
        auto names = detail::pointers(keys);
        if (!keys.empty())
            whole(mc_store_c_batch_remove(store_, names.data(), keys.size(), force ? 1 : 0, results.data()), results);
        return results;
    }

  private:
    /* A call that was refused as a whole is refused for each. */
    template <typename T> static void whole(int rc, std::vector<T> &results)
    {
        if (rc != 0)
            results.assign(results.size(), static_cast<T>(rc));
    }

    mooncake_store_t store_;
};

} // namespace mooncake
#endif
