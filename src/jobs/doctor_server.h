// SPDX-License-Identifier: Apache-2.0
// Diagnoses a server from two readings of /metrics some seconds apart: time per request stage, device activity, and
// possible improvements.
#pragma once
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace brim::jobs {

// Values by series as written in the text: "name" or "name{label=\"value\"}". Throws bad_data if the text is invalid.
using MetricValues = std::map<std::string, double, std::less<>>;
MetricValues read_metrics(std::string_view text);

struct ServerFinding {
  std::string what, change;  // observation; recommended change, may be empty
};

struct ServerDiagnosis {
  struct Stage {
    std::string name;
    double mean_ms = 0, share = 0;  // share of all stages' time
  };
  double seconds = 0;
  double requests = 0, refused = 0, texts = 0, tokens = 0;
  std::vector<Stage> stages;                                              // parse, tokenize, queue, infer, write
  double busy = 0;                                                        // share of the time
  std::map<std::string, double> idle;                                     // by cause, shares of the time
  double batches = 0, batch_tokens = 0, batch_texts = 0, batch_fill = 0;  // the last three: means
  double loads = 0, load_seconds = 0;
  std::vector<ServerFinding> findings;  // most important first; never empty
};

ServerDiagnosis diagnose_server(const MetricValues& before, const MetricValues& after, double seconds);
std::string to_text(const ServerDiagnosis& d);
nlohmann::ordered_json to_json(const ServerDiagnosis& d);

}  // namespace brim::jobs
