/* Rows of logits: the keyed Gumbel draw, and the sums of exponentials.

   Logarithms round here in another way than in torch. So a draw is sure only where no other token
   comes near it; the others, one in thousands, are for the reference to draw. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "machine.h"

#define LOG2E 1.4426950408889634f
#define NEAR 0x1p-16f /* two noisy scores that differ by less may change places by rounding */

typedef lm_normaliser_rows normaliser_job;
typedef lm_draw_rows draw_job;

#define KERNELS "draws.h"
#include "each_isa.h"

static int shares(int rows, int threads) { return rows < 1 ? 1 : rows < threads ? rows : threads; }

int lm_normalise(const lm_normaliser_rows *j) {
    lm_share_rows(BEST(normaliser), j, j->rows, shares(j->rows, j->threads));
    return LM_OK;
}

int lm_draw(const lm_draw_rows *j) {
    lm_share_rows(BEST(pick), j, j->rows, shares(j->rows, j->threads));
    return LM_OK;
}
