/* The element-wise operations of a decoder layer on a CPU, each in one pass over memory.
 *
 * Every intermediate result is rounded where the transformers modules round it, so that a value differs from theirs
 * by the order of float32 sums only. Arrays are dense, row after row, as their comments say.
 */
#include "element.h"

static inline float rounded(float x) { return load(store(x)); }

/* Rows below which threads cost more than they bring, in elements. */
enum { WORTH_THREADS = 16384 };

static inline float inverse_rms(const element *x, int64_t width, float eps) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t d = 0; d < width; d++) sum += load(x[d]) * load(x[d]);
    return 1.0f / sqrtf(sum / (float)width + eps);
}

/* residual += delta (when there is one); out = residual / rms(residual) * weight. */
void add_rms_norm(element *residual,       /* [rows, width] */
                  const element *delta,    /* [rows, width] or NULL */
                  const element *weight,   /* [width] */
                  element *out,            /* [rows, width] */
                  int64_t rows, int64_t width, float eps) {
#pragma omp parallel for if (rows * width > WORTH_THREADS)
    for (int64_t row = 0; row < rows; row++) {
        element *x = residual + row * width;
        if (delta)
            for (int64_t d = 0; d < width; d++) x[d] = store(load(x[d]) + load(delta[row * width + d]));
        float scale = inverse_rms(x, width, eps);
        for (int64_t d = 0; d < width; d++)
            out[row * width + d] = store(load(weight[d]) * rounded(load(x[d]) * scale));
    }
}

/* One head: normalised by its own rms (when there is a weight), then turned by its position's angles. */
static void rotate_head(element *x, const element *cosine, const element *sine, int64_t width, const element *weight,
                        float eps) {
    if (weight) {
        float scale = inverse_rms(x, width, eps);
        for (int64_t d = 0; d < width; d++) x[d] = store(load(weight[d]) * rounded(load(x[d]) * scale));
    }
    int64_t half = width / 2;
    for (int64_t d = 0; d < half; d++) {
        float low = load(x[d]), high = load(x[d + half]);
        x[d] = store(rounded(low * load(cosine[d])) + rounded(-high * load(sine[d])));
        x[d + half] = store(rounded(high * load(cosine[d + half])) + rounded(low * load(sine[d + half])));
    }
}

/* Rotary position embedding of queries and keys in place, after their norms where a model has them. */
void rotate(element *query,             /* [rows, heads, width] */
            element *key,               /* [rows, kv_heads, width] */
            const element *cosine,      /* [rows, width] */
            const element *sine,        /* [rows, width] */
            const element *query_norm,  /* [width] or NULL */
            const element *key_norm,    /* [width] or NULL */
            int64_t rows, int64_t heads, int64_t kv_heads, int64_t width, float eps) {
#pragma omp parallel for if (rows * heads * width > WORTH_THREADS)
    for (int64_t row = 0; row < rows; row++) {
        const element *c = cosine + row * width, *s = sine + row * width;
        for (int64_t h = 0; h < heads; h++)
            rotate_head(query + (row * heads + h) * width, c, s, width, query_norm, eps);
        for (int64_t h = 0; h < kv_heads; h++)
            rotate_head(key + (row * kv_heads + h) * width, c, s, width, key_norm, eps);
    }
}

static inline float sigmoid(float x) {
    float e = exp_negative(-fabsf(x));
    return (x < 0 ? e : 1.0f) / (1.0f + e);
}

/* gate = silu(gate) * up, in place. */
void silu_mul(element *gate, const element *up, int64_t count) {
#pragma omp parallel for simd if (count > WORTH_THREADS)
    for (int64_t i = 0; i < count; i++) {
        float g = load(gate[i]);
        gate[i] = store(rounded(g * sigmoid(g)) * load(up[i]));
    }
}
