/* The face of the native kernels: plain structs and functions, called through ctypes.

   No kernel allocates, locks or keeps a pointer. Sizes and types are the caller's promise (see
   native.py, which checks them); what a table of slots says is checked here, as it is read. */
#ifndef LMLANG_H
#define LMLANG_H

#include <stdint.h>

#define LM_VERSION 6

#if defined(__GNUC__)
#define LM_API __attribute__((visibility("default")))
#else
#error "GCC or Clang is needed: the kernels are written with their vector types"
#endif

enum { LM_F32 = 0, LM_BF16 = 1, LM_F16 = 2, LM_I8 = 3 };

enum {
    LM_OK = 0,
    LM_BAD_SLOT = 1,  /* a table names a slot that the pool has not */
    LM_BAD_ROWS = 2,  /* starts do not rise, or a row has more queries than slots */
    LM_NO_SPACE = 3,  /* the workspace is too small */
    LM_BAD_ID = 4     /* an id names a row that the weight has not */
};

/* Attention of R rows of queries, each over its own list of slots.

       q     row 0: starts[0] ..  | row 1: starts[1] ..          T queries, H heads each
       table slots of row 0 ..    | slots of row 1 ..            one after the other

   Where causal, query i of a row of n queries and L slots sees slots 0 .. L-n+i, and of these the
   last `window` (0: all). Otherwise every query of a row sees all of its slots.
   Query head h reads kv head h / (H / Hkv). A call that carries goes on from the states in `out`
   and `lse` over keys that stand behind those of its own: cut at multiples of lm_attend_span, it
   gives the bits that one call over all of them would. */
typedef struct {
    const void *q;               /* [T, H, Dk] */
    const void *k, *v;           /* [S, Hkv, Dk], [S, Hkv, Dv] */
    const void *k_scale;         /* dense [S, Hkv] where k and v are int8, else NULL; so is v_scale */
    const void *v_scale;
    const int32_t *queries;      /* [M] places in q, out and lse, row by row, each at most once; NULL:
                                    as they lie there, M = T */
    const int32_t *starts;       /* [R + 1], the last at most M; NULL: one query a row */
    const int32_t *table;        /* [N] slots, N at least table_starts[R] */
    const int32_t *table_starts; /* [R + 1], which need not begin at 0 */
    void *out;                   /* dense [T, H, Dv], of q's type; written */
    float *lse;                  /* dense [T, H]; written. -inf, and 0 in out, where nothing is seen */
    float *space;                /* what lm_attend_space asks for */
    int64_t space_size;
    int64_t q_stride, q_head, k_stride, k_head, v_stride, v_head; /* numbers between neighbours */
    int64_t table_size;          /* N */
    int32_t q_type, kv_type, scale_type;
    int32_t rows, tokens, members, slots; /* R, T, M, S */
    int32_t heads, kv_heads, key_dim, value_dim;
    int32_t causal, window, carries;
    float scale, softcap;       /* softcap 0: none */
    int32_t threads;            /* at most so many; at least 1 */
} lm_attention;

/* What goes over rows once. Strides are numbers between neighbours; `type` is that of all that
   has none of its own; the last axis is dense. */
typedef struct {
    const void *x;              /* [R, H, N] */
    void *residual;             /* NULL, or [R, N] where H is 1: x is added to it first */
    const void *weight;         /* [H, N], or [N] where its stride is 0 */
    void *out;                  /* dense [R, H, N]; written */
    int64_t x_stride, x_head, residual_stride, weight_head;
    int32_t type, weight_type, rows, heads, size;
    float eps;
    int32_t threads;
} lm_norm_rows;

typedef struct {
    const void *x;              /* [R, 2N], the gate first */
    void *out;                  /* dense [R, N]; written */
    int64_t x_stride;
    int32_t type, rows, size;
    int32_t gelu;               /* else silu */
    int32_t threads;
} lm_gate_rows;

typedef struct {
    void *x;                    /* [R, H, N], turned in place */
    const void *cos, *sin;      /* [R, N/2], rows `angle_stride` numbers apart */
    int64_t x_stride, x_head, angle_stride;
    int32_t type, rows, heads, size;
    int32_t threads;
} lm_rope_rows;

typedef struct {
    const void *x;              /* [R, H, N] */
    void *pool;                 /* [S, H, N]; written */
    void *scales;               /* dense [S, H] where the pool is int8; written */
    const void *at;             /* [R] slots, int64 where `wide_slots`, else int32 */
    int64_t x_stride, x_head, pool_stride, pool_head;
    int32_t type, pool_type, scale_type, rows, heads, size, slots, wide_slots;
    int32_t threads;
} lm_store_rows;

/* Rows of float32 times a weight of 4 or 8 bits, laid out as products.c draws it. */
typedef struct {
    const float *x;             /* [R, I], rows `x_stride` numbers apart */
    const uint8_t *weight;
    const uint8_t *digits;      /* of the rows, 1 or 2 for each 32 of I */
    const float *bias;          /* [O], or NULL */
    float *out;                 /* [R, O] dense; written */
    void *space;                /* what lm_multiply_space asks for; aligned for float */
    int64_t space_size;         /* bytes */
    int64_t x_stride;
    int32_t bits, rows, inputs, outputs; /* of the weight, 4 or 8; R, I, O */
    int32_t threads;            /* at most so many; at least 1 */
} lm_product;

typedef struct {
    const float *logits;        /* [R, N], rows `stride` numbers apart */
    float *out;                 /* [R]: log of the sum of exponentials; written */
    int64_t stride;
    int32_t rows, size, threads;
} lm_normaliser_rows;

/* The draw of one token, among the ids that its mask and its limits leave. */
typedef struct {
    const float *scores;  /* [N], what is drawn from; -inf what cannot be drawn */
    const float *logits;  /* [N], the model's own; may be `scores` */
    const uint32_t *mask; /* bit i % 32 of word i / 32 set where id i may be drawn; NULL: all */
    uint64_t key;
    uint32_t index;       /* of the token in its output */
    float temperature;    /* 0: the likeliest, of equal ones the lowest id, whatever the limits */
    float top_p, min_p;   /* 1 and 0 for no limit */
    int32_t top_k;        /* N or more for no limit */
    int32_t words;        /* of the mask; ids behind them may not be drawn */
    /* Written: the token; whether it is the reference's for sure; its probability among what the
       mask leaves; its log-probability by the logits, NaN where they are not finite. */
    int32_t token, sure;
    float prob, logprob;
} lm_draw_row;

LM_API int lm_version(void);

/* The widest instruction set in use, of those built in: "avx512", "avx2", "plain". */
LM_API const char *lm_instructions(void);
/* Use no wider one than this from now on; for tests. Returns 0, or 1 where it is unknown or the
   CPU has it not. */
LM_API int lm_limit_instructions(const char *name);

/* GOMP_parallel of the OpenMP library that is loaded anyway, so that its threads do our work too;
   NULL (as it is at first): one thread. */
LM_API void lm_set_parallel(void *gomp_parallel);
/* Whether this thread's calls are shared with threads of our own from now on; at first not. For
   calls that follow one another with nothing of OpenMP's in between: see pool.c. */
LM_API void lm_own_threads(int on);

/* Numbers of float32 that lm_attend needs in `space`, of which alone these arguments say nothing. */
LM_API int64_t lm_attend_space(const lm_attention *a);
/* Slots from one place where a row's keys may be cut to the next. */
LM_API int lm_attend_span(void);
LM_API int lm_attend(const lm_attention *a);

LM_API int lm_norm(const lm_norm_rows *j);
LM_API int lm_gate(const lm_gate_rows *j);
LM_API int lm_rope(const lm_rope_rows *j);
LM_API int lm_store(const lm_store_rows *jobs, int32_t count);

LM_API int lm_normalise(const lm_normaliser_rows *j);
LM_API void lm_draw(lm_draw_row *rows, int32_t count, int32_t size, int32_t threads);

/* Bytes that lm_multiply needs in `space` for these sizes. */
LM_API int64_t lm_multiply_space(int32_t rows, int32_t inputs);
LM_API int lm_multiply(const lm_product *p);

#endif
