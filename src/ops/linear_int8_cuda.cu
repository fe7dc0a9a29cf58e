// SPDX-License-Identifier: Apache-2.0
// linear in int8 on CUDA: checks and the choice of a tile size. The kernel is in cuda/tile_gemm.cuh; compiled for
// compute_80 too, because Turing's instructions are slow on later GPUs.
#include "ops/check.h"
#include "ops/cuda/linear_int8.h"
#include "ops/cuda/tile_gemm.cuh"
#include "ops/int8.h"

namespace brim::ops {

using tensor::DType;

namespace {

static_assert(kScaleColumns == kInt8Block);

// Large tiles need as many blocks as multiprocessors and 98 KiB of shared memory, which Turing lacks.
using Large = TileShape<2, 4, 4, 8, 64, 4, 1>;
using Small = TileShape<2, 2, 2, 8, 64, 3, 2>;

bool fits_large(const device::CudaStream& s, const TileProblem& p) {
  const int64_t tiles = int64_t{device::blocks_for(p.T, Large::kRows)} * device::blocks_for(p.N, Large::kColumns);
  return tiles >= s.info().sm_count && s.info().shared_bytes_per_block >= Large::shared_bytes(true);
}

template <class Elem, class Out, bool kBlocks, Epilogue kEpilogue>
void launch_sized(device::CudaStream& s, const TileProblem& p) {
  if (fits_large(s, p))
    launch_tiles<Large, MultiplyInt8, Elem, Out, kBlocks, kEpilogue>(s, p);
  else
    launch_tiles<Small, MultiplyInt8, Elem, Out, kBlocks, kEpilogue>(s, p);
}

// `bias`: type of bias, residual and a result that is not int8.
template <class Elem>
void launch_typed(device::CudaStream& s, const LinearArgs& a, const TileProblem& p) {
  const bool blocks = a.x_scale.rank == 2 && a.x_scale.rows() > 1;
  if (a.y.dtype == DType::i8) {
    BRIM_CHECK(!blocks, "linear: int8 rows with several scales cannot have an int8 result");
    return launch_sized<Elem, int8_t, false, Epilogue::gelu>(s, p);
  }
  if (blocks) {
    BRIM_CHECK(a.activation == Activation::none, "linear: int8 rows with several scales cannot have an activation");
    return launch_sized<Elem, Elem, true, Epilogue::none>(s, p);
  }
  if (a.activation == Activation::none) return launch_sized<Elem, Elem, false, Epilogue::none>(s, p);
  launch_sized<Elem, Elem, false, Epilogue::any>(s, p);
}

void check_int8(const LinearArgs& a) {
  const int64_t T = a.x.rows(), N = a.w.N, K = a.w.K;
  BRIM_CHECK(int8_takes(N, K), "linear: int8 weights are [{},{}], both must be multiples of {}", N, K, kInt8Multiple);
  check_view("linear", "x", a.x, DType::i8, {T, K});
  check_view("linear", "w", a.w.data, DType::i8, {N, K});
  check_view("linear", "w.scale", a.w.scale, DType::f32, {N});
  const int64_t blocks = a.x_scale.rank == 2 ? int8_blocks(K) : 1;
  BRIM_CHECK(a.x_scale.dtype == DType::f32 && a.x_scale.elements() == blocks * T,
             "linear: x_scale is {}, must be f32 with {} for each of {} rows", a.x_scale.shape_text(), blocks, T);
  const bool codes = a.y.dtype == DType::i8;
  const bool gelu = a.activation == Activation::gelu || a.activation == Activation::gelu_tanh;
  BRIM_CHECK(codes == static_cast<bool>(a.y_scale) && (!codes || gelu),
             "linear: an int8 result requires y_scale and GELU");
  if (codes) check_view("linear", "y_scale", a.y_scale, DType::f32, {int8_blocks(N), T});
  BRIM_CHECK(codes || a.y.dtype == DType::bf16 || a.y.dtype == DType::f16, "linear: y is {}, must be i8, bf16 or f16",
             a.y.shape_text());
  BRIM_CHECK(!(a.residual && (codes || a.activation != Activation::none)),
             "linear: a residual requires a result that is not int8, without activation");
  BRIM_CHECK(!a.residual || a.residual.dtype == a.y.dtype, "linear: residual is {}, must have the type of y {}",
             a.residual.shape_text(), a.y.shape_text());
  for (const auto& [name, view] : NamedViews{
           {"x", a.x}, {"w", a.w.data}, {"w.scale", a.w.scale}, {"bias", a.bias}, {"residual", a.residual}, {"y", a.y}})
    BRIM_CHECK(!view || (reinterpret_cast<uintptr_t>(view.data) % 16 == 0 &&
                         (view.rank < 2 || view.ld() * dtype_bytes(view.dtype) % 16 == 0)),
               "linear: int8 requires {} to be 16-byte aligned with rows a multiple of 16 bytes apart", name);
}

}  // namespace

void launch_int8(device::CudaStream& s, const LinearArgs& a) {
  check_int8(a);
  TileProblem p{};
  p.x = static_cast<const char*>(a.x.data);
  p.w = static_cast<const char*>(a.w.data.data);
  p.x_scale = a.x_scale.as<float>();
  p.w_scale = a.w.scale.as<float>();
  p.bias = a.bias.data;
  p.residual = a.residual.data;
  p.y = a.y.data;
  p.y_scale = a.y_scale.as<float>();
  p.ldx = a.x.ld();
  p.ldw = a.w.data.ld();
  p.ld_residual = a.residual.ld();
  p.ldy = a.y.ld();
  p.ld_x_scale = static_cast<int>(a.x_scale.rank == 2 ? a.x_scale.ld() : 0);
  p.ld_y_scale = static_cast<int>(a.y_scale ? a.y_scale.ld() : 0);
  p.T = static_cast<int>(a.x.rows());
  p.N = static_cast<int>(a.w.N);
  p.K = static_cast<int>(a.w.K);
  p.activation = a.activation;
  const DType type = a.y.dtype != DType::i8 ? a.y.dtype : a.bias ? a.bias.dtype : DType::f16;
  BRIM_CHECK(!a.bias || a.bias.dtype == type, "linear: bias is {}, must be {}", a.bias.shape_text(), dtype_name(type));
  if (type == DType::bf16)
    launch_typed<__nv_bfloat16>(s, a, p);
  else
    launch_typed<__half>(s, a, p);
}

}  // namespace brim::ops
