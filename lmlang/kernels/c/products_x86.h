/* The products of products.c by AVX-512 VNNI and by AVX2; included by it. */
#include <immintrin.h>

#define WHOLE static inline __attribute__((always_inline))
/* So that what is indexed by the loop lies in registers. */
#define UNROLLED _Pragma("GCC unroll 8")

static inline int four(const int8_t *x) {
    int found;
    memcpy(&found, x, 4);
    return found;
}

/* ------------------------------------------------------------------------------ AVX-512 VNNI */
#define VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c,fma")))

/* Two tiles at a time: each number of a row that is broadcast serves both. With up to six rows the
   sums of a block and those so far fill the registers, and no instruction waits for another's. */
enum { PAIR = 2, MOST = 6 };

VNNI WHOLE __m512 halves512(const uint8_t *at) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)at));
}

/* Numbers of groups `group` and `group` + 1 of a block. */
VNNI WHOLE void numbers512(const uint8_t *block, int bits, int group, __m512i *q) {
    const __m512i low = _mm512_set1_epi8(15);
    if (bits == 4) {
        __m512i both = _mm512_loadu_si512(block + 32 * group);
        q[0] = _mm512_and_si512(both, low);
        q[1] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
    } else {
        q[0] = _mm512_loadu_si512(block + 64 * group);
        q[1] = _mm512_loadu_si512(block + 64 * group + 64);
    }
}

VNNI WHOLE void block512(const uint8_t *w, size_t far, int bits, int digits, int tiles,
                         const int8_t *x, size_t digit_far, size_t row_far, int rows,
                         __m512i found[PAIR][MOST]) {
    UNROLLED for (int digit = 0; digit < digits; digit++, x += digit_far) {
        UNROLLED for (int t = 0; t < tiles; t++) UNROLLED for (int r = 0; r < rows; r++)
            found[t][r] = digit ? _mm512_slli_epi32(found[t][r], 8) : _mm512_setzero_si512();
        UNROLLED for (int i = 0; i < GROUPS; i += 2) {
            __m512i q[PAIR][2];
            UNROLLED for (int t = 0; t < tiles; t++) numbers512(w + t * far, bits, i, q[t]);
            UNROLLED for (int g = 0; g < 2; g++) UNROLLED for (int r = 0; r < rows; r++) {
                __m512i n = _mm512_set1_epi32(four(x + r * row_far + 4 * (i + g)));
                UNROLLED for (int t = 0; t < tiles; t++)
                    found[t][r] = _mm512_dpbusd_epi32(found[t][r], q[t][g], n);
            }
        }
    }
}

VNNI WHOLE void store512(const Product *p, size_t tile, size_t row, int rows, const __m512 *out) {
    size_t first = tile * TILE, here = p->outputs - first;
    __mmask16 there = here < TILE ? (__mmask16)((1u << here) - 1) : 0xffff;
    __m512 bias = p->bias ? _mm512_maskz_loadu_ps(there, p->bias + first) : _mm512_setzero_ps();
    UNROLLED for (int r = 0; r < rows; r++)
        _mm512_mask_storeu_ps(p->out + (row + r) * p->outputs + first, there,
                              p->bias ? _mm512_add_ps(out[r], bias) : out[r]);
}

VNNI WHOLE void tile512(const Product *p, int bits, int digits, int tiles, size_t tile, size_t row,
                        int rows) {
    size_t bytes = bits == 4 ? BYTES4 : BYTES8, far = p->blocks * bytes;
    size_t digit_far = p->blocks * CELL, row_far = digit_far * (size_t)digits;
    const uint8_t *w = p->weight + tile * far;
    const int8_t *x = p->x + row * row_far;
    const float *scale = p->scale + row * p->blocks, *sum = p->sum + row * p->blocks;
    __m512 out[PAIR][MOST];
    UNROLLED for (int t = 0; t < tiles; t++) UNROLLED for (int r = 0; r < rows; r++)
        out[t][r] = _mm512_setzero_ps();
    UNROLLED for (int t = 0; t < tiles; t++) UNROLLED for (int r = 0; r < rows; r++)
        __builtin_prefetch(p->out + (row + r) * p->outputs + (tile + t) * TILE, 1); /* far away */
    for (size_t b = 0; b < p->blocks; b++, w += bytes, x += CELL, scale++, sum++) {
        __m512i found[PAIR][MOST];
        block512(w, far, bits, digits, tiles, x, digit_far, row_far, rows, found);
        UNROLLED for (int t = 0; t < tiles; t++) {
            const uint8_t *floats = w + t * far + (bits == 4 ? BYTES4 - 64 : BYTES8 - 32);
            __m512 d = halves512(floats);
            __m512 m = bits == 4 ? halves512(floats + 32) : _mm512_mul_ps(d, _mm512_set1_ps(-128.0f));
            UNROLLED for (int r = 0; r < rows; r++) {
                __m512 factor = _mm512_mul_ps(d, _mm512_set1_ps(scale[r * p->blocks]));
                out[t][r] = _mm512_fmadd_ps(m, _mm512_set1_ps(sum[r * p->blocks]), out[t][r]);
                out[t][r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(found[t][r]), factor, out[t][r]);
            }
        }
    }
    UNROLLED for (int t = 0; t < tiles; t++) store512(p, tile + t, row, rows, out[t]);
}

#define CASE512(BITS, DIGITS, TILES, ROWS)                                         \
    case 10 * TILES + ROWS: tile512(p, BITS, DIGITS, TILES, tile, row, ROWS); break;
#define CASES512(BITS, DIGITS, TILES)                                              \
    CASE512(BITS, DIGITS, TILES, 1) CASE512(BITS, DIGITS, TILES, 2)                \
    CASE512(BITS, DIGITS, TILES, 3) CASE512(BITS, DIGITS, TILES, 4)                \
    CASE512(BITS, DIGITS, TILES, 5) CASE512(BITS, DIGITS, TILES, 6)
/* Rows in pieces of up to MOST, all about as long. */
#define TILES512(NAME, BITS, DIGITS)                                               \
    VNNI static void NAME(const Product *p, size_t first, size_t last, size_t row, size_t end) { \
        for (size_t pieces = (end - row + MOST - 1) / MOST, some; row < end; row += some, pieces--) { \
            some = (end - row + pieces - 1) / pieces;                              \
            for (size_t tile = first, tiles; tile < last; tile += tiles) {         \
                tiles = last - tile < PAIR ? 1 : PAIR;                             \
                switch (10 * tiles + some) { CASES512(BITS, DIGITS, 1) CASES512(BITS, DIGITS, 2) } \
            }                                                                      \
        }                                                                          \
    }
TILES512(tiles512_4_1, 4, 1)
TILES512(tiles512_4_2, 4, 2)
TILES512(tiles512_8_1, 8, 1)
TILES512(tiles512_8_2, 8, 2)
static Tiles *const tiles512[2][2] = {{tiles512_4_1, tiles512_4_2}, {tiles512_8_1, tiles512_8_2}};

/* -------------------------------------------------------------------------------------- AVX2 */
#define AVX2 __attribute__((target("avx2,f16c,fma")))

/* Sums of 8 outputs: numbers up to 15 leave the pairs' sums of a whole block in 16 bits. */
AVX2 WHOLE __m256i dot256(const __m256i *q, const int8_t *x) {
    __m256i sum = _mm256_setzero_si256();
    for (int i = 0; i < GROUPS; i++)
        sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(q[i], _mm256_set1_epi32(four(x + 4 * i))));
    return _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
}

AVX2 WHOLE void tile256(const Product *p, int bits, int digits, size_t tile, size_t row,
                         int rows) {
    size_t bytes = bits == 4 ? BYTES4 : BYTES8;
    const __m256i low = _mm256_set1_epi8(15);
    float sums[AT_ONCE][TILE];
    for (int part = 0; part < 2; part++) {
        const uint8_t *w = p->weight + tile * p->blocks * bytes;
        __m256 out[AT_ONCE];
        UNROLLED for (int r = 0; r < rows; r++) out[r] = _mm256_setzero_ps();
        for (size_t b = 0; b < p->blocks; b++, w += bytes) {
            __m256i q[GROUPS], high[GROUPS]; /* of 8 bits, halves: each fits what dot256 can sum */
            UNROLLED for (int i = 0; i < GROUPS; i++) {
                const uint8_t *at = w + (bits == 4 ? i / 2 : i) * 64 + part * 32;
                __m256i both = _mm256_loadu_si256((const __m256i *)at);
                __m256i upper = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
                q[i] = bits == 4 && i % 2 ? upper : _mm256_and_si256(both, low);
                high[i] = upper;
            }
            const uint8_t *scales = w + bytes - (bits == 4 ? 64 : 32) + part * 16;
            __m256 d = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)scales));
            __m256 m = bits == 4 ? _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(scales + 32)))
                                 : _mm256_mul_ps(d, _mm256_set1_ps(-128.0f));
            UNROLLED for (int r = 0; r < rows; r++) {
                __m256i found = _mm256_setzero_si256();
                UNROLLED for (int digit = 0; digit < digits; digit++) {
                    const int8_t *x = p->x + (((row + r) * digits + digit) * p->blocks + b) * CELL;
                    found = _mm256_add_epi32(_mm256_slli_epi32(found, 8), dot256(q, x));
                    if (bits == 8)
                        found = _mm256_add_epi32(found, _mm256_slli_epi32(dot256(high, x), 4));
                }
                size_t at = (row + r) * p->blocks + b;
                __m256 factor = _mm256_mul_ps(d, _mm256_set1_ps(p->scale[at]));
                out[r] = _mm256_fmadd_ps(m, _mm256_set1_ps(p->sum[at]), out[r]);
                out[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(found), factor, out[r]);
            }
        }
        UNROLLED for (int r = 0; r < rows; r++) _mm256_storeu_ps(sums[r] + part * 8, out[r]);
    }
    for (int r = 0; r < rows; r++) store(p, tile, row + r, sums[r]);
}

ALL_ROWS(AVX2, tiles256, tile256)
