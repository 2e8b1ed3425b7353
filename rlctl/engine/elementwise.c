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

/* The gradient of `add_rms_norm`'s out by its residual is added to grad; by its weight, it is summed in float32 into
 * one row of grad_weight a part, so that the order of the sum depends on the number of parts alone. Writes again what
 * the norm gave. */
void rms_norm_backward(const element *grad_out,  /* [rows, width] */
                       const element *x,         /* [rows, width] */
                       const element *weight,    /* [width] */
                       element *grad,            /* [rows, width] */
                       element *out,             /* [rows, width] */
                       float *grad_weight,       /* [parts, width] */
                       int64_t rows, int64_t width, int64_t parts, float eps) {
#pragma omp parallel for schedule(static, 1)
    for (int64_t part = 0; part < parts; part++) {
        float *by_weight = grad_weight + part * width;
        for (int64_t d = 0; d < width; d++) by_weight[d] = 0;
        for (int64_t row = rows * part / parts; row < rows * (part + 1) / parts; row++) {
            const element *x_row = x + row * width, *g_row = grad_out + row * width;
            float scale = inverse_rms(x_row, width, eps), dot = 0;
#pragma omp simd reduction(+ : dot)
            for (int64_t d = 0; d < width; d++) dot += load(g_row[d]) * load(weight[d]) * load(x_row[d]);
            float shared = dot * scale * scale * scale / (float)width;
            element *out_row = out + row * width, *grad_row = grad + row * width;
            for (int64_t d = 0; d < width; d++) {
                float normed = rounded(load(x_row[d]) * scale), g = load(g_row[d]);
                by_weight[d] += g * normed;
                out_row[d] = store(load(weight[d]) * normed);
                grad_row[d] = store(load(grad_row[d]) + g * load(weight[d]) * scale - load(x_row[d]) * shared);
            }
        }
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

/* Its gradient without the norm: turned the other way. */
static void rotate_head_back(element *x, const element *cosine, const element *sine, int64_t width) {
    int64_t half = width / 2;
    for (int64_t d = 0; d < half; d++) {
        float low = load(x[d]), high = load(x[d + half]);
        x[d] = store(low * load(cosine[d]) + high * load(sine[d + half]));
        x[d + half] = store(high * load(cosine[d + half]) - low * load(sine[d]));
    }
}

/* Rotary position embedding of queries and keys in place, after their norms where they are given. */
void rotate(element *query,             /* [rows, heads, width], rows query_stride apart */
            element *key,               /* [rows, kv_heads, width], rows key_stride apart */
            const element *cosine,      /* [rows, width] */
            const element *sine,        /* [rows, width] */
            const element *query_norm,  /* [width] or NULL */
            const element *key_norm,    /* [width] or NULL */
            int64_t rows, int64_t heads, int64_t kv_heads, int64_t width, int64_t query_stride, int64_t key_stride,
            float eps) {
#pragma omp parallel for if (rows * heads * width > WORTH_THREADS)
    for (int64_t row = 0; row < rows; row++) {
        const element *c = cosine + row * width, *s = sine + row * width;
        for (int64_t h = 0; h < heads; h++)
            rotate_head(query + row * query_stride + h * width, c, s, width, query_norm, eps);
        for (int64_t h = 0; h < kv_heads; h++)
            rotate_head(key + row * key_stride + h * width, c, s, width, key_norm, eps);
    }
}

/* The gradient of `rotate` without norms, in place; dense. */
void rotate_backward(element *grad,          /* [rows, heads, width] */
                     const element *cosine,  /* [rows, width] */
                     const element *sine,    /* [rows, width] */
                     int64_t rows, int64_t heads, int64_t width) {
#pragma omp parallel for
    for (int64_t row = 0; row < rows; row++)
        for (int64_t h = 0; h < heads; h++)
            rotate_head_back(grad + (row * heads + h) * width, cosine + row * width, sine + row * width, width);
}

static inline float sigmoid(float x) {
    float e = exp_negative(-fabsf(x));
    return (x < 0 ? e : 1.0f) / (1.0f + e);
}

/* out = silu(gate) * up; out may be gate. */
void silu_mul(const element *gate,  /* [rows, width], rows `stride` apart */
              const element *up,    /* [rows, width], rows `stride` apart */
              element *out,         /* [rows, width] */
              int64_t rows, int64_t width, int64_t stride) {
#pragma omp parallel for if (rows * width > WORTH_THREADS)
    for (int64_t row = 0; row < rows; row++) {
        const element *g_row = gate + row * stride, *u_row = up + row * stride;
#pragma omp simd
        for (int64_t d = 0; d < width; d++) {
            float g = load(g_row[d]);
            out[row * width + d] = store(rounded(g * sigmoid(g)) * load(u_row[d]));
        }
    }
}

/* Its gradient; `grad` becomes, once it is read, what `silu_mul` gave. */
void silu_mul_backward(element *grad,           /* [rows, width] */
                       const element *gate_up,  /* [rows, 2, width] */
                       element *grad_gate_up,   /* [rows, 2, width] */
                       int64_t rows, int64_t width) {
#pragma omp parallel for
    for (int64_t row = 0; row < rows; row++) {
        const element *gate = gate_up + row * 2 * width, *up = gate + width;
        element *by_gate = grad_gate_up + row * 2 * width, *by_up = by_gate + width;
#pragma omp simd
        for (int64_t d = 0; d < width; d++) {
            float g = load(gate[d]), u = load(up[d]), dy = load(grad[row * width + d]);
            float s = sigmoid(g), silu = rounded(g * s);
            by_gate[d] = store(dy * u * s * (1.0f + g * (1.0f - s)));
            by_up[d] = store(dy * silu);
            grad[row * width + d] = store(silu * u);
        }
    }
}
