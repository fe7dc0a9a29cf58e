// SPDX-License-Identifier: Apache-2.0
#include "cli/zero_shot_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/error.h"
#include "engine/zero_shot.h"

namespace brim::cli {
void ZeroShotFlags::add_to(CLI::App& app) {
  app.add_option("--labels", labels, "classify by these labels, separated by commas, with an NLI model (zero-shot)");
  app.add_option("--labels-file", labels_file, "file of such labels, one per line");
  app.add_option("--template", pattern, "hypothesis of a label, with {} in its place (default: This example is {}.)");
  app.add_flag("--multi-label", multi_label, "score each of these labels independently: several may apply to a text");
}

std::optional<ZeroShot> ZeroShotFlags::read() const {
  if (labels && labels_file) fail(ErrorCode::usage, "--labels-file {}: cannot be combined with --labels", *labels_file);
  if (!labels && !labels_file) {
    if (pattern || multi_label)
      fail(ErrorCode::usage, "{}: requires --labels or --labels-file",
           pattern ? "--template \"" + *pattern + "\"" : "--multi-label");
    return std::nullopt;
  }
  ZeroShot zero_shot;
  if (labels && labels->find_first_not_of(" \t\r\n\v\f") == std::string::npos)
    zero_shot.labels = {};
  else
    zero_shot.labels =
        labels ? engine::split_labels(*labels, ',') : engine::read_label_lines(*labels_file, "--labels-file");
  if (pattern) zero_shot.text_template = *pattern;
  zero_shot.multi_label = multi_label;
  engine::check_zero_shot(zero_shot, {.labels = labels ? "`labels`" : "`labels_file`"});
  return zero_shot;
}

void ZeroShotFlags::apply(EngineFlags& engine, const std::vector<std::string>& models) const {
  engine.zero_shot = read();
  engine.zero_shot_if_nli = models.size() > 1;
  if (!engine.zero_shot) return;
  const auto is_used = [&](const std::string& model) {
    EngineFlags one = engine;
    one.model = model;
    return one.scorer_options().zero_shot.has_value();
  };
  if (std::none_of(models.begin(), models.end(), is_used))
    fail(ErrorCode::usage, "--labels: requires an NLI model, with a label such as entailment; {} {} fixed labels",
         fmt::join(models, ", "), models.size() == 1 ? "has" : "have");
}

}  // namespace brim::cli
