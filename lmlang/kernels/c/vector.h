/* Vectors of LANES float32, in the compiler's own vector types; included by each_isa.h. */

typedef float N(vf) __attribute__((vector_size(LANES * 4)));
typedef int32_t N(vi) __attribute__((vector_size(LANES * 4)));
typedef uint32_t N(vu) __attribute__((vector_size(LANES * 4)));
typedef uint16_t N(vh) __attribute__((vector_size(LANES * 2)));
typedef int8_t N(vb) __attribute__((vector_size(LANES)));

#define vf N(vf)
#define vi N(vi)
#define vu N(vu)
#define INLINE TARGET static inline __attribute__((always_inline))

/* Lane j of a shuffle of a and b: numbers from LANES on are b's. */
#define SAME(j, s) (j)
#define SWAPPED(j, s) ((j) ^ (s))
/* The lower or the upper two of each 4 lanes, alternately of a and b: single lanes, or in pairs. */
#define LOW1(j, s) (((j) & 1) * LANES + (j) / 4 * 4 + (j) % 4 / 2)
#define HIGH1(j, s) (LOW1(j, s) + 2)
#define LOW2(j, s) (((j) % 4 / 2) * LANES + (j) / 4 * 4 + (j) % 2)
#define HIGH2(j, s) (LOW2(j, s) + 2)
/* Every second group of 4 lanes of a, then of b, from group s on. */
#define GROUPS(j, s) ((j) * 2 / LANES * LANES + ((j) / 4 % (LANES / 8) * 2 + (s)) * 4 + (j) % 4)
#define LANES4(F, s) F(0, s), F(1, s), F(2, s), F(3, s)
#if LANES == 4
#define EACH(F, s) LANES4(F, s)
#elif LANES == 8
#define EACH(F, s) LANES4(F, s), F(4, s), F(5, s), F(6, s), F(7, s)
#else
#define EACH(F, s)                                                                    \
    LANES4(F, s), F(4, s), F(5, s), F(6, s), F(7, s), F(8, s), F(9, s), F(10, s),     \
        F(11, s), F(12, s), F(13, s), F(14, s), F(15, s)
#endif
#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLED(a, b, F, s) __builtin_shufflevector(a, b, EACH(F, s))
#else
#define SHUFFLED(a, b, F, s) __builtin_shuffle(a, b, (vi){EACH(F, s)})
#endif

INLINE vf N(load)(const float *p) {
    vf x;
    __builtin_memcpy(&x, p, sizeof x);
    return x;
}

INLINE void N(store)(float *p, vf x) { __builtin_memcpy(p, &x, sizeof x); }

INLINE vf N(all)(float x) { return (vf){0} + x; }

/* The larger of two numbers, or the smaller; the second of those that are alike or NaN. */
INLINE vf N(larger)(vf a, vf b) {
#if LANES == 16
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif LANES == 8
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
    vi more = a > b;
    return (vf)(((vi)a & more) | ((vi)b & ~more));
#endif
}

INLINE vf N(smaller)(vf a, vf b) {
#if LANES == 16
    return (vf)_mm512_min_ps((__m512)a, (__m512)b);
#elif LANES == 8
    return (vf)_mm256_min_ps((__m256)a, (__m256)b);
#else
    vi less = a < b;
    return (vf)(((vi)a & less) | ((vi)b & ~less));
#endif
}

INLINE float N(largest)(vf x) {
#if LANES >= 16
    x = N(larger)(x, SHUFFLED(x, x, SWAPPED, 8));
#endif
#if LANES >= 8
    x = N(larger)(x, SHUFFLED(x, x, SWAPPED, 4));
#endif
    x = N(larger)(x, SHUFFLED(x, x, SWAPPED, 2));
    x = N(larger)(x, SHUFFLED(x, x, SWAPPED, 1));
    return x[0];
}

INLINE float N(sum)(vf x) {
#if LANES >= 16
    x += SHUFFLED(x, x, SWAPPED, 8);
#endif
#if LANES >= 8
    x += SHUFFLED(x, x, SWAPPED, 4);
#endif
    x += SHUFFLED(x, x, SWAPPED, 2);
    x += SHUFFLED(x, x, SWAPPED, 1);
    return x[0];
}

/* Sums over the lanes of LANES vectors, one a lane. */
INLINE vf N(sums)(vf x[LANES]) {
    for (int i = 0; i < LANES; i += 4) {
        vf a = SHUFFLED(x[i], x[i + 1], LOW1, 0) + SHUFFLED(x[i], x[i + 1], HIGH1, 0);
        vf b = SHUFFLED(x[i + 2], x[i + 3], LOW1, 0) + SHUFFLED(x[i + 2], x[i + 3], HIGH1, 0);
        x[i / 4] = SHUFFLED(a, b, LOW2, 0) + SHUFFLED(a, b, HIGH2, 0);
    }
#if LANES >= 8
    for (int n = LANES / 4; n > 1; n /= 2)
        for (int i = 0; i < n; i += 2)
            x[i / 2] = SHUFFLED(x[i], x[i + 1], GROUPS, 0) + SHUFFLED(x[i], x[i + 1], GROUPS, 1);
#endif
    return x[0];
}

/* The largest of the lanes of LANES vectors, one a lane. */
INLINE vf N(largests)(vf x[LANES]) {
    for (int i = 0; i < LANES; i += 4) {
        vf a = N(larger)(SHUFFLED(x[i], x[i + 1], LOW1, 0), SHUFFLED(x[i], x[i + 1], HIGH1, 0));
        vf b = N(larger)(SHUFFLED(x[i + 2], x[i + 3], LOW1, 0), SHUFFLED(x[i + 2], x[i + 3], HIGH1, 0));
        x[i / 4] = N(larger)(SHUFFLED(a, b, LOW2, 0), SHUFFLED(a, b, HIGH2, 0));
    }
#if LANES >= 8
    for (int n = LANES / 4; n > 1; n /= 2)
        for (int i = 0; i < n; i += 2)
            x[i / 2] = N(larger)(SHUFFLED(x[i], x[i + 1], GROUPS, 0), SHUFFLED(x[i], x[i + 1], GROUPS, 1));
#endif
    return x[0];
}

INLINE vi N(more)(vi a, vi b) {
#if LANES == 16
    return (vi)_mm512_max_epi32((__m512i)a, (__m512i)b);
#elif LANES == 8
    return (vi)_mm256_max_epi32((__m256i)a, (__m256i)b);
#else
    vi more = a > b;
    return (a & more) | (b & ~more);
#endif
}

/* 2^x to about a float's last bit; 0 below 2^-126. A polynomial in the rest to the nearest whole
   number, which goes into the exponent. */
INLINE vf N(exp2)(vf x) {
    const float round = 12582912.0f; /* 1.5 * 2^23: adding it leaves no room for a fraction */
    vi normal = ~(x <= -126.0f); /* NaN stays what it is */
    x = (vf)((vi)x & normal); /* -inf would leave no number behind */
    x = N(smaller)(N(all)(127.0f), x);
    vf shifted = x + round;
    vf rest = x - (shifted - round);
    vf p = rest * 0.00015337577497120947f + 0.0013399859890341759f;
    p = p * rest + 0.009618519805371761f;
    p = p * rest + 0.05550329014658928f;
    p = p * rest + 0.24022646248340607f;
    p = p * rest + 0.6931471824645996f;
    p = p * rest + 1.0f;
    vi exponent = (vi)((vu)shifted << 23);
    return (vf)(((vi)p + exponent) & normal);
}

/* log2 of normal numbers above 0, to about a float's last bit: x is m 2^e with m around 1, and
   log2(m) a series in (m - 1) / (m + 1). NaN stays what it is. */
INLINE vf N(log2)(vf x) {
    vi exponent = ((vi)x - 0x3f3504f3) >> 23; /* the bits of the root of 1/2 */
    vf m = (vf)((vi)x - (exponent << 23)), t = (m - 1.0f) / (m + 1.0f), square = t * t;
    vf p = square * 0.32059889f + 0.41219858f;
    p = p * square + 0.57707802f;
    p = p * square + 0.96179669f;
    p = p * square + 2.88539008f;
    return __builtin_convertvector(exponent, vf) + p * t + (x - x);
}

/* tanh by exp2: right to a few float32 steps of 1, not of the result. */
INLINE vf N(tanh)(vf x) {
    return 1.0f - 2.0f / (N(exp2)(x * 2.8853900817779268f) + 1.0f);
}

/* LANES numbers of a type as float32. */
INLINE vf N(from_bf16)(N(vh) x) { return (vf)(__builtin_convertvector(x, vu) << 16); }

INLINE vf N(from_f16)(N(vh) x) {
    vu wide = __builtin_convertvector(x, vu);
    vu sign = (wide & 0x8000u) << 16;
    /* With the exponent where a float32's is, all but the bias of 2^112 is there: subnormals too. */
    vf scaled = (vf)((wide & 0x7fffu) << 13) * 0x1p112f;
    vi special = scaled >= 65536.0f; /* inf and NaN have the largest exponent in float32 as well */
    return (vf)((vu)scaled | sign | ((vu)special & 0x7f800000u));
}

INLINE vf N(from_i8)(N(vb) x) {
    return __builtin_convertvector(__builtin_convertvector(x, vi), vf);
}

INLINE vf N(load_bf16)(const void *p) {
    N(vh) x;
    __builtin_memcpy(&x, p, sizeof x);
    return N(from_bf16)(x);
}

INLINE vf N(load_f16)(const void *p) {
    N(vh) x;
    __builtin_memcpy(&x, p, sizeof x);
    return N(from_f16)(x);
}

INLINE vf N(load_i8)(const void *p) {
    N(vb) x;
    __builtin_memcpy(&x, p, sizeof x);
    return N(from_i8)(x);
}

INLINE vf N(load_as)(const void *p, int type) {
    switch (type) {
    case LM_BF16: return N(load_bf16)(p);
    case LM_F16: return N(load_f16)(p);
    case LM_I8: return N(load_i8)(p);
    default: return N(load)(p);
    }
}

/* Only the first n of them, the others 0; n may be LANES. */
INLINE vf N(load_some)(const void *p, int type, int n) {
    if (n == LANES) return N(load_as)(p, type);
    float room[LANES] = {0};
    __builtin_memcpy(room, p, (size_t)n * lm_width(type));
    return N(load_as)(room, type);
}

INLINE void N(store_bf16)(void *p, vf x) {
    vu bits = (vu)x, rest = bits & 0x7fffffffu;
    vu half = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
    vu none = (vu)(rest > 0x7f800000u); /* NaN must not be rounded to infinity */
    N(vh) narrow = __builtin_convertvector((half & ~none) | (0x7fc0u & none), N(vh));
    __builtin_memcpy(p, &narrow, sizeof narrow);
}

INLINE void N(store_f16)(void *p, vf x) {
    vu bits = (vu)x, rest = bits & 0x7fffffffu;
    vu usual = (rest + 0xfffu + (rest >> 13 & 1) - (112u << 23)) >> 13;
    /* Below 2^-14 the last bit stands for 2^-24, as that of numbers from a half to one does. */
    vu small = (vu)((vf)rest + 0.5f) - 0x3f000000u;
    vu half = (vu)(rest < 0x38800000u);
    half = (small & half) | (usual & ~half);
    vu large = (vu)(rest >= 0x477ff000u); /* from 65520 on: infinity */
    half = (0x7c00u & large) | (half & ~large);
    vu none = (vu)(rest > 0x7f800000u);
    half = (0x7e00u & none) | (half & ~none);
    N(vh) narrow = __builtin_convertvector(half | (bits >> 31 << 15), N(vh));
    __builtin_memcpy(p, &narrow, sizeof narrow);
}

/* LANES float32 to numbers of a type (not int8), rounded to the nearest, or the even one of two. */
INLINE void N(store_as)(void *p, int type, vf x) {
    switch (type) {
    case LM_BF16: N(store_bf16)(p, x); break;
    case LM_F16: N(store_f16)(p, x); break;
    default: N(store)(p, x);
    }
}

/* Only the first n of them; n may be LANES. */
INLINE void N(store_some)(void *p, int type, vf x, int n) {
    if (n == LANES) {
        N(store_as)(p, type, x);
        return;
    }
    float room[LANES];
    N(store_as)(room, type, x);
    __builtin_memcpy(p, room, (size_t)n * lm_width(type));
}
