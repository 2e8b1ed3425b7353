/* Draws from the full softmax on a CPU: two passes over the logits of a row, which stay in a core's cache.
 *
 *     logits   [....256....|....256....|....256....]     sums of blocks first; then, within the one block that
 *     weights      sum         sum  ^      sum           the uniform number falls into, its tokens one by one
 */
#include "element.h"

enum { BLOCK = 256 };

static inline float weight_of(element logit, float most, float inverse_temperature) {
    float x = (load(logit) - most) * inverse_temperature;
    return x < -87.0f ? 0.0f : exp_negative(x);
}

static double block_sum(const element *logits, int64_t count, float most, float inverse_temperature) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t v = 0; v < count; v++) sum += weight_of(logits[v], most, inverse_temperature);
    return sum;
}

static int64_t at_most(int64_t x, int64_t ceiling) { return x < ceiling ? x : ceiling; }

/* The token whose share of the summed weights holds `uniform`, and its log-prob: NaN when a logit is NaN or +inf. */
static int64_t draw_row(const element *logits, double uniform, float inverse_temperature, int64_t vocab, double *ends,
                        float *logprob) {
    float most = -INFINITY;
#pragma omp simd reduction(max : most)
    for (int64_t v = 0; v < vocab; v++) most = load(logits[v]) > most ? load(logits[v]) : most;

    int64_t blocks = (vocab + BLOCK - 1) / BLOCK;
    double total = 0;
    for (int64_t b = 0; b < blocks; b++) {
        total += block_sum(logits + b * BLOCK, at_most(vocab - b * BLOCK, BLOCK), most, inverse_temperature);
        ends[b] = total;
    }
    double target = uniform * total;
    int64_t block = 0, last = 0;
    while (block < blocks - 1 && !(ends[block] > target)) block++;

    /* Rounding may carry the target past the block's last weight: then its last token that has one is taken. */
    double reached = block ? ends[block - 1] : 0;
    for (int64_t v = block * BLOCK; v < at_most((block + 1) * BLOCK, vocab); v++) {
        float weight = weight_of(logits[v], most, inverse_temperature);
        reached += weight;
        if (weight > 0) last = v;
        if (reached > target) break;
    }
    *logprob = (float)((double)((load(logits[last]) - most) * inverse_temperature) - log(total));
    return last;
}

void draw(const element *logits,   /* [rows, vocab] */
          const double *uniforms,  /* [rows] */
          double *scratch,         /* [rows, blocks of the vocabulary] */
          int64_t *tokens,         /* [rows] */
          float *logprobs,         /* [rows] */
          int64_t rows, int64_t vocab, float temperature) {
#pragma omp parallel for schedule(dynamic)
    for (int64_t row = 0; row < rows; row++)
        tokens[row] = draw_row(logits + row * vocab, uniforms[row], 1.0f / temperature, vocab,
                               scratch + row * ((vocab + BLOCK - 1) / BLOCK), logprobs + row);
}
