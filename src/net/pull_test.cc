// SPDX-License-Identifier: Apache-2.0
// File selection and the layout of the cache. tests/pull.py covers transfers with a hub on the loopback interface.
#include "net/pull.h"

#include <gtest/gtest.h>

#include "base/test_files.h"
#include "net/hub_cache.h"

namespace brim::net {
namespace {

class SelectFilesTest : public testing::Test {
 protected:
  std::vector<std::string> selected(const std::vector<std::string>& names) {
    HubListing listing;
    for (const std::string& name : names) listing.files.push_back({name, std::string(40, 'a'), 1});
    std::vector<std::string> result;
    for (const HubFile& file : select_files(listing, options_)) result.push_back(file.name);
    return result;
  }
  std::string refused(const std::vector<std::string>& names) {
    return error_of(ErrorCode::usage, [&] { selected(names); });
  }
  PullOptions options_{.repository = "org/name"};
  using Names = std::vector<std::string>;
};

TEST_F(SelectFilesTest, PrefersSafetensorsAndSkipsTheRest) {
  EXPECT_EQ(selected({"README.md", "config.json", "model.safetensors", "onnx/model.onnx", "pytorch_model.bin",
                      "modeling.py", "tokenizer.json", "1_Pooling/config.json", "runs/config.json", "spm.model"}),
            (Names{"config.json", "tokenizer.json", "1_Pooling/config.json", "spm.model", "model.safetensors"}));
  EXPECT_EQ(selected({"config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                      "model.safetensors.index.json"})
                .size(),
            4u);
}

TEST_F(SelectFilesTest, TakesPicklesOnRequestOnly) {
  const Names files = {"config.json", "pytorch_model.bin"};
  EXPECT_HAS(refused(files), "`brim pull allow_pickle=true`");
  options_.allow_pickle = true;
  EXPECT_EQ(selected(files), files);
  EXPECT_EQ(selected({"config.json", "model.safetensors", "pytorch_model.bin"}),
            (Names{"config.json", "model.safetensors"}));
}

TEST_F(SelectFilesTest, FollowsIncludePatternsButNeverTakesCode) {
  options_.include = {"*.md", "onnx/*", "*.py", "*.bin"};
  EXPECT_EQ(selected({"README.md", "onnx/model.onnx", "modeling.py", "pytorch_model.bin", "config.json"}),
            (Names{"README.md", "onnx/model.onnx"}));
  options_.include = {"*.gguf"};
  EXPECT_HAS(refused({"config.json"}), "no file matches `include` *.gguf");
}

TEST_F(SelectFilesTest, RejectsRepositoriesWithoutAModel) {
  EXPECT_HAS(refused({"README.md", "data.csv"}), "no config.json");
  EXPECT_HAS(refused({"config.json", "model.onnx"}), "no weights that Brim can read");
}

TEST(HubCacheTest, LinksFilesToBlobsAsHuggingFaceDoes) {
  const TempDir dir;
  const HubCache cache(dir.path(), "org/name");
  cache.create_directories();
  put_file(cache.blob("e1"), "text");
  const std::string commit(40, 'c');
  cache.link(commit, "1_Pooling/config.json", "e1");
  const auto link = dir.path() / "models--org--name/snapshots" / commit / "1_Pooling/config.json";
  EXPECT_EQ(std::filesystem::read_symlink(link), "../../../blobs/e1");
  EXPECT_EQ(get_file(link), "text");
  cache.link(commit, "1_Pooling/config.json", "e1");  // again
  EXPECT_EQ(get_file(link), "text");
  cache.write_ref("refs/pr/1", commit);
  EXPECT_EQ(get_file(dir.path() / "models--org--name/refs/refs/pr/1"), commit);
}

TEST(FileLockTest, WaitsForAnotherProcessAndCanBeInterrupted) {
  const TempDir dir;
  const FileLock first(dir / "lock", nullptr, [] { FAIL() << "the lock is free"; });
  std::atomic<bool> stop{false};
  int waits = 0;
  EXPECT_HAS(error_of(ErrorCode::interrupted,
                      [&] {
                        const FileLock second(dir / "lock", &stop, [&] {
                          ++waits;
                          stop = true;
                        });
                      }),
             "interrupted");
  EXPECT_EQ(waits, 1);
}

}  // namespace
}  // namespace brim::net
