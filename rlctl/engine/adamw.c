/* AdamW on float32 masters, and the masters rounded into the compute weights, each in one pass over memory.
 *
 * The formula is that of torch.optim.AdamW: https://arxiv.org/abs/1711.05101, algorithm 2.
 */
#include "element.h"

static inline int is_finite(float x) {
    union { float value; uint32_t bits; } u = {x};
    return (u.bits & 0x7F800000u) != 0x7F800000u;
}

/* One update, with rest = 1 - beta, taken in double: in float, 1 - 0.999 is off by 1e-5 of itself. The gradient,
 * multiplied by `clip` before, is zero afterwards. Gives how many masters are not finite. */
int64_t adamw(float *master, float *grad, float *exp_avg, float *exp_avg_sq, int64_t count, float clip, float lr,
              float weight_decay, float rest1, float beta2, float rest2, float eps, float bias1, float bias2) {
    const float kept = 1.0f - lr * weight_decay, step = lr / bias1, root = sqrtf(bias2);
    int64_t broken = 0;
#pragma omp parallel for simd reduction(+ : broken)
    for (int64_t i = 0; i < count; i++) {
        float g = grad[i] * clip;
        float m = exp_avg[i] + rest1 * (g - exp_avg[i]);
        float v = beta2 * exp_avg_sq[i] + rest2 * g * g;
        float updated = master[i] * kept - step * m / (sqrtf(v) / root + eps);
        grad[i] = 0;
        exp_avg[i] = m;
        exp_avg_sq[i] = v;
        master[i] = updated;
        broken += !is_finite(updated);
    }
    return broken;
}

/* weight = master, rounded; gives how many values changed. */
int64_t publish(const float *master, element *weight, int64_t count) {
    int64_t changed = 0;
#pragma omp parallel for simd reduction(+ : changed)
    for (int64_t i = 0; i < count; i++) {
        element rounded = store(master[i]);
        changed += rounded != weight[i];
        weight[i] = rounded;
    }
    return changed;
}
