// Trains a classifier on a file with the columns text and label: train MODEL FILE OUTPUT
#include <brim/train.h>

#include <cstdio>

class Lines : public brim::TrainListener {
  void line(std::string_view text) override { std::printf("%.*s\n", static_cast<int>(text.size()), text.data()); }
};

int main(int argc, char** argv) try {
  if (argc != 4) throw brim::Error(brim::ErrorCode::usage, "usage: train MODEL FILE OUTPUT");
  Lines lines;
  const brim::TrainReport report = brim::run_training(
      {{{"model", argv[1]}, {"train", argv[2]}, {"output", argv[3]}, {"max_steps", "2"}}}, lines);
  std::printf("%lld steps, loss %.4f\n", static_cast<long long>(report.steps), report.final_loss);
} catch (const brim::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
