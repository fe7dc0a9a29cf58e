// Scores all shards of a job planned by `brim score FILE --shard 0/N -o FOLDER`, and completes it: shards FOLDER N
#include <brim/shards.h>

#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) try {
  if (argc != 3) throw brim::Error(brim::ErrorCode::usage, "usage: shards FOLDER N");
  for (int64_t shard = 0; shard < std::atoll(argv[2]); ++shard) brim::run_shard(argv[1], shard);
  std::printf("%lld rows\n", static_cast<long long>(brim::finish_shards(argv[1])));
} catch (const brim::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
