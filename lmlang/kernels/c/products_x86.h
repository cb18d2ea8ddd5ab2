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

/* The numbers of a group of a block. */
VNNI WHOLE __m512i numbers512(const uint8_t *block, int bits, int group) {
    if (bits == 8) return _mm512_loadu_si512(block + 64 * group);
    __m512i both = _mm512_loadu_si512(block + 64 * (group / 2));
    return _mm512_and_si512(group % 2 ? _mm512_srli_epi16(both, 4) : both, _mm512_set1_epi8(15));
}

/* A statement for each row r and each tile t there is: written out, not a loop, so that what r and t
   index lies in registers. */
#define ROW(N, ...) { enum { r = N }; if (r < rows) { __VA_ARGS__ } }
#define EACH_ROW(...)                                                              \
    ROW(0, __VA_ARGS__) ROW(1, __VA_ARGS__) ROW(2, __VA_ARGS__)                    \
    ROW(3, __VA_ARGS__) ROW(4, __VA_ARGS__) ROW(5, __VA_ARGS__)
#define EACH_TILE(...)                                                             \
    { enum { t = 0 }; __VA_ARGS__ }                                                \
    if (tiles == PAIR) { enum { t = 1 }; __VA_ARGS__ }

/* Adds the products of a block and `digits` of each row to `out`; k is its place in the order. */
VNNI WHOLE void block512(const Product *p, int bits, int digits, int tiles, int rows, size_t k,
                         const uint8_t *w, size_t far, size_t ahead, const int8_t *x, size_t row_far,
                         __m512 out[PAIR][MOST]) {
    __m512i found[PAIR][MOST];
    w += p->order[k] * (bits == 4 ? BYTES4 : BYTES8);
    if (ahead)
        EACH_TILE(for (int i = 0; i < (bits == 4 ? BYTES4 : BYTES8); i += 64)
                      __builtin_prefetch(w + (ahead + t) * far + i);)
    EACH_TILE(EACH_ROW(found[t][r] = _mm512_setzero_si512();))
    UNROLLED for (int digit = 0; digit < digits; digit++) {
        const int8_t *numbers = x + HEAD + digit * CELL;
        if (digit) { EACH_TILE(EACH_ROW(found[t][r] = _mm512_slli_epi32(found[t][r], 8);)) }
        UNROLLED for (int i = 0; i < GROUPS; i++) {
            __m512i q[PAIR];
            EACH_TILE(q[t] = numbers512(w + t * far, bits, i);)
            EACH_ROW(__m512i n = _mm512_set1_epi32(four(numbers + r * row_far + 4 * i));
                     EACH_TILE(found[t][r] = _mm512_dpbusd_epi32(found[t][r], q[t], n);))
        }
    }
    EACH_TILE(
        const uint8_t *floats = w + t * far + (bits == 4 ? BYTES4 - 64 : BYTES8 - 32);
        __m512 d = halves512(floats);
        __m512 m = bits == 4 ? halves512(floats + 32) : _mm512_mul_ps(d, _mm512_set1_ps(-128.0f));
        EACH_ROW(
            __m512 factor = _mm512_mul_ps(d, _mm512_set1_ps(number(x + r * row_far)));
            out[t][r] = _mm512_fmadd_ps(m, _mm512_set1_ps(number(x + r * row_far + 4)), out[t][r]);
            out[t][r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(found[t][r]), factor, out[t][r]);))
}

VNNI WHOLE void store512(const Product *p, size_t tile, size_t row, __m512 sums) {
    size_t first = tile * TILE, here = p->outputs - first;
    __mmask16 there = here < TILE ? (__mmask16)((1u << here) - 1) : 0xffff;
    if (p->bias) sums = _mm512_add_ps(sums, _mm512_maskz_loadu_ps(there, p->bias + first));
    _mm512_mask_storeu_ps(p->out + row * p->outputs + first, there, sums);
}

VNNI WHOLE void tile512(const Product *p, int bits, int tiles, size_t tile, size_t row, int rows) {
    size_t blocks = p->blocks, far = blocks * (bits == 4 ? BYTES4 : BYTES8), k = 0;
    const uint8_t *w = p->weight + tile * far;
    size_t row_far = row_bytes(p), ahead = row ? 0 : p->ahead; /* later rows find them there */
    const int8_t *x = p->x + row * row_far;
    __m512 out[PAIR][MOST];
    EACH_TILE(EACH_ROW(
        out[t][r] = _mm512_setzero_ps();
        __builtin_prefetch(p->out + (row + r) * p->outputs + (tile + t) * TILE, 1); /* far away */))
    for (; k < p->fine; k++, x += FINE)
        block512(p, bits, 2, tiles, rows, k, w, far, ahead, x, row_far, out);
    for (; k < blocks; k++, x += COARSE)
        block512(p, bits, 1, tiles, rows, k, w, far, ahead, x, row_far, out);
    EACH_TILE(EACH_ROW(store512(p, tile + t, row + r, out[t][r]);))
}

#define CASE512(BITS, TILES, ROWS)                                                 \
    case 10 * TILES + ROWS: tile512(p, BITS, TILES, tile, row, ROWS); break;
#define CASES512(BITS, TILES)                                                      \
    CASE512(BITS, TILES, 1) CASE512(BITS, TILES, 2) CASE512(BITS, TILES, 3)        \
    CASE512(BITS, TILES, 4) CASE512(BITS, TILES, 5) CASE512(BITS, TILES, 6)
/* Rows in pieces of up to MOST, all about as long. */
#define TILES512(NAME, BITS)                                                       \
    VNNI static void NAME(const Product *p, size_t first, size_t last, size_t row, size_t end) { \
        for (size_t pieces = (end - row + MOST - 1) / MOST, some; row < end; row += some, pieces--) { \
            some = (end - row + pieces - 1) / pieces;                              \
            for (size_t tile = first, tiles; tile < last; tile += tiles) {         \
                tiles = last - tile < PAIR ? 1 : PAIR;                             \
                switch (10 * tiles + some) { CASES512(BITS, 1) CASES512(BITS, 2) } \
            }                                                                      \
        }                                                                          \
    }
TILES512(tiles512_4, 4)
TILES512(tiles512_8, 8)

/* -------------------------------------------------------------------------------------- AVX2 */
#define AVX2 __attribute__((target("avx2,f16c,fma")))

/* Sums of 8 outputs: numbers up to 15 leave the pairs' sums of a whole block in 16 bits. */
AVX2 WHOLE __m256i dot256(const __m256i *q, const int8_t *x) {
    __m256i sum = _mm256_setzero_si256();
    for (int i = 0; i < GROUPS; i++)
        sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(q[i], _mm256_set1_epi32(four(x + 4 * i))));
    return _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
}

AVX2 WHOLE void tile256(const Product *p, int bits, size_t tile, size_t row, int rows) {
    size_t bytes = bits == 4 ? BYTES4 : BYTES8;
    const __m256i low = _mm256_set1_epi8(15);
    float sums[AT_ONCE][TILE];
    for (int part = 0; part < 2; part++) {
        __m256 out[AT_ONCE];
        UNROLLED for (int r = 0; r < rows; r++) out[r] = _mm256_setzero_ps();
        for (size_t k = 0; k < p->blocks; k++) {
            const uint8_t *w = p->weight + (tile * p->blocks + p->order[k]) * bytes;
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
                const int8_t *x = p->x + (row + r) * row_bytes(p) + cell(p, k);
                for (int digit = 0; digit < (k < p->fine ? 2 : 1); digit++) {
                    const int8_t *n = x + HEAD + digit * CELL;
                    found = _mm256_add_epi32(_mm256_slli_epi32(found, 8), dot256(q, n));
                    if (bits == 8)
                        found = _mm256_add_epi32(found, _mm256_slli_epi32(dot256(high, n), 4));
                }
                __m256 factor = _mm256_mul_ps(d, _mm256_set1_ps(number(x)));
                out[r] = _mm256_fmadd_ps(m, _mm256_set1_ps(number(x + 4)), out[r]);
                out[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(found), factor, out[r]);
            }
        }
        UNROLLED for (int r = 0; r < rows; r++) _mm256_storeu_ps(sums[r] + part * 8, out[r]);
    }
    for (int r = 0; r < rows; r++) store(p, tile, row + r, sums[r]);
}

AVX2 TILES(tiles256_4, tile256, 4)
AVX2 TILES(tiles256_8, tile256, 8)
