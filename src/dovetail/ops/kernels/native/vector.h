// SPDX-License-Identifier: Apache-2.0
// Vectors of float32, as wide as the processor's registers, and how many of them a micro-kernel may use.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace dovetail {

// A tile of a product has kRows rows and kColumns vectors of columns: as many sums as leave registers for the factors.
constexpr int kColumns = 3;
#if defined(__AVX512F__)
constexpr int kWidth = 16;
constexpr int kRows = 8;
#elif defined(__AVX__)
constexpr int kWidth = 8;
constexpr int kRows = 4;
#elif defined(__aarch64__)
constexpr int kWidth = 4;
constexpr int kRows = 8;
#else
constexpr int kWidth = 4;
constexpr int kRows = 4;
#endif

typedef float Vector __attribute__((vector_size(kWidth * 4)));
typedef float Loose __attribute__((vector_size(kWidth * 4), aligned(4), may_alias));  // At any address.

inline Vector load(const float* at) { return *reinterpret_cast<const Loose*>(at); }
inline void store(float* at, Vector value) { *reinterpret_cast<Loose*>(at) = value; }
inline Vector splat(float value) { return Vector{} + value; }

// Weights may be kept as 8-bit integers, or as the upper half of each float32, which is bfloat16.
struct Upper {
  uint16_t bits;
};

inline Vector load(const int8_t* at) {
#if defined(__AVX512F__)
  return (Vector)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))));
#elif defined(__AVX2__)
  return (Vector)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at))));
#endif
  typedef int8_t Bytes __attribute__((vector_size(kWidth)));
  Bytes found;
  std::memcpy(&found, at, sizeof(found));
  return __builtin_convertvector(found, Vector);
}

inline Vector load(const Upper* at) {
#if defined(__AVX512F__)
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
  return (Vector)_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
#elif defined(__AVX2__)
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
  return (Vector)_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
#endif
  typedef uint16_t Halves __attribute__((vector_size(kWidth * 2)));
  typedef uint32_t Words __attribute__((vector_size(kWidth * 4)));
  Halves found;
  std::memcpy(&found, at, sizeof(found));
  return reinterpret_cast<Vector>(__builtin_convertvector(found, Words) << 16);
}

// a * b + c. Everywhere the same instruction, so that a number never depends on which tile it was computed in.
inline Vector fma(Vector a, Vector b, Vector c) {
#if defined(__AVX512F__)
  return (Vector)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (Vector)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

typedef int32_t Integers __attribute__((vector_size(kWidth * 4)));

inline Vector choose(Integers which, Vector a, Vector b) {
  return reinterpret_cast<Vector>((which & reinterpret_cast<Integers>(a)) | (~which & reinterpret_cast<Integers>(b)));
}

inline Vector larger(Vector a, Vector b) { return choose(a > b, a, b); }

inline float sum(Vector value) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)value);
#endif
  for (int half = kWidth / 2; half > 0; half /= 2)
    for (int i = 0; i < half; i++) value[i] += value[i + half];
  return value[0];
}

inline float largest(Vector value) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)value);
#endif
  float found = value[0];
  for (int i = 1; i < kWidth; i++) found = value[i] > found ? value[i] : found;
  return found;
}

// Two vectors folded into one: each of its lanes is the sum of two lanes of a or of b. Folding kWidth vectors, those
// that are `kBit` apart by their numbers in turn for kBit = 1, 2, 4, ..., gives the sum of each in the lane of its number.
template <int kBit>
inline __attribute__((always_inline)) Vector folded(Vector a, Vector b) {
#if defined(__AVX512F__)
  const __m512 x = (__m512)a, y = (__m512)b;
  const __m512d x2 = _mm512_castps_pd(x), y2 = _mm512_castps_pd(y);
  if constexpr (kBit == 1) return (Vector)_mm512_unpacklo_ps(x, y) + (Vector)_mm512_unpackhi_ps(x, y);
  if constexpr (kBit == 2) return (Vector)_mm512_unpacklo_pd(x2, y2) + (Vector)_mm512_unpackhi_pd(x2, y2);
  return (Vector)_mm512_shuffle_f32x4(x, y, 0x88) + (Vector)_mm512_shuffle_f32x4(x, y, 0xdd);
#else
  Vector found;
  for (int i = 0; i < kWidth; i++) found[i] = i & kBit ? b[i ^ kBit] + b[i] : a[i] + a[i ^ kBit];
  return found;
#endif
}

template <int kCount, int kBit = 1>
inline __attribute__((always_inline)) Vector sums_of(Vector* values) {
  if constexpr (kBit == kCount) {
    return values[0];
  } else {
#pragma GCC unroll 8
    for (int i = 0; i < kCount / kBit / 2; i++) values[i] = folded<kBit>(values[2 * i], values[2 * i + 1]);
    return sums_of<kCount, kBit * 2>(values);
  }
}

// e to the power of numbers up to 0, right to about two units in the last place.
inline Vector exponential(Vector x) {
  const Vector low = splat(-87.0f);
  const Integers tiny = x < low;
  x = choose(tiny, low, x);
  const Vector shift = splat(12582912.0f);  // 1.5 * 2 ** 23: adding it rounds to a whole number.
  const Vector whole = fma(x, splat(1.44269504f), shift) - shift;
  Vector rest = fma(whole, splat(-0.693359375f), x);
  rest = fma(whole, splat(2.12194440e-4f), rest);
  Vector found = splat(1.0f / 720);
  const float terms[] = {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
#pragma GCC unroll 8
  for (float term : terms) found = fma(found, rest, splat(term));
  const Integers power = (__builtin_convertvector(whole, Integers) + 127) << 23;
  return choose(tiny, Vector{}, found * reinterpret_cast<Vector>(power));
}

inline void prefetch(const void* at) { __builtin_prefetch(at, 0, 3); }

}  // namespace dovetail
