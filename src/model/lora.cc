// SPDX-License-Identifier: Apache-2.0
#include "model/lora.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "model/stored_param.h"
#include "model/train_state.h"

namespace brim::model {

namespace {

// The part of a name after the number of its layer; the whole name if there is none.
std::string_view within_layer(std::string_view module) {
  for (size_t at = module.find('.'); at != std::string_view::npos; at = module.find('.', at + 1)) {
    const size_t end = module.find_first_not_of("0123456789", at + 1);
    if (end != std::string_view::npos && end > at + 1 && module[end] == '.') return module.substr(end + 1);
  }
  return module;
}

void check_shape(const hub::Adapter::OwnTensor& own, const ParamSpec& p) {
  std::vector<int64_t> shape = {p.rows};
  if (p.cols > 0) shape.push_back(p.cols);
  if (own.shape != shape)
    fail(ErrorCode::bad_model, "{}: has shape {}, expected {}", own.where, hub::shape_text(own.shape),
         hub::shape_text(shape));
}

}  // namespace

std::string module_of(const std::string& tensor) {
  constexpr std::string_view kWeight = ".weight";
  return tensor.ends_with(kWeight) ? tensor.substr(0, tensor.size() - kWeight.size()) : tensor;
}

bool can_adapt(const ParamSpec& spec) {
  return spec.kind == ParamKind::matrix && !spec.head && spec.rows > 0 && spec.inner == 0 &&
         (spec.layer >= 0 || spec.group >= 0) && spec.adapter == ParamSpec::Adapter::none;
}

std::vector<LinearModule> linear_modules(const ModelShape& shape) {
  std::vector<LinearModule> modules;
  const std::vector<ParamSpec> params = model_params(shape);
  for (size_t i = 0; i < params.size(); ++i) {
    const ParamSpec& p = params[i];
    if (p.kind != ParamKind::matrix || p.rows == 0 || p.inner > 0 || p.adapter != ParamSpec::Adapter::none) continue;
    for (const std::string& name : p.names) {
      LinearModule& m = modules.emplace_back();
      m.name = module_of(name);
      m.rows = p.rows / static_cast<int64_t>(p.names.size());
      m.cols = p.cols;
      m.layer = p.layer;
      m.matrix = i;
      m.adaptable = can_adapt(p);
      m.head = p.head;
      m.attention = m.name.find(".attention.") != std::string::npos || m.name.find(".attn.") != std::string::npos;
    }
  }
  return modules;
}

std::vector<std::string> shortest_targets(const ModelShape& shape, const std::vector<std::string>& modules) {
  const std::set<std::string, std::less<>> wanted(modules.begin(), modules.end());
  std::vector<std::string> ends;
  for (const std::string& module : modules)
    if (const std::string end(within_layer(module)); std::find(ends.begin(), ends.end(), end) == ends.end())
      ends.push_back(end);
  for (const LinearModule& m : linear_modules(shape)) {
    const bool selected =
        std::any_of(ends.begin(), ends.end(), [&](const std::string& end) { return hub::names_module(end, m.name); });
    if (selected != wanted.contains(m.name)) return modules;
  }
  return ends;
}

std::vector<std::string> head_tensors(const ModelShape& shape) {
  std::vector<std::string> names;
  for (const ParamSpec& p : model_params(shape))
    if (p.head && p.rows > 0) names.insert(names.end(), p.names.begin(), p.names.end());
  return names;
}

// A head in a module of its own is saved by that name, because PEFT adds "classifier" by itself; a pooler inside the
// encoder by its name there.
std::vector<std::string> saved_modules(const ModelShape& shape) {
  std::vector<std::string> modules;
  for (const LinearModule& m : linear_modules(shape)) {
    if (!m.head) continue;
    const std::string& name = m.name;
    const size_t dot = name.find('.');
    const std::string first = name.substr(0, dot);
    const bool in_encoder = dot != std::string::npos && (first == "bert" || first == "albert");
    const std::string module = in_encoder ? name.substr(dot + 1) : first;
    if (std::find(modules.begin(), modules.end(), module) == modules.end()) modules.push_back(module);
  }
  return modules;
}

std::vector<std::string> load_adapter(const hub::Adapter& adapter, const hub::WeightSource& source,
                                      const ModelShape& shape, bool new_classes, std::vector<float>& master) {
  std::vector<std::string> heads;
  const SlabLayout layout = slab_layout(shape);
  const auto put = [&](const std::vector<float>& values, size_t index, int64_t at, int64_t count) {
    BRIM_CHECK(static_cast<int64_t>(values.size()) == count, "{}: {} values, expected {}",
               layout.params[index].names[0], values.size(), count);
    std::copy(values.begin(), values.end(), master.begin() + layout.offset[index] + at);
  };
  for (size_t i = 0; i < layout.params.size(); ++i) {
    const ParamSpec& p = layout.params[i];
    if (p.head && p.rows > 0 && !(new_classes && p.classes)) {
      if (const auto own = adapter.own_tensor(stored_name(source, p.names[0]))) {
        check_shape(*own, p);
        put(own->values, i, 0, p.elements());
        heads.push_back(p.names[0]);
      }
    }
    const LoraParams& lora = p.lora;
    const int64_t each = p.names.empty() ? 0 : p.rows / static_cast<int64_t>(p.names.size());
    for (size_t k = 0; k < lora.parts.size(); ++k) {
      const std::string& name = p.names[static_cast<size_t>(lora.parts[k].begin / each)];
      const auto made = adapter.product(stored_name(source, name));
      BRIM_CHECK(made.has_value(), "{}: not in the adapter", name);
      const int64_t a = lora.rank * p.cols;
      put(made->a, static_cast<size_t>(lora.a), static_cast<int64_t>(k) * a, a);
      put(made->b, static_cast<size_t>(lora.parts[k].b), 0, each * lora.rank);
    }
  }
  return heads;
}

}  // namespace brim::model
