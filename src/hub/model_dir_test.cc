// SPDX-License-Identifier: Apache-2.0
#include "hub/model_dir.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "base/test_files.h"
#include "hub/model_download.h"

namespace brim::hub {
namespace {

namespace fs = std::filesystem;

class ModelDir : public testing::Test {
 protected:
  ModelDir() : search_path{{dir / "beside", dir / "more"}, dir / "hub"} {}

  void put_hub(const std::string& folder, const std::string& commit, bool with_ref = true) {
    put_file(search_path.hub / folder / "snapshots" / commit / "config.json", "{}");
    if (with_ref) put_file(search_path.hub / folder / "refs/main", commit);
  }
  std::string refused(const std::string& name) {
    return error_of(ErrorCode::usage, [&] { resolve_model(name, search_path); });
  }

  TempDir dir;
  ModelSearchPath search_path;
};

TEST_F(ModelDir, AcceptsADirectory) {
  fs::create_directory(dir / "here");
  EXPECT_EQ(resolve_model((dir / "here").string(), search_path), dir / "here");
}

TEST_F(ModelDir, SearchesRootsInOrderThenTheHub) {
  put_hub("models--ProsusAI--finbert", "abc123");
  EXPECT_EQ(resolve_model("finbert", search_path), search_path.hub / "models--ProsusAI--finbert/snapshots/abc123");
  EXPECT_EQ(resolve_model("ProsusAI/finbert", search_path),
            search_path.hub / "models--ProsusAI--finbert/snapshots/abc123");
  put_file(dir / "more/finbert/config.json", "{}");
  EXPECT_EQ(resolve_model("finbert", search_path), dir / "more/finbert");
  put_file(dir / "beside/ProsusAI/finbert/config.json", "{}");
  EXPECT_EQ(resolve_model("finbert", search_path), dir / "beside/ProsusAI/finbert");
}

TEST_F(ModelDir, FindsShortNamesCaseInsensitively) {
  put_hub("models--ProsusAI--finbert", "abc123");
  EXPECT_EQ(resolve_model("FinBERT", search_path).filename(), "abc123");
  EXPECT_TRUE(names_vader("VADER"));
  EXPECT_FALSE(names_vader("vader2"));
}

TEST_F(ModelDir, FindsBothDistilbertNames) {
  put_hub("models--distilbert-base-uncased-finetuned-sst-2-english", "1");
  EXPECT_TRUE(resolve_model("distilbert", search_path).string().find("models--distilbert-base") != std::string::npos);
  put_hub("models--distilbert--distilbert-base-uncased-finetuned-sst-2-english", "2");
  EXPECT_TRUE(resolve_model("distilbert", search_path).string().find("models--distilbert--distilbert") !=
              std::string::npos);
  put_hub("models--cardiffnlp--twitter-roberta-base-sentiment-latest", "3");
  EXPECT_EQ(resolve_model("roberta", search_path).filename(), "3");
}

TEST_F(ModelDir, ValidatesRefs) {
  put_hub("models--a--b", "only", false);  // no ref, one snapshot
  EXPECT_EQ(resolve_model("a/b", search_path).filename(), "only");
  put_hub("models--a--b", "second", false);  // ambiguous
  EXPECT_HAS(refused("a/b"), "brim pull a/b");
  put_file(search_path.hub / "models--a--b/refs/main", "../../../../etc");
  EXPECT_HAS(refused("a/b"), "model 'a/b' not found");
  put_file(search_path.hub / "models--a--b/refs/main", "second\n");
  EXPECT_EQ(resolve_model("a/b", search_path).filename(), "second");
}

TEST_F(ModelDir, FindsRevisions) {
  put_hub("models--a--b", "c1");
  put_hub("models--a--b", "c2", false);
  put_file(search_path.hub / "models--a--b/refs/refs/pr/1", "c2");
  EXPECT_EQ(resolve_model("a/b", search_path).filename(), "c1");
  EXPECT_EQ(resolve_model("a/b@main", search_path).filename(), "c1");
  EXPECT_EQ(resolve_model("a/b@refs/pr/1", search_path).filename(), "c2");
  EXPECT_EQ(resolve_model("a/b@c2", search_path).filename(), "c2");
  EXPECT_HAS(refused("a/b@v1"), "brim pull a/b@v1");
  EXPECT_HAS(refused("finbert@v1"), "brim pull ProsusAI/finbert@v1");
  for (const char* name : {"a/b@", "a/b@../c1", "a/b@x//y", "a/b@/c1"})
    EXPECT_HAS(refused(name), "directory not found") << name;
}

TEST_F(ModelDir, IgnoresInterruptedDownloads) {
  put_file(search_path.hub / "models--a--b/snapshots/c1/tokenizer.json", "{}");
  EXPECT_HAS(refused("a/b"), "brim pull a/b");
  put_file(search_path.hub / "models--a--b/refs/main", "c1");
  EXPECT_HAS(refused("a/b"), "brim pull a/b");
  EXPECT_TRUE(list_models(search_path).empty());
}

TEST_F(ModelDir, DownloadsMissingModelsOnRequest) {
  put_hub("models--a--b", "c1");
  std::vector<std::string> pulled;
  const ModelDownload download = [&](const std::string& repository) {
    pulled.push_back(repository);
    return dir / "fresh";
  };
  EXPECT_EQ(resolve_or_download("a/b", search_path, download).filename(), "c1");
  EXPECT_EQ(resolve_or_download("finbert@v1", search_path, download), dir / "fresh");
  EXPECT_EQ(pulled, std::vector<std::string>{"ProsusAI/finbert@v1"});
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { resolve_or_download("./a", search_path, download); }), "not found");
  set_model_download(download);
  EXPECT_EQ(resolve_model("c/d", search_path), dir / "fresh");
  set_model_download(nullptr);
  EXPECT_HAS(refused("c/d"), "brim pull c/d");
}

TEST_F(ModelDir, MissingModelErrorExplainsHowToGetIt) {
  const std::string message = refused("finbert");
  EXPECT_HAS(message, "brim pull ProsusAI/finbert");
  EXPECT_HAS(message, (dir / "beside/finbert").string());
  EXPECT_HAS(message, (dir / "more/finbert").string());
  EXPECT_HAS(message, (dir / "hub/models--ProsusAI--finbert").string());
  EXPECT_HAS(refused("distilbert"), "pull distilbert/distilbert-base-uncased-finetuned-sst-2-english");
  EXPECT_HAS(refused("no/such/dir"), "directory not found");
  EXPECT_HAS(refused("../finbert"), "directory not found");
  EXPECT_HAS(refused("./finbert"), "directory not found");
  EXPECT_HAS(refused(""), "empty");
  put_file(dir / "file.bin", "x");
  EXPECT_HAS(refused((dir / "file.bin").string()), "is a file");
  put_file(dir / "file.gguf", "x");
  EXPECT_HAS(refused((dir / "file.gguf").string()), "GGUF files are not supported");
  put_file(dir / "file.onnx", "x");
  EXPECT_HAS(refused((dir / "file.onnx").string()), "ONNX files are not supported");
}

TEST_F(ModelDir, ListsModels) {
  put_file(dir / "beside/tweets/config.json", "{}");
  put_file(dir / "beside/not-a-model/readme", "");
  put_file(dir / "more/org/name/config.json", "{}");
  put_file(dir / "more/tweets/config.json", "{}");  // shadowed by the first
  put_hub("models--ProsusAI--finbert", "abc");
  fs::create_directories(search_path.hub / "datasets--x");
  std::vector<std::string> names;
  for (const FoundModel& model : list_models(search_path)) names.push_back(model.name);
  EXPECT_EQ(names, (std::vector<std::string>{"tweets", "org/name", "ProsusAI/finbert"}));
  EXPECT_EQ(list_models(search_path)[0].dir, dir / "beside/tweets");
  EXPECT_TRUE(list_models({{dir / "none"}, dir / "none"}).empty());
}

TEST_F(ModelDir, ReadsPathsFromTheEnvironment) {
  ::setenv("BRIM_MODELS", "/a::/b:", 1);
  ::setenv("HF_HUB_CACHE", "/hub", 1);
  ModelSearchPath from = model_search_path({"/beside"});
  EXPECT_EQ(from.roots, (std::vector<fs::path>{"/beside", "/a", "/b"}));
  EXPECT_EQ(from.hub, "/hub");
  ::unsetenv("HF_HUB_CACHE");
  ::setenv("HF_HOME", "/home", 1);
  EXPECT_EQ(model_search_path({}).hub, "/home/hub");
  ::unsetenv("HF_HOME");
  ::setenv("XDG_CACHE_HOME", "/cache", 1);
  EXPECT_EQ(model_search_path({}).hub, "/cache/huggingface/hub");
  ::unsetenv("XDG_CACHE_HOME");
  ::unsetenv("BRIM_MODELS");
  EXPECT_TRUE(model_search_path({}).roots.empty());
}

}  // namespace
}  // namespace brim::hub
