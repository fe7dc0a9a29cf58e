// SPDX-License-Identifier: Apache-2.0
#include "forecast/evaluate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/test_files.h"
#include "forecast/baselines.h"
#include "forecast/forecast_file.h"
#include "forecast/metrics.h"

namespace brim::forecast {
namespace {

SeriesStore store_of(const std::string& text, const char* frequency = "") {
  rows::SeriesReaderOptions options;
  options.min_points = 1;
  options.frequency = rows::parse_frequency(frequency);
  return SeriesStore(rows::read_series(io::memory_source("a.csv", text), options));
}

Forecaster constant(double value) {
  return {[value](int64_t, int64_t horizon) { return std::vector<double>(static_cast<size_t>(horizon), value); }, {}};
}

TEST(Evaluate, PointsWithoutTimesFollowTheData) {
  const SeriesStore data = store_of("id,V1,V2,V3\nA,1,2,3\nB,5,5,5\n"),
                    actual = store_of("id,V1,V2\nA,4,\nB,5,5\nC,1,1\n");
  const ForecastEvaluation e = evaluate(data, actual, constant(5), {});
  EXPECT_EQ(e.series, 2);
  EXPECT_EQ(e.points, 3);
  EXPECT_EQ(e.horizon, 2);
  EXPECT_EQ(e.not_in_data, 1);
  EXPECT_EQ(e.without_scale, 1);  // B is constant
  EXPECT_DOUBLE_EQ(e.model.mase, 1);
  EXPECT_DOUBLE_EQ(e.model.smape, (200.0 / 9 + 0) / 2);
  EXPECT_DOUBLE_EQ(e.naive2.owa, 1);
  EXPECT_DOUBLE_EQ(e.skill_naive, 0);
  ASSERT_EQ(e.mase_by_step.size(), 2u);
  EXPECT_DOUBLE_EQ(e.mase_by_step[0], 1);
}

TEST(Evaluate, TimesDetermineTheStepOfAValue) {
  const std::string past = "unique_id,ds,y\nA,2015-01-01,1\nA,2015-01-02,2\nA,2015-01-03,3\n";
  const SeriesStore data = store_of(past);
  // A file that contains the history too, with one day missing after it.
  const SeriesStore actual = store_of(past + "A,2015-01-05,7\n");
  std::vector<int64_t> horizons;
  const Forecaster counting = {[&](int64_t, int64_t horizon) {
                                 horizons.push_back(horizon);
                                 return std::vector<double>{100, 7};
                               },
                               {}};
  const ForecastEvaluation e = evaluate(data, actual, counting, {});
  EXPECT_EQ(horizons, std::vector<int64_t>{2});
  EXPECT_EQ(e.points, 1);
  EXPECT_EQ(e.model.mae, 0);
  EXPECT_EQ(e.naive.mae, 4);
  EXPECT_DOUBLE_EQ(e.skill_naive, 1);
  EXPECT_HAS(error_of(ErrorCode::bad_data, [&] { evaluate(data, data, counting, {}); }),
             "no actual values after the end of the data at 2015-01-03");
  const SeriesStore other = store_of("unique_id,ds,y\nX,2015-01-04,1\n");
  EXPECT_HAS(error_of(ErrorCode::bad_data, [&] { evaluate(data, other, counting, {}); }), "(first ids: 'X' and 'A')");
  const SeriesStore weekly = store_of("unique_id,ds,y\nA,2015-01-04,1\nA,2015-01-11,1\n");
  EXPECT_HAS(error_of(ErrorCode::bad_data, [&] { evaluate(data, weekly, counting, {}); }),
             "the frequency of the data is D, but W in the actual values");
  std::atomic<bool> stop{true};
  EvaluateOptions options;
  options.stop = &stop;
  error_of(ErrorCode::interrupted, [&] { evaluate(data, actual, counting, options); });
}

TEST(ForecastFile, RoundTripsWithIntervals) {
  const SeriesStore data =
      store_of("unique_id,ds,y\n\"A,1\",2015-01-30,1\n\"A,1\",2015-02-02,2\n\"A,1\",2015-02-03,3\n");
  TempDir dir;
  for (const char* name : {"f.csv", "f.tsv.gz", "f.jsonl"}) {
    const std::string path = (dir / name).string();
    ForecastWriter writer(path, {"NBEATS", "NBEATS-lo-80", "NBEATS-hi-80"}, nullptr);
    for (int64_t h = 0; h < 2; ++h)
      writer.write("A,1", data.time_text(0, 3 + h),
                   std::vector<double>{4.5 + static_cast<double>(h), 4, 6 - static_cast<double>(h)});
    EXPECT_FALSE(std::filesystem::exists(path));
    writer.commit();
    std::string column;
    const Forecaster f = read_forecasts(path, "", data, {}, &column);
    EXPECT_EQ(column, "NBEATS");
    EXPECT_EQ(f.values(0, 2), (std::vector<double>{4.5, 5.5}));
    ASSERT_EQ(f.intervals.size(), 1u) << name;
    EXPECT_EQ(f.intervals[0].high(0, 2), (std::vector<double>{6, 5}));
    const SeriesStore actual = store_of("unique_id,ds,y\n\"A,1\",2015-02-04,5\n\"A,1\",2015-02-05,5.5\n", "B");
    const ForecastEvaluation e = evaluate(data, actual, f, {});
    EXPECT_EQ(e.levels.at(0).coverage, 0.5);
    EXPECT_DOUBLE_EQ(e.model.mae, 0.25);
    EXPECT_DOUBLE_EQ(e.levels.at(0).pinball, ((0.1 * 1 + 0.1 * 1.5) / 2 + (0.1 * 1 + 0.9 * 0.5) / 2) / 2);
    EXPECT_HAS(error_of(ErrorCode::bad_data, [&] { f.values(0, 3); }), "no NBEATS for series 'A,1', step 3 of 3");
  }
  EXPECT_EQ(get_file(dir / "f.csv"),
            "unique_id,ds,NBEATS,NBEATS-lo-80,NBEATS-hi-80\n\"A,1\",2015-02-04,4.5,4,6\n\"A,1\",2015-02-05,5.5,4,5\n");
  put_file(dir / "bare.csv", "unique_id,ds,y\nA,1,1\n");
  std::string column;
  EXPECT_HAS(error_of(ErrorCode::bad_data, [&] { read_forecasts((dir / "bare.csv").string(), "", data, {}, &column); }),
             "no forecast column");
}

TEST(ForecastFile, WideForecastsFollowTheData) {
  const SeriesStore data = store_of("id,V1,V2\nA,1,2\n");
  TempDir dir;
  put_file(dir / "w.csv", "id,V1,V2\nA,3,4\n");
  std::string column;
  const Forecaster f = read_forecasts((dir / "w.csv").string(), "", data, {}, &column);
  EXPECT_EQ(f.values(0, 2), (std::vector<double>{3, 4}));
  // Numbered as `predict` does: continuing after the last point of the data.
  put_file(dir / "l.csv", "unique_id,ds,Naive\nA,3,7\nA,4,8\n");
  EXPECT_EQ(read_forecasts((dir / "l.csv").string(), "", data, {}, &column).values(0, 2), (std::vector<double>{7, 8}));
  EXPECT_EQ(column, "Naive");
  // A frequency that the data cannot use is not required of its forecasts either.
  const SeriesStore weekly = store_of("id,V1,V2\nA,1,2\n", "W");
  rows::SeriesReaderOptions options;
  options.frequency = rows::parse_frequency("W");
  EXPECT_EQ(read_forecasts((dir / "l.csv").string(), "", weekly, options, &column).values(0, 2),
            (std::vector<double>{7, 8}));
}

}  // namespace
}  // namespace brim::forecast
