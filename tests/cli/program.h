// SPDX-License-Identifier: Apache-2.0
// Runs the program in a temporary folder and checks exit code, stdout, stderr and files. Models are the goldens of
// tests/data/models with a vocabulary of synthetic words (w5 … w95), so that a run takes milliseconds.
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

// Plans do not include the memory overhead of sanitizers.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kInstrumented = true;
#else
constexpr bool kInstrumented = false;
#endif

struct Outcome {
  int code = -1;      // exit code
  int signal = 0;     // that terminated it, or 0
  long peak_kib = 0;  // largest resident set
  std::string out, err;
};

struct Surroundings {
  std::string input;                                             // stdin
  std::function<void(int fd)> feed;                              // or writes stdin through a pipe
  std::vector<std::pair<std::string, std::string>> environment;  // added to a clean environment
  std::string stdout_path;                                       // instead of being collected
  int64_t file_limit = -1;                                       // RLIMIT_FSIZE
  int64_t address_limit = -1;                                    // RLIMIT_AS
};

// A running program.
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

// Test fixture with a temporary folder that contains models.
class ProgramTest : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  Outcome brim(const std::vector<std::string>& arguments, const Surroundings& around = {}) const;
  // Like brim(), but must succeed; returns stdout.
  std::string must(const std::vector<std::string>& arguments, const Surroundings& around = {}) const;
  // Must fail with `code` and print each of `parts` on stderr.
  Outcome refused(int code, const std::vector<std::string>& parts, const std::vector<std::string>& arguments,
                  const Surroundings& around = {}) const;

  std::filesystem::path put(const std::string& name, const std::string& bytes) const;
  std::string get(const std::string& name) const;
  // Like get(), but returns an empty string if the file does not exist.
  std::string glimpse(const std::string& name) const;
  bool exists(const std::string& name) const { return std::filesystem::exists(folder_ / name); }
  // Content of a .gz or .zst file, decompressed with the command line tool.
  std::string unpacked(const std::string& name) const;
  nlohmann::json json_of(const std::string& name) const { return nlohmann::json::parse(get(name)); }

  // Copies a golden model to `name` and gives it the vocabulary.
  void make_model(const std::string& golden, const std::string& name) const;
  // Moves the tensors of model.safetensors to odd addresses by extending the header by one space.
  void misalign_weights(const std::string& model) const;
  void edit_config(const std::string& model, const std::function<void(nlohmann::json&)>& change) const;

  std::filesystem::path folder_;
};

// `rows` lines of synthetic words, determined by the seed; each starts with its number, which is not in the vocabulary.
std::string made_up_lines(size_t rows, unsigned seed = 1, size_t longest = 12);
std::vector<std::string> lines_of(const std::string& text);
std::vector<nlohmann::json> json_lines(const std::string& text);

}  // namespace brim
