/* Which instruction sets run, found once; and the threads of the OpenMP library that torch loads.

   A pool of our own would compete with torch's for the cores: its threads spin for a while after
   each operation. So we hand them our work. A share is taken, not given: however few threads come,
   all shares are done. */
#include <stddef.h>
#include <string.h>

#include "lmlang.h"
#include "machine.h"

static const char *const NAMES[] = {"plain", "avx2", "avx512"};
static int best = -1, level = -1;
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

void lm_parallel(void (*fn)(void *, int), void *argument, int shares) {
    job j = {fn, argument, shares, 0};
    if (shares > 1 && gomp_parallel)
        gomp_parallel(do_shares, &j, (unsigned)shares, 0);
    else
        do_shares(&j);
}
