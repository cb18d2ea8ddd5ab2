/* What goes over rows of numbers once: norms, gates, rotary positions, stores. */
#include <math.h>
#include <stddef.h>

#include "lmlang.h"
#include "machine.h"

#define LOG2E 1.4426950408889634f
#define LEAST_SHARE 32768 /* numbers of a thread's share that are worth waking it for */

typedef lm_norm_rows norm_job;
typedef lm_gate_rows gate_job;
typedef lm_rope_rows rope_job;
typedef lm_store_rows store_job;

typedef struct {
    float *x; /* [rows, size] */
    int size;
    float cap;
} cap_job;

static inline int64_t lm_slot(const store_job *j, int64_t token) {
    return j->wide_slots ? ((const int64_t *)j->at)[token] : ((const int32_t *)j->at)[token];
}

#define KERNELS "rows.h"
#include "each_isa.h"

static void do_rows(void (*fn)(const void *, int, int), const void *job, int rows, int64_t size,
                    int threads) {
    int64_t most = rows * size / LEAST_SHARE;
    lm_share_rows(fn, job, rows, (int)(most < 1 ? 1 : most < threads ? most : threads));
}

int lm_norm(const lm_norm_rows *j) {
    do_rows(BEST(norm), j, j->rows * j->heads, j->size, j->threads);
    return LM_OK;
}

int lm_gate(const lm_gate_rows *j) {
    do_rows(BEST(gate), j, j->rows, j->size, j->threads);
    return LM_OK;
}

int lm_rope(const lm_rope_rows *j) {
    do_rows(BEST(rope), j, j->rows, (int64_t)j->heads * j->size, j->threads);
    return LM_OK;
}

int lm_store(const lm_store_rows *jobs, int32_t count) {
    for (const lm_store_rows *j = jobs; j < jobs + count; j++) {
        for (int64_t token = 0; token < j->rows; token++)
            if ((uint64_t)lm_slot(j, token) >= (uint64_t)j->slots) return LM_BAD_SLOT;
        do_rows(BEST(put), j, j->rows, (int64_t)j->heads * j->size, j->threads);
    }
    return LM_OK;
}

void lm_cap(float *x, int rows, int size, float cap, int threads) {
    cap_job j = {x, size, cap};
    do_rows(BEST(cap), &j, rows, size, threads);
}
