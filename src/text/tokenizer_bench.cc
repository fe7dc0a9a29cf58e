// SPDX-License-Identifier: Apache-2.0
// Benchmarks tokenizers on a text file with one text per line:
//   tokenizer_bench TEXTS DIR… [--benchmark_filter=…] [--benchmark_repetitions=5] [--benchmark_format=json]
// ids_once is one pass with a new tokenizer (empty word caches) and the main figure; ids_again runs with full caches;
// ids_chunks collects the ids of many texts in one vector, like scoring; encode keeps tokens and offsets; ids_threads
// shares one tokenizer. bench/tokenizer_peers.py compares with Hugging Face.
#include <benchmark/benchmark.h>

#include <fstream>
#include <iostream>

#include "text/tokenizer.h"

namespace brim::text {
namespace {

std::vector<std::string> texts;
int64_t text_bytes = 0;

size_t pass(const Tokenizer& tokenizer, size_t first, size_t step) {
  std::vector<int32_t> ids;
  size_t tokens = 0;
  for (size_t i = first; i < texts.size(); i += step) {
    ids.clear();
    tokenizer.encode_ids(texts[i], ids);
    tokens += ids.size();
  }
  return tokens;
}

void report(benchmark::State& state, int64_t bytes, size_t tokens) {
  state.SetBytesProcessed(state.iterations() * bytes);
  state.counters["tokens"] = static_cast<double>(tokens);
}

void load(benchmark::State& state, const std::string& dir) {
  for (auto _ : state) benchmark::DoNotOptimize(Tokenizer::load(dir));
}

void ids_once(benchmark::State& state, const std::string& dir) {
  size_t tokens = 0;
  for (auto _ : state) {
    state.PauseTiming();
    auto tokenizer = Tokenizer::load(dir);
    state.ResumeTiming();
    tokens = pass(*tokenizer, 0, 1);
    state.PauseTiming();
    tokenizer.reset();
    state.ResumeTiming();
  }
  report(state, text_bytes, tokens);
}

void ids_again(benchmark::State& state, const std::string& dir) {
  const auto tokenizer = Tokenizer::load(dir);
  size_t tokens = pass(*tokenizer, 0, 1);
  for (auto _ : state) tokens = pass(*tokenizer, 0, 1);
  report(state, text_bytes, tokens);
}

// Like the engine: the ids of a few thousand texts in one vector.
void ids_chunks(benchmark::State& state, const std::string& dir) {
  const auto tokenizer = Tokenizer::load(dir);
  size_t tokens = 0;
  for (auto _ : state) {
    std::vector<int32_t> ids;
    tokens = 0;
    for (size_t i = 0; i < texts.size(); ++i) {
      if (i % 4096 == 0) {
        tokens += ids.size();
        ids.clear();
      }
      tokenizer->encode_ids(texts[i], ids);
    }
    tokens += ids.size();
  }
  report(state, text_bytes, tokens);
}

void encode(benchmark::State& state, const std::string& dir) {
  const auto tokenizer = Tokenizer::load(dir);
  size_t tokens = 0;
  for (auto _ : state) {
    tokens = 0;
    for (const std::string& text : texts) tokens += tokenizer->encode(text).ids.size();
  }
  report(state, text_bytes, tokens);
}

// Each thread encodes all texts: if they were divided, more threads would mean more cache per word.
void ids_threads(benchmark::State& state, const Tokenizer& tokenizer) {
  for (auto _ : state) benchmark::DoNotOptimize(pass(tokenizer, 0, 1));
  state.SetBytesProcessed(state.iterations() * text_bytes);
}

}  // namespace
}  // namespace brim::text

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (argc < 3) {
    std::cerr << "usage: tokenizer_bench TEXTS DIR… [--benchmark_…]\n";
    return 2;
  }
  std::ifstream in(argv[1]);
  for (std::string line; std::getline(in, line);) {
    brim::text::text_bytes += static_cast<int64_t>(line.size());
    brim::text::texts.push_back(std::move(line));
  }
  std::vector<std::unique_ptr<brim::text::Tokenizer>> shared;
  for (int i = 2; i < argc; ++i) {
    const std::string dir = argv[i], name = std::filesystem::path(dir).filename();
    const auto add = [&](const char* what, void (*run)(benchmark::State&, const std::string&)) {
      benchmark::RegisterBenchmark((what + ("/" + name)).c_str(), [=](benchmark::State& s) {
        run(s, dir);
      })->Unit(benchmark::kMillisecond);
    };
    add("load", brim::text::load);
    add("ids_once", brim::text::ids_once);
    add("ids_again", brim::text::ids_again);
    add("ids_chunks", brim::text::ids_chunks);
    add("encode", brim::text::encode);
    shared.push_back(brim::text::Tokenizer::load(dir));
    const brim::text::Tokenizer& tokenizer = *shared.back();
    benchmark::RegisterBenchmark(("ids_threads/" + name).c_str(),
                                 [&](benchmark::State& s) { brim::text::ids_threads(s, tokenizer); })
        ->Unit(benchmark::kMillisecond)
        ->ThreadRange(1, 16)
        ->UseRealTime();
  }
  benchmark::RunSpecifiedBenchmarks();
}
