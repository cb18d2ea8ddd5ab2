/* Products of float32 rows with weights of 4 or 8 bits: rows are quantised to int8 on the way.
 *
 *     weight  [O, I]   cut into tiles of 16 outputs, those into blocks of 32 inputs
 *     block   of 4 bits:  256 bytes of numbers 0..15, 16 scales d, 16 offsets m    w = d * q + m
 *             of 8 bits:  512 bytes of numbers 0..255, 16 scales d                 w = d * (q - 128)
 *     numbers of a block: 8 groups of 4 inputs, in each 16 outputs of 4 bytes, as vpdpbusd takes
 *             them; of 4 bits, groups 2i and 2i + 1 share bytes, the former in the low halves
 *     row     each 32 inputs get one scale s, x = s * n with n in -127..127; in blocks of two
 *             digits x = s * (n + n' / 256), where n' is what rounding to n has left
 *
 * so that  x . w = sum over blocks of  d * s * sum(n * q) + m * s * sum(n),  and with two digits
 * sum(n * q) + sum(n' * q) / 256 for the first sum. Integers are summed exactly (as floats by
 * the portable form, off by a rounding or two), floats block by block: a row's
 * result does not depend on the rows beside it.
 *
 * Sources: GGUF's Q4_1 and Q8_0 blocks; Intel's VNNI instructions.
 */
#include <stddef.h>
#include <string.h>

#include "machine.h"
#include "step.h"

enum { TILE = 16, CELL = 32, GROUPS = 8, BYTES4 = 320, BYTES8 = 544, AT_ONCE = 8 };
#define LEAST_SHARE (1 << 18) /* products of a thread's share that are worth waking it for */
#define MOST_TILES 4          /* of a thread at a time: so many stay in its cache */
#define MANY_ROWS 16          /* from so many on, threads share the rows to be quantised */

typedef struct {
    const uint8_t *weight;
    const int32_t *order; /* [blocks]: those of two digits, `fine` of them, then the others */
    const int8_t *x;    /* rows of cells, in that order */
    const float *bias;  /* [outputs] or null */
    float *out;         /* [rows, outputs] */
    size_t blocks, fine, outputs;
    size_t ahead;       /* so many tiles on are those that the thread will probably do next */
} Product;

/* A cell of x is what a row has in a block: the scale of the last digit, the sum of the integers
   times it, both float32, then 32 digits, and where there are two, the 32 second ones. */
enum { HEAD = 8, FINE = HEAD + 2 * CELL, COARSE = HEAD + CELL };
static inline size_t row_bytes(const Product *p) { return p->fine * FINE + (p->blocks - p->fine) * COARSE; }
/* Where in a row the cell of block k of the order begins. */
static inline size_t cell(const Product *p, size_t k) {
    return k < p->fine ? k * FINE : p->fine * FINE + (k - p->fine) * COARSE;
}

static inline float number(const int8_t *at) {
    float found;
    memcpy(&found, at, sizeof found);
    return found;
}

/* Of tiles first .. last-1 and rows row .. end-1. */
typedef void Tiles(const Product *, size_t first, size_t last, size_t row, size_t end);

/* A tile's sums to their places, the bias added; the last tile may be cut short. */
static inline void store(const Product *p, size_t tile, size_t row, const float *sums) {
    size_t first = tile * TILE, here = p->outputs - first;
    float *out = p->out + row * p->outputs + first;
    if (here > TILE) here = TILE;
    for (size_t i = 0; i < here; i++) out[i] = p->bias ? sums[i] + p->bias[first + i] : sums[i];
}

/* Each number of rows up to AT_ONCE is compiled by itself, so that its sums stay in registers. */
#define ROWS(FORM, BITS, COUNT)                                                    \
    case COUNT: FORM(p, BITS, tile, row, COUNT); break;
#define TILES(NAME, FORM, BITS)                                                    \
    static void NAME(const Product *p, size_t first, size_t last, size_t row, size_t end) { \
        for (size_t some; row < end; row += some) {                                \
            some = end - row < AT_ONCE ? end - row : AT_ONCE;                      \
            for (size_t tile = first; tile < last; tile++)                         \
                switch (some) {                                                    \
                    ROWS(FORM, BITS, 1) ROWS(FORM, BITS, 2) ROWS(FORM, BITS, 3)    \
                    ROWS(FORM, BITS, 4) ROWS(FORM, BITS, 5) ROWS(FORM, BITS, 6)    \
                    ROWS(FORM, BITS, 7) ROWS(FORM, BITS, 8)                        \
                }                                                                  \
        }                                                                          \
    }

/* ---------------------------------------------------------------------------------- portable */

static float half(const uint8_t *at) {
    uint16_t bits;
    memcpy(&bits, at, 2);
    return lm_half(bits);
}

/* Vectors of four outputs, which every CPU has; a tile is PARTS of them. */
typedef float four_f __attribute__((vector_size(16)));
typedef int32_t four_i __attribute__((vector_size(16)));
enum { PARTS = TILE / 4 };

/* The numbers of a block, less 128 where they are of 8 bits. Four inputs of an output are one
   word, of little end. */
static inline void widen(const uint8_t *w, int bits, four_f q[CELL][PARTS]) {
    for (int g = 0; g < GROUPS; g++)
        for (int part = 0; part < PARTS; part++) {
            four_i words;
            memcpy(&words, w + (bits == 4 ? g / 2 : g) * 64 + part * 16, sizeof words);
            for (int i = 0; i < 4; i++) {
                four_i n = bits == 4 ? words >> (8 * i + g % 2 * 4) & 15
                                     : (words >> 8 * i & 255) - 128;
                q[4 * g + i][part] = __builtin_convertvector(n, four_f);
            }
        }
}

/* A row's numbers in a block; of two digits, in steps of the last. */
static inline void widen_row(const int8_t *x, int two, float *n) {
    for (int i = 0; i < CELL; i++) n[i] = (float)(two ? x[i] * 256 + x[CELL + i] : x[i]);
}

/* Scales of a block or its offsets. */
static inline void floats(const uint8_t *halves, four_f *to) {
    float all[TILE];
    for (int o = 0; o < TILE; o++) all[o] = half(halves + 2 * o);
    memcpy(to, all, sizeof all);
}

/* By floats: products of bytes and their sums have no instructions that all CPUs know. */
static inline void tile_any(const Product *p, int bits, size_t tile, size_t row, int rows) {
    size_t bytes = bits == 4 ? BYTES4 : BYTES8;
    four_f out[AT_ONCE][PARTS] = {{{0}}};
    for (size_t k = 0; k < p->blocks; k++) {
        const uint8_t *w = p->weight + (tile * p->blocks + p->order[k]) * bytes;
        four_f q[CELL][PARTS], d[PARTS], m[PARTS] = {{0}};
        widen(w, bits, q);
        floats(w + bytes - (bits == 4 ? 64 : 32), d);
        if (bits == 4) floats(w + bytes - 32, m);
        for (int r = 0; r < rows; r++) {
            float n[CELL];
            const int8_t *x = p->x + (row + r) * row_bytes(p) + cell(p, k);
            float scale = number(x), sum = number(x + sizeof scale);
            widen_row(x + HEAD, k < p->fine, n);
            four_f found[PARTS] = {{0}};
            for (int i = 0; i < CELL; i++)
                for (int part = 0; part < PARTS; part++) found[part] += q[i][part] * n[i];
            for (int part = 0; part < PARTS; part++)
                out[r][part] += m[part] * sum + found[part] * (d[part] * scale);
        }
    }
    for (int r = 0; r < rows; r++) {
        float sums[TILE];
        memcpy(sums, out[r], sizeof sums);
        store(p, tile, row + r, sums);
    }
}

TILES(tiles_any_4, tile_any, 4)
TILES(tiles_any_8, tile_any, 8)

#if defined(__x86_64__)
#include "products_x86.h"
#endif

/* ---------------------------------------------------------------------------------- choosing */

static Tiles *chosen(int bits) {
#if defined(__x86_64__)
    if (lm_level() == LM_AVX512 && __builtin_cpu_supports("avx512vnni"))
        return bits == 4 ? tiles512_4 : tiles512_8;
    if (lm_level() >= LM_AVX2 && __builtin_cpu_supports("f16c"))
        return bits == 4 ? tiles256_4 : tiles256_8;
#endif
    return bits == 4 ? tiles_any_4 : tiles_any_8;
}

typedef struct {
    const lm_product *given;
    Product product;
    int8_t *x;
    Tiles *run;
    int shares, tiles, chunk, taken;
} work;

#define KERNELS "digits.h"
#include "each_isa.h"

static void quantise_share(void *argument, int share) {
    work *w = argument;
    int64_t rows = w->given->rows;
    for (int64_t r = rows * share / w->shares; r < rows * (share + 1) / w->shares; r++)
        BEST(digits)(w, r);
}

/* Tiles are taken, not given: a thread that comes late holds nobody up. */
static void multiply_share(void *argument, int share) {
    work *w = argument;
    (void)share;
    int first;
    while ((first = __atomic_fetch_add(&w->taken, w->chunk, __ATOMIC_RELAXED)) < w->tiles) {
        int last = first + w->chunk < w->tiles ? first + w->chunk : w->tiles;
        w->run(&w->product, (size_t)first, (size_t)last, 0, (size_t)w->given->rows);
    }
}

/* Blocks of two digits first; returns how many. */
static size_t put_in_order(const uint8_t *digits, int32_t blocks, int32_t *order) {
    int32_t at = 0, fine;
    for (int32_t b = 0; b < blocks; b++) if (digits[b] == 2) order[at++] = b;
    fine = at;
    for (int32_t b = 0; b < blocks; b++) if (digits[b] != 2) order[at++] = b;
    return (size_t)fine;
}

int64_t lm_multiply_space(int32_t rows, int32_t inputs) {
    int64_t blocks = (inputs + CELL - 1) / CELL;
    return blocks * (int64_t)sizeof(int32_t) + rows * blocks * FINE;
}

int lm_multiply(const lm_product *p) {
    if (p->space_size < lm_multiply_space(p->rows, p->inputs)) return LM_NO_SPACE;
    int64_t blocks = (p->inputs + CELL - 1) / CELL;
    int32_t *order = p->space;
    work w = {.given = p, .x = (int8_t *)(order + blocks), .run = chosen(p->bits)};
    size_t fine = put_in_order(p->digits, (int32_t)blocks, order);
    w.tiles = (p->outputs + TILE - 1) / TILE;
    int64_t most = (int64_t)p->rows * p->outputs * p->inputs / LEAST_SHARE;
    w.shares = (int)(most < 1 ? 1 : most < p->threads ? most : p->threads);
    w.chunk = 2 * (w.tiles / (16 * w.shares)); /* by twos, as they are multiplied */
    w.chunk = w.chunk < 2 ? 2 : w.chunk < MOST_TILES ? w.chunk : MOST_TILES;
    w.product = (Product){p->weight, order, w.x, p->bias, p->out, (size_t)blocks, fine,
                          (size_t)p->outputs, (size_t)(w.chunk * w.shares)};
    if (w.shares > 1 && p->rows >= MANY_ROWS)
        lm_parallel(quantise_share, &w, w.shares);
    else
        for (int64_t r = 0; r < p->rows; r++) BEST(digits)(&w, r);
    lm_parallel(multiply_share, &w, w.shares);
    return LM_OK;
}

int lm_rows_of(const lm_matrix *weight, const int64_t *ids, int32_t count, float *out) {
    for (int32_t n = 0; n < count; n++)
        if ((uint64_t)ids[n] >= (uint64_t)weight->outputs) return LM_BAD_ID;
    int bits = weight->bits, bytes = bits == 4 ? BYTES4 : BYTES8;
    int64_t inputs = weight->inputs, blocks = (inputs + CELL - 1) / CELL;
    for (int32_t n = 0; n < count; n++, out += inputs) {
        const uint8_t *w = weight->data + ids[n] / TILE * blocks * bytes;
        int lane = (int)(ids[n] % TILE);
        for (int64_t i = 0; i < inputs; i++) {
            const uint8_t *block = w + i / CELL * bytes;
            int group = (int)(i % CELL / 4), at = 4 * lane + (int)(i % 4);
            const uint8_t *floats = block + (bits == 4 ? 256 : 512) + 2 * lane;
            float d = half(floats), m = bits == 4 ? half(floats + 32) : -128.0f * d;
            int q = bits == 4 ? block[group / 2 * 64 + at] >> group % 2 * 4 & 15
                              : block[group * 64 + at];
            out[i] = d * q + m;
        }
    }
    return LM_OK;
}
