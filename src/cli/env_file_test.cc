// SPDX-License-Identifier: Apache-2.0
#include "cli/env_file.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>

#include "base/error.h"
#include "base/test_files.h"

namespace brim::cli {
namespace {

class EnvFile : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const EnvKey& key : env_keys()) ::unsetenv(key.name);
    for (const char* name : {"BRIM_ENV_FILE", "BRIM_DEVICE"}) ::unsetenv(name);
  }
  void TearDown() override { SetUp(); }
  void write(const std::string& text) { std::ofstream(path_, std::ios::binary) << text; }
  std::string failure(const std::string& text) {
    write(text);
    try {
      load_env_file(path_, kFlags);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::usage);
      return e.what();
    }
    return "";
  }
  static inline const std::vector<std::string> kFlags = {"BRIM_DEVICE", "BRIM_MEMORY_LIMIT", "BRIM_MODE", "BRIM_MODEL",
                                                         "BRIM_PRECISION"};
  const TempDir temp_;
  const std::string path_ = temp_ / "env";
};

TEST_F(EnvFile, ReadsShellAndContainerSyntax) {
  const auto entries = parse_env_text(
      "\xEF\xBB\xBF# a comment\n\nA=1\r\nexport B = two words  # why\nC='x # \\n y'\nD=\"a \\\"b\\\"\\n\\tc\" # "
      "d\nE=\nF=a#b=c\n  G=\"\"",
      "f");
  const std::vector<std::pair<std::string, std::string>> expected = {
      {"A", "1"}, {"B", "two words"}, {"C", "x # \\n y"}, {"D", "a \"b\"\n\tc"}, {"E", ""}, {"F", "a#b=c"}, {"G", ""}};
  ASSERT_EQ(entries.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(entries[i].name, expected[i].first);
    EXPECT_EQ(entries[i].value, expected[i].second);
  }
  EXPECT_EQ(entries[0].line, 3);
}

TEST_F(EnvFile, ErrorsNameLineAndValue) {
  EXPECT_NE(failure("A=1\nnonsense\n").find(":2: nonsense: missing '='"), std::string::npos);
  EXPECT_NE(failure("1A=1\n").find(":1: 1A=1"), std::string::npos);
  EXPECT_NE(failure("=1\n").find(":1: =1"), std::string::npos);
  EXPECT_NE(failure("A='x\n").find("quote"), std::string::npos);
  EXPECT_NE(failure("A=\"x\" y\n").find("quote"), std::string::npos);
  EXPECT_NE(failure(std::string("A=\0x\n", 5)).find("zero byte"), std::string::npos);
  EXPECT_NE(failure("\n\nGPU_MAX_TEMPERATURE_C=hot\n").find(":3: GPU_MAX_TEMPERATURE_C=hot: must be a number"),
            std::string::npos);
  for (const char* line : {"GPU_MAX_UTILIZATION_WARN=900", "GPU_MAX_UTILIZATION_WARN=most"})
    EXPECT_NE(failure(std::string(line) + "\n").find(std::string(line) + ": must be a percentage from 0 to 100"),
              std::string::npos);
  for (const char* line : {"SENTIMENT_BATCH_SIZE=ten", "SENTIMENT_BATCH_SIZE=0", "SENTIMENT_BATCH_SIZE=2.5"})
    EXPECT_NE(failure(std::string(line) + "\n").find(std::string(line) + ": must be a whole number from 1 to 100,000"),
              std::string::npos);
  EXPECT_NE(failure("GPU_MIN_FREE_VRAM_MB=-5\n").find("-5"), std::string::npos);
  EXPECT_NE(failure("SENTIMENT_BATCH_SIZE=nan\n").find("nan"), std::string::npos);
  EXPECT_NE(failure("GPU_MEMORY_CLEANUP=maybe\n").find("maybe"), std::string::npos);
  EXPECT_THROW(load_env_file("/no/such/file", {}), Error);
  EXPECT_THROW(load_env_file("/", {}), Error);
}

TEST_F(EnvFile, EnvironmentAndLastLineTakePrecedence) {
  ::setenv("GPU_MAX_TEMPERATURE_C", "70", 1);
  write("GPU_MAX_TEMPERATURE_C=80\nGPU_MAX_UTILIZATION_WARN=50\nGPU_MAX_UTILIZATION_WARN=60\nBRIM_DEVICE=cpu\n");
  load_env_file(path_, kFlags);
  EXPECT_EQ(env_number("GPU_MAX_TEMPERATURE_C", 85), 70);
  EXPECT_EQ(env_number("GPU_MAX_UTILIZATION_WARN", 90), 60);
  EXPECT_EQ(env_number("GPU_MIN_FREE_VRAM_MB", 500), 500);
  EXPECT_EQ(env("BRIM_DEVICE"), "cpu");
  ::setenv("GPU_MAX_TEMPERATURE_C", "warm", 1);
  EXPECT_THROW(env_number("GPU_MAX_TEMPERATURE_C", 85), Error);
}

TEST_F(EnvFile, KnowsNewsBotKeysAndExplainsThoseWithoutEffect) {
  const std::set<std::string> expected = {
      "SENTIMENT_MODEL_NAME",     "SENTIMENT_BATCH_SIZE",       "GPU_MEMORY_CLEANUP",     "GPU_PROFILING_ENABLED",
      "GPU_MAX_UTILIZATION_WARN", "GPU_MAX_TEMPERATURE_C",      "GPU_MIN_FREE_VRAM_MB",   "FEATURE_CUDA_STREAMS",
      "SENTIMENT_MODEL_OPEN",     "FEATURE_ADAPTIVE_SENTIMENT", "SENTIMENT_MODEL_CLOSED", "MARKET_STATUS_OVERRIDE"};
  std::set<std::string> known;
  for (const EnvKey& key : env_keys()) known.insert(key.name);
  EXPECT_EQ(known, expected);
  EXPECT_TRUE(env_notes().empty());
  write("SENTIMENT_MODEL_NAME=finbert\nGPU_MEMORY_CLEANUP=1\nMARKET_STATUS_OVERRIDE=open\n");
  load_env_file(path_, kFlags);
  const auto notes = env_notes();
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_NE(notes[0].find("GPU_MEMORY_CLEANUP=1: ignored: "), std::string::npos);
}

TEST_F(EnvFile, SuggestsTheNameOfAMisspeltVariable) {
  const auto said = [&](const std::string& text) -> std::string {
    std::string refused = failure(text);
    if (!refused.empty()) return refused.substr(path_.size());
    const auto notes = load_env_file(path_, kFlags);
    return notes.empty() ? "" : notes[0].substr(path_.size());
  };
  EXPECT_EQ(said("A=1\nBRIM_MEMORY_LIMT=6GiB\n"),
            ":2: unknown variable BRIM_MEMORY_LIMT (did you mean BRIM_MEMORY_LIMIT?)");
  EXPECT_EQ(said("BRIM_MODLE=tiny\n"), ":1: unknown variable BRIM_MODLE (did you mean BRIM_MODEL?)");
  EXPECT_EQ(said("BRIM_DEBGU=1\n"), ":1: unknown variable BRIM_DEBGU (did you mean BRIM_DEBUG?)");
  EXPECT_EQ(said("BRIM_DEVICE=cpu\nPRECISION=x\nBRIMSTONE=1\nHOME=/\nSENTIMENT_SOURCE=x\nGPU_MAX_POWER=9\n"), "");
  EXPECT_EQ(said("HF_TOKEN=hf_x\n"), ":1: HF_TOKEN is ignored in a file; set it in the environment");
  EXPECT_EQ(said("HF_ENDPOINT=https://evil\n"), ":1: HF_ENDPOINT is ignored in a file; set it in the environment");
  EXPECT_EQ(std::getenv("HF_ENDPOINT"), nullptr);
  EXPECT_EQ(said("BRIM_Q=1\n"), ":1: unknown variable BRIM_Q; it is ignored");
  EXPECT_EQ(said("\nSENTIMENT_MODLE_NAME=finbert\n"),
            ":2: unknown variable SENTIMENT_MODLE_NAME (did you mean SENTIMENT_MODEL_NAME?); it is ignored");
  EXPECT_EQ(said("gpu_max_temperature_c=70\n"),
            ":1: unknown variable gpu_max_temperature_c (did you mean GPU_MAX_TEMPERATURE_C?); it is ignored");
}

TEST_F(EnvFile, RejectsVariablesThatLoadCodeOrMoveState) {
  for (const char* name : {"BRIM_NVML_LIBRARY", "BRIM_CUBLASLT", "BRIM_ENV_FILE", "BRIM_CACHE"})
    EXPECT_EQ(failure(std::string("A=1\n") + name + "=./evil.so\n"),
              path_ + ":2: " + name + " cannot be set in a file; set it in the environment");
}

TEST_F(EnvFile, KnowsVariablesOfCommandsThatAreNotBuilt) {
  write("BRIM_MAX_CONCURRENT_REQUESTS=9\n");
  EXPECT_TRUE(load_env_file(path_, {"BRIM_MAX_CONCURRENT_REQUEST"}).empty());
  ::setenv("BRIM_MAX_QUEUE_MS", "9", 1);
  EXPECT_TRUE(misspelt_environment({"BRIM_MAX_QUEUE_M"}).empty());
  ::unsetenv("BRIM_MAX_QUEUE_MS");
}

TEST_F(EnvFile, RejectsUnsafeFlagsByName) {
  const std::vector<std::string> flags = {"BRIM_OUTPUT", "BRIM_LISTEN", "BRIM_STATE_DIR", "BRIM_UNDECIDED"};
  const auto refusal = [&](const std::string& text) {
    write(text);
    return error_of(ErrorCode::usage, [&] { load_env_file(path_, flags); });
  };
  EXPECT_EQ(refusal("BRIM_OUTPUT=/etc/passwd\n"),
            path_ + ":1: BRIM_OUTPUT cannot be set in a file; use --output or set it in the environment");
  EXPECT_EQ(refusal("\nBRIM_LISTEN=0.0.0.0:80\n"),
            path_ + ":2: BRIM_LISTEN cannot be set in a file; use --listen or set it in the environment");
  EXPECT_HAS(refusal("BRIM_STATE_DIR=/tmp\n"), "use --state-dir");
  EXPECT_HAS(refusal("BRIM_UNDECIDED=1\n"), "use --undecided");
  EXPECT_EQ(std::getenv("BRIM_OUTPUT"), nullptr);
  for (const std::string_view name : variables_not_from_file()) EXPECT_FALSE(taken_from_file(name)) << name;
  const auto refused = variables_not_from_file();
  for (const std::string_view name : program_variables())
    EXPECT_NE(taken_from_file(name), std::find(refused.begin(), refused.end(), name) != refused.end()) << name;
}

TEST_F(EnvFile, FileKeysAreSeparateFromTheEnvironment) {
  ::setenv("SENTIMENT_MODEL_NAME", "vader", 1);
  write("GPU_MAX_TEMPERATURE_C=80\nSENTIMENT_BATCH_SIZE=\n");
  load_env_file(path_, kFlags);
  EXPECT_EQ(env_file_value("SENTIMENT_MODEL_NAME"), std::nullopt);
  EXPECT_EQ(unused_keys_note("score", true), path_ + ": not used by brim score: GPU_MAX_TEMPERATURE_C");
  write("SENTIMENT_MODEL_NAME=finbert\nSENTIMENT_MODEL_NAME=roberta\n");
  load_env_file(path_, kFlags);
  EXPECT_EQ(env_file_value("SENTIMENT_MODEL_NAME"), "roberta");
  EXPECT_EQ(unused_keys_note("score", true), "");
  EXPECT_EQ(unused_keys_note("embed", false), path_ + ": not used by brim embed: SENTIMENT_MODEL_NAME");
}

TEST_F(EnvFile, IgnoresVariablesOfOtherPrograms) {
  for (const char* name : {"LD_PRELOAD", "LD_LIBRARY_PATH", "PATH_OF_OTHERS", "NVTX_INJECTION64_PATH"}) {
    const char* before = std::getenv(name);
    const std::string was = before != nullptr ? before : "";
    EXPECT_EQ(failure(std::string(name) + "=./evil.so\nCUDA_VISIBLE_DEVICES=\n"), "");
    const char* after = std::getenv(name);
    EXPECT_EQ(after != nullptr ? after : "", was) << name;
  }
}

// Runs in the source root: every variable that the program reads must be a known name.
TEST_F(EnvFile, KnowsEveryVariableThatTheProgramReads) {
  const std::regex read("env(_flag)?\\(\"(BRIM_[A-Z_]+)\"\\)");
  std::set<std::string> known(program_variables().begin(), program_variables().end()), found;
  for (const auto& file : std::filesystem::recursive_directory_iterator("src")) {
    const std::string name = file.path().filename().string();
    if (!file.is_regular_file() || std::regex_search(name, std::regex("test|stand_in|golden"))) continue;
    const std::string text = get_file(file.path());
    for (std::sregex_iterator at(text.begin(), text.end(), read), end; at != end; ++at) found.insert((*at)[2]);
  }
  EXPECT_EQ(found, known);
}

TEST_F(EnvFile, FindsTheFileAmongTheArguments) {
  const auto found = [](std::vector<const char*> args) {
    return env_file_of(static_cast<int>(args.size()), args.data());
  };
  EXPECT_EQ(found({"brim", "score", "x"}), "");
  EXPECT_EQ(found({"brim", "--env-file", "a", "score"}), "a");
  EXPECT_EQ(found({"brim", "score", "--env-file=b"}), "b");
  EXPECT_EQ(found({"brim", "doctor", "--", "brim", "--env-file", "c"}), "");
  ::setenv("BRIM_ENV_FILE", "d", 1);
  EXPECT_EQ(found({"brim", "score"}), "d");
  EXPECT_EQ(found({"brim", "--env-file", "a"}), "a");
}

}  // namespace
}  // namespace brim::cli
