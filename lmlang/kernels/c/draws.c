/* Rows of logits: the keyed Gumbel draw within masks and limits, and the sums of exponentials.

   Logarithms and sums round here in another way than in torch. So a draw is sure only where no other
   token comes near it, and no limit; the others, one in thousands, are for the reference to draw. */
#include <math.h>
#include <stddef.h>

#include "machine.h"

#define LOG2E 1.4426950408889634f
#define NEAR 0x1p-16f /* two noisy scores that differ by less may change places by rounding */
#define SLACK 0x1p-14f /* the part of all that rounding may add to what comes before a token */
#define MOST_RANKED 256 /* tokens that are put in order at most; more of them are not sure */
#define MOST_RACES 64
#define FAR 40 /* how far logits may be apart for sums of their exponentials to tell them well */

typedef lm_normaliser_rows normaliser_job;

typedef struct {
    float score;
    int id;
} ranked;

static int is_before(ranked a, ranked b) {
    return a.score > b.score || (a.score == b.score && a.id < b.id);
}

/* Puts the `most` likeliest of some first, the last of them at its place; returns its score. */
static float rank(ranked *x, int count, int most) {
    int low = 0, high = count - 1, at = most - 1;
    while (low < high) {
        ranked middle = x[low + (high - low) / 2];
        int i = low - 1, j = high + 1;
        for (;;) {
            while (is_before(x[++i], middle)) {}
            while (is_before(middle, x[--j])) {}
            if (i >= j) break;
            ranked other = x[i];
            x[i] = x[j];
            x[j] = other;
        }
        if (at <= j) high = j;
        else low = j + 1;
    }
    return x[at].score;
}

static uint32_t mix(uint32_t x) {
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

/* The words of a draw's noise, as lmlang/noise.py defines them. */
static void words_of(const lm_draw_row *r, uint32_t words[2]) {
    words[0] = mix((uint32_t)r->key ^ mix(r->index ^ 0x9e3779b9u));
    words[1] = mix((uint32_t)(r->key >> 32) ^ mix(words[0] + 0x85ebca6bu));
}

#define KERNELS "draws.h"
#include "each_isa.h"

static int shares(int rows, int threads) { return rows < 1 ? 1 : rows < threads ? rows : threads; }

int lm_normalise(const lm_normaliser_rows *j) {
    lm_share_rows(BEST(normaliser), j, j->rows, shares(j->rows, j->threads));
    return LM_OK;
}

typedef struct {
    void (*pick)(lm_draw_row *, int);
    lm_draw_row *rows;
    int count, size, taken;
} draw_job;

static void draw_some(void *job, int share) {
    draw_job *j = job;
    int row;
    (void)share;
    while ((row = __atomic_fetch_add(&j->taken, 1, __ATOMIC_RELAXED)) < j->count)
        j->pick(j->rows + row, j->size);
}

void lm_draw(lm_draw_row *rows, int32_t count, int32_t size, int32_t threads) {
    draw_job j = {BEST(pick), rows, count, size, 0};
    lm_own_threads(1); /* which have just run the model, and need not be waited for */
    lm_parallel(draw_some, &j, shares(count, threads));
    lm_own_threads(0);
}
