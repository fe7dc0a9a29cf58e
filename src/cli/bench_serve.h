// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace brim::cli {

struct EngineFlags;

// brim bench serve. `engine` and `texts` are of the verb around it and stay there; `texts` gives at most so many.
std::function<int()> setup_bench_serve(CLI::App& app, const EngineFlags& engine,
                                       std::function<std::vector<std::string>(size_t most)> texts);

}  // namespace brim::cli
