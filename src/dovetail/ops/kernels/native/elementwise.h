// SPDX-License-Identifier: Apache-2.0
// What is done to each row by itself: norms, rotary positions, gates, and the place of the largest number.
#pragma once

#include <algorithm>
#include <cmath>

#include "pool.h"
#include "vector.h"

namespace dovetail {

// Calls `each(i)` for rows of `size` numbers; few numbers are not worth a second thread.
template <typename Each>
void for_rows(int64_t rows, int64_t size, const Each& each) {
  constexpr int64_t kWorth = 1 << 14;
  const int64_t some = std::max<int64_t>(1, kWorth / 4 / std::max<int64_t>(1, size));
  auto part = [&](int64_t i) {
    for (int64_t row = i * some; row < std::min(rows, (i + 1) * some); row++) each(row);
  };
  const int64_t parts = (rows + some - 1) / some;
  if (rows * size >= kWorth) return Pool::get().run(parts, part);
  for (int64_t i = 0; i < parts; i++) part(i);
}

inline Vector load_some(const float* at, int64_t count) {
  if (count >= kWidth) return load(at);
  float kept[kWidth] = {};
  std::memcpy(kept, at, count * sizeof(float));
  return load(kept);
}

inline void store_some(float* at, Vector value, int64_t count) {
  if (count >= kWidth) return store(at, value);
  std::memcpy(at, &value, count * sizeof(float));
}

// y = x / rms(x) * (scale + offset), over each of the `groups` of a row `[groups, size]`; no scale: null.
inline void rms_norm(const float* x, const float* scale, float* y, int64_t rows, int64_t groups, int64_t size,
                     float eps, float offset) {
  for_rows(rows * groups, size, [&](int64_t row) {
    const float *from = x + row * size, *factor = scale ? scale + row % groups * size : nullptr;
    Vector squares = {};
    for (int64_t d = 0; d < size; d += kWidth) {
      const Vector part = load_some(from + d, size - d);
      squares = fma(part, part, squares);
    }
    const float inverse = 1.0f / std::sqrt(sum(squares) / static_cast<float>(size) + eps);
    for (int64_t d = 0; d < size; d += kWidth) {
      Vector part = load_some(from + d, size - d) * inverse;
      if (factor) part *= load_some(factor + d, size - d) + offset;
      store_some(y + row * size + d, part, size - d);
    }
  });
}

// Turns heads `[B, T, H, K]` by angles `[B or 1, T, K / 2]`: pairs are halves of a head, or neighbours.
inline void rotate(const float* x, const float* cosines, const float* sines, float* y, int64_t batch, int64_t time,
                   int64_t heads, int64_t dim, int64_t angle_rows, bool interleaved) {
  const int64_t half = dim / 2;
  for_rows(batch * time, heads * dim, [&](int64_t row) {
    const int64_t at = (angle_rows == 1 ? row % time : row) * half;
    const float *cosine = cosines + at, *sine = sines + at;
    for (int64_t h = 0; h < heads; h++) {
      const float* from = x + (row * heads + h) * dim;
      float* to = y + (row * heads + h) * dim;
      if (interleaved) {
        for (int64_t i = 0; i < half; i++) {
          const float a = from[2 * i], b = from[2 * i + 1];
          to[2 * i] = a * cosine[i] - b * sine[i];
          to[2 * i + 1] = b * cosine[i] + a * sine[i];
        }
        continue;
      }
      for (int64_t i = 0; i < half; i += kWidth) {
        const int64_t left = half - i;
        const Vector a = load_some(from + i, left), b = load_some(from + half + i, left);
        const Vector c = load_some(cosine + i, left), s = load_some(sine + i, left);
        store_some(to + i, a * c - b * s, left);
        store_some(to + half + i, b * c + a * s, left);
      }
    }
  });
}

// y = of(a, b), for each number.
template <typename Of>
void for_pairs(const float* a, const float* b, float* y, int64_t count, const Of& of) {
  constexpr int64_t kPart = 2048;
  for_rows((count + kPart - 1) / kPart, kPart, [&](int64_t row) {
    const int64_t end = std::min(count, (row + 1) * kPart);
    for (int64_t i = row * kPart; i < end; i += kWidth)
      store_some(y + i, of(load_some(a + i, end - i), load_some(b + i, end - i)), end - i);
  });
}

// y = gate * sigmoid(gate) * up.
inline void silu_gated(const float* gate, const float* up, float* y, int64_t count) {
  for_pairs(gate, up, y, count, [](Vector x, Vector factor) {
    const Vector zero = {}, small = exponential(choose(x > zero, zero - x, x));
    return x * (choose(x > zero, splat(1.0f), small) / (small + 1.0f)) * factor;
  });
}

inline void add(const float* a, const float* b, float* y, int64_t count) {
  for_pairs(a, b, y, count, [](Vector one, Vector other) { return one + other; });
}

// Where the largest number of each row is, the first of equal ones; one that is not a number counts as larger.
inline void argmax(const float* x, int32_t* y, int64_t rows, int64_t size) {
  for_rows(rows, size, [&](int64_t row) {
    const float* from = x + row * size;
    Vector best = splat(-INFINITY);
    Integers unordered = {};
    int64_t d = 0;
    for (; d + kWidth <= size; d += kWidth) {
      const Vector part = load(from + d);
      best = larger(part, best);
      unordered |= part != part;
    }
    float most = largest(best);
    bool has_nan = false;
    for (int i = 0; i < kWidth; i++) has_nan |= unordered[i] != 0;
    for (; d < size; d++) {
      has_nan |= from[d] != from[d];
      most = from[d] > most ? from[d] : most;
    }
    int64_t found = 0;
    while (found < size && (has_nan ? from[found] == from[found] : from[found] != most)) found++;
    y[row] = static_cast<int32_t>(found < size ? found : 0);
  });
}

}  // namespace dovetail
