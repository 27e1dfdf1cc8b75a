// A user of real_client.h: every call, with what it must answer. Arguments: "host:port" of a master. Exits 0 when all are right.
#include "config.h"
#include "real_client.h"

#include <cstdio>
#include <cstring>
#include <span>

static int failures;

static void check(bool is_right, const char *what)
{
    failures += is_right ? 0 : 1;
    std::printf("%s: %s\n", is_right ? "ok" : "WRONG", what);
}
#define CHECK(condition) check((condition), #condition)

static void sizes()
{
    uint64_t size = 0;
    CHECK(mooncake::detail::parse_size("3221225472", &size) && size == 3221225472u);
    CHECK(mooncake::detail::parse_size(" 3 GB", &size) && size == 3ull << 30);
    CHECK(mooncake::detail::parse_size("0", &size) && size == 0);
    for (const char *text : {"", " ", "-1", "1.5g", "3 parsecs", "99999999999999999999", "18014398509481984k", "9223372036854775808"})
        check(!mooncake::detail::parse_size(text, &size), text);
}

static void setups(const mooncake::ConfigDict &config)
{
    auto client = mooncake::RealClient::create();
    CHECK(client->health_check() == 1);
    CHECK(client->isExist("a") == MC_ERR_INVALID_PARAMS);
    CHECK(client->get_hostname().empty());
    for (const char *missing : {"local_hostname", "metadata_server"}) {
        auto less = config;
        less.erase(missing);
        CHECK(client->setup_internal(less).error() == mooncake::ErrorCode::INVALID_PARAMS);
    }
    auto bad = config;
    bad["global_segment_size"] = "much";
    CHECK(!client->setup_internal(bad));
    CHECK(client->setup_internal(config).has_value());
    CHECK(!client->setup_internal(config).has_value()); // twice
    CHECK(client->tearDownAll() == 0);
    CHECK(client->tearDownAll() == 0);
    CHECK(client->isExist("a") == MC_ERR_INVALID_PARAMS);
    CHECK(client->setup_real("127.0.0.1", "P2PHANDSHAKE", 0, 1 << 20, "tcp", "", config.at("master_server_addr")) == 0);
    CHECK(client->initAll("tcp", "") == MC_ERR_INVALID_PARAMS); // it is set up
}

static void objects(mooncake::RealClient &client)
{
    char back[32] = "";
    std::string value = "value";
    CHECK(client.put("one", std::span<const char>(value.data(), value.size())) == 0);
    CHECK(client.getSize("one") == 5);
    CHECK(client.isExist("one") == 1 && client.isExist("none") == 0);
    CHECK(client.get_into("one", back, sizeof(back)) == 5 && std::memcmp(back, "value", 5) == 0);
    CHECK(client.get_into("one", back, 4) == MC_ERR_INVALID_PARAMS);
    CHECK(client.remove("one") == MC_ERR_OBJECT_HAS_LEASE && client.remove("one", true) == 0);
    CHECK(client.get_into("one", back, sizeof(back)) == MC_ERR_OBJECT_NOT_FOUND);
    CHECK(client.register_buffer(back, sizeof(back)) == 0 && client.unregister_buffer(back) == 0);
    mooncake::ReplicateConfig config;
    config.preferred_segments = {"nobody:1"};
    config.preferred_segment = client.get_hostname();
    config.soft_pin_action = mooncake::SoftPinAction::ENABLE;
    CHECK(client.put_from("two", value.data(), value.size(), config) == 0);
    CHECK(client.removeByRegex("^two$") == 1);
    /* A zero would cut a key, and a pattern, short. */
    const std::string cut("two\0three", 9);
    CHECK(client.put_from(cut, value.data(), value.size()) == MC_ERR_INVALID_KEY);
    CHECK(client.isExist(cut) == MC_ERR_INVALID_KEY && client.remove(cut) == MC_ERR_INVALID_KEY);
    CHECK(client.removeByRegex(std::string("\0", 1)) == MC_ERR_INVALID_PARAMS);
}

static void batches(mooncake::RealClient &client)
{
    char from[] = "abcd", into[4] = {};
    const std::vector<std::string> keys = {"b0", "b1", std::string("b\0", 2), "b3"};
    const std::vector<void *> sources = {from, from + 1, from + 2, from + 3}, targets = {into, into + 1, into + 2, into + 3};
    const std::vector<size_t> lengths(4, 1);
    using ints = std::vector<int>;
    CHECK(client.batch_put_from(keys, sources, lengths) == (ints{0, 0, MC_ERR_INVALID_KEY, 0}));
    CHECK(client.batch_get_into(keys, targets, lengths) == (std::vector<int64_t>{1, 1, MC_ERR_INVALID_KEY, 1}));
    CHECK(std::memcmp(into, "ab\0d", 4) == 0);
    CHECK(client.batchIsExist({"b0", "b9"}) == (ints{1, 0}));
    CHECK(client.batchRemove({"b0", "b9"}, true) == (ints{0, MC_ERR_OBJECT_NOT_FOUND}));
    CHECK(client.batch_put_from(keys, sources, {1}) == ints(4, MC_ERR_INVALID_PARAMS));
    CHECK(client.batch_get_into(keys, {}, lengths) == std::vector<int64_t>(4, MC_ERR_INVALID_PARAMS));
    CHECK(client.batch_put_from({"b5"}, {nullptr}, {1}) == ints{-1});
    CHECK(client.batchIsExist({}).empty() && client.batchRemove({}).empty() && client.batch_get_into({}, {}, {}).empty());
    CHECK(client.removeAll(true) >= 2);
}

int main(int count, char **arguments)
{
    if (count != 2)
        return 1;
    const mooncake::ConfigDict config = {{"local_hostname", "127.0.0.1"},  {"metadata_server", "P2PHANDSHAKE"}, {"global_segment_size", "64mb"},
                                         {"local_buffer_size", "16777216"}, {"protocol", "tcp"},                 {"master_server_addr", arguments[1]},
                                         {"of_nobody", "1"}};
    sizes();
    CHECK(mooncake::globalConfig().max_mr_size == 0);
    setups(config);
    auto client = mooncake::RealClient::create();
    CHECK(client != nullptr && client->setup_internal(config).has_value());
    if (failures == 0) {
        objects(*client);
        batches(*client);
    }
    return failures == 0 ? 0 : 1;
}
