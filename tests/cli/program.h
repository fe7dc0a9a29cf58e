// SPDX-License-Identifier: Apache-2.0
// Runs the built program in a folder of its own and looks at what a user would see: exit code, stdout, stderr, files.
// Models are the goldens of tests/data/models with a vocabulary of made-up words (w5 … w95), so a run takes
// milliseconds.
#pragma once
#include <gtest/gtest.h>
#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace brim {

// A sanitizer's own memory is no part of any plan.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kInstrumented = true;
#else
constexpr bool kInstrumented = false;
#endif

struct Outcome {
  int code = -1;      // exit code
  int signal = 0;     // that ended it, if one did
  long peak_kib = 0;  // largest resident set
  std::string out, err;
};

struct Surroundings {
  std::string input;                 // given on stdin
  std::function<void(int fd)> feed;  // or written to it through a pipe, for as long as it takes
  std::vector<std::pair<std::string, std::string>> environment;  // added to an otherwise clean one
  std::string stdout_path;                                       // instead of being collected
  int64_t file_limit = -1;                                       // RLIMIT_FSIZE
  int64_t address_limit = -1;                                    // RLIMIT_AS
};

// A program that has been started and may be signalled.
class Running {
 public:
  Running(const std::filesystem::path& folder, const std::vector<std::string>& arguments, const Surroundings& around);
  ~Running();
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
  void signal(int number) const;
  bool ended();  // without waiting
  bool ends_within(double seconds);
  Outcome wait();

 private:
  std::filesystem::path out_, err_;
  pid_t pid_ = 0;
  int feed_fd_ = -1;
  std::function<void(int)> feed_;
  bool reaped_ = false;
  Outcome outcome_;
};

// A folder that goes away, with models in it.
class ProgramTest : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  Outcome brim(const std::vector<std::string>& arguments, const Surroundings& around = {}) const;
  // As brim(), where it must succeed: the answer is stdout.
  std::string must(const std::vector<std::string>& arguments, const Surroundings& around = {}) const;
  // Where it must fail with `code` and say each of `parts` on stderr.
  Outcome refused(int code, const std::vector<std::string>& parts, const std::vector<std::string>& arguments,
                  const Surroundings& around = {}) const;

  std::filesystem::path put(const std::string& name, const std::string& bytes) const;
  std::string get(const std::string& name) const;
  // The same of a file that a running program makes and removes: empty while there is none.
  std::string glimpse(const std::string& name) const;
  bool exists(const std::string& name) const { return std::filesystem::exists(folder_ / name); }
  // The bytes of a .gz or .zst file, by the command a user would take.
  std::string unpacked(const std::string& name) const;
  nlohmann::json json_of(const std::string& name) const { return nlohmann::json::parse(get(name)); }

  // Copies a golden model to `name` and gives it the vocabulary.
  void make_model(const std::string& golden, const std::string& name) const;
  // Moves the tensors of model.safetensors to odd addresses: the header becomes one blank longer.
  void misalign_weights(const std::string& model) const;
  void edit_config(const std::string& model, const std::function<void(nlohmann::json&)>& change) const;

  std::filesystem::path folder_;
};

// `rows` lines of made-up words, the same for the same seed; each begins with its number, an unknown word to the model.
std::string made_up_lines(size_t rows, unsigned seed = 1, size_t longest = 12);
std::vector<std::string> lines_of(const std::string& text);
std::vector<nlohmann::json> json_lines(const std::string& text);

}  // namespace brim
