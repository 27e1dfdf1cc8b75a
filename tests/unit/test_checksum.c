/* CRC32C against a bit-by-bit one, at every alignment, length and split; the fused copies. Each way that the processor
 * has, in a process of its own. */
#include "base/checksum.h"
#include "random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

static uint32_t reference(uint32_t crc, const uint8_t *data, size_t length)
{
    crc = ~crc;
    for (size_t i = 0; i < length; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

static uint8_t *random_bytes(size_t length)
{
    uint64_t state = length;
    uint8_t *data = malloc(length);
    for (size_t i = 0; i < length; i++)
        data[i] = (uint8_t)random_next(&state);
    return data;
}

static void known_values(void **state)
{
    (void)state;
    uint8_t zeros[32] = {0}, ones[32];
    memset(ones, 0xff, sizeof(ones));
    assert_int_equal(mc_crc32c(0, "123456789", 9), 0xe3069283u);
    assert_int_equal(mc_crc32c(0, zeros, 32), 0x8a9136aau); /* RFC 3720, B.4 */
    assert_int_equal(mc_crc32c(0, ones, 32), 0x62a8ab43u);
    assert_int_equal(mc_crc32c(0, NULL, 0), 0);
    assert_int_equal(mc_crc32c(77, NULL, 0), 77);
}

static void every_length_and_alignment(void **state)
{
    (void)state;
    uint8_t *data = random_bytes(3 * 2048 + 600 + 64), *copy = malloc(3 * 2048 + 600 + 128);
    uint64_t random = 1;
    for (size_t length = 0; length < 3 * 2048 + 600; length += length < 1100 ? 1 : 61) {
        size_t from = random_below(&random, 64), to = random_below(&random, 64);
        uint32_t start = (uint32_t)random_next(&random), expected = reference(start, data + from, length);
        assert_int_equal(mc_crc32c(start, data + from, length), expected);
        memset(copy, 0xee, length + 128);
        assert_int_equal(mc_copy_crc32c(copy + to, data + from, length, start), expected);
        assert_memory_equal(copy + to, data + from, length);
        assert_int_equal(copy[to + length], 0xee);
        assert_true(to == 0 || copy[to - 1] == 0xee);
        memset(copy, 0xee, length + 128);
        assert_int_equal(mc_copy_crc32c_stream(copy + to, data + from, length, start), expected);
        assert_memory_equal(copy + to, data + from, length);
        assert_int_equal(copy[to + length], 0xee);
        assert_true(to == 0 || copy[to - 1] == 0xee);
    }
    free(data);
    free(copy);
}

static void long_and_split(void **state)
{
    (void)state;
    const size_t length = (1u << 20) + 13;
    uint8_t *data = random_bytes(length), *copy = malloc(length);
    uint32_t expected = reference(0, data, length);
    uint64_t random = 2;
    assert_int_equal(mc_crc32c(0, data, length), expected);
    for (int round = 0; round < 50; round++) {
        uint32_t plain = 0, fused = 0, stream = 0;
        for (size_t at = 0; at < length;) {
            size_t step = 1 + random_below(&random, round % 2 == 0 ? 100000 : 9000);
            step = step < length - at ? step : length - at;
            plain = mc_crc32c(plain, data + at, step);
            fused = mc_copy_crc32c(copy + at, data + at, step, fused);
            stream = mc_copy_crc32c_stream(copy + at, data + at, step, stream);
            at += step;
        }
        assert_int_equal(plain, expected);
        assert_int_equal(fused, expected);
        assert_int_equal(stream, expected);
        assert_memory_equal(copy, data, length);
    }
    free(data);
    free(copy);
}

static void every_bit_counts(void **state)
{
    (void)state;
    uint8_t *data = random_bytes(4096);
    uint32_t before = mc_crc32c(0, data, 4096);
    for (size_t bit = 0; bit < 4096u * 8; bit += 7) {
        data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_true(mc_crc32c(0, data, 4096) != before);
        data[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    free(data);
}

static void hash(void **state)
{
    (void)state;
    struct mc_hash empty = mc_hash("", 0), a = mc_hash("a", 1), b = mc_hash("b", 1);
    /* XXH3-128 of nothing: part of every segment that another build may read. */
    assert_int_equal(empty.low, 0x6001c324468d497fu);
    assert_int_equal(empty.high, 0x99aa06d3014798d8u);
    assert_true(a.low != b.low && a.high != b.high);
}

/* Slowest first; the instructions that each needs, as the kernel names them, which was not asked by the code. */
static const struct {
    const char *name, *flags;
} ways[] = {
    {"table", ""},
#if defined(__x86_64__)
    {"sse4.2", "sse4_2 pclmulqdq"},
    {"avx512", "sse4_2 pclmulqdq avx512f avx512bw avx512vl avx512dq vpclmulqdq"},
#elif defined(__aarch64__)
    {"armv8-crc", "crc32"},
#endif
};
#define WAYS (sizeof(ways) / sizeof(ways[0]))
#if defined(__aarch64__)
#define CPUINFO_LINE "Features"
#else
#define CPUINFO_LINE "flags"
#endif

/* The words of the first processor, each between spaces; "" when an emulator shows another machine's. */
static void read_flags(char *line, size_t size)
{
    FILE *file = fopen("/proc/cpuinfo", "re");
    assert_non_null(file);
    do {
        if (fgets(line, (int)size, file) == NULL)
            *line = '\0';
    } while (*line != '\0' && strncmp(line, CPUINFO_LINE, strlen(CPUINFO_LINE)) != 0);
    if (*line != '\0')
        line[strcspn(line, "\n")] = ' ';
    (void)fclose(file);
}

static bool has_all(const char *line, const char *flags)
{
    char words[256], found[64], *rest = NULL;
    (void)snprintf(words, sizeof(words), "%s", flags);
    for (char *word = strtok_r(words, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        (void)snprintf(found, sizeof(found), " %s ", word);
        if (strstr(line, found) == NULL)
            return false;
    }
    return true;
}

static void way_is_the_one_named(void **state)
{
    (void)state;
    char line[8192];
    const char *wanted = getenv("MC_CHECKSUM_BY"), *found = mc_crc32c_way();
    size_t most = WAYS - 1, taken = WAYS;
    for (size_t i = 0; i < WAYS; i++) {
        if (wanted != NULL && strcmp(wanted, ways[i].name) == 0)
            most = i;
        if (strcmp(found, ways[i].name) == 0)
            taken = i;
    }
    printf("MC_CHECKSUM_BY=%s: %s\n", wanted == NULL ? "" : wanted, found);
    assert_true(taken <= most);
    read_flags(line, sizeof(line));
    while (*line != '\0' && !has_all(line, ways[most].flags))
        most--;
    if (*line != '\0')
        assert_int_equal(taken, most);
}

static int run(const char *way)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(way_is_the_one_named),       cmocka_unit_test(known_values),
        cmocka_unit_test(every_length_and_alignment), cmocka_unit_test(long_and_split),
        cmocka_unit_test(every_bit_counts),           cmocka_unit_test(hash),
    };
    if (way == NULL)
        unsetenv("MC_CHECKSUM_BY");
    else
        setenv("MC_CHECKSUM_BY", way, 1);
    return cmocka_run_group_tests_name(way == NULL ? "the machine's own" : way, tests, NULL, NULL);
}

/* A process chooses once. */
static int run_apart(const char *way)
{
    int status = 0;
    (void)fflush(NULL);
    pid_t child = fork();
    if (child == 0)
        exit(run(way));
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

int main(void)
{
    int bad = run_apart(NULL) + run_apart("no such way");
    for (size_t i = 0; i < WAYS; i++)
        bad += run_apart(ways[i].name);
    return bad != 0;
}
