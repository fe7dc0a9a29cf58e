// SPDX-License-Identifier: Apache-2.0
#include "hub/torch_bin.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "hub/pickle.h"
#include "io/quote_text.h"
#include "io/zip.h"

namespace brim::hub {

using tensor::DType;

namespace {

using Kind = PickleValue::Kind;

constexpr std::string_view kRebuildTensor = "torch._utils _rebuild_tensor_v2";
constexpr std::string_view kRebuildTensorOld = "torch._utils _rebuild_tensor";
constexpr std::string_view kRebuildParameter = "torch._utils _rebuild_parameter";

struct StorageClass {
  std::string_view global;
  const char* name;
  std::optional<DType> dtype;
  int bytes;
};
constexpr StorageClass kStorages[] = {
    {"torch FloatStorage", "float32", DType::f32, 4},      {"torch HalfStorage", "float16", DType::f16, 2},
    {"torch BFloat16Storage", "bfloat16", DType::bf16, 2}, {"torch DoubleStorage", "float64", DType::f64, 8},
    {"torch LongStorage", "int64", DType::i64, 8},         {"torch IntStorage", "int32", DType::i32, 4},
    {"torch ShortStorage", "int16", std::nullopt, 2},      {"torch CharStorage", "int8", DType::i8, 1},
    {"torch ByteStorage", "uint8", DType::u8, 1},          {"torch BoolStorage", "bool", std::nullopt, 1},
};
constexpr size_t kStorageCount = std::size(kStorages);

constexpr auto kAllowed = [] {
  std::array<std::string_view, 4 + kStorageCount> all = {"collections OrderedDict", kRebuildTensor, kRebuildTensorOld,
                                                         kRebuildParameter};
  for (size_t i = 0; i < kStorageCount; ++i) all[4 + i] = kStorages[i].global;
  return all;
}();

constexpr size_t kLongestStorageKey = 256;  // torch writes decimal numbers

struct Storage {
  const StorageClass* type = nullptr;
  int64_t elements = 0;
  std::span<const std::byte> bytes;
  bool found = false;  // legacy files list their storages after the tensors
};

// Converts the pickled state dict to tensors.
class StateDict {
 public:
  StateDict(const Pickle& pickle, const std::string& where) : pickle_(pickle), where_(where) {}

  struct Tensor {
    std::string_view name;
    std::string_view storage;
    StoredTensor stored;  // data not yet set
    int64_t offset;       // in elements from the start of the storage
  };
  std::vector<Tensor> tensors;
  std::unordered_map<std::string_view, Storage> storages;

  void read() {
    const PickleValue& root = pickle_.top();
    if (root.kind != Kind::dict) fail_not_state_dict(pickle_kind_name(root.kind));
    std::string nested;
    std::unordered_set<std::string_view> keys;
    for (size_t i = 0; i + 1 < root.items.size(); i += 2) {
      const PickleValue& key = pickle_[root.items[i]];
      const PickleValue& value = pickle_[root.items[i + 1]];
      if (key.kind != Kind::text)
        fail_not_state_dict(fmt::format("a dict with {} as a key", pickle_kind_name(key.kind)));
      if (!keys.insert(key.text).second)
        fail(ErrorCode::bad_model, "{}: duplicate key {}: the file is damaged", where_, io::quote_text(key.text));
      if (value.kind == Kind::call)
        read_tensor(key.text, value);
      else if (value.kind == Kind::dict && nested.empty())
        nested = io::quote_text(key.text);
    }
    if (tensors.empty() && !nested.empty()) fail_not_state_dict("a training checkpoint with tensors inside " + nested);
  }

 private:
  [[noreturn]] void fail_not_state_dict(const std::string& found) const {
    fail(ErrorCode::bad_model,
         "{}: contains {}, not a state dict; save model.state_dict() with torch.save, or use safetensors", where_,
         found);
  }
  template <class... Args>
  [[noreturn]] void refuse(std::string_view name, fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorCode::bad_model, "{}: tensor {}: {}", where_, io::quote_text(name),
         fmt::format(format, std::forward<Args>(args)...));
  }

  const PickleValue& expect(std::string_view name, int32_t id, Kind kind, const char* what) const {
    const PickleValue& value = pickle_[id];
    if (value.kind != kind)
      refuse(name, "{} is {}, not {}: the file is damaged", what, pickle_kind_name(value.kind), pickle_kind_name(kind));
    return value;
  }

  std::vector<int64_t> numbers(std::string_view name, int32_t id, const char* what) const {
    std::vector<int64_t> out;
    for (const int32_t item : expect(name, id, Kind::tuple, what).items) {
      const int64_t value = expect(name, item, Kind::integer, what).integer;
      if (value < 0) refuse(name, "{} contains {}: the file is damaged", what, value);
      out.push_back(value);
    }
    if (out.size() > 64) refuse(name, "{} has {} dimensions: the file is damaged", what, out.size());
    return out;
  }

  std::string_view function_of(const PickleValue& call) const { return pickle_[call.items[0]].text; }

  // A parameter wraps its tensor once. Many entries may share one value, so following a chain of wrappers for each of
  // them could take quadratic time.
  const PickleValue& unwrap(std::string_view name, const PickleValue& value) const {
    const PickleValue* call = &value;
    if (function_of(value) == kRebuildParameter) {
      const PickleValue& arguments = pickle_[value.items[1]];
      if (arguments.items.empty()) refuse(name, "a parameter without a tensor: the file is damaged");
      call = &expect(name, arguments.items[0], Kind::call, "value");
    }
    const std::string_view function = function_of(*call);
    if (function == kRebuildParameter) refuse(name, "a parameter of a parameter: the file is damaged");
    if (function != kRebuildTensor && function != kRebuildTensorOld)
      refuse(name, "is created by {}: the file is damaged", io::quote_text(function));
    return *call;
  }

  void read_tensor(std::string_view name, const PickleValue& value) {
    const auto& arguments = pickle_[unwrap(name, value).items[1]].items;
    if (arguments.size() < 4)
      refuse(name, "is created from {} values instead of 4: the file is damaged", arguments.size());
    Tensor tensor;
    tensor.name = name;
    const auto& [key, storage] = read_storage(name, arguments[0]);
    tensor.storage = key;
    tensor.offset = expect(name, arguments[1], Kind::integer, "offset").integer;
    StoredTensor& stored = tensor.stored;
    stored.dtype = storage.type->dtype;
    stored.dtype_text = storage.type->name;
    stored.shape = numbers(name, arguments[2], "size");
    stored.stride = numbers(name, arguments[3], "stride");
    check_reach(name, tensor, storage);
    if (contiguous(stored)) stored.stride.clear();
    tensors.push_back(std::move(tensor));
  }

  const std::pair<const std::string_view, Storage>& read_storage(std::string_view name, int32_t id) {
    const int32_t tuple = expect(name, id, Kind::persistent, "storage").items[0];
    const auto& parts = expect(name, tuple, Kind::tuple, "storage").items;
    if (parts.size() != 5 && parts.size() != 6) refuse(name, "storage has {} parts: the file is damaged", parts.size());
    if (expect(name, parts[0], Kind::text, "storage").text != "storage")
      refuse(name, "storage is a {}: the file is damaged", io::quote_text(pickle_[parts[0]].text));
    const std::string_view global = expect(name, parts[1], Kind::global, "storage type").text;
    const auto* type =
        std::find_if(std::begin(kStorages), std::end(kStorages), [&](const auto& s) { return s.global == global; });
    if (type == std::end(kStorages)) refuse(name, "storage type is {}: the file is damaged", io::quote_text(global));
    const std::string_view key = expect(name, parts[2], Kind::text, "storage key").text;
    if (key.size() > kLongestStorageKey)  // hashed for every tensor that shares it
      refuse(name, "storage key has {} bytes, more than {}: the file is damaged", key.size(), kLongestStorageKey);
    const int64_t elements = expect(name, parts[4], Kind::integer, "storage size").integer;
    int64_t bytes = 0;
    if (elements < 0 || __builtin_mul_overflow(elements, int64_t{type->bytes}, &bytes))
      refuse(name, "storage has {} elements: the file is damaged", elements);
    if (parts.size() == 6 && pickle_[parts[5]].kind != Kind::none)
      refuse(name,
             "storage is a view of another (written by torch before 0.4); save the file again with a newer torch");
    const auto [at, fresh] = storages.try_emplace(key, Storage{type, elements, {}, false});
    if (!fresh && (at->second.type != type || at->second.elements != elements))
      refuse(name, "storage {} is {}[{}] here but {}[{}] elsewhere: the file is damaged", io::quote_text(key),
             type->name, elements, at->second.type->name, at->second.elements);
    return *at;
  }

  void check_reach(std::string_view name, Tensor& tensor, const Storage& storage) const {
    StoredTensor& stored = tensor.stored;
    if (stored.shape.size() != stored.stride.size())
      refuse(name, "size {} and stride {} differ in length: the file is damaged", shape_text(stored.shape),
             shape_text(stored.stride));
    const auto elements = count_elements(stored.shape);
    if (!elements) refuse(name, "size {} is too large: the file is damaged", shape_text(stored.shape));
    stored.elements = *elements;
    int64_t last = tensor.offset;
    bool overflow = tensor.offset < 0 || tensor.offset > storage.elements;
    for (size_t d = 0; d < stored.shape.size() && stored.elements > 0; ++d) {
      int64_t step = 0;
      overflow |= __builtin_mul_overflow(stored.shape[d] - 1, stored.stride[d], &step);
      overflow |= __builtin_add_overflow(last, step, &last);
    }
    if (overflow || (stored.elements > 0 && last >= storage.elements))
      refuse(name, "offset {}, size {} and stride {} exceed the storage of {} elements: the file is damaged",
             tensor.offset, shape_text(stored.shape), shape_text(stored.stride), storage.elements);
    if (stored.elements > storage.elements)  // an expanded tensor: tiny in the file, any size in memory
      refuse(name, "size {} repeats the storage of {} elements; call .contiguous() before saving",
             shape_text(stored.shape), storage.elements);
  }

  static bool contiguous(const StoredTensor& tensor) {
    int64_t step = 1;
    for (size_t d = tensor.shape.size(); d-- > 0;) {
      if (tensor.shape[d] > 1 && tensor.stride[d] != step) return false;
      if (tensor.elements > 0) step *= tensor.shape[d];
    }
    return true;
  }

  const Pickle& pickle_;
  const std::string& where_;
};

TensorTable to_table(StateDict& state, const std::string& where) {
  TensorTable table;
  for (StateDict::Tensor& tensor : state.tensors) {
    const Storage& storage = state.storages.at(tensor.storage);
    if (!storage.found)
      fail(ErrorCode::bad_model, "{}: tensor {}: storage {} is missing; download the file again", where,
           io::quote_text(tensor.name), io::quote_text(tensor.storage));
    const auto need = static_cast<uint64_t>(storage.elements) * static_cast<uint64_t>(storage.type->bytes);
    if (storage.bytes.size() != need)
      fail(ErrorCode::bad_model,
           "{}: tensor {}: storage {} has {} bytes, but {} {} require {}; download the file again", where,
           io::quote_text(tensor.name), io::quote_text(tensor.storage), storage.bytes.size(), storage.elements,
           storage.type->name, need);
    tensor.stored.data = storage.bytes.data() + tensor.offset * storage.type->bytes;
    table.emplace(tensor.name, std::move(tensor.stored));
  }
  return table;
}

// ---- containers ----

TensorTable parse_archive(std::span<const std::byte> file, const std::string& where) {
  std::unordered_map<std::string_view, const io::ZipMember*> by_name;
  const std::vector<io::ZipMember> members = io::parse_zip(file, where);
  const io::ZipMember* pickle_member = nullptr;
  for (const io::ZipMember& member : members) {
    if (!by_name.emplace(member.name, &member).second)
      fail(ErrorCode::bad_model, "{}: duplicate zip member {}: the file is damaged", where,
           io::quote_text(member.name));
    if (member.name.ends_with("/constants.pkl"))
      fail(ErrorCode::bad_model, "{}: is a TorchScript program, not weights; save model.state_dict() instead", where);
    // NAME/data.pkl in the archive's top-level folder NAME
    if (member.name.ends_with("/data.pkl") && std::count(member.name.begin(), member.name.end(), '/') == 1)
      pickle_member = &member;
  }
  if (pickle_member == nullptr)
    fail(ErrorCode::bad_model, "{}: is a zip archive without data.pkl, not a file of torch.save", where);
  check_crc(*pickle_member, where);
  const std::string folder(
      pickle_member->name.substr(0, pickle_member->name.size() - std::string_view("data.pkl").size()));
  if (const auto order = by_name.find(folder + "byteorder"); order != by_name.end()) {
    const auto bytes = order->second->bytes;
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (text != "little")
      fail(ErrorCode::bad_model, "{}: byte order is {}; save the file again on a little-endian machine", where,
           io::quote_text(text));
  }
  const Pickle pickle = parse_pickle(pickle_member->bytes, kAllowed, where);
  StateDict state(pickle, where);
  state.read();
  for (auto& [key, storage] : state.storages) {
    const auto member = by_name.find(folder + "data/" + std::string(key));
    if (member == by_name.end()) continue;
    storage.bytes = member->second->bytes;
    storage.found = true;
  }
  return to_table(state, where);
}

constexpr std::string_view kLegacyMagic("\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", 10);

// Layout: magic number, protocol version, system info, the state dict, its storage keys, then each storage: its length
// in elements (eight bytes) and its bytes.
TensorTable parse_legacy(std::span<const std::byte> file, const std::string& where) {
  size_t at = 0;
  auto next = [&] {
    Pickle pickle = parse_pickle(file.subspan(at), kAllowed, where);
    at += pickle.bytes_read;
    return pickle;
  };
  const Pickle magic = next();
  if (magic.top().kind != Kind::big_integer || magic.top().text != kLegacyMagic)
    fail(ErrorCode::bad_model, "{}: is a pickle, but not a file of torch.save", where);
  const Pickle version = next();
  if (version.top().kind != Kind::integer || version.top().integer != 1001)
    fail(ErrorCode::bad_model, "{}: unsupported version {} of the legacy torch format, expected 1001", where,
         version.top().integer);
  const Pickle facts = next();
  for (size_t i = 0; facts.top().kind == Kind::dict && i + 1 < facts.top().items.size(); i += 2)
    if (facts[facts.top().items[i]].text == "little_endian" && facts[facts.top().items[i + 1]].integer != 1)
      fail(ErrorCode::bad_model, "{}: byte order is big-endian; save the file again on a little-endian machine", where);
  const Pickle pickle = next();
  StateDict state(pickle, where);
  state.read();
  const Pickle keys = next();
  if (keys.top().kind != Kind::list)
    fail(ErrorCode::bad_model, "{}: damaged list of storages; download the file again", where);
  for (const int32_t id : keys.top().items) {
    const auto found = keys[id].kind == Kind::text ? state.storages.find(keys[id].text) : state.storages.end();
    if (found == state.storages.end())
      fail(ErrorCode::bad_model, "{}: lists storage {}, which no tensor uses; download the file again", where,
           io::quote_text(keys[id].text));
    Storage& storage = found->second;
    const auto bytes = static_cast<uint64_t>(storage.elements) * static_cast<uint64_t>(storage.type->bytes);
    const uint64_t left = file.size() - at;
    if (left < 8 || bytes > left - 8)
      fail(ErrorCode::bad_model, "{}: truncated inside storage {} ({} of {} bytes); download the file again", where,
           io::quote_text(found->first), left, bytes + 8);
    uint64_t elements = 0;
    for (size_t i = 0; i < 8; ++i) elements |= static_cast<uint64_t>(file[at + i]) << (8 * i);
    if (elements != static_cast<uint64_t>(storage.elements))
      fail(ErrorCode::bad_model, "{}: storage {} has {} elements, but its tensors require {}; download the file again",
           where, io::quote_text(found->first), elements, storage.elements);
    storage.bytes = file.subspan(at + 8, bytes);
    storage.found = true;
    at += 8 + bytes;
  }
  return to_table(state, where);
}

}  // namespace

TensorTable parse_torch_bin(std::span<const std::byte> file, const std::string& where) {
  if (io::looks_like_zip(file)) return parse_archive(file, where);
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  if (text.starts_with('\x80')) return parse_legacy(file, where);
  if (text.size() > 262 && text.substr(257, 5) == "ustar")
    fail(ErrorCode::bad_model, "{}: unsupported torch format of 2016 (tar); save the file again with a newer torch",
         where);
  fail(ErrorCode::bad_model, "{}: is not a file of torch.save ({} bytes){}", where, file.size(),
       foreign_file_hint(file));
}

}  // namespace brim::hub
