// Compares models on a file with the columns text and label: compare FILE MODEL MODEL…
#include <brim/compare.h>

#include <cstdio>

int main(int argc, char** argv) try {
  if (argc < 4) throw brim::Error(brim::ErrorCode::usage, "usage: compare FILE MODEL MODEL…");
  brim::CompareOptions options;
  options.data = {argv[1]};
  for (int i = 2; i < argc; ++i) {
    options.models.emplace_back();
    options.models.back().model = argv[i];
  }
  const brim::CompareReport report = brim::compare_models(options);
  for (const brim::ComparedScores& model : report.models)
    std::printf("%s: accuracy %.3f, %.0f rows/s\n", model.name.c_str(), model.accuracy.value_or(-1),
                model.rows_per_second);
  std::printf("recommended: %s\n", report.recommended.c_str());
} catch (const brim::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
