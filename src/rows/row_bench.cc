// SPDX-License-Identifier: Apache-2.0
// Measures reading and writing of rows on one core. Creates its own files (deterministic tweet-like text) in a
// directory, checks the rows and bytes of each pass, and prints the median of several passes over warm files.
// row_bench [DIR=/dev/shm] [MIB=256] [ROUNDS=7]
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "rows/resume.h"
#include "rows/row_writer.h"

namespace {

using namespace brim;
using namespace brim::rows;

double processor_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

std::string tweet(std::mt19937& random) {
  std::string text;
  for (size_t words = 4 + random() % 24; words > 0; --words) {
    for (size_t n = 1 + random() % 9; n > 0; --n) text += static_cast<char>('a' + random() % 26);
    text += ' ';
  }
  return text;
}

struct File {
  std::string path;
  int64_t rows = 0, bytes = 0;
};

enum class Style { txt, csv_plain, csv_quoted, jsonl, jsonl_escaped };

void append_row(std::string& out, Style style, int64_t row, std::mt19937& random) {
  const std::string id = std::to_string(row);
  const std::string text = tweet(random);
  switch (style) {
    case Style::txt:
      out += text;
      break;
    case Style::csv_plain:
      out += id + "," + text + ",2024-05-0" + id.substr(0, 1) + ",en";
      break;
    case Style::csv_quoted:
      out += id + ",\"" + text + ", \"\"so\"\" he said\",2024,en";
      break;
    case Style::jsonl:
      out += "{\"id\": " + id + ", \"text\": \"" + text + "\", \"lang\": \"en\"}";
      break;
    case Style::jsonl_escaped:
      out += "{\"id\": " + id + ", \"text\": \"" + text + "\\u2026 \\ud83d\\ude00\", \"lang\": \"en\"}";
  }
  out += '\n';
}

File make_file(const std::string& path, Style style, int64_t bytes) {
  io::AtomicFile file(path);
  auto sink = make_sink(file, io::compression_of(path));
  std::mt19937 random(1);
  File made{path};
  std::string block;
  if (style == Style::csv_plain || style == Style::csv_quoted) block = "id,text,date,lang\n";
  while (made.bytes < bytes) {
    append_row(block, style, made.rows++, random);
    if (block.size() < (1 << 18)) continue;
    made.bytes += static_cast<int64_t>(block.size());
    sink->write(block);
    block.clear();
  }
  made.bytes += static_cast<int64_t>(block.size());
  sink->write(block);
  sink->end_member();
  file.commit();
  return made;
}

double median_seconds(int rounds, const std::function<void()>& pass) {
  std::vector<double> seconds;
  for (int i = 0; i < rounds; ++i) {
    const double start = processor_seconds();
    pass();
    seconds.push_back(processor_seconds() - start);
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

void report(const std::string& what, const File& file, double seconds) {
  fmt::print("{:<34} {:>8.0f} MB/s {:>7.1f} M rows/s\n", what, 1e-6 * static_cast<double>(file.bytes) / seconds,
             1e-6 * static_cast<double>(file.rows) / seconds);
}

void bench_read(const std::string& what, const File& file, int rounds) {
  RowChunk chunk;
  report(what, file, median_seconds(rounds, [&] {
           RowReader reader({file.path}, {});
           int64_t rows = 0;
           size_t text = 0;
           while (reader.next_chunk(chunk)) {
             rows += static_cast<int64_t>(chunk.size());
             for (std::string_view view : chunk.texts) text += view.size();
           }
           BRIM_CHECK(rows == file.rows && text > 0, "{}: {} rows of {}", file.path, rows, file.rows);
         }));
}

void bench_copy(const std::string& what, const File& file, const std::string& out, int rounds) {
  RowChunk chunk;
  report(what, file, median_seconds(rounds, [&] {
           RowReader reader({file.path}, {});
           RowOutput output(out, {{file.path}, "bench", {}}, {});
           RowWriterOptions options;
           options.format = output_format_of(out, reader.schema().format);
           RowWriter writer(reader.schema(), options);
           std::string bytes;
           writer.header(bytes);
           output.write_header(bytes);
           while (reader.next_chunk(chunk))
             for (size_t i = 0; i < chunk.size(); ++i) {
               bytes.clear();
               writer.row(bytes, chunk, i, RowResult{"positive", 0.5f + static_cast<float>(i % 4096) / 8191});
               output.write_row(bytes, chunk.position_after(i));
             }
           output.commit();
           RowReader again({out}, {});
           BRIM_CHECK(again.next_chunk(chunk) && chunk.errors.empty(), "{} does not read back", out);
         }));
  ::unlink(out.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  const std::string dir = std::string(argc > 1 ? argv[1] : "/dev/shm") + "/brim_row_bench";
  const int64_t bytes = (argc > 2 ? std::atoll(argv[2]) : 256) << 20;
  const int rounds = argc > 3 ? std::max(1, std::atoi(argv[3])) : 7;
  try {
    std::filesystem::create_directories(dir);
    const File txt = make_file(dir + "/a.txt", Style::txt, bytes);
    const File csv = make_file(dir + "/a.csv", Style::csv_plain, bytes);
    const File quoted = make_file(dir + "/q.csv", Style::csv_quoted, bytes);
    const File jsonl = make_file(dir + "/a.jsonl", Style::jsonl, bytes);
    const File escaped = make_file(dir + "/e.jsonl", Style::jsonl_escaped, bytes);
    const File gz = make_file(dir + "/a.txt.gz", Style::txt, bytes / 4);
    const File zst = make_file(dir + "/a.txt.zst", Style::txt, bytes / 4);
    fmt::print("processor time of one thread, median of {} passes over {} MiB in {}\n", rounds, bytes >> 20, dir);
    bench_read("read txt", txt, rounds);
    bench_read("read csv", csv, rounds);
    bench_read("read csv, quoted and doubled", quoted, rounds);
    bench_read("read jsonl", jsonl, rounds);
    bench_read("read jsonl, escapes", escaped, rounds);
    bench_read("read txt.gz", gz, rounds);
    bench_read("read txt.zst", zst, rounds);
    bench_copy("csv → csv", csv, dir + "/o.csv", rounds);
    bench_copy("csv → jsonl", csv, dir + "/o.jsonl", rounds);
    bench_copy("jsonl → jsonl", jsonl, dir + "/o.jsonl", rounds);
    bench_copy("jsonl → csv", jsonl, dir + "/o.csv", rounds);
    bench_copy("txt → csv", txt, dir + "/o.csv", rounds);
    bench_copy("txt → csv.zst", zst, dir + "/o.csv.zst", rounds);
    bench_copy("txt → csv.gz", gz, dir + "/o.csv.gz", rounds);
  } catch (const Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    std::filesystem::remove_all(dir);
    return exit_code(error.code());
  }
  std::filesystem::remove_all(dir);
  return 0;
}
