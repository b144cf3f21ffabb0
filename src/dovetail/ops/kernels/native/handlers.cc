// SPDX-License-Identifier: Apache-2.0
// The kernels as XLA calls them, and what Python asks of them.
#include "elementwise.h"
#include "paged.h"
#include "product.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace dovetail {

using Floats = ffi::Buffer<ffi::F32>;
using Ints = ffi::Buffer<ffi::S32>;
using Result = ffi::ResultBuffer<ffi::F32>;

// Weights of any kind; no scale: none.
static ffi::Error Product(Floats x, ffi::AnyBuffer w, Floats scale, Result y) {
  const int64_t rows = x.dimensions()[0], depth = x.dimensions()[1], outs = y->dimensions()[1];
  const float* by = scale.element_count() ? scale.typed_data() : nullptr;
  const void* from = w.untyped_data();
  float* to = y->typed_data();
  switch (w.element_type()) {
    case ffi::F32: product(x.typed_data(), static_cast<const float*>(from), by, to, rows, depth, outs); break;
    case ffi::S8: product(x.typed_data(), static_cast<const int8_t*>(from), by, to, rows, depth, outs); break;
    case ffi::BF16: product(x.typed_data(), static_cast<const Upper*>(from), by, to, rows, depth, outs); break;
    default: return ffi::Error::InvalidArgument("weights are float32, bfloat16 or int8");
  }
  return ffi::Error::Success();
}

static ffi::Error PagedAttention(Floats q, Floats k, Floats v, Ints table, Ints index, Floats sinks, Result out,
                                 float scale, float soft_cap, int64_t window) {
  Paged in = {};
  in.q = q.typed_data(), in.k = k.typed_data(), in.v = v.typed_data();
  in.sinks = sinks.element_count() ? sinks.typed_data() : nullptr;
  in.table = table.typed_data(), in.index = index.typed_data(), in.out = out->typed_data();
  in.batch = q.dimensions()[0], in.time = q.dimensions()[1], in.heads = q.dimensions()[2];
  in.page = k.dimensions()[1], in.groups = k.dimensions()[2], in.key_dim = k.dimensions()[3];
  in.value_dim = v.dimensions()[3], in.width = table.dimensions()[1], in.index_rows = index.dimensions()[0];
  in.scale = scale, in.soft_cap = soft_cap, in.window = window;
  paged_attention(in);
  return ffi::Error::Success();
}

// The result is the memory of the first argument, which holds what was written before.
static ffi::Error WritePages(Floats old, Floats rows, Ints page, Ints inside, Result pages) {
  if (pages->typed_data() != old.typed_data())
    std::memcpy(pages->typed_data(), old.typed_data(), old.size_bytes());
  const int64_t count = page.element_count(), dims[] = {old.dimensions()[0], old.dimensions()[1]};
  write_pages(rows.typed_data(), page.typed_data(), inside.typed_data(), pages->typed_data(), count, dims[0], dims[1],
              count ? rows.element_count() / count : 0);
  return ffi::Error::Success();
}

static ffi::Error RmsNorm(Floats x, Floats scale, Result y, float eps, float offset, int64_t groups) {
  const int64_t size = x.dimensions().back(), rows = size ? x.element_count() / size : 0;
  const float* factor = scale.element_count() ? scale.typed_data() : nullptr;
  rms_norm(x.typed_data(), factor, y->typed_data(), rows, groups, size / groups, eps, offset);
  return ffi::Error::Success();
}

static ffi::Error Rotate(Floats x, Floats cosines, Floats sines, Result y, bool interleaved) {
  auto dims = x.dimensions();
  rotate(x.typed_data(), cosines.typed_data(), sines.typed_data(), y->typed_data(), dims[0], dims[1], dims[2], dims[3],
         cosines.dimensions()[0], interleaved);
  return ffi::Error::Success();
}

static ffi::Error SiluGated(Floats gate, Floats up, Result y) {
  silu_gated(gate.typed_data(), up.typed_data(), y->typed_data(), gate.element_count());
  return ffi::Error::Success();
}

static ffi::Error Add(Floats a, Floats b, Result y) {
  add(a.typed_data(), b.typed_data(), y->typed_data(), a.element_count());
  return ffi::Error::Success();
}

static ffi::Error Argmax(Floats x, ffi::ResultBuffer<ffi::S32> y) {
  argmax(x.typed_data(), y->typed_data(), x.dimensions()[0], x.dimensions()[1]);
  return ffi::Error::Success();
}

}  // namespace dovetail

XLA_FFI_DEFINE_HANDLER_SYMBOL(dovetail_product, dovetail::Product,
                              ffi::Ffi::Bind()
                                  .Arg<dovetail::Floats>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<dovetail::Floats>()
                                  .Ret<dovetail::Floats>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(dovetail_paged_attention, dovetail::PagedAttention,
                              ffi::Ffi::Bind()
                                  .Arg<dovetail::Floats>()
                                  .Arg<dovetail::Floats>()
                                  .Arg<dovetail::Floats>()
                                  .Arg<dovetail::Ints>()
                                  .Arg<dovetail::Ints>()
                                  .Arg<dovetail::Floats>()
                                  .Ret<dovetail::Floats>()
                                  .Attr<float>("scale")
                                  .Attr<float>("soft_cap")
                                  .Attr<int64_t>("window"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(dovetail_write_pages, dovetail::WritePages,
                              ffi::Ffi::Bind()
                                  .Arg<dovetail::Floats>()
                                  .Arg<dovetail::Floats>()
                                  .Arg<dovetail::Ints>()
                                  .Arg<dovetail::Ints>()
                                  .Ret<dovetail::Floats>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(dovetail_rms_norm, dovetail::RmsNorm,
                              ffi::Ffi::Bind()
                                  .Arg<dovetail::Floats>()
                                  .Arg<dovetail::Floats>()
                                  .Ret<dovetail::Floats>()
                                  .Attr<float>("eps")
                                  .Attr<float>("offset")
                                  .Attr<int64_t>("groups"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(dovetail_rotate, dovetail::Rotate,
                              ffi::Ffi::Bind()
                                  .Arg<dovetail::Floats>()
                                  .Arg<dovetail::Floats>()
                                  .Arg<dovetail::Floats>()
                                  .Ret<dovetail::Floats>()
                                  .Attr<bool>("interleaved"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(dovetail_silu_gated, dovetail::SiluGated,
                              ffi::Ffi::Bind().Arg<dovetail::Floats>().Arg<dovetail::Floats>().Ret<dovetail::Floats>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(dovetail_add, dovetail::Add,
                              ffi::Ffi::Bind().Arg<dovetail::Floats>().Arg<dovetail::Floats>().Ret<dovetail::Floats>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(dovetail_argmax, dovetail::Argmax,
                              ffi::Ffi::Bind().Arg<dovetail::Floats>().Ret<ffi::Buffer<ffi::S32>>());

extern "C" int64_t dovetail_panel() { return dovetail::kPanel; }
extern "C" int64_t dovetail_width() { return dovetail::kWidth; }
extern "C" int64_t dovetail_threads() { return dovetail::Pool::get().threads(); }
