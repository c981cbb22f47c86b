#include "weights/safetensors_header.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "weights/json.hpp"
#include "weights/printable.hpp"

namespace stet::weights {
namespace {

using nlohmann::json;

struct StoredType {
  std::string_view name;
  std::uint64_t bytes;
  std::optional<DType> type;  // none: a type that is listed but not read
};

constexpr std::array kTypes = {
    StoredType{"F64", 8, DType::f64},       StoredType{"F32", 4, DType::f32},
    StoredType{"F16", 2, DType::f16},       StoredType{"BF16", 2, DType::bf16},
    StoredType{"BOOL", 1, std::nullopt},    StoredType{"U8", 1, std::nullopt},
    StoredType{"I8", 1, std::nullopt},      StoredType{"U16", 2, std::nullopt},
    StoredType{"I16", 2, std::nullopt},     StoredType{"U32", 4, std::nullopt},
    StoredType{"I32", 4, std::nullopt},     StoredType{"U64", 8, std::nullopt},
    StoredType{"I64", 8, std::nullopt},     StoredType{"C64", 8, std::nullopt},
    StoredType{"F8_E4M3", 1, std::nullopt}, StoredType{"F8_E5M2", 1, std::nullopt},
    StoredType{"F8_E8M0", 1, std::nullopt},
};

constexpr std::size_t kMaxRank = 64;  // PyTorch's own limit

/// Reads one entry of the header; the members say where it is.
class Entry {
 public:
  Entry(const std::string& where, const std::string& name, const json& value)
      : where_(where), name_(name), value_(value) {}

  Result<StoredTensor> parse(std::uint64_t data_size) {
    if (!value_.is_object()) return refuse("is not an object");
    StoredTensor tensor;
    tensor.info.name = name_;
    const auto type = parse_type();
    if (!type) return pass(type);
    if ((*type)->type) {
      tensor.info.type = *(*type)->type;
    } else {
      tensor.info.other_type = (*type)->name;
    }
    const auto bytes = parse_shape((*type)->bytes, tensor.info.shape);
    if (!bytes) return pass(bytes);
    if (auto offsets = parse_offsets(tensor); !offsets) return pass(offsets);
    if (tensor.end > data_size) {
      return refuse(fmt::format("ends at byte {}, beyond the {} bytes of data", tensor.end, data_size));
    }
    if (tensor.end - tensor.begin != *bytes) {
      return refuse(fmt::format("data_offsets [{}, {}] hold {} bytes, but {} of type {} takes {}", tensor.begin,
                                tensor.end, tensor.end - tensor.begin, to_string(tensor.info.shape), (*type)->name,
                                *bytes));
    }
    return tensor;
  }

 private:
  Failure refuse(std::string_view why, Code code = Code::corrupt) const {
    return fail(code, fmt::format("{}: tensor {}: {}", where_, printable(name_), why));
  }

  const json* member(const char* key) const {
    const auto at = value_.find(key);
    return at == value_.end() ? nullptr : &*at;
  }

  Result<const StoredType*> parse_type() const {
    const json* dtype = member("dtype");
    if (dtype == nullptr) return refuse("has no dtype");
    if (!dtype->is_string()) return refuse(fmt::format("dtype is {}, not a string", spelled(*dtype)));
    const auto& name = dtype->get_ref<const std::string&>();
    const auto* known = std::find_if(kTypes.begin(), kTypes.end(), [&](const StoredType& t) { return t.name == name; });
    if (known == kTypes.end()) return refuse(fmt::format("unknown type {}", spelled(*dtype)), Code::unsupported);
    return known;
  }

  /// The tensor's size in bytes.
  Result<std::uint64_t> parse_shape(std::uint64_t element_bytes, std::vector<std::int64_t>& shape) const {
    const json* list = member("shape");
    if (list == nullptr) return refuse("has no shape");
    if (!list->is_array()) return refuse(fmt::format("shape is {}, not a list", spelled(*list)));
    if (list->size() > kMaxRank)
      return refuse(fmt::format("shape has {} dimensions, more than {}", list->size(), kMaxRank));
    std::int64_t elements = 1;
    for (const json& extent : *list) {
      if (!is_size(extent)) {
        return refuse(fmt::format("shape holds {}, which is not an integer from 0 to 2^63 - 1", spelled(extent)));
      }
      shape.push_back(extent.get<std::int64_t>());
      if (__builtin_mul_overflow(elements, shape.back(), &elements)) {
        return refuse(fmt::format("shape holds more than 2^63 - 1 elements at dimension {}", shape.size()));
      }
    }
    std::uint64_t bytes = 0;
    if (__builtin_mul_overflow(static_cast<std::uint64_t>(elements), element_bytes, &bytes)) {
      return refuse(fmt::format("{} elements of {} bytes are more than 2^64 - 1 bytes", elements, element_bytes));
    }
    return bytes;
  }

  Result<void> parse_offsets(StoredTensor& tensor) const {
    const json* list = member("data_offsets");
    if (list == nullptr) return refuse("has no data_offsets");
    if (!list->is_array() || list->size() != 2) return refuse("data_offsets is not a list of two");
    for (const json& offset : *list) {
      if (!is_size(offset)) {
        return refuse(
            fmt::format("data_offsets holds {}, which is not an integer from 0 to 2^63 - 1", spelled(offset)));
      }
    }
    tensor.begin = (*list)[0].get<std::uint64_t>();
    tensor.end = (*list)[1].get<std::uint64_t>();
    if (tensor.begin > tensor.end) {
      return refuse(fmt::format("data_offsets [{}, {}] end before they begin", tensor.begin, tensor.end));
    }
    return {};
  }

  static bool is_size(const json& value) {
    return value.is_number_unsigned() &&
           value.get<std::uint64_t>() <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  }

  const std::string& where_;
  const std::string& name_;
  const json& value_;
};

Result<void> check_metadata(const json& metadata, const std::string& where) {
  if (!metadata.is_object()) return fail(Code::corrupt, fmt::format("{}: __metadata__ is not an object", where));
  for (const auto& [key, value] : metadata.items()) {
    if (!value.is_string()) {
      return fail(Code::corrupt,
                  fmt::format("{}: __metadata__ {} is {}, not a string", where, printable(key), spelled(value)));
    }
  }
  return {};
}

/// Expects the tensors in the order of their offsets.
Result<void> check_tiling(const std::vector<StoredTensor>& tensors, std::uint64_t data_size, const std::string& where) {
  std::uint64_t at = 0;
  for (const StoredTensor& tensor : tensors) {
    if (tensor.begin != at) {
      return fail(Code::corrupt,
                  fmt::format("{}: tensor {}: begins at byte {} of the data, {} byte {} where the one before ends",
                              where, printable(tensor.info.name), tensor.begin,
                              tensor.begin > at ? "a gap after" : "overlapping", at));
    }
    at = tensor.end;
  }
  if (at != data_size) {
    return fail(Code::corrupt,
                fmt::format("{}: the tensors end at byte {} of the data, but it has {} bytes", where, at, data_size));
  }
  return {};
}

}  // namespace

Result<std::uint64_t> parse_header_length(std::string_view first8, std::uint64_t file_size, const std::string& where) {
  if (file_size < 8 || first8.size() != 8) {
    return fail(Code::corrupt,
                fmt::format("{}: {} bytes, too short for the length of a safetensors header", where, file_size));
  }
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<unsigned char>(first8[static_cast<std::size_t>(i)]);
  if (length < 2) return fail(Code::corrupt, fmt::format("{}: header of {} bytes, too short for JSON", where, length));
  if (length > kMaxHeaderBytes) {
    return fail(Code::corrupt, fmt::format("{}: header of {} bytes, more than the {} that the format allows", where,
                                           length, kMaxHeaderBytes));
  }
  if (length > file_size - 8) {
    return fail(Code::corrupt,
                fmt::format("{}: header of {} bytes, but only {} follow its length", where, length, file_size - 8));
  }
  return length;
}

Result<std::vector<StoredTensor>> parse_safetensors_header(std::string_view text, std::uint64_t data_size,
                                                           const std::string& where) {
  if (!text.starts_with('{'))
    return fail(Code::corrupt, fmt::format("{}: header does not begin with an object", where));
  const auto header = parse_json(text, where + ": header");
  if (!header) return pass(header);
  std::vector<StoredTensor> tensors;
  for (const auto& [name, value] : header->items()) {
    if (name == "__metadata__") {
      if (auto ok = check_metadata(value, where); !ok) return pass(ok);
      continue;
    }
    auto tensor = Entry(where, name, value).parse(data_size);
    if (!tensor) return pass(tensor);
    tensors.push_back(std::move(*tensor));
  }
  // An empty tensor shares its offset with the next one, so the end decides as well.
  std::sort(tensors.begin(), tensors.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return std::tie(a.begin, a.end, a.info.name) < std::tie(b.begin, b.end, b.info.name);
  });
  if (auto ok = check_tiling(tensors, data_size, where); !ok) return pass(ok);
  return tensors;
}

}  // namespace stet::weights
