// SPDX-License-Identifier: Apache-2.0
// Products of rows `[R, K]` with a matrix in panels, `[P, K, kPanel]`: columns that lie side by side in registers.
//
// Each number of the result is summed in the same order whatever the number of rows, so that a row gets the same bits
// alone and among others.
#pragma once

#include <algorithm>

#include "pool.h"
#include "vector.h"

namespace dovetail {

constexpr int64_t kPanel = kColumns * kWidth;
constexpr int64_t kAhead = 3072;  // Bytes of a matrix that are asked for ahead of their use.

// kR rows times a panel, of which `columns` are stored; the panel is asked for ahead if it is read for the first time.
template <int kR, bool kFirst>
void tile(const float* x, int64_t depth, const float* panel, float* y, int64_t outs, int64_t columns) {
  constexpr int64_t kSteps = kAhead / (kPanel * 4);
  Vector sums[kR][kColumns];
  for (int r = 0; r < kR; r++)
    for (int c = 0; c < kColumns; c++) sums[r][c] = Vector{};
  for (int64_t k = 0; k < depth; k++) {
    const float* row = panel + k * kPanel;
    Vector here[kColumns];
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; c++) {
      here[c] = load(row + c * kWidth);
      if (kFirst && (c * kWidth) % 16 == 0) prefetch(row + kSteps * kPanel + c * kWidth);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kR; r++) {
      const Vector each = splat(x[r * depth + k]);
#pragma GCC unroll 8
      for (int c = 0; c < kColumns; c++) sums[r][c] = fma(each, here[c], sums[r][c]);
    }
  }
  for (int r = 0; r < kR; r++)
    for (int c = 0; c < kColumns; c++) {
      const int64_t left = columns - c * kWidth;
      float* at = y + r * outs + c * kWidth;
      if (left >= kWidth) store(at, sums[r][c]);
      else if (left > 0) std::memcpy(at, &sums[r][c], left * sizeof(float));
    }
}

// The same for any number of rows up to kR.
template <int kR, bool kFirst>
void tile_of(int64_t rows, const float* x, int64_t depth, const float* panel, float* y, int64_t outs,
             int64_t columns) {
  if constexpr (kR > 0) {
    if (rows == kR) return tile<kR, kFirst>(x, depth, panel, y, outs, columns);
    tile_of<kR - 1, kFirst>(rows, x, depth, panel, y, outs, columns);
  }
}

// All rows times one panel.
inline void panel_product(const float* x, int64_t rows, int64_t depth, const float* panel, float* y, int64_t outs,
                          int64_t columns) {
  for (int64_t first = 0; first < rows; first += kRows) {
    const int64_t count = std::min<int64_t>(kRows, rows - first);
    auto of = first == 0 ? tile_of<kRows, true> : tile_of<kRows, false>;
    of(count, x + first * depth, depth, panel, y + first * outs, outs, columns);
  }
}

// Whether `count` numbers are all 0.
inline bool are_zero(const float* x, int64_t count) {
  constexpr int64_t kTogether = 8 * kWidth;
  int64_t i = 0;
  for (; i + kTogether <= count; i += kTogether) {
    Integers found = {};
    for (int64_t j = 0; j < kTogether; j += kWidth) found |= load(x + i + j) != Vector{};
    for (int lane = 0; lane < kWidth; lane++)
      if (found[lane]) return false;
  }
  for (; i < count; i++)
    if (x[i] != 0) return false;
  return true;
}

// y `[R, N]` = x `[R, K]` w, a matrix `[K, N]` in panels. Rows of zeros at the end, which is what padding is, cost
// nothing but their zeros.
inline void product(const float* x, const float* w, float* y, int64_t all, int64_t depth, int64_t outs) {
  int64_t rows = all;
  while (rows > 0 && are_zero(x + (rows - 1) * depth, depth)) rows--;
  Pool::get().run((outs + kPanel - 1) / kPanel, [&](int64_t i) {
    const int64_t at = i * kPanel, columns = std::min(kPanel, outs - at);
    panel_product(x, rows, depth, w + at * depth, y + at, outs, columns);
    for (int64_t row = rows; row < all; row++) std::fill_n(y + row * outs + at, columns, 0.0f);
  });
}

}  // namespace dovetail
