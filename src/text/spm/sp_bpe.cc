// SPDX-License-Identifier: Apache-2.0
#include "text/spm/sp_bpe.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "base/utf8.h"

namespace brim::text {

std::vector<std::pair<std::string, std::string>> spm_merges(const SpmModel& model,
                                                            const std::vector<std::pair<std::string, double>>& vocab) {
  std::unordered_map<std::string_view, int32_t> ids;
  ids.reserve(model.pieces.size());
  for (size_t id = 0; id < model.pieces.size(); ++id) ids.emplace(model.pieces[id].text, static_cast<int32_t>(id));

  // The first of equal entries keeps its position and the last its score, as in a Python dict.
  std::unordered_map<std::string_view, size_t> place;
  std::vector<std::pair<std::string_view, double>> entries;
  for (const auto& [text, score] : vocab) {
    const auto [found, fresh] = place.emplace(text, entries.size());
    if (fresh) {
      entries.emplace_back(text, score);
    } else {
      entries[found->second].second = score;
    }
  }

  struct Cut {
    std::string_view left, right;
    double score;
    int32_t left_id, right_id;
  };
  std::vector<Cut> cuts;
  for (const auto& [text, score] : entries) {
    const size_t first = cuts.size();
    if (text.empty()) continue;
    for (size_t at = 0; (at += decode_valid(text, at).bytes) < text.size();) {
      const auto left = ids.find(text.substr(0, at)), right = ids.find(text.substr(at));
      if (left == ids.end() || right == ids.end()) continue;
      cuts.push_back({text.substr(0, at), text.substr(at), score, left->second, right->second});
    }
    std::sort(cuts.begin() + first, cuts.end(), [](const Cut& a, const Cut& b) {
      return std::pair(a.left_id, a.right_id) < std::pair(b.left_id, b.right_id);
    });
  }
  // All splits of one piece have the same score. Later converters put those with a longer left half first; ViSoBERT's
  // own tokenizer.json uses this order, and the two orders agree on 60,000 tweets.
  std::stable_sort(cuts.begin(), cuts.end(), [](const Cut& a, const Cut& b) { return a.score > b.score; });
  std::vector<std::pair<std::string, std::string>> merges;
  merges.reserve(cuts.size());
  for (const Cut& cut : cuts) merges.emplace_back(cut.left, cut.right);
  return merges;
}

BpeConfig spm_bpe_config(const SpmModel& model, const std::vector<std::pair<std::string, double>>& vocab) {
  BpeConfig config;
  std::unordered_map<std::string_view, size_t> place;
  for (size_t id = 0; id < vocab.size(); ++id) {
    const auto [found, fresh] = place.emplace(vocab[id].first, config.vocab.size());
    if (fresh) {
      config.vocab.emplace_back(vocab[id].first, static_cast<int32_t>(id));
    } else {
      config.vocab[found->second].second = static_cast<int32_t>(id);
    }
  }
  config.merges = spm_merges(model, vocab);
  config.unk_token = model.unk_piece;
  config.fuse_unk = true;
  return config;
}

}  // namespace brim::text
