/* Which instruction sets run, found once; and which threads share the work of a call.

   Between operations of torch, the threads of its OpenMP library are awake and look for work for a
   while, so others would have to compete with them for the cores: we hand them ours. A share is
   taken, not given: however few threads come, all shares are done. But OpenMP waits for every
   thread at the end of everything, which takes many times as long as the work where the cores have
   something else to do; calls that nothing of torch comes between have the threads of pool.c. */
#include <stddef.h>
#include <string.h>

#include "lmlang.h"
#include "machine.h"

static const char *const NAMES[] = {"plain", "avx2", "avx512"};
static int best = -1, level = -1;
static __thread int own_threads;
static void (*gomp_parallel)(void (*)(void *), void *, unsigned, unsigned);

static int found(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
        && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return LM_AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return LM_AVX2;
#endif
    return LM_PLAIN;
}

int lm_level(void) {
    if (level < 0) level = best = found();
    return level;
}

int lm_version(void) { return LM_VERSION; }

const char *lm_instructions(void) { return NAMES[lm_level()]; }

int lm_limit_instructions(const char *name) {
    lm_level();
    for (int i = 0; i <= best; i++)
        if (!strcmp(name, NAMES[i])) {
            level = i;
            return 0;
        }
    return 1;
}

void lm_set_parallel(void *function) {
    memcpy(&gomp_parallel, &function, sizeof function);
}

typedef struct {
    void (*fn)(void *, int);
    void *argument;
    int shares, taken;
} job;

static void do_shares(void *argument) {
    job *j = argument;
    int share;
    while ((share = __atomic_fetch_add(&j->taken, 1, __ATOMIC_RELAXED)) < j->shares)
        j->fn(j->argument, share);
}

typedef struct {
    void (*fn)(const void *, int, int);
    const void *job;
    int rows, shares;
} rows_job;

static void do_share(void *argument, int share) {
    const rows_job *j = argument;
    int64_t rows = j->rows;
    j->fn(j->job, (int)(rows * share / j->shares), (int)(rows * (share + 1) / j->shares));
}

void lm_share_rows(void (*fn)(const void *, int, int), const void *job, int rows, int shares) {
    rows_job j = {fn, job, rows, shares};
    lm_parallel(do_share, &j, shares);
}

void lm_own_threads(int on) { own_threads = on; }

void lm_parallel(void (*fn)(void *, int), void *argument, int shares) {
    job j = {fn, argument, shares, 0};
    if (shares > 1 && own_threads && lm_pool_run(fn, argument, shares)) return;
    if (shares > 1 && gomp_parallel)
        gomp_parallel(do_shares, &j, (unsigned)shares, 0);
    else
        do_shares(&j);
}
