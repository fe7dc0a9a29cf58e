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

// brim bench serve. `engine` and `texts` belong to the enclosing command and must outlive it; `texts` returns at most
// the given number.
std::function<int()> setup_bench_serve(CLI::App& app, const EngineFlags& engine,
                                       std::function<std::vector<std::string>(size_t most)> texts);

}  // namespace brim::cli
