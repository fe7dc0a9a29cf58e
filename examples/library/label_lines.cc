// Scores the lines of stdin with Brim's library. Requests are submitted one by one and processed in batches.
//   cmake -B build -DCMAKE_PREFIX_PATH=/where/brim/is/installed && cmake --build build && ./build/label_lines < texts.txt
#include <brim/brim.h>

#include <cstdio>
#include <future>
#include <iostream>
#include <string>
#include <vector>

int main(int argc, char** argv) try {
  brim::ScorerOptions options;
  if (argc > 1) options.model = argv[1];  // default: the model included with Brim
  const auto scorer = brim::Scorer::open(options);
  std::fprintf(stderr, "Brim %s on %s\n", brim::version(), scorer->device().c_str());
  std::vector<std::future<brim::Prediction>> predictions;
  for (std::string line; std::getline(std::cin, line);) predictions.push_back(scorer->submit({.text = line}));
  for (auto& prediction : predictions) {
    const brim::Prediction p = prediction.get();
    if (p.error)
      std::printf("error: %s\n", p.error->what());
    else
      std::printf("%s %.4f\n", p.label.c_str(), p.score);
  }
} catch (const brim::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
