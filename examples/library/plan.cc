// Plans a model on a GPU that need not be present: plan MODEL DEVICE
#include <brim/plan.h>

#include <cstdio>

int main(int argc, char** argv) try {
  if (argc != 3) throw brim::Error(brim::ErrorCode::usage, "usage: plan MODEL DEVICE");
  brim::PlanOptions options;
  options.model = argv[1];
  options.device = argv[2];
  const brim::ModelPlan plan = brim::plan_model(options);
  std::printf("%lld bytes on %s in %s\n", static_cast<long long>(plan.peak_bytes), plan.device.c_str(),
              plan.precision.c_str());
} catch (const brim::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
