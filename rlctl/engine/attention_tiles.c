/* What stands between the matrix products of attention over a tile of scores, there and back.
 *
 * A tile is [batch, rows, keys]; row r belongs to token `first + r / per_token`, and with `causal` sees the keys up to
 * that token, else all. Scores and their gradients are float, weights are of the element type.
 */
#include "element.h"

static inline int64_t visible(int64_t row, int64_t keys, int64_t per_token, int64_t first, int64_t causal) {
    int64_t upto = first + row / per_token + 1;
    return causal && upto < keys ? upto : keys;
}

/* weights = softmax(scale * scores) over the visible keys, 0 elsewhere; lse its log-sum-exp. */
void softmax(const float *scores,  /* [batch, rows, keys] */
             element *weights,     /* [batch, rows, keys] */
             float *lse,           /* [batch, rows] */
             int64_t batch, int64_t rows, int64_t keys, int64_t per_token, int64_t first, int64_t causal, float scale) {
#pragma omp parallel for
    for (int64_t i = 0; i < batch * rows; i++) {
        const float *s = scores + i * keys;
        element *w = weights + i * keys;
        int64_t count = visible(i % rows, keys, per_token, first, causal);
        float most = -INFINITY, total = 0, row[count];
#pragma omp simd reduction(max : most)
        for (int64_t j = 0; j < count; j++) most = s[j] > most ? s[j] : most;
#pragma omp simd reduction(+ : total)
        for (int64_t j = 0; j < count; j++) {
            row[j] = exp_negative((s[j] - most) * scale);
            total += row[j];
        }
        float inverse = 1.0f / total;
        for (int64_t j = 0; j < count; j++) w[j] = store(row[j] * inverse);
        for (int64_t j = count; j < keys; j++) w[j] = 0;
        lse[i] = most * scale + logf(total);
    }
}

/* weights = exp(scale * scores - lse) again, of the whole that this tile may be a part of; grads, the gradient by the
 * weights, becomes that by the scores: scale * weights * (grads - dot), with dot = grad_out . out. Both are 0 for keys
 * that are not seen. */
void softmax_backward(const float *scores,  /* [batch, rows, keys] */
                      element *grads,       /* [batch, rows, keys] */
                      const float *lse,     /* [batch, rows] */
                      const float *dot,     /* [batch, rows] */
                      element *weights,     /* [batch, rows, keys] */
                      int64_t batch, int64_t rows, int64_t keys, int64_t per_token, int64_t first, int64_t causal,
                      float scale) {
#pragma omp parallel for
    for (int64_t i = 0; i < batch * rows; i++) {
        const float *s = scores + i * keys;
        element *w = weights + i * keys, *g = grads + i * keys;
        int64_t count = visible(i % rows, keys, per_token, first, causal);
#pragma omp simd
        for (int64_t j = 0; j < count; j++) {
            /* Rounding may carry the difference a little above 0. */
            float x = s[j] * scale - lse[i], p = exp_negative(x < 0 ? x : 0);
            w[j] = store(p);
            g[j] = store(scale * p * (load(g[j]) - dot[i]));
        }
        for (int64_t j = count; j < keys; j++) w[j] = g[j] = 0;
    }
}

/* out[i] = a[i] . b[i] */
void row_dots(const element *a,  /* [rows, width] */
              const element *b,  /* [rows, width] */
              float *out,        /* [rows] */
              int64_t rows, int64_t width) {
#pragma omp parallel for
    for (int64_t i = 0; i < rows; i++) {
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t d = 0; d < width; d++) sum += load(a[i * width + d]) * load(b[i * width + d]);
        out[i] = sum;
    }
}
