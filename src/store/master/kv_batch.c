/* KV events in msgpack. */
#include "store/master/kv_batch.h"

#include "mooncake.h"
#include "store/wire/tenant.h"

#include <endian.h>
#include <string.h>

/* ---- msgpack ---- */

static void put_number_behind(struct mc_buffer *out, uint8_t type, uint64_t number, size_t bytes)
{
    uint64_t big = htobe64(number);
    mc_buffer_put_u8(out, type);
    mc_buffer_append(out, (const uint8_t *)&big + 8 - bytes, bytes);
}

static void put_number(struct mc_buffer *out, uint64_t number)
{
    if (number < 0x80)
        mc_buffer_put_u8(out, (uint8_t)number);
    else if (number <= UINT8_MAX)
        put_number_behind(out, 0xcc, number, 1);
    else if (number <= UINT16_MAX)
        put_number_behind(out, 0xcd, number, 2);
    else if (number <= UINT32_MAX)
        put_number_behind(out, 0xce, number, 4);
    else
        put_number_behind(out, 0xcf, number, 8);
}

static void put_signed(struct mc_buffer *out, uint64_t number)
{
    if (number >> 63 != 0)
        put_number_behind(out, 0xd3, number, 8);
    else
        put_number(out, number);
}

static void put_nil(struct mc_buffer *out)
{
    mc_buffer_put_u8(out, 0xc0);
}

static void put_list(struct mc_buffer *out, size_t count)
{
    if (count < 16)
        mc_buffer_put_u8(out, (uint8_t)(0x90 | count));
    else
        put_number_behind(out, 0xdc, count, 2);
}

static void put_map(struct mc_buffer *out, size_t count)
{
    if (count < 16)
        mc_buffer_put_u8(out, (uint8_t)(0x80 | count));
    else
        put_number_behind(out, 0xde, count, 2);
}

/* What is not UTF-8 in it becomes U+FFFD, as in JSON: readers refuse a whole batch for one wrong byte. */
static void put_name(struct mc_buffer *out, struct mc_span text)
{
    const uint8_t *at = text.data;
    size_t length = 0;
    for (size_t i = 0, size; i < text.length; i += size == 0 ? 1 : size) {
        size = mc_utf8_length(at + i, text.length - i);
        length += size == 0 ? strlen(MC_UTF8_UNKNOWN) : size;
    }
    if (length < 32)
        mc_buffer_put_u8(out, (uint8_t)(0xa0 | length));
    else if (length <= UINT8_MAX)
        put_number_behind(out, 0xd9, length, 1);
    else
        put_number_behind(out, 0xda, length, 2);
    mc_buffer_put_utf8(out, text.data, text.length);
}
_Static_assert(MC_KEY_LENGTH_MAX * 3 <= UINT16_MAX, "its length has two bytes");

static void put_text(struct mc_buffer *out, const char *text)
{
    put_name(out, mc_span_string(text));
}

/* ---- events ---- */

/* A key that is a hash: a decimal number, or a hexadecimal one behind 0x. */
static bool hash_of(struct mc_span key, uint64_t *hash)
{
    const char *at = key.data;
    bool is_hex = key.length > 2 && at[0] == '0' && (at[1] == 'x' || at[1] == 'X');
    uint64_t base = is_hex ? 16 : 10;
    *hash = 0;
    for (size_t i = is_hex ? 2 : 0; i < key.length; i++) {
        int digit = mc_hex_digit(at[i]);
        if (digit < 0 || (uint64_t)digit >= base || *hash > (UINT64_MAX - (uint64_t)digit) / base)
            return false;
        *hash = *hash * base + (uint64_t)digit;
    }
    return key.length > 0;
}

static void put_tenant(struct mc_buffer *out, struct mc_span key)
{
    put_name(out, mc_key_tenant(key));
}

/* What only an engine knows. */
static void put_unknown(struct mc_buffer *out, const char *name)
{
    put_text(out, name);
    put_nil(out);
}

/* The original has a salt of the whole master there: what the hashes of an engine's blocks depend on, beside tokens. */
static void put_salt(struct mc_buffer *out, struct mc_span key)
{
    char text[MC_ID_TEXT_MAX];
    struct mc_id stamp;
    if (!mc_key_stamp(key, &stamp)) {
        put_unknown(out, "additional_salt");
        return;
    }
    mc_id_format(text, stamp);
    put_text(out, "additional_salt");
    put_text(out, text);
}

static void put_hashes(struct mc_buffer *out, const char *name, bool is_hash, uint64_t hash, bool is_signed)
{
    put_text(out, name);
    put_list(out, is_hash);
    if (is_hash && is_signed)
        put_signed(out, hash);
    else if (is_hash)
        put_number(out, hash);
}

static void put_where(struct mc_buffer *out, const struct mc_kv_form *form, const struct mc_kv_event *event)
{
    put_unknown(out, "model_name");
    put_unknown(out, "block_size");
    put_salt(out, event->key);
    put_unknown(out, "lora_name");
    put_text(out, "tenant_id");
    put_tenant(out, event->key);
    put_text(out, "backend_id");
    put_name(out, mc_span_string(form->backend_id));
    put_unknown(out, "group_id");
    put_text(out, "medium");
    put_text(out, event->medium == MC_MEDIUM_DISK ? "disk" : "cpu");
    put_unknown(out, "dp_rank");
}

static void put_event(struct mc_buffer *out, const struct mc_kv_form *form, const struct mc_kv_event *event,
                      bool is_hash, uint64_t hash)
{
    size_t members = 13 + (form->has_legacy ? 2u : 0) + form->has_object_key;
    put_map(out, members + (event->is_there ? 3u + form->has_legacy : 1u));
    put_text(out, "event_id");
    put_number(out, event->number);
    put_text(out, "timestamp");
    put_number(out, event->wall_ms);
    put_text(out, "event_type");
    put_text(out, event->is_there ? "stored" : "removed");
    if (form->has_legacy) {
        put_text(out, "type");
        put_text(out, event->is_there ? "BlockStored" : "BlockRemoved");
    }
    put_where(out, form, event);
    if (form->has_object_key) {
        put_text(out, "object_key");
        put_name(out, mc_key_local(event->key));
    }
    put_hashes(out, "seq_hashes", is_hash, hash, false);
    if (form->has_legacy)
        put_hashes(out, "block_hashes", is_hash, hash, true);
    put_text(out, "base_block_idx");
    if (!event->is_there) {
        put_nil(out);
        return;
    }
    put_number(out, 0);
    put_unknown(out, "parent_hash");
    put_unknown(out, "token_ids");
    if (form->has_legacy)
        put_unknown(out, "parent_block_hash");
}

/* ---- the form of engines ---- */

/* As engines tell blocks of which they know the hash alone: no tokens, and 0 of them in a block. A hash is unsigned,
 * and media have the names by which routers know tiers. */
static void put_engines_event(struct mc_buffer *out, const struct mc_kv_form *form, const struct mc_kv_event *event,
                              bool is_hash, uint64_t hash)
{
    put_map(out, 5u + (event->is_there ? 5u : 0) + form->has_object_key);
    put_text(out, "type");
    put_text(out, event->is_there ? "BlockStored" : "BlockRemoved");
    put_hashes(out, "block_hashes", is_hash, hash, false);
    put_text(out, "medium");
    put_text(out, event->medium == MC_MEDIUM_DISK ? "DISK" : "CPU");
    if (event->is_there) {
        put_unknown(out, "parent_block_hash");
        put_text(out, "token_ids");
        put_list(out, 0);
        put_text(out, "block_size");
        put_number(out, 0);
        put_unknown(out, "lora_id");
        put_unknown(out, "lora_name");
    }
    put_text(out, "tenant_id");
    put_tenant(out, event->key);
    put_text(out, "event_id");
    put_number(out, event->number);
    if (!form->has_object_key)
        return;
    put_text(out, "object_key");
    put_name(out, mc_key_local(event->key));
}

static void put_cleared(struct mc_buffer *out)
{
    put_map(out, 1);
    put_text(out, "type");
    put_text(out, "AllBlocksCleared");
}

size_t mc_kv_batch_write(struct mc_buffer *out, const struct mc_kv_form *form, bool is_new,
                         const struct mc_kv_event *events, size_t count)
{
    bool is_cleared = is_new && form->is_engines;
    uint64_t hashes[MC_KV_BATCH_MAX];
    bool is_hash[MC_KV_BATCH_MAX];
    size_t told = 0, hashed = 0;
    for (size_t i = 0; i < count; i++) {
        is_hash[i] = hash_of(mc_key_local(events[i].key), &hashes[i]);
        hashed += is_hash[i];
        told += is_hash[i] || form->has_object_key;
    }
    put_list(out, 3);
    put_number(out, count > 0 ? events[count - 1].wall_ms : 0);
    put_list(out, told + is_cleared);
    if (is_cleared)
        put_cleared(out);
    for (size_t i = 0; i < count; i++) {
        if (!is_hash[i] && !form->has_object_key)
            continue;
        if (form->is_engines)
            put_engines_event(out, form, &events[i], is_hash[i], hashes[i]);
        else
            put_event(out, form, &events[i], is_hash[i], hashes[i]);
    }
    put_number(out, 0);
    return count - hashed;
}
