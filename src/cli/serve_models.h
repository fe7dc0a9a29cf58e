// SPDX-License-Identifier: Apache-2.0
// Models of brim serve: opened together at the start, and again on request.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/serve_flags.h"
#include "serve/serve_config.h"

namespace brim::cli {

// "mood=models/default" is the model models/default with the name mood; "models/default" is named after its directory.
serve::ServedModel named_model(const std::string& given, const char* flag = "--model");

// Finds taggers that share a classifier's encoder: the classifier loads the head too, so that one pass gives labels and
// entities. Whole files are compared, so results are cached until one of the two changes.
class SharedEncoders {
 public:
  // Index into `options`; empty if none.
  std::optional<size_t> tagger_of(const ScorerOptions& classifier, const std::vector<ScorerOptions>& options);

 private:
  bool are_of_one(const std::string& classifier, const std::string& tagger);
  struct Found {
    std::string files;
    bool share = false;
  };
  std::map<std::pair<std::string, std::string>, Found> known_;
};

struct OpenModels {
  std::vector<serve::ServedModel> models;
  std::vector<std::function<ScorerOptions()>> settings;  // per model; throws if it is missing
  std::vector<ScorerOptions> options;                    // per model as configured, without taggers; empty if it failed
  SharedEncoders encoders;
};

// Models that cannot be opened have a fault and no scorer; if none can, startup fails. With --check, only rungs of
// ladders may have a fault.
OpenModels open_models(const ServeFlags& f, const serve::ServeConfig& config);
void warn_of_faults(const OpenModels& open, const serve::ServeConfig& config);
std::vector<std::string> describe_models(const OpenModels& open);  // one line per open model
// Opens models again from their settings. Used only on the administration thread.
std::shared_ptr<OpenModels> add_reopening(serve::ServerOptions& options, OpenModels open);
// Allows adapters of this model to be added while the server runs. `f` must outlive the server.
void add_adapter_loading(serve::ServerOptions& options, std::shared_ptr<OpenModels> asked, const ServeFlags& f,
                         const serve::ModelEntry& base);

}  // namespace brim::cli
