// SPDX-License-Identifier: Apache-2.0
#include "forecast/nbeats_io.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/thread_pool.h"
#include "hub/safetensors.h"
#include "hub/weights.h"
#include "io/atomic_file.h"
#include "io/json_text.h"

namespace brim::forecast {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

namespace {

constexpr std::array kLossNames = {"smape", "mape", "mase", "mae", "mse", "huber", "quantile"};
constexpr std::array kCovariateKinds = {"future", "past", "static"};
constexpr std::array kCalendarNames = {"hour", "weekday", "monthday", "yearday"};
constexpr std::array kScalerNames = {"none", "last"};
constexpr int kMostReaders = 16;
constexpr int64_t kMost = 1 << 24;  // upper bound for points, blocks and widths; far from overflow

std::string tensor_name(size_t lane, const NbeatsParam& p) { return fmt::format("lanes.{}.{}", lane, p.name); }

// Reads values of a JSON object one by one; errors include the path of the key.
class ConfigReader {
 public:
  ConfigReader(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) fail(ErrorCode::bad_model, "{} is {}, must be an object", where_, shown(object));
  }
  const Json& at(const char* key) const {
    const auto it = object_.find(key);
    if (it == object_.end()) fail(ErrorCode::bad_model, "{}: \"{}\" is missing", where_, key);
    return *it;
  }
  int64_t whole(const char* key, int64_t least, int64_t most = kMost) const {
    const Json& v = at(key);
    if (!v.is_number_integer() || v.get<double>() < static_cast<double>(least) ||
        v.get<double>() > static_cast<double>(most))
      refuse(key, fmt::format("must be an integer from {} to {}", least, most));
    return v.get<int64_t>();
  }
  uint64_t seed(const char* key) const {
    const Json& v = at(key);
    if (!v.is_number_unsigned()) refuse(key, "must be an integer of at least 0");
    return v.get<uint64_t>();
  }
  double number(const char* key) const {
    const Json& v = at(key);
    if (!v.is_number() || !std::isfinite(v.get<float>())) refuse(key, "must be a number");
    return v.get<double>();
  }
  bool flag(const char* key) const {
    const Json& v = at(key);
    if (!v.is_boolean()) refuse(key, "must be true or false");
    return v.get<bool>();
  }
  template <class Names>
  size_t one_of(const char* key, const Names& names) const {
    const Json& v = at(key);
    std::string all;
    for (size_t i = 0; i < std::size(names); ++i) {
      if (v.is_string() && v.get_ref<const std::string&>() == names[i]) return i;
      all += fmt::format("{}{}", i > 0 ? ", " : "", names[i]);
    }
    refuse(key, "must be one of " + all);
  }
  const Json& list(const char* key) const {
    const Json& v = at(key);
    if (!v.is_array()) refuse(key, "must be a list");
    return v;
  }
  [[noreturn]] void refuse(const char* key, const std::string& why) const {
    fail(ErrorCode::bad_model, "{}: \"{}\" is {}: {}", where_, key, shown(at(key)), why);
  }
  const std::string& where() const { return where_; }

 private:
  static std::string shown(const Json& v) {
    std::string text = v.dump(-1, ' ', false, Json::error_handler_t::replace);
    return text.size() > 60 ? text.substr(0, 57) + "..." : text;
  }
  const Json& object_;
  std::string where_;
};

StackSpec read_stack(const Json& json, const std::string& where) {
  const ConfigReader r(json, where);
  constexpr std::array kinds = {"generic", "trend", "seasonality", "exogenous"};
  StackSpec s;
  s.kind = static_cast<StackKind>(r.one_of("type", kinds));
  s.blocks = r.whole("blocks", 1, 4096);
  s.width = r.whole("width", 8, 65536);
  if (s.width % 8 != 0) r.refuse("width", "must be a multiple of 8");
  s.shared = r.flag("shared");
  return s;
}

NbeatsLane read_lane(const Json& json, const std::string& where) {
  const ConfigReader r(json, where);
  NbeatsLane lane;
  lane.spec.seed = r.seed("seed");
  lane.spec.lookback = static_cast<int32_t>(r.whole("lookback", 1));
  lane.spec.history = static_cast<int32_t>(r.whole("history", 1, INT32_MAX));
  lane.spec.season = static_cast<int32_t>(r.whole("season", 1));
  lane.spec.loss = static_cast<ops::ForecastLoss>(r.one_of("loss", kLossNames));
  lane.spec.scaler = static_cast<ops::WindowScaler>(r.one_of("scaler", kScalerNames));
  lane.spec.huber_delta = static_cast<float>(r.number("huber_delta"));
  const Json& stacks = r.list("stacks");
  if (stacks.empty()) r.refuse("stacks", "must contain at least one");
  for (size_t i = 0; i < stacks.size(); ++i)
    lane.stacks.push_back(read_stack(stacks[i], fmt::format("{}, stack {}", where, i)));
  return lane;
}

// Optional: models of earlier versions have none.
std::vector<std::vector<float>> read_held_out(const Json& json, const ConfigReader& r, int64_t horizon) {
  constexpr const char* kKey = "held_out_errors";
  std::vector<std::vector<float>> steps;
  if (!json.contains(kKey)) return steps;
  for (const Json& step : r.list(kKey)) {
    if (!step.is_array()) r.refuse(kKey, "must be a list of lists");
    steps.emplace_back();
    for (const Json& error : step) {
      if (!error.is_number() || error.get<double>() < 0) r.refuse(kKey, "must contain numbers of at least 0");
      steps.back().push_back(error.get<float>());
    }
  }
  if (static_cast<int64_t>(steps.size()) != horizon && !steps.empty())
    r.refuse(kKey, "must have one list per step of the horizon");
  return steps;
}

// Optional, as above.
std::vector<std::string> read_combined(const Json& json, const ConfigReader& r) {
  constexpr const char* kKey = "combined";
  std::vector<std::string> names;
  if (!json.contains(kKey)) return names;
  for (const Json& name : r.list(kKey)) {
    if (name != "nbeats" && name != "theta" && name != "ets" && name != "naive" && name != "snaive")
      r.refuse(kKey, "must contain nbeats, theta, ets, naive or snaive");
    names.push_back(name.get<std::string>());
  }
  return names;
}

CovariateInput read_covariate(const Json& json, const std::string& where) {
  const ConfigReader r(json, where);
  CovariateInput input;
  if (!r.at("name").is_string()) r.refuse("name", "must be a string");
  input.column.name = r.at("name").get<std::string>();
  input.column.kind = static_cast<rows::CovariateKind>(r.one_of("kind", kCovariateKinds));
  for (const Json& category : r.list("categories")) {
    if (!category.is_string()) r.refuse("categories", "must be a list of strings");
    input.categories.push_back(category.get<std::string>());
  }
  input.column.categorical = !input.categories.empty();
  input.by_series = r.flag("by_series");
  input.mean = r.number("mean");
  input.deviation = r.number("deviation");
  if (input.deviation <= 0) r.refuse("deviation", "must be above 0");
  return input;
}

// Optional, as above.
CovariateSpec read_covariates(const Json& json, const std::string& where) {
  CovariateSpec spec;
  if (!json.contains("covariates")) return spec;
  const ConfigReader r(json.at("covariates"), where + ": covariates");
  spec.history = r.whole("history", 1);
  for (const Json& name : r.list("calendar")) {
    const auto found = std::find(kCalendarNames.begin(), kCalendarNames.end(), name);
    if (found == kCalendarNames.end()) r.refuse("calendar", "must contain hour, weekday, monthday or yearday");
    spec.calendar.push_back(static_cast<CalendarFeature>(found - kCalendarNames.begin()));
  }
  const Json& columns = r.list("columns");
  if (columns.size() > 4096) r.refuse("columns", "must be at most 4,096");
  for (size_t i = 0; i < columns.size(); ++i)
    spec.columns.push_back(read_covariate(columns[i], fmt::format("{}: covariate {}", where, i)));
  return spec;
}

OrderedJson covariates_json(const CovariateSpec& spec) {
  OrderedJson columns = OrderedJson::array(), calendar = OrderedJson::array();
  for (const CalendarFeature feature : spec.calendar) calendar.push_back(calendar_name(feature));
  for (const CovariateInput& input : spec.columns)
    columns.push_back({{"name", input.column.name},
                       {"kind", kCovariateKinds[static_cast<size_t>(input.column.kind)]},
                       {"categories", input.categories},
                       {"by_series", input.by_series},
                       {"mean", input.mean},
                       {"deviation", input.deviation}});
  return {{"history", spec.history}, {"calendar", std::move(calendar)}, {"columns", std::move(columns)}};
}

// Exogenous stacks come first and require future covariates.
void check_exogenous(const NbeatsModel& model, const ConfigReader& r) {
  const bool any = model.covariates.shape(model.horizon).future > 0;
  for (const NbeatsLane& lane : model.lanes)
    for (size_t s = 0; s < lane.stacks.size(); ++s)
      if (lane.stacks[s].kind == StackKind::exogenous &&
          (!any || (s > 0 && lane.stacks[s - 1].kind != StackKind::exogenous)))
        r.refuse("covariates", "exogenous stacks must come first and require future covariates");
}

NbeatsModel read_config(const std::filesystem::path& file) {
  const Json json = io::parse_json(read_file(file), file.string());
  const ConfigReader r(json, file.string());
  constexpr std::array types = {"nbeats"};
  r.one_of("model_type", types);
  NbeatsModel model;
  model.horizon = r.whole("horizon", 1);
  model.season = r.whole("season", 1);
  if (!r.at("freq").is_string()) r.refuse("freq", "must be a string");
  model.freq = r.at("freq").get<std::string>();
  model.layers = r.whole("layers", 1, 64);
  model.degree = r.whole("degree", 0, 16);
  model.harmonics = r.whole("harmonics", 1, 1024);
  constexpr std::array activations = {"none", "relu"};
  model.first_relu = r.one_of("first_activation", activations) == 1;
  for (const Json& q : r.list("quantiles")) {
    const double level = q.is_number() ? q.get<double>() : -1;
    if (!(level > 0 && level < 1) ||
        (!model.quantiles.empty() && level <= static_cast<double>(model.quantiles.back())) ||
        model.quantiles.size() >= 1024)
      r.refuse("quantiles", "must be ascending between 0 and 1");
    model.quantiles.push_back(static_cast<float>(level));
  }
  model.held_out = read_held_out(json, r, model.horizon);
  model.combined = read_combined(json, r);
  model.covariates = read_covariates(json, file.string());
  const Json& lanes = r.list("lanes");
  if (lanes.empty()) r.refuse("lanes", "must contain at least one");
  for (size_t i = 0; i < lanes.size(); ++i)
    model.lanes.push_back(read_lane(lanes[i], fmt::format("{}: lane {}", file.string(), i)));
  check_exogenous(model, r);
  return model;
}

// Stored shape of a parameter.
std::vector<int64_t> stored_shape(const NbeatsShape& shape, const NbeatsParam& p, int64_t lookback) {
  const NbeatsSize size = true_size(shape, p, lookback);
  const bool bias = p.role == NbeatsParam::Role::bias || p.role == NbeatsParam::Role::out_bias;
  return bias ? std::vector<int64_t>{size.rows} : std::vector<int64_t>{size.rows, size.cols};
}

template <class Fn>  // fn(first index in the slab, first index in the stored tensor, values)
void for_each_row(const NbeatsShape& shape, const NbeatsParam& p, int64_t lookback, Fn&& fn) {
  const NbeatsSize size = true_size(shape, p, lookback);
  for (int64_t row = 0; row < size.rows; ++row)
    fn(p.offset + padded_index(shape, p, lookback, row, 0), row * size.cols, size.cols);
}

}  // namespace

const char* forecast_loss_name(ops::ForecastLoss loss) { return kLossNames[static_cast<size_t>(loss)]; }
std::optional<ops::ForecastLoss> forecast_loss_from_name(std::string_view name) {
  for (size_t i = 0; i < kLossNames.size(); ++i)
    if (name == kLossNames[i]) return static_cast<ops::ForecastLoss>(i);
  return std::nullopt;
}

NbeatsShape lane_shape(const NbeatsModel& model, const NbeatsLane& lane) {
  NbeatsShape shape;
  shape.horizon = model.horizon;
  shape.lookback = lane.spec.lookback;
  shape.quantiles = std::max<int64_t>(1, static_cast<int64_t>(model.quantiles.size()));
  shape.layers = model.layers;
  shape.first_relu = model.first_relu;
  shape.degree = model.degree;
  shape.harmonics = model.harmonics;
  shape.stacks = lane.stacks;
  shape.covariates = model.covariates.shape(model.horizon);
  return shape;
}

std::vector<float> move_lane(const NbeatsShape& from, const NbeatsShape& to, int64_t lookback,
                             std::span<const float> slab) {
  const NbeatsLayout a = nbeats_layout(from), b = nbeats_layout(to);
  BRIM_CHECK(a.params.size() == b.params.size() && static_cast<int64_t>(slab.size()) == a.elements,
             "{} parameters in {} elements moved to {} parameters", a.params.size(), slab.size(), b.params.size());
  std::vector<float> moved(static_cast<size_t>(b.elements));
  for (size_t i = 0; i < a.params.size(); ++i) {
    const NbeatsParam &p = a.params[i], &q = b.params[i];
    const NbeatsSize size = true_size(from, p, lookback);
    for (int64_t row = 0; row < size.rows; ++row)
      std::copy_n(slab.begin() + p.offset + padded_index(from, p, lookback, row, 0), size.cols,
                  moved.begin() + q.offset + padded_index(to, q, lookback, row, 0));
  }
  return moved;
}

void save_nbeats(const std::filesystem::path& dir, const NbeatsModel& model) {
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error) fail(ErrorCode::cannot_write, "{}: {}", dir.string(), error.message());
  struct Place {
    size_t lane, param;
  };
  std::map<std::string, Place> places;
  std::vector<hub::SafetensorsSpec> specs;
  std::vector<NbeatsShape> shapes;
  std::vector<NbeatsLayout> layouts;
  OrderedJson lanes = OrderedJson::array();
  for (size_t g = 0; g < model.lanes.size(); ++g) {
    const NbeatsLane& lane = model.lanes[g];
    shapes.push_back(lane_shape(model, lane));
    layouts.push_back(nbeats_layout(shapes.back()));
    BRIM_CHECK(static_cast<int64_t>(lane.slab.size()) == layouts.back().elements, "lane {} has {} elements, needs {}",
               g, lane.slab.size(), layouts.back().elements);
    for (size_t i = 0; i < layouts.back().params.size(); ++i) {
      const NbeatsParam& p = layouts.back().params[i];
      places[tensor_name(g, p)] = {g, i};
      specs.push_back({tensor_name(g, p), tensor::DType::f32, stored_shape(shapes.back(), p, lane.spec.lookback)});
    }
    OrderedJson stacks = OrderedJson::array();
    for (const StackSpec& s : lane.stacks)
      stacks.push_back(
          {{"type", stack_kind_name(s.kind)}, {"blocks", s.blocks}, {"width", s.width}, {"shared", s.shared}});
    lanes.push_back({{"lookback", lane.spec.lookback},
                     {"loss", forecast_loss_name(lane.spec.loss)},
                     {"seed", lane.spec.seed},
                     {"history", lane.spec.history},
                     {"season", lane.spec.season},
                     {"scaler", kScalerNames[static_cast<size_t>(lane.spec.scaler)]},
                     {"huber_delta", lane.spec.huber_delta},
                     {"stacks", std::move(stacks)}});
  }
  hub::SafetensorsWriter writer(dir / "model.safetensors", std::move(specs));
  for (const hub::SafetensorsSpec& spec : writer.order()) {
    const auto [g, i] = places.at(spec.name);
    const NbeatsParam& p = layouts[g].params[i];
    const auto& lane = model.lanes[g];
    const NbeatsSize size = true_size(shapes[g], p, lane.spec.lookback);
    if (size.rows == p.rows && size.cols == p.cols) {  // stored without padding
      writer.append(spec.name, lane.slab.data() + p.offset, static_cast<size_t>(p.rows * p.cols) * sizeof(float));
      continue;
    }
    std::vector<float> values(static_cast<size_t>(size.rows * size.cols));
    for_each_row(shapes[g], p, lane.spec.lookback, [&](int64_t from, int64_t to, int64_t count) {
      std::copy_n(lane.slab.begin() + from, count, values.begin() + to);
    });
    writer.append(spec.name, values.data(), values.size() * sizeof(float));
  }
  writer.commit();
  OrderedJson config = {{"model_type", "nbeats"},
                        {"horizon", model.horizon},
                        {"season", model.season},
                        {"freq", model.freq},
                        {"quantiles", model.quantiles},
                        {"layers", model.layers},
                        {"first_activation", model.first_relu ? "relu" : "none"},
                        {"degree", model.degree},
                        {"harmonics", model.harmonics},
                        {"held_out_errors", model.held_out},
                        {"combined", model.combined},
                        {"lanes", std::move(lanes)}};
  if (!model.covariates.empty()) config["covariates"] = covariates_json(model.covariates);
  io::write_file_atomically(dir / "config.json", config.dump(2) + "\n");
}

bool is_nbeats(const std::filesystem::path& dir) {
  const std::filesystem::path file = dir / "config.json";
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) return false;
  const Json json = Json::parse(read_file(file), nullptr, false);
  return json.is_object() && json.value("model_type", Json()) == "nbeats";
}

NbeatsModel load_nbeats(const std::filesystem::path& dir) {
  NbeatsModel model = read_config(dir / "config.json");
  const auto weights = hub::WeightSource::open_file(dir / "model.safetensors");
  size_t known = 0;
  // Check all shapes first: do not allocate by config.json until the file is known to hold the tensors.
  for (size_t g = 0; g < model.lanes.size(); ++g) {
    const NbeatsLane& lane = model.lanes[g];
    const NbeatsShape shape = lane_shape(model, lane);
    for (const NbeatsParam& p : nbeats_layout(shape).params) {
      const std::string name = tensor_name(g, p);
      const hub::StoredTensor* stored = weights->describe(name);
      const std::vector<int64_t> wanted = stored_shape(shape, p, lane.spec.lookback);
      if (stored == nullptr) weights->require(name);  // throws with the nearest name
      if (stored->dtype != tensor::DType::f32 || stored->shape != wanted)
        fail(ErrorCode::bad_model, "{}: is {}[{}], but config.json requires F32[{}]", weights->where(name),
             stored->dtype_text, fmt::join(stored->shape, ","), fmt::join(wanted, ","));
      ++known;
    }
  }
  if (known != weights->names().size())
    fail(ErrorCode::bad_model,
         "{}: contains {} tensors, but config.json requires {}: the files belong to different models", weights->where(),
         weights->names().size(), known);
  ThreadPool pool(std::min({hardware_threads(), kMostReaders, static_cast<int>(model.lanes.size())}));
  pool.parallel_for(model.lanes.size(), [&](size_t g, int) {
    NbeatsLane& lane = model.lanes[g];
    const NbeatsShape shape = lane_shape(model, lane);
    const NbeatsLayout layout = nbeats_layout(shape);
    lane.slab.resize(static_cast<size_t>(layout.elements));
    for (const NbeatsParam& p : layout.params) {
      const hub::LoadedTensor tensor = weights->get(tensor_name(g, p));
      const auto* values = tensor.as<float>();
      for_each_row(shape, p, lane.spec.lookback, [&](int64_t to, int64_t from, int64_t count) {
        std::copy_n(values + from, count, lane.slab.begin() + to);
      });
    }
  });
  weights->check_unchanged();
  return model;
}

}  // namespace brim::forecast
