// SPDX-License-Identifier: Apache-2.0
// Attention on the CPU: iteration over (sequence, head, queries) and its distribution over threads. Tasks have similar
// cost for all lengths: many short sequences share a task, and the queries of a long sequence are split over several.
// The arithmetic is in ops/cpu/attention_kernels.h.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/check.h"
#include "ops/cpu/attention_kernels.h"
#include "ops/cpu/convert_args.h"
#include "ops/cpu/parallel.h"
#include "ops/kernel_table.h"

namespace brim::ops {
namespace {

constexpr int64_t kSplitQueries = 4 * cpu::kQueryBlock;  // keys are packed again for each split: under 1 % of the work
constexpr int64_t kTasksPerThread = 8;

// A position in the iteration: piece `piece` of head `head` of the `sequence`-th sequence in order.
struct Place {
  int32_t sequence, head, piece;
};

struct Lengths {
  const int32_t* starts;
  const int32_t* order;  // may be null
  bool first_query_only;
  bool whole;  // do not split the queries of a sequence (backward sums over queries for the gradients of keys)
  int64_t window;
  int64_t index(int64_t i) const { return order == nullptr ? i : order[i]; }
  int64_t keys(int64_t b) const { return starts[b + 1] - starts[b]; }
  int64_t queries(int64_t b) const { return first_query_only ? 1 : keys(b); }
  int64_t pieces(int64_t b) const {
    return whole ? 1 : std::max<int64_t>(1, (queries(b) + kSplitQueries - 1) / kSplitQueries);
  }
  // Cost of one head, in query-key pairs; packing and calls count as additional queries and keys.
  double head_cost(int64_t b) const {
    const int64_t seen = window > 0 ? std::min(keys(b), 2 * window + kSplitQueries) : keys(b);
    return static_cast<double>((queries(b) + 4) * (seen + 16));
  }
};

int64_t place_bytes(int threads) {
  return cpu::round_up((kTasksPerThread * threads + 1) * static_cast<int64_t>(sizeof(Place)), 64);
}

// Splits the iteration into `tasks` of equal cost; places[t] is the start of task t.
void cut(const Lengths& lengths, int64_t B, int64_t N, int64_t tasks, Place* places) {
  double total = 0;
  for (int64_t i = 0; i < B; ++i) total += lengths.head_cost(i) * static_cast<double>(N);
  double done = 0;
  int64_t next = 0;
  for (int64_t i = 0; i < B && next < tasks; ++i) {
    const int64_t b = lengths.index(i), pieces = lengths.pieces(b);
    const double piece_cost = lengths.head_cost(b) / static_cast<double>(pieces);
    const double after = done + piece_cost * static_cast<double>(pieces * N);
    while (next < tasks && static_cast<double>(next) * total < after * static_cast<double>(tasks)) {
      const double into = (static_cast<double>(next) * total / static_cast<double>(tasks) - done) / piece_cost;
      const int64_t unit = std::clamp<int64_t>(static_cast<int64_t>(into), 0, pieces * N - 1);
      places[next++] = {static_cast<int32_t>(i), static_cast<int32_t>(unit / pieces),
                        static_cast<int32_t>(unit % pieces)};
    }
    done = after;
  }
  for (; next <= tasks; ++next) places[next] = {static_cast<int32_t>(B), 0, 0};
}

// Argument of fn: a piece, and the (sequence, head) after it, if any.
struct Piece {
  int64_t b, head, first_query, queries;
  int worker;
  int64_t next_b = -1, next_head = 0;
};

// Calls fn(piece) for every piece of the batch; `around(walk)` wraps the calls of each thread.
template <class Fn, class Around>
void for_pieces(const device::Stream& stream, const Lengths& lengths, int64_t B, int64_t N, void* scratch, Fn&& fn,
                Around&& around) {
  const auto walk = [&](Place from, Place to, int worker) {
    for (int64_t i = from.sequence; i < B && i <= to.sequence; ++i) {
      const int64_t b = lengths.index(i), pieces = lengths.pieces(b);
      const int64_t begin = i == from.sequence ? from.head * pieces + from.piece : 0;
      const int64_t end = i == to.sequence ? to.head * pieces + to.piece : N * pieces;
      for (int64_t unit = begin; unit < end; ++unit) {
        const int64_t first = unit % pieces * kSplitQueries;
        Piece piece{b, unit / pieces, first,
                    pieces == 1 ? lengths.queries(b) : std::min(kSplitQueries, lengths.queries(b) - first), worker};
        if (piece.head + 1 < N) {
          piece.next_b = b;
          piece.next_head = piece.head + 1;
        } else if (i + 1 < B)
          piece.next_b = lengths.index(i + 1);
        fn(piece);
      }
    }
  };
  ThreadPool* pool = pool_of(stream);
  if (pool == nullptr) return around([&] { walk({0, 0, 0}, {static_cast<int32_t>(B), 0, 0}, 0); });
  auto* places = static_cast<Place*>(scratch);
  const int64_t tasks = kTasksPerThread * pool->size();
  cut(lengths, B, N, tasks, places);
  pool->parallel_for(static_cast<size_t>(tasks),
                     [&](size_t t, int worker) { around([&] { walk(places[t], places[t + 1], worker); }); });
}

}  // namespace

namespace {

bool in_bf16(Precision precision) { return precision == Precision::bf16 || precision == Precision::int8; }
int64_t scratch_floats(int64_t S, int64_t D, Precision precision) {
  return cpu::round_up(in_bf16(precision) ? cpu::head_scratch_floats_bf16(S, D) : cpu::head_scratch_floats(S, D), 16);
}
cpu::HeadBias head_bias(const tensor::TensorView& bias, int64_t head) {
  if (!bias) return {};
  const int64_t reach = bias.cols() / 2;
  return {cpu::row_of<float>(bias, head) + reach, reach};
}
int64_t distance_floats(int64_t S, int64_t D, bool distances) {
  return distances ? cpu::round_up(cpu::distance_scratch_floats(S, D), 16) : 0;
}
template <class Args>
cpu::HeadDistances head_distances(const Args& a, int64_t head, int64_t D, float* scratch) {
  const auto table = [&](const tensor::TensorView& t) { return t ? t.template as<float>() + head * D : nullptr; };
  const tensor::TensorView& some = a.distance_keys ? a.distance_keys : a.distance_queries;
  return {.queries = table(a.distance_queries),
          .keys = table(a.distance_keys),
          .ld_queries = a.distance_queries.ld(),
          .ld_keys = a.distance_keys.ld(),
          .reach = some ? some.rows() / 2 : 0,
          .scratch = scratch};
}
template <class Args>
bool has_distances(const Args& a) {
  return a.distance_keys || a.distance_queries;
}
template <class Args>
float scale_of(const Args& a, int64_t D) {
  return attention_scale(D, static_cast<int64_t>(static_cast<bool>(a.distance_keys)) +
                                static_cast<int64_t>(static_cast<bool>(a.distance_queries)));
}
char* at_element(const tensor::TensorView& view, int64_t row, int64_t column) {
  return static_cast<char*>(view.data) + (row * view.ld() + column) * dtype_bytes(view.dtype);
}

}  // namespace

int64_t attention_cpu_scratch_bytes(int64_t S, int64_t D, Precision precision, int threads, bool distances) {
  const int64_t each = scratch_floats(S, D, precision) + distance_floats(S, D, distances);
  return place_bytes(threads) + threads * each * static_cast<int64_t>(sizeof(float));
}

void attention_cpu(device::Stream& stream, const AttentionArgs& a) {
  const int64_t N = a.heads, D = a.q.cols() / N, S = a.batch.S;
  const int threads = threads_of(stream);
  const bool distances = has_distances(a);
  check_scratch("attention", a.scratch, attention_cpu_scratch_bytes(S, D, a.precision, threads, distances));
  const int32_t* starts = a.batch.starts.as<int32_t>();
  const Lengths lengths{starts, a.batch.order.as<int32_t>(), a.first_query_only, false, a.window};
  const device::Isa isa = static_cast<device::CpuStream&>(stream).isa();
  const cpu::AttentionKernels& kernels = cpu::attention_kernels(isa);
  // Training uses fp32, because its backward pass recomputes the probabilities in fp32.
  const cpu::Bf16AttentionKernels* bf16 =
      in_bf16(a.precision) && !a.lse && !a.dropout.on() && !distances ? cpu::bf16_attention_kernels(isa) : nullptr;
  char* scratch = static_cast<char*>(a.scratch.data);
  const int64_t own = scratch_floats(S, D, a.precision), each = own + distance_floats(S, D, distances);
  for_pieces(
      stream, lengths, a.batch.B, N, scratch,
      [&](const Piece& piece) {
        const int64_t b = piece.b, head = piece.head, queries = piece.queries, begin = starts[b] - starts[0],
                      keys = lengths.keys(b);
        BRIM_CHECK(0 <= begin && 0 <= keys && keys <= S && begin + keys <= a.batch.T,
                   "attention: sequence {} has rows {}..{}; the batch has {} rows and sequences of up to {}", b, begin,
                   begin + keys, a.batch.T, S);
        const int64_t row = a.first_query_only ? b : begin + piece.first_query, column = head * D;
        float* lse = a.lse ? cpu::row_of<float>(a.lse, row) + head : nullptr;
        if (keys == 0) {  // empty sequence: nothing to attend to
          if (queries > 0)
            std::memset(at_element(a.out, row, column), 0, static_cast<size_t>(D * dtype_bytes(a.out.dtype)));
          if (lse != nullptr && queries > 0) *lse = -INFINITY;
          return;
        }
        cpu::DropRows drop = cpu::drop_rows(a.dropout, 0);
        drop.first_row = static_cast<uint64_t>((a.dropout.first_row + row) * N + head);
        // If every query sees every key, disable the window, which the tile kernels do not support.
        const int64_t window = a.window < keys - 1 ? a.window : 0;
        const cpu::KeySpan seen = cpu::seen_keys(window, piece.first_query, queries, keys, 32);
        const auto attend =
            bf16 != nullptr && window == 0 && bf16->takes(lengths.queries(b), keys, D) ? bf16->attend : kernels.attend;
        const void *next_q = nullptr, *next_k = nullptr, *next_v = nullptr;
        int64_t next_rows = 0;
        if (piece.next_b >= 0 && !a.first_query_only) {
          const int64_t next = starts[piece.next_b] - starts[0];
          next_rows = lengths.keys(piece.next_b);
          next_q = at_element(a.q, next, piece.next_head * D);
          next_k = at_element(a.k, next, piece.next_head * D);
          next_v = at_element(a.v, next, piece.next_head * D);
        }
        float* worker = reinterpret_cast<float*>(scratch + place_bytes(threads)) + piece.worker * each;
        attend({.q = at_element(a.q, row, column),
                .k = at_element(a.k, begin + seen.first, column),
                .v = at_element(a.v, begin + seen.first, column),
                .out = at_element(a.out, row, column),
                .lse = lse,
                .ld_q = a.q.ld(),
                .ld_k = a.k.ld(),
                .ld_v = a.v.ld(),
                .ld_out = a.out.ld(),
                .ld_lse = a.lse.ld(),
                .queries = queries,
                .keys = seen.end - seen.first,
                .D = D,
                .window = window,
                .first_query = piece.first_query - seen.first,
                .first_key = seen.first,
                .scale = scale_of(a, D),
                .bias = head_bias(a.bias, head),
                .distances = head_distances(a, head, D, worker + own),
                .drop = drop,
                .drop_step = N,
                .bf16_in = a.q.dtype == tensor::DType::bf16,
                .bf16_out = a.out.dtype == tensor::DType::bf16,
                .next_q = next_q,
                .next_k = next_k,
                .next_v = next_v,
                .next_rows = next_rows,
                .scratch = worker});
      },
      [&](auto&& walk) {
        if (bf16 == nullptr) return walk();
        bf16->begin();
        walk();
        bf16->end();
      });
}

namespace {

// Gradients of the tables of distances, in parts like those of the biases; a part holds both tables.
template <class Fn>
void for_distance_parts(const device::Stream& stream, const AttentionGradArgs& a, float* partials, Fn&& fn) {
  const int64_t N = a.heads, B = a.batch.B, H = a.q.cols(), D = H / N;
  const int64_t rows = std::max(a.distance_queries.rows(), a.distance_keys.rows()), part_floats = 2 * rows * H;
  parallel_pieces(stream, N * kDistanceParts, 1, [&](int64_t unit, int64_t, int worker) {
    const int64_t head = unit % N, part = unit / N;
    float* sums = partials + part * part_floats + head * D;
    for (int64_t r = 0; r < 2 * rows; ++r) std::fill_n(sums + r * H, D, 0.0f);
    for (int64_t b = part; b < B; b += kDistanceParts) fn(Piece{b, head, 0, 0, worker}, sums, sums + rows * H);
  });
  const auto add_parts = [&](const tensor::TensorView& to, const float* from) {
    if (!to) return;
    parallel_pieces(stream, rows, rows_per_piece(H), [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r)
        for (int64_t i = 0; i < H; ++i) {
          float sum = 0;
          for (int64_t part = 0; part < kDistanceParts; ++part) sum += from[part * part_floats + r * H + i];
          cpu::row_of<float>(to, r)[i] = sum;
        }
    });
  };
  add_parts(a.d_distance_queries, partials);
  add_parts(a.d_distance_keys, partials + rows * H);
}

// Gradients of the biases: sequences are distributed over kBiasParts parts, each part is summed in order per head, and
// the sums of the parts are added in order.
template <class Fn>
void for_bias_parts(const device::Stream& stream, const AttentionGradArgs& a, float* partials, Fn&& fn) {
  const int64_t N = a.heads, width = a.bias.cols(), B = a.batch.B;
  parallel_pieces(stream, N * kBiasParts, 1, [&](int64_t unit, int64_t, int worker) {
    float* sums = partials + unit * width;
    std::fill_n(sums, width, 0.0f);
    for (int64_t b = unit / N; b < B; b += kBiasParts) fn(Piece{b, unit % N, 0, 0, worker}, sums + width / 2);
  });
  float* d_bias = a.d_bias.as<float>();
  for (int64_t i = 0; i < N * width; ++i) {
    double sum = 0;
    for (int64_t part = 0; part < kBiasParts; ++part) sum += static_cast<double>(partials[part * N * width + i]);
    d_bias[i] = static_cast<float>(sum);
  }
}

}  // namespace

int64_t attention_grad_cpu_scratch_bytes(int64_t S, int64_t D, int threads, int64_t part_floats, bool distances) {
  const int64_t each = cpu::round_up(cpu::head_grad_scratch_floats(S, D), 16) + distance_floats(S, D, distances);
  return place_bytes(threads) + (threads * each + part_floats) * static_cast<int64_t>(sizeof(float));
}

void attention_grad_cpu(device::Stream& stream, const AttentionGradArgs& a) {
  const int64_t N = a.heads, D = a.q.cols() / N, S = a.batch.S;
  const int threads = threads_of(stream);
  const bool distances = has_distances(a);
  const int64_t rows = std::max(a.distance_queries.rows(), a.distance_keys.rows());
  const int64_t part_floats = distances ? kDistanceParts * 2 * rows * N * D
                              : a.bias  ? kBiasParts * N * a.bias.cols()
                                        : 0;
  check_scratch("attention_grad", a.scratch, attention_grad_cpu_scratch_bytes(S, D, threads, part_floats, distances));
  const int32_t* starts = a.batch.starts.as<int32_t>();
  const Lengths lengths{starts, a.batch.order.as<int32_t>(), a.first_query_only, true, a.window};
  const cpu::AttentionKernels& kernels = cpu::attention_kernels(static_cast<device::CpuStream&>(stream).isa());
  char* scratch = static_cast<char*>(a.scratch.data);
  auto* workers = reinterpret_cast<float*>(scratch + place_bytes(threads));
  const int64_t own = cpu::round_up(cpu::head_grad_scratch_floats(S, D), 16),
                each = own + distance_floats(S, D, distances);
  const auto one = [&](const Piece& piece, float* d_bias, float* d_queries, float* d_keys) {
    const int64_t b = piece.b, head = piece.head, begin = starts[b] - starts[0], keys = lengths.keys(b);
    BRIM_CHECK(0 <= begin && 0 <= keys && keys <= S && begin + keys <= a.batch.T,
               "attention_grad: sequence {} has rows {}..{}; the batch has {} rows and sequences of up to {}", b, begin,
               begin + keys, a.batch.T, S);
    const int64_t row = a.first_query_only ? b : begin, column = head * D;
    if (keys == 0) {
      if (a.first_query_only) std::fill_n(cpu::row_of<float>(a.d_q, row) + column, D, 0.0f);
      return;
    }
    cpu::DropRows drop = cpu::drop_rows(a.dropout, 0);
    drop.first_row = static_cast<uint64_t>((a.dropout.first_row + row) * N + head);
    float* worker = workers + piece.worker * each;
    kernels.attend_grad({.q = cpu::row_of<float>(a.q, row) + column,
                         .k = cpu::row_of<float>(a.k, begin) + column,
                         .v = cpu::row_of<float>(a.v, begin) + column,
                         .out = cpu::row_of<float>(a.out, row) + column,
                         .d_out = cpu::row_of<float>(a.d_out, row) + column,
                         .lse = cpu::row_of<float>(a.lse, row) + head,
                         .d_q = cpu::row_of<float>(a.d_q, row) + column,
                         .d_k = cpu::row_of<float>(a.d_k, begin) + column,
                         .d_v = cpu::row_of<float>(a.d_v, begin) + column,
                         .ld_q = a.q.ld(),
                         .ld_k = a.k.ld(),
                         .ld_v = a.v.ld(),
                         .ld_out = a.out.ld(),
                         .ld_d_out = a.d_out.ld(),
                         .ld_lse = a.lse.ld(),
                         .ld_d_q = a.d_q.ld(),
                         .ld_d_k = a.d_k.ld(),
                         .ld_d_v = a.d_v.ld(),
                         .queries = lengths.queries(b),
                         .keys = keys,
                         .D = D,
                         .window = a.window < keys - 1 ? a.window : 0,
                         .scale = scale_of(a, D),
                         .bias = head_bias(a.bias, head),
                         .d_bias = d_bias,
                         .distances = head_distances(a, head, D, worker + own),
                         .d_distance_queries = d_queries,
                         .d_distance_keys = d_keys,
                         .ld_d_distances = N * D,
                         .drop = drop,
                         .drop_step = N,
                         .scratch = worker});
  };
  if (distances)
    return for_distance_parts(
        stream, a, workers + threads * each,
        [&](const Piece& piece, float* d_queries, float* d_keys) { one(piece, nullptr, d_queries, d_keys); });
  if (a.bias)
    return for_bias_parts(stream, a, workers + threads * each,
                          [&](const Piece& piece, float* d_bias) { one(piece, d_bias, nullptr, nullptr); });
  for_pieces(
      stream, lengths, a.batch.B, N, scratch, [&](const Piece& piece) { one(piece, nullptr, nullptr, nullptr); },
      [](auto&& walk) { walk(); });
}

}  // namespace brim::ops
