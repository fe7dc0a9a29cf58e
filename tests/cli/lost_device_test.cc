// SPDX-License-Identifier: Apache-2.0
// A GPU that fails in the middle of a file: the message contains the op, the exit code is 6, the partial output is kept
// and --resume completes it.
#include <fmt/format.h>

#include "cli/program.h"
#include "device/cuda/testing.h"

namespace brim {
namespace {

class LostDevice : public ProgramTest {
 protected:
  static constexpr size_t kRows = 60'000;
  Surroundings failing_after(int products) const {
    return {.environment = {{"BRIM_CUBLASLT", BRIM_FAILING_CUBLASLT},
                            {"BRIM_TEST_GOOD_PRODUCTS", std::to_string(products)}}};
  }
  std::vector<std::string> score(const std::string& output, std::vector<std::string> more = {}) const {
    std::vector<std::string> all = {"score", "in.txt",      "--model", "tiny", "--device",
                                    "cuda",  "--precision", "fp32",    "-q",   "--checkpoint-seconds",
                                    "0",     "-o",          output};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  // Without scores, whose last bits depend on the batch composition, which differs in a resumed run.
  static std::vector<std::string> labels(const std::string& csv) {
    std::vector<std::string> rows = lines_of(csv);
    for (std::string& row : rows) row.resize(std::min(row.size(), row.rfind(',')));
    return rows;
  }
};

TEST_F(LostDevice, ExitsWithSixAndResumes) {
  BRIM_NEEDS_GPU();
  put("in.txt", made_up_lines(kRows));
  make_model("bert_sequence", "tiny");
  must(score("whole.csv"));
  // Increase the number of good products until a run fails in the middle.
  bool met_in_the_middle = false;
  for (int products = 200; products < 100'000 && !met_in_the_middle; products = products * 3 / 2) {
    std::filesystem::remove(folder_ / "o.csv.part");
    std::filesystem::remove(folder_ / "o.csv.part.json");
    const Outcome got = brim(score("o.csv"), failing_after(products));
    ASSERT_EQ(got.code, 6) << products << " products: " << got.err;
    EXPECT_NE(got.err.find("linear"), std::string::npos) << got.err;
    EXPECT_FALSE(exists("o.csv"));
    if (!exists("o.csv.part.json")) continue;
    const auto rows = json_of("o.csv.part.json").at("position").at("rows").get<int64_t>();
    if (rows == 0 || rows >= static_cast<int64_t>(kRows)) continue;
    met_in_the_middle = true;
    must(score("o.csv", {"--resume"}));
    EXPECT_EQ(labels(get("o.csv")), labels(get("whole.csv"))) << "failed after row " << rows;
  }
  EXPECT_TRUE(met_in_the_middle);
}

TEST_F(LostDevice, ReportsCudaVersionAndLoadedLibrary) {
  EXPECT_NE(must({"--version"}).find(" (CUDA 1"), std::string::npos);
  BRIM_NEEDS_GPU();
  put("in.txt", made_up_lines(kRows));
  make_model("bert_sequence", "tiny");
  const Outcome got = brim(score("o.csv"), {.environment = {{"BRIM_DEBUG", "1"}}});
  EXPECT_EQ(got.code, 0) << got.err;
  EXPECT_NE(got.err.find("libcublasLt.so."), std::string::npos) << got.err;
}

// Algorithms that compute nothing are the fastest; the tuner must not select them.
TEST_F(LostDevice, TuningRejectsAlgorithmWithWrongResult) {
  BRIM_NEEDS_GPU();
  make_model("bert_sequence", "tiny");
  const Outcome got =
      brim({"models", "tune", "--model", "tiny", "--device", "cuda", "--precision", "fp32", "--seconds", "0.05"},
           {.environment = {{"BRIM_CUBLASLT", BRIM_FAILING_CUBLASLT},
                            {"BRIM_TEST_ONE_ALGORITHM", "1"},
                            {"BRIM_CACHE", (folder_ / "cache").string()}}});
  EXPECT_EQ(got.code, 0) << got.err;
  EXPECT_NE(got.err.find("rejected an algorithm"), std::string::npos) << got.err << got.out;
}

}  // namespace
}  // namespace brim
