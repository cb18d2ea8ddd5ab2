/* Kernels that go over rows of numbers once; included by each_isa.h.

   They do rows first .. last-1 of what they are given, and a row's bits depend on it alone. */

/* A row's scale: one over the root of its mean square. */
INLINE float N(norm_scale)(int type, const char *x, int size, float eps) {
    int width = lm_width(type);
    vf sums = {0};
    for (int i = 0; i < size; i += LANES) {
        vf part = N(load_some)(x + (int64_t)i * width, type, size - i < LANES ? size - i : LANES);
        sums += part * part;
    }
    return 1.0f / sqrtf(N(sum)(sums) / (float)size + eps);
}

INLINE void N(norm_as)(int type, int weight_type, const norm_job *j, int first, int last) {
    int width = lm_width(type), weight_width = lm_width(weight_type), size = j->size;
    for (int row = first; row < last; row++) {
        int head = row % j->heads;
        int64_t token = row / j->heads;
        const char *x = (const char *)j->x + (token * j->x_stride + head * j->x_head) * width;
        const char *weight = (const char *)j->weight + head * j->weight_head * weight_width;
        char *out = (char *)j->out + (int64_t)row * size * width;
        if (j->residual) {
            char *sum = (char *)j->residual + token * j->residual_stride * width;
            for (int i = 0; i < size; i += LANES) {
                int there = size - i < LANES ? size - i : LANES;
                int64_t at = (int64_t)i * width;
                vf both = N(load_some)(x + at, type, there) + N(load_some)(sum + at, type, there);
                N(store_some)(sum + at, type, both, there);
            }
            x = sum;
        }
        float scale = N(norm_scale)(type, x, size, j->eps);
        for (int i = 0; i < size; i += LANES) {
            int there = size - i < LANES ? size - i : LANES;
            vf part = N(load_some)(x + (int64_t)i * width, type, there) * scale;
            part *= N(load_some)(weight + (int64_t)i * weight_width, weight_type, there);
            N(store_some)(out + (int64_t)i * width, type, part, there);
        }
    }
}

TARGET static void N(norm)(const void *job, int first, int last) {
    const norm_job *j = job;
    if (j->type == LM_F32 && j->weight_type == LM_F32)
        N(norm_as)(LM_F32, LM_F32, j, first, last);
    else if (j->type == LM_BF16)
        N(norm_as)(LM_BF16, j->weight_type, j, first, last);
    else
        N(norm_as)(j->type, j->weight_type, j, first, last);
}

/* x / (1 + e^-y), which is silu(x) where y is x. */
INLINE vf N(gated)(vf x, vf y) { return x / (N(exp2)(y * -LOG2E) + 1.0f); }

INLINE void N(gate_as)(int type, int gelu, const gate_job *j, int first, int last) {
    int width = lm_width(type), size = j->size;
    for (int64_t row = first; row < last; row++) {
        const char *gate = (const char *)j->x + row * j->x_stride * width;
        const char *up = gate + (int64_t)size * width;
        char *out = (char *)j->out + row * size * width;
        for (int i = 0; i < size; i += LANES) {
            int there = size - i < LANES ? size - i : LANES;
            int64_t at = (int64_t)i * width;
            vf x = N(load_some)(gate + at, type, there);
            /* x (1 + tanh u) / 2 = x / (1 + e^-2u) */
            vf y = gelu ? (x * x * x * 0.044715f + x) * 1.5957691216057308f : x;
            N(store_some)(out + at, type, N(gated)(x, y) * N(load_some)(up + at, type, there), there);
        }
    }
}

TARGET static void N(gate)(const void *job, int first, int last) {
    const gate_job *j = job;
    if (j->gelu) N(gate_as)(j->type, 1, j, first, last);
    else if (j->type == LM_F32) N(gate_as)(LM_F32, 0, j, first, last);
    else if (j->type == LM_BF16) N(gate_as)(LM_BF16, 0, j, first, last);
    else N(gate_as)(j->type, 0, j, first, last);
}

INLINE void N(rope_as)(int type, const rope_job *j, int first, int last) {
    int width = lm_width(type), half = j->size / 2;
    for (int64_t token = first; token < last; token++)
        for (int head = 0; head < j->heads; head++) {
            char *low = (char *)j->x + (token * j->x_stride + head * j->x_head) * width;
            char *high = low + (int64_t)half * width;
            for (int i = 0; i < half; i += LANES) {
                int there = half - i < LANES ? half - i : LANES;
                int64_t at = (int64_t)i * width, angle = (token * j->angle_stride + i) * width;
                vf cos = N(load_some)((const char *)j->cos + angle, type, there);
                vf sin = N(load_some)((const char *)j->sin + angle, type, there);
                vf x = N(load_some)(low + at, type, there), y = N(load_some)(high + at, type, there);
                N(store_some)(low + at, type, x * cos - y * sin, there);
                N(store_some)(high + at, type, y * cos + x * sin, there);
            }
        }
}

TARGET static void N(rope)(const void *job, int first, int last) {
    const rope_job *j = job;
    if (j->type == LM_F32) N(rope_as)(LM_F32, j, first, last);
    else if (j->type == LM_BF16) N(rope_as)(LM_BF16, j, first, last);
    else N(rope_as)(j->type, j, first, last);
}

/* One head's numbers to int8, to the nearest of 127 steps of what the largest of them is. */
INLINE void N(quantise)(const store_job *j, const char *from, int8_t *to, void *scales, int64_t at) {
    int size = j->size, width = lm_width(j->type);
    vf most = {0}, none = {0}; /* `none`: NaN where x is, else 0 */
    for (int i = 0; i < size; i += LANES) {
        vf x = N(load_some)(from + (int64_t)i * width, j->type, size - i < LANES ? size - i : LANES);
        most = N(larger)(N(larger)(x, -x), most);
        none += (vf)((vi)x & ~(x == x));
    }
    float scale = N(largest)(most) / 127.0f, least = j->scale_type == LM_F16 ? 0x1p-14f : 0x1p-126f;
    if (!(scale > least)) scale = least;
    scale += N(sum)(none);
    if (j->scale_type == LM_F16) {
        N(store_some)((uint16_t *)scales + at, LM_F16, N(all)(scale), 1);
        scale = lm_half(((const uint16_t *)scales)[at]);
    } else {
        ((float *)scales)[at] = scale;
    }
    for (int i = 0; i < size; i += LANES) {
        int there = size - i < LANES ? size - i : LANES;
        vf x = N(load_some)(from + (int64_t)i * width, j->type, there) / scale;
        const float round = 12582912.0f; /* 1.5 * 2^23 */
        x = N(larger)(-N(larger)(-x, N(all)(-127.0f)), N(all)(-127.0f));
        vi whole = (vi)(x + round) - 0x4b400000;
        N(vb) narrow = __builtin_convertvector(whole, N(vb));
        __builtin_memcpy(to + i, &narrow, (size_t)there);
    }
}

TARGET static void N(put)(const void *job, int first, int last) {
    const store_job *j = job;
    int size = j->size, width = lm_width(j->type), pool_width = lm_width(j->pool_type);
    for (int64_t token = first; token < last; token++)
        for (int head = 0; head < j->heads; head++) {
            const char *from = (const char *)j->x + (token * j->x_stride + head * j->x_head) * width;
            int64_t slot = lm_slot(j, token);
            char *to = (char *)j->pool + (slot * j->pool_stride + head * j->pool_head) * pool_width;
            if (j->pool_type == LM_I8) {
                N(quantise)(j, from, (int8_t *)to, j->scales, slot * j->heads + head);
            } else if (j->pool_type == j->type) {
                __builtin_memcpy(to, from, (size_t)size * width);
            } else {
                for (int i = 0; i < size; i += LANES) {
                    int there = size - i < LANES ? size - i : LANES;
                    vf x = N(load_some)(from + (int64_t)i * width, j->type, there);
                    N(store_some)(to + (int64_t)i * pool_width, j->pool_type, x, there);
                }
            }
        }
}

TARGET static void N(cap)(const void *job, int first, int last) {
    const cap_job *j = job;
    float *x = j->x + (int64_t)first * j->size, *end = j->x + (int64_t)last * j->size;
    for (; x < end; x += LANES) {
        int there = end - x < LANES ? (int)(end - x) : LANES;
        N(store_some)(x, LM_F32, N(tanh)(N(load_some)(x, LM_F32, there) / j->cap) * j->cap, there);
    }
}
