/* CRC32C, plain and fused with a copy, and the key hash. One kernel is chosen per process by what the processor can do:
 * AVX-512 with carry-less multiplication, SSE4.2 (three interleaved streams), ARMv8 CRC instructions, or tables. The
 * compiler is never told what the processor has: what was built on one runs on all.
 *
 * Arithmetic used below: a CRC state of 32 bits stands for a polynomial whose highest power is in bit 0. Multiplying
 * two such numbers without carry yields their product times x; the constants (powers of x modulo the CRC's polynomial)
 * make up for that. */
#include "base/checksum.h"

#include "base/variables.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define POLYNOMIAL 0x82f63b78u
#define COPY_STEP (16u << 10) /* what is copied is still in the first-level cache when its CRC is taken */

struct kernel {
    const char *name;          /* of MC_CHECKSUM_BY */
    bool (*is_possible)(void); /* on this processor, under this kernel */
    /* Both continue a raw state (not inverted at either end). copy NULL: step by step. */
    uint32_t (*crc)(uint32_t state, const uint8_t *data, size_t length);
    uint32_t (*copy)(uint32_t state, uint8_t *target, const uint8_t *source, size_t length, bool stream);
};

static uint32_t table[8][256];

static void table_fill(void)
{
    for (unsigned i = 0; i < 256; i++) {
        uint32_t value = i;
        for (int bit = 0; bit < 8; bit++)
            value = (value >> 1) ^ ((value & 1) != 0 ? POLYNOMIAL : 0);
        table[0][i] = value;
    }
    for (unsigned i = 0; i < 256; i++)
        for (unsigned step = 1; step < 8; step++)
            table[step][i] = (table[step - 1][i] >> 8) ^ table[0][table[step - 1][i] & 0xff];
}

static uint32_t portable_crc(uint32_t state, const uint8_t *data, size_t length)
{
    for (; length >= 8; data += 8, length -= 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        word ^= state;
        state = table[7][word & 0xff] ^ table[6][word >> 8 & 0xff] ^ table[5][word >> 16 & 0xff] ^
                table[4][word >> 24 & 0xff] ^ table[3][word >> 32 & 0xff] ^ table[2][word >> 40 & 0xff] ^
                table[1][word >> 48 & 0xff] ^ table[0][word >> 56];
    }
    for (; length > 0; data++, length--)
        state = (state >> 8) ^ table[0][(state ^ *data) & 0xff];
    return state;
}

/* The CRC is that of the copy: what the source turns into after it was read does not matter. */
static inline uint32_t stepwise_copy(uint32_t (*crc)(uint32_t, const uint8_t *, size_t), uint32_t state,
                                     uint8_t *target, const uint8_t *source, size_t length)
{
    while (length > 0) {
        size_t step = length < COPY_STEP ? length : COPY_STEP;
        memcpy(target, source, step);
        state = crc(state, target, step);
        target += step;
        source += step;
        length -= step;
    }
    return state;
}

static bool always(void)
{
    return true;
}

static const struct kernel portable_kernel = {"table", always, portable_crc, NULL};

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

#define SSE __attribute__((target("sse4.2,pclmul")))
/* AddressSanitizer of gcc before 14 may put what must lie at 64 bytes elsewhere (its bug 110027). */
#if defined(__SANITIZE_ADDRESS__) && !defined(__clang__) && __GNUC__ < 14
#define AVX_SANITIZED no_sanitize_address,
#else
#define AVX_SANITIZED
#endif
#define AVX __attribute__((AVX_SANITIZED target("sse4.2,pclmul,avx2,avx512f,avx512bw,avx512vl,avx512dq,vpclmulqdq")))
#define STREAM_LONG 2048u /* bytes of each of the three interleaved streams */
#define STREAM_SHORT 256u
#define AVX_MIN 1024u    /* bytes; below it, ending the fold costs more than it saves */
#define STREAM_MIN 4096u /* a shorter copy is not worth going past the caches */

/* x^n modulo the polynomial. */
static uint32_t power(unsigned n)
{
    uint32_t value = 0x80000000u;
    while (n-- > 0)
        value = (value >> 1) ^ ((value & 1) != 0 ? POLYNOMIAL : 0);
    return value;
}

static struct {
    uint64_t long_1, long_2, short_1, short_2; /* shift a state by one or two streams */
    uint64_t fold[5][2];                       /* move 128 bits by 2048, 1536, 1024, 512 and 128 bits */
} constants;
static const unsigned fold_bits[5] = {2048, 1536, 1024, 512, 128};

static void constants_fill(void)
{
    /* A product of two states, reduced by one more CRC step of 64 bits, has gained x^33. */
    constants.long_1 = power(8 * STREAM_LONG - 33);
    constants.long_2 = power(16 * STREAM_LONG - 33);
    constants.short_1 = power(8 * STREAM_SHORT - 33);
    constants.short_2 = power(16 * STREAM_SHORT - 33);
    /* The lower half of 128 bits holds the higher powers, 64 above the other's. */
    for (unsigned i = 0; i < 5; i++) {
        constants.fold[i][0] = (uint64_t)power(fold_bits[i] + 63) << 32;
        constants.fold[i][1] = (uint64_t)power(fold_bits[i] - 1) << 32;
    }
}

static inline uint64_t load_word(const uint8_t *data)
{
    uint64_t word;
    memcpy(&word, data, 8);
    return word;
}

SSE static inline uint64_t sse_streams(uint64_t state, const uint8_t *data, size_t stream, uint64_t shift_1,
                                       uint64_t shift_2)
{
    uint64_t second = 0, third = 0;
    for (size_t i = 0; i < stream; i += 8) {
        state = _mm_crc32_u64(state, load_word(data + i));
        second = _mm_crc32_u64(second, load_word(data + stream + i));
        third = _mm_crc32_u64(third, load_word(data + 2 * stream + i));
    }
    __m128i moved = _mm_xor_si128(
        _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)state), _mm_cvtsi64_si128((long long)shift_2), 0),
        _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)second), _mm_cvtsi64_si128((long long)shift_1), 0));
    return _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(moved)) ^ third;
}

SSE static uint32_t sse_crc(uint32_t start, const uint8_t *data, size_t length)
{
    uint64_t state = start;
    for (; length >= 3 * STREAM_LONG; data += 3 * STREAM_LONG, length -= 3 * STREAM_LONG)
        state = sse_streams(state, data, STREAM_LONG, constants.long_1, constants.long_2);
    for (; length >= 3 * STREAM_SHORT; data += 3 * STREAM_SHORT, length -= 3 * STREAM_SHORT)
        state = sse_streams(state, data, STREAM_SHORT, constants.short_1, constants.short_2);
    for (; length >= 8; data += 8, length -= 8)
        state = _mm_crc32_u64(state, load_word(data));
    uint32_t rest = (uint32_t)state;
    for (; length > 0; data++, length--)
        rest = _mm_crc32_u8(rest, *data);
    return rest;
}

static bool sse_is_possible(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_SSE4_2) != 0 && (c & bit_PCLMUL) != 0;
}

static const struct kernel sse_kernel = {"sse4.2", sse_is_possible, sse_crc, NULL};

AVX static inline __m512i avx_constant(unsigned i)
{
    return _mm512_broadcast_i32x4(_mm_set_epi64x((long long)constants.fold[i][1], (long long)constants.fold[i][0]));
}

AVX static inline __m512i avx_fold(__m512i value, __m512i by, __m512i next)
{
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(value, by, 0x00),
                                     _mm512_clmulepi64_epi128(value, by, 0x11), next, 0x96);
}

/* Four accumulators of 64 bytes down to a state. */
AVX static inline uint32_t avx_finish(const __m512i value[4])
{
    __m512i sum = _mm512_xor_si512(avx_fold(value[0], avx_constant(1), value[3]),
                                   _mm512_xor_si512(avx_fold(value[1], avx_constant(2), _mm512_setzero_si512()),
                                                    avx_fold(value[2], avx_constant(3), _mm512_setzero_si512())));
    __m128i by = _mm_set_epi64x((long long)constants.fold[4][1], (long long)constants.fold[4][0]);
    __m128i last = _mm512_extracti32x4_epi32(sum, 0);
#define AVX_NEXT(lane)                                                                                                 \
    last = _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(last, by, 0x00), _mm_clmulepi64_si128(last, by, 0x11)),    \
                         _mm512_extracti32x4_epi32(sum, lane))
    AVX_NEXT(1);
    AVX_NEXT(2);
    AVX_NEXT(3);
#undef AVX_NEXT
    return (uint32_t)_mm_crc32_u64(_mm_crc32_u64(0, (uint64_t)_mm_extract_epi64(last, 0)),
                                   (uint64_t)_mm_extract_epi64(last, 1));
}

/* Each byte is loaded once and goes into the fold and into the target: past the caches when `stream`, so that a long
 * copy costs no reading of the target's lines. length: a multiple of 256, at least 256; target: aligned to 64. */
AVX static inline __attribute__((always_inline)) uint32_t
avx_fold_copy(uint32_t state, uint8_t *target, const uint8_t *source, size_t length, bool stream)
{
    __m512i value[4], by = avx_constant(0);
    for (size_t at = 0; at < length; at += 256) {
#pragma GCC unroll 4
        for (size_t i = 0; i < 4; i++) {
            __m512i bytes = _mm512_loadu_si512(source + at + 64 * i);
            if (stream)
                _mm512_stream_si512((__m512i *)(void *)(target + at + 64 * i), bytes);
            else
                _mm512_store_si512((__m512i *)(void *)(target + at + 64 * i), bytes);
            if (at > 0)
                value[i] = avx_fold(value[i], by, bytes);
            else
                value[i] =
                    i > 0 ? bytes : _mm512_xor_si512(bytes, _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)state)));
        }
    }
    if (stream)
        _mm_sfence(); /* such stores are ordered by nothing else, and whoever hears of the copy must find it */
    return avx_finish(value);
}

AVX static uint32_t avx_crc(uint32_t state, const uint8_t *data, size_t length)
{
    if (length >= AVX_MIN) {
        __m512i value[4], by = avx_constant(0);
        for (size_t i = 0; i < 4; i++)
            value[i] = _mm512_loadu_si512(data + 64 * i);
        value[0] = _mm512_xor_si512(value[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)state)));
        size_t at = 256;
        for (; at + 256 <= length; at += 256) {
#pragma GCC unroll 4
            for (size_t i = 0; i < 4; i++)
                value[i] = avx_fold(value[i], by, _mm512_loadu_si512(data + at + 64 * i));
        }
        state = avx_finish(value);
        data += at;
        length -= at;
    }
    return sse_crc(state, data, length);
}

/* Between memcpy in steps and one loop that does both, the loop wins while the target misses the cache, and for short
 * copies. */
AVX static uint32_t avx_copy(uint32_t state, uint8_t *target, const uint8_t *source, size_t length, bool stream)
{
    if (length < AVX_MIN + 64)
        return stepwise_copy(avx_crc, state, target, source, length);
    size_t head = (size_t)(-(uintptr_t)target & 63), folded = (length - head) & ~(size_t)255;
    memcpy(target, source, head);
    state = sse_crc(state, target, head);
    state = stream && length >= STREAM_MIN ? avx_fold_copy(state, target + head, source + head, folded, true)
                                           : avx_fold_copy(state, target + head, source + head, folded, false);
    head += folded;
    memcpy(target + head, source + head, length - head);
    return sse_crc(state, target + head, length - head);
}

/* The processor has the instructions, and the operating system keeps their registers. */
static bool avx_is_possible(void)
{
    const unsigned wanted = (unsigned)bit_AVX512F | (unsigned)bit_AVX512DQ | (unsigned)bit_AVX512BW | bit_AVX512VL;
    const unsigned registers = 0xe6; /* in XCR0: SSE, AVX, and the three parts of AVX-512 */
    unsigned a, b, c, d, kept, high;
    if (!sse_is_possible() || __get_cpuid(1, &a, &b, &c, &d) == 0 || (c & bit_OSXSAVE) == 0)
        return false;
    __asm__("xgetbv" : "=a"(kept), "=d"(high) : "c"(0));
    return (kept & registers) == registers && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & wanted) == wanted &&
           (c & bit_VPCLMULQDQ) != 0;
}

static const struct kernel avx_kernel = {"avx512", avx_is_possible, avx_crc, avx_copy};
static const struct kernel *const kernels[] = {&avx_kernel, &sse_kernel, &portable_kernel};

#elif defined(__aarch64__)
#include <sys/auxv.h>

#define ARM_CRC_BIT (1ul << 7) /* HWCAP_CRC32 of the kernel, whose header is not everywhere */

static uint32_t arm_crc(uint32_t state, const uint8_t *data, size_t length)
{
    for (; length >= 8; data += 8, length -= 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(state) : "r"(word));
    }
    for (; length > 0; data++, length--)
        __asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(state) : "r"((uint32_t)*data));
    return state;
}

static bool arm_is_possible(void)
{
    return (getauxval(AT_HWCAP) & ARM_CRC_BIT) != 0;
}

static const struct kernel arm_kernel = {"armv8-crc", arm_is_possible, arm_crc, NULL};
static const struct kernel *const kernels[] = {&arm_kernel, &portable_kernel};

#else
static const struct kernel *const kernels[] = {&portable_kernel};
#endif

#define KERNEL_COUNT (sizeof(kernels) / sizeof(kernels[0]))

static _Atomic(const struct kernel *) chosen;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* The fastest that is possible; with MC_CHECKSUM_BY none that is faster than the one it names. */
static void choose(void)
{
    const char *wanted = mc_variable(MC_CHECKSUM_BY);
    size_t first = 0;
    table_fill();
#if defined(__x86_64__)
    constants_fill();
#endif
    for (size_t i = 0; wanted != NULL && i < KERNEL_COUNT; i++)
        if (strcmp(wanted, kernels[i]->name) == 0)
            first = i;
    while (first + 1 < KERNEL_COUNT && !kernels[first]->is_possible()) /* the last one always is */
        first++;
    atomic_store_explicit(&chosen, kernels[first], memory_order_release);
}

static inline const struct kernel *kernel(void)
{
    const struct kernel *found = atomic_load_explicit(&chosen, memory_order_acquire);
    if (__builtin_expect(found == NULL, 0)) {
        (void)pthread_once(&once, choose); /* fails only for an argument that is not valid */
        found = atomic_load_explicit(&chosen, memory_order_acquire);
    }
    return found;
}

bool mc_crc32c_knows(const char *way)
{
    for (size_t i = 0; i < KERNEL_COUNT; i++)
        if (strcmp(way, kernels[i]->name) == 0)
            return true;
    return false;
}

const char *mc_crc32c_way(void)
{
    return kernel()->name;
}

uint32_t mc_crc32c(uint32_t crc, const void *data, size_t length)
{
    return ~kernel()->crc(~crc, data, length);
}

static inline uint32_t copy(uint32_t state, void *target, const void *source, size_t length, bool stream)
{
    const struct kernel *found = kernel();
    return found->copy != NULL ? found->copy(state, target, source, length, stream)
                               : stepwise_copy(found->crc, state, target, source, length);
}

uint32_t mc_copy_crc32c(void *target, const void *source, size_t length, uint32_t crc)
{
    return ~copy(~crc, target, source, length, false);
}

uint32_t mc_copy_crc32c_stream(void *target, const void *source, size_t length, uint32_t crc)
{
    return ~copy(~crc, target, source, length, true);
}

struct mc_hash mc_hash(const void *data, size_t length)
{
    XXH128_hash_t hash = XXH3_128bits(data, length);
    return (struct mc_hash){hash.low64, hash.high64};
}
