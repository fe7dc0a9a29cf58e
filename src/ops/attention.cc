// SPDX-License-Identifier: Apache-2.0
#include "ops/attention.h"

#include <algorithm>
#include <cmath>

#include "ops/check.h"
#include "ops/cuda/distance_parts.h"
#include "ops/kernel_table.h"
#include "ops/rope.h"

namespace brim::ops {

using tensor::DType;

namespace {

// Plans do not know the lengths, so flops are estimated with equal lengths.
double query_key_pairs(double queries, double T, double B, int64_t window) {
  if (B == 0) return 0;
  return queries * (window > 0 ? std::min(T / B, 2.0 * static_cast<double>(window) + 1) : T / B);
}

void check_bias(const char* op, const TensorView& bias, int64_t heads, int64_t window) {
  if (!bias) return;
  check_view(op, "bias", bias, DType::f32, {heads, bias.cols()});
  BRIM_CHECK(bias.cols() % 2 == 1 && bias.cols() <= kMaxBiasWidth && bias.contiguous(),
             "{}: bias has {} columns, must be an odd number up to {} in contiguous rows", op, bias.cols(),
             kMaxBiasWidth);
  BRIM_CHECK(window == 0, "{}: bias with a window of {} is not supported", op, window);
}

void check_distances(const char* op, const char* name, const TensorView& table, DType type, int64_t S, int64_t H) {
  if (!table) return;
  check_view(op, name, table, type, {table.rows(), H});
  BRIM_CHECK(table.rows() % 2 == 1 && table.rows() >= 2 * S - 1,
             "{}: {} has {} rows, must be an odd number of at least {} for sequences of {}", op, name, table.rows(),
             2 * S - 1, S);
}
template <class Args>
int64_t distance_tables(const Args& a) {
  return static_cast<int64_t>(static_cast<bool>(a.distance_queries)) +
         static_cast<int64_t>(static_cast<bool>(a.distance_keys));
}
template <class Args>
void check_tables(const char* op, const Args& a, DType type) {
  if (distance_tables(a) == 0) return;
  check_distances(op, "distance_queries", a.distance_queries, type, a.batch.S, a.q.cols());
  check_distances(op, "distance_keys", a.distance_keys, type, a.batch.S, a.q.cols());
  BRIM_CHECK(distance_tables(a) == 1 || a.distance_queries.rows() == a.distance_keys.rows(),
             "{}: distance_queries has {} rows, distance_keys {}; they must be equal", op, a.distance_queries.rows(),
             a.distance_keys.rows());
  BRIM_CHECK(a.batch.S > 0 || a.batch.T == 0, "{}: tables of distances require the length of the longest sequence", op);
  BRIM_CHECK(!a.bias && a.window == 0, "{}: tables of distances with a bias or a window of {} are not supported", op,
             a.window);
}

}  // namespace

float attention_scale(int64_t head_size, int64_t tables) {
  return 1.0f / std::sqrt(static_cast<float>(head_size * (1 + tables)));
}

void attention(device::Stream& stream, const AttentionArgs& a) {
  const char* op = "attention";
  const int64_t T = a.batch.T, B = a.batch.B, H = a.q.cols(), Tq = a.first_query_only ? B : T;
  const DType type = a.q.dtype;
  // On the CPU, bf16 or int8 matmuls allow the adjacent linear layers to keep q, k, v and out in bf16.
  const bool cpu = target_kind(stream) == device::DeviceKind::cpu,
             bf16 = cpu && (a.precision == Precision::bf16 || a.precision == Precision::int8);
  const auto fits = [&](DType t) { return bf16 && t == DType::bf16; };
  if (!fits(type)) check_activation(op, "q", stream, type);
  if (cpu && !fits(a.out.dtype)) check_activation(op, "out", stream, a.out.dtype);
  BRIM_CHECK(a.heads > 0 && H % a.heads == 0, "attention: {} heads do not divide the width {}", a.heads, H);
  BRIM_CHECK(a.window >= 0, "attention: window is {}, must not be negative", a.window);
  check_view(op, "q", a.q, type, {Tq, H});
  check_view(op, "k", a.k, type, {T, H});
  check_view(op, "v", a.v, type, {T, H});
  check_view(op, "out", a.out, cpu ? a.out.dtype : a.out_scale ? DType::f8e4m3 : type, {Tq, H});
  check_no_fp8_on_cpu(op, stream, {}, a.out_scale);
  check_view(op, "starts", a.batch.starts, DType::i32, {B + 1});
  check_optional(op, "order", a.batch.order, DType::i32, {B});
  check_optional(op, "lse", a.lse, DType::f32, {Tq, a.heads});
  check_bias(op, a.bias, a.heads, a.window);
  BRIM_CHECK(a.rope_theta == 0 || (!cpu && !a.lse && !a.bias && !a.dropout.on() && H / a.heads % 2 == 0),
             "attention: rope_theta {} requires inference on CUDA, an even head size and no bias; the head size is {}",
             a.rope_theta, H / a.heads);
  check_tables(op, a, cpu ? DType::f32 : type);
  BRIM_CHECK(a.rope_theta == 0 || distance_tables(a) == 0, "attention: rope_theta {} with tables of distances",
             a.rope_theta);
  if (Tq == 0 || H == 0) return;
  const double pairs =
      query_key_pairs(static_cast<double>(Tq), static_cast<double>(T), static_cast<double>(B), a.window);
  Work work = attention_work(T, Tq, H, pairs, type);
  work.flops *= 1 + 0.5 * static_cast<double>(distance_tables(a));
  dispatch(stream, a, work);
}

Work attention_work(int64_t T, int64_t Tq, int64_t H, double sum_query_key_pairs, DType dtype) {
  return {4.0 * sum_query_key_pairs * static_cast<double>(H),
          static_cast<double>((2 * T + 2 * Tq) * H) * dtype_bytes(dtype)};
}

// attention_cpu.cc
int64_t attention_cpu_scratch_bytes(int64_t S, int64_t D, Precision precision, int threads, bool distances);
int64_t attention_grad_cpu_scratch_bytes(int64_t S, int64_t D, int threads, int64_t part_floats, bool distances);

// The CUDA kernels need scratch only for the table of rotations.
int64_t attention_scratch_bytes(const device::Stream& stream, int64_t T, int64_t S, int64_t H, int64_t heads,
                                Precision precision, int threads, bool rotary, bool distances) {
  if (target_kind(stream) == device::DeviceKind::cpu)
    return attention_cpu_scratch_bytes(S, H / heads, precision, threads, distances);
  return rotary ? rope_turns_bytes(S > 0 ? S : T, H / heads) : 0;
}

void attention_grad(device::Stream& stream, const AttentionGradArgs& a) {
  const char* op = "attention_grad";
  const int64_t T = a.batch.T, B = a.batch.B, H = a.q.cols(), Tq = a.first_query_only ? B : T;
  const DType type = a.q.dtype;
  check_activation(op, "q", stream, type);
  BRIM_CHECK(a.heads > 0 && H % a.heads == 0, "attention_grad: {} heads do not divide the width {}", a.heads, H);
  BRIM_CHECK(a.window >= 0, "attention_grad: window is {}, must not be negative", a.window);
  check_view(op, "q", a.q, type, {Tq, H});
  check_view(op, "k", a.k, type, {T, H});
  check_view(op, "v", a.v, type, {T, H});
  check_view(op, "out", a.out, type, {Tq, H});
  check_view(op, "d_out", a.d_out, type, {Tq, H});
  check_view(op, "lse", a.lse, DType::f32, {Tq, a.heads});
  check_view(op, "d_q", a.d_q, type, {Tq, H});
  check_view(op, "d_k", a.d_k, type, {T, H});
  check_view(op, "d_v", a.d_v, type, {T, H});
  check_view(op, "starts", a.batch.starts, DType::i32, {B + 1});
  check_optional(op, "order", a.batch.order, DType::i32, {B});
  check_bias(op, a.bias, a.heads, a.window);
  check_bias(op, a.d_bias, a.heads, a.window);
  BRIM_CHECK(a.bias.elements() == a.d_bias.elements(), "attention_grad: the bias is {}, its gradient {}",
             a.bias.shape_text(), a.d_bias.shape_text());
  check_tables(op, a, type);
  check_optional(op, "d_distance_queries", a.d_distance_queries, DType::f32, {a.distance_queries.rows(), H});
  check_optional(op, "d_distance_keys", a.d_distance_keys, DType::f32, {a.distance_keys.rows(), H});
  BRIM_CHECK(static_cast<bool>(a.distance_queries) == static_cast<bool>(a.d_distance_queries) &&
                 static_cast<bool>(a.distance_keys) == static_cast<bool>(a.d_distance_keys),
             "attention_grad: a table of distances without its gradient");
  if (H == 0 || (B == 0 && distance_tables(a) == 0)) return;
  const double pairs =
      query_key_pairs(static_cast<double>(Tq), static_cast<double>(T), static_cast<double>(B), a.window);
  Work work = attention_work(T, Tq, H, pairs, type);
  work.flops *= 1 + 0.5 * static_cast<double>(distance_tables(a));
  work = {2.5 * work.flops, 2.0 * work.bytes};
  dispatch(stream, a, work);
}

// CUDA stores one sum per query and head: out · d_out.
int64_t attention_grad_scratch_bytes(const device::Stream& stream, int64_t T, int64_t S, int64_t H, int64_t heads,
                                     int threads, int64_t bias_width, int64_t distance_rows) {
  const int64_t bias_floats = kBiasParts * heads * bias_width;
  const auto part_floats = [&](int64_t rows) { return bias_floats + (distance_rows > 0 ? 2 * rows * H : 0); };
  if (target_kind(stream) == device::DeviceKind::cpu)
    return attention_grad_cpu_scratch_bytes(S, H / heads, threads, part_floats(kDistanceParts * distance_rows),
                                            distance_rows > 0);
  return (T * heads + part_floats(distance_scratch_rows(distance_rows))) * static_cast<int64_t>(sizeof(float));
}

}  // namespace brim::ops
