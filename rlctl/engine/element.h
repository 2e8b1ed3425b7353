/* The element type of the kernels, and arithmetic on it: -DBF16 for bfloat16, else float. */
#pragma once
#include <math.h>
#include <stdint.h>

#ifdef BF16
typedef uint16_t element;
static inline float load(element x) {
    union { uint32_t bits; float value; } u = {(uint32_t)x << 16};
    return u.value;
}
static inline element store(float x) { /* to nearest, ties to even, as torch rounds */
    union { float value; uint32_t bits; } u = {x};
    if (x != x) return 0x7FC0;
    return (element)((u.bits + 0x7FFF + ((u.bits >> 16) & 1)) >> 16);
}
#else
typedef float element;
static inline float load(element x) { return x; }
static inline element store(float x) { return x; }
#endif

/* Sixteen at a time; compilers split it where the machine's vectors are narrower. */
enum { LANES = 16 };
typedef float vec __attribute__((vector_size(4 * LANES), aligned(4)));

/* exp for x <= 0 to 2 units in the last place, in operations that compilers turn into vector instructions. */
static inline float exp_negative(float x) {
    x = x < -87.0f ? -87.0f : x;
    float n = rintf(x * 1.44269504f);
    float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    union { int32_t bits; float value; } scale = {((int32_t)n + 127) << 23};
    return p * scale.value;
}
