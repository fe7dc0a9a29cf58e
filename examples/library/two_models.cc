// Scores a text with several models on one device, within one memory limit: two_models TEXT MODEL…
#include <brim/pool.h>

#include <cstdio>
#include <vector>

int main(int argc, char** argv) try {
  std::vector<brim::ScorerOptions> options;
  for (int i = 2; i < argc; ++i) options.push_back({.model = argv[i], .memory_limit = "1GiB"});
  if (options.empty()) throw brim::Error(brim::ErrorCode::usage, "usage: two_models TEXT MODEL…");
  const auto scorers = brim::open_together(options);
  for (const auto& scorer : scorers) {
    const brim::Prediction p = scorer->submit({.text = argv[1]}).get();
    if (p.error) throw *p.error;
    std::printf("%s %.4f\n", p.label.c_str(), p.score);
  }
  std::printf("%lld bytes\n", static_cast<long long>(brim::plan_together(scorers).peak_bytes));
} catch (const brim::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
