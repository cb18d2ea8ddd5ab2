/* Includes KERNELS, a file of kernels over vector.h's vectors, once for each instruction set.

   For it: LANES of a vector; TARGET, the attribute of its functions; N(name), which makes a name
   the instruction set's own. BLOCK by WIDE vectors of sums, WIDE of a row and one factor fill the
   registers that there are. */
#if defined(__x86_64__)
#include <immintrin.h>
#define LANES 16
#define BLOCK 6
#define WIDE 4
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))
#define N(name) name##_avx512
#include "vector.h"
#include KERNELS
#include "vector_end.h"
#define LANES 8
#define BLOCK 6
#define WIDE 2
#define TARGET __attribute__((target("avx2,fma")))
#define N(name) name##_avx2
#include "vector.h"
#include KERNELS
#include "vector_end.h"
#endif
#define LANES 4
#define BLOCK 6
#if defined(__aarch64__)
#define WIDE 4
#else
#define WIDE 2
#endif
#define TARGET
#define N(name) name##_plain
#include "vector.h"
#include KERNELS
#include "vector_end.h"

/* The form of a function for the instructions in use. */
#if defined(__x86_64__)
#define BEST(name)                                                                    \
    (lm_level() == LM_AVX512 ? name##_avx512 : lm_level() == LM_AVX2 ? name##_avx2 : name##_plain)
#else
#define BEST(name) name##_plain
#endif
