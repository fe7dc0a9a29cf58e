// SPDX-License-Identifier: Apache-2.0
#include "forecast/device_series.h"

#include <algorithm>

#include "base/error.h"

namespace brim::forecast {

using tensor::DType;

namespace {

// Byte offsets within one allocation.
struct SeriesPieces {
  int64_t begin, end, first, weights, total;
  SeriesPieces(int64_t values, int64_t series, int64_t rows) {
    begin = memory::align_up(values * 4);
    end = begin + memory::align_up((series + 1) * 8);
    first = end + memory::align_up(rows * series * 4);
    weights = first + memory::align_up(rows * series * 4);
    total = weights + memory::align_up(rows * (series + 1) * 8);
  }
};

}  // namespace

LaneCutoffs whole_series(std::span<const int64_t> begin) {
  LaneCutoffs c;
  for (size_t s = 0; s + 1 < begin.size(); ++s) c.end.push_back(static_cast<int32_t>(begin[s + 1] - begin[s]));
  return c;
}

int64_t DeviceSeries::bytes(int64_t values, int64_t series, int64_t lanes, bool shared) {
  return SeriesPieces(values, series, shared ? 1 : lanes).total;
}

DeviceSeries::DeviceSeries(device::Device& device, std::span<const float> values, std::span<const int64_t> begin,
                           int64_t lanes, bool shared, memory::PlannedMemory* planned)
    : series_(static_cast<int64_t>(begin.size()) - 1), most_lanes_(lanes), shared_(shared) {
  const auto count = static_cast<int64_t>(values.size());
  BRIM_CHECK(series_ >= 0 && begin.back() == count, "{} series end at {}, there are {} values", series_,
             begin.empty() ? 0 : begin.back(), count);
  const SeriesPieces pieces(count, series_, shared ? 1 : lanes);
  block_ = memory::Ledger::allocate(device, planned, memory::Tag::token_set, "series", pieces.total);
  auto* base = static_cast<char*>(block_.data());
  source_.values = TensorView(base, DType::f32, {count});
  source_.begin = TensorView(base + pieces.begin, DType::i64, {series_ + 1});
  end_ = base + pieces.end;
  first_ = base + pieces.first;
  weights_ = base + pieces.weights;
  const auto stream = device.make_stream();
  stream->copy(source_.values.data, values.data(), values.size_bytes());
  stream->copy(source_.begin.data, begin.data(), begin.size_bytes());
  stream->synchronize();
}

void DeviceSeries::set_lanes(device::Stream& stream, std::span<const LaneCutoffs> cutoffs,
                             std::span<const ops::LaneSpec> lanes, ops::Sampling sampling) {
  const auto G = static_cast<int64_t>(lanes.size());
  BRIM_CHECK(G <= most_lanes_ && (cutoffs.size() == 1 || cutoffs.size() == lanes.size()),
             "{} lanes with {} cutoffs, room for {}", G, cutoffs.size(), most_lanes_);
  BRIM_CHECK(!shared_ || (cutoffs.size() == 1 &&
                          std::all_of(lanes.begin(), lanes.end(),
                                      [&](const ops::LaneSpec& lane) { return lane.history == lanes[0].history; })),
             "lanes with cutoffs or histories of their own where one for all was planned");
  const auto rows = static_cast<size_t>(shared_ ? std::min<int64_t>(G, 1) : G);
  std::vector<int32_t> end, first;
  std::vector<int64_t> weights;
  for (size_t g = 0; g < rows; ++g) {
    const LaneCutoffs& c = cutoffs[cutoffs.size() == 1 ? 0 : g];
    BRIM_CHECK(static_cast<int64_t>(c.end.size()) == series_ && (c.first.empty() || c.first.size() == c.end.size()),
               "cutoffs of {} series, there are {}", c.end.size(), series_);
    end.insert(end.end(), c.end.begin(), c.end.end());
    if (c.first.empty())
      first.resize(first.size() + c.end.size());
    else
      first.insert(first.end(), c.first.begin(), c.first.end());
    const std::vector<int64_t> row = ops::window_weights(c.first.empty() ? nullptr : c.first.data(), c.end.data(),
                                                         series_, lanes[g].history, sampling);
    if (row.back() == 0)
      fail(ErrorCode::bad_data, "lane {} has no training data: none of {} series has two points before its cutoff", g,
           series_);
    weights.insert(weights.end(), row.begin(), row.end());
  }
  stream.copy(end_, end.data(), end.size() * sizeof(int32_t));
  stream.copy(first_, first.data(), first.size() * sizeof(int32_t));
  stream.copy(weights_, weights.data(), weights.size() * sizeof(int64_t));
  stream.synchronize();
  source_.end = TensorView(end_, DType::i32, {G, series_});
  source_.first = TensorView(first_, DType::i32, {G, series_});
  source_.weights = TensorView(weights_, DType::i64, {G, series_ + 1});
  if (shared_)
    for (TensorView* v : {&source_.end, &source_.first, &source_.weights}) v->stride[0] = 0;
  source_.every_window = sampling == ops::Sampling::windows;
}

namespace {

struct CovariatePieces {
  int64_t past, fixed, row_bits, total;
  CovariatePieces(const CovariateShape& shape, int64_t rows, int64_t points) {
    past = memory::align_up(rows * shape.future * 4);
    fixed = past + memory::align_up(rows * shape.past * 4);
    row_bits = fixed + memory::align_up(rows * shape.fixed * 4);
    total = row_bits + memory::align_up(points * 4);
  }
};

}  // namespace

int64_t DeviceCovariates::bytes(const CovariateShape& shape, int64_t horizon, int64_t series, int64_t points) {
  return CovariatePieces(shape, covariate_rows(shape, horizon, series, points), points).total;
}

DeviceCovariates::DeviceCovariates(device::Device& device, const CovariateTable& table, std::span<const int64_t> begin,
                                   memory::PlannedMemory* planned) {
  const int64_t points = begin.back();
  const CovariatePieces pieces(table.shape, table.rows, points);
  block_ = memory::Ledger::allocate(device, planned, memory::Tag::token_set, "covariates", pieces.total);
  auto* base = static_cast<char*>(block_.data());
  future_ = TensorView(base, DType::f32, {table.rows, table.shape.future});
  past_ = TensorView(base + pieces.past, DType::f32, {table.rows, table.shape.past});
  fixed_ = TensorView(base + pieces.fixed, DType::f32, {table.rows, table.shape.fixed});
  row_bits_ = TensorView(base + pieces.row_bits, DType::f32, {points});
  // The row of the cut at each value; window_gather copies them as floats.
  std::vector<int32_t> rows;
  for (size_t i = 0; i + 1 < begin.size(); ++i)
    for (int64_t cut = 0; cut < begin[i + 1] - begin[i]; ++cut) rows.push_back(table.row(static_cast<int64_t>(i), cut));
  const auto stream = device.make_stream();
  const auto copy = [&](const TensorView& to, const std::vector<float>& values) {
    if (!values.empty()) stream->copy(to.data, values.data(), values.size() * sizeof(float));
  };
  copy(future_, table.future);
  copy(past_, table.past);
  copy(fixed_, table.fixed);
  if (points > 0) stream->copy(row_bits_.data, rows.data(), rows.size() * sizeof(int32_t));
  stream->synchronize();
}

void DeviceCovariates::add_to(WindowSource& source) const {
  source.future = future_;
  source.past = past_;
  source.fixed = fixed_;
  source.row_bits = row_bits_;
}

}  // namespace brim::forecast
