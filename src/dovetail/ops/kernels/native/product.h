// SPDX-License-Identifier: Apache-2.0
// Products of rows `[R, K]` with a matrix in panels, `[P, K, kPanel]`: columns that lie side by side in registers.
//
// Each number of the result is summed in the same order whatever the number of rows, so that a row gets the same bits
// alone and among others.
#pragma once

#include <algorithm>
#include <type_traits>
#include <vector>

#include "pool.h"
#include "vector.h"

namespace dovetail {

constexpr int64_t kPanel = kColumns * kWidth;
constexpr int64_t kAhead = 3072;  // Bytes of a matrix that are asked for ahead of their use.

// kR rows times a panel, of which `columns` are stored; the panel is asked for ahead if it is read for the first time.
template <int kR, bool kFirst, typename W>
void tile(const float* x, int64_t depth, const W* panel, float* y, int64_t outs, int64_t columns) {
  constexpr int64_t kSteps = kAhead / static_cast<int64_t>(kPanel * sizeof(W)), kLine = 64 / sizeof(W);
  Vector sums[kR][kColumns];
  for (int r = 0; r < kR; r++)
    for (int c = 0; c < kColumns; c++) sums[r][c] = Vector{};
  for (int64_t k = 0; k < depth; k++) {
    const W* row = panel + k * kPanel;
    Vector here[kColumns];
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; c++) {
      here[c] = load(row + c * kWidth);
      if (kFirst && (c == 0 || c * kWidth % kLine == 0)) prefetch(row + kSteps * kPanel + c * kWidth);
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
template <int kR, bool kFirst, typename W>
void tile_of(int64_t rows, const float* x, int64_t depth, const W* panel, float* y, int64_t outs,
             int64_t columns) {
  if constexpr (kR > 0) {
    if (rows == kR) return tile<kR, kFirst, W>(x, depth, panel, y, outs, columns);
    tile_of<kR - 1, kFirst, W>(rows, x, depth, panel, y, outs, columns);
  }
}

// A buffer of each thread, for a panel as float32.
inline float* room_for(int64_t size) {
  static thread_local std::vector<float> kept;
  if (static_cast<int64_t>(kept.size()) < size) kept.resize(size);
  return kept.data();
}

// All rows times one panel. If there are many, its numbers become float32 once, not for each tile.
template <typename W>
void panel_product(const float* x, int64_t rows, int64_t depth, const W* panel, float* y, int64_t outs,
                   int64_t columns) {
  if constexpr (!std::is_same_v<W, float>) {
    if (rows > 4 * kRows) {
      float* wide = room_for(depth * kPanel);
      for (int64_t i = 0; i < depth * kPanel; i += kWidth) store(wide + i, load(panel + i));
      return panel_product<float>(x, rows, depth, wide, y, outs, columns);
    }
  }
  for (int64_t first = 0; first < rows; first += kRows) {
    const int64_t count = std::min<int64_t>(kRows, rows - first);
    auto of = first == 0 ? tile_of<kRows, true, W> : tile_of<kRows, false, W>;
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

// y `[R, N]` = x `[R, K]` w, a matrix `[K, N]` in panels, times a scale `[N]` if there is one. Rows of zeros at the end,
// which is what padding is, cost nothing but their zeros.
template <typename W>
void product(const float* x, const W* w, const float* scale, float* y, int64_t all, int64_t depth, int64_t outs) {
  int64_t rows = all;
  while (rows > 0 && are_zero(x + (rows - 1) * depth, depth)) rows--;
  Pool::get().run((outs + kPanel - 1) / kPanel, [&](int64_t i) {
    const int64_t at = i * kPanel, columns = std::min(kPanel, outs - at);
    panel_product<W>(x, rows, depth, w + at * depth, y + at, outs, columns);
    for (int64_t row = 0; scale && row < rows; row++)
      for (int64_t c = at; c < at + columns; c++) y[row * outs + c] *= scale[c];
    for (int64_t row = rows; row < all; row++) std::fill_n(y + row * outs + at, columns, 0.0f);
  });
}

}  // namespace dovetail
