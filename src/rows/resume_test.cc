// SPDX-License-Identifier: Apache-2.0
#include "rows/resume.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <random>

#include "base/log.h"
#include "base/test_files.h"
#include "rows/row_writer.h"

namespace brim::rows {
namespace {

namespace fs = std::filesystem;

// Uses a memory file system if available: these tests sync after every few rows.
fs::path fast_base() { return ::access("/dev/shm", W_OK) == 0 ? fs::path("/dev/shm") : fs::temp_directory_path(); }

struct Job {
  std::vector<std::string> inputs;
  std::string output;
  OutputFormat format = OutputFormat::csv;
  bool resume = false;
  int64_t die_after = -1;  // rows of this run before _exit, to simulate a kill
  std::string model = "vader";
  double checkpoint_seconds = 0;
};

RowOutputOptions output_options(const Job& job) {
  RowOutputOptions options;
  options.resume = job.resume;
  options.checkpoint_seconds = job.checkpoint_seconds;
  options.member_bytes = 3000;
  options.member_rows = 50;
  return options;
}

// Does the same as `brim score --on-error skip`, with a score that depends only on the row. Returns the counters.
std::map<std::string, int64_t> run(const Job& job) {
  RowReaderOptions read;
  read.chunk_bytes = 1000;
  RowReader reader(job.inputs, read);
  RowOutput output(job.output, {job.inputs, job.model, {{"--format", row_format_name(reader.schema().format)}}},
                   output_options(job));
  RowWriterOptions write;
  write.format = job.format;
  RowWriter writer(reader.schema(), write);
  std::map<std::string, int64_t> counters = {{"written", 0}, {"skipped", 0}};
  std::string bytes;
  if (output.resumed()) {
    reader.seek(output.resumed()->position);
    counters = output.resumed()->counters;
  } else {
    writer.header(bytes);
    output.write_header(bytes);
  }
  output.keep_counters(&counters);
  RowChunk chunk;
  int64_t done = 0;
  while (reader.next_chunk(chunk))
    for (size_t i = 0; i < chunk.size(); ++i) {
      if (job.die_after >= 0 && done++ == job.die_after) ::_exit(9);
      bytes.clear();
      if (chunk.error(i) == nullptr) {
        const int64_t row = chunk.first_row + static_cast<int64_t>(i);
        writer.row(bytes, chunk, i, RowResult{row % 3 == 0 ? "pos" : "neg", static_cast<float>(row) / 7});
        ++counters["written"];
      } else {
        ++counters["skipped"];
      }
      output.write_row(bytes, chunk.position_after(i));
    }
  output.commit();
  return counters;
}

// Runs the job in a child process; returns its exit status.
template <class Call>
int in_child(Call&& call) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    try {
      call();
    } catch (const Error& error) {
      ::_exit(exit_code(error.code()));
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Two inputs with quoted newlines, blank lines and bad rows.
std::vector<std::string> make_inputs(const TempDir& dir, const std::string& kind, const std::string& suffix) {
  std::vector<std::string> paths;
  std::mt19937 random(3);
  for (int file = 0; file < 2; ++file) {
    std::string text = kind == "csv" ? "id,text\r\n" : "";
    for (int i = 0; i < 400; ++i) {
      const std::string word(random() % 40, static_cast<char>('a' + i % 26));
      const std::string id = std::to_string(i);
      if (kind == "csv") {
        text += random() % 17 == 0 ? id + "\n" : id + ",\"" + word + (i % 5 == 0 ? "\n" : " ") + "\"\"x\"\"\"\r\n";
        if (i % 31 == 0) text += "\n";
      } else {
        text += random() % 17 == 0 ? "{oops\n" : "{\"id\": " + id + ", \"text\": \"" + word + "\\n\"}\n";
      }
    }
    const fs::path plain = dir / ("in" + std::to_string(file) + "." + kind);
    if (suffix.empty()) {
      put_file(plain, text);
    } else {
      io::AtomicFile packed(plain.string() + suffix);
      auto sink = make_sink(packed, io::compression_of(suffix));
      sink->write(text);
      sink->end_member();
      packed.commit();
    }
    paths.push_back(plain.string() + suffix);
  }
  return paths;
}

std::string unpacked(const std::string& path) {
  auto source = io::open_source(path);
  std::string out, buffer(1000, '\0');
  while (const size_t n = source->read(buffer.data(), buffer.size())) out.append(buffer, 0, n);
  return out;
}

struct Kind {
  std::string in, in_suffix;
  OutputFormat format;
  std::string out;
};

class Resume : public testing::TestWithParam<Kind> {
 protected:
  // The same job with its own output file, for an uninterrupted run.
  Job whole_job() const {
    Job job;
    job.inputs = make_inputs(dir_, GetParam().in, GetParam().in_suffix);
    job.format = GetParam().format;
    job.output = (dir_ / ("whole_" + GetParam().out)).string();
    return job;
  }
  const TempDir dir_{fast_base()};
};
INSTANTIATE_TEST_SUITE_P(RowOutput, Resume,
                         testing::Values(Kind{"csv", "", OutputFormat::csv, "out.csv"},
                                         Kind{"csv", "", OutputFormat::csv, "out.csv.gz"},
                                         Kind{"csv", ".zst", OutputFormat::csv, "out.csv.zst"},
                                         Kind{"jsonl", "", OutputFormat::jsonl, "out.jsonl"},
                                         Kind{"jsonl", ".gz", OutputFormat::jsonl, "out.jsonl.gz"},
                                         Kind{"jsonl", "", OutputFormat::jsonl, "out.jsonl.zst"},
                                         Kind{"csv", ".gz", OutputFormat::jsonl, "out.jsonl"}));

// Kills the run at random rows until it finishes: the file must equal that of a single run, byte for byte.
TEST_P(Resume, ResumesAfterAKillAtAnyRow) {
  Job job = whole_job();
  const auto counters = run(job);
  EXPECT_GT(counters.at("skipped"), 0);
  const std::string expected = get_file(job.output);

  std::mt19937 random(11);
  job.output = (dir_ / GetParam().out).string();
  put_file(job.output, "the old content");
  int resumes = 0;
  for (int round = 0; round < 4; ++round) {
    job.resume = false;
    do {
      job.die_after = static_cast<int64_t>(random() % 400);
      EXPECT_EQ(get_file(job.output), round == 0 ? "the old content" : expected);
      resumes += job.resume;
      const int status = in_child([&] { run(job); });
      job.resume = true;
      ASSERT_TRUE(status == 9 || status == 0) << status;
      if (status == 0) break;
    } while (true);
    ASSERT_EQ(get_file(job.output), expected) << "round " << round;
    EXPECT_FALSE(fs::exists(job.output + ".part"));
    EXPECT_FALSE(fs::exists(job.output + ".part.json"));
  }
  EXPECT_GT(resumes, 4);

  // The counters continue.
  job.resume = false;
  job.die_after = 500;
  EXPECT_EQ(in_child([&] { run(job); }), 9);
  job.resume = true;
  job.die_after = -1;
  EXPECT_EQ(run(job), counters);
}

// Limits the file to a random size: each run fails with cannot_write, keeps its rows, and is resumed later.
TEST_P(Resume, ResumesAfterAFullDiskAtAnyByte) {
  Job job = whole_job();
  run(job);
  const std::string expected = get_file(job.output);
  job.output = (dir_ / GetParam().out).string();
  put_file(job.output, "the old content");
  std::mt19937 random(5);
  for (int round = 0; round < 3; ++round) {
    job.resume = false;
    rlim_t room = 0;
    int status = 0;
    do {
      room += 1 + random() % expected.size() / 2;
      status = in_child([&] {
        ::signal(SIGXFSZ, SIG_IGN);
        const rlimit limit{std::max<rlim_t>(room, 1500), std::max<rlim_t>(room, 1500)};  // leave space for the sidecar
        ::setrlimit(RLIMIT_FSIZE, &limit);
        run(job);
      });
      ASSERT_TRUE(status == 7 || status == 0) << status;
      EXPECT_EQ(get_file(job.output), status == 0 || round > 0 ? expected : "the old content");
      if (room > 8000) {  // rows that fitted are kept
        EXPECT_EQ(fs::exists(job.output + ".part.json"), status != 0);
      }
      job.resume = true;
    } while (status != 0);
  }
}

// An error between rows (a bad row with --on-error stop, Ctrl-C) keeps every row written.
TEST_P(Resume, ResumesAfterAStop) {
  Job job = whole_job();
  run(job);
  const std::string expected = unpacked(job.output);
  job.output = (dir_ / GetParam().out).string();
  job.resume = true;
  {
    RowReader reader(job.inputs, {});
    RowOutput output(job.output, {job.inputs, job.model, {{"--format", row_format_name(reader.schema().format)}}},
                     output_options(job));
    EXPECT_FALSE(output.resumed());
    RowChunk chunk;
    ASSERT_TRUE(reader.next_chunk(chunk));
    RowWriterOptions write;
    write.format = job.format;
    RowWriter writer(reader.schema(), write);
    std::string bytes;
    writer.header(bytes);
    output.write_header(bytes);
    for (size_t i = 0; i < 77; ++i) {
      bytes.clear();
      const int64_t row = static_cast<int64_t>(i);
      if (chunk.error(i) == nullptr)
        writer.row(bytes, chunk, i, RowResult{row % 3 == 0 ? "pos" : "neg", static_cast<float>(row) / 7});
      output.write_row(bytes, chunk.position_after(i));
    }
  }
  const auto state = nlohmann::json::parse(get_file(job.output + ".part.json"));
  EXPECT_EQ(state.at("position").at("rows"), 77);
  EXPECT_EQ(state.at("output_bytes"), fs::file_size(job.output + ".part"));
  run(job);
  EXPECT_EQ(unpacked(job.output), expected);
}

// A job over one small file, killed half way.
Job killed_job(const TempDir& dir) {
  std::string text = "id,text\n";
  for (int i = 0; i < 300; ++i) text += std::to_string(i) + ",some words\n";
  put_file(dir / "in.csv", text);
  Job job;
  job.inputs = {(dir / "in.csv").string()};
  job.output = (dir / "out.csv").string();
  job.die_after = 200;
  EXPECT_EQ(in_child([&] { run(job); }), 9);
  EXPECT_TRUE(fs::exists(job.output + ".part.json"));
  job.die_after = -1;
  job.resume = true;
  return job;
}

TEST(ResumeChecks, RejectsAnotherModelOrOption) {
  TempDir dir(fast_base());
  Job job = killed_job(dir);
  job.model = "finbert";
  const std::string message = error_of(ErrorCode::usage, [&] { run(job); });
  EXPECT_HAS(message, "the model changed from vader to finbert");
  EXPECT_HAS(message, "without `resume`");
  job.model = "vader";
  EXPECT_EQ(option_of_run(job.output, "--format"), "csv");
  EXPECT_EQ(option_of_run(job.output, "device"), "");
  EXPECT_EQ(run(job).at("written"), 300);
  EXPECT_EQ(option_of_run(job.output, "--format"), std::nullopt) << "nothing is left to resume";
  EXPECT_HAS(
      error_of(
          ErrorCode::usage,
          [&] {
            Job again = killed_job(dir);
            RowOutput output(again.output, {again.inputs, "vader", {{"--all-scores", "on"}}}, output_options(again));
          }),
      "--all-scores changed from nothing to on; --format changed from csv to nothing");
}

TEST(ResumeChecks, RejectsAnotherInput) {
  TempDir dir(fast_base());
  Job job = killed_job(dir);
  const std::string text = get_file(dir / "in.csv");
  const auto time = fs::last_write_time(dir / "in.csv");
  put_file(dir / "in.csv", text + "300,more\n");
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { run(job); }),
             "in.csv changed from " + std::to_string(text.size()) + " to ");
  std::string other = text;
  other[100] = 'X';
  put_file(dir / "in.csv", other);
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { run(job); }), "in.csv changed");
  put_file(dir / "in.csv", text);
  fs::last_write_time(dir / "in.csv", time + std::chrono::seconds(5));
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { run(job); }), "was modified");
  fs::last_write_time(dir / "in.csv", time);
  Job both = job;
  both.inputs.push_back(job.inputs[0]);
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { run(both); }), "the number of inputs changed from 1 to 2");
  EXPECT_EQ(run(job).at("written"), 300);
}

TEST(ResumeChecks, RejectsDamagedState) {
  TempDir dir(fast_base());
  Job job = killed_job(dir);
  const std::string state = get_file(job.output + ".part.json");
  for (const std::string& bad : {std::string("{"), std::string(""), std::string("[]"), std::string("{\"format\":2}"),
                                 state.substr(0, state.size() / 2)}) {
    put_file(job.output + ".part.json", bad);
    EXPECT_HAS(error_of(ErrorCode::bad_data, [&] { run(job); }), "out.csv.part.json");
  }
  auto changed = nlohmann::json::parse(state);
  changed["position"]["input"] = 7;
  put_file(job.output + ".part.json", changed.dump());
  EXPECT_HAS(error_of(ErrorCode::bad_data, [&] { run(job); }), "invalid position");
  put_file(job.output + ".part.json", state);
  const std::string part = get_file(job.output + ".part");
  put_file(job.output + ".part", "short");
  EXPECT_HAS(error_of(ErrorCode::cannot_write, [&] { run(job); }), "5 bytes");
  EXPECT_EQ(get_file(job.output + ".part"), "short");  // a rejected resume changes nothing
  put_file(job.output + ".part", part + "half a ro");
  EXPECT_EQ(run(job).at("written"), 300);
}

TEST(ResumeChecks, StartingOverDropsTheOldState) {
  TempDir dir(fast_base());
  Job job = killed_job(dir);
  job.resume = false;
  job.model = "other";
  job.die_after = 0;
  EXPECT_EQ(in_child([&] { run(job); }), 9);
  const auto state = nlohmann::json::parse(get_file(job.output + ".part.json"));
  EXPECT_EQ(state.at("output_bytes"), 0);
  EXPECT_EQ(state.at("run").at("model"), "other");
  job.resume = true;
  job.die_after = -1;
  EXPECT_EQ(run(job).at("written"), 300);
}

TEST(ResumeChecks, PipeInputKeepsTheInterruptedRun) {
  TempDir dir(fast_base());
  const Job job = killed_job(dir);
  const std::string part = get_file(job.output + ".part"), state = get_file(job.output + ".part.json");
  {
    RowOutput output(job.output, {{"-"}, "", {}}, {});
    output.write_row("another's\n", {0, 1, 10, 1});
    output.suspend();
    EXPECT_EQ(get_file(output.kept_rows()), "another's\n");
  }
  EXPECT_EQ(get_file(job.output + ".part"), part);
  EXPECT_EQ(get_file(job.output + ".part.json"), state);
  EXPECT_EQ(run(job).at("written"), 300);
}

// Runs with and without `resume` over files of other programs: rejected, and nothing changes.
class ForeignFiles : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    put_file(dir_ / "in.csv", "id,text\n1,some words\n");
    job_.inputs = {(dir_ / "in.csv").string()};
    job_.output = (dir_ / "out.csv").string();
    job_.resume = GetParam();
  }
  std::string refused() {
    try {
      run(job_);
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == ErrorCode::cannot_write || error.code() == ErrorCode::bad_data);
      return error.what();
    }
    return "not refused";
  }
  const TempDir dir_{fast_base()};
  Job job_;
};
INSTANTIATE_TEST_SUITE_P(RowOutput, ForeignFiles, testing::Bool(),
                         [](const auto& test) { return test.param ? "Resuming" : "Starting"; });

TEST_P(ForeignFiles, KeepsPartWithoutState) {
  put_file(dir_ / "out.csv.part", "foreign");
  const std::string message = refused();
  EXPECT_HAS(message, "out.csv.part: exists without out.csv.part.json");
  EXPECT_HAS(message, "move it away or choose another output");
  EXPECT_EQ(get_file(dir_ / "out.csv.part"), "foreign");
  EXPECT_FALSE(fs::exists(dir_ / "out.csv.part.json"));
}

TEST_P(ForeignFiles, KeepsStateOfAnotherProgram) {
  for (const char* text : {"{\"part\": 1}", "notes", "", "[]", "{\"format\": 2}"})
    for (const bool with_part : {false, true}) {
      put_file(dir_ / "out.csv.part.json", text);
      fs::remove(dir_ / "out.csv.part");
      if (with_part) put_file(dir_ / "out.csv.part", "foreign");
      EXPECT_HAS(refused(), "out.csv.part.json: not the state of an interrupted run");
      EXPECT_EQ(get_file(dir_ / "out.csv.part.json"), text);
      EXPECT_EQ(fs::exists(dir_ / "out.csv.part"), with_part);
    }
}

TEST_P(ForeignFiles, RejectsLinksAndFifos) {
  const Job killed = killed_job(dir_);
  job_.inputs = killed.inputs;
  const std::string state = get_file(dir_ / "out.csv.part.json"), rows = get_file(dir_ / "out.csv.part");
  for (const char* name : {"out.csv.part", "out.csv.part.json"}) {
    SCOPED_TRACE(name);
    const std::string content = get_file(dir_ / name);
    put_file(dir_ / "precious", content);
    const auto replace_by = [&](const auto& make, const char* why) {
      fs::remove(dir_ / name);
      make();
      EXPECT_HAS(refused(), std::string(name) + ": " + why);
      EXPECT_EQ(get_file(dir_ / "precious"), content);
    };
    replace_by([&] { fs::create_hard_link(dir_ / "precious", dir_ / name); }, "has other hard links");
    replace_by([&] { fs::create_symlink(dir_ / "precious", dir_ / name); }, "is a symbolic link");
    replace_by([&] { ASSERT_EQ(::mkfifo((dir_ / name).c_str(), 0600), 0); }, "is not a regular file");
    fs::remove(dir_ / name);
    put_file(dir_ / name, content);
  }
  EXPECT_EQ(get_file(dir_ / "out.csv.part.json"), state);
  EXPECT_EQ(run(job_).at("written"), 300);
}

TEST_P(ForeignFiles, KeepsPartShorterThanItsState) {
  const Job killed = killed_job(dir_);
  job_.inputs = killed.inputs;
  put_file(dir_ / "out.csv.part", "foreign");
  EXPECT_HAS(refused(), "out.csv.part: has 7 bytes");
  EXPECT_EQ(get_file(dir_ / "out.csv.part"), "foreign");
  fs::remove(dir_ / "out.csv.part");
  EXPECT_EQ(run(job_).at("written"), 300);
}

// A .part left by a kill before the first checkpoint is taken over by the next run.
TEST_P(ForeignFiles, TakesOverPartOfARunKilledBeforeItsFirstCheckpoint) {
  Job first = job_;
  first.resume = false;
  first.die_after = 0;
  first.model = "other";
  EXPECT_EQ(in_child([&] { run(first); }), 9);
  EXPECT_TRUE(fs::exists(dir_ / "out.csv.part"));
  EXPECT_EQ(run(job_).at("written"), 1);
  EXPECT_FALSE(fs::exists(dir_ / "out.csv.part.json"));
}

TEST(ResumeChecks, AllowsAnOptionToChangeFromOneValue) {
  TempDir dir(fast_base());
  const std::string in = (dir / "in.txt").string(), out = (dir / "out.csv").string();
  put_file(in, "a\nb\n");
  const auto go_on = [&](const std::string& value, bool resume) {
    RowOutputOptions options;
    options.resume = resume;
    RowOutput output(out, {{in}, "m", {{"on-error", value}}, {}, {{"on-error", "stop"}}}, options);
    output.write_row("row\n", {0, 1, 2, 1});
  };
  go_on("stop", false);
  go_on("skip", true);
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { go_on("null", true); }), "on-error changed from skip to null");
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { go_on("stop", true); }), "on-error changed from skip to stop");
}

TEST(ResumeChecks, RejectsPipes) {
  TempDir dir(fast_base());
  RowOutputOptions options;
  options.resume = true;
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { RowOutput("-", {}, options); }), "stdout");
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { RowOutput((dir / "o").string(), {{"-"}, "", {}}, options); }), "stdin");
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { RowOutput("/dev/null", {}, options); }), "regular file");
}

TEST(RowOutput, ReportsAFullDevice) {
  RowOutput output("/dev/full", {}, {});
  EXPECT_HAS(error_of(ErrorCode::cannot_write,
                      [&] {
                        output.write_row("row\n", {0, 1, 4, 1});
                        output.commit();
                      }),
             "/dev/full");
}

TEST(RowOutput, RejectsASecondWriter) {
  TempDir dir(fast_base());
  put_file(dir / "in.txt", "a\n");
  const RunIdentity identity = {{(dir / "in.txt").string()}, "m", {}};
  RowOutput first((dir / "out.csv").string(), identity, {});
  const std::string state = get_file(dir / "out.csv.part.json");
  EXPECT_HAS(error_of(ErrorCode::cannot_write,
                      [&] {
                        RowOutput((dir / "out.csv").string(), {identity.inputs, "other", {}}, {});
                      }),
             "another process");
  EXPECT_EQ(get_file(dir / "out.csv.part.json"), state);
  first.commit();
  EXPECT_EQ(get_file(dir / "out.csv"), "");
}

TEST(RowOutput, LeavesNoFileIfNothingWasWritten) {
  TempDir dir(fast_base());
  {
    RowOutput output((dir / "out.csv").string(), {}, {});
    output.write_header("text,label\n");
  }
  EXPECT_TRUE(fs::is_empty(dir.path()));
  put_file(dir / "in.txt", "a\n");
  { RowOutput resumable((dir / "out.csv").string(), {{(dir / "in.txt").string()}, "m", {}}, {}); }
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator()), 1) << "only the input";
  EXPECT_HAS(error_of(ErrorCode::cannot_write, [&] { RowOutput((dir / "none" / "out.csv").string(), {}, {}); }),
             "out.csv");
}

TEST(RowOutput, KeepsASymbolicLink) {
  TempDir dir(fast_base());
  put_file(dir / "real.csv", "old");
  fs::create_symlink(dir / "real.csv", dir / "link.csv");
  {
    RowOutput output((dir / "link.csv").string(), {}, {});
    output.write_row("new\n", {0, 1, 4, 1});
    EXPECT_EQ(get_file(dir / "real.csv"), "old");
    output.commit();
  }
  EXPECT_TRUE(fs::is_symlink(dir / "link.csv"));
  EXPECT_EQ(get_file(dir / "real.csv"), "new\n");
}

// Rows from stdin cannot be read again, so a failed run keeps them.
TEST(RowOutput, KeepsRowsFromStdin) {
  TempDir dir(fast_base());
  fs::path kept;
  {
    RowOutput output((dir / "out.csv").string(), {{"-"}, "m", {}}, {});
    output.write_row("row\n", {0, 1, 4, 1});
    output.suspend();
    kept = output.kept_rows();
  }
  EXPECT_TRUE(kept.filename().string().starts_with("out.csv.")) << kept;
  EXPECT_EQ(get_file(kept), "row\n");
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator()), 1);
}

}  // namespace
}  // namespace brim::rows
