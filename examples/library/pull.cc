// Downloads a model from a Hugging Face hub, unless it is on this machine, and prints its directory: pull ORG/NAME
#include <brim/pull.h>

#include <cstdio>

int main(int argc, char** argv) try {
  if (argc != 2) throw brim::Error(brim::ErrorCode::usage, "usage: pull ORG/NAME");
  const auto on_progress = [](int64_t done_bytes, int64_t total_bytes) {
    std::fprintf(stderr, "%lld of %lld MB\n", static_cast<long long>(done_bytes / 1'000'000),
                 static_cast<long long>(total_bytes / 1'000'000));
  };
  std::puts(brim::pull_model(argv[1], on_progress).c_str());
} catch (const brim::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
