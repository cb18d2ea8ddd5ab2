/* What the machine gives: instruction sets, and threads that are there already. */
#ifndef LMLANG_MACHINE_H
#define LMLANG_MACHINE_H

#include "lmlang.h"

enum { LM_PLAIN, LM_AVX2, LM_AVX512 };

/* Bytes of a number of a type. */
static inline int lm_width(int type) { return type == LM_F32 ? 4 : type == LM_I8 ? 1 : 2; }

static inline float lm_half(uint16_t half) {
    union { uint32_t bits; float number; } x = {(uint32_t)(half & 0x7fffu) << 13};
    x.number *= 0x1p112f;
    if (x.number >= 65536.0f) x.bits |= 0x7f800000u;
    x.bits |= (uint32_t)(half & 0x8000u) << 16;
    return x.number;
}

/* The instruction set in use. */
int lm_level(void);

/* Calls fn(argument, share) for every share of 0 .. shares-1, on as many threads where there are. */
void lm_parallel(void (*fn)(void *, int), void *argument, int shares);

/* Calls fn(job, first, last) for all rows first .. last-1 of 0 .. rows-1, in so many shares. */
void lm_share_rows(void (*fn)(const void *, int, int), const void *job, int rows, int shares);

/* Numbers of float32 that lm_attend needs for these sizes, and rows of at most so many slots. */
int64_t lm_attend_room(int heads, int kv_heads, int key_dim, int value_dim, int threads,
                       int longest);

/* The largest distance of two neighbours of `rows` + 1 starts, or `longest` if that is larger. */
static inline int lm_longest(const int32_t *starts, int rows, int longest) {
    for (int i = 0; i < rows; i++)
        if (starts[i + 1] - starts[i] > longest) longest = starts[i + 1] - starts[i];
    return longest;
}

/* Caps numbers of dense rows in place: x = cap * tanh(x / cap). */
void lm_cap(float *x, int rows, int size, float cap, int threads);

/* As lm_parallel, by the threads of pool.c; returns 0, and does nothing, where there are none or
   another caller has them. */
int lm_pool_run(void (*fn)(void *, int), void *argument, int shares);

#endif
