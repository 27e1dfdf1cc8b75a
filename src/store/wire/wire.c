#include "store/wire/wire.h"

#include "base/error.h"

const char *mc_message_name(unsigned type)
{
    switch (type) {
#define MC_MESSAGE_CASE(name, number, head, a, b, c)                                                                   \
    case number:                                                                                                       \
        return #name;
        MC_MESSAGES(MC_MESSAGE_CASE)
#undef MC_MESSAGE_CASE
    default:
        return "?";
    }
}

static void none_list_read(struct mc_reader *reader)
{
    (void)reader;
}

/* A list of `none` is not on the wire. */
#define MC_LIST_CHECK(type)                                                                                            \
    static void type##_list_read(struct mc_reader *reader)                                                             \
    {                                                                                                                  \
        struct mc_wire_##type record;                                                                                  \
        for (uint32_t count = mc_list_read(reader); count > 0 && !reader->bad; count--)                                \
            mc_wire_##type##_read(reader, &record);                                                                    \
    }
MC_LIST_CHECK(code)
MC_LIST_CHECK(key)
MC_LIST_CHECK(name)
MC_LIST_CHECK(heartbeat_segment)
MC_LIST_CHECK(segment_code)
MC_LIST_CHECK(live_item)
MC_LIST_CHECK(store_item)
MC_LIST_CHECK(load_item)
MC_LIST_CHECK(hinted_item)
MC_LIST_CHECK(slot)
MC_LIST_CHECK(cut_item)
MC_LIST_CHECK(segment)
MC_LIST_CHECK(segment_reply)
MC_LIST_CHECK(put_start_item)
MC_LIST_CHECK(granted)
MC_LIST_CHECK(place)
MC_LIST_CHECK(grant)
MC_LIST_CHECK(blank)
MC_LIST_CHECK(found)
MC_LIST_CHECK(commit_item)
MC_LIST_CHECK(inventory_item)

int mc_wire_check(unsigned type, struct mc_span body)
{
    struct mc_reader reader = mc_reader(body.data, body.length);
    switch (type) {
#define MC_MESSAGE_CHECK(name, number, head, a, b, c)                                                                  \
    case number: {                                                                                                     \
        struct mc_wire_##head record;                                                                                  \
        mc_wire_##head##_read(&reader, &record);                                                                       \
        a##_list_read(&reader);                                                                                        \
        b##_list_read(&reader);                                                                                        \
        c##_list_read(&reader);                                                                                        \
        break;                                                                                                         \
    }
        MC_MESSAGES(MC_MESSAGE_CHECK)
#undef MC_MESSAGE_CHECK
    default:
        return MC_ERR_PROTOCOL;
    }
    return reader.bad || mc_reader_left(&reader) != 0 ? MC_ERR_PROTOCOL : 0;
}
