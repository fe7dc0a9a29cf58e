// SPDX-License-Identifier: Apache-2.0
// Test support: writes the files of a sentence-transformers model directory.
#pragma once
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace brim::hub {

inline void put_sentence_file(const std::filesystem::path& file, const std::string& text) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file, std::ios::binary) << text;
}

// modules.json with a Transformer, a Pooling module with this config and the types in `more`, each in its own folder.
inline void put_modules(const std::filesystem::path& dir, const std::string& pooling,
                        const std::vector<std::string>& more = {}) {
  const std::string package = R"("type":"sentence_transformers.models.)";
  std::string modules = R"([{"idx":0,"name":"0","path":"",)" + package + R"(Transformer"},)" +
                        R"({"idx":1,"name":"1","path":"1_Pooling",)" + package + R"(Pooling"})";
  for (size_t i = 0; i < more.size(); ++i) {
    const std::string number = std::to_string(i + 2);
    modules += R"(,{"idx":)" + number + R"(,"name":")" + number + R"(","path":")" + number + "_" + more[i] + "\"," +
               package + more[i] + "\"}";
  }
  put_sentence_file(dir / "modules.json", modules + "]");
  put_sentence_file(dir / "1_Pooling" / "config.json", pooling);
}

constexpr const char* kClsPooling = R"({"word_embedding_dimension":48,"pooling_mode_cls_token":true,
  "pooling_mode_mean_tokens":false,"pooling_mode_max_tokens":false})";
constexpr const char* kMeanPooling = R"({"word_embedding_dimension":48,"pooling_mode_cls_token":false,
  "pooling_mode_mean_tokens":true})";

}  // namespace brim::hub
