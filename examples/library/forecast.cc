// Forecasts the series of a file with the columns unique_id, ds and y: forecast FILE MODEL HORIZON
#include <brim/forecast.h>

#include <cstdio>

int main(int argc, char** argv) try {
  if (argc != 4) throw brim::Error(brim::ErrorCode::usage, "usage: forecast FILE MODEL HORIZON");
  brim::ForecastListener quiet;
  const brim::Forecasts next =
      brim::predict_series({{{"data", argv[1]}, {"model", argv[2]}, {"horizon", argv[3]}}}, quiet);
  for (size_t i = 0; i < next.ids.size(); ++i)
    std::printf("%s %s %.6g\n", next.ids[i].c_str(), next.times[i].c_str(), next.values[0][i]);
} catch (const brim::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
