// SPDX-License-Identifier: Apache-2.0
#include "rows/series_reader.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/fuzz_driver.h"
#include "base/log.h"
#include "base/test_files.h"
#include "io/atomic_file.h"

#define LLVMFuzzerTestOneInput fuzz_series
#include "rows/series_reader_fuzz.cc"
#undef LLVMFuzzerTestOneInput

namespace brim::rows {
namespace {

SeriesTable read(const std::string& text, SeriesReaderOptions options = {}, const std::string& name = "a.csv") {
  options.block_bytes = 64;
  return read_series(io::memory_source(name, text, 50), options);
}

// Formats as "id first: values", absent values as "-".
std::string shown(const SeriesTable& t) {
  std::string out = fmt::format("{} {}", layout_name(t.layout), frequency_name(t.frequency));
  for (size_t s = 0; s < t.ids.size(); ++s) {
    out += fmt::format(" | {} {}:", t.ids[s], format_time(t.first[s], t.style));
    for (int64_t i = t.begin[s]; i < t.begin[s + 1]; ++i) {
      const float value = t.values[static_cast<size_t>(i)];
      out += std::isnan(value) ? " -" : fmt::format(" {}", value);
    }
  }
  return out;
}

TEST(SeriesReader, DetectsLayouts) {
  struct Case {
    const char *text, *want;
  };
  const Case cases[] = {
      {"unique_id,ds,y\nA,2016-07-01,1\nA,2016-07-02,2\nB,2016-07-05,3\nB,2016-07-06,4\n",
       "long D | A 2016-07-01: 1 2 | B 2016-07-05: 3 4"},
      // interleaved rows are grouped, each series in its own order
      {"ds,unique_id,y\n1,A,1\n1,B,10\n2,A,2\n2,B,20\n3,A,3\n", "long index | A 1: 1 2 3 | B 1: 10 20"},
      {"id,y\nA,1\nA,2\nB,3\nB,4\n", "long index | A 1: 1 2 | B 1: 3 4"},
      {"\"V1\",\"V2\",\"V3\",\"V4\"\n\"H1\",\"605\",\"586\",\"\"\n\"H2\",\"1\",\"\",\"3\"\n",
       "wide index | H1 1: 605 586 | H2 1: 1 - 3"},
      {"id,V1,V2\n7,1,2\n8,3,4\n", "wide index | 7 1: 1 2 | 8 1: 3 4"},
      {"H1,605,586,559\nH2,1,2\n", "wide index | H1 1: 605 586 559 | H2 1: 1 2"},
      {"id,1,2,3\nA,5,6,7\n", "wide index | A 1: 5 6 7"},
      {"date,HUFL,OT\n2016-07-01 00:00:00,5.5,30\n2016-07-01 01:00:00,,31\n2016-07-01 02:00:00,6,32\n",
       "columns H | HUFL 2016-07-01 00:00:00: 5.5 - 6 | OT 2016-07-01 00:00:00: 30 31 32"},
      {"0.5,1.5\n0.25,1\n", "columns index | 1 1: 0.5 0.25 | 2 1: 1.5 1"},
      {"2015-01-01,3\n2015-01-02,4\n", "columns D | 2 2015-01-01: 3 4"},
      {"a;b\n1;2\n3;4\n", "columns index | a 1: 1 3 | b 1: 2 4"},
      {"{\"item_id\":\"T1\",\"start\":\"2012-01-01\",\"target\":[1, null, 3],\"freq\":\"M\"}\n"
       "{\"item_id\":\"T2\",\"start\":\"2012-03-01\",\"target\":[4,\"NaN\",6]}\n",
       "jsonl M | T1 2012-01-01: 1 - 3 | T2 2012-03-01: 4 - 6"},
      {"{\"start\":\"2012-01-01\",\"target\":[1,2]}\n", "jsonl index | 1 1: 1 2"},
      {"{\"unique_id\":\"A\",\"ds\":\"2012-01-01\",\"y\":1}\n{\"unique_id\":\"A\",\"ds\":\"2012-01-02\",\"y\":2.5}\n",
       "long D | A 2012-01-01: 1 2.5"},
  };
  for (const Case& c : cases) EXPECT_EQ(shown(read(c.text)), c.want) << c.text;
}

TEST(SeriesReader, SelectsColumnsByName) {
  const std::string stock = "Date,Open,Adj Close\n2015-01-01,1,10\n2015-01-02,2,20\n2015-01-05,3,30\n";
  SeriesReaderOptions options;
  options.target_column = "Adj Close";
  EXPECT_EQ(shown(read(stock, options, "stocks/AAPL.csv")), "long B | AAPL 2015-01-01: 10 20 30");
  EXPECT_EQ(shown(read(stock)), "columns B | Open 2015-01-01: 1 2 3 | Adj Close 2015-01-01: 10 20 30");
  options.target_column = "Adj close";
  const std::string error = error_of(ErrorCode::bad_data, [&] { read(stock, options); });
  EXPECT_HAS(error,
             "a.csv: line 1: unknown column Adj close (did you mean Adj Close?); columns: Date, Open, Adj Close");
  EXPECT_HAS(error, "`target_column`");
  SeriesReaderOptions renamed;
  renamed.id_column = "shop";
  renamed.time_column = "week";
  renamed.target_column = "sold";
  EXPECT_EQ(shown(read("sold,week,shop\n1,2015-01-05,x\n2,2015-01-12,x\n", renamed)), "long W | x 2015-01-05: 1 2");
}

TEST(SeriesReader, ExcelSeparatorLineSetsTheDelimiter) {
  const std::string rows = "unique_id;ds;y\na,b;2016-07-01;1\na,b;2016-07-02;2\n";
  const std::string want = "long D | a,b 2016-07-01: 1 2";
  for (const char* first : {"sep=;\n", "sep=;\r\n", "\"sep=;\"\n", "\xEF\xBB\xBFsep=;\n"})
    EXPECT_EQ(shown(read(first + rows)), want) << first;
  EXPECT_EQ(shown(read("sep=,\na;b;c,y\n1,2\n3,4\n")), "columns index | a;b;c 1: 1 3 | y 1: 2 4")
      << "although semicolons are more frequent";
  SeriesReaderOptions options;
  options.delimiter = ';';  // the option wins
  EXPECT_EQ(shown(read("sep=,\n" + rows, options)), want);
  EXPECT_HAS(error_of(ErrorCode::bad_data, [] { read("sep=;\nunique_id;ds;y\nA;2016-07-01;x\n"); }), "line 3");
  EXPECT_HAS(error_of(ErrorCode::bad_data, [] { read("sep=;\n"); }), "is empty");
}

TEST(SeriesReader, MasksFillsOrRejectsGaps) {
  const std::string text =
      "unique_id,ds,y\nA,2016-07-01 00:00,1\nA,2016-07-01 01:00,2\nA,2016-07-01 04:00,5\nA,2016-07-01 05:00,6\n";
  EXPECT_EQ(shown(read(text)), "long H | A 2016-07-01 00:00: 1 2 - - 5 6");
  EXPECT_EQ(read(text).absent, 2);
  SeriesReaderOptions options;
  options.gaps = GapRule::fill;
  EXPECT_EQ(shown(read(text, options)), "long H | A 2016-07-01 00:00: 1 2 2 2 5 6");
  options.gaps = GapRule::error;
  EXPECT_HAS(error_of(ErrorCode::bad_data, [&] { read(text, options); }),
             "a.csv: line 4: series 'A': 2 points missing before this point; set `gaps=mask`");
  EXPECT_HAS(error_of(ErrorCode::bad_data, [&] { read("ds,y\n1,1\n2,\n3,3\n", options); }),
             "line 3: column y: missing value; set `gaps=mask`");
  options = {};
  options.frequency = Frequency{};
  EXPECT_EQ(shown(read(text, options)), "long index | A 1: 1 2 5 6");
}

TEST(SeriesReader, CalendarsAreNotGaps) {
  EXPECT_EQ(shown(read("ds,y\n2015-01-31,1\n2015-02-28,2\n2015-03-31,3\n2015-05-29,5\n", {}, "x.csv")),
            "long M | x 2015-01-31: 1 2 3 - 5");
  // Thursday, Friday, Monday, then Wednesday: a holiday in between
  EXPECT_EQ(shown(read("ds,y\n2015-01-01,1\n2015-01-02,2\n2015-01-05,3\n2015-01-07,5\n", {}, "x.csv")),
            "long B | x 2015-01-01: 1 2 3 - 5");
}

TEST(SeriesReader, TrimsMissingEnds) {
  EXPECT_EQ(shown(read("ds,a,b\n1,,1\n2,5,2\n3,6,\n4,7,\n")), "columns index | a 2: 5 6 7 | b 1: 1 2");
}

TEST(SeriesReader, ErrorsNameTheLineAndARemedy) {
  struct Case {
    const char *text, *problem, *remedy;
  };
  const Case cases[] = {
      {"unique_id,ds,y\nA,2015-01-01,1\nA,2015-01-01,2\n", "a.csv: line 3: series 'A': duplicate time 2015-01-01",
       "one row per time"},
      {"unique_id,ds,y\nA,2015-01-02,1\nA,2015-01-01,2\n",
       "a.csv: line 3: series 'A': out of order: 2015-01-02 precedes 2015-01-01", "oldest first"},
      {"date,a\n2015-01-02,1\n2015-01-01,2\n", "a.csv: line 3: series 'a': out of order: 2015-01-02 precedes",
       "oldest first"},
      {"ds,y\n2015-01-01 00:00Z,1\n2015-01-01 01:00,2\n", "a.csv: line 3: mixed time zones: none here", "same zone"},
      {"ds,y\n2015-01-01 00:00+01:00,1\n2015-01-01 01:00+02:00,2\n", "line 3: mixed time zones: +02:00 here",
       "same zone"},
      {"ds,y\n2015-01-01,1\n7,2\n", "line 3: the time is an integer, earlier times are dates", "same format"},
      {"ds,y\n2015-01-01,1\n", "a.csv: line 2: series 'a' has 1 point, fewer than 2", "more points"},
      {"ds,y\n2015-01-01,\n2015-01-02,NaN\n", "line 2: series 'a' has no values", "more points"},
      {"ds,y\n2015-01-01,1\n2015-01-02,abc\n", "a.csv: line 3: column y: 'abc' is not a number", "decimal point"},
      {"date,a,kind\n2015-01-01,1,x\n2015-01-02,2,y\n", "line 2: column kind: 'x' is not a number", "`target_column`"},
      {"ds,y\n2015-01-01,1\n2015-01-02,inf\n", "line 3: column y: 'inf' is not a finite 32-bit number", "blank"},
      {"ds,y\n2015-01-01,1\n2015-01-02,1e39\n", "line 3: column y: '1e39' is not a finite", "scale"},
      {"ds,y\n01/02/2015,1\n01/03/2015,2\n", "line 2: column ds: invalid time '01/02/2015'", "ISO 8601"},
      {"unique_id,ds,y\nA,1,1\nA,2\n", "line 3: 2 fields, but the header has 3", ""},
      {"id,V1,V2\nA,1,2\nA,3,4\n", "line 3: duplicate series 'A' (first at a.csv: line 2)", "unique id"},
      {"unique_id,ds,y\nA,2015-01-01 00:00,1\nA,2015-01-01 01:00,2\nA,2015-01-01 02:00,2\nA,2015-01-01 02:30,3\n",
       "a.csv: line 5: series 'A': 2015-01-01 02:30 is not on the hourly grid (H)", "`freq=index`"},
      {"ds,y\n0001-01-01 00:00:00,1\n0001-01-01 00:00:01,2\n9999-01-01 00:00:00,2\n",
       "points missing before this point, far more than are present", "coarser `freq`"},
      {"", "a.csv: is empty", ""},
      {"unique_id,ds,y\n", "line 1: a header but no rows", ""},
      {"unique_id,ds,y\n\"A,1,2\n", "line 2: field 1 has an unterminated or misplaced quote", "close the quote"},
      {"{\"target\":[1,{}]}\n", "line 1: \"target\": element 2: '{}' is not a finite number", "null"},
      {"{\"target\":[1\n", "line 1: byte 13", "one JSON object per line"},
      {"{\"start\":\"May\",\"target\":[1,2]}\n", "\"start\": invalid time 'May'", "ISO 8601"},
  };
  for (const Case& c : cases) {
    const std::string error = error_of(ErrorCode::bad_data, [&] { read(c.text); });
    EXPECT_HAS(error, c.problem);
    EXPECT_HAS(error, c.remedy);
  }
}

TEST(SeriesReader, OmitsShortSeriesIfOthersRemain) {
  const SeriesTable t = read("id,V1,V2\nA,1,2\nB,3,\nC,,\n");
  EXPECT_EQ(shown(t), "wide index | A 1: 1 2");
  EXPECT_EQ(t.skipped, 2);
  EXPECT_HAS(t.notes.at(1), "2 series with too few points omitted; the first: a.csv: line 3: series 'B' has 1 point");
}

TEST(SeriesReader, ReportsTheDetectedLayout) {
  EXPECT_EQ(read("unique_id,ds,y\nA,2016-07-01,1\nA,2016-07-02,\nA,2016-07-03,3\n").notes.at(0),
            "long layout · 1 series · 2 points · daily (D) · 1 point missing, masked");
}

TEST(SeriesReader, ReadsFoldersAndCompressedFiles) {
  TempDir dir;
  put_file(dir / "s/B.csv", "Date,Close\n2015-01-01,1\n2015-01-02,2\n");
  {
    io::AtomicFile file(dir / "s/A.csv.gz");
    const auto sink = io::make_sink(file, io::Compression::gzip);
    sink->write("Date,Close\n2015-01-01,5\n2015-01-02,6\n");
    sink->end_member();
    file.commit();
  }
  put_file(dir / "s/README.md", "no series");
  SeriesReaderOptions options;
  options.target_column = "Close";
  int64_t reported = 0;
  options.progress = [&](int64_t done, int64_t) { reported = std::max(reported, done); };
  EXPECT_EQ(shown(read_series(std::vector<std::string>{(dir / "s").string()}, options)),
            "long D | A 2015-01-01: 5 6 | B 2015-01-01: 1 2");
  EXPECT_GT(reported, 0);
  EXPECT_EQ(shown(read_series(std::vector<std::string>{(dir / "s/B.csv").string(), (dir / "s/A.csv.gz").string()}, {})),
            "columns D | B/Close 2015-01-01: 1 2 | A/Close 2015-01-01: 5 6");
  put_file(dir / "w.csv", "id,V1,V2\nX,1,2\n");
  EXPECT_HAS(error_of(ErrorCode::bad_data,
                      [&] {
                        read_series(std::vector<std::string>{(dir / "s").string(), (dir / "w.csv").string()}, {});
                      }),
             "the layout is wide");
  put_file(dir / "p.parquet", "PAR1");
  EXPECT_HAS(
      error_of(ErrorCode::bad_data, [&] { read_series(std::vector<std::string>{(dir / "p.parquet").string()}, {}); }),
      "to_csv");
}

// Formats covariates as "name: values | values", one list per series.
std::string shown_covariates(const SeriesTable& t) {
  std::string out;
  for (const CovariateValues& v : t.covariates) {
    out += (out.empty() ? "" : "; ") + v.column.name + ":";
    for (size_t i = 0; i + 1 < v.begin.size(); ++i) {
      out += i > 0 ? " |" : "";
      for (int64_t k = v.begin[i]; k < v.begin[i + 1]; ++k) {
        const float value = v.values[static_cast<size_t>(k)];
        out += std::isnan(value) ? " -" : fmt::format(" {}", value);
      }
    }
  }
  return out;
}

TEST(SeriesReader, AlignsCovariatesWithTheSeries) {
  SeriesReaderOptions options;
  options.covariates = {{"price", CovariateKind::future, false},
                        {"visits", CovariateKind::past, false},
                        {"day", CovariateKind::past, true},
                        {"size", CovariateKind::fixed, false}};
  // A begins without a target and ends with two rows of the future; B lacks 2016-07-06.
  const std::string rows =
      "unique_id,ds,y,price,visits,day,size,note\n"
      "A,2016-07-01,,1,5,fri,7,x\nA,2016-07-02,10,2,6,sat,7,x\nA,2016-07-03,11,,7,sun,7,x\nA,2016-07-04,,4,,mon,,x\n"
      "A,2016-07-05,,5,,tue,,x\nB,2016-07-05,1,9,3,tue,8,x\nB,2016-07-07,2,8,4,,8,x\nB,2016-07-08,3,7,5,fri,8,x\n";
  const SeriesTable t = read(rows, options);
  EXPECT_EQ(shown(t), "long D | A 2016-07-02: 10 11 | B 2016-07-05: 1 - 2 3");
  EXPECT_EQ(shown_covariates(t), "price: 2 - 4 5 | 9 - 8 7; visits: 6 7 | 3 - 4 5; day: 1 2 | 4 - - 0; size: 7 | 8");
  EXPECT_EQ(t.covariates[2].categories, (std::vector<std::string>{"fri", "sat", "sun", "mon", "tue"}));
  EXPECT_EQ(t.last_row, (std::vector<std::string>{"a.csv: line 6", "a.csv: line 9"}));
  EXPECT_EQ(t.notes.back(), "columns not used: note");

  options.covariates = {{"price", CovariateKind::future, false}, {"size", CovariateKind::fixed, false}};
  const SeriesTable objects = read(
      "{\"item_id\":\"A\",\"target\":[1,2,3],\"price\":[4,null,6,7],\"size\":2}\n"
      "{\"item_id\":\"B\",\"target\":[1,2],\"price\":[1,2],\"size\":null}\n",
      options, "a.jsonl");
  EXPECT_EQ(shown_covariates(objects), "price: 4 - 6 7 | 1 2; size: 2 | -");
}

TEST(SeriesReader, FurtherFilesMayLackPastAndStaticColumns) {
  TempDir dir;
  put_file(dir / "a.csv", "unique_id,ds,y,value,visits,size\nA,1,10,1,5,7\nA,2,11,2,6,7\n");
  put_file(dir / "future.csv", "unique_id,ds,value\nA,3,8\nA,4,9\n");
  put_file(dir / "later.csv", "unique_id,ds,y,value,size\nA,3,12,8,7\nA,4,13,9,7\n");
  put_file(dir / "none.csv", "unique_id,ds,y,visits,size\nA,3,12,6,7\n");
  SeriesReaderOptions options;
  options.covariates = {{"value", CovariateKind::future, false},
                        {"visits", CovariateKind::past, false},
                        {"size", CovariateKind::fixed, false}};
  const auto of = [&](const char* name) {
    return read_series(std::vector<std::string>{(dir / "a.csv").string(), (dir / name).string()}, options);
  };
  const SeriesTable future = of("future.csv");
  EXPECT_EQ(shown(future), "long index | A 1: 10 11");  // "value" is not the target, but a covariate
  EXPECT_EQ(shown_covariates(future), "value: 1 2 8 9; visits: 5 6; size: 7");
  EXPECT_EQ(future.notes.size(), 1u);
  const SeriesTable later = of("later.csv");
  EXPECT_EQ(shown(later), "long index | A 1: 10 11 12 13");
  EXPECT_EQ(shown_covariates(later), "value: 1 2 8 9; visits: 5 6 - -; size: 7");
  EXPECT_HAS(later.notes.back(), "later.csv has no column visits");
  EXPECT_HAS(error_of(ErrorCode::bad_data, [&] { of("none.csv"); }), "none.csv: line 1: unknown column value");

  // Omitted columns are known not to be the target.
  options.covariates.clear();
  options.omitted = {"visits"};
  options.layout = SeriesLayout::long_rows;
  const SeriesTable omitted = read("unique_id,ds,sales,visits\nA,1,10,5\nA,2,11,6\n", options);
  EXPECT_EQ(shown(omitted), "long index | A 1: 10 11");
  EXPECT_EQ(omitted.notes.size(), 1u);
}

TEST(SeriesReader, ReadsListsOfCategories) {
  SeriesReaderOptions options;
  options.covariates = {{"day", CovariateKind::past, true}};
  const auto of = [&](const std::string& lists) { return read("{\"item_id\":\"A\"," + lists + "}\n", options); };
  const SeriesTable t = of(R"("target":[1,2,3,4],"day":[ "red, large" ,"caf\u00e9",null,"a\"]b\\"])");
  EXPECT_EQ(t.covariates[0].categories, (std::vector<std::string>{"red, large", "café", "a\"]b\\"}));
  EXPECT_EQ(shown_covariates(t), "day: 0 1 - 2");
  EXPECT_EQ(shown_covariates(of(R"("target":[1,2],"day":["x",2,null])")), "day: 0 1");
  EXPECT_HAS(error_of(ErrorCode::bad_data, [&] { of(R"("target":[1,2],"day":["x","y","z"])"); }),
             "a.csv: line 1: \"day\" has 3 values, but \"target\" has 2; give one value per point");
  EXPECT_HAS(error_of(ErrorCode::bad_data, [&] { of(R"("target":[1,2],"day":["x",["y","z"]])"); }),
             "a.csv: line 1: \"day\": element 2: '[\"y\",\"z\"]' is not a single value");
  EXPECT_HAS(error_of(ErrorCode::bad_data, [&] { of(R"("target":[1,"2,3"],"day":["x","y"])"); }),
             "\"target\": element 2: '2,3' is not a finite number");
}

TEST(SeriesReader, AlignsCovariatesWithNumberedObjects) {
  SeriesReaderOptions options;
  options.covariates = {{"price", CovariateKind::future, false}};
  const SeriesTable t =
      read("{\"item_id\":\"A\",\"start\":100,\"target\":[null,2,3],\"price\":[4,5,6,7]}\n", options, "a.jsonl");
  EXPECT_EQ(shown(t), "jsonl index | A 2: 2 3");
  EXPECT_EQ(shown_covariates(t), "price: 5 6 7");
}

TEST(SeriesReader, WarnsAboutPrecisionLoss) {
  std::string warned;
  const LogSink before = set_log_sink([&](LogLevel level, std::string_view text) {
    if (level == LogLevel::warning) warned += text;
  });
  read("ds,y\n1,100000000\n2,100000001\n3,100000002\n4,100000000\n");
  EXPECT_HAS(warned, "lost in 32-bit precision");
  warned.clear();
  read("ds,y\n1,1.5\n2,1.25\n3,1.25\n");
  EXPECT_EQ(warned, "");
  set_log_sink(before);
}

TEST(SeriesReader, StopsOnRequest) {
  std::atomic<bool> stop{true};
  SeriesReaderOptions options;
  options.stop = &stop;
  error_of(ErrorCode::interrupted, [&] { read("ds,y\n1,1\n2,2\n", options); });
}

TEST(SeriesReader, Fuzz) {
  // x: everything detected; -: without times; }: gaps are errors; Z and <: covariates that are numbers and categories
  drive_fuzz(fuzz_series,
             {"xunique_id,ds,y\nA,2016-07-01,1\nA,2016-07-02,2\nB,2016-07-05,3\nB,2016-07-06,4\n",
              "xid,V1,V2\nA,1,2\nB,3,\n", "-ds,unique_id,y\n1,A,1\n1,B,10\n2,A,2\n2,B,20\n",
              "xdate,a,b\n2016-07-01 00:00:00,5.5,30\n2016-07-01 01:00:00,,31\n",
              "x{\"item_id\":\"T\",\"start\":\"2012-01-01\",\"target\":[1, null, 3],\"freq\":\"M\"}\n",
              "}ds,y\n2015-01-31,1\n2015-02-28,2\n2015-04-30,4\n", "x.5,1.5\n.25,1\n",
              "Zunique_id,ds,y,p,q,r\nA,1,1,5,6,7\nA,2,2,5,,7\nA,3,,5,,\nB,1,1,,2,3\nB,2,2,4,2,3\n",
              "<unique_id,ds,y,p,q,r\nA,1,1,x,6,e\nA,2,2,y,1,e\nA,3,,x,,\n",
              "Z{\"item_id\":\"T\",\"target\":[1,null,3],\"p\":[1,2,3,4],\"q\":[1,null,2],\"r\":5}\n"},
             4000);
}

}  // namespace
}  // namespace brim::rows
