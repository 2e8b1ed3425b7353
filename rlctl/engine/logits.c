/* Statistics of a tile of logits, and the tile turned into the gradient by it, each in one or two passes.
 *
 * Sums over the vocabulary are taken in float over blocks and in double over the blocks.
 */
#include "element.h"

enum { BLOCK = 256 };

static inline int64_t at_most(int64_t x, int64_t ceiling) { return x < ceiling ? x : ceiling; }

/* Of softmax(logits / temperature): the target's log-prob, the entropy, and the log-sum-exp, all in nats. */
void statistics(const element *logits,   /* [rows, vocab] */
                const int64_t *targets,  /* [rows] */
                float *logprobs,         /* [rows] */
                float *entropies,        /* [rows] */
                float *lse,              /* [rows] */
                int64_t rows, int64_t vocab, float temperature) {
    const float inverse = 1.0f / temperature;
#pragma omp parallel for
    for (int64_t row = 0; row < rows; row++) {
        const element *z = logits + row * vocab;
        float most = -INFINITY;
#pragma omp simd reduction(max : most)
        for (int64_t v = 0; v < vocab; v++) most = load(z[v]) > most ? load(z[v]) : most;
        double total = 0, weighted = 0;
        for (int64_t start = 0; start < vocab; start += BLOCK) {
            float sum = 0, sum_x = 0;
            int64_t end = at_most(start + BLOCK, vocab);
#pragma omp simd reduction(+ : sum, sum_x)
            for (int64_t v = start; v < end; v++) {
                float x = (load(z[v]) - most) * inverse, bounded = x < -87.0f ? -87.0f : x;
                float w = x < -87.0f ? 0.0f : exp_negative(x);
                sum += w;
                sum_x += w * bounded; /* of a logit of -inf: 0 */
            }
            total += sum;
            weighted += sum_x;
        }
        double log_total = log(total);
        logprobs[row] = (float)((double)((load(z[targets[row]]) - most) * inverse) - log_total);
        entropies[row] = (float)(log_total - weighted / total);
        lse[row] = (float)((double)(most * inverse) + log_total);
    }
}

/* With p = softmax(logits / temperature): to_logprob * (1[target] - p) - to_entropy * p * (log p + entropy), divided by
 * the temperature, in the place of the logits. */
void to_gradient(element *logits,          /* [rows, vocab] */
                 const int64_t *targets,   /* [rows] */
                 const float *lse,         /* [rows] */
                 const float *entropies,   /* [rows] */
                 const float *to_logprob,  /* [rows] */
                 const float *to_entropy,  /* [rows] or NULL */
                 int64_t rows, int64_t vocab, float temperature) {
    const float inverse = 1.0f / temperature;
#pragma omp parallel for
    for (int64_t row = 0; row < rows; row++) {
        element *z = logits + row * vocab;
        float by_logprob = -to_logprob[row] * inverse, by_entropy = to_entropy ? -to_entropy[row] * inverse : 0;
        float target = load(z[targets[row]]) * inverse - lse[row];
#pragma omp simd
        for (int64_t v = 0; v < vocab; v++) {
            float x = load(z[v]) * inverse - lse[row];
            float bounded = x < -87.0f ? -87.0f : (x < 0 ? x : 0);
            float p = x < -87.0f ? 0.0f : exp_negative(bounded);
            z[v] = store(p * (by_logprob + by_entropy * (bounded + entropies[row])));
        }
        target = target < -87.0f ? -87.0f : (target < 0 ? target : 0);
        float p = exp_negative(target);
        z[targets[row]] =
            store(p * (by_logprob + by_entropy * (target + entropies[row])) + to_logprob[row] * inverse);
    }
}

/* total += term */
void add_into(float *total, const element *term, int64_t count) {
#pragma omp parallel for simd
    for (int64_t i = 0; i < count; i++) total[i] += load(term[i]);
}
